//! Reads TensorBoard event files: ours, and those of TensorFlow.

use super::record::{Fields, HEAD_BYTES, TAIL_BYTES, Wire, payload, payload_length};
use crate::error::{IoContext, Result};
use std::path::{Path, PathBuf};

/// One scalar of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub step: u64,
    /// Such as `METRICS/E_RMSE`.
    pub tag: String,
    pub value: f32,
}

/// The event files of a folder, oldest first.
pub fn event_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let path = entry.io("list", folder)?.path();
        let is_event = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("events.out."));
        if is_event && path.is_file() {
            let time = std::fs::metadata(&path).and_then(|m| m.modified()).io("read", &path)?;
            files.push((time, path));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Every scalar of a file, in the order in which it was written.
///
/// A record that is cut off at the end is left out: a run may be writing it just now.
pub fn read_scalars(path: &Path) -> Result<Vec<Point>> {
    let bytes = std::fs::read(path).io("read", path)?;
    let mut points = Vec::new();
    let (mut at, mut record) = (0, 0);
    while let Some(rest) = bytes.get(at + HEAD_BYTES..) {
        let place = || format!("{}: record {record} at byte {at}", path.display());
        let length = payload_length(&bytes[at..]).map_err(|e| e.at(place()))?;
        // More bytes than the file has: the record is still being written.
        let end = usize::try_from(length).ok().and_then(|n| n.checked_add(TAIL_BYTES));
        let Some(rest) = end.and_then(|end| rest.get(..end)) else { break };
        let event = payload(rest).map_err(|e| e.at(place()))?;
        read_event(event, &mut points).map_err(|e| e.at(place()))?;
        at += HEAD_BYTES + rest.len();
        record += 1;
    }
    Ok(points)
}

/// Adds the scalars of one `Event` message.
fn read_event(event: &[u8], points: &mut Vec<Point>) -> Result<()> {
    let (mut step, mut summary) = (0, None);
    for field in Fields::of(event) {
        match field? {
            (2, Wire::Varint(value)) => step = value,
            (5, Wire::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    for field in Fields::of(summary.unwrap_or_default()) {
        if let (1, Wire::Bytes(value)) = field? {
            points.extend(read_value(step, value)?);
        }
    }
    Ok(())
}

/// A value of a summary, where it is a scalar: `simple_value`, or a float tensor of one number.
fn read_value(step: u64, message: &[u8]) -> Result<Option<Point>> {
    let (mut tag, mut value) = (String::new(), None);
    for field in Fields::of(message) {
        match field? {
            (1, Wire::Bytes(bytes)) => tag = String::from_utf8_lossy(bytes).into_owned(),
            (2, Wire::Fixed32(bytes)) => value = Some(f32::from_le_bytes(bytes)),
            (8, Wire::Bytes(tensor)) => value = scalar_tensor(tensor)?,
            _ => {}
        }
    }
    Ok(value.map(|value| Point { step, tag, value }))
}

/// The number in a float32 tensor message of one element.
fn scalar_tensor(tensor: &[u8]) -> Result<Option<f32>> {
    let mut value = None;
    for field in Fields::of(tensor) {
        let bytes = match field? {
            (1, Wire::Varint(1)) => continue,
            (1, _) => return Ok(None),
            (4 | 5, Wire::Bytes(bytes)) => bytes.to_vec(),
            (5, Wire::Fixed32(bytes)) => bytes.to_vec(),
            _ => continue,
        };
        value = <[u8; 4]>::try_from(bytes).ok().map(f32::from_le_bytes);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::tensorboard::EventWriter;
    use super::*;

    #[test]
    fn scalars_that_were_written_are_read_and_a_cut_tail_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.scalars(10, [("METRICS/E_RMSE", 0.5), ("loss", 2.0)]).unwrap();
        writer.scalars(20, [("METRICS/E_RMSE", 0.25)]).unwrap();
        writer.flush().unwrap();
        let files = event_files(folder.path()).unwrap();
        assert_eq!(files, [writer.path()]);
        let point = |step, tag: &str, value| Point { step, tag: tag.into(), value };
        let want =
            [point(10, "METRICS/E_RMSE", 0.5), point(10, "loss", 2.0), point(20, "METRICS/E_RMSE", 0.25)];
        assert_eq!(read_scalars(&files[0]).unwrap(), want);
        let bytes = std::fs::read(&files[0]).unwrap();
        let cut = folder.path().join("cut");
        std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(read_scalars(&cut).unwrap(), want[..2]);
    }

    #[test]
    fn a_damaged_record_is_named_by_number_and_byte() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.scalars(10, [("a", 0.5)]).unwrap();
        writer.flush().unwrap();
        let mut bytes = std::fs::read(writer.path()).unwrap();
        let last = bytes.len() - 6;
        bytes[last] ^= 1;
        let bad = folder.path().join("bad");
        std::fs::write(&bad, &bytes).unwrap();
        let error = read_scalars(&bad).unwrap_err();
        assert!(error.message().contains("bad: record 1 at byte "), "{error}");
    }
}
