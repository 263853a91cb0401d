//! Which series describe the embedding nets, or that the nets themselves are used.

use super::super::direct::Direct;
use super::super::frame::Facts;
use super::super::network::SeriesOnDevice;
use super::Core;
use crate::Result;
use crate::engine::cpu::chebyshev::{Plan, Series};
use crate::engine::cpu::panels::{NOT_SMOOTH, Wanted};
use crate::engine::cpu::real::Real;
use crate::model::dp::options::Embedding;
use serde_json::Value;
use std::sync::Arc;

impl Core {
    pub fn tolerance(&self) -> f64 {
        if self.device.numbers.size() == 8 { f64::SERIES_TOLERANCE } else { f32::SERIES_TOLERANCE }
    }

    /// The plan of the series in force; `None` where the nets themselves are used.
    pub fn plan(&self) -> Option<&Plan> {
        self.series.as_ref().map(|s| &*s.plan)
    }

    /// The series in force with its memory.
    pub fn series_on_device(&self) -> Option<&SeriesOnDevice> {
        self.series.as_ref()
    }

    fn wanted<'a>(&'a self, params: &'a [f64], range: (f64, f64)) -> Wanted<'a> {
        Wanted { model: &self.model, params, range, tolerance: self.tolerance() }
    }

    /// Changes to series that describe the nets with these parameters, which those in force do not. Where there are none, the
    /// nets themselves are used from now on.
    pub fn adapt(&mut self, params: &[f64]) -> Result<()> {
        if self.model.descriptor().embedding == Embedding::Direct {
            return self.use_direct();
        }
        match self.wanted(params, self.range).choose(&self.pool, self.plan()) {
            Some(plan) => self.use_plan(plan),
            None => {
                log::warn!("{NOT_SMOOTH}");
                self.use_direct()
            }
        }
    }

    /// Keeps the series in force where they describe the nets, else chooses others.
    pub fn adapt_if_needed(&mut self, params: &[f64]) -> Result<()> {
        let Some(plan) = self.plan() else {
            return if self.is_direct() { Ok(()) } else { self.adapt(params) };
        };
        let mut now = Series::default();
        now.expand(&self.pool, plan, &self.model, params);
        if now.tail < self.tolerance() { Ok(()) } else { self.adapt(params) }
    }

    /// Changes to series that cost less, where these parameters have such.
    pub fn reconsider(&mut self, params: &[f64]) -> Result<()> {
        let Some(plan) = self.plan() else { return Ok(()) };
        match self.wanted(params, self.range).cheaper_than(&self.pool, plan) {
            Some(cheaper) => self.use_plan(cheaper),
            None => Ok(()),
        }
    }

    /// The arguments that the series cover.
    pub fn range(&self) -> (f64, f64) {
        self.range
    }

    /// Arguments beyond which no series were found; infinite where none were looked for.
    pub fn refused(&self) -> (f64, f64) {
        self.refused
    }

    /// Covers what an earlier run covered, and looks for no series where that one found none.
    pub fn set_range(&mut self, range: (f64, f64), refused: (f64, f64)) {
        (self.range, self.refused) = (range, refused);
    }

    /// The nets themselves are used for all batches.
    pub fn is_direct(&self) -> bool {
        self.series.is_none() && self.direct.is_some()
    }

    /// From now on the nets themselves are used for all batches.
    pub fn use_direct(&mut self) -> Result<()> {
        self.device.synchronize()?;
        self.forget_shapes();
        self.make_direct()?;
        self.series = None;
        self.set_constants();
        let Some(direct) = &self.direct else { return Ok(()) };
        // SAFETY: the nets and the constants are of this core.
        unsafe { self.store.refill(&direct.nets, &self.constants) }
    }

    pub(super) fn make_direct(&mut self) -> Result<()> {
        if self.direct.is_none() {
            self.direct = Some(Direct::new(&self.network)?);
        }
        Ok(())
    }

    /// Continues with the series of an earlier run, given what a checkpoint says of them; false where it says nothing.
    pub fn use_state(&mut self, state: &Value) -> Result<bool> {
        match Plan::from_state(&self.model, state, self.range) {
            Some(plan) => self.use_plan(plan).map(|()| true),
            None => Ok(false),
        }
    }

    fn use_plan(&mut self, plan: Plan) -> Result<()> {
        log::debug!("embedding series: {plan}");
        self.device.synchronize()?;
        self.forget_shapes();
        if self.largest.is_some() {
            self.work = None; // it will be made for the largest batch at once
        }
        self.series = Some(SeriesOnDevice::new(&self.network, &Arc::new(plan))?);
        self.set_constants();
        let Some(series) = &self.series else { return Ok(()) };
        // SAFETY: the series and the constants are of this core.
        unsafe { self.store.refill(series, &self.constants)? };
        self.embed()
    }

    /// Makes the series reach to all arguments of a frame, where there are some that do: else batches with this frame go
    /// without. `params` are asked for where they do not reach yet.
    pub fn cover(&mut self, facts: &Facts, params: impl FnOnce(&Core) -> Result<Vec<f64>>) -> Result<()> {
        let Some(plan) = self.plan() else { return Ok(()) };
        if facts.covered_by(plan) {
            return Ok(());
        }
        self.widen(facts.s_range, params).map(|_| ())
    }

    /// Makes the series reach up to an argument; false where none does.
    pub fn reach(&mut self, high: f64, params: &[f64]) -> Result<bool> {
        self.widen((self.range.0, high), |_| Ok(params.to_vec()))
    }

    fn widen(
        &mut self,
        (low, high): (f64, f64),
        params: impl FnOnce(&Core) -> Result<Vec<f64>>,
    ) -> Result<bool> {
        if low <= self.refused.0 || high >= self.refused.1 {
            return Ok(false);
        }
        // Room for the next frame that goes a little further.
        let room = 0.02 * (self.range.1 - self.range.0);
        let mut wider = self.range;
        if low < self.range.0 {
            wider.0 = low - room;
        }
        if high > self.range.1 {
            wider.1 = high + room;
        }
        let params = params(self)?;
        if let Some(plan) = self.wanted(&params, wider).choose(&self.pool, None) {
            self.range = wider;
            return self.use_plan(plan).map(|()| true);
        }
        log::debug!("no series reach from {low} to {high}: evaluating the nets themselves for such frames");
        if low < self.range.0 {
            self.refused.0 = low;
        }
        if high > self.range.1 {
            self.refused.1 = high;
        }
        Ok(false)
    }
}
