//! `--mpi-log collect` over several hosts: lines for the one log file travel to rank 0.
//!
//! On the host of rank 0 all ranks append to the file themselves. A rank elsewhere may not see that file, or see it
//! through a network file system that does not append in one piece. Its lines wait until all ranks meet anyway, at
//! the next display or the end, and rank 0 writes them.

use super::team::Team;
use crate::report::log as report;
use crate::{Result, err};
use std::sync::{Arc, Mutex};

/// The lines of this rank that wait for the next meeting.
pub struct FarLines {
    /// Some rank is on another host than rank 0.
    far: bool,
    /// None once the lines go to this host's own file.
    waiting: Arc<Mutex<Option<Vec<u8>>>>,
}

impl FarLines {
    /// `hosts` by rank. Lines of the ranks that are elsewhere than rank 0 wait from now on.
    pub fn new(hosts: &[String], rank: usize, collects: bool) -> Self {
        let waiting = Arc::new(Mutex::new(Some(Vec::new())));
        if collects && hosts[rank] != hosts[0] {
            let waiting = waiting.clone();
            report::set_collector(Box::new(move |line| keep(&waiting, line)));
        }
        FarLines { far: collects && hosts.iter().any(|host| *host != hosts[0]), waiting }
    }

    /// Rank 0 writes the lines of all ranks that are elsewhere. Every rank must call it.
    pub fn gather(&self, team: &mut Team) -> Result<()> {
        if !self.far {
            return Ok(());
        }
        let mine = lock(&self.waiting).as_mut().map(std::mem::take).unwrap_or_default();
        for lines in team.gather_bytes(&mine)? {
            if team.is_root() {
                lines.split_inclusive(|&byte| byte == b'\n').for_each(report::write_collected);
            }
        }
        Ok(())
    }
}

impl Drop for FarLines {
    /// After a failure nobody meets any more: what is left goes to the file on this host.
    fn drop(&mut self) {
        let left = lock(&self.waiting).take().unwrap_or_default();
        left.split_inclusive(|&byte| byte == b'\n').for_each(report::write_collected);
    }
}

fn keep(waiting: &Mutex<Option<Vec<u8>>>, line: &[u8]) -> Result<()> {
    match lock(waiting).as_mut() {
        Some(lines) => {
            lines.extend_from_slice(line);
            Ok(())
        }
        None => Err(err!("the ranks have parted")),
    }
}

fn lock(waiting: &Mutex<Option<Vec<u8>>>) -> std::sync::MutexGuard<'_, Option<Vec<u8>>> {
    waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
