//! `dp model-devi`: how far the predictions of several models lie apart, or from the labels.

use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::data::field::Field;
use crate::data::{Frame, System, Wants};
use crate::engine::Prediction;
use crate::engine::choice::DeviceChoice;
use crate::err;
use crate::error::{IoContext, Result};
use crate::export::atomic;
use crate::infer::Predictor;
use crate::report::number::exp;
use crate::report::progress::Progress;
use clap::Args;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(super) const COMMAND: Command = Command {
    name: "model-devi",
    about: "Compare the predictions of several models",
    examples: "Examples:\n  dp model-devi -m a.dp b.dp c.dp d.dp -s data -o model_devi.out\n  \
               dp model-devi -m a.dp b.dp -s data --atomic --relative 0.5",
    define: DeviationArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp model-devi`.
#[derive(Debug, Clone, clap::Args)]
struct DeviationArgs {
    /// Model files (model.dp, model.yaml) or checkpoints, with the same types
    #[arg(short, long, value_name = "MODELS", num_args = 1..,
        default_values = ["graph.000", "graph.001", "graph.002", "graph.003"])]
    models: Vec<PathBuf>,
    /// A folder that is searched for systems
    #[arg(short, long, value_name = "SYSTEM", default_value = ".")]
    system: String,
    /// Without effect: sets are always named set.*
    #[arg(short = 'S', long, value_name = "PREFIX")]
    set_prefix: Option<String>,
    /// The file to write; what a file of this name holds already stays, new lines come behind
    #[arg(short, long, value_name = "FILE", default_value = "model_devi.out")]
    output: PathBuf,
    /// Steps from one frame of a trajectory to the next: the first column counts in these
    #[arg(short, long, value_name = "STEPS", default_value_t = 1)]
    frequency: u64,
    /// The root-mean-square error of the models against the labels, in place of their deviation from each other
    #[arg(long = "real_error", alias = "real-error")]
    real_error: bool,
    /// The deviation of the force on each atom, in further columns
    #[arg(long)]
    atomic: bool,
    /// Divide the deviation of a force by its length plus this level, eV/A
    #[arg(long, value_name = "LEVEL")]
    relative: Option<f64>,
    /// Divide the deviation of a virial by its norm plus this level, eV per atom
    #[arg(long = "relative_v", alias = "relative-v", value_name = "LEVEL")]
    relative_v: Option<f64>,
    /// The branch of multi-task checkpoints
    #[arg(long, alias = "model-branch", value_name = "NAME")]
    head: Option<String>,
    /// Where to compute: auto, cpu, cuda or cuda:INDEX (Phalanx only)
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceChoice::from_str)]
    device: DeviceChoice,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &DeviationArgs) -> Result<()> {
    args.log.start()?;
    if args.set_prefix.is_some() {
        log::warn!("--set-prefix has no effect: sets are always named set.*");
    }
    let paths = systems::search(std::slice::from_ref(&args.system))?;
    let mut models = load(args)?;
    let mut text = String::new();
    for path in &paths {
        let rows = of_system(args, path, &mut models)?;
        write_rows(&mut text, path, &rows, args);
    }
    append(&args.output, &text)?;
    log::info!("Saved model deviation of {} systems to {}", paths.len(), args.output.display());
    Ok(())
}

/// The models, which must agree about types and parameters.
fn load(args: &DeviationArgs) -> Result<Vec<Predictor>> {
    let load = |path: &PathBuf| super::test::predictor(path, args.head.as_deref(), args.device);
    let models: Vec<Predictor> = args.models.iter().map(load).collect::<Result<_>>()?;
    for (path, model) in args.models.iter().zip(&models) {
        model.model().options.fitting.check_energy().map_err(|e| e.at(path.display()))?;
        if model.type_map() != models[0].type_map() {
            return Err(err!(
                "{} has the types {:?}, {} has {:?}",
                path.display(),
                model.type_map(),
                args.models[0].display(),
                models[0].type_map()
            )
            .help("models that are compared must have the same type map"));
        }
        if model.wants() != models[0].wants() {
            return Err(err!(
                "{} and {} take different frame or atom parameters",
                path.display(),
                args.models[0].display()
            ));
        }
    }
    Ok(models)
}

/// What the models say about one frame, in the order of the columns.
struct Row {
    /// Largest, smallest and mean deviation.
    virial: [f64; 3],
    force: [f64; 3],
    energy: f64,
    /// `[n_atoms]` deviation of the force.
    atoms: Vec<f64>,
}

fn of_system(args: &DeviationArgs, path: &str, models: &mut [Predictor]) -> Result<Vec<Row>> {
    let (first, others) = models.split_first_mut().expect("the command line wants a model");
    let labels = args.real_error;
    let wants = Wants { energy: labels, force: labels, virial: labels, ..first.wants() };
    let system = System::open(path, first.type_map(), &wants)?;
    if labels {
        check_labels(&system)?;
    }
    let progress = Progress::counting("frames", system.n_frames as u64);
    let mut rows = Vec::with_capacity(system.n_frames);
    let all: Vec<usize> = (0..system.n_frames).collect();
    first.for_each_batch(&system, &all, |frames, predicted| {
        let mut predictions = vec![predicted.clone()];
        for model in others.iter_mut() {
            predictions.push(model.predict(frames).map_err(|e| e.at(path))?);
        }
        let mut first_atom = 0;
        for (k, frame) in frames.iter().enumerate() {
            rows.push(Spread { args, frame, k, first_atom, predictions: &predictions }.row());
            first_atom += frame.n_atoms();
        }
        progress.step(rows.len() as u64);
        Ok(())
    })?;
    progress.finish();
    Ok(rows)
}

fn check_labels(system: &System) -> Result<()> {
    for (field, name) in [(Field::Energy, "energy"), (Field::Force, "force")] {
        if !system.has(field) {
            return Err(err!("{}: found no {name} in every set", system.path)
                .help("--real_error compares with the labels; leave the flag away to compare the models"));
        }
    }
    if !system.has(Field::Virial) {
        log::warn!("{}: found no virial in every set: its columns are nan", system.path);
    }
    Ok(())
}

/// One frame and what all models say about it.
struct Spread<'a> {
    args: &'a DeviationArgs,
    frame: &'a Frame,
    /// The frame's number and the number of its first atom in the predictions.
    k: usize,
    first_atom: usize,
    predictions: &'a [Prediction],
}

impl Spread<'_> {
    fn row(&self) -> Row {
        let n = self.frame.n_atoms() as f64;
        let labels = &self.frame.labels;
        let real = self.args.real_error;
        let energies: Vec<f64> = self.predictions.iter().map(|p| p.energy[self.k] / n).collect();
        let energy = deviation(&energies, real.then(|| labels.energy.map_or(f64::NAN, |e| e / n)));
        let virial = self.virial(n);
        let atoms: Vec<f64> = (0..self.frame.n_atoms()).map(|atom| self.force(atom)).collect();
        Row {
            virial: [largest(&virial), smallest(&virial), norm(&virial) / 3.0],
            force: [largest(&atoms), smallest(&atoms), atoms.iter().sum::<f64>() / n],
            energy,
            atoms,
        }
    }

    /// Deviation of each component of the virial per atom.
    fn virial(&self, n: f64) -> [f64; 9] {
        let label = self.args.real_error.then(|| self.frame.labels.virial.unwrap_or([f64::NAN; 9]));
        let mut of_models = [0.0; 9];
        let mut spread = [0.0; 9];
        for c in 0..9 {
            let values: Vec<f64> = self.predictions.iter().map(|p| p.virial[self.k][c] / n).collect();
            of_models[c] = mean(&values);
            spread[c] = deviation(&values, label.map(|v| v[c] / n));
        }
        match self.args.relative_v {
            None => spread,
            Some(level) => {
                let magnitude = norm(&label.map_or(of_models, |v| v.map(|x| x / n)));
                spread.map(|x| x / (magnitude + level))
            }
        }
    }

    /// Deviation of the force on an atom.
    fn force(&self, atom: usize) -> f64 {
        let at = 3 * (self.first_atom + atom);
        let label = self.frame.labels.force.as_ref().map(|f| &f[3 * atom..3 * atom + 3]);
        let (mut spread, mut of_models) = ([0.0; 3], [0.0; 3]);
        for c in 0..3 {
            let values: Vec<f64> = self.predictions.iter().map(|p| p.force[at + c]).collect();
            of_models[c] = mean(&values);
            spread[c] = deviation(&values, label.map(|f| f[c]));
        }
        match self.args.relative {
            None => norm(&spread),
            Some(level) => norm(&spread) / (norm(label.unwrap_or(&of_models)) + level),
        }
    }
}

/// Root mean square of what lies between the values and their mean, or between them and a label.
fn deviation(values: &[f64], label: Option<f64>) -> f64 {
    let from = label.unwrap_or_else(|| mean(values));
    (values.iter().map(|x| (x - from) * (x - from)).sum::<f64>() / values.len() as f64).sqrt()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// As NumPy's, these are nan where a value is.
fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || a > b { a } else { b })
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, |a, b| if a.is_nan() || a < b { a } else { b })
}

/// DeePMD-kit's columns. Spaces at the end of the header and the comment of the system are its own.
fn write_rows(text: &mut String, system: &str, rows: &[Row], args: &DeviationArgs) {
    let mut names: Vec<String> = ["v", "f"]
        .iter()
        .flat_map(|x| ["max", "min", "avg"].map(|kind| format!("{kind}_devi_{x}")))
        .collect();
    names.push("devi_e".into());
    if args.atomic {
        names.push("atm_devi_f(N)".into());
    }
    let names: String = names.iter().map(|name| format!("{name:19}")).collect();
    let _ = write!(text, "# {system}\n# {:10}{names}\n", "step");
    for (k, row) in rows.iter().enumerate() {
        let _ = write!(text, "{:12}", k as u64 * args.frequency);
        let atoms: &[f64] = if args.atomic { &row.atoms } else { &[] };
        for x in row.virial.iter().chain(&row.force).chain([&row.energy]).chain(atoms) {
            let _ = write!(text, "{:>19}", exp(*x, 6));
        }
        text.push('\n');
    }
}

/// Puts lines behind those of an earlier run, as DeePMD-kit does; the file is as before where that fails.
fn append(path: &Path, text: &str) -> Result<()> {
    let before = match std::fs::read(path) {
        Ok(before) => {
            log::info!("{} is there already: new lines come behind its lines", path.display());
            before
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e).io("read", path),
    };
    atomic::write(path, |out| {
        out.write_all(&before).and_then(|()| out.write_all(text.as_bytes())).io("write", path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_of_the_whole_set_and_nan_stays_nan() {
        assert_eq!(deviation(&[1.0, 3.0], None), 1.0);
        assert_eq!(deviation(&[1.0, 3.0], Some(0.0)), 5f64.sqrt());
        assert_eq!((largest(&[1.0, 3.0, 2.0]), smallest(&[2.0, 1.0, 3.0])), (3.0, 1.0));
        assert!(largest(&[1.0, f64::NAN, 2.0]).is_nan() && smallest(&[f64::NAN, 1.0]).is_nan());
        assert!(largest(&[1.0, f64::NAN]).is_nan());
    }
}
