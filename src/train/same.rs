//! Whether ranks are one job: the same program, input and task, and the same data.

use super::session::SessionOptions;
use super::team::Team;
use crate::Result;
use crate::comm::about::About;
use crate::data::Dataset;
use crate::err;
use crate::launch::{Env, Launch};
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Systems of which frames are looked at; of all others only what is known without reading any.
const LOOKED_AT: usize = 64;

/// What this rank knows of the job, before it meets the others. What it cannot know is left out: only rank 0 has to see the
/// input.
pub fn about(launch: &Launch, options: &SessionOptions, env: Env) -> About {
    let names = ["PHALANX_JOB_ID", "SLURM_JOB_ID"];
    let given = || names.iter().find_map(|name| env(name).filter(|id| !id.is_empty()));
    let job = Some(launch.job.clone()).filter(|job| !job.is_empty()).or_else(given);
    About::default()
        .with("program", Some(program()))
        .with("task", Some(options.task.clone()))
        .with("job", job)
        .with("input", options.input.as_deref().and_then(input))
}

/// Version and sources of this program.
fn program() -> String {
    format!("Phalanx {} (build {})", env!("CARGO_PKG_VERSION"), env!("PHALANX_BUILD"))
}

/// Length and hash of the input, where it is a file that can be read here.
fn input(path: &Path) -> Option<String> {
    let is_file = std::fs::metadata(path).is_ok_and(|about| about.is_file());
    let bytes = is_file.then(|| std::fs::read(path).ok())??;
    Some(format!("{} bytes with hash {:016x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes)))
}

/// Refuses ranks that see other systems than rank 0, by name. Every rank must call it.
pub fn check_data(team: &mut Team, data: &Dataset, name: &str) -> Result<()> {
    check_facts(team, &format!("training.{name}_data"), || facts(data))
}

/// Refuses ranks that found other facts than rank 0, by name. One fact is a line about a system or a data set. Every rank must
/// call it.
pub fn check_facts(team: &mut Team, name: &str, find: impl FnOnce() -> Result<Vec<String>>) -> Result<()> {
    if team.size() == 1 {
        return Ok(());
    }
    let mine = team.agree(find())?;
    let mut hash = Xxh3::new();
    mine.iter().for_each(|fact| hash.update(fact.as_bytes()));
    let hashes = team.gather(&hash.digest())?;
    if hashes.iter().all(|hash| *hash == hashes[0]) {
        return Ok(());
    }
    let all = team.gather(&mine)?;
    team.tell_once(Err(difference(&all, name)))
}

/// One line for each system: what every rank must see alike.
fn facts(data: &Dataset) -> Result<Vec<String>> {
    let step = data.systems.len().div_ceil(LOOKED_AT).max(1);
    let fact = |(k, system): (usize, &crate::data::System)| {
        let mut hash = Xxh3::new();
        system.types.iter().for_each(|t| hash.update(&t.to_le_bytes()));
        let looked_at = [0, system.n_frames - 1];
        for &frame in looked_at.iter().filter(|_| k.is_multiple_of(step)) {
            let frame = system.read_frame(frame)?;
            let energy = frame.labels.energy.as_slice();
            let force = frame.labels.force.as_deref().unwrap_or_default();
            let numbers = frame.coord.iter().chain(energy).chain(force);
            numbers.for_each(|x| hash.update(&x.to_le_bytes()));
        }
        let (frames, atoms) = (system.n_frames, system.n_atoms);
        Ok(format!("{frames} frames of {atoms} atoms, hash {:016x}", hash.digest()))
    };
    data.systems.iter().enumerate().map(fact).collect()
}

/// Names the first rank and system that differ from rank 0's.
fn difference(all: &[Vec<String>], name: &str) -> crate::Error {
    let rank = all.iter().position(|facts| facts != &all[0]).unwrap_or(0);
    let (first, other) = (&all[0], &all[rank]);
    let what = match first.iter().zip(other).position(|(a, b)| a != b) {
        Some(k) => format!("system {k} has {}, that of rank 0 has {}", other[k], first[k]),
        None => format!("it has {} systems, rank 0 has {}", other.len(), first.len()),
    };
    err!("{name}: rank {rank} sees other data than rank 0: {what}")
        .help("all ranks read the same folders: look at the paths, and at copies on other hosts")
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn the_rank_and_the_system_that_differ_are_named() {
        let facts = |list: &[&str]| list.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let same = facts(&["5 frames", "3 frames"]);
        let all = [same.clone(), same.clone(), facts(&["5 frames", "4 frames"])];
        let message = difference(&all, "training.training_data").message().to_string();
        assert_eq!(
            message,
            "training.training_data: rank 2 sees other data than rank 0: system 1 has 4 frames, that of rank 0 has 3 frames"
        );
        let all = [same, facts(&["5 frames"])];
        assert!(difference(&all, "x").message().ends_with("it has 1 systems, rank 0 has 2"));
    }
}
