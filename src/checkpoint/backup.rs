//! Results of an earlier run, before a new one replaces them.

use super::store::{folder_of, numbered, with_suffix};
use crate::error::{IoContext, Result};
use std::path::{Path, PathBuf};

/// Where a run writes its results.
#[derive(Debug)]
pub struct Places<'a> {
    /// Of the checkpoints from which a run goes on.
    pub prefix: &'a Path,
    /// Of those of the parameters' running mean.
    pub averages: Option<PathBuf>,
    pub lcurve: &'a Path,
    /// The best checkpoints that are there.
    pub best: Vec<PathBuf>,
    /// What goes with the results.
    pub others: Vec<PathBuf>,
}

/// What an earlier run left in the places where a new one will write.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Steps of the checkpoints.
    pub steps: Vec<u64>,
    /// Rows of the learning curve.
    pub rows: usize,
    /// How many best checkpoints.
    pub best: usize,
    /// Everything that belongs to it.
    files: Vec<PathBuf>,
}

impl Earlier {
    /// Looks for checkpoints and for rows of a learning curve.
    pub fn find(places: Places) -> Result<Option<Earlier>> {
        let Places { prefix, averages, lcurve, best, others } = places;
        let checkpoints = numbered(prefix)?;
        let steps: Vec<u64> = checkpoints.iter().map(|(step, _)| *step).collect();
        // Devices such as /dev/null hold nothing.
        let text = if lcurve.is_file() { std::fs::read(lcurve).io("read", lcurve)? } else { Vec::new() };
        let lines = text.split(|&byte| byte == b'\n');
        let rows = lines.filter(|line| !line.starts_with(b"#") && !line.trim_ascii().is_empty()).count();
        if steps.is_empty() && rows == 0 && best.is_empty() {
            return Ok(None);
        }
        let mut files: Vec<PathBuf> = checkpoints.into_iter().map(|(_, path)| path).collect();
        if !files.is_empty() {
            files.extend([with_suffix(prefix), folder_of(prefix).join("checkpoint")]);
        }
        if let Some(prefix) = averages {
            files.extend(numbered(&prefix)?.into_iter().map(|(_, path)| path).chain([with_suffix(&prefix)]));
        }
        files.push(lcurve.to_owned());
        let n_best = best.len();
        files.extend(best.into_iter().chain(others));
        files.retain(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() || m.is_symlink()));
        Ok(Some(Earlier { steps, rows, best: n_best, files }))
    }

    /// For messages: what there is of it.
    pub fn describe(&self) -> String {
        let checkpoints = match self.steps[..] {
            [] => None,
            [step] => Some(format!("a checkpoint of step {step}")),
            [first, .., last] => Some(format!("{} checkpoints of steps {first} to {last}", self.steps.len())),
        };
        let rows = (self.rows > 0).then(|| format!("a learning curve of {} rows", self.rows));
        let best = match self.best {
            0 => None,
            1 => Some("a best checkpoint".to_string()),
            n => Some(format!("{n} best checkpoints")),
        };
        checkpoints.into_iter().chain(best).chain(rows).collect::<Vec<_>>().join(" and ")
    }

    /// Moves everything into a new folder `backup-N` beside it; one for each folder that it lies in.
    pub fn set_aside(&self) -> Result<Vec<PathBuf>> {
        let mut moved: Vec<(&Path, PathBuf)> = Vec::new();
        for file in &self.files {
            let folder = folder_of(file);
            if !moved.iter().any(|(from, _)| *from == folder) {
                moved.push((folder, new_folder(folder)?));
            }
            let to = moved.iter().find(|(from, _)| *from == folder).map(|(_, to)| to);
            if let (Some(to), Some(name)) = (to, file.file_name()) {
                std::fs::rename(file, to.join(name)).io("set aside", file)?;
            }
        }
        Ok(moved.into_iter().map(|(_, to)| to).collect())
    }
}

/// `backup-1`, or the first number that is free.
fn new_folder(beside: &Path) -> Result<PathBuf> {
    for n in 1u32.. {
        let name = format!("backup-{n}");
        let path = if beside == Path::new(".") { PathBuf::from(name) } else { beside.join(name) };
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => return made.io("create", &path).map(|()| path),
        }
    }
    unreachable!("a free number is found before the integers end")
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::sample;
    use super::super::save;
    use super::*;

    #[test]
    fn all_results_move_together_and_a_second_time_beside_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let (prefix, lcurve) = (folder.path().join("model.ckpt"), folder.path().join("lcurve.out"));
        let best = folder.path().join("best.ckpt-10.t-1.phx");
        let places = || Places {
            prefix: &prefix,
            averages: Some(folder.path().join("model_ema.ckpt")),
            lcurve: &lcurve,
            best: Vec::from_iter(best.exists().then(|| best.clone())),
            others: vec![folder.path().join("val.log")],
        };
        let find = || Earlier::find(places()).unwrap();
        std::fs::write(&lcurve, "# step rmse\n# a note\n").unwrap();
        assert!(find().is_none(), "a header is no result");
        for n in ["backup-1", "backup-2"] {
            save(&prefix, 10, &sample(10), 0).unwrap();
            save(&prefix, 20, &sample(20), 0).unwrap();
            save(&folder.path().join("model_ema.ckpt"), 20, &sample(20), 0).unwrap();
            std::fs::write(&lcurve, "# step rmse\n1 2\n2 1\n").unwrap();
            std::fs::write(&best, "best").unwrap();
            std::fs::write(folder.path().join("val.log"), "rows").unwrap();
            let earlier = find().unwrap();
            let told = "2 checkpoints of steps 10 to 20 and a best checkpoint and a learning curve of 2 rows";
            assert_eq!(earlier.describe(), told);
            assert_eq!(earlier.set_aside().unwrap(), [folder.path().join(n)]);
            assert!(find().is_none());
            let kept = super::super::load(&folder.path().join(n)).unwrap();
            assert_eq!(kept, sample(20), "the backup is a folder of checkpoints like any other");
            for name in [
                "lcurve.out",
                "val.log",
                "best.ckpt-10.t-1.phx",
                "model_ema.ckpt-20.phx",
                "model_ema.ckpt.phx",
            ] {
                assert!(folder.path().join(n).join(name).exists(), "{name}");
                assert!(!folder.path().join(name).exists(), "{name}");
            }
        }
    }
}
