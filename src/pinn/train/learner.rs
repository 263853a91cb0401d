//! Training a PiNet: one update, and errors over the evaluation set.

use super::structures::{Batches, Nothing, Structure, Structures};
use crate::engine::pinet::{PinetEngine, PinetPrediction, PinetSeeds};
use crate::loss::LossValue;
use crate::loss::ener::Term;
use crate::loss::pinn::{PinnLoss, PinnLossValue, PinnMetrics};
use crate::optim::keras_adam::KerasAdam;
use crate::report::profile::{Phase, Profiler};
use crate::sample::Queue;
use crate::train::learner::{Learner, Snapshot, StepReport, Turn};
use crate::train::step::GradientSum;
use crate::train::team::Team;
use crate::{Result, bail};
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// Names of the metrics of an evaluation, known after the first one.
pub type MetricNames = Arc<OnceLock<Vec<String>>>;

/// Holds a network and what changes it.
pub struct PinnLearner {
    pub engine: Box<dyn PinetEngine>,
    pub loss: Arc<PinnLoss>,
    pub params: Vec<f64>,
    pub adam: KerasAdam,
    pub sum: GradientSum,
    pub queue: Queue<Nothing, Structures>,
    pub evaluation: Option<Evaluation>,
    pub out: PinetPrediction,
    pub seeds: PinetSeeds,
}

/// The evaluation set.
pub struct Evaluation {
    pub batches: Batches,
    /// Batches that are looked at.
    pub count: usize,
    pub names: MetricNames,
}

impl PinnLearner {
    /// Loss and seeds of a batch after the first pass.
    fn evaluate(&mut self, batch: &[&Structure], step: u64, rank: usize) -> PinnLossValue {
        let frames: Vec<_> = batch.iter().map(|s| &s.frame).collect();
        let labels: Vec<_> = batch.iter().map(|s| &s.labels).collect();
        self.engine.evaluate(&mut self.out, &self.params, &frames);
        self.loss.differentiate(&mut self.seeds, &self.out, &frames, &labels, &self.params, step, rank as u64)
    }

    /// The errors of this rank's share of the evaluation set.
    fn own_errors(&mut self, team: &Team) -> Result<PinnMetrics> {
        let mut metrics = PinnMetrics::default();
        let Some(evaluation) = &self.evaluation else { return Ok(metrics) };
        let (batches, count) = (evaluation.batches.clone(), evaluation.count);
        for k in (team.rank()..count).step_by(team.size()) {
            let batch = batches.batch(k)?;
            let batch: Vec<&Structure> = batch.iter().collect();
            metrics.add(&self.evaluate(&batch, 0, 0));
        }
        Ok(metrics)
    }
}

impl Learner for PinnLearner {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        let batch = profiler.time(Phase::DataWait, || self.queue.next())?; // pairs were found on the queue's threads
        let structures: Vec<&Structure> = batch.frames.iter().flat_map(|f| &f.frame.0).collect();
        let span = profiler.span(Phase::Forward);
        let value = self.evaluate(&structures, turn.step, team.rank()); // outputs, forces, loss and its seeds
        drop(span);
        if !value.loss.is_finite() {
            bail!("the loss of step {} is {}: the parameters have diverged", turn.step + 1, value.loss);
        }
        let span = profiler.span(Phase::Backward);
        let frames: Vec<_> = structures.iter().map(|s| &s.frame).collect();
        let grad = self.sum.place(0);
        self.engine.backward(grad, &self.params, &frames, &self.seeds); // dL/dparams
        self.loss.regularise_add(grad, &self.params, turn.step);
        self.sum.add(0);
        drop(span);
        let (grad, stop) = profiler.time(Phase::Communication, || self.sum.mean(team, turn.stop))?; // over ranks
        let span = profiler.span(Phase::Optimizer);
        let gradient_norm = self.adam.step(&mut self.params, grad, turn.step);
        drop(span);
        Ok(StepReport { values: vec![shown(&value)], gradient_norm, stop })
    }

    fn validate(&mut self, team: &mut Team, _display: u64, _lr: f64) -> Result<Vec<f64>> {
        if self.evaluation.is_none() {
            return Ok(Vec::new());
        }
        let names = self.evaluation.as_ref().map(|e| e.names.clone()).unwrap_or_default();
        let local = self.own_errors(team);
        let metrics = team.agree(local)?;
        metrics_over_ranks(team, metrics, &names)
    }

    fn snapshot(&mut self, _team: &mut Team) -> Result<Snapshot> {
        Ok(Snapshot {
            params: self.params.clone(),
            first_moment: self.adam.first_moment.clone(),
            second_moment: self.adam.second_moment.clone(),
            engine: Value::Null,
        })
    }
}

/// The errors of all ranks' shares of the evaluation set; names are told on rank 0.
pub fn metrics_over_ranks(team: &mut Team, metrics: PinnMetrics, names: &MetricNames) -> Result<Vec<f64>> {
    let mut metrics = metrics;
    // A rank without a batch has nothing to add. Rank 0 always has one.
    let everyones = team.gather(&metrics.sums())?;
    let mut sums = everyones[0].clone();
    let n = sums.len();
    for other in everyones[1..].iter().filter(|other| other.len() == n) {
        sums.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    }
    if !team.is_root() {
        return Ok(sums); // only rank 0's journal looks at the values
    }
    metrics.set_sums(&sums);
    let mut report = metrics.report();
    report.push(("loss".to_string(), metrics.loss()));
    let (found, values): (Vec<String>, Vec<f64>) = report.into_iter().unzip();
    let _ = names.set(found); // the same every time
    Ok(values)
}

/// What a batch shows: `E_RMSE`, `F_RMSE`, ...
pub fn shown(value: &PinnLossValue) -> LossValue {
    let mut batch = PinnMetrics::default();
    batch.add(value);
    let terms = batch.report().into_iter().map(|(name, value)| Term { name: name.into(), value }).collect();
    LossValue { loss: value.loss, terms }
}
