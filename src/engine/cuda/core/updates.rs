//! The gradient as a whole, the optimiser, and the series that follows the parameters.

use super::super::learned::Moved;
use super::super::muon::{Muon, MuonPlan};
use super::super::program::*;
use super::super::shape::Shape;
use super::Core;
use crate::Result;
use crate::gpu::{Buffer, Launch, Stream};
use std::ops::Range;

/// Blocks of an update on each multiprocessor, where other kernels run beside it.
const BLOCKS_BESIDE: usize = 2;

/// Where an update finds the gradient.
pub enum Gradient<'a> {
    /// Nowhere: only the copies are made that the nets read.
    None,
    /// In the flat vector.
    Flat,
    /// In the pieces that a batch of this kind left.
    Pieces(&'a Shape),
}

impl Core {
    /// The coefficients of the series for the parameters on the device. They are made with every change of either, so that
    /// a step finds them; where there is no series yet, nothing is done.
    pub(super) fn embed(&self) -> Result<()> {
        let Some(series) = &self.series else { return Ok(()) };
        let (e, (shared, _)) = (series.embedding, series.shared);
        // SAFETY: see the module of this engine; the series has the memory of its nodes.
        unsafe {
            let forward = Launch::new(series.blocks(), 256).shared(shared);
            self.start(EMBED_FORWARD, forward, (e, series.room))?;
            self.start(EMBED_TRANSFORM, Launch::new(series.transform_blocks(), 256), (e,))
        }
    }

    /// Adds up the pieces of a gradient, into the flat vector.
    pub fn reduce(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let (grad, views, n_views) =
            (self.network.learned.grad.ptr(), shape.views.ptr(), shape.n_views as i32);
        let arguments = (grad, views, n_views, self.network.learned.n_params as u64, self.turn_ptr());
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(REDUCE, Launch::new(shape.view_blocks, 256), arguments) }
    }

    /// One step of the optimiser, and the series for the parameters after it.
    pub fn update(&self, from: Gradient, wants_norm: bool) -> Result<()> {
        let net = &self.network.learned;
        // SAFETY: see the module of this engine.
        let n_squares = if wants_norm { unsafe { net.square(self.turn_ptr())? } } else { 0 };
        let from = match (&self.muon, from) {
            (Some(muon), Gradient::Flat) => {
                // SAFETY: it was made for this network; the numbers of the step were sent.
                unsafe { muon.update(&self.device, self.turn.address(), n_squares)? };
                Gradient::None
            }
            (_, from) => from,
        };
        self.adam(self.device.stream(), &from, n_squares, 0..self.view_blocks)?;
        self.embed()
    }

    /// From now on updates are those of HybridMuon or AdaMuon.
    pub fn use_muon(&mut self, plan: &MuonPlan) -> Result<()> {
        self.muon = Some(Muon::new(&self.network, plan)?);
        Ok(())
    }

    /// How far gradient and mean of each matrix have agreed, where the optimiser is one of these.
    pub fn alignment(&self) -> Option<&Buffer<f64>> {
        self.muon.as_ref().map(|muon| &muon.alignment)
    }

    /// The optimiser on some blocks of views.
    pub(super) fn adam(
        &self,
        stream: Stream,
        from: &Gradient,
        n_squares: usize,
        blocks: Range<usize>,
    ) -> Result<()> {
        if let Gradient::Pieces(shape) = from {
            self.check(shape);
        }
        let (from, views, beside) = match from {
            Gradient::None => (0, self.views.ptr(), false),
            Gradient::Flat => (1, self.views.ptr(), false),
            // Beside other work not more than stay together on the GPU, so that the others find room.
            Gradient::Pieces(shape) => (2, shape.views.ptr(), true),
        };
        let most = if beside { BLOCKS_BESIDE * self.device.multiprocessors } else { blocks.len() };
        let launch = Launch::new(blocks.len().min(most), 256);
        let moved = Moved { views, n_views: self.n_views, blocks, from };
        // SAFETY: see the module of this engine; views lie in vectors of all parameters.
        unsafe { self.network.learned.adam((stream, launch), moved, n_squares, self.turn_ptr()) }
    }

    /// Copies parameters to the device and to where the nets read them.
    pub fn set_params(&self, params: &[f64]) -> Result<()> {
        self.network.learned.params.write(0, params)?;
        self.update(Gradient::None, false)
    }
}
