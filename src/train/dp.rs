//! Trains a Deep Potential: `dp train`.
//!
//! Set-up, then a learner for the device at hand, then the loop of [`run`](super::run).

use super::cpu::CpuLearner;
use super::cuda::CudaLearner;
use super::input::GpuProducts;
use super::learner::{Learner, Snapshot, StepRate, StepReport};
use super::options::RunOptions;
use super::run::{Journal, Plan, Run, Validates};
use super::session::{self, Session, SessionOptions};
use super::setup::{Setup, setup};
use super::state::TrainState;
use super::team::Team;
use crate::checkpoint::Checkpoint;
use crate::engine::choice::DeviceChoice;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::cuda::Numbers;
use crate::error::IoContext;
use crate::loss::EnerLoss;
use crate::model::dp::options::{Embedding, Precision};
use crate::optim::options::{LearningRateOptions, ScaleByWorker};
use crate::report::lcurve::{Columns, LCurve, ResumeAt, Row};
use crate::report::messages;
use crate::report::tensorboard::EventWriter;
use crate::{Result, err};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Trains a model: `dp train`.
pub fn main(options: &RunOptions) -> Result<()> {
    let session = SessionOptions {
        log_level: options.log_level,
        log_path: options.log_path.clone(),
        mpi_log: options.mpi_log,
        stall_timeout: stall_timeout(&options.input),
        device: options.device,
    };
    session::run(&session, |team, session| train(team, session, options))
}

/// `training.stall_timeout`, before the input is read properly: the ranks need it to connect.
fn stall_timeout(input: &Path) -> Option<Duration> {
    let value = crate::config::value::read(input).ok()?;
    let seconds = value.get("training")?.get("stall_timeout")?.as_f64()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn train(team: &mut Team, session: &Session, options: &RunOptions) -> Result<()> {
    let setup = Arc::new(setup(team, &session.launch, options)?);
    let rates = team.agree(setup.input.learning_rate.for_steps(setup.num_steps))?;
    let mut learner = learner(team, session, options, &setup, &rates)?;
    let plan = plan(team, options, &setup, rates);
    let journal = team.is_root().then(|| DpJournal::open(options, setup.clone())).transpose();
    let mut journal = team.agree(journal)?;
    let journal = journal.as_mut().map(|journal| journal as &mut dyn Journal);
    Run::new(team, plan, &mut *learner, journal, &session.far_lines)?.to_the_end(team)
}

/// A learner on the GPU where there is one that can do it, else on the CPU.
fn learner(
    team: &mut Team,
    session: &Session,
    options: &RunOptions,
    setup: &Arc<Setup>,
    rates: &LearningRateOptions,
) -> Result<Box<dyn Learner>> {
    let precisions = (setup.model.descriptor().precision, setup.model.options.fitting.precision);
    let single = precisions == (Precision::Float32, Precision::Float32);
    if let Some((gpu, shared)) = &session.gpu {
        let numbers = match (single, setup.input.training.gpu_products) {
            (false, _) => Numbers::F64,
            (true, GpuProducts::Full) => Numbers::F32,
            (true, GpuProducts::Tf32) => Numbers::Tf32,
            (true, GpuProducts::Bf16) => Numbers::Bf16,
        };
        let made = CudaLearner::new(team, session, setup, gpu, *shared, numbers, rates.start_lr);
        match (made, options.device) {
            (Ok(learner), _) => return Ok(Box::new(learner)),
            // Every rank has found the same, because all have the same model.
            (Err(e), DeviceChoice::Auto) => log::warn!("training on the CPU: {e}"),
            (Err(e), _) => return Err(e),
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
    let mode = match setup.model.descriptor().embedding {
        Embedding::Chebyshev => EmbeddingMode::Chebyshev { min_distance: setup.min_distance },
        Embedding::Direct => EmbeddingMode::Direct,
    };
    let engine = CpuEngine::<T>::new(setup.model.clone(), session.threads.compute, mode);
    let mut engine = team.agree(engine)?;
    if let Some(state) = &setup.resumed {
        engine.resume(&state.engine);
    }
    let loss = EnerLoss::new(setup.input.loss.clone(), rates.start_lr);
    Ok(Box::new(CpuLearner::new(team, session.threads, setup, engine, loss)?))
}

fn plan(team: &Team, options: &RunOptions, setup: &Setup, rates: LearningRateOptions) -> Plan {
    let training = &setup.input.training;
    let draws_per_step = (training.gradient_accumulation * team.size()) as u64;
    let scale = rate_scale(&rates, draws_per_step, options.pytorch_conventions);
    if scale != 1.0 {
        log::info!(
            "learning rate is scaled by {scale} for {draws_per_step} batches a step: it starts at {:e}",
            rates.start_lr * scale
        );
    }
    let (start, first_draw) = setup.resumed.as_ref().map_or((0, 0), |state| (state.step, state.draws));
    if setup.resumed.is_some() {
        log::info!("continuing after step {start}");
    }
    let num_steps = setup.num_steps;
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
        validates: Validates::AtDisplay,
        save_ckpt: training.save_ckpt.clone(),
        max_ckpt_keep: training.max_ckpt_keep,
        tells_time: training.time_training,
        shows_progress: training.disp_training,
        profiling: options.profile || training.profiling,
        profiling_file: training.profiling_file.clone(),
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
struct DpJournal {
    setup: Arc<Setup>,
    lcurve: LCurve,
    columns: Columns,
    /// Where each column's value stands among what a loss shows.
    order: Vec<usize>,
    events: Option<EventWriter>,
}

impl DpJournal {
    /// Everything before the first step has succeeded: `out.json` is written now.
    fn open(options: &RunOptions, setup: Arc<Setup>) -> Result<Self> {
        let training = &setup.input.training;
        let text =
            serde_json::to_string_pretty(&setup.full).map_err(|e| err!("cannot write the input: {e}"))?;
        std::fs::write(&options.output, text).io("write", &options.output)?;
        let columns = Columns::of_loss(&setup.input.loss, setup.data.validation.is_some());
        let lcurve = match &setup.resumed {
            Some(state) => {
                LCurve::resume(&training.disp_file, columns.clone(), ResumeAt::Byte(state.lcurve_bytes))?
            }
            None => LCurve::create(&training.disp_file, columns.clone())?,
        };
        let loss = EnerLoss::new(setup.input.loss.clone(), setup.input.learning_rate.start_lr);
        let names: Vec<&str> = std::iter::once("rmse").chain(loss.names()).collect();
        let place = |name: &String| names.iter().position(|n| n == name).unwrap_or(0);
        let order = columns.names().iter().map(place).collect();
        let events = match training.tensorboard {
            true => Some(EventWriter::create(&training.tensorboard_log_dir)?),
            false => None,
        };
        Ok(DpJournal { lcurve, columns, order, events, setup })
    }
}

impl Journal for DpJournal {
    fn row(&mut self, row: &Row) -> Result<Option<String>> {
        let pick = |values: &[f64]| -> Vec<f64> {
            if values.is_empty() { Vec::new() } else { self.order.iter().map(|&k| values[k]).collect() }
        };
        let row = Row { step: row.step, train: pick(&row.train), valid: pick(&row.valid), lr: row.lr };
        let names = self.columns.names();
        if self.setup.input.training.disp_training {
            self.lcurve.append(&row)?;
            log::info!("{}", messages::train_line(row.step, names, &row.train, row.lr));
            if !row.valid.is_empty() {
                log::info!("{}", messages::valid_line(row.step, names, &row.valid));
            }
        }
        let shown = if row.valid.is_empty() { &row.train } else { &row.valid };
        let force = names.iter().position(|name| name.ends_with("_f"));
        Ok(force.map(|k| format!("{} {:.4}", names[k], shown[k])))
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

    fn checkpoint(&self, step: u64, draws: u64, snapshot: Snapshot) -> Checkpoint {
        TrainState {
            step,
            draws,
            input: self.setup.full.clone(),
            stats: self.setup.model.stats.clone(),
            min_distance: self.setup.min_distance,
            engine: snapshot.engine,
            lcurve_bytes: self.lcurve.bytes_written(),
            params: snapshot.params,
            first_moment: snapshot.first_moment,
            second_moment: snapshot.second_moment,
        }
        .into_checkpoint()
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
        format!("dp train --restart {} ...", self.setup.input.training.save_ckpt.display())
    }
}
