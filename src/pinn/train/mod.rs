//! `pinn train`: the loop of [`crate::train`] with a PiNet.

mod options; // what the command line says
mod structures; // prepared structures with labels, in batches
mod learner; // a network as the recipe of a step sees it, errors over the evaluation set
mod cuda; // the same on a GPU
mod journal; // what rank 0 writes
mod early_stop; // training ends where nothing improves
pub mod state; // what a checkpoint says
mod dress; // energies of elements, from the data

use crate::checkpoint::Checkpoint;
use crate::engine::pinet::PinetEngine;
use crate::engine::pinet::cpu::PinetCpu;
use crate::error::Result;
use crate::loss::pinn::PinnLoss;
use crate::memory::afford;
use crate::model::dp::options::Precision;
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::ModelOptions;
use crate::pinn::data::Source;
use crate::pinn::data::detect::DataSet;
use crate::pinn::params::{Params, write_params};
use crate::pinn::tensorflow::Twin;
use crate::report::tensorboard::EventWriter;
use crate::sample::{FrameId, Pool, Purpose, Queue, QueueOptions, Sampler};
use crate::train::cpu::{CpuLearner, QUEUE_DEPTH};
use crate::train::family::Validation;
use crate::train::learner::{Learner, StepRate};
use crate::train::run::{Journal, Plan, Run, Validates};
use crate::train::same;
use crate::train::session::{self, Session, SessionOptions};
use crate::train::step::{Stepper, StepperOptions};
use crate::train::team::Team;
use crate::{bail, err};
pub use options::TrainArgs;

use cuda::OnGpu;
use early_stop::EarlyStop;
use journal::PinnJournal;
use learner::{Evaluation, MetricNames, Pinet};
use state::PinnState;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use structures::{Batches, Nothing};

/// Memory for prepared structures where they are kept, which is the default.
const CACHE_BYTES: usize = 2 << 30;
/// How long GPUs may wait for each other before their ranks are asked whether they live.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The evaluation set where none is named, as in PiNN.
const DEFAULT_EVAL: &str = "eval.yml";
/// Between two evaluations at least, as PiNN has it; one always follows the last step.
const EVALUATION_PAUSE: Duration = Duration::from_secs(600);

/// Trains a network: `pinn train`.
pub fn main(args: &TrainArgs) -> Result<()> {
    let session = SessionOptions {
        device: args.device,
        log_level: args.log_level,
        log_path: args.log_path.clone(),
        mpi_log: args.mpi_log,
        stall_timeout: None,
        zero_on_stop: args.zero_on_stop,
        input: Some(args.params.clone()),
        task: "pinn train".to_string(),
        tells_summary: true,
    };
    session::run(&session, |team, session| train(team, session, args))
}

/// Everything that is there before the first step.
struct Setup {
    params: Params,
    model: Arc<PinetModel>,
    loss: Arc<PinnLoss>,
    training: Batches,
    evaluation: Option<Batches>,
    /// Whether each rank has files of its own, instead of a share of all draws.
    by_file: bool,
    resumed: Option<PinnState>,
}

fn train(team: &mut Team, session: &Session, args: &TrainArgs) -> Result<Option<i32>> {
    let early_stop = EarlyStop::new(&args.early_stop);
    let params = read_params(team, args)?;
    let owner = session::own(team, || vec![params.model_dir.clone()])?;
    let setup = setup(team, args, params)?;
    let names = MetricNames::default();
    let mut learner = learner(team, session, args, &setup, &names)?;
    let (start, draws) = setup.resumed.as_ref().map_or((0, 0), |state| (state.step, state.draws));
    if start > 0 {
        log::info!("continuing after step {start} of {}", setup.params.model_dir.display());
    }
    let scale = team.size() as f64;
    let before = setup.resumed.as_ref().and_then(|state| state.draws_per_step);
    if let Some(before) = before.filter(|&before| before != team.size() as u64) {
        log::warn!(
            "the run was saved with {before} batches a step and goes on with {scale}: the learning rate is scaled by {scale} \
             instead of {before}"
        );
    }
    if team.size() > 1 {
        log::info!(
            "learning rate is scaled by {scale} for {scale} ranks: it starts at {:e}",
            setup.params.rate.scaled(scale).at(0)
        );
    }
    let schedule = setup.params.rate;
    let plan = Plan {
        num_steps: args.train_steps,
        start,
        draws_per_step: team.size() as u64,
        first_draw: draws,
        rate: Box::new(move |step| StepRate {
            schedule: schedule.at(step),
            scaled: schedule.scaled(scale).at(step),
        }),
        disp_freq: args.log_every,
        record_freq: Some(args.log_every),
        save_freq: args.ckpt_every,
        disp_avg: false,
        validates: Validates::AfterSave(EVALUATION_PAUSE),
        full_validation: None,
        averages: None,
        save_ckpt: setup.params.model_dir.join("model.ckpt"),
        max_ckpt_keep: args.max_ckpts,
        ckpt_aliases: &[],
        points_from_here: false,
        owner,
        tells_time: true,
        shows_progress: true,
        profiling: args.profile,
        profiling_file: setup.params.model_dir.join("timeline.json"),
        dashboard: None,
        meter: None,
        title: String::new(),
        stop: None,
        completes: None,
    };
    let open = || -> Result<PinnJournal> {
        Ok(PinnJournal {
            model_dir: setup.params.model_dir.clone(),
            params: setup.params.written.clone(),
            events: EventWriter::create(&setup.params.model_dir)?,
            eval_events: None,
            names,
            early_stop,
            twin: Twin::new(&setup.model, &setup.params).map(Arc::new),
        })
    };
    let journal = team.is_root().then(open).transpose();
    let mut journal = team.agree(journal)?;
    let journal = journal.as_mut().map(|journal| journal as &mut dyn Journal);
    Ok(Run::new(team, plan, &mut *learner, journal, &session.far_lines)?.to_the_end(team)?.signal)
}

/// Every rank reads the small file: it says the same to all, and mistakes are told once.
fn read_params(team: &mut Team, args: &TrainArgs) -> Result<Params> {
    let read = Params::read(&args.params).map(|params| match &args.model_dir {
        Some(folder) => params.with_model_dir(folder),
        None => params,
    });
    team.agree(read)
}

fn setup(team: &mut Team, args: &TrainArgs, mut params: Params) -> Result<Setup> {
    if params.parallel && team.size() == 1 {
        log::warn!(
            "params.yml says parallel: true, but this is one process: start it with mpirun, torchrun, horovodrun or srun"
        );
    }
    let wants_forces = matches!(&params.model, ModelOptions::Potential(o) if o.use_force);
    let opened = open_training(team, args, wants_forces);
    let (source, by_file) = team.agree(opened)?;
    let eval = team.agree(open_evaluation(args))?;
    if !by_file {
        same::check_facts(team, "the training set", || facts(&*source))?;
    }
    if let Some(eval) = &eval {
        same::check_facts(team, "the evaluation set", || facts(&**eval))?;
    }
    if args.init {
        dress::init(team, &mut params, &*source, by_file)?;
    }
    let model = PinetModel::new(params.network.clone()).and_then(|model| {
        // Each parameter has a gradient, two moments, and a copy in a checkpoint.
        let n = model.n_params();
        afford(40 * n as u128, format_args!("network.params: {n} parameters"))?;
        Ok(model)
    });
    let model = Arc::new(team.agree(model)?);
    let loss = Arc::new(PinnLoss::new(params.model.clone(), &model, params.seed));
    let batches = |source, size| Batches::new(source, model.clone(), loss.clone(), size);
    let training = team.agree(batches(source, args.batch))?;
    let evaluation = match eval {
        Some(source) => Some(team.agree(batches(source, args.eval_batch.or(args.batch)))?),
        None => None,
    };
    // Labels that the loss needs are asked for now, also those of evaluations, which may be hours away.
    for set in [Some(&training), evaluation.as_ref()].into_iter().flatten() {
        let first = set.load(FrameId { system: 0, frame: 0 });
        team.agree(first)?;
    }
    let resumed = resume(team, &params, &model)?;
    team.from_root(|| write_params(&params.model_dir, &params.written).map(|_| ()))?;
    Ok(Setup { params, model: model.clone(), loss: loss.clone(), training, evaluation, by_file, resumed })
}

/// Opens the training set: this rank's files where there are several, or all of them where there is one.
fn open_training(team: &Team, args: &TrainArgs, wants_forces: bool) -> Result<(Arc<dyn Source>, bool)> {
    let data = DataSet::new(&args.train_ds, &args.fmt)?;
    if data.has_mixed_units() && wants_forces {
        log::warn!(
            "{}: energies are in Hartree and forces in kJ/(mol A), and both are trained on; \
             `units: hartree` or `units: ev` in a file that lists the runs makes them fit",
            args.train_ds
        );
    }
    let by_file = team.size() > 1 && data.n_files() > 1;
    let source = if by_file { data.open_part(team.rank(), team.size())? } else { data.open()? };
    let what = if by_file { "its own files" } else { "all files" };
    log::info!("training set: {} structures from {} ({what})", source.len(), source.place());
    Ok((Arc::from(source), by_file))
}

/// Opens the evaluation set. The one that is meant when none is named may be missing.
fn open_evaluation(args: &TrainArgs) -> Result<Option<Arc<dyn Source>>> {
    if args.eval_ds == DEFAULT_EVAL && !Path::new(DEFAULT_EVAL).exists() {
        log::warn!(
            "there is no {DEFAULT_EVAL}, and no -e names other data: training goes on without evaluations"
        );
        return Ok(None);
    }
    let source = DataSet::new(&args.eval_ds, &args.fmt)?.open()?;
    log::info!("evaluation set: {} structures from {}", source.len(), source.place());
    Ok(Some(Arc::from(source)))
}

/// What all ranks must see alike: the number of structures, the first and the last.
fn facts(source: &dyn Source) -> Result<Vec<String>> {
    let ends = format!("{:?} {:?}", source.read(0)?, source.read(source.len() - 1)?);
    let hash = xxhash_rust::xxh3::xxh3_64(ends.as_bytes());
    Ok(vec![format!("{} structures, hash {hash:016x}", source.len())])
}

/// The newest complete checkpoint of the model's folder, ours or PiNN's; rank 0 reads it for all.
fn resume(team: &mut Team, params: &Params, model: &PinetModel) -> Result<Option<PinnState>> {
    let prefix = params.model_dir.join("model.ckpt");
    let size = team.size() as u64;
    let found = || -> Result<Vec<u8>> {
        let state = state::newest(&params.model_dir, model, params)?;
        let from_pinn = |state: &PinnState| state.draws == state::UNKNOWN_DRAWS;
        Ok(state.map_or(Vec::new(), |mut state| {
            if from_pinn(&state) {
                state.draws = state.step * size;
            }
            state.into_checkpoint().to_bytes()
        }))
    };
    let bytes = team.bytes_from_root(found)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let state = Checkpoint::parse(&bytes).and_then(|saved| state::read(saved, model.n_params()));
    team.agree(state.map(Some).map_err(|e| e.at(prefix.display())))
}

fn learner(
    team: &mut Team,
    session: &Session,
    args: &TrainArgs,
    setup: &Setup,
    names: &MetricNames,
) -> Result<Box<dyn Learner>> {
    let (model, loss) = (&setup.model, &setup.loss);
    let (threads, forces) = (session.threads.compute, loss.wants_forces());
    let mut params = model.init(setup.params.seed);
    if let Some(state) = &setup.resumed {
        params.copy_from_slice(&state.params);
    }
    team.broadcast(&mut params)?;
    let resumed = setup.resumed.as_ref().map(|state| &state.optimizer);
    let optimizer = &setup.params.optimizer;
    let on_gpu = match &session.gpu {
        Some(gpu) => {
            let blocks = args.reproducible.then(|| model.table.views().iter().map(|v| v.range()).collect());
            let precision = setup.params.precision;
            let made = OnGpu::new(team, gpu, precision, model, loss, &params, (optimizer, resumed), blocks);
            args.device.or_cpu(made)?
        }
        None => None,
    };
    let queue = team.agree(start_queue(team, session, args, setup))?;
    let evaluation = setup.evaluation.clone().map(|batches| {
        let count = args.eval_steps.map_or(usize::MAX, |n| n as usize).min(batches.n_batches());
        Evaluation { batches, count, names: names.clone() }
    });
    if let Some(on_gpu) = on_gpu {
        return Ok(Box::new(on_gpu.learner(team, loss.clone(), STALL_TIMEOUT, queue, evaluation)?));
    }
    let engine = match setup.params.precision {
        Precision::Float64 => boxed(PinetCpu::<f64>::new(model.clone(), threads, forces)),
        Precision::Float32 => boxed(PinetCpu::<f32>::new(model.clone(), threads, forces)),
    };
    let network = Pinet::new(team.agree(engine)?, loss.clone());
    // Gradients are cut down by the optimiser itself, in its own way.
    let options = StepperOptions {
        draws: 1,
        reproducible: args.reproducible,
        max_norm: 0.0,
        seed: 0,
        num_steps: args.train_steps,
    };
    let stepper = Stepper::new(team, network, &model.table, params, optimizer, resumed, options)?;
    let evaluation = evaluation.map(|evaluation| Box::new(evaluation) as Box<dyn Validation<Pinet>>);
    Ok(Box::new(CpuLearner::new(stepper, queue, evaluation)))
}

fn boxed(engine: Result<impl PinetEngine + 'static>) -> Result<Box<dyn PinetEngine>> {
    engine.map(|engine| Box::new(engine) as Box<dyn PinetEngine>)
}

/// The pipeline in front of the network: sampler, loader threads, structures with their pairs.
fn start_queue(
    team: &Team,
    session: &Session,
    args: &TrainArgs,
    setup: &Setup,
) -> Result<Queue<Nothing, structures::Structures>> {
    let (units, batch) = setup.training.units();
    if units == 0 {
        bail!("the training set holds no structure");
    }
    let pool = Arc::new(Pool::new(vec![units], vec![batch], &[1.0]));
    let draws = setup.resumed.as_ref().map_or(0, |state| state.draws);
    // With files of their own, ranks draw from sequences of their own; otherwise they share one.
    let (rank, size, draws) =
        if setup.by_file { (0, 1, draws / team.size() as u64) } else { (team.rank(), team.size(), draws) };
    let seed =
        if setup.by_file { setup.params.seed.wrapping_add(team.rank() as u64) } else { setup.params.seed };
    let sampler = Sampler::at(pool, seed, Purpose::Training, draws);
    let options = QueueOptions {
        threads: session.threads.loaders,
        depth: QUEUE_DEPTH,
        in_bursts: session.threads.crowded,
        cache_bytes: if args.cache && args.preprocess { CACHE_BYTES } else { 0 },
        rank,
        size,
    };
    let batches = setup.training.clone();
    Queue::start(sampler, options, move |id| batches.load(id), |_| Ok(Nothing))
        .map_err(|e| err!("the training set cannot be read: {e}"))
}
