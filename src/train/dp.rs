//! Trains a Deep Potential: `dp train`.
//!
//! Set-up, then a learner for the device at hand, then the loop of [`run`](super::run).

use super::average;
use super::caller::{Caller, Display, Ended};
use super::cuda;
use super::deep_potential;
use super::dp_state::{DpRun, DpState};
use super::find_rate;
use super::full_validation::{ErrorTable, Keeper, Verdict};
use super::input::{GpuProducts, Input, TrainingOptions};
use super::learner::{Learner, Snapshot, StepRate, StepReport};
use super::multi;
use super::options::{InputSource, RunOptions, Start};
use super::run::{Complete, Journal, Plan, Run, Validates};
use super::session::{self, Session, SessionOptions};
use super::setup::{Setup, read_input, setup};
use super::team::Team;
use super::warnings::{self, Plateau};
use crate::checkpoint::backup::{Earlier, Places};
use crate::checkpoint::{Checkpoint, folder_of, remove_strays};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::error::IoContext;
use crate::export::atomic;
use crate::gpu::Numbers;
use crate::model::dp::options::Precision;
use crate::model::dp::spec::DpStatistics;
use crate::optim::options::{LearningRateOptions, ScaleByWorker};
use crate::report::lcurve::{Columns, LCurve, ResumeAt, Row};
use crate::report::progress::Note;
use crate::report::tensorboard::EventWriter;
use crate::report::{dashboard, messages};
use crate::{Result, err};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Trains a model: `dp train`.
pub fn main(options: &RunOptions) -> Result<()> {
    run(options, None).map(|_| ())
}

/// Trains a model; `caller` looks on.
pub fn run(options: &RunOptions, caller: Option<Caller>) -> Result<Ended> {
    let session = SessionOptions {
        log_level: options.log_level,
        log_path: options.log_path.clone(),
        mpi_log: options.mpi_log,
        stall_timeout: stall_timeout(&options.input),
        device: options.device,
        zero_on_stop: options.zero_on_stop,
        input: options.input.path().map(Path::to_owned),
        task: task(options),
        tells_summary: true,
    };
    let (mut ended, is_program) = (None, caller.is_none());
    session::run(&session, |team, session| {
        let end = train(team, session, options, caller)?;
        // The status of a process is a matter of the program that it is.
        let signal = end.signal.filter(|_| is_program);
        ended = Some(end);
        Ok(signal)
    })?;
    ended.ok_or_else(|| err!("the run ended without a word"))
}

/// What all ranks must ask for alike, or they would take different ways.
fn task(options: &RunOptions) -> String {
    let start = match options.start {
        Start::Fresh => "from the start",
        Start::Restart(_) => "a restart",
        Start::Model(_) => "from a model",
        Start::Finetune(_) => "fine-tuning",
    };
    let flag = |set: bool, name: &str| if set { format!(" {name}") } else { String::new() };
    let skips = flag(options.skip_neighbor_stat, "--skip-neighbor-stat");
    let script = flag(options.use_pretrain_script, "--use-pretrain-script");
    let pytorch = flag(options.pytorch_conventions, "--pt");
    let profile = flag(options.profile, "--profile");
    let dashboard = flag(options.dashboard.is_some(), "--dashboard");
    let find_rate = flag(options.find_rate, "--find-lr");
    let branch = match options.model_branch.as_str() {
        "" => String::new(),
        name => format!(" of the branch {name}"),
    };
    format!("dp train, {start}{branch}{skips}{script}{pytorch}{profile}{dashboard}{find_rate}")
}

/// `training.stall_timeout`, before the input is read properly: the ranks need it to connect.
fn stall_timeout(input: &InputSource) -> Option<Duration> {
    let value = input.read().ok()?;
    let seconds = value.get("training")?.get("stall_timeout")?.as_f64()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn train(team: &mut Team, session: &Session, options: &RunOptions, caller: Option<Caller>) -> Result<Ended> {
    if multi::is_asked_for(team, &options.input)? {
        return multi::train(team, session, options, caller);
    }
    let (input, full) = read_input(team, &options.input)?;
    form_groups(team, session, &input)?;
    let owner = session::own(team, || folders(&input))?;
    let setup = Arc::new(setup(team, &session.launch, options, input, full)?);
    let rates = team.agree(setup.input.learning_rate.for_steps(setup.num_steps))?;
    if let Some(line) = warnings::high_rate(&rates, setup.num_steps) {
        log::warn!("{line}");
    }
    let mut learner = learner(team, session, options, &setup, &rates)?;
    if options.find_rate {
        let plan = plan(team, session, options, Course::of(&setup), rates);
        find_rate::sweep(team, &mut *learner, (plan.rate)(0), plan.shows_progress)?;
        return Ok(Ended { step: 0, stopped: false, checkpoint: None, signal: None });
    }
    let stop = caller.as_ref().map(|caller| caller.stop.clone());
    // What the model file says of the data; the run may end with another bias.
    let stats = Arc::new(Mutex::new(setup.model.stats.clone()));
    let completes = setup.input.training.change_bias_after_training.then(|| shifts_bias(&setup, &stats));
    let plan = Plan { stop, owner, completes, ..plan(team, session, options, Course::of(&setup), rates) };
    let journal = team.is_root().then(|| DpJournal::open(options, setup.clone(), stats, caller)).transpose();
    let mut journal = team.agree(journal)?;
    let journal = journal.as_mut().map(|journal| journal as &mut dyn Journal);
    Run::new(team, plan, &mut *learner, journal, &session.far_lines)?.to_the_end(team)
}

/// Shifts the energy bias for the last checkpoint.
fn shifts_bias(setup: &Arc<Setup>, stats: &Arc<Mutex<DpStatistics>>) -> Box<Complete> {
    let (setup, stats) = (setup.clone(), stats.clone());
    Box::new(move |team, params| {
        let shifted = setup.with_shifted_bias(team, params)?;
        *stats.lock().unwrap_or_else(|e| e.into_inner()) = shifted;
        Ok(())
    })
}

/// Lets ranks work on a batch together, where the input wants it.
pub(super) fn form_groups(team: &mut Team, session: &Session, input: &Input) -> Result<()> {
    let training = &input.training;
    let ranks = team.tell_once(training.ranks_per_frame.among(team.size()))?;
    if ranks == 1 {
        return Ok(());
    }
    let gpus = team.gather(&session.gpu.as_ref().map(|(gpu, _)| gpu.name.clone()))?;
    team.tell_once(refuse_mixed_groups(&gpus, ranks))?;
    team.form_groups(ranks)?;
    for line in messages::groups(ranks, team.n_groups(), training.gradient_accumulation) {
        log::info!("{line}");
    }
    if training.reproducible && session.gpu.is_some() {
        log::warn!(
            "training.reproducible: on GPUs the last bits do not depend on the number of ranks, but on training.ranks_per_frame"
        );
    }
    Ok(())
}

/// Ranks that share a frame must find the same blocks and series: their GPUs, by rank, are of one kind.
fn refuse_mixed_groups(gpus: &[Option<String>], ranks: usize) -> Result<()> {
    for (group, gpus) in gpus.chunks(ranks).enumerate() {
        let Some(k) = gpus.iter().position(|gpu| *gpu != gpus[0]) else { continue };
        let first = group * ranks;
        let name = |k: usize| gpus[k].as_deref().unwrap_or("the CPU");
        return Err(err!(
            "training.ranks_per_frame: ranks {first} and {} share frames and compute on {} and {}",
            first + k,
            name(0),
            name(k)
        )
        .help("order the ranks so that those of a group have devices of one kind"));
    }
    Ok(())
}

/// The folders of the files of a run that would be destroyed by another run.
pub(super) fn folders(input: &Input) -> Vec<PathBuf> {
    let training = &input.training;
    let mut files = vec![training.save_ckpt.as_path(), &training.disp_file];
    if training.save_ckpt.is_relative() {
        files.push(Path::new("checkpoint"));
    }
    let mut folders: Vec<PathBuf> = files.into_iter().map(|path| folder_of(path).to_owned()).collect();
    // A learning curve that nobody wants goes to /dev/null.
    folders.extend(input.validating.folders());
    folders.retain(|folder| folder.as_path() != Path::new("/dev"));
    folders
}

/// A learner on the GPU where there is one that can do it, else on the CPU.
fn learner(
    team: &mut Team,
    session: &Session,
    options: &RunOptions,
    setup: &Arc<Setup>,
    rates: &LearningRateOptions,
) -> Result<Box<dyn Learner>> {
    let single = setup.model.options.precision() == Precision::Float32;
    if let Some((gpu, shared)) = &session.gpu {
        let numbers = match (single, setup.input.training.gpu_products) {
            (false, _) => Numbers::F64,
            (true, GpuProducts::Full) => Numbers::F32,
            (true, GpuProducts::Tf32) => Numbers::Tf32,
            (true, GpuProducts::Bf16) => Numbers::Bf16,
        };
        let made = cuda::learner(team, session, setup, (gpu, *shared), numbers, rates.start_lr);
        // Every rank has found the same: what one of them cannot do all of them have agreed upon.
        if let Some(learner) = options.device.or_cpu(made)? {
            return Ok(learner);
        }
    }
    if single {
        on_cpu::<f32>(team, session, setup, rates)
    } else {
        on_cpu::<f64>(team, session, setup, rates)
    }
}

/// A learner on this rank's CPU threads.
fn on_cpu<T: Real>(
    team: &mut Team,
    session: &Session,
    setup: &Arc<Setup>,
    rates: &LearningRateOptions,
) -> Result<Box<dyn Learner>> {
    let mode = EmbeddingMode::Chebyshev { min_distance: setup.min_distance };
    let engine = CpuEngine::<T>::new(setup.model.clone(), session.threads.compute, mode);
    let mut engine = team.agree(engine)?;
    if let Some(state) = &setup.resumed {
        engine.resume(&state.engine);
    }
    let loss = setup.input.loss.build(rates.start_lr, &setup.model);
    Ok(Box::new(deep_potential::learner(team, session.threads, setup, engine, loss)?))
}

/// What the loop is to do, as far as it follows from the input.
pub(super) struct Course<'a> {
    pub input: &'a Input,
    pub num_steps: u64,
    /// Where a run continues: steps, draws of all ranks, and how many of these made a step.
    pub resumed: Option<(u64, u64, Option<u64>)>,
}

impl<'a> Course<'a> {
    fn of(setup: &'a Setup) -> Self {
        let resumed = setup.resumed.as_ref().map(|state| (state.step, state.draws, state.draws_per_step));
        Course { input: &setup.input, num_steps: setup.num_steps, resumed }
    }
}

pub(super) fn plan(
    team: &Team,
    session: &Session,
    options: &RunOptions,
    course: Course,
    rates: LearningRateOptions,
) -> Plan {
    let Course { input, num_steps, resumed } = course;
    let training = &input.training;
    let draws_per_step = (training.gradient_accumulation * team.n_groups()) as u64;
    let scale = rate_scale(&rates, draws_per_step, options.pytorch_conventions);
    if scale != 1.0 {
        log::info!(
            "learning rate is scaled by {scale} for {draws_per_step} batches a step: it starts at {:e}",
            rates.start_lr * scale
        );
    }
    let (start, first_draw) = resumed.map_or((0, 0), |(step, draws, _)| (step, draws));
    if let Some((_, _, before)) = resumed {
        log::info!("continuing after step {start}");
        if let Some(before) = before.filter(|&before| before != draws_per_step) {
            let old = rate_scale(&rates, before, options.pytorch_conventions);
            let rate = match old == scale {
                true => "the learning rate stays as it is".to_string(),
                false => format!("the learning rate is scaled by {scale} instead of {old}"),
            };
            log::warn!(
                "the run was saved with {before} batches a step and goes on with {draws_per_step}: {rate}; \
                 training.keep_global_batch would keep them"
            );
        }
    }
    Plan {
        num_steps,
        start,
        draws_per_step,
        first_draw,
        rate: Box::new(move |step| {
            let schedule = rates.at(step, num_steps);
            StepRate { schedule, scaled: schedule * scale }
        }),
        disp_freq: training.disp_freq,
        record_freq: training.tensorboard.then(|| training.tensorboard_freq.max(1)),
        save_freq: training.save_freq,
        disp_avg: training.disp_avg,
        validates: Validates::AtDisplay,
        full_validation: Some(input.validating.clone()),
        averages: training
            .ema
            .map(|ema| (average::with_ema(&training.save_ckpt), keep(training, num_steps, ema.keep))),
        save_ckpt: training.save_ckpt.clone(),
        max_ckpt_keep: keep(training, num_steps, training.max_ckpt_keep),
        ckpt_aliases: options.checkpoint_endings,
        points_from_here: true,
        owner: None,
        tells_time: training.time_training,
        shows_progress: training.disp_training,
        profiling: options.profile || training.profiling,
        profiling_file: training.profiling_file.clone(),
        dashboard: options.dashboard,
        meter: options.dashboard.and_then(|_| session.gpu_meter()),
        title: format!("{} on {}", options.input.name(), session.launch.host),
        stop: None,
        completes: None,
    }
}

/// How many checkpoints are kept: so many, or a part of all that are saved.
fn keep(training: &TrainingOptions, num_steps: u64, number: usize) -> usize {
    match training.ckpt_keep_ratio {
        Some(ratio) => (ratio * num_steps.div_ceil(training.save_freq) as f64).ceil().max(1.0) as usize,
        None => number,
    }
}

/// What the learning rate is multiplied by when so many batches make a step.
fn rate_scale(rates: &LearningRateOptions, batches: u64, pytorch_conventions: bool) -> f64 {
    let default = if pytorch_conventions { ScaleByWorker::None } else { ScaleByWorker::Linear };
    match rates.scale_by_worker.unwrap_or(default) {
        ScaleByWorker::Linear => batches as f64,
        ScaleByWorker::Sqrt => (batches as f64).sqrt(),
        ScaleByWorker::None => 1.0,
    }
}

/// What rank 0 writes: `out.json`, `lcurve.out`, log lines, TensorBoard events, checkpoints.
struct DpJournal<'a> {
    setup: Arc<Setup>,
    lcurve: LCurve,
    columns: Columns,
    /// Where each column's value stands among what a loss shows.
    order: Vec<usize>,
    events: Option<EventWriter>,
    caller: Option<Caller<'a>>,
    /// The command that continues the run.
    continues: String,
    plateau: Plateau,
    /// The learning rate of the first row.
    first_rate: Option<f64>,
    /// Of full validations: of the parameters, and of their running mean.
    keepers: [Option<Keeper>; 2],
    /// What checkpoints say of the data.
    stats: Arc<Mutex<DpStatistics>>,
}

impl<'a> DpJournal<'a> {
    /// Everything before the first step has succeeded: `out.json` is written now.
    fn open(
        options: &RunOptions,
        setup: Arc<Setup>,
        stats: Arc<Mutex<DpStatistics>>,
        caller: Option<Caller<'a>>,
    ) -> Result<Self> {
        let training = &setup.input.training;
        if setup.resumed.is_none() {
            make_room(options, &setup.input)?;
        }
        write_full(options, &setup.full)?;
        let shown = setup.input.loss.shown(&setup.input.model.fitting);
        let columns = Columns::new(
            setup.input.loss.columns(&setup.input.model.fitting),
            setup.data.validation.is_some(),
        );
        let lcurve = match &setup.resumed {
            Some(state) => LCurve::resume(
                &training.disp_file,
                columns.clone(),
                ResumeAt::Byte { bytes: state.about.lcurve_bytes, step: state.step },
            )?,
            None => LCurve::create(&training.disp_file, columns.clone())?,
        };
        let place = |name: &String| shown.iter().position(|n| n.as_ref() == Some(name)).unwrap_or(0);
        let order = columns.names().iter().map(place).collect();
        let events = match training.tensorboard {
            true => Some(EventWriter::create(&training.tensorboard_log_dir)?),
            false => None,
        };
        let validating = &setup.input.validating;
        let keeper = |wanted: bool, average: bool, name: &str| match wanted {
            true => {
                let saved =
                    setup.resumed.as_ref().map_or(&Value::Null, |state| &state.about.validation[name]);
                Keeper::open(validating, average, setup.num_steps, saved).map(Some)
            }
            false => Ok(None),
        };
        let keepers = [keeper(validating.live, false, "live")?, keeper(validating.average, true, "average")?];
        Ok(DpJournal {
            continues: options.continue_command(&training.save_ckpt),
            lcurve,
            columns,
            order,
            events,
            caller,
            plateau: Plateau::default(),
            first_rate: None,
            keepers,
            setup,
            stats,
        })
    }

    /// Shows a row to the caller, who may have seen enough.
    fn show(&mut self, row: &Row) {
        let Some(caller) = &mut self.caller else { return };
        let named = |values: &[f64]| {
            self.columns.names().iter().cloned().zip(values.iter().copied()).collect::<Vec<_>>()
        };
        let display =
            Display { step: row.step, lr: row.lr, train: named(&row.train), valid: named(&row.valid) };
        if !(caller.on_display)(&display) {
            caller.stop.stop();
        }
    }

    fn keeper(&mut self, average: bool) -> &mut Keeper {
        self.keepers[usize::from(average)].as_mut().expect("only what the input wants is validated")
    }
}

/// Sets aside what an earlier run left where this one will write, or says that it will be replaced.
pub(super) fn make_room(options: &RunOptions, input: &Input) -> Result<()> {
    let training = &input.training;
    let logs = input.validating.left_behind().1;
    let written = [("training.disp_file", &training.disp_file), ("--output", &options.output)];
    let written = written.into_iter().chain(logs.iter().map(|path| ("validating.full_val_file", path)));
    for (key, path) in written {
        if path.is_dir() {
            return Err(err!("{key}: {} is a folder, wanted the name of a file", path.display()));
        }
    }
    let (best, mut others) = input.validating.left_behind();
    if folder_of(&options.output) == folder_of(&training.disp_file) {
        others.push(options.output.clone());
    }
    let places = Places {
        prefix: &training.save_ckpt,
        averages: training.ema.map(|_| average::with_ema(&training.save_ckpt)),
        lcurve: &training.disp_file,
        best,
        others,
    };
    let Some(earlier) = Earlier::find(places)? else { return Ok(()) };
    let what = earlier.describe();
    if !training.backup || options.no_backup {
        log::warn!("an earlier run left {what}: this run will replace them, without a backup");
        return Ok(());
    }
    let places: Vec<String> = earlier.set_aside()?.iter().map(|place| place.display().to_string()).collect();
    log::warn!("an earlier run left {what}: moved to {}", places.join(" and "));
    Ok(())
}

/// Writes the input with all defaults.
pub(super) fn write_full(options: &RunOptions, full: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(full).map_err(|e| err!("cannot write the input: {e}"))?;
    let name = options.output.file_name().unwrap_or_default();
    remove_strays(folder_of(&options.output), |stray| stray == name);
    write_output(&options.output, &text)
}

/// Complete or absent where it is a file; what else a user may name, such as /dev/null, is written to as it is.
fn write_output(path: &Path, text: &str) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => std::fs::write(path, text).io("write", path),
        _ => atomic::write(path, |out| out.write_all(text.as_bytes()).io("write", path)),
    }
}

impl Journal for DpJournal<'_> {
    fn row(&mut self, row: &Row) -> Result<Option<Note>> {
        let pick = |values: &[f64]| -> Vec<f64> {
            if values.is_empty() { Vec::new() } else { self.order.iter().map(|&k| values[k]).collect() }
        };
        let row = Row { step: row.step, train: pick(&row.train), valid: pick(&row.valid), lr: row.lr };
        let names = self.columns.names();
        dashboard::row(names, &row);
        if self.setup.input.training.disp_training {
            self.lcurve.append(&row)?;
            log::info!("{}", messages::train_line(row.step, names, &row.train, row.lr));
            if !row.valid.is_empty() {
                log::info!("{}", messages::valid_line(row.step, names, &row.valid));
            }
        }
        // The loss itself changes with its prefactors; its terms are what falls.
        let errors: Vec<f64> =
            names.iter().zip(&row.train).filter(|(name, _)| *name != "rmse").map(|(_, x)| *x).collect();
        let rate = row.lr / *self.first_rate.get_or_insert(row.lr);
        if let Some(line) = self.plateau.watch(row.step, &errors, rate) {
            log::warn!("{line}");
        }
        self.show(&row);
        let names = self.columns.names();
        let shown = if row.valid.is_empty() { &row.train } else { &row.valid };
        // Forces tell most; what has none shows its first error.
        let force = names.iter().position(|name| name.ends_with("_f"));
        let other = (!self.setup.model.is_energy() && !names.is_empty()).then_some(0);
        Ok(force.or(other).map(|k| Note { text: format!("{} {:.4}", names[k], shown[k]), value: shown[k] }))
    }

    fn record(&mut self, done: u64, rate: StepRate, report: &StepReport, speed: f64) -> Result<()> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let value = &report.values[0];
        let fixed = [
            ("Default/lr".to_string(), rate.scaled),
            ("Default/loss".to_string(), value.loss),
            ("Default/grad/total_norm".to_string(), report.gradient_norm),
            ("Default/throughput/batches_per_second".to_string(), speed),
        ];
        let terms = value.terms.iter().map(|t| (format!("Default/{}", t.name), t.value));
        let scalars: Vec<(String, f64)> = fixed.into_iter().chain(terms).collect();
        events.scalars(done, scalars.iter().map(|(name, x)| (name.as_str(), *x)))
    }

    fn validated(&mut self, done: u64, average: bool, errors: &ErrorTable) -> Result<Verdict> {
        self.keeper(average).note(done, errors)
    }

    fn save_best(&mut self, done: u64, draws: u64, average: bool, snapshot: Snapshot) -> Result<()> {
        let path = self.keeper(average).announce(done)?;
        let snapshot = if average { average::of(&snapshot).unwrap_or(snapshot) } else { snapshot };
        let checkpoint = self.checkpoint(done, draws, snapshot);
        self.keeper(average).save(&path, &checkpoint)
    }

    fn checkpoint(&self, step: u64, draws: u64, snapshot: Snapshot) -> Checkpoint {
        let state = |keeper: &Option<Keeper>| keeper.as_ref().map(Keeper::state);
        let about = DpRun {
            input: self.setup.full.clone(),
            stats: self.stats.lock().unwrap_or_else(|e| e.into_inner()).clone(),
            min_distance: self.setup.min_distance,
            lcurve_bytes: self.lcurve.bytes_written(),
            validation: match &self.keepers {
                [None, None] => Value::Null,
                [live, average] => json!({"live": state(live), "average": state(average)}),
            },
        };
        DpState::new(step, draws, snapshot, about).into_checkpoint()
    }

    fn synced_first(&self) -> Result<Option<File>> {
        self.lcurve.to_sync().map(Some)
    }

    fn close(&mut self) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.flush())
    }

    fn end_lines(&self) -> Vec<String> {
        let training = &self.setup.input.training;
        let data = self.setup.data.validation.as_ref().unwrap_or(&self.setup.data.training);
        let system = Path::new(&data.systems[0].path);
        messages::end_lines(&training.save_ckpt, &training.disp_file, Some(system))
    }

    fn continue_command(&self) -> String {
        self.continues.clone()
    }
}
