//! A PiNet as the recipe of a step sees it, and errors over the evaluation set.

use super::structures::{Batches, Nothing, Structure, Structures};
use crate::Result;
use crate::engine::cpu::pool::Pool;
use crate::engine::pinet::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::loss::pinn::{PinnLabels, PinnLoss, PinnLossValue, PinnMetrics};
use crate::sample::{FrameId, Loaded};
use crate::train::family::{Family, Frames, Now, Validation};
use crate::train::team::Team;
use std::sync::{Arc, OnceLock};

/// Names of the metrics of an evaluation, known after the first one.
pub type MetricNames = Arc<OnceLock<Vec<String>>>;

/// A PiNet with its loss.
pub struct Pinet {
    engine: Box<dyn PinetEngine>,
    loss: Arc<PinnLoss>,
    out: PinetPrediction,
    seeds: PinetSeeds,
}

impl Pinet {
    pub fn new(engine: Box<dyn PinetEngine>, loss: Arc<PinnLoss>) -> Self {
        Pinet { engine, loss, out: PinetPrediction::default(), seeds: PinetSeeds::default() }
    }
}

/// Frames and labels of a batch.
fn apart(batch: &Frames<Pinet>) -> (Vec<&PinetFrame>, Vec<&PinnLabels>) {
    batch.iter().flat_map(|loaded| &loaded.frame.0).map(|s| (&s.frame, &s.labels)).unzip()
}

impl Family for Pinet {
    type Frame = Structures;
    type Prepared = Nothing;
    type Value = PinnLossValue;

    fn evaluate(
        &mut self,
        params: &[f64],
        batch: &Frames<Self>,
        now: &Now,
        _team: &mut Team,
    ) -> Result<PinnLossValue> {
        let (frames, labels) = apart(batch);
        self.engine.evaluate(&mut self.out, params, &frames); // outputs, forces, stress
        let (step, rank) = (now.step, now.rank as u64);
        Ok(self.loss.differentiate(&mut self.seeds, &self.out, &frames, &labels, params, step, rank))
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &Frames<Self>, _k: usize, now: &Now) {
        self.engine.backward(grad, params, &apart(batch).0, &self.seeds);
        self.loss.regularise_add(grad, params, now.step);
    }

    fn pool(&self) -> Pool {
        self.engine.pool()
    }
}

/// The evaluation set.
pub struct Evaluation {
    pub batches: Batches,
    /// Batches that are looked at.
    pub count: usize,
    pub names: MetricNames,
}

impl Evaluation {
    /// The errors of this rank's share.
    fn own_errors(&self, network: &mut Pinet, params: &[f64], team: &mut Team) -> Result<PinnMetrics> {
        let now = Now { step: 0, rank: 0, rate: 0.0 };
        let mut metrics = PinnMetrics::default();
        for k in (team.rank()..self.count).step_by(team.size()) {
            let structures: Vec<Structure> = self.batches.batch(k)?;
            let (id, frame) = (FrameId { system: 0, frame: k }, Structures(structures));
            let batch = [Arc::new(Loaded { id, frame, prepared: Nothing })];
            metrics.add(&network.evaluate(params, &batch, &now, team)?);
        }
        Ok(metrics)
    }
}

impl Validation<Pinet> for Evaluation {
    fn errors(
        &mut self,
        network: &mut Pinet,
        params: &[f64],
        team: &mut Team,
        _display: u64,
        _rate: f64,
    ) -> Result<Vec<f64>> {
        let local = self.own_errors(network, params, team);
        let metrics = team.agree(local)?;
        metrics_over_ranks(team, metrics, &self.names)
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
