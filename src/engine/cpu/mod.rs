//! The CPU engine: threads over blocks of atoms and blocks of matrices, float64 or float32.
//!
//! The geometry of a frame is turned into features once ([`frame`]); a step is then a handful of dense products
//! ([`dense`], [`fitting`]) and one walk over the pairs for each pass ([`pairs`]). Where the Chebyshev series of
//! the embedding does not hold, the net itself is used ([`direct`]).

pub mod simd;
pub mod real;
pub mod dense;
#[cfg(target_arch = "x86_64")]
mod packed;
pub mod elementwise;
pub mod pool;
pub mod scratch;
pub mod net;
pub mod chebyshev;
pub mod panels;
pub mod walk;
pub mod evaluate;
pub mod pairs;
mod distances;
pub mod frame;
mod features;
pub mod descriptor;
pub mod direct;
pub mod fitting;
mod vacuum;
pub mod laps;
mod batch;
mod blocks;
#[cfg(test)]
mod tests;

use super::{Engine, Prediction, Preparer, Seeds, Take};
use crate::Result;
use crate::model::dp::Dp;
use batch::{Batch, Layout};
use blocks::Buffers;
use chebyshev::{Plan, Series};
use fitting::Fitting;
use frame::{CpuFrame, empty_slot};
use laps::{Laps, Stage};
use panels::Wanted;
use pool::Pool;
use real::Real;
use std::ops::Range;
use std::sync::Arc;
use vacuum::Vacuum;

/// How the embedding net is evaluated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EmbeddingMode {
    /// As a series for distances down to `min_distance` (A), as the net itself for frames that go below.
    Chebyshev { min_distance: f64 },
    /// As the net itself, always.
    Direct,
}

/// Evaluates a Deep Potential on CPU threads in float32 or float64.
pub struct CpuEngine<T> {
    model: Arc<Dp>,
    pool: Pool,
    /// The plan in force. `None`: the net itself is used.
    plan: Option<Arc<Plan>>,
    /// The argument of the series reaches from an empty slot to the shortest distance.
    range: (f64, f64),
    series: Series,
    fitting: Fitting<T>,
    vacuum: Vacuum,
    layout: Layout,
    buffers: Buffers<T>,
    /// By type: dL/denergy of the atoms, and inputs of the fitting nets beside the descriptor.
    dl_e: Vec<Vec<f64>>,
    extra: Vec<Vec<f64>>,
    weights: Vec<T>,
    /// Where the parameters lie of which `weights` is a copy, while it is one.
    copied: Option<usize>,
    /// The parameters do not change any more, and what follows from them is kept: see [`CpuEngine::freeze`].
    frozen: bool,
    gradient: Vec<T>,
    /// Where the time goes.
    pub laps: Laps,
}

impl<T: Real> CpuEngine<T> {
    /// An engine for a model.
    pub fn new(model: Arc<Dp>, threads: usize, mode: EmbeddingMode) -> Result<Self> {
        let range = match mode {
            EmbeddingMode::Chebyshev { min_distance } => argument_range(&model, min_distance),
            EmbeddingMode::Direct => (0.0, 0.0),
        };
        let plan = match mode {
            EmbeddingMode::Chebyshev { .. } => {
                Some(Arc::new(Plan::whole(&model, panels::FEWEST_TERMS, range)))
            }
            EmbeddingMode::Direct => None,
        };
        Ok(CpuEngine {
            pool: Pool::new(threads)?,
            plan,
            range,
            series: Series::default(),
            fitting: Fitting::new(model.fitting.clone(), model.descriptor().form().square()),
            vacuum: Vacuum::default(),
            layout: Layout::default(),
            buffers: Buffers::default(),
            dl_e: Vec::new(),
            extra: Vec::new(),
            weights: Vec::new(),
            copied: None,
            frozen: false,
            gradient: Vec::new(),
            laps: Laps::default(),
            model,
        })
    }

    /// Continues with the series of an earlier run, given what [`Engine::state`] said of it.
    pub fn resume(&mut self, state: &serde_json::Value) {
        if self.plan.is_some()
            && let Some(plan) = Plan::from_state(&self.model, state, self.range)
        {
            self.plan = Some(Arc::new(plan));
        }
    }

    /// Expands the nets and copies the weights once for all evaluations of these parameters, which must stay where they are and
    /// what they are until [`Engine::forget_parameters`].
    pub fn freeze(&mut self, params: &[f64]) {
        if let Some(plan) = self.expand(params) {
            self.buffers.stack_coefficients(&self.model, &plan, &self.series);
        }
        T::copy(params, &mut self.weights, &self.pool);
        self.copied = Some(params.as_ptr().addr());
        self.frozen = true;
    }

    /// The series in force; `None` where the net itself is used.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }

    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Expands the embedding nets; changes to another plan where a tail is above the tolerance.
    fn expand(&mut self, params: &[f64]) -> Option<Arc<Plan>> {
        self.frozen = false;
        let plan = self.plan.clone()?;
        self.series.expand(&self.pool, &plan, &self.model, params);
        if self.series.tail < T::SERIES_TOLERANCE {
            return Some(plan);
        }
        let chosen = self.wanted(params).choose(&self.pool, Some(&plan));
        if chosen.is_none() {
            log::warn!("{}", panels::NOT_SMOOTH);
        }
        self.change_to(chosen, params)
    }

    fn wanted<'a>(&'a self, params: &'a [f64]) -> Wanted<'a> {
        Wanted { model: &self.model, params, range: self.range, tolerance: T::SERIES_TOLERANCE }
    }

    fn change_to(&mut self, plan: Option<Plan>, params: &[f64]) -> Option<Arc<Plan>> {
        self.plan = plan.map(Arc::new);
        if let Some(plan) = &self.plan {
            log::debug!("embedding series: {plan}");
            self.series.expand(&self.pool, plan, &self.model, params);
        }
        self.plan.clone()
    }
}

/// From the argument of an empty slot (s = 0) to that of the shortest distance, over all centre types.
pub(crate) fn argument_range(model: &Dp, min_distance: f64) -> (f64, f64) {
    // Distances of other frames may be a little shorter: leave room before the direct path has to take over.
    let r = (0.95 * min_distance).clamp(1e-3, model.descriptor().rcut);
    let [s, ..] = super::reference::env::radial(model.descriptor(), r);
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    for center in 0..model.n_types() {
        let high = (s - model.stats.davg[center][0]) / model.stats.dstd[center][0];
        range = (range.0.min(empty_slot(model, center)), range.1.max(high));
    }
    range
}

impl<T: Real> Engine for CpuEngine<T> {
    type Prepared = CpuFrame<T>;

    fn preparer(&self) -> Preparer<CpuFrame<T>> {
        let model = self.model.clone();
        Arc::new(move |frame| CpuFrame::prepare(&model, frame))
    }

    fn pool(&self) -> Pool {
        self.pool.clone()
    }

    fn is_single(&self) -> bool {
        size_of::<T>() == size_of::<f32>()
    }

    fn adapt(&mut self, params: &[f64]) {
        self.expand(params);
    }

    fn reconsider(&mut self, params: &[f64]) {
        let Some(plan) = self.expand(params) else { return };
        if let Some(cheaper) = self.wanted(params).cheaper_than(&self.pool, &plan) {
            self.change_to(Some(cheaper), params);
        }
    }

    fn state(&self) -> serde_json::Value {
        self.plan().map_or(serde_json::Value::Null, Plan::state)
    }

    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&CpuFrame<T>]) {
        self.laps.start();
        let plan = if self.frozen { self.plan.clone() } else { self.expand(params) };
        if self.copied != Some(params.as_ptr().addr()) {
            T::copy(params, &mut self.weights, &self.pool);
        }
        let fitted = self.model.fitting_params();
        debug_assert!(
            T::is_copy(&params[fitted.clone()], &T::viewed(params, &self.weights)[fitted]),
            "a copy of the parameters"
        );
        let weights = T::viewed(params, &self.weights);
        self.layout.arrange(&self.model, batch, plan.as_deref());
        let (model, layout) = (&*self.model, &self.layout);
        let batch = Batch { model, params, frames: batch, plan: plan.as_deref(), layout };
        self.buffers.resize(&batch);
        if let Some(plan) = plan.as_ref().filter(|_| !self.frozen) {
            self.buffers.stack_coefficients(&self.model, plan, &self.series);
        }
        self.fitting.resize(&self.layout.group_sizes);
        self.laps.lap(Stage::Series);
        blocks::describe(&self.pool, &batch, &mut self.buffers, &mut self.fitting);
        self.laps.lap(Stage::Describe);
        self.fitting.forward(&self.pool, weights);
        batch.extra_inputs(&mut self.extra);
        self.vacuum.forward(&self.model, params, &self.extra);
        self.laps.lap(Stage::FittingForward);
        self.fitting.backward_input(&self.pool, weights);
        self.laps.lap(Stage::FittingBackward);
        blocks::differentiate(&self.pool, &batch, &mut self.buffers, &self.fitting);
        self.laps.lap(Stage::Differentiate);
        blocks::collect(&self.pool, out, &batch, &self.buffers, &self.fitting, &self.vacuum);
        self.laps.lap(Stage::Collect);
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&CpuFrame<T>], seeds: &Seeds) {
        self.second_pass(grad, params, batch, seeds);
        let gradient = T::target(grad, &mut self.gradient);
        self.fitting.gradient(&self.pool, gradient);
        T::deliver(grad, &self.gradient, self.model.fitting_params().start, &self.pool);
        self.vacuum.backward_add(grad, &self.model, params, &self.dl_e);
        self.laps.lap(Stage::FittingGradient);
    }

    fn backward_but_pieces(
        &mut self,
        grad: &mut [f64],
        params: &[f64],
        batch: &[&CpuFrame<T>],
        seeds: &Seeds,
    ) -> Option<Range<usize>> {
        if (0..self.model.n_types()).any(|c| self.model.removes_vacuum(c)) {
            return None;
        }
        self.second_pass(grad, params, batch, seeds);
        // The fitting nets are all that is computed with the copy, and all that is given out.
        self.copied = Some(params.as_ptr().addr());
        Some(0..self.model.fitting_params().start)
    }

    fn hand_out(&mut self, to: &dyn Take) {
        self.fitting.hand_out(&self.pool, &mut self.weights, to);
        self.laps.lap(Stage::FittingGradient);
    }

    fn forget_parameters(&mut self) {
        self.copied = None;
        self.frozen = false;
    }
}

impl<T: Real> CpuEngine<T> {
    /// Adds the virial of each atom `[n_atoms, 9]` to `out`, after [`Engine::evaluate`] of this frame alone. What a pair brings
    /// belongs to the neighbour, as in DeePMD-kit.
    pub fn atom_virial_add(&self, out: &mut [f64], frame: &CpuFrame<T>) {
        blocks::atom_virial_add(&self.pool, out, frame, &self.buffers);
    }

    /// The descriptor of each atom `[n_atoms, width]`, after [`Engine::evaluate`] of this frame alone.
    pub fn descriptors(&self, out: &mut [f64], frame: &CpuFrame<T>) {
        blocks::descriptors(out, &self.model, frame, &self.layout, &self.buffers);
    }

    /// The second pass without the gradient of the fitting nets.
    fn second_pass(&mut self, grad: &mut [f64], params: &[f64], batch: &[&CpuFrame<T>], seeds: &Seeds) {
        self.laps.start();
        let plan = self.plan.clone();
        let weights = T::viewed(params, &self.weights);
        let (model, layout) = (&*self.model, &self.layout);
        let batch = Batch { model, params, frames: batch, plan: plan.as_deref(), layout };
        blocks::tangent(&self.pool, &batch, &mut self.buffers, &mut self.fitting, seeds);
        self.laps.lap(Stage::Tangent);
        batch.energy_seeds(&mut self.dl_e, seeds);
        self.fitting.tangent(&self.pool, weights, &self.dl_e);
        self.laps.lap(Stage::FittingTangent);
        self.fitting.backward(&self.pool, weights);
        self.laps.lap(Stage::FittingReverse);
        blocks::adjoint(&self.pool, &batch, &mut self.buffers, &self.fitting);
        self.laps.lap(Stage::Adjoint);
        blocks::embedding_gradient(&self.pool, grad, &batch, &mut self.buffers, &mut self.series);
        self.laps.lap(Stage::Embedding);
    }
}
