//! The loop.

use super::collect::FarLines;
use super::options::RunOptions;
use super::setup::{Setup, setup};
use super::signals::{self, StopRequest};
use super::state::TrainState;
use super::step::{GradientSum, StepRate, StepReport, Stepper};
use super::team::Team;
use super::validate::{Validation, shown};
use crate::checkpoint::Store;
use crate::checkpoint::writer::Writer;
use crate::comm::{CommOptions, connect, rank_zero_is_missing};
use crate::engine::Engine;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::error::IoContext;
use crate::launch::Launch;
use crate::launch::threads::{Threads, available_cores};
use crate::loss::EnerLoss;
use crate::model::dp::options::{Embedding, Precision};
use crate::optim::Adam;
use crate::optim::options::{LearningRateOptions, ScaleByWorker};
use crate::report::lcurve::{Columns, LCurve, ResumeAt, Row};
use crate::report::log::MpiLog;
use crate::report::messages::{self, Summary};
use crate::report::profile::{Phase, Profiler};
use crate::report::progress::Progress;
use crate::report::tensorboard::EventWriter;
use crate::report::timing::Stopwatch;
use crate::sample::{Pool, Purpose, Queue, QueueOptions, Sampler};
use crate::{Result, err};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Batches that are prepared ahead of the step.
const QUEUE_DEPTH: usize = 16;
/// Launchers end all ranks as soon as one has ended badly. Ranks that cannot be joined cannot wait for each other
/// either: those with nothing to tell leave rank 0 so much time.
const TIME_TO_TELL: Duration = Duration::from_secs(1);
/// Spans of all ranks together in a timeline.
const TIMELINE_SPANS: usize = 1 << 20;

/// Trains a model: `dp train`.
pub fn main(options: &RunOptions) -> Result<()> {
    let launch = Launch::of_this_process()?;
    let logging = crate::report::log::init(&crate::report::log::LogOptions {
        level: options.log_level,
        path: options.log_path.clone(),
        mode: options.mpi_log,
        rank: launch.rank,
        size: launch.size,
    });
    let env = |name: &str| std::env::var(name).ok();
    // What keeps ranks apart keeps all of them apart: rank 0 tells, if there is a rank 0.
    let one_tells = |e: crate::Error| {
        if launch.rank == 0 || rank_zero_is_missing(&e) {
            return e;
        }
        std::thread::sleep(TIME_TO_TELL);
        e.told_elsewhere()
    };
    let mut comm_options = CommOptions::from_env(&env).map_err(one_tells)?;
    if let (Some(limit), None) = (stall_timeout(&options.input), env("PHALANX_COMM_LIMIT")) {
        comm_options = comm_options.with_limit(limit);
    }
    let comm = connect(&launch, &comm_options).map_err(one_tells)?;
    let mut team = Team::new(comm);
    let outcome = team.agree(logging).and_then(|()| train(&mut team, &launch, options));
    team.part(outcome)
}

/// `training.stall_timeout`, before the input is read properly: the ranks need it to connect.
fn stall_timeout(input: &Path) -> Option<Duration> {
    let value = crate::config::value::read(input).ok()?;
    let seconds = value.get("training")?.get("stall_timeout")?.as_f64()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn train(team: &mut Team, launch: &Launch, options: &RunOptions) -> Result<()> {
    team.barrier()?;
    crate::report::log::ranks_connected();
    let threads = Threads::new(&|name| std::env::var(name).ok(), available_cores(), launch.local_size);
    let threads = team.agree(threads)?;
    // Set-up runs on as many threads as the steps will. The pool exists already where a process trains twice.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads.compute).build_global();
    let hosts = team.gather(&launch.host)?;
    let far_lines = FarLines::new(&hosts, team.rank(), options.mpi_log == MpiLog::Collect);
    summary(team, launch, &hosts, threads);
    let setup = setup(team, launch, options)?;
    let fitting = setup.model.options.fitting.precision;
    match (setup.model.descriptor().precision, fitting) {
        (Precision::Float32, Precision::Float32) => {
            train_with::<f32>(team, threads, options, setup, &far_lines)
        }
        _ => train_with::<f64>(team, threads, options, setup, &far_lines),
    }?;
    far_lines.gather(team)
}

fn summary(team: &Team, launch: &Launch, hosts: &[String], threads: Threads) {
    let first = |k: &usize| !hosts[..*k].contains(&hosts[*k]);
    let nodes = (0..hosts.len()).filter(first).map(|k| hosts[k].clone()).collect();
    let cuda_visible_devices = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let summary = Summary {
        world_size: team.size(),
        rank: team.rank(),
        nodes,
        running_on: launch.host.clone(),
        device: "cpu".to_string(),
        cuda_visible_devices,
        visible_gpus: 0,
        intra_threads: threads.compute,
        inter_threads: threads.loaders,
        launcher: launch.launcher.to_string(),
        engine: team.engine().to_string(),
    };
    for line in summary.lines() {
        log::info!("{line}");
    }
}

/// Builds the engine and runs the loop.
fn train_with<T: Real>(
    team: &mut Team,
    threads: Threads,
    options: &RunOptions,
    setup: Setup,
    far_lines: &FarLines,
) -> Result<()> {
    let mode = match setup.model.descriptor().embedding {
        Embedding::Chebyshev => EmbeddingMode::Chebyshev { min_distance: setup.min_distance },
        Embedding::Direct => EmbeddingMode::Direct,
    };
    let terms = setup.resumed.as_ref().and_then(|state| state.engine["terms"].as_u64()).map(|k| k as usize);
    let engine = CpuEngine::<T>::new(setup.model.clone(), threads.compute, mode, terms);
    let engine = team.agree(engine)?;
    let mut run = Run::new(team, threads, options, setup, engine)?;
    let outcome = run.steps(team, far_lines);
    run.finish(team, outcome)
}

/// A run under way.
struct Run<E: Engine> {
    setup: Setup,
    stepper: Stepper<E>,
    queue: Queue<E::Prepared>,
    validation: Option<Validation<E>>,
    rates: LearningRateOptions,
    /// The learning rate is multiplied by this.
    rate_scale: f64,
    columns: Columns,
    /// Where each column's value stands among what a loss shows.
    order: Vec<usize>,
    profiler: Profiler,
    stop: StopRequest,
    /// Steps done when this process began.
    start: u64,
    /// Draws that all ranks take in a step, and had taken before this process began.
    draws_per_step: u64,
    first_draw: u64,
    clock: Instant,
    root: Option<RootFiles>,
    /// Time of this rank since the last display.
    training_time: Duration,
    testing_time: Duration,
}

/// What rank 0 alone writes.
struct RootFiles {
    lcurve: LCurve,
    events: Option<EventWriter>,
    writer: Writer,
    progress: Progress,
    watch: Stopwatch,
}

impl<E: Engine> Run<E> {
    fn new(
        team: &mut Team,
        threads: Threads,
        options: &RunOptions,
        setup: Setup,
        mut engine: E,
    ) -> Result<Self> {
        let training = &setup.input.training;
        let rates = team.agree(setup.input.learning_rate.for_steps(setup.num_steps))?;
        let draws = training.gradient_accumulation;
        let draws_per_step = (draws * team.size()) as u64;
        let rate_scale = rate_scale(&rates, draws_per_step, options.pytorch_conventions);
        if rate_scale != 1.0 {
            log::info!(
                "learning rate is scaled by {rate_scale} for {draws_per_step} batches a step: it starts at {:e}",
                rates.start_lr * rate_scale
            );
        }
        engine.adapt(&setup.params);
        let mut adam = Adam::new(setup.input.optimizer.clone(), setup.model.trainable(), setup.params.len());
        let (start, first_draw) = match &setup.resumed {
            Some(state) => {
                adam.first_moment.copy_from_slice(&state.first_moment);
                adam.second_moment.copy_from_slice(&state.second_moment);
                log::info!("continuing after step {}", state.step);
                (state.step, state.draws)
            }
            None => (0, 0),
        };
        let blocks =
            training.reproducible.then(|| setup.model.table.views().iter().map(|v| v.range()).collect());
        let sum = GradientSum::new(setup.params.len(), draws, blocks);
        let loss = EnerLoss::new(setup.input.loss.clone(), rates.start_lr);
        let queue = start_queue(team, threads, &setup, &engine, first_draw);
        let queue = team.agree(queue)?;
        let validation = setup.data.validation.clone().map(|data| {
            let cache = training.geometry_cache_bytes as usize / 8;
            Validation::new(data, training.seed, training.numb_btch, cache)
        });
        let columns = Columns::of_loss(&setup.input.loss, validation.is_some());
        let names: Vec<&str> = std::iter::once("rmse").chain(loss.names()).collect();
        let place = |name: &String| names.iter().position(|n| n == name).unwrap_or(0);
        let order = columns.names().iter().map(place).collect();
        let root = root_files(team, options, &setup, &columns, start)?;
        let profiling = options.profile
            || training.profiling
            || std::env::var("TORCH_DISTRIBUTED_DEBUG").is_ok_and(|v| v == "DETAIL");
        let profiler = if profiling { Profiler::on(team.rank()) } else { Profiler::off() };
        let stepper = Stepper::new(engine, loss, setup.params.clone(), adam, sum, training.gradient_max_norm);
        Ok(Run {
            stepper,
            queue,
            validation,
            rates,
            rate_scale,
            columns,
            order,
            profiler,
            stop: team.agree(StopRequest::watch())?,
            start,
            draws_per_step,
            first_draw,
            clock: Instant::now(),
            root,
            training_time: Duration::ZERO,
            testing_time: Duration::ZERO,
            setup,
        })
    }

    /// All steps, or those until someone asks to stop. Returns the signal that asked.
    fn steps(&mut self, team: &mut Team, far_lines: &FarLines) -> Result<Option<i32>> {
        let num_steps = self.setup.num_steps;
        if self.start >= num_steps {
            log::warn!(
                "{} steps are done already, the input asks for {num_steps}: nothing to do",
                self.start
            );
        } else {
            log::info!("Start to train {} steps.", num_steps - self.start);
        }
        for step in self.start..num_steps {
            let began = Instant::now();
            self.profiler.set_step(step + 1);
            let schedule = self.rates.at(step, num_steps);
            let rate = StepRate { schedule, scaled: schedule * self.rate_scale };
            let asked = self.stop.requested().is_some();
            let report = self.stepper.step(step, rate, &mut self.queue, team, &self.profiler, asked)?;
            self.training_time += began.elapsed();
            self.after_step(team, step + 1, rate, &report, far_lines)?;
            if report.stop {
                log::warn!("asked to stop: finished step {}, saving", step + 1);
                self.save_unless_saved(team, step + 1)?;
                return Ok(Some(self.stop.requested().unwrap_or(0)));
            }
        }
        Ok(None)
    }

    /// Displays, records and saves what is due after `done` steps.
    fn after_step(
        &mut self,
        team: &mut Team,
        done: u64,
        rate: StepRate,
        report: &StepReport,
        far_lines: &FarLines,
    ) -> Result<()> {
        let training = &self.setup.input.training;
        let (disp_freq, save_freq) = (training.disp_freq, training.save_freq);
        if done == 1 || (disp_freq > 0 && done.is_multiple_of(disp_freq)) {
            self.display(team, done, rate, report)?;
            far_lines.gather(team)?;
        }
        self.record(done, rate, report)?;
        if let Some(root) = &self.root {
            root.progress.step(done);
        }
        if done == self.setup.num_steps || (save_freq > 0 && done.is_multiple_of(save_freq)) {
            self.save(team, done)?;
        }
        Ok(())
    }

    /// One row of lcurve.out and its lines in the log: means over all ranks.
    fn display(&mut self, team: &mut Team, done: u64, rate: StepRate, report: &StepReport) -> Result<()> {
        let began = Instant::now();
        let mine: Vec<Vec<f64>> = report.values.iter().map(shown).collect();
        // NaN, for a label that is missing, has no place in JSON.
        let mine: Vec<Vec<Option<f64>>> =
            mine.iter().map(|v| v.iter().map(|x| Some(*x).filter(|x| !x.is_nan())).collect()).collect();
        let everyones = team.gather(&mine)?;
        // Draw k of rank r was draw k * size + r: always the same order of addition.
        let draws = (0..mine.len()).flat_map(|k| everyones.iter().map(move |rank| &rank[k]));
        let train = mean(draws.map(|v| v.iter().map(|x| x.unwrap_or(f64::NAN)).collect()));
        let valid = match &mut self.validation {
            Some(validation) => {
                let span = self.profiler.span(Phase::Validation);
                let index = done.checked_div(self.setup.input.training.disp_freq).unwrap_or(0);
                let errors = validation.errors(&mut self.stepper, team, index, rate.schedule)?;
                drop(span);
                errors
            }
            None => Vec::new(),
        };
        self.testing_time += began.elapsed();
        let pick = |values: &[f64]| -> Vec<f64> {
            if values.is_empty() { Vec::new() } else { self.order.iter().map(|&k| values[k]).collect() }
        };
        let row = Row { step: done, train: pick(&train), valid: pick(&valid), lr: rate.scaled };
        self.tell(&row)?;
        if team.size() > 1 {
            log::info!("{}", messages::rank_time_line(done, self.training_time, self.testing_time));
        }
        (self.training_time, self.testing_time) = (Duration::ZERO, Duration::ZERO);
        Ok(())
    }

    fn tell(&mut self, row: &Row) -> Result<()> {
        let Some(root) = &mut self.root else { return Ok(()) };
        let training = &self.setup.input.training;
        let names = self.columns.names();
        if training.disp_training {
            root.lcurve.append(row)?;
            log::info!("{}", messages::train_line(row.step, names, &row.train, row.lr));
            if !row.valid.is_empty() {
                log::info!("{}", messages::valid_line(row.step, names, &row.valid));
            }
        }
        let interval = root.watch.record(row.step, self.clock.elapsed());
        if training.time_training {
            log::info!("{}", messages::time_line(&interval, &jiff::Zoned::now()));
        }
        let shown = if row.valid.is_empty() { &row.train } else { &row.valid };
        if let Some(k) = names.iter().position(|n| n.ends_with("_f")) {
            root.progress.note(&format!("{} {:.4}", names[k], shown[k]));
        }
        Ok(())
    }

    /// TensorBoard events of this rank's own batch.
    fn record(&mut self, done: u64, rate: StepRate, report: &StepReport) -> Result<()> {
        let Some(events) = self.root.as_mut().and_then(|root| root.events.as_mut()) else { return Ok(()) };
        let freq = self.setup.input.training.tensorboard_freq.max(1);
        if done != 1 && !done.is_multiple_of(freq) {
            return Ok(());
        }
        let value = &report.values[0];
        let speed = (done - self.start) as f64 / self.clock.elapsed().as_secs_f64().max(1e-9);
        let fixed = [
            ("Default/lr".to_string(), rate.scaled),
            ("Default/loss".to_string(), value.loss),
            ("Default/grad/total_norm".to_string(), report.gradient_norm),
            ("Default/throughput/batches_per_second".to_string(), speed * self.draws_per_step as f64),
        ];
        let terms = value.terms.iter().map(|t| (format!("Default/{}", t.name), t.value));
        let scalars: Vec<(String, f64)> = fixed.into_iter().chain(terms).collect();
        events.scalars(done, scalars.iter().map(|(name, x)| (name.as_str(), *x)))
    }

    /// Saves a checkpoint, after every rank has shown that it holds the same parameters.
    fn save(&mut self, team: &mut Team, done: u64) -> Result<()> {
        let span = self.profiler.span(Phase::Save);
        let bytes: Vec<u8> = self.stepper.params.iter().flat_map(|x| x.to_le_bytes()).collect();
        let hashes = team.gather(&xxhash_rust::xxh3::xxh3_64(&bytes))?;
        drop(bytes);
        team.from_root(|| check_same(&hashes, done))?;
        let draws = self.first_draw + (done - self.start) * self.draws_per_step;
        let state = self.root.as_ref().map(|root| TrainState {
            step: done,
            draws,
            input: self.setup.full.clone(),
            stats: self.setup.model.stats.clone(),
            min_distance: self.setup.min_distance,
            engine: self.stepper.engine.state(),
            lcurve_bytes: root.lcurve.bytes_written(),
            params: self.stepper.params.clone(),
            first_moment: self.stepper.adam.first_moment.clone(),
            second_moment: self.stepper.adam.second_moment.clone(),
        });
        if let (Some(root), Some(state)) = (&mut self.root, state) {
            root.writer.save(done, state.to_checkpoint())?;
        }
        drop(span);
        Ok(())
    }

    fn save_unless_saved(&mut self, team: &mut Team, done: u64) -> Result<()> {
        let save_freq = self.setup.input.training.save_freq;
        let saved = done == self.setup.num_steps || (save_freq > 0 && done.is_multiple_of(save_freq));
        if saved { Ok(()) } else { self.save(team, done) }
    }

    /// Closes everything and says where things are.
    fn finish(mut self, team: &mut Team, outcome: Result<Option<i32>>) -> Result<()> {
        let profiles = self.profiler.is_on() && outcome.is_ok();
        if profiles {
            self.tell_profile(team)?;
        }
        let training = &self.setup.input.training;
        let Some(mut root) = self.root.take() else { return outcome.map(|_| ()) };
        root.progress.finish();
        // A save under way is completed whatever happened.
        let saved = root.writer.finish();
        if let Some(events) = &mut root.events {
            events.flush()?;
        }
        let stopped = outcome?;
        saved?;
        if let Some(line) = messages::average_line(&root.watch) {
            log::info!("{line}");
        }
        if let Some(signal) = stopped {
            let name = if signal == 0 { "another rank" } else { signals::name(signal) };
            log::info!(
                "Stopped by {name}. To continue: dp train --restart {} ...",
                training.save_ckpt.display()
            );
            return Ok(());
        }
        let data = self.setup.data.validation.as_ref().unwrap_or(&self.setup.data.training);
        let system = Path::new(&data.systems[0].path);
        for line in messages::end_lines(&training.save_ckpt, &training.disp_file, Some(system)) {
            log::info!("{line}");
        }
        Ok(())
    }

    fn tell_profile(&mut self, team: &mut Team) -> Result<()> {
        use crate::report::profile::{RankProfile, table, write_timeline};
        let mut mine = self.profiler.profile();
        mine.keep_latest(TIMELINE_SPANS / team.size()); // rank 0 holds all of them at once
        let mine = mine.to_bytes();
        let ranks: Vec<RankProfile> = team
            .gather_bytes(&mine)?
            .iter()
            .map(|bytes| RankProfile::from_bytes(bytes))
            .collect::<Result<_>>()?;
        if team.is_root() {
            for line in table(&ranks) {
                log::info!("{line}");
            }
            let path = &self.setup.input.training.profiling_file;
            write_timeline(path, &ranks)?;
            log::info!("timeline: {} (open it in chrome://tracing or Perfetto)", path.display());
        }
        Ok(())
    }
}

/// Refuses to go on where ranks hold other parameters than most do. A tie goes to rank 0.
fn check_same(hashes: &[u64], done: u64) -> Result<()> {
    let votes = |hash: &u64| hashes.iter().filter(|h| *h == hash).count();
    let most = hashes.iter().map(votes).max().unwrap_or(0);
    let Some(right) = hashes.iter().find(|hash| votes(hash) == most) else { return Ok(()) };
    let strays: Vec<String> =
        (0..hashes.len()).filter(|&rank| hashes[rank] != *right).map(|rank| rank.to_string()).collect();
    if strays.is_empty() {
        return Ok(());
    }
    let (s, verb) = if strays.len() == 1 { ("", "holds") } else { ("s", "hold") };
    Err(err!(
        "rank{s} {} {verb} other parameters than the rest after step {done}: nothing was saved",
        strays.join(", ")
    )
    .help("memory or a processor of that host may be faulty; restart from the last checkpoint, without that host"))
}

/// The element-wise mean.
fn mean(rows: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
    let mut sum: Vec<f64> = Vec::new();
    let mut n = 0.0;
    for row in rows {
        sum.resize(row.len(), 0.0);
        sum.iter_mut().zip(row).for_each(|(a, b)| *a += b);
        n += 1.0;
    }
    sum.iter().map(|x| x / n).collect()
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

/// The pipeline in front of the model: sampler, loader threads, prepared batches.
fn start_queue<E: Engine>(
    team: &Team,
    threads: Threads,
    setup: &Setup,
    engine: &E,
    first_draw: u64,
) -> Result<Queue<E::Prepared>> {
    let pool = Arc::new(Pool::from_dataset(&setup.data.training));
    let sampler = Sampler::at(pool, setup.input.training.seed, Purpose::Training, first_draw);
    let options = QueueOptions {
        threads: threads.loaders,
        depth: QUEUE_DEPTH,
        cache_bytes: setup.input.training.geometry_cache_bytes as usize,
        rank: team.rank(),
        size: team.size(),
    };
    let data = setup.data.training.clone();
    let prepare = engine.preparer();
    Queue::start(
        sampler,
        options,
        move |id| data.systems[id.system].read_frame(id.frame),
        move |frame| prepare(frame),
    )
}

/// Opens what rank 0 writes; `out.json` is written now, when everything before the first step has succeeded.
fn root_files(
    team: &mut Team,
    options: &RunOptions,
    setup: &Setup,
    columns: &Columns,
    start: u64,
) -> Result<Option<RootFiles>> {
    let training = &setup.input.training;
    let open = || -> Result<RootFiles> {
        let text =
            serde_json::to_string_pretty(&setup.full).map_err(|e| err!("cannot write the input: {e}"))?;
        std::fs::write(&options.output, text).io("write", &options.output)?;
        let lcurve = match &setup.resumed {
            Some(state) => {
                LCurve::resume(&training.disp_file, columns.clone(), ResumeAt::Byte(state.lcurve_bytes))?
            }
            None => LCurve::create(&training.disp_file, columns.clone())?,
        };
        let events = match training.tensorboard {
            true => Some(EventWriter::create(&training.tensorboard_log_dir)?),
            false => None,
        };
        Ok(RootFiles {
            lcurve,
            events,
            writer: Writer::new(Store::new(&training.save_ckpt, training.max_ckpt_keep)?)?,
            progress: Progress::new(start, setup.num_steps, training.disp_training),
            watch: Stopwatch::new(start, setup.num_steps, training.disp_freq),
        })
    };
    let local = if team.is_root() { open().map(Some) } else { Ok(None) };
    team.agree(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_differ_from_the_rest_are_named() {
        assert!(check_same(&[7, 7, 7], 10).is_ok());
        let message = |hashes: &[u64]| check_same(hashes, 10).unwrap_err().message().to_string();
        assert!(message(&[7, 8, 7]).starts_with("rank 1 holds other parameters than the rest after step 10"));
        assert!(message(&[8, 7, 7]).starts_with("rank 0 holds"), "rank 0 can be the one that is wrong");
        assert!(message(&[7, 8, 7, 9, 7]).starts_with("ranks 1, 3 hold"));
        assert!(message(&[7, 8]).starts_with("rank 1 holds"), "a tie goes to rank 0");
    }
}
