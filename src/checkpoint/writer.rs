//! Writes checkpoints on a thread of its own while training goes on.

use super::{Checkpoint, Store};
use crate::err;
use crate::error::{Error, Result};
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A background writer. One save is under way at most; its error comes back with the next call.
///
/// The loop pays for the copy that it hands over, not for the disk.
#[derive(Debug)]
pub struct Writer {
    requests: Option<Sender<Request>>,
    results: Receiver<Saved>,
    thread: Option<JoinHandle<()>>,
    in_flight: bool,
    /// The newest that is complete.
    newest: Option<PathBuf>,
    /// Why the last save failed, until someone asks.
    failed: Option<Error>,
    /// Memory of the last snapshot, for the next one.
    spare: Option<Checkpoint>,
}

struct Request {
    step: u64,
    snapshot: Checkpoint,
    /// What the checkpoint counts on, and must be on the disk before it.
    first: Option<File>,
}

struct Saved {
    path: Result<PathBuf>,
    snapshot: Checkpoint,
}

impl Writer {
    /// Starts the thread.
    pub fn new(store: Store) -> Result<Self> {
        let (requests, work) = channel::<Request>();
        let (done, results) = channel();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || {
                for Request { step, snapshot, first } in work {
                    if let Some(Err(error)) = first.map(|file| file.sync_data()) {
                        log::debug!("rows of the learning curve may not be on the disk yet: {error}");
                    }
                    let saved = Saved { path: store.save(step, &snapshot), snapshot };
                    if done.send(saved).is_err() {
                        return; // the run is over and nobody asks
                    }
                }
            })
            .map_err(|e| err!("cannot start the thread that writes checkpoints: {e}"))?;
        Ok(Writer {
            requests: Some(requests),
            results,
            thread: Some(thread),
            in_flight: false,
            newest: None,
            failed: None,
            spare: None,
        })
    }

    /// Hands over a snapshot. Waits for the save before it, and returns that one's error if it failed.
    ///
    /// `first` goes to the disk before it.
    pub fn save(&mut self, step: u64, snapshot: Checkpoint, first: Option<File>) -> Result<()> {
        self.wait()?;
        let requests = self.requests.as_ref().expect("requests stay open until the writer is dropped");
        requests.send(Request { step, snapshot, first }).map_err(|_| thread_died())?;
        self.in_flight = true;
        Ok(())
    }

    /// Waits until nothing is under way, e.g. before the run ends. Returns the newest complete checkpoint.
    pub fn wait(&mut self) -> Result<Option<PathBuf>> {
        if self.in_flight {
            self.in_flight = false;
            let saved = self.results.recv().map_err(|_| thread_died())?;
            self.settle(saved);
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.newest.clone()),
        }
    }

    /// The snapshot that was saved last, whose memory the next one may use. None while a save is under way.
    pub fn take_spare(&mut self) -> Option<Checkpoint> {
        if self.in_flight
            && let Ok(saved) = self.results.try_recv()
        {
            self.in_flight = false;
            self.settle(saved);
        }
        self.spare.take()
    }

    fn settle(&mut self, saved: Saved) {
        self.spare = Some(saved.snapshot);
        match saved.path {
            Ok(path) => self.newest = Some(path),
            Err(error) => self.failed = Some(error),
        }
    }

    /// Waits for the last save and ends the thread.
    pub fn finish(mut self) -> Result<Option<PathBuf>> {
        self.wait()
    }
}

impl Drop for Writer {
    /// Completes what was handed over, also when the loop ended with an error.
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            log::error!("the last checkpoint was not saved: {error}");
        }
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was told by wait()
        }
    }
}

fn thread_died() -> crate::error::Error {
    err!("the thread that writes checkpoints ended early; the checkpoints written before are complete")
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::sample;
    use super::super::{Array, load};
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn saves_happen_behind_the_loop_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        let mut writer = Writer::new(Store::new(&prefix, 2).unwrap()).unwrap();
        for step in 1..=5 {
            writer.save(step, sample(step), None).unwrap();
        }
        let newest = writer.wait().unwrap();
        assert_eq!(writer.take_spare(), Some(sample(5)));
        assert_eq!(newest, writer.finish().unwrap());
        assert_eq!(newest.unwrap(), folder.path().join("model.ckpt-5.phx"));
        assert_eq!(load(&prefix).unwrap(), sample(5));
    }

    #[test]
    fn handing_over_costs_a_fraction_of_the_save() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(&folder.path().join("model.ckpt"), 1).unwrap();
        let mut writer = Writer::new(store).unwrap();
        let large = Checkpoint { arrays: vec![("p".into(), Array::F64(vec![0.5; 3_000_000]))], ..sample(1) };
        let start = Instant::now();
        writer.save(1, large, None).unwrap();
        let handed_over = start.elapsed();
        writer.wait().unwrap();
        let whole = start.elapsed();
        assert!(handed_over < whole / 2 + Duration::from_millis(2), "{handed_over:?} of {whole:?}");
    }

    #[test]
    fn an_error_comes_back_with_the_next_call_and_a_drop_completes_the_save() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        std::fs::create_dir(folder.path().join("model.ckpt-1.phx")).unwrap();
        let mut writer = Writer::new(Store::new(&prefix, 1).unwrap()).unwrap();
        writer.save(1, sample(1), None).unwrap();
        let error = writer.save(2, sample(2), None).unwrap_err();
        assert!(error.message().contains("model.ckpt-1.phx"), "{error}");
        writer.save(3, sample(3), None).unwrap();
        drop(writer);
        assert_eq!(load(&prefix).unwrap(), sample(3));
    }
}
