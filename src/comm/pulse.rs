//! Which ranks are alive, and how long to wait for them.
//!
//! Each rank's own thread gives a sign of life a few times within the limit, whatever the rank is computing. So a
//! stopped or vanished rank can be told from a busy one: the first ends the job after [`CommOptions::limit`], the
//! second only after [`CommOptions::late_limit`]. How signs travel is the engine's affair; the verdict is here.

use std::time::{Duration, Instant};

use super::CommOptions;
use crate::err;
use crate::error::{Error, Result};

/// What is known of one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vital {
    /// Number of collectives that it has entered.
    pub entered: u64,
    /// Time since its last sign of life.
    pub silent: Duration,
    /// How it ended, if it did.
    pub end: Option<End>,
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// In agreement, after its last collective.
    Finished,
    /// For a reason that it told.
    Aborted(String),
    /// Because of another rank: its own verdict, word for word, so that the first cause is what everybody reports.
    Followed(String),
    /// Without a word.
    Died,
}

/// The wait within one collective: warns once, then gives up.
pub struct Patience<'a> {
    options: &'a CommOptions,
    what: &'static str,
    number: u64,
    since: Instant,
    warned: bool,
}

impl<'a> Patience<'a> {
    /// Begins to wait in collective `number` (1 is the first), which does `what`: "all-reduce".
    pub fn new(options: &'a CommOptions, what: &'static str, number: u64) -> Self {
        Patience { options, what, number, since: Instant::now(), warned: false }
    }

    /// How long this wait has lasted.
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Judges the ranks `vitals`, of which `me` is mine. An error names the ranks because of which there is no hope.
    pub fn check(&mut self, vitals: &[Vital], me: usize) -> Result<()> {
        let others = || vitals.iter().enumerate().filter(|(rank, _)| *rank != me);
        // A rank that ended because of another one says so; that says more than its end does.
        let mut ended: Vec<(usize, &Vital)> = others().filter(|(_, v)| v.end.is_some()).collect();
        ended.sort_by_key(|(_, v)| v.end == Some(End::Died));
        for (rank, vital) in ended {
            self.check_end(rank, vital)?;
        }
        let silent = others().filter(|(_, v)| v.silent >= self.options.limit && v.end.is_none());
        let silent: Vec<usize> = silent.map(|(rank, _)| rank).collect();
        if !silent.is_empty() {
            let (ranks, seconds) = (name_ranks(&silent), self.options.limit.as_secs_f64());
            return Err(
                err!("{ranks} gave no sign of life for {seconds:.0} s, during {}", self.what).help(SILENT)
            );
        }
        let late: Vec<usize> =
            others().filter(|(_, v)| v.entered < self.number).map(|(rank, _)| rank).collect();
        if self.waited() >= self.options.late_limit {
            return Err(self.too_late(&late));
        }
        self.warn(vitals, me, &late);
        Ok(())
    }

    fn check_end(&self, rank: usize, vital: &Vital) -> Result<()> {
        match &vital.end {
            None => Ok(()),
            Some(End::Finished) if vital.entered >= self.number => Ok(()),
            Some(End::Finished) => Err(err!("rank {rank} finished, but the others still want {}", self.what)),
            Some(End::Aborted(why)) => Err(err!("rank {rank} stopped: {why}")),
            Some(End::Followed(verdict)) => Err(Error::new(verdict.clone())),
            Some(End::Died) => {
                Err(err!("rank {rank} died").help("its own log, or the launcher, may say why"))
            }
        }
    }

    fn too_late(&self, late: &[usize]) -> Error {
        let seconds = self.waited().as_secs_f64();
        let who = if late.is_empty() { "a message".to_string() } else { name_ranks(late) };
        err!("waited {seconds:.0} s for {who} in {}", self.what)
            .help("if this is no deadlock but slow work, raise PHALANX_COMM_LATE_LIMIT (seconds)")
    }

    fn warn(&mut self, vitals: &[Vital], me: usize, late: &[usize]) {
        if self.warned || self.waited() < self.options.warn_after {
            return;
        }
        self.warned = true;
        let quiet = 3 * self.options.beat();
        let silent =
            |rank: &usize| *rank != me && vitals[*rank].silent > quiet && vitals[*rank].end.is_none();
        let silent: Vec<usize> = (0..vitals.len()).filter(silent).collect();
        let (seconds, limit) = (self.waited().as_secs_f64(), self.options.limit.as_secs_f64());
        if !silent.is_empty() {
            let ranks = name_ranks(&silent);
            log::warn!("{}: {ranks} silent for {seconds:.0} s; the run ends after {limit:.0} s", self.what);
        } else if !late.is_empty() {
            log::warn!("{}: waiting for {} since {seconds:.0} s (alive)", self.what, name_ranks(late));
        }
    }
}

/// "rank 3", "ranks 1, 2", "ranks 0, 1, 2, 3 and 12 more".
pub fn name_ranks(ranks: &[usize]) -> String {
    let shown = ranks.iter().take(8).map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks.len() {
        1 => format!("rank {shown}"),
        n if n <= 8 => format!("ranks {shown}"),
        n => format!("ranks {shown} and {} more", n - 8),
    }
}

const SILENT: &str =
    "it may be stopped, swapping or on a host that went away; PHALANX_COMM_LIMIT (seconds) sets the limit";

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(vitals: &[Vital]) -> String {
        let options = CommOptions { limit: Duration::from_secs(3), ..CommOptions::default() };
        match Patience::new(&options, "all-reduce", 7).check(vitals, 0) {
            Ok(()) => "wait".to_string(),
            Err(e) => e.message().to_string(),
        }
    }

    fn rank(entered: u64, silent_s: u64, end: Option<End>) -> Vital {
        Vital { entered, silent: Duration::from_secs(silent_s), end }
    }

    #[test]
    fn a_busy_rank_is_waited_for_and_a_silent_one_is_named() {
        let me = rank(7, 0, None);
        assert_eq!(judge(&[me.clone(), rank(6, 0, None)]), "wait");
        assert_eq!(judge(&[me.clone(), rank(6, 2, None)]), "wait");
        let silent = judge(&[me.clone(), rank(6, 4, None), rank(7, 0, None), rank(7, 9, None)]);
        assert_eq!(silent, "ranks 1, 3 gave no sign of life for 3 s, during all-reduce");
        assert_eq!(judge(&[rank(7, 99, None), rank(7, 0, None)]), "wait", "my own slot is not judged");
    }

    #[test]
    fn an_end_is_an_error_unless_it_came_after_this_collective() {
        let me = rank(7, 0, None);
        assert_eq!(judge(&[me.clone(), rank(7, 99, Some(End::Finished))]), "wait");
        let early = judge(&[me.clone(), rank(6, 0, Some(End::Finished))]);
        assert_eq!(early, "rank 1 finished, but the others still want all-reduce");
        assert_eq!(judge(&[me.clone(), rank(7, 0, Some(End::Died))]), "rank 1 died");
        let aborted = rank(7, 0, Some(End::Aborted("disk full".into())));
        assert_eq!(judge(&[me.clone(), aborted]), "rank 1 stopped: disk full");
        let followed = rank(7, 0, Some(End::Followed("rank 3 died".into())));
        assert_eq!(judge(&[me, rank(7, 0, Some(End::Died)), followed]), "rank 3 died");
    }

    #[test]
    fn many_ranks_are_named_in_short() {
        assert_eq!(name_ranks(&[3]), "rank 3");
        assert_eq!(name_ranks(&[1, 2]), "ranks 1, 2");
        assert_eq!(name_ranks(&(0..20).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
