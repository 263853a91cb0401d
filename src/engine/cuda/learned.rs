//! What learns on a device, whichever engine evaluates it: the flat vector of parameters, its gradient, Adam and the running mean.

use super::layout::{Status, Turn, View};
use super::network::PER_BLOCK;
use super::program::{ADAM, FOLLOW, GRADIENT_NORM};
use crate::Result;
use crate::gpu::{Buffer, Device, Launch, Ptr, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Parameters on a device, and what an update takes.
pub struct Learned {
    device: Arc<Device>,
    pub n_params: usize,
    pub params: Buffer<f64>,
    /// First and second moments of the gradient, for Adam.
    pub moments: [Buffer<f64>; 2],
    /// The gradient, and the wish to stop.
    pub grad: Buffer<f64>,
    pub squares: Buffer<f64>,
    pub status: Buffer<Status>,
    /// A running mean of the parameters, and the part of the way that it goes in a step.
    average: Option<(Buffer<f64>, f64)>,
}

/// Some blocks of views of the parameters, and where an update of them finds the gradient.
pub struct Moved {
    pub views: Ptr<View>,
    pub n_views: usize,
    pub blocks: Range<usize>,
    /// 0: nowhere, only the copies are made that the nets read. 1: in the flat vector. 2: in the pieces that the views name.
    pub from: i32,
}

impl Learned {
    pub fn new(device: &Arc<Device>, n_params: usize) -> Result<Learned> {
        let zeros = |count: usize, what: &str| Buffer::zeroed(device, count, what);
        Ok(Learned {
            n_params,
            params: zeros(n_params, "the parameters")?,
            moments: [zeros(n_params, "the moments")?, zeros(n_params, "the moments")?],
            grad: zeros(n_params + 1, "the gradient")?,
            squares: zeros(n_params.div_ceil(PER_BLOCK), "the gradient's norm")?,
            status: Buffer::zeroed(device, 1, "the status")?,
            average: None,
            device: device.clone(),
        })
    }

    /// Sums of squares of the gradient in the flat vector; returns how many.
    ///
    /// # Safety
    ///
    /// `turn` has the numbers of the step.
    pub unsafe fn square(&self, turn: Ptr<Turn>) -> Result<usize> {
        let blocks = self.n_params.div_ceil(PER_BLOCK);
        let arguments = (self.squares.ptr(), self.grad.ptr(), self.n_params as u64, turn);
        // SAFETY: there is a square for every block; the rest is the caller's word.
        unsafe {
            GRADIENT_NORM.launch(&self.device, self.device.stream(), Launch::new(blocks, 256), arguments)?
        };
        Ok(blocks)
    }

    /// One update by Adam. `n_squares` 0: the norm is not known and not needed.
    ///
    /// # Safety
    ///
    /// The views are parts of these parameters, with copies and pieces that are there; `turn` has the numbers of the step.
    pub unsafe fn adam(
        &self,
        (stream, launch): (Stream, Launch),
        moved: Moved,
        n_squares: usize,
        turn: Ptr<Turn>,
    ) -> Result<()> {
        let Moved { views, n_views, blocks, from } = moved;
        let (params, first, second) = (self.params.ptr(), self.moments[0].ptr(), self.moments[1].ptr());
        let (grad, squares, n_squares) = (self.grad.ptr(), self.squares.ptr(), n_squares as i32);
        let (n_views, n_params, status) = (n_views as i32, self.n_params as u64, self.status.ptr());
        let (start, end) = (blocks.start as i32, blocks.end as i32);
        let arguments = (
            params, first, second, grad, squares, n_squares, views, n_views, n_params, turn, status, from,
            start, end,
        );
        // SAFETY: the caller's word.
        unsafe { ADAM.launch(&self.device, stream, launch, arguments) }
    }

    /// The parameters, when all steps so far are done.
    pub fn read(&self) -> Result<Vec<f64>> {
        let mut params = vec![0.0; self.n_params];
        self.params.read(0, &mut params)?;
        Ok(params)
    }

    /// The moments, when all steps so far are done.
    pub fn read_moments(&self) -> Result<[Vec<f64>; 2]> {
        let mut found = [0; 2].map(|_| vec![0.0; self.n_params]);
        self.moments.iter().zip(&mut found).try_for_each(|(buffer, x)| buffer.read(0, x))?;
        Ok(found)
    }

    /// Continues with these moments.
    pub fn set_moments(&self, moments: [&[f64]; 2]) -> Result<()> {
        self.moments.iter().zip(moments).try_for_each(|(buffer, x)| buffer.write(0, x))
    }

    /// From now on there is a running mean of the parameters, which begins so.
    pub fn use_average(&mut self, decay: f64, mean: &[f64]) -> Result<()> {
        self.average = Some((Buffer::of(&self.device, mean, "the mean of the parameters")?, 1.0 - decay));
        Ok(())
    }

    /// The running mean of the parameters, where there is one.
    pub fn average(&self) -> Result<Option<Vec<f64>>> {
        let Some((buffer, _)) = &self.average else { return Ok(None) };
        let mut mean = vec![0.0; self.n_params];
        buffer.read(0, &mut mean)?;
        Ok(Some(mean))
    }

    /// The mean follows the parameters of this step, where there is one.
    pub fn follow(&self) -> Result<()> {
        let Some((mean, part)) = &self.average else { return Ok(()) };
        let launch = Launch::new(self.n_params.div_ceil(256), 256);
        let arguments = (self.params.ptr(), mean.ptr(), self.n_params as u64, *part);
        // SAFETY: the mean is as long as the parameters.
        unsafe { FOLLOW.launch(&self.device, self.device.stream(), launch, arguments) }
    }
}
