//! TensorBoard event files, written by hand.
//!
//! A file is a row of records. A payload is an `Event` message: wall time, step and named scalars.

use super::record::{put_bytes, put_double, put_float, put_record, put_varint_field};
use crate::error::{IoContext, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes that may wait before they are handed to the system.
const BUFFER_BYTES: usize = 64 * 1024;
/// A running TensorBoard sees new points at least this often, given new rows.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// Writes the scalars of a run. Rows wait in memory, so a row costs well under a microsecond per scalar.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// One event, before its length is known. Kept for its memory.
    event: Vec<u8>,
    flushed: SystemTime,
}

impl EventWriter {
    /// Starts a new event file in `folder`. TensorBoard joins the files of a folder, so a restart adds one.
    pub fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).io("create the folder of TensorBoard events", folder)?;
        let now = SystemTime::now();
        let (path, file) = new_file(folder, now)?;
        let mut writer = EventWriter { file, path, buffer: Vec::new(), event: Vec::new(), flushed: now };
        put_double(&mut writer.event, 1, unix_seconds(now));
        put_bytes(&mut writer.event, 3, b"brain.Event:2");
        writer.end_event();
        writer.flush()?;
        Ok(writer)
    }

    /// Adds named values of one step, e.g. `Default/lr`.
    pub fn scalars<'a>(&mut self, step: u64, values: impl IntoIterator<Item = (&'a str, f64)>) -> Result<()> {
        self.scalars_at(SystemTime::now(), step, values)
    }

    fn scalars_at<'a>(
        &mut self,
        now: SystemTime,
        step: u64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        put_double(&mut self.event, 1, unix_seconds(now));
        put_varint_field(&mut self.event, 2, step);
        let mut summary = Vec::with_capacity(256);
        let mut value = Vec::with_capacity(64);
        for (tag, number) in values {
            value.clear();
            put_bytes(&mut value, 1, tag.as_bytes());
            put_float(&mut value, 2, number as f32);
            put_bytes(&mut summary, 1, &value);
        }
        put_bytes(&mut self.event, 5, &summary);
        self.end_event();
        let waited = now.duration_since(self.flushed).unwrap_or(FLUSH_EVERY);
        if self.buffer.len() >= BUFFER_BYTES || waited >= FLUSH_EVERY {
            self.flush()?;
            self.flushed = now;
        }
        Ok(())
    }

    /// Hands everything to the system, e.g. with a checkpoint and at the end.
    pub fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all(&self.buffer).io("write", &self.path);
        self.buffer.clear();
        written
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Frames the event as a record and empties it.
    fn end_event(&mut self) {
        put_record(&mut self.buffer, &self.event);
        self.event.clear();
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            log::warn!("the last TensorBoard events are lost: {error}");
        }
    }
}

/// `events.out.tfevents.<seconds>.<host>.<pid>.<n>`: sorted by time, and never a file that is there.
fn new_file(folder: &Path, now: SystemTime) -> Result<(PathBuf, File)> {
    let seconds = unix_seconds(now) as u64;
    let host = host_name();
    let pid = std::process::id();
    for n in 0.. {
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.{host}.{pid}.{n}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            other => return Ok((path.clone(), other.io("create", &path)?)),
        }
    }
    unreachable!("a free number is found before the integers end")
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Fields, HEAD_BYTES, TAIL_BYTES, Wire, payload, payload_length};
    use super::*;

    /// A field of a message: number and raw content.
    fn fields(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let content = |wire: Wire| match wire {
            Wire::Varint(value) => value.to_le_bytes().to_vec(),
            Wire::Fixed64(bytes) => bytes.to_vec(),
            Wire::Bytes(bytes) => bytes.to_vec(),
            Wire::Fixed32(bytes) => bytes.to_vec(),
        };
        Fields::of(bytes).map(|field| field.unwrap()).map(|(number, wire)| (number, content(wire))).collect()
    }

    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let end = HEAD_BYTES + payload_length(bytes).unwrap() as usize + TAIL_BYTES;
            found.push(payload(&bytes[HEAD_BYTES..end]).unwrap().to_vec());
            bytes = &bytes[end..];
        }
        found
    }

    /// Not a test of correctness: prints what a row of seven scalars costs, its share of the writes included.
    #[test]
    #[ignore = "prints timings"]
    fn what_a_row_of_events_costs() {
        const N: u64 = 100_000;
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        let names = ["lr", "loss", "grad/total_norm", "speed", "rmse", "rmse_e", "rmse_f"];
        let start = std::time::Instant::now();
        for step in 0..N {
            writer.scalars(step, names.iter().map(|name| (*name, step as f64))).unwrap();
        }
        println!(
            "a row of {} scalars: {:.0} ns",
            names.len(),
            start.elapsed().as_secs_f64() * 1e9 / N as f64
        );
    }

    #[test]
    fn scalars_are_read_back_with_step_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.scalars(300, [("Default/lr", 1e-3), ("Default/rmse_f", f64::NAN)]).unwrap();
        writer.flush().unwrap();
        let events = records(&std::fs::read(writer.path()).unwrap());
        assert_eq!(events.len(), 2);
        assert!(fields(&events[0]).contains(&(3, b"brain.Event:2".to_vec())));
        let event = fields(&events[1]);
        let time = f64::from_le_bytes(event[0].1.clone().try_into().unwrap());
        assert!((unix_seconds(SystemTime::now()) - time).abs() < 60.0);
        assert_eq!(event[1], (2, 300u64.to_le_bytes().to_vec()));
        let values: Vec<_> = fields(&event[2].1).into_iter().map(|(_, value)| fields(&value)).collect();
        assert_eq!(values[0][0], (1, b"Default/lr".to_vec()));
        assert_eq!(values[0][1], (2, 1e-3f32.to_le_bytes().to_vec()));
        assert!(f32::from_le_bytes(values[1][1].1.clone().try_into().unwrap()).is_nan());
    }

    #[test]
    fn rows_wait_in_memory_until_time_or_size_or_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        let path = writer.path().to_owned();
        let count = || records(&std::fs::read(&path).unwrap()).len();
        let start = writer.flushed;
        writer.scalars_at(start, 1, [("a", 1.0)]).unwrap();
        assert_eq!(count(), 1, "a row alone is not worth a call of the system");
        writer.scalars_at(start + FLUSH_EVERY, 2, [("a", 1.0)]).unwrap();
        assert_eq!(count(), 3);
        for step in 3..4003 {
            writer.scalars_at(start + FLUSH_EVERY, step, [("a", 1.0)]).unwrap();
        }
        assert!(count() > 1000, "the buffer has a limit");
        drop(writer);
        assert_eq!(count(), 4003);
    }

    #[test]
    fn a_restart_adds_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventWriter::create(folder.path()).unwrap();
        let second = EventWriter::create(folder.path()).unwrap();
        assert_ne!(first.path(), second.path());
    }
}
