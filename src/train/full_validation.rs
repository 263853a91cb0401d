//! Validation over the whole validation set: `validating`. When it is due, what is written of it, which checkpoints are the best,
//! and when training has gone on long enough.

use super::average::with_ema;
use crate::checkpoint::{Checkpoint, SUFFIX, folder_of, remove_strays, write_as};
use crate::config::Section;
use crate::error::IoContext;
use crate::loss::options::EnerLossOptions;
use crate::loss::{ErrorSums, LossChoice};
use crate::{Result, err};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// What is compared with the labels, in the order of an [`ErrorTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Of each atom.
    Energy,
    Force,
    /// The virial over the volume.
    Stress,
    /// Of each atom.
    Virial,
}

/// The errors of all frames.
pub type ErrorTable = [ErrorSums; 4];

/// What makes a checkpoint the best, such as "E:MAE".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    quantity: Quantity,
    rmse: bool,
}

const QUANTITIES: [(&str, Quantity, &str); 4] = [
    ("E", Quantity::Energy, "meV/atom"),
    ("F", Quantity::Force, "meV/Å"),
    ("S", Quantity::Stress, "meV/Å³"),
    ("V", Quantity::Virial, "meV/atom"),
];
const KINDS: [&str; 2] = ["MAE", "RMSE"];

impl Metric {
    /// In capitals or not.
    pub fn parse(text: &str) -> Result<Metric> {
        let wanted = text.trim().to_uppercase();
        let found = Self::all().find(|metric| metric.name() == wanted);
        found.ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|metric| metric.name()).collect();
            err!("\"{text}\" is not a metric").help(format!("known: {}", known.join(", ")))
        })
    }

    fn all() -> impl Iterator<Item = Metric> {
        QUANTITIES
            .into_iter()
            .flat_map(|(_, quantity, _)| [false, true].map(|rmse| Metric { quantity, rmse }))
    }

    fn letter(&self) -> &'static str {
        QUANTITIES[self.quantity as usize].0
    }

    fn unit(&self) -> &'static str {
        QUANTITIES[self.quantity as usize].2
    }

    fn name(&self) -> String {
        format!("{}:{}", self.letter(), KINDS[usize::from(self.rmse)])
    }

    /// NaN where no frame has the label.
    fn of(&self, table: &ErrorTable) -> f64 {
        let sums = table[self.quantity as usize];
        if self.rmse { sums.rmse() } else { sums.mae() }
    }

    /// The columns of the log: of stress and virial the one that counts.
    fn columns(&self) -> Vec<Metric> {
        let hidden = if self.quantity == Quantity::Virial { Quantity::Stress } else { Quantity::Virial };
        Self::all().filter(|metric| metric.quantity != hidden).collect()
    }
}

/// The `validating` section, and `training.early_stopping`.
#[derive(Debug, Clone)]
pub struct ValidatingOptions {
    /// The parameters as they are, and their running mean.
    pub live: bool,
    pub average: bool,
    pub freq: u64,
    /// Not below 1: a step; below: a part of all steps; 1: never.
    pub start: f64,
    pub metric: Metric,
    pub save_best: bool,
    pub best_dir: PathBuf,
    pub max_best: usize,
    pub file: PathBuf,
    /// Validations without a better one after which training ends.
    pub patience: Option<u64>,
}

impl ValidatingOptions {
    pub fn resolve(
        section: &Section,
        training: &Section,
        save_ckpt: &Path,
        loss: &LossChoice,
    ) -> Result<Self> {
        let metric = Metric::parse(section.text("validation_metric"))
            .map_err(|e| section.error("validation_metric", e))?;
        let patience = training.optional_section("early_stopping").map(|stop| stop.int("patience"));
        let best_dir = match section.optional_text("save_best_dir") {
            Some(folder) => PathBuf::from(folder),
            None => save_ckpt.parent().unwrap_or(Path::new("")).to_path_buf(),
        };
        let options = ValidatingOptions {
            live: section.bool("full_validation"),
            average: section.bool("ema_full_validation"),
            freq: section.int("validation_freq"),
            start: section.float("full_val_start"),
            metric,
            save_best: section.bool("save_best"),
            best_dir,
            max_best: section.int("max_best_ckpt"),
            file: PathBuf::from(section.text("full_val_file")),
            patience,
        };
        options.check(section, training, loss)?;
        Ok(options)
    }

    fn check(&self, section: &Section, training: &Section, loss: &LossChoice) -> Result<()> {
        if !self.live && !self.average {
            return match self.patience {
                None => Ok(()),
                Some(_) => Err(training
                    .error("early_stopping", err!("nothing tells when errors have stopped to improve"))
                    .help("set validating.full_validation to true")),
            };
        }
        let key = if self.live { "full_validation" } else { "ema_full_validation" };
        if training.optional_section("validation_data").is_none() {
            return Err(section
                .error(key, err!("there is no validation data"))
                .help("name systems in training.validation_data"));
        }
        if self.average && !training.bool("enable_ema") {
            return Err(section
                .error("ema_full_validation", err!("there is no running mean of the parameters"))
                .help("set training.enable_ema to true"));
        }
        let Some(loss) = loss.options::<EnerLossOptions>() else {
            return Err(section
                .error(key, err!("is about energies, forces and virials alone"))
                .help("errors of other outputs are in lcurve.out"));
        };
        let used = match self.metric.quantity {
            Quantity::Energy => loss.energy.is_used(),
            Quantity::Force => loss.force.is_used(),
            Quantity::Stress | Quantity::Virial => loss.virial.is_used(),
        };
        if !used {
            let error = err!("{} is not trained: its prefactors in the loss are 0", self.metric.letter());
            return Err(section.error("validation_metric", error));
        }
        Ok(())
    }

    /// The best checkpoints that are there, and the logs: what a run that begins will replace.
    pub fn left_behind(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let which = [(self.live, false), (self.average, true)];
        let which = which.into_iter().filter_map(|(wanted, average)| wanted.then_some(average));
        let best = |average| on_disk(&self.best_dir, prefix(average)).into_iter().map(|(_, file)| file);
        (which.clone().flat_map(best).collect(), which.map(|average| self.log(average)).collect())
    }

    /// The log of the parameters, or of their running mean.
    fn log(&self, average: bool) -> PathBuf {
        if average { with_ema(&self.file) } else { self.file.clone() }
    }

    /// Folders that are written into.
    pub fn folders(&self) -> Vec<PathBuf> {
        if !(self.live || self.average) {
            return Vec::new();
        }
        let best = if self.best_dir.as_os_str().is_empty() { Path::new(".") } else { &self.best_dir };
        let best = self.save_best.then(|| best.to_owned());
        best.into_iter().chain([folder_of(&self.file).to_owned()]).collect()
    }

    /// Whether it is done at all after so many steps.
    pub fn is_due(&self, done: u64, num_steps: u64) -> bool {
        if self.start == 1.0 || !(self.live || self.average) {
            return false;
        }
        let start = if self.start < 1.0 { num_steps as f64 * self.start } else { self.start } as u64;
        done >= start && (done - start).is_multiple_of(self.freq)
    }
}

/// What follows from a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// It is among the best, and is to be saved.
    pub saves: bool,
    /// Training has gone on long enough.
    pub enough: bool,
}

/// What rank 0 keeps of the validations of the parameters, or of their mean.
pub struct Keeper {
    options: ValidatingOptions,
    prefix: &'static str,
    file: PathBuf,
    step_width: usize,
    /// Error and step of the best, best first.
    best: Vec<(f64, u64)>,
    /// Validations since the last that was the best of all.
    waited: u64,
    /// Length of the log.
    bytes: u64,
}

impl Keeper {
    /// `saved` is what a checkpoint says, null in a run that begins.
    pub fn open(options: &ValidatingOptions, average: bool, num_steps: u64, saved: &Value) -> Result<Self> {
        let file = options.log(average);
        let mut keeper = Keeper {
            prefix: prefix(average),
            step_width: num_steps.to_string().len().max(4),
            options: options.clone(),
            file,
            best: Vec::new(),
            waited: 0,
            bytes: 0,
        };
        if saved["metric"] == keeper.options.metric.name() {
            keeper.waited = saved["waited"].as_u64().unwrap_or(0);
            let records = saved["best"].as_array().into_iter().flatten();
            keeper.best = records.filter_map(|r| Some((r[0].as_f64()?, r[1].as_u64()?))).collect();
            keeper.best.truncate(options.max_best);
        }
        keeper.bytes = saved["bytes"].as_u64().unwrap_or(0);
        keeper.cut_log()?;
        Ok(keeper)
    }

    /// What a checkpoint says of it.
    pub fn state(&self) -> Value {
        let best: Vec<Value> = self.best.iter().map(|(error, step)| json!([error, step])).collect();
        json!({"metric": self.options.metric.name(), "best": best, "waited": self.waited, "bytes": self.bytes})
    }

    /// Rows of steps that will be done again go; a run that begins has an empty log.
    fn cut_log(&mut self) -> Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.file)
            .io("open", &self.file)?;
        if !file.metadata().io("read", &self.file)?.is_file() {
            return Ok(()); // such as /dev/null
        }
        let mut text = Vec::new();
        (&mut file).take(self.bytes).read_to_end(&mut text).io("read", &self.file)?;
        // After a power cut a file may be shorter, or end in zeros.
        text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1);
        if whole < self.bytes {
            log::warn!(
                "{}: the file is not what it was when the checkpoint was saved, as after a power cut: rows that stood before are lost",
                self.file.display()
            );
        }
        self.bytes = whole;
        file.set_len(whole).io("cut", &self.file)
    }

    /// Takes note of a validation.
    pub fn note(&mut self, done: u64, table: &ErrorTable) -> Result<Verdict> {
        let error = self.options.metric.of(table);
        if error.is_nan() {
            return Err(err!(
                "validating.validation_metric: no frame of the validation data has what {} needs",
                self.options.metric.name()
            )
            .help("choose another metric, or add the labels"));
        }
        self.write_row(done, table)?;
        let improves = self.best.first().is_none_or(|(best, _)| error < *best);
        self.waited = if improves { 0 } else { self.waited + 1 };
        self.best.retain(|(_, step)| *step != done);
        let place = self.best.partition_point(|other| *other <= (error, done));
        self.best.insert(place, (error, done));
        self.best.truncate(self.options.max_best);
        let kept = self.best.iter().any(|(_, step)| *step == done);
        let enough = self.options.patience.is_some_and(|patience| self.waited >= patience);
        Ok(Verdict { saves: kept && self.options.save_best, enough })
    }

    fn write_row(&mut self, done: u64, table: &ErrorTable) -> Result<()> {
        let columns = self.options.metric.columns();
        let mut text = String::new();
        if self.bytes == 0 {
            let heads = columns
                .iter()
                .map(|m| format!("   {:^18}", format!("{}({})", m.name().replace(':', "_"), m.unit())));
            text += &format!("# {:^1$}{2}\n", "step", self.step_width, heads.collect::<String>());
            text += "# errors over all frames: E of the energy of an atom, F of force components, S of the stress, V of the \
                     virial of an atom\n";
        }
        let cells = columns.iter().map(|metric| format!("   {:^18}", digits(1000.0 * metric.of(table))));
        text += &format!("  {:^1$}{2}\n", done, self.step_width, cells.collect::<String>());
        self.append(&text)
    }

    fn append(&mut self, text: &str) -> Result<()> {
        let mut file = std::fs::OpenOptions::new().append(true).open(&self.file).io("open", &self.file)?;
        file.write_all(text.as_bytes()).io("write", &self.file)?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// The name of a checkpoint that is the `rank`-th best, from 1.
    fn path(&self, step: u64, rank: usize) -> PathBuf {
        self.options.best_dir.join(format!("{}-{step}.t-{rank}{SUFFIX}", self.prefix))
    }

    /// Writes down that a checkpoint is about to be saved, so that the checkpoint itself knows of it.
    pub fn announce(&mut self, done: u64) -> Result<PathBuf> {
        let place = self.best.iter().position(|(_, step)| *step == done).unwrap_or(0);
        let (path, metric) = (self.path(done, place + 1), self.options.metric);
        let value = digits(1000.0 * self.best[place].0);
        let what = format!("{} ({} = {value} {})", path.display(), metric.name(), metric.unit());
        self.append(&format!("# saved best checkpoint: {what}\n"))?;
        log::info!("Saved best model to {what}");
        Ok(path)
    }

    /// Saves one of the best, and puts the names of the others right.
    pub fn save(&self, path: &Path, checkpoint: &Checkpoint) -> Result<()> {
        let folder = folder_of(path);
        std::fs::create_dir_all(folder).io("create the folder of the best checkpoints", folder)?;
        remove_strays(folder, |name| step_of(self.prefix, name).is_some());
        write_as(path, checkpoint)?;
        for (step, file) in on_disk(&self.options.best_dir, self.prefix) {
            let rank = self.best.iter().position(|(_, known)| *known == step);
            let done = match rank.map(|rank| self.path(step, rank + 1)) {
                Some(name) if name == file => Ok(()),
                Some(name) => std::fs::rename(&file, name),
                None => std::fs::remove_file(&file),
            };
            if let Err(e) = done {
                log::warn!("{}: cannot rename or remove it: {e}", file.display());
            }
        }
        Ok(())
    }
}

/// What names of the best checkpoints begin with.
fn prefix(average: bool) -> &'static str {
    if average { "best_ema.ckpt" } else { "best.ckpt" }
}

/// The step in `best.ckpt-1000.t-1.phx`.
fn step_of(prefix: &str, name: &str) -> Option<u64> {
    let rest = name.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix(SUFFIX)?;
    let (step, rank) = rest.split_once(".t-")?;
    rank.parse::<usize>().ok().and(step.parse().ok())
}

/// Steps and files of the best checkpoints that are in a folder.
fn on_disk(best_dir: &Path, prefix: &str) -> Vec<(u64, PathBuf)> {
    let folder = if best_dir.as_os_str().is_empty() { Path::new(".") } else { best_dir };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some((step_of(prefix, &name)?, best_dir.join(name)))
    };
    entries.filter_map(file).collect()
}

/// Five digits that count.
fn digits(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return format!("{x}").to_lowercase();
    }
    let decimals = 4 - x.abs().log10().floor() as i64;
    match decimals {
        17.. => format!("{x:.4e}"),
        1.. => format!("{x:.0$}", decimals as usize),
        _ => {
            let unit = 10f64.powi(-decimals as i32);
            format!("{:.0}", (x / unit).round() * unit)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path, max_best: usize, patience: Option<u64>) -> ValidatingOptions {
        ValidatingOptions {
            live: true,
            average: false,
            freq: 10,
            start: 0.5,
            metric: Metric::parse("f:rmse").unwrap(),
            save_best: true,
            best_dir: folder.join("best"),
            max_best,
            file: folder.join("val.log"),
            patience,
        }
    }

    fn table(force: f64) -> ErrorTable {
        let mut table = ErrorTable::default();
        for (sums, x) in table.iter_mut().zip([0.002, force]) {
            *sums = ErrorSums { absolute: x, square: x * x, count: 1.0 };
        }
        table
    }

    #[test]
    fn it_is_due_from_the_start_on_every_so_many_steps() {
        let folder = tempfile::tempdir().unwrap();
        let due = |start: f64, num_steps: u64| {
            let options = ValidatingOptions { start, ..options(folder.path(), 1, None) };
            (1..=num_steps).filter(|done| options.is_due(*done, num_steps)).collect::<Vec<_>>()
        };
        assert_eq!(due(0.5, 45), [22, 32, 42]);
        assert_eq!(due(0.0, 25), [10, 20]);
        assert_eq!(due(13.0, 25), [13, 23]);
        assert!(due(1.0, 25).is_empty() && due(26.0, 25).is_empty());
    }

    #[test]
    fn metrics_are_named_in_any_case_and_others_refused() {
        assert_eq!(Metric::parse("e:mae").unwrap().name(), "E:MAE");
        assert!(Metric::parse("E:MAX").unwrap_err().advice().unwrap().contains("V:RMSE"));
        let names =
            |text: &str| Metric::parse(text).unwrap().columns().iter().map(Metric::name).collect::<Vec<_>>();
        assert_eq!(names("E:MAE"), ["E:MAE", "E:RMSE", "F:MAE", "F:RMSE", "S:MAE", "S:RMSE"]);
        assert_eq!(names("v:rmse")[4..], ["V:MAE", "V:RMSE"]);
    }

    #[test]
    fn the_best_are_kept_in_order_and_the_wait_ends_where_it_should() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&options(folder.path(), 2, Some(2)), false, 100, &Value::Null).unwrap();
        let checkpoint = Checkpoint { header: json!({}), arrays: Vec::new() };
        let mut enough = Vec::new();
        for (step, error) in [(10, 0.5), (20, 0.3), (30, 0.4), (40, 0.6), (50, 0.2)] {
            let verdict = keeper.note(step, &table(error)).unwrap();
            enough.push(verdict.enough);
            if verdict.saves {
                let path = keeper.announce(step).unwrap();
                keeper.save(&path, &checkpoint).unwrap();
            }
        }
        assert_eq!(enough, [false, false, false, true, false]);
        let mut names: Vec<String> = std::fs::read_dir(folder.path().join("best"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["best.ckpt-20.t-2.phx", "best.ckpt-50.t-1.phx"]);
        let log = std::fs::read_to_string(folder.path().join("val.log")).unwrap();
        assert_eq!(log.lines().filter(|line| !line.starts_with('#')).count(), 5, "{log}");
        assert!(log.contains("F:RMSE = 200.00 meV"), "{log}");
        // From the state of a checkpoint all goes on where it was; the log is cut there.
        let state = keeper.state();
        keeper.note(60, &table(0.9)).unwrap();
        let again = Keeper::open(&options(folder.path(), 2, Some(2)), false, 100, &state).unwrap();
        assert_eq!(again.state(), state);
        assert_eq!(std::fs::read_to_string(folder.path().join("val.log")).unwrap(), log);
        // After a power cut whole rows are left.
        let whole = log[..log.len() - 20].rfind('\n').unwrap() + 1;
        for lost in [
            log.as_bytes()[..log.len() - 20].to_vec(),
            [&log.as_bytes()[..log.len() - 20], &[0; 99]].concat(),
        ] {
            std::fs::write(folder.path().join("val.log"), lost).unwrap();
            Keeper::open(&options(folder.path(), 2, Some(2)), false, 100, &state).unwrap();
            assert_eq!(std::fs::read_to_string(folder.path().join("val.log")).unwrap(), log[..whole]);
        }
    }

    #[test]
    fn what_a_killed_run_left_of_a_best_checkpoint_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), 1, None);
        std::fs::create_dir(&options.best_dir).unwrap();
        let at = |name: &str| options.best_dir.join(name);
        for name in
            [".best.ckpt-5.t-1.phx.aB3dEf.tmp", ".best_ema.ckpt-5.t-1.phx.aB3dEf.tmp", "best.ckpt-5.t-1.phx"]
        {
            std::fs::write(at(name), "half").unwrap();
        }
        let mut keeper = Keeper::open(&options, false, 100, &Value::Null).unwrap();
        keeper.note(10, &table(0.5)).unwrap();
        let path = keeper.announce(10).unwrap();
        keeper.save(&path, &Checkpoint { header: json!({}), arrays: Vec::new() }).unwrap();
        assert_eq!(
            options.left_behind(),
            (vec![at("best.ckpt-10.t-1.phx")], vec![folder.path().join("val.log")])
        );
        assert!(!at(".best.ckpt-5.t-1.phx.aB3dEf.tmp").exists());
        assert!(at(".best_ema.ckpt-5.t-1.phx.aB3dEf.tmp").exists(), "that is the other keeper's");
    }

    #[test]
    fn a_metric_without_labels_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&options(folder.path(), 1, None), false, 100, &Value::Null).unwrap();
        assert!(keeper.note(10, &ErrorTable::default()).unwrap_err().message().contains("F:RMSE"));
    }

    #[test]
    fn five_digits_count() {
        let all = [0.0, 1234.5678, 123456.7, 0.000123456, 12.0, f64::NAN];
        assert_eq!(all.map(digits), ["0", "1234.6", "123460", "0.00012346", "12.000", "nan"]);
    }
}
