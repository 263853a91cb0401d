//! What a job goes on from that was started again, by its launcher or its user's script.
//!
//! `torchrun --max-restarts` runs the same command line once more when a worker has died. The command line says
//! where the job began, not how far it came; the newest complete checkpoint does.

use crate::Result;
use crate::checkpoint;
use crate::comm::process;
use crate::launch::Launch;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The newest complete checkpoint that this job wrote before it was started again; None where it was not.
pub fn after_failure(launch: &Launch, save_ckpt: &Path) -> Result<Option<PathBuf>> {
    if launch.restarts == 0 {
        return Ok(None);
    }
    let times = format!("{} has started this job again ({} so far)", launch.launcher, launch.restarts);
    // The prefix may have been used before: what an earlier job left behind is not ours to go on from.
    let found = checkpoint::newest_complete(save_ckpt)?.filter(|(path, _)| is_of_this_job(path));
    match &found {
        Some((path, step)) => {
            log::warn!(
                "{times}: continuing from its newest complete checkpoint, {} (step {step})",
                path.display()
            )
        }
        None => log::warn!("{times}: it left no checkpoint, so it begins anew"),
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

/// Whether a file was written while the launcher was running. Where that cannot be known, it was.
fn is_of_this_job(path: &Path) -> bool {
    let written = std::fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    is_younger(written, launcher_age())
}

fn is_younger(file: Option<Duration>, launcher: Option<Duration>) -> bool {
    match (file, launcher) {
        (Some(file), Some(launcher)) => file <= launcher,
        _ => true,
    }
}

/// How long ago the process that starts the ranks began: the nearest one that is not itself inside the job.
fn launcher_age() -> Option<Duration> {
    let outside = |a: &process::Ancestor| a.has_variable("TORCHELASTIC_RESTART_COUNT") == Some(false);
    process::ancestors().into_iter().find(outside)?.age()
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
    fn a_job_that_was_not_restarted_looks_for_nothing() {
        let launch = Launch::detect(&|_| None, "here").unwrap();
        assert_eq!(after_failure(&launch, Path::new("/no/such/folder/model.ckpt")).unwrap(), None);
    }
}
