//! Which series describes the embedding nets, or that the nets themselves are used.

use super::super::direct::Direct;
use super::super::frame::Facts;
use super::super::network::SeriesOnDevice;
use super::Core;
use crate::Result;
use crate::engine::cpu::chebyshev::{self, Plan, TERMS};
use crate::model::dp::options::Embedding;
use std::sync::Arc;

impl Core {
    pub fn tolerance(&self) -> f64 {
        if self.device.numbers.size() == 8 { 1e-12 } else { 1e-7 }
    }

    /// Terms of the series in force.
    pub fn n_terms(&self) -> Option<usize> {
        self.series.as_ref().map(|s| s.plan.terms)
    }

    /// Chooses the shortest series of at least so many terms that describes the nets with these parameters. Where there is
    /// none, the nets themselves are used from now on.
    pub fn adapt(&mut self, params: &[f64], at_least: usize) -> Result<()> {
        if self.model.descriptor().embedding == Embedding::Direct {
            return self.use_direct();
        }
        let (low, high) = self.range;
        match chebyshev::choose(&self.model, params, low, high, self.tolerance(), at_least) {
            Some(plan) => self.use_plan(plan),
            None => {
                log::warn!(
                    "the embedding net is not smooth enough for a series of {} terms: evaluating the net itself",
                    TERMS[TERMS.len() - 1]
                );
                self.use_direct()
            }
        }
    }

    /// Keeps the series in force where it describes the nets, else chooses a longer one.
    pub fn adapt_if_needed(&mut self, params: &[f64]) -> Result<()> {
        let Some(series) = &self.series else {
            return if self.is_direct() { Ok(()) } else { self.adapt(params, TERMS[0]) };
        };
        let terms = series.plan.terms;
        let mut now = chebyshev::Series::default();
        now.expand(&series.plan, &self.model, params);
        if now.tail < self.tolerance() { Ok(()) } else { self.adapt(params, terms + 1) }
    }

    /// The arguments that the series covers.
    pub fn range(&self) -> (f64, f64) {
        self.range
    }

    /// Arguments beyond which no series was found; infinite where none was looked for.
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
        self.store.refill(&direct.nets, &self.constants)
    }

    pub(super) fn make_direct(&mut self) -> Result<()> {
        if self.direct.is_none() {
            self.direct = Some(Direct::new(&self.network)?);
        }
        Ok(())
    }

    /// Continues with the series of an earlier run.
    pub fn use_terms(&mut self, terms: usize) -> Result<()> {
        self.use_plan(Plan::new(terms, self.range.0, self.range.1))
    }

    fn use_plan(&mut self, plan: Plan) -> Result<()> {
        if let Some(old) = self.n_terms() {
            log::debug!("embedding series: {} terms instead of {old}", plan.terms);
        }
        self.device.synchronize()?;
        self.forget_shapes();
        self.series = Some(SeriesOnDevice::new(&self.network, &Arc::new(plan))?);
        self.set_constants();
        let Some(series) = &self.series else { return Ok(()) };
        self.store.refill(series, &self.constants)?;
        self.embed()
    }

    /// Makes the series reach to all arguments of a frame, where there is one that does: else batches with this frame go
    /// without. `params` are asked for where it does not reach yet.
    pub fn cover(&mut self, facts: &Facts, params: impl FnOnce(&Core) -> Result<Vec<f64>>) -> Result<()> {
        let Some(series) = &self.series else { return Ok(()) };
        let (low, high) = facts.s_range;
        let known = low <= self.refused.0 || high >= self.refused.1;
        if facts.covered_by(&series.plan) || known {
            return Ok(());
        }
        let terms = series.plan.terms;
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
        let plan = chebyshev::choose(&self.model, &params, wider.0, wider.1, self.tolerance(), terms);
        if let Some(plan) = plan {
            self.range = wider;
            return self.use_plan(plan);
        }
        log::debug!("no series reaches from {low} to {high}: evaluating the nets themselves for such frames");
        if low < self.range.0 {
            self.refused.0 = low;
        }
        if high > self.range.1 {
            self.refused.1 = high;
        }
        Ok(())
    }
}
