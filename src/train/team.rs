//! What the ranks of a run do together, beyond plain collectives.
//!
//! Every rank runs the same collectives in the same order; a failure on one becomes a failure on all, and only one
//! of them tells the user.

use crate::comm::Communicator;
use crate::comm::vectors::{CommonVector, RankVector};
use crate::{Error, Result, err};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;

/// The ranks of a run.
///
/// Ranks that follow each other make groups, each of which works on one batch together; most often a rank is a group by itself.
pub struct Team {
    comm: Box<dyn Communicator>,
    ranks_per_group: usize,
}

impl Team {
    pub fn new(comm: Box<dyn Communicator>) -> Self {
        Team { comm, ranks_per_group: 1 }
    }

    /// From now on so many ranks in a row are a group. The number divides that of all ranks.
    pub fn form_groups(&mut self, ranks: usize) -> Result<()> {
        self.comm.form_groups(ranks)?;
        self.ranks_per_group = ranks;
        Ok(())
    }

    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// Ranks of a group.
    pub fn ranks_per_group(&self) -> usize {
        self.ranks_per_group
    }

    /// The number of my group, and of groups.
    pub fn group(&self) -> usize {
        self.rank() / self.ranks_per_group
    }

    pub fn n_groups(&self) -> usize {
        self.size() / self.ranks_per_group
    }

    /// My number within my group.
    pub fn rank_in_group(&self) -> usize {
        self.rank() % self.ranks_per_group
    }

    /// True on the one rank of a group that speaks for it.
    pub fn speaks_for_group(&self) -> bool {
        self.rank_in_group() == 0
    }

    /// True on the one rank that writes files.
    pub fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// The communicator's name.
    pub fn engine(&self) -> &str {
        self.comm.name()
    }

    /// Does `work` on rank 0 and gives its result to all; its failure is everyone's.
    pub fn from_root<T: Serialize + DeserializeOwned>(
        &mut self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.size() == 1 {
            return work();
        }
        let mine = self.is_root().then(work);
        let mut bytes = match &mine {
            Some(Ok(value)) => encode(&Ok::<_, String>(value))?,
            Some(Err(e)) => encode(&Err::<T, _>(e.to_string()))?,
            None => Vec::new(),
        };
        self.comm.broadcast(0, &mut bytes)?;
        match mine {
            Some(result) => result,
            None => decode::<std::result::Result<T, String>>(&bytes)?
                .map_err(|e| err!("rank 0: {e}").told_elsewhere()),
        }
    }

    /// As [`Team::from_root`], for bytes that are many.
    pub fn bytes_from_root(&mut self, work: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.from_root(|| {
            bytes = work()?;
            Ok(())
        })?;
        if self.size() > 1 {
            self.comm.broadcast(0, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Passes a local result on where every rank succeeded; otherwise everyone fails, and the first that did says why.
    pub fn agree<T>(&mut self, local: Result<T>) -> Result<T> {
        if self.size() == 1 {
            return local;
        }
        let message = local.as_ref().err().map(|e| e.to_string()).unwrap_or_default();
        let all = self.comm.all_gather(message.as_bytes())?;
        let Some(first) = all.iter().position(|m| !m.is_empty()) else { return local };
        match local {
            Err(e) if first == self.rank() => Err(e),
            _ => Err(err!("rank {first}: {}", String::from_utf8_lossy(&all[first])).told_elsewhere()),
        }
    }

    /// For a verdict that every rank has come to: rank 0 tells.
    pub fn tell_once<T>(&self, verdict: Result<T>) -> Result<T> {
        if self.is_root() { verdict } else { verdict.map_err(Error::told_elsewhere) }
    }

    /// For a verdict that all ranks of a group have come to: one of them tells.
    pub fn tell_once_in_group<T>(&self, verdict: Result<T>) -> Result<T> {
        if self.speaks_for_group() { verdict } else { verdict.map_err(Error::told_elsewhere) }
    }

    /// What a group does step by step with its ranks: `local` is the outcome of the work of this rank. Ranks that share a frame wait
    /// for each other within it, so that one which fails must not come to a collective of all.
    pub fn agree_on_work<T>(&mut self, local: Result<T>) -> Result<T> {
        if self.ranks_per_group > 1 { local } else { self.agree(local) }
    }

    /// Everyone's value, by rank.
    pub fn gather<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<Vec<T>> {
        let bytes = encode(mine)?;
        if self.size() == 1 {
            return Ok(vec![decode(&bytes)?]);
        }
        self.comm.all_gather(&bytes)?.iter().map(|bytes| decode(bytes)).collect()
    }

    /// A value of each group, which its ranks have in common, by group.
    pub fn gather_from_groups<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<Vec<T>> {
        let all = self.gather(mine)?;
        Ok(all.into_iter().step_by(self.ranks_per_group).collect())
    }

    /// Everyone's bytes, by rank.
    pub fn gather_bytes(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.size() == 1 { Ok(vec![mine.to_vec()]) } else { self.comm.all_gather(mine) }
    }

    /// Rank 0's numbers for all.
    pub fn broadcast(&mut self, x: &mut Vec<f64>) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let mut bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.comm.broadcast(0, &mut bytes)?;
        *x = bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
        Ok(())
    }

    /// Sums over ranks, in place.
    pub fn sum(&mut self, x: &mut [f64]) -> Result<()> {
        if self.size() == 1 { Ok(()) } else { self.comm.all_reduce_sum_f64(x) }
    }

    /// Sums over the ranks of my group, in place.
    pub fn sum_in_group(&mut self, x: &mut [f64]) -> Result<()> {
        if self.ranks_per_group == 1 { Ok(()) } else { self.comm.all_reduce_group_f64(x) }
    }

    /// Exact sums over ranks, in place.
    pub fn sum_exact(&mut self, x: &mut [i64]) -> Result<()> {
        if self.size() == 1 { Ok(()) } else { self.comm.all_reduce_sum_i64(x) }
    }

    /// The slice of a vector of `n` numbers that this rank owns in an update: see [`Communicator::slice`].
    pub fn slice(&self, n: usize) -> Range<usize> {
        self.comm.slice(n)
    }

    /// This rank's term of sums that go to the owners of slices.
    pub fn rank_vector(&mut self, n: usize) -> Result<RankVector> {
        self.comm.rank_vector(n)
    }

    /// Numbers that all ranks have in common.
    pub fn common_vector(&mut self, x: Vec<f64>) -> Result<CommonVector> {
        self.comm.common_vector(x)
    }

    /// Sums over ranks for the owners of slices.
    pub fn reduce_scatter(&mut self, x: &mut RankVector) -> Result<()> {
        self.comm.reduce_scatter(x)
    }

    /// The owners' slices for all.
    pub fn all_gather_slices(&mut self, x: &mut CommonVector) -> Result<()> {
        self.comm.all_gather_slices(x)
    }

    /// For whoever works with all ranks and is not of the trainer: optimisers.
    pub fn ranks(&mut self) -> &mut dyn Communicator {
        &mut *self.comm
    }

    /// Waits for everyone.
    pub fn barrier(&mut self) -> Result<()> {
        if self.size() == 1 { Ok(()) } else { self.comm.barrier() }
    }

    /// The launcher is about to end this job: the last words must be short.
    pub fn hurry(&mut self) {
        self.comm.hurry();
    }

    /// Ends the run in agreement, or tells the user and the others why this rank cannot go on.
    ///
    /// Launchers end all ranks as soon as one has ended badly: those with nothing to tell wait for the one that tells.
    pub fn part(mut self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Ok(()) => self.comm.finish(),
            Err(e) if self.size() == 1 => Err(e),
            Err(e) if e.is_told_elsewhere() => {
                let _ = self.comm.barrier(); // ends when the one that tells has left
                Err(e)
            }
            Err(e) => {
                crate::report::log::tell_error(&e);
                self.comm.abort(e.message());
                Err(e.told_elsewhere())
            }
        }
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::new(format!("cannot pass a value to the other ranks: {e}")))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::new(format!("another rank sent what cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_team<T: Send>(n: usize, work: impl Fn(&mut Team) -> T + Sync) -> Vec<T> {
        let comms = crate::comm::local_group(n);
        std::thread::scope(|scope| {
            let handles: Vec<_> = comms
                .into_iter()
                .map(|comm| {
                    let work = &work;
                    scope.spawn(move || {
                        let mut team = Team::new(comm);
                        let out = work(&mut team);
                        let _ = team.part(Ok(()));
                        out
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_failure_on_one_rank_is_a_failure_on_all_and_one_tells() {
        let results = in_team(3, |team| {
            let local = if team.rank() == 1 { Err(err!("no data")) } else { Ok(7) };
            team.agree(local)
        });
        assert!(results.iter().all(|r| r.is_err()));
        let telling: Vec<bool> =
            results.iter().map(|r| !r.as_ref().unwrap_err().is_told_elsewhere()).collect();
        assert_eq!(telling, [false, true, false]);
    }

    #[test]
    fn what_rank_0_finds_is_known_to_all() {
        let results = in_team(3, |team| {
            let rank = team.rank();
            team.from_root(|| Ok(vec![rank as f64 + 0.1, 1.0 / 3.0])).unwrap()
        });
        assert!(results.iter().all(|r| *r == [0.1, 1.0 / 3.0]));
        let results = in_team(3, |team| {
            let rank = team.rank();
            team.bytes_from_root(|| Ok(vec![rank as u8 + 7; 100_000])).unwrap()
        });
        assert!(results.iter().all(|r| *r == vec![7; 100_000]));
        let failed = in_team(2, |team| team.bytes_from_root(|| Err(err!("no file"))).unwrap_err());
        assert_eq!(failed.iter().filter(|e| !e.is_told_elsewhere()).count(), 1);
    }

    #[test]
    fn everyones_values_arrive_by_rank() {
        let results = in_team(2, |team| team.gather(&team.rank()).unwrap());
        assert_eq!(results, [vec![0, 1], vec![0, 1]]);
    }
}
