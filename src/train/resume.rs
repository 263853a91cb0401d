//! What a job goes on from that was started again, by its launcher or its user's script.
//!
//! `torchrun` runs the same command line once more when a worker has died (`--max-restarts`), and when a host joins a job that may
//! have more of them (`--nnodes=1:4`). The command line says where the job began, not how far it came; the newest complete
//! checkpoint does.

use super::team::Team;
use crate::Result;
use crate::checkpoint;
use crate::comm::process;
use crate::launch::Launch;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The process that started a rank and would start it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Starter {
    /// How long it has been running.
    age: Option<Duration>,
    /// It has started the rank itself, and so starts this command line alone: not a script, which may train under one name twice.
    is_parent: bool,
}

/// The newest complete checkpoint that this job wrote before its launcher started it again; None where it did not. Every rank must
/// call it.
pub fn after_restart(team: &mut Team, launch: &Launch, save_ckpt: &Path) -> Result<Option<PathBuf>> {
    if !launch.is_elastic() {
        return Ok(None);
    }
    let starters = team.gather(&Starter::of_this_process())?;
    team.from_root(|| newest_of_this_job(launch, save_ckpt, &starters))
}

fn newest_of_this_job(launch: &Launch, save_ckpt: &Path, starters: &[Starter]) -> Result<Option<PathBuf>> {
    // Ranks that join or leave are not counted as restarts.
    if launch.restarts == 0 && !starters.iter().all(|starter| starter.is_parent) {
        return Ok(None);
    }
    // A host may have joined just now; the job is as old as the oldest.
    let age = starters.iter().filter_map(|starter| starter.age).max();
    let found = checkpoint::newest_complete(save_ckpt)?.filter(|(path, _)| is_of_this_job(path, age));
    let again = match launch.restarts {
        0 => format!("{} has started this job again, on another number of ranks", launch.launcher),
        n => format!("{} has started this job again ({n} so far)", launch.launcher),
    };
    match &found {
        Some((path, step)) => {
            log::warn!(
                "{again}: continuing from its newest complete checkpoint, {} (step {step})",
                path.display()
            )
        }
        None if launch.restarts > 0 => log::warn!("{again}: it left no checkpoint, so it begins anew"),
        None => {} // this is the first start
    }
    Ok(found.map(|(path, _)| path))
}

/// The newest complete checkpoint of a prefix, for a run that goes on by itself; None where it begins.
pub fn newest(save_ckpt: &Path) -> Result<Option<PathBuf>> {
    let found = checkpoint::newest_complete(save_ckpt)?;
    match &found {
        Some((path, step)) => log::info!("continuing from {} (step {step})", path.display()),
        None => log::info!("no checkpoint of {} yet: the run begins", save_ckpt.display()),
    }
    Ok(found.map(|(path, _)| path))
}

/// Whether a file was written while the launcher was running: the name may have been used before, and what an earlier job left
/// behind is not ours to go on from. Where that cannot be known, it was.
fn is_of_this_job(path: &Path, launcher: Option<Duration>) -> bool {
    let written = std::fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    is_younger(written, launcher)
}

fn is_younger(file: Option<Duration>, launcher: Option<Duration>) -> bool {
    match (file, launcher) {
        (Some(file), Some(launcher)) => file <= launcher,
        _ => true,
    }
}

impl Starter {
    /// The nearest process above this one that is not itself inside the job.
    fn of_this_process() -> Starter {
        let outside = |a: &process::Ancestor| a.has_variable("TORCHELASTIC_RESTART_COUNT") == Some(false);
        let ancestors = process::ancestors();
        let place = ancestors.iter().position(outside);
        Starter { age: place.and_then(|k| ancestors[k].age()), is_parent: place == Some(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_older_than_the_launcher_are_not_of_this_job() {
        let seconds = |s| Some(Duration::from_secs(s));
        assert!(is_younger(seconds(5), seconds(100)));
        assert!(!is_younger(seconds(500), seconds(100)));
        assert!(is_younger(None, seconds(100)) && is_younger(seconds(5), None));
    }

    #[test]
    fn a_job_goes_on_from_what_it_wrote_since_its_oldest_launcher_began() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        let saved =
            checkpoint::Checkpoint { header: serde_json::json!({"step": 7}), arrays: Default::default() };
        checkpoint::save(&prefix, 7, &saved, 3).unwrap();
        let starter = |age: u64, is_parent| Starter { age: Some(Duration::from_secs(age)), is_parent };
        let launch = |restarts| Launch { restarts, ..Launch::detect(&|_| None, "here").unwrap() };
        let found = |restarts, starters: &[Starter]| {
            newest_of_this_job(&launch(restarts), &prefix, starters).unwrap().is_some()
        };
        // The first launcher is of a host that has just joined.
        assert!(found(0, &[starter(0, true), starter(1000, true)]));
        assert!(!found(0, &[starter(0, true)]), "an earlier job has written it");
        assert!(!found(0, &[starter(1000, false)]), "a script may train twice");
        assert!(found(1, &[starter(1000, false)]), "the launcher says that it starts the job again");
    }
}
