//! The loop: the same for every model family and device.

use super::average;
use super::caller::Ended;
use super::collect::FarLines;
use super::full_validation::{ErrorTable, ValidatingOptions, Verdict};
use super::learner::{Learner, Snapshot, StepRate, StepReport, Turn};
use super::signals::{self, StopHandle, StopRequest};
use super::state::DRAWS_PER_STEP;
use super::team::Team;
use super::validate::shown;
use crate::checkpoint::owner::Owner;
use crate::checkpoint::writer::Writer;
use crate::checkpoint::{Checkpoint, Companion, Store};
use crate::gpu::load::Meter;
use crate::loss::LossValue;
use crate::report::dashboard::{Dashboard, DashboardOptions, RankState, Steps};
use crate::report::lcurve::Row;
use crate::report::messages;
use crate::report::profile::{Phase, Profiler};
use crate::report::progress::{Note, Progress};
use crate::report::timing::Stopwatch;
use crate::{Result, err};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Spans of all ranks together in a timeline.
const TIMELINE_SPANS: usize = 1 << 20;

/// What the loop must know of a run, whatever it trains.
pub struct Plan {
    /// Steps of the whole run, and those done when this process began.
    pub num_steps: u64,
    pub start: u64,
    /// Draws that all ranks take in a step, and had taken before this process began.
    pub draws_per_step: u64,
    pub first_draw: u64,
    /// The rates of a step.
    pub rate: Box<dyn Fn(u64) -> StepRate>,
    /// Steps between displays and between checkpoints; 0: only the first display, only the last checkpoint.
    pub disp_freq: u64,
    pub save_freq: u64,
    /// Displays have the means of the steps since the last one, not the values of theirs.
    pub disp_avg: bool,
    /// Steps between records of the journal; 0: only the first step, `None`: never. All ranks know, since they make the norm of the
    /// gradient together.
    pub record_freq: Option<u64>,
    pub validates: Validates,
    /// When the whole validation set is looked at.
    pub full_validation: Option<ValidatingOptions>,
    /// Prefix of the checkpoints of the parameters' running mean, and how many are kept.
    pub averages: Option<(PathBuf, usize)>,
    /// Prefix of the checkpoints, and how many are kept.
    pub save_ckpt: PathBuf,
    pub max_ckpt_keep: usize,
    /// Endings of further names of the newest one.
    pub ckpt_aliases: &'static [&'static str],
    /// Whether a file `checkpoint` where the program was started names the newest one.
    pub points_from_here: bool,
    /// On rank 0: the folders of the run are its own.
    pub owner: Option<Owner>,
    /// Tell how long each display interval took.
    pub tells_time: bool,
    pub shows_progress: bool,
    /// Measure where the time goes, and where the timeline is written.
    pub profiling: bool,
    pub profiling_file: PathBuf,
    /// Serve a page under this title. All ranks know, since they tell each other where their time went.
    pub dashboard: Option<DashboardOptions>,
    /// What tells the page how busy the GPU of this rank is.
    pub meter: Option<Meter>,
    pub title: String,
    /// How the program that started the run ends it; `None`: by signals.
    pub stop: Option<StopHandle>,
    /// Called on all ranks with the last parameters of a run that is complete, before they are saved.
    pub completes: Option<Box<Complete>>,
}

/// What is done with the parameters of a complete run.
pub type Complete = dyn Fn(&mut Team, &[f64]) -> Result<()>;

/// When the validation set is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Validates {
    AtDisplay,
    /// After a checkpoint, at most once in so much time, and at the end.
    AfterSave(Duration),
}

/// What rank 0 writes of a run: the part that differs between model families.
pub trait Journal {
    /// A display step: means over all ranks. Returns a note for the progress bar.
    fn row(&mut self, row: &Row) -> Result<Option<Note>>;

    /// A step of this rank's own, where [`Plan::record_freq`] wants one; `speed` batches a second so far.
    fn record(&mut self, done: u64, rate: StepRate, report: &StepReport, speed: f64) -> Result<()>;

    /// Errors on the validation set after a checkpoint. True: training has gone on long enough.
    fn evaluated(&mut self, _done: u64, _values: &[f64]) -> Result<bool> {
        Ok(false)
    }

    /// Errors over the whole validation set, of the parameters or of their running mean.
    fn validated(&mut self, _done: u64, _average: bool, _errors: &ErrorTable) -> Result<Verdict> {
        unreachable!("no plan of this family wants it")
    }

    /// Saves one of the best checkpoints.
    fn save_best(&mut self, _done: u64, _draws: u64, _average: bool, _snapshot: Snapshot) -> Result<()> {
        unreachable!("no plan of this family wants it")
    }

    /// The content of a checkpoint after `step` steps and `draws` draws of all ranks.
    fn checkpoint(&self, step: u64, draws: u64, snapshot: Snapshot) -> Checkpoint;

    /// Writes files of another program beside each checkpoint.
    fn companion(&self) -> Option<Arc<dyn Companion>> {
        None
    }

    /// A file that checkpoints count on: it goes to the disk before them.
    fn synced_first(&self) -> Result<Option<File>> {
        Ok(None)
    }

    /// Closes what is open.
    fn close(&mut self) -> Result<()>;

    /// What to say at the end: where things are and what to do next.
    fn end_lines(&self) -> Vec<String>;

    /// The command that continues a run that was stopped.
    fn continue_command(&self) -> String;
}

/// A run under way.
pub struct Run<'a> {
    plan: Plan,
    learner: &'a mut dyn Learner,
    far_lines: &'a FarLines,
    profiler: Profiler,
    stop: StopRequest,
    clock: Instant,
    root: Option<Root<'a>>,
    /// Time of this rank since the last display.
    training_time: Duration,
    testing_time: Duration,
    /// What was seen since the last display, where displays are means.
    interval: Interval,
    last_evaluation: Option<Instant>,
    /// Steps done.
    reached: u64,
}

/// What rank 0 alone has.
struct Root<'a> {
    journal: &'a mut dyn Journal,
    writer: Writer,
    /// Writes the running mean of the parameters.
    averages: Option<Writer>,
    progress: Progress,
    watch: Stopwatch,
    dashboard: Option<Dashboard>,
}

/// Values of the loss, added up since the last display.
#[derive(Default)]
struct Interval {
    /// Of each draw of this rank.
    sums: Vec<Vec<f64>>,
    steps: usize,
}

impl Interval {
    fn add(&mut self, values: &[LossValue]) {
        self.steps += 1;
        self.sums.resize(values.len(), Vec::new());
        for (sum, value) in self.sums.iter_mut().zip(values) {
            let new = shown(value);
            sum.resize(new.len(), 0.0);
            sum.iter_mut().zip(new).for_each(|(sum, x)| *sum += x);
        }
    }

    /// The means, and begins anew.
    fn take(&mut self) -> Vec<Vec<f64>> {
        let Interval { mut sums, steps } = std::mem::take(self);
        sums.iter_mut().flatten().for_each(|sum| *sum /= steps as f64);
        sums
    }
}

/// Where the loop ended, and the signal that asked for it.
struct End {
    done: u64,
    stopped: Option<i32>,
}

impl End {
    fn told(&self, checkpoint: Option<PathBuf>) -> Ended {
        Ended { step: self.done, stopped: self.stopped.is_some(), checkpoint, signal: self.stopped }
    }
}

impl<'a> Run<'a> {
    /// `journal` is rank 0's.
    pub fn new(
        team: &mut Team,
        plan: Plan,
        learner: &'a mut dyn Learner,
        journal: Option<&'a mut dyn Journal>,
        far_lines: &'a FarLines,
    ) -> Result<Self> {
        let root = journal.map(|journal| -> Result<Root> {
            let store = Store::new(&plan.save_ckpt, plan.max_ckpt_keep)?;
            Ok(Root {
                writer: Writer::new(
                    if plan.points_from_here { store.pointing_from_here() } else { store }
                        .with_companion(journal.companion())
                        .with_aliases(plan.ckpt_aliases),
                )?,
                journal,
                averages: match &plan.averages {
                    Some((prefix, keep)) => Some(Writer::new(Store::new(prefix, *keep)?.without_pointer())?),
                    None => None,
                },
                progress: Progress::new(plan.start, plan.num_steps, plan.shows_progress),
                watch: Stopwatch::new(plan.start, plan.num_steps, plan.disp_freq),
                dashboard: plan.dashboard.map(|options| open_dashboard(&options, &plan.title)).transpose()?,
            })
        });
        let mut plan = plan;
        plan.profiling |= std::env::var("TORCH_DISTRIBUTED_DEBUG").is_ok_and(|v| v == "DETAIL");
        let measures = plan.profiling || plan.dashboard.is_some();
        let stop = match &plan.stop {
            Some(handle) => Ok(StopRequest::of(handle)),
            None => StopRequest::watch(),
        };
        Ok(Run {
            learner,
            far_lines,
            profiler: if measures { Profiler::on(team.rank()) } else { Profiler::off() },
            stop: team.agree(stop)?,
            clock: Instant::now(),
            root: team.agree(root.transpose())?,
            training_time: Duration::ZERO,
            testing_time: Duration::ZERO,
            last_evaluation: None,
            interval: Interval::default(),
            reached: plan.start,
            plan,
        })
    }

    /// Runs to the end, closes everything and says where things are.
    pub fn to_the_end(mut self, team: &mut Team) -> Result<Ended> {
        let outcome = self.steps(team);
        self.finish(team, outcome)
    }

    /// All steps, or those until someone asks to stop.
    fn steps(&mut self, team: &mut Team) -> Result<End> {
        let Plan { start, num_steps, .. } = self.plan;
        if start >= num_steps {
            log::warn!("{start} steps are done already, the input asks for {num_steps}: nothing to do");
        } else {
            log::info!("Start to train {} steps.", num_steps - start);
        }
        for step in start..num_steps {
            let began = Instant::now();
            self.profiler.set_step(step + 1);
            let rate = (self.plan.rate)(step);
            let done = step + 1;
            let wants_norm = self.records(done) || self.displays(done);
            let records = self.records(done) && self.root.is_some();
            let wants_values = self.displays(done) || self.plan.disp_avg || records;
            let stop = self.stop.requested().is_some();
            let turn = Turn { step, rate, wants_values, wants_norm, stop };
            let report = self.learner.step(&turn, team, &self.profiler)?;
            self.training_time += began.elapsed();
            self.reached = done;
            if self.plan.disp_avg {
                self.interval.add(&report.values);
            }
            let enough = self.after_step(team, done, rate, &report)?;
            // A caller alone need not wait for the wish to travel with the next step.
            if report.stop || (team.size() == 1 && self.stop.is_of_caller()) {
                log::warn!("asked to stop: finished step {done}, saving");
                if !self.saves(done) {
                    self.save(team, done)?;
                }
                team.hurry();
                return Ok(End { done, stopped: Some(self.stop.requested().unwrap_or(0)) });
            }
            if enough {
                if done < num_steps && (!self.saves(done) || self.plan.completes.is_some()) {
                    self.save_last(team, done)?;
                }
                log::info!("the errors have not improved for long enough: finished after step {done}");
                return Ok(End { done, stopped: None });
            }
        }
        Ok(End { done: num_steps.max(start), stopped: None })
    }

    fn displays(&self, done: u64) -> bool {
        done == 1 || (self.plan.disp_freq > 0 && done.is_multiple_of(self.plan.disp_freq))
    }

    fn records(&self, done: u64) -> bool {
        self.plan.record_freq.is_some_and(|freq| done == 1 || (freq > 0 && done.is_multiple_of(freq)))
    }

    fn saves(&self, done: u64) -> bool {
        let save_freq = self.plan.save_freq;
        done == self.plan.num_steps || (save_freq > 0 && done.is_multiple_of(save_freq))
    }

    /// Displays, records and saves what is due after `done` steps. True: enough.
    fn after_step(
        &mut self,
        team: &mut Team,
        done: u64,
        rate: StepRate,
        report: &StepReport,
    ) -> Result<bool> {
        if self.displays(done) {
            self.display(team, done, rate, report)?;
            self.far_lines.gather(team)?;
        }
        let records = self.records(done);
        if let Some(root) = &mut self.root {
            if records {
                let seconds = self.clock.elapsed().as_secs_f64().max(1e-9);
                let speed = ((done - self.plan.start) * self.plan.draws_per_step) as f64 / seconds;
                root.journal.record(done, rate, report, speed)?;
            }
            root.progress.step(done);
        }
        let enough = self.validate_all(team, done)?;
        if self.saves(done) {
            if done == self.plan.num_steps { self.save_last(team, done) } else { self.save(team, done) }?;
            return Ok(self.evaluate(team, done, rate)? || enough);
        }
        Ok(enough)
    }

    /// Looks at the whole validation set where that is due, and saves what is among the best. True: enough.
    fn validate_all(&mut self, team: &mut Team, done: u64) -> Result<bool> {
        let Some(options) = &self.plan.full_validation else { return Ok(false) };
        if !options.is_due(done, self.plan.num_steps) {
            return Ok(false);
        }
        let which: Vec<bool> = [(options.live, false), (options.average, true)]
            .into_iter()
            .filter_map(|(wanted, average)| wanted.then_some(average))
            .collect();
        // Whether to go on is up to the parameters themselves where they are looked at, else to their mean.
        let counts = !options.live;
        let draws = self.plan.first_draw + (done - self.plan.start) * self.plan.draws_per_step;
        let began = Instant::now();
        let mut enough = false;
        for average in which {
            let span = self.profiler.span(Phase::Validation);
            let errors = self.learner.validate_all(team, average)?;
            drop(span);
            let root = &mut self.root;
            let verdict = team.from_root(|| match root {
                Some(root) => root.journal.validated(done, average, &errors),
                None => unreachable!("rank 0 has a journal"),
            })?;
            enough |= verdict.enough && average == counts;
            if verdict.saves {
                let snapshot = self.learner.snapshot(team);
                let snapshot = team.agree(snapshot)?;
                let root = &mut self.root;
                team.from_root(|| match root {
                    Some(root) => root.journal.save_best(done, draws, average, snapshot),
                    None => unreachable!("rank 0 has a journal"),
                })?;
            }
        }
        self.testing_time += began.elapsed();
        Ok(enough)
    }

    /// One row of the learning curve and its lines in the log: means over all ranks.
    fn display(&mut self, team: &mut Team, done: u64, rate: StepRate, report: &StepReport) -> Result<()> {
        let began = Instant::now();
        let mine: Vec<Vec<f64>> = match self.plan.disp_avg {
            true => self.interval.take(),
            false => report.values.iter().map(shown).collect(),
        };
        // NaN, for a label that is missing, has no place in JSON.
        let mine: Vec<Vec<Option<f64>>> =
            mine.iter().map(|v| v.iter().map(|x| Some(*x).filter(|x| !x.is_nan())).collect()).collect();
        let everyones = team.gather_from_groups(&mine)?;
        // Draw k of group g was draw k * n_groups + g: always the same order of addition.
        let draws = (0..mine.len()).flat_map(|k| everyones.iter().map(move |group| &group[k]));
        let train = mean(draws.map(|v| v.iter().map(|x| x.unwrap_or(f64::NAN)).collect()));
        let index = done.checked_div(self.plan.disp_freq).unwrap_or(0);
        let valid = match self.plan.validates {
            Validates::AtDisplay => {
                let span = self.profiler.span(Phase::Validation);
                let errors = self.learner.validate(team, index, rate.schedule)?;
                drop(span);
                errors
            }
            Validates::AfterSave(_) => Vec::new(),
        };
        let train = self.learner.training_errors(team, index, rate.schedule, train)?;
        self.testing_time += began.elapsed();
        if let Some(root) = &mut self.root {
            let note = root.journal.row(&Row { step: done, train, valid, lr: rate.scaled })?;
            let interval = root.watch.record(done, self.clock.elapsed());
            if self.plan.tells_time {
                log::info!("{}", messages::time_line(&interval, &jiff::Zoned::now()));
            }
            if let Some(note) = note {
                root.progress.note(&note);
            }
            if let Some(dashboard) = &root.dashboard {
                let (rate, eta) = (interval.rate(), interval.eta.map(|eta| eta.as_secs_f64()));
                let batches = rate * self.plan.draws_per_step as f64;
                dashboard.steps(Steps { done, total: self.plan.num_steps, rate, batches, eta });
            }
        }
        if self.plan.dashboard.is_some() {
            let gpu = self.plan.meter.as_ref().and_then(|meter| meter.read().ok());
            let ranks = team.gather(&RankState { times: self.profiler.times(), gpu })?;
            if let Some(dashboard) = self.root.as_ref().and_then(|root| root.dashboard.as_ref()) {
                dashboard.ranks(ranks);
            }
        }
        if team.size() > 1 {
            log::info!("{}", messages::rank_time_line(done, self.training_time, self.testing_time));
        }
        (self.training_time, self.testing_time) = (Duration::ZERO, Duration::ZERO);
        Ok(())
    }

    /// Looks at the validation set after a checkpoint, where that is when it is looked at. True: enough.
    fn evaluate(&mut self, team: &mut Team, done: u64, rate: StepRate) -> Result<bool> {
        let Validates::AfterSave(pause) = self.plan.validates else { return Ok(false) };
        let due = self.last_evaluation.is_none_or(|last| last.elapsed() >= pause);
        // Clocks differ: rank 0's counts.
        if !team.from_root(|| Ok(due || done == self.plan.num_steps))? {
            return Ok(false);
        }
        let began = Instant::now();
        let span = self.profiler.span(Phase::Validation);
        let values = self.learner.validate(team, done, rate.schedule)?;
        drop(span);
        self.testing_time += began.elapsed();
        self.last_evaluation = Some(Instant::now());
        if values.is_empty() {
            return Ok(false);
        }
        let root = &mut self.root;
        team.from_root(|| match root {
            Some(root) => root.journal.evaluated(done, &values),
            None => Ok(false),
        })
    }

    fn save(&mut self, team: &mut Team, done: u64) -> Result<()> {
        let snapshot = self.snapshot(team)?;
        self.save_snapshot(team, done, snapshot)
    }

    /// Saves the last checkpoint of a run that is complete.
    fn save_last(&mut self, team: &mut Team, done: u64) -> Result<()> {
        let snapshot = self.snapshot(team)?;
        self.plan.completes.as_ref().map_or(Ok(()), |complete| complete(team, &snapshot.params))?;
        self.save_snapshot(team, done, snapshot)
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        if let Some(spare) = self.root.as_mut().and_then(|root| root.writer.take_spare()) {
            self.learner.recycle(spare.into_numbers());
        }
        let snapshot = self.learner.snapshot(team);
        team.agree(snapshot)
    }

    /// Saves a checkpoint, after every rank has shown that it holds the same parameters.
    fn save_snapshot(&mut self, team: &mut Team, done: u64, snapshot: Snapshot) -> Result<()> {
        let span = self.profiler.span(Phase::Save);
        if team.size() > 1 {
            let hashes = team.gather(&hash(&snapshot.params))?;
            team.from_root(|| check_same(&hashes, done))?;
        }
        if let Some(root) = &mut self.root {
            self.plan.owner.as_ref().map_or(Ok(()), Owner::check)?;
            let draws = self.plan.first_draw + (done - self.plan.start) * self.plan.draws_per_step;
            if let (Some(writer), Some(mean)) = (&mut root.averages, average::of(&snapshot)) {
                writer.save(done, root.journal.checkpoint(done, draws, mean), None)?;
            }
            let mut saved = root.journal.checkpoint(done, draws, snapshot);
            saved.header[DRAWS_PER_STEP] = self.plan.draws_per_step.into();
            root.writer.save(done, saved, root.journal.synced_first()?)?;
        } else {
            self.learner.recycle(snapshot.into_spare());
        }
        drop(span);
        Ok(())
    }

    fn finish(mut self, team: &mut Team, outcome: Result<End>) -> Result<Ended> {
        if self.plan.profiling && outcome.is_ok() {
            self.tell_profile(team)?;
        }
        let Some(mut root) = self.root.take() else { return outcome.map(|end| end.told(None)) };
        root.progress.finish();
        root.watch.ended_at(self.reached);
        // A save under way is completed whatever happened.
        let averaged = root.averages.map_or(Ok(None), Writer::finish);
        let saved = root.writer.finish();
        root.journal.close()?;
        if let (Err(_), Ok(Some(path))) = (&outcome, &saved) {
            log::warn!("{} is complete. To continue: {}", path.display(), root.journal.continue_command());
        }
        let end = outcome?;
        let ended = end.told(saved?);
        averaged?;
        if let Some(line) = messages::average_line(&root.watch) {
            log::info!("{line}");
        }
        if let Some(signal) = end.stopped {
            let name = if signal == 0 { "another rank" } else { signals::name(signal) };
            log::info!("Stopped by {name}. To continue: {}", root.journal.continue_command());
            return Ok(ended);
        }
        for line in root.journal.end_lines() {
            log::info!("{line}");
        }
        Ok(ended)
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
            let path = &self.plan.profiling_file;
            write_timeline(path, &ranks)?;
            log::info!("timeline: {} (open it in chrome://tracing or Perfetto)", path.display());
        }
        Ok(())
    }
}

fn open_dashboard(options: &DashboardOptions, title: &str) -> Result<Dashboard> {
    let dashboard = Dashboard::open(options, title)?;
    log::info!("dashboard: {}", dashboard.address());
    Ok(dashboard)
}

/// A hash of the parameters' bits.
fn hash(params: &[f64]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let mut bytes = [0; 8 * 1024];
    for chunk in params.chunks(1024) {
        let bytes = &mut bytes[..8 * chunk.len()];
        bytes.chunks_exact_mut(8).zip(chunk).for_each(|(out, x)| out.copy_from_slice(&x.to_le_bytes()));
        hash.update(bytes);
    }
    hash.digest()
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
