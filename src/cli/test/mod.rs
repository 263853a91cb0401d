//! `dp test`: compares a model with data.

mod detail; // files with every label beside its prediction
mod energy; // models of energies
mod errors; // mean absolute and root-mean-square errors
mod output; // models of other outputs
mod ranks; // frames and blocks of frames over ranks
mod tensor; // models of dipoles and polarizabilities

use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::data::{Frame, System, Wants};
use crate::engine::Prediction;
use crate::engine::choice::{DeviceChoice, Gpu};
use crate::err;
use crate::error::Result;
use crate::infer::Predictor;
use crate::infer::load::load_branch;
use crate::launch::threads::{Threads, available_cores};
use crate::report::log::{self as report_log, MpiLog};
use crate::report::progress::Progress;
use crate::sample::permute::Permutation;
use crate::train::session::{self, Session, SessionOptions};
use crate::train::team::Team;
use clap::Args;
use energy::EnergyTester;
use output::OutputTester;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tensor::TensorTester;

pub(super) const COMMAND: Command = Command {
    name: "test",
    about: "Compare a model with data",
    examples: "Examples:\n  dp test -m model.dp -s data\n  dp test -m model.dp -s data -n 30 -d detail\n  \
               mpirun -n 4 dp test -m model.dp -s data",
    define: TestArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp test`.
#[derive(Debug, Clone, clap::Args)]
struct TestArgs {
    /// Model file (model.dp, model.yaml) or checkpoint (model.ckpt, its folder)
    #[arg(short, long, value_name = "MODEL", default_value = "frozen_model")]
    model: PathBuf,
    /// Folders that are searched for systems
    #[arg(short, long, value_name = "SYSTEM", num_args = 1.., default_value = ".", group = "data")]
    system: Vec<String>,
    /// A text file with one system on each line
    #[arg(short = 'f', long, value_name = "FILE", group = "data")]
    datafile: Option<PathBuf>,
    /// A training input: test on its training data
    #[arg(long, value_name = "INPUT", group = "data")]
    train_data: Option<PathBuf>,
    /// A training input: test on its validation data
    #[arg(long, value_name = "INPUT", group = "data")]
    valid_data: Option<PathBuf>,
    /// Without effect: sets are always named set.*
    #[arg(short = 'S', long, value_name = "PREFIX")]
    set_prefix: Option<String>,
    /// Frames of each system to test on; 0 means all
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    numb_test: usize,
    /// Seed of --shuffle-test
    #[arg(short, long, value_name = "SEED", allow_negative_numbers = true)]
    rand_seed: Option<i64>,
    /// Take the frames of a system in random order
    #[arg(long)]
    shuffle_test: bool,
    /// Write every label beside its prediction to PREFIX.e.out, PREFIX.f.out, PREFIX.v.out, ...
    #[arg(short, long, value_name = "PREFIX")]
    detail_file: Option<PathBuf>,
    /// Compare the energies of atoms too (atom_ener.npy), or other outputs of atoms
    #[arg(short, long)]
    atomic: bool,
    /// The branch of a multi-task checkpoint
    #[arg(long, alias = "model-branch", value_name = "NAME")]
    head: Option<String>,
    /// Where to compute: auto, cpu, cuda or cuda:INDEX (Phalanx only)
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceChoice::from_str)]
    device: DeviceChoice,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &TestArgs) -> Result<()> {
    let log = args.log.options(MpiLog::Master, 0, 1)?;
    let options = SessionOptions {
        log_level: log.level,
        log_path: log.path,
        mpi_log: log.mode,
        stall_timeout: None,
        device: args.device,
        zero_on_stop: false,
        input: Some(args.model.clone()),
        task: format!("dp test{}", if args.atomic { " --atomic" } else { "" }),
        tells_summary: false,
    };
    session::run(&options, |team, session| {
        report_log::start_file();
        test(team, session, args).map(|()| None)
    })
}

/// Every rank evaluates a share of the frames; rank 0 compares, tells and writes.
fn test(team: &mut Team, session: &Session, args: &TestArgs) -> Result<()> {
    if args.set_prefix.is_some() {
        log::warn!("--set-prefix has no effect: sets are always named set.*");
    }
    let paths = team.from_root(|| find_systems(args))?;
    let gpu = session.gpu.as_ref().map(|(gpu, _)| (gpu.clone(), args.device));
    let mut predictor =
        team.agree(predictor_on(&args.model, args.head.as_deref(), session.threads.compute, gpu))?;
    let batch_atoms = team.from_root(|| Ok(predictor.batch_atoms()))?;
    predictor = predictor.with_batch_atoms(batch_atoms);
    let mut tester = team.agree(tester(args, &predictor))?;
    for (number, path) in paths.iter().enumerate() {
        log::info!("# ---------------output of dp test--------------- ");
        log::info!("# testing system : {path}");
        test_system(team, args, number, path, &mut predictor, &mut *tester)?;
        tester.end_system().iter().for_each(|line| log::info!("{line}"));
        log::info!("# ----------------------------------------------- ");
    }
    let lines = team.agree(tester.end())?;
    log::info!("# ----------weighted average of errors----------- ");
    log::info!("# number of systems : {}", paths.len());
    lines.iter().for_each(|line| log::info!("{line}"));
    log::info!("# ----------------------------------------------- ");
    Ok(())
}

fn tester(args: &TestArgs, predictor: &Predictor) -> Result<Box<dyn Tester>> {
    let (model, details) = (predictor.model(), args.detail_file.as_deref());
    Ok(match model.output.made.is_turned() {
        true => Box::new(TensorTester::new(model, args.atomic, details)?),
        false if model.is_energy() => Box::new(EnergyTester::new(args.atomic, details)?),
        false => Box::new(OutputTester::new(model, args.atomic, details)?),
    })
}

/// What is compared of one kind of model.
trait Tester {
    /// The labels that it compares with, beside what a prediction needs.
    fn wants(&self, wants: Wants) -> Wants;

    /// Refuses a system without what it needs.
    fn check(&self, _system: &System) -> Result<()> {
        Ok(())
    }

    /// Compares a batch of system `number`.
    fn add(&mut self, system: &str, number: usize, frames: &[Frame], predicted: &Prediction) -> Result<()>;

    /// What there is to say of the system.
    fn end_system(&mut self) -> Vec<String>;

    /// What there is to say of all systems.
    fn end(self: Box<Self>) -> Result<Vec<String>>;
}

fn find_systems(args: &TestArgs) -> Result<Vec<String>> {
    match (&args.datafile, &args.train_data, &args.valid_data) {
        (Some(file), _, _) => systems::listed(file),
        (_, Some(input), _) => systems::of_input(input, "training_data"),
        (_, _, Some(input)) => systems::of_input(input, "validation_data"),
        _ => systems::search(&args.system),
    }
}

/// What the commands of one process evaluate a model with, and of a multi-task model the branch of this name.
pub(super) fn predictor(path: &Path, head: Option<&str>, device: DeviceChoice) -> Result<Predictor> {
    let environment = |name: &str| std::env::var(name).ok();
    let threads = Threads::new(&environment, available_cores(), 1)?.compute;
    let gpu = device.find(0, &environment)?;
    predictor_on(path, head, threads, gpu.map(|gpu| (gpu, device)))
}

fn predictor_on(
    path: &Path,
    head: Option<&str>,
    threads: usize,
    gpu: Option<(Gpu, DeviceChoice)>,
) -> Result<Predictor> {
    let mut predictor =
        Predictor::new(load_branch(path, head)?, threads).map_err(|e| e.at(path.display()))?;
    if let Some((gpu, device)) = gpu {
        predictor = predictor.on_gpu(gpu, device);
    }
    match std::env::var("DP_INFER_BATCH_SIZE").ok() {
        None => Ok(predictor),
        Some(text) => match text.trim().parse() {
            Ok(atoms) => Ok(predictor.with_batch_atoms(atoms)),
            Err(_) => Err(err!("DP_INFER_BATCH_SIZE={text} is not a number of atoms")
                .help("it says how many atoms are evaluated at once")),
        },
    }
}

fn test_system(
    team: &mut Team,
    args: &TestArgs,
    number: usize,
    path: &str,
    predictor: &mut Predictor,
    tester: &mut dyn Tester,
) -> Result<()> {
    let system = System::open(path, predictor.type_map(), &tester.wants(predictor.wants()));
    let system = team.agree(system.and_then(|system| tester.check(&system).map(|()| system)))?;
    ranks::check_same(team, path, &system)?;
    let frames = team.from_root(|| Ok(frames_to_test(args, number, system.n_frames)))?;
    let progress = match team.is_root() {
        true => Progress::counting("frames", frames.len() as u64),
        false => Progress::new(0, 0, false),
    };
    let mut done = 0;
    ranks::for_each_batch(team, predictor, &system, &frames, |frames, predicted| {
        tester.add(path, number, frames, predicted)?;
        done += frames.len();
        progress.step(done as u64);
        Ok(())
    })?;
    progress.finish();
    log::info!("# number of test data : {done} ");
    Ok(())
}

/// Which frames, in which order. The order of a system depends on the seed and its number only.
fn frames_to_test(args: &TestArgs, number: usize, n_frames: usize) -> Vec<usize> {
    let most = if args.numb_test == 0 { n_frames } else { args.numb_test.min(n_frames) };
    if !args.shuffle_test {
        return (0..most).collect();
    }
    let seed = args.rand_seed.map_or_else(random_seed, |seed| seed as u64);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number as u64);
    let order = Permutation::new(&mut rng, n_frames);
    (0..most).map(|position| order.frame(position)).collect()
}

/// The standard library seeds its hash maps from the operating system.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> TestArgs {
        let matches =
            super::super::definition().try_get_matches_from(line.split_whitespace()).expect("a valid line");
        typed(matches.subcommand().unwrap().1)
    }

    #[test]
    fn a_shuffle_is_a_permutation_that_the_seed_decides() {
        let order = |line: &str| frames_to_test(&args(line), 0, 50);
        assert_eq!(order("dp test -n 3"), [0, 1, 2]);
        assert_eq!(order("dp test -n 80").len(), 50);
        let mut shuffled = order("dp test --shuffle-test -r 7");
        assert_eq!(shuffled, order("dp test --shuffle-test -r 7"));
        assert_ne!(shuffled, order("dp test --shuffle-test -r 8"));
        assert_eq!(order("dp test --shuffle-test -r 7 -n 5"), shuffled[..5]);
        shuffled.sort();
        assert_eq!(shuffled, (0..50).collect::<Vec<_>>());
    }
}
