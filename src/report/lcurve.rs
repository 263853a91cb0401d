//! `lcurve.out`: one row for each display step, in DeePMD-kit's columns.

use super::number::exp;
use crate::error::{IoContext, Result};
use crate::{bail, err};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The second line of the file, which readers of the format skip as a comment.
const NOTE: &str = "# nan stands where the data has no label for a column\n";

/// The quantities of a row and whether each has a validation value beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// Sorted, e.g. `rmse`, `rmse_e`, `rmse_f`; of one branch after the other, with its name: `rmse_e_water`.
    names: Vec<String>,
    /// One for each name.
    validation: Vec<bool>,
    /// The branch at the end of each name, which follows what tells validation and training apart: `rmse_e_val_water`.
    branches: Vec<String>,
}

impl Columns {
    /// Names are put into alphabetical order, as DeePMD-kit has them. Values of a row follow [`Columns::names`].
    pub fn new(names: impl IntoIterator<Item = String>, validation: bool) -> Self {
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort();
        Columns {
            validation: vec![validation; names.len()],
            branches: vec![String::new(); names.len()],
            names,
        }
    }

    /// Those of the branches of a multi-task model: their names, their sorted quantities, and whether they have validation data.
    pub fn of_branches<'a>(branches: impl Iterator<Item = (&'a str, &'a [String], bool)>) -> Self {
        let mut columns = Columns { names: Vec::new(), validation: Vec::new(), branches: Vec::new() };
        for (branch, names, validation) in branches {
            columns.names.extend(names.iter().map(|name| format!("{name}_{branch}")));
            columns.validation.extend(names.iter().map(|_| validation));
            columns.branches.extend(names.iter().map(|_| format!("_{branch}")));
        }
        columns
    }

    /// The quantities in the order of a row.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The quantities that have a validation value, in the order of a row.
    pub fn validated(&self) -> impl Iterator<Item = &String> {
        self.names.iter().zip(&self.validation).filter(|(_, validates)| **validates).map(|(name, _)| name)
    }

    /// Both comment lines at the top.
    fn header(&self) -> String {
        let mut line = "# step ".to_owned();
        for ((name, validates), branch) in self.names.iter().zip(&self.validation).zip(&self.branches) {
            let name = name.strip_suffix(branch.as_str()).unwrap_or(name);
            let [valid, train] = ["val", "trn"].map(|task| format!("{name}_{task}{branch}"));
            line += &match validates {
                true => format!("   {valid:>11} {train:>11}"),
                false => format!("   {train:>11}"),
            };
        }
        format!("{line}   {:<8}\n{NOTE}", "lr")
    }

    /// Numbers in a row: the step, the values, the learning rate.
    fn width(&self) -> usize {
        2 + self.names.len() + self.validated().count()
    }
}

/// One display step. A label that the data lacks is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub step: u64,
    /// One value for each of [`Columns::names`].
    pub train: Vec<f64>,
    /// The same for the validation set: one value for each of [`Columns::validated`].
    pub valid: Vec<f64>,
    pub lr: f64,
}

impl Row {
    fn line(&self, columns: &Columns) -> String {
        let n = columns.names.len();
        assert_eq!(self.train.len(), n, "a row of lcurve.out has one training value for each column");
        assert_eq!(
            self.valid.len(),
            columns.validated().count(),
            "a row of lcurve.out has one validation value for each column"
        );
        let mut line = format!("{:7}", self.step);
        let mut valid = self.valid.iter();
        for (&train, &validates) in self.train.iter().zip(&columns.validation) {
            line += &match validates.then(|| valid.next()).flatten() {
                Some(&valid) => format!("   {:>11} {:>11}", exp(valid, 2), exp(train, 2)),
                None => format!("   {:>11}", exp(train, 2)),
            };
        }
        format!("{line}   {:>8}\n", exp(self.lr, 1))
    }
}

/// Where a restarted run continues in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResumeAt {
    /// After the row of this step; rows of later steps are cut, they will be made again.
    Step(u64),
    /// After this many bytes, as [`LCurve::bytes_written`] said when the checkpoint of this step was saved.
    Byte { bytes: u64, step: u64 },
}

/// The open file. Each row is one write and is in the system's hands when [`LCurve::append`] returns.
#[derive(Debug)]
pub struct LCurve {
    file: File,
    path: PathBuf,
    columns: Columns,
    bytes: u64,
}

impl LCurve {
    /// Starts a new file with its header, in place of any that is there.
    pub fn create(path: &Path, columns: Columns) -> Result<Self> {
        let file = File::create(path).io("create", path)?;
        let mut curve = LCurve { file, path: path.to_owned(), columns, bytes: 0 };
        curve.write(&curve.columns.header())?;
        Ok(curve)
    }

    /// Continues a file. What the killed run wrote after `at`, or in mid-line, is cut; all rows before stay.
    ///
    /// A file that is not there is started anew. Where the columns changed, a new header precedes the new rows.
    pub fn resume(path: &Path, columns: Columns, at: ResumeAt) -> Result<Self> {
        let old = match std::fs::read(path) {
            Ok(old) => old,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Self::create(path, columns),
            Err(e) => bail!("{}: cannot read: {e}", path.display()),
        };
        let (keep, lost) = match at {
            ResumeAt::Step(last) => (complete_until(&old, last), None),
            ResumeAt::Byte { bytes, step } => match checked_offset(path, &old, bytes)? {
                Some(keep) => (keep, None),
                None => (complete_until(&old, step), Some(step)),
            },
        };
        let file = OpenOptions::new().append(true).open(path).io("open", path)?;
        file.set_len(keep as u64).io("cut the rows after the checkpoint", path)?;
        let header = columns.header();
        let has_header = last_header(&old[..keep]) == header.lines().next();
        let mut curve = LCurve { file, path: path.to_owned(), columns, bytes: keep as u64 };
        if !has_header {
            curve.write(&header)?;
        }
        if let Some(step) = lost {
            log::warn!(
                "{}: the file is not what it was when the checkpoint of step {step} was saved, as after a power cut: rows that \
                 stood before that step are lost",
                path.display()
            );
            curve.write(&format!(
                "# rows before step {step} were lost: the file was cut off after the checkpoint\n"
            ))?;
        }
        Ok(curve)
    }

    /// The file, to be synced before a checkpoint that counts on its rows.
    pub fn to_sync(&self) -> Result<File> {
        self.file.try_clone().io("keep open", &self.path)
    }

    /// Adds a row.
    pub fn append(&mut self, row: &Row) -> Result<()> {
        let line = row.line(&self.columns);
        debug_assert_eq!(line.split_whitespace().count(), self.columns.width());
        self.write(&line)
    }

    /// Bytes in the file, for the checkpoint.
    pub fn bytes_written(&self) -> u64 {
        self.bytes
    }

    /// What a row holds.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).io("write", &self.path)?;
        self.bytes += text.len() as u64;
        Ok(())
    }
}

/// Bytes up to the first row that is later than `last`, or is damaged: no newline, or no step in front.
fn complete_until(old: &[u8], last: u64) -> usize {
    let mut keep = 0;
    let mut width = None;
    for line in old.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) else {
            break;
        };
        if text.starts_with("# step") {
            width = Some(text.split_whitespace().count() - 1);
        } else if !text.starts_with('#') && !text.trim().is_empty() {
            let step = text.split_whitespace().next().and_then(|step| step.parse::<u64>().ok());
            let whole = width.is_none_or(|width| text.split_whitespace().count() == width);
            if !whole || step.is_none_or(|step| step > last) {
                break;
            }
        }
        keep += line.len();
    }
    keep
}

/// Bytes to keep: all that were there when the checkpoint was saved. None where they are not there any more: after a power
/// cut a file may be shorter, or end in zeros.
fn checked_offset(path: &Path, old: &[u8], bytes: u64) -> Result<Option<usize>> {
    let at = usize::try_from(bytes).unwrap_or(usize::MAX);
    if old.len() < at || old[..at].contains(&0) {
        return Ok(None);
    }
    if at == 0 || old[at - 1] == b'\n' {
        return Ok(Some(at));
    }
    Err(err!(
        "{}: the checkpoint was saved when this file had {bytes} bytes; it has {} now and no row ends there",
        path.display(),
        old.len()
    )
    .help("it belongs to another run: move it away, and the restart begins a new one"))
}

/// The column line that holds for rows after `kept`.
fn last_header(kept: &[u8]) -> Option<&str> {
    std::str::from_utf8(kept).ok()?.lines().rfind(|line| line.starts_with("# step"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(validation: bool) -> Columns {
        Columns::new(["rmse_f", "rmse", "rmse_v", "rmse_e"].map(String::from), validation)
    }

    fn row(step: u64) -> Row {
        Row { step, train: vec![10.1, 0.9, 0.995, f64::NAN], valid: vec![], lr: 1e-3 }
    }

    /// Header and rows are DeePMD-kit 3.2.0's for the same numbers; the comment below the header is ours.
    #[test]
    fn header_and_rows_are_as_in_deepmd_kit_without_validation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        let mut curve = LCurve::create(&path, columns(false)).unwrap();
        curve.append(&Row { train: vec![10.1, 0.9, 0.995, 0.241], ..row(1) }).unwrap();
        curve.append(&row(12_345_678)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "# step       rmse_trn    rmse_e_trn    rmse_f_trn    rmse_v_trn   lr      \n\
             # nan stands where the data has no label for a column\n\
             \x20     1      1.01e+01      9.00e-01      9.95e-01      2.41e-01    1.0e-03\n\
             12345678      1.01e+01      9.00e-01      9.95e-01           nan    1.0e-03\n"
        );
        assert_eq!(curve.bytes_written(), text.len() as u64);
    }

    /// Header and rows are DeePMD-kit 3.2.0's for the same numbers; the comment below the header is ours.
    #[test]
    fn header_and_rows_are_as_in_deepmd_kit_with_validation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        let mut curve = LCurve::create(&path, columns(true)).unwrap();
        let valid = vec![10.3, 0.9, 1.02, 0.0726];
        curve.append(&Row { step: 1, train: vec![10.1, 0.9, 0.995, 0.241], valid, lr: 1e-3 }).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "# step       rmse_val    rmse_trn    rmse_e_val  rmse_e_trn    rmse_f_val  rmse_f_trn    rmse_v_val  rmse_v_trn   lr      \n\
             # nan stands where the data has no label for a column\n\
             \x20     1      1.03e+01    1.01e+01      9.00e-01    9.00e-01      1.02e+00    9.95e-01      7.26e-02    2.41e-01    1.0e-03\n"
        );
    }

    #[test]
    fn a_run_in_two_parts_leaves_the_file_of_a_run_in_one_wherever_it_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        let write =
            |curve: &mut LCurve, steps: &[u64]| steps.iter().for_each(|&s| curve.append(&row(s)).unwrap());
        let mut whole = LCurve::create(&path, columns(false)).unwrap();
        write(&mut whole, &[1, 100, 200]);
        let saved_at = whole.bytes_written();
        write(&mut whole, &[300, 400]);
        let want = std::fs::read(&path).unwrap();
        for killed_at in saved_at as usize..=want.len() {
            for at in [ResumeAt::Step(200), ResumeAt::Byte { bytes: saved_at, step: 200 }] {
                std::fs::write(&path, &want[..killed_at]).unwrap();
                let mut second = LCurve::resume(&path, columns(false), at).unwrap();
                assert_eq!(second.bytes_written(), saved_at);
                write(&mut second, &[300, 400]);
                assert_eq!(std::fs::read(&path).unwrap(), want, "killed at byte {killed_at}, {at:?}");
            }
        }
    }

    #[test]
    fn a_damaged_header_is_written_again_and_changed_columns_are_announced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        std::fs::write(&path, "# step    rm").unwrap();
        LCurve::resume(&path, columns(false), ResumeAt::Step(5)).unwrap().append(&row(6)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(&columns(false).header()) && text.lines().count() == 3, "{text}");
        LCurve::resume(&path, columns(true), ResumeAt::Step(6)).unwrap();
        let grown = std::fs::read_to_string(&path).unwrap();
        assert_eq!(grown, text + &columns(true).header());
    }

    #[test]
    fn a_file_of_another_run_is_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        let mut curve = LCurve::create(&path, columns(false)).unwrap();
        curve.append(&row(1)).unwrap();
        let bytes = curve.bytes_written();
        let error =
            LCurve::resume(&path, columns(false), ResumeAt::Byte { bytes: bytes - 1, step: 1 }).unwrap_err();
        assert!(error.to_string().contains("another run"), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        let absent = folder.path().join("absent.out");
        assert!(LCurve::resume(&absent, columns(false), ResumeAt::Byte { bytes: 9, step: 1 }).is_ok());
    }

    #[test]
    fn after_a_power_cut_whole_rows_stay_and_the_rest_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lcurve.out");
        let mut curve = LCurve::create(&path, columns(false)).unwrap();
        [1, 100, 200, 300].iter().for_each(|&step| curve.append(&row(step)).unwrap());
        let (bytes, want) = (curve.bytes_written(), std::fs::read(&path).unwrap());
        for kept in 0..want.len() {
            for zeros in [0, want.len() - kept, want.len() - kept + 40] {
                std::fs::write(&path, [&want[..kept], &vec![0; zeros]].concat()).unwrap();
                let at = ResumeAt::Byte { bytes, step: 300 };
                LCurve::resume(&path, columns(false), at).unwrap().append(&row(400)).unwrap();
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(text.starts_with(columns(false).header().lines().next().unwrap()), "{kept}: {text}");
                assert_eq!(text.matches("# rows before step 300 were lost").count(), 1, "{kept}: {text}");
                let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
                assert!(rows.last().unwrap().trim_start().starts_with("400 "), "{text}");
                let lines = want[..kept].split_inclusive(|&byte| byte == b'\n');
                let whole = lines.filter(|line| line.ends_with(b"\n") && !line.starts_with(b"#")).count();
                assert_eq!(rows.len(), whole + 1, "{kept} bytes were left: {text}");
                // The file can be continued from a later checkpoint like any other.
                let bytes = text.len() as u64;
                LCurve::resume(&path, columns(false), ResumeAt::Byte { bytes, step: 400 }).unwrap();
                assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            }
        }
    }
}
