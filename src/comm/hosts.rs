//! Ranks of several hosts, several on each: an update is summed up on each host through its memory, then between hosts.
//!
//! Each rank of a host has a slice of the sum of that host, and exchanges it with the ranks that have the same slice on the
//! other hosts. So every number crosses the network twice, however many ranks a host has. All other collectives are those
//! of the pairs.

use std::ops::Range;

use super::element::group_of;
use super::pairwise::{Link, Pairwise};
use super::process::host_identity;
use super::shm::{self, Shm};
use super::store::texts;
use super::vectors::{CommonVector, RankVector, slice_of};
use super::{CommOptions, Communicator};
use crate::error::{Error, Result};

/// Ranks joined by links between all pairs, and on each host by memory.
struct Hosts<L: Link> {
    all: Pairwise<L>,
    /// The ranks of this host.
    here: Shm,
    members: Vec<usize>,
    /// Whether every group is one of ranks of one host.
    grouped_here: bool,
    /// The ranks that have my place on each host, by host.
    peers: Vec<usize>,
    name: String,
    /// The first error, of the pairs or of this host. After it neither may carry anything more: a rank that was late may yet pass
    /// what this one has given up, and would take whatever comes next for what it waits for.
    failed: Option<Error>,
}

/// Lets the ranks of each host share memory, where there are several hosts with as many ranks each. All ranks call it.
pub fn arrange<L: Link + 'static>(all: Pairwise<L>, options: &CommOptions) -> Result<Box<dyn Communicator>> {
    arrange_by(all, options, &host_identity())
}

/// [`arrange`], for ranks that say which host they are on.
pub fn arrange_by<L: Link + 'static>(
    mut all: Pairwise<L>,
    options: &CommOptions,
    host: &str,
) -> Result<Box<dyn Communicator>> {
    let labels = texts(all.all_gather(host.as_bytes())?);
    let Some((members, peers)) = places(&labels, all.rank()) else { return Ok(Box::new(all)) };
    let place = members.iter().position(|&rank| rank == all.rank()).expect("a rank is on its own host");
    let of_members = |everyones: Vec<Vec<u8>>| members.iter().map(|&rank| everyones[rank].clone()).collect();
    let joined =
        shm::join(place, members.len(), options, &mut |_, mine| all.all_gather(mine).map(of_members))?;
    let verdict = joined.as_ref().err().cloned().unwrap_or_default();
    let failed = all.all_gather(verdict.as_bytes())?.iter().any(|verdict| !verdict.is_empty());
    match joined {
        Ok(here) if !failed => {
            let name = format!("{}, shared memory on each host", all.name());
            let here = here.among(members.clone(), all.size());
            Ok(Box::new(Hosts { all, here, members, grouped_here: false, peers, name, failed: None }))
        }
        _ => {
            log::debug!("no shared memory on each host: {verdict}");
            Ok(Box::new(all))
        }
    }
}

/// The ranks on the host of `rank`, and those with its place on every host; `None` where hosts differ in their number of ranks,
/// where there is but one host, or one rank on each.
fn places(labels: &[String], rank: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, label) in labels.iter().enumerate() {
        match hosts.iter_mut().find(|(host, _)| host == label) {
            Some((_, ranks)) => ranks.push(rank),
            None => hosts.push((label, vec![rank])),
        }
    }
    let each = hosts[0].1.len();
    if hosts.len() == 1 || each == 1 || hosts.iter().any(|(_, ranks)| ranks.len() != each) {
        return None;
    }
    let mine = hosts.iter().find(|(_, ranks)| ranks.contains(&rank))?.1.clone();
    let place = mine.iter().position(|&r| r == rank)?;
    Some((mine, hosts.iter().map(|(_, ranks)| ranks[place]).collect()))
}

impl<L: Link> Hosts<L> {
    /// The slice that this rank sums up for its host.
    fn slice_here(&self, n: usize) -> Range<usize> {
        slice_of(n, self.here.size(), self.here.rank())
    }

    /// A collective, unless one has failed. A failure is told to the ranks of this host and of the others.
    fn together<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|verdict| {
            self.here.follow(verdict.message());
            self.all.follow(verdict.message());
            self.failed = Some(verdict.clone());
        })
    }
}

impl<L: Link> Communicator for Hosts<L> {
    fn name(&self) -> &str {
        &self.name
    }
    fn rank(&self) -> usize {
        self.all.rank()
    }
    fn size(&self) -> usize {
        self.all.size()
    }
    fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> Result<()> {
        self.together(|hosts| hosts.all.all_reduce_sum_f64(x))
    }
    fn all_reduce_sum_f32(&mut self, x: &mut [f32]) -> Result<()> {
        self.together(|hosts| hosts.all.all_reduce_sum_f32(x))
    }
    fn all_reduce_sum_i64(&mut self, x: &mut [i64]) -> Result<()> {
        self.together(|hosts| hosts.all.all_reduce_sum_i64(x))
    }

    /// Ranks of one host sum up through its memory; groups that span hosts exchange messages.
    fn form_groups(&mut self, each: usize) -> Result<()> {
        let mates = group_of(self.rank(), self.size(), each);
        let places: Option<Vec<usize>> =
            mates.map(|mate| self.members.iter().position(|&rank| rank == mate)).collect();
        let at_home = self.all_gather(&[u8::from(places.is_some())])?.iter().all(|home| home[0] == 1);
        self.grouped_here = at_home;
        match places.filter(|_| at_home) {
            Some(places) => self.together(|hosts| hosts.here.form_group(&places)),
            None => self.together(|hosts| hosts.all.form_groups(each)),
        }
    }

    fn all_reduce_group_f64(&mut self, x: &mut [f64]) -> Result<()> {
        self.together(|hosts| match hosts.grouped_here {
            true => hosts.here.all_reduce_group_f64(x),
            false => hosts.all.all_reduce_group_f64(x),
        })
    }

    fn slice(&self, n: usize) -> Range<usize> {
        let here = self.slice_here(n);
        let mine = self.all.slice_among(&self.peers, here.len());
        here.start + mine.start..here.start + mine.end
    }

    fn rank_vector(&mut self, n: usize) -> Result<RankVector> {
        self.together(|hosts| hosts.here.rank_vector(n))
    }

    fn common_vector(&mut self, x: Vec<f64>) -> Result<CommonVector> {
        self.together(|hosts| hosts.here.common_vector(x))
    }

    fn reduce_scatter(&mut self, x: &mut RankVector) -> Result<()> {
        let here = self.slice_here(x.len());
        self.together(|hosts| hosts.here.reduce_scatter(x))?;
        // SAFETY: the slice of this rank on its host, once.
        unsafe { x.sums().add_up(here.clone()) };
        x.set_summed(true);
        self.together(|hosts| hosts.all.reduce_scatter_among(&hosts.peers, &mut x[here]))
    }

    fn all_gather_slices(&mut self, x: &mut CommonVector) -> Result<()> {
        let here = self.slice_here(x.len());
        self.together(|hosts| hosts.all.all_gather_among(&hosts.peers, &mut x[here]))?;
        self.together(|hosts| hosts.here.all_gather_slices(x))
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.together(|hosts| hosts.all.broadcast(root, bytes))
    }
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.together(|hosts| hosts.all.all_gather(bytes))
    }
    fn barrier(&mut self) -> Result<()> {
        self.together(|hosts| hosts.all.barrier())
    }
    fn abort(&self, why: &str) {
        self.here.abort(why);
        self.all.abort(why);
    }
    fn hurry(&mut self) {
        self.all.hurry();
    }
    fn finish(self: Box<Self>) -> Result<()> {
        let Hosts { all, here, failed, .. } = *self;
        failed.map_or(Ok(()), Err)?;
        Box::new(here).finish()?;
        Box::new(all).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_peers_where_all_hosts_have_as_many() {
        let labels = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(places(&labels("aabb"), 3), Some((vec![2, 3], vec![1, 3])));
        assert_eq!(places(&labels("ababab"), 2), Some((vec![0, 2, 4], vec![2, 3])));
        for alone in ["aaaa", "abc", "aab"] {
            assert_eq!(places(&labels(alone), 0), None, "{alone}");
        }
    }
}
