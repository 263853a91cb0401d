//! Files that are complete or absent.

use crate::err;
use crate::error::{IoContext, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes a file beside `path` and renames it to `path` once it is on the disk.
///
/// A failure leaves what was there before, and nothing else. The mode is 0644 less the umask, as a plain
/// `open` would give.
pub fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> Result<()>) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(err!("{}: cannot write: there is no folder {}", path.display(), folder.display()));
    }
    let temporary = new_file(folder, path).io("create a file", folder)?;
    let mut writer = BufWriter::new(temporary.as_file());
    fill(&mut writer).map_err(|e| e.at(path.display()))?;
    writer.flush().io("write", path)?;
    drop(writer);
    temporary.as_file().sync_all().io("write to disk", path)?;
    temporary.persist(path).map_err(|e| e.error).io("write", path)?;
    sync_folder(folder);
    Ok(())
}

/// `.model.dp.RANDOM.tmp`, by which a run knows what an earlier one left that was killed.
fn new_file(folder: &Path, path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The kernel takes the umask off this mode when it creates the file.
        builder.permissions(std::fs::Permissions::from_mode(0o644));
    }
    builder.tempfile_in(folder)
}

/// Makes the new name itself durable. Some file systems refuse to sync a folder; the file is complete anyway.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.dp");
        std::fs::write(&path, "old").unwrap();
        let result = write(&path, |w| {
            w.write_all(b"half a mod").unwrap();
            Err(err!("the disk is full"))
        });
        assert_eq!(result.unwrap_err().message(), format!("{}: the disk is full", path.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_can_be_read_as_one_that_was_opened_plainly() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
        write(&ours, |w| w.write_all(b"x").io("write", &ours)).unwrap();
        std::fs::write(&plain, "x").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&ours), mode(&plain) & 0o644);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write(Path::new("no/such/folder/model.dp"), |_| Ok(())).unwrap_err();
        assert_eq!(
            error.message(),
            "no/such/folder/model.dp: cannot write: there is no folder no/such/folder"
        );
    }
}
