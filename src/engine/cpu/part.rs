//! What the engine has for each descriptor of a model: the series of its nets, and what lives from one pass to the next.

use super::batch::{Batch, Inputs, Layout};
use super::blocks::Buffers;
use super::chebyshev::{Plan, Series};
use super::frame::FramesOfPart;
use super::panels::{self, Wanted};
use super::pool::Pool;
use super::real::Real;
use super::{EmbeddingMode, argument_range};
use crate::model::dp::Dp;
use crate::model::dp::options::{Embedding, Form};
use std::sync::Arc;

/// Whether the nets of a descriptor may be series: they depend on one number but for types. More than GPUs know.
fn has_series(model: &Dp) -> bool {
    let descriptor = model.descriptor();
    match descriptor.attention() {
        Some(options) => options.attn_layer == 0,
        None => descriptor.form().has_series() || descriptor.form() == Form::Angles,
    }
}

pub struct Part<T> {
    /// One of [`Dp::parts`].
    pub model: Arc<Dp>,
    pub inputs: Inputs,
    /// The plan in force. `None`: the net itself is used.
    pub plan: Option<Arc<Plan>>,
    /// The argument of the series reaches from an empty slot to the shortest distance.
    range: (f64, f64),
    pub series: Series,
    pub layout: Layout,
    pub buffers: Buffers<T>,
}

impl<T: Real> Part<T> {
    /// `mode` is how the nets are evaluated unless this descriptor wants them themselves.
    pub fn new(model: &Arc<Dp>, inputs: Inputs, mode: EmbeddingMode) -> Self {
        let (range, plan) = match (mode, model.descriptor().embedding) {
            (EmbeddingMode::Chebyshev { min_distance }, Embedding::Chebyshev) if has_series(model) => {
                let range = argument_range(model, min_distance);
                (range, Some(Arc::new(Plan::whole(model, panels::FEWEST_TERMS, range))))
            }
            _ => ((0.0, 0.0), None),
        };
        Part {
            model: model.clone(),
            inputs,
            plan,
            range,
            series: Series::default(),
            layout: Layout::default(),
            buffers: Buffers::new(model),
        }
    }

    /// Continues with the series of an earlier run.
    pub fn resume(&mut self, state: &serde_json::Value) {
        if self.plan.is_some()
            && let Some(plan) = Plan::from_state(&self.model, state, self.range)
        {
            self.plan = Some(Arc::new(plan));
        }
    }

    /// What [`Part::resume`] wants.
    pub fn state(&self) -> serde_json::Value {
        self.plan.as_deref().map_or(serde_json::Value::Null, Plan::state)
    }

    /// Expands the embedding nets; changes to another plan where a tail is above the tolerance.
    pub fn expand(&mut self, pool: &Pool, params: &[f64]) -> Option<Arc<Plan>> {
        let plan = self.plan.clone()?;
        self.series.expand(pool, &plan, &self.model, params);
        if self.series.tail < self.tolerance() {
            return Some(plan);
        }
        let chosen = self.wanted(params).choose(pool, Some(&plan));
        if chosen.is_none() {
            log::warn!("{}", panels::NOT_SMOOTH);
        }
        self.change_to(pool, chosen, params)
    }

    /// Gives up what became more costly than these parameters need.
    pub fn reconsider(&mut self, pool: &Pool, params: &[f64]) {
        let Some(plan) = self.expand(pool, params) else { return };
        if let Some(cheaper) = self.wanted(params).cheaper_than(pool, &plan) {
            self.change_to(pool, Some(cheaper), params);
        }
    }

    /// The largest tail. How a net changes with its parameters grows with its argument, which is large where neighbours taken two by two
    /// are near, so tails count for more there.
    fn tolerance(&self) -> f64 {
        let share = if self.model.descriptor().form() == Form::Angles { 0.05 } else { 1.0 };
        share * T::SERIES_TOLERANCE
    }

    fn wanted<'a>(&'a self, params: &'a [f64]) -> Wanted<'a> {
        Wanted { model: &self.model, params, range: self.range, tolerance: self.tolerance() }
    }

    fn change_to(&mut self, pool: &Pool, plan: Option<Plan>, params: &[f64]) -> Option<Arc<Plan>> {
        self.plan = plan.map(Arc::new);
        if let Some(plan) = &self.plan {
            log::debug!("embedding series: {plan}");
            self.series.expand(pool, plan, &self.model, params);
        }
        self.plan.clone()
    }

    /// Arranges a batch and makes room for it. Where the parameters are `frozen`, the coefficients of the series are there already.
    pub fn arrange(&mut self, params: &[f64], frames: FramesOfPart<T>, frozen: bool) {
        self.layout.arrange(&self.model, frames, self.plan.as_deref());
        if let Some(attention) = self.buffers.attention.as_mut().filter(|_| !frozen) {
            attention.step.prepare(&self.model, params);
        }
        let (batch, buffers, series) = self.batch(params, frames);
        buffers.resize(&batch);
        if let Some(plan) = batch.plan.filter(|_| !frozen) {
            buffers.stack_coefficients(batch.model, plan, series);
        }
    }

    /// The batch that was arranged, with what its passes write.
    pub fn batch<'a>(
        &'a mut self,
        params: &'a [f64],
        frames: FramesOfPart<'a, T>,
    ) -> (Batch<'a, T>, &'a mut Buffers<T>, &'a mut Series) {
        let Part { model, inputs, plan, layout, buffers, series, .. } = self;
        let batch = Batch { model, inputs: *inputs, params, frames, plan: plan.as_deref(), layout };
        (batch, buffers, series)
    }
}
