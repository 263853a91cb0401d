//! What a model says that predicts no energy, on the device: outputs of its atoms and frames, and the loss of these. See `kernels/outputs.cu`.

use super::core::{PlanCore, Resident};
use super::layout::Outputs;
use super::program::{BATCH_OUTPUTS, FRAME_OUTPUTS};
use super::shape::{Class, Place, Shape};
use crate::Result;
use crate::engine::{Prediction, Seeds};
use crate::gpu::{Buffer, Device, Launch, Ptr, Real};
use crate::model::dp::Dp;
use crate::model::dp::options::Made;
use std::sync::Arc;

/// Numbers that a frame brings to the loss, as in the kernels.
const FRAME_SUMS: usize = 8;
/// The losses as the kernels number them; 0: none.
const BY_SQUARES: i32 = 1;
const BY_PROPERTY: i32 = 2;

/// A loss of outputs as the kernels know it.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceLoss {
    /// Mean squares, which have their weights with each batch: of atoms, of their running sums, of frames, of theirs.
    Squares,
    /// A function of the errors of properties, as `kernels/outputs.cu` numbers them, and the deviation of each.
    Property { function: usize, beta: f64, deviation: Vec<f64> },
}

/// What all batches share of a model's outputs.
pub struct OutputTables {
    pub width: usize,
    /// `[n_types]` what the numbers of the nets are multiplied by where outputs turn with the atoms.
    pub net_scale: Buffer<Real>,
    constants: Outputs,
    /// Those that the constants name.
    _kept: Vec<Buffer<f64>>,
}

impl OutputTables {
    /// `None` for a model that predicts energies.
    pub fn new(device: &Arc<Device>, model: &Dp) -> Result<Option<OutputTables>> {
        if model.is_energy() {
            return Ok(None);
        }
        let (n_types, width) = (model.n_types(), model.output.width);
        let scale = |t: usize| model.scale(t).map_or(vec![1.0; width], <[f64]>::to_vec);
        let shift = |t: usize| (0..width).map(move |k| model.shift(t, k));
        let net_scale: Vec<f64> = (0..n_types).map(|t| model.options.fitting.net_scale(t)).collect();
        let kept = vec![
            Buffer::of(device, &(0..n_types).flat_map(scale).collect::<Vec<f64>>(), "tables")?,
            Buffer::of(device, &(0..n_types).flat_map(shift).collect::<Vec<f64>>(), "tables")?,
            Buffer::of(device, &[1.0], "tables")?,
        ];
        let constants = Outputs {
            scale: kept[0].address(),
            shift: kept[1].address(),
            factor: kept[2].address(),
            width: width as i32,
            is_mean: i32::from(model.output.is_intensive),
            ..Outputs::default()
        };
        let net_scale = Buffer::reals(device, &net_scale, "tables")?;
        Ok(Some(OutputTables { width, net_scale, constants, _kept: kept }))
    }

    /// From now on batches have this loss. No shape was made yet.
    pub fn use_loss(&mut self, device: &Arc<Device>, loss: &DeviceLoss) -> Result<()> {
        match loss {
            DeviceLoss::Squares => self.constants.loss = BY_SQUARES,
            DeviceLoss::Property { function, beta, deviation } => {
                let unit = Buffer::of(device, deviation, "tables")?;
                self.constants.function = *function as i32;
                (self.constants.loss, self.constants.beta) = (BY_PROPERTY, *beta);
                self.constants.unit = unit.address();
                self._kept.push(unit);
            }
        }
        Ok(())
    }

    /// Room for the outputs of a batch.
    pub fn lay_out(&self, place: &mut Place, class: &Class) -> Outputs {
        let mut take = |n: usize| place.take(8 * n);
        Outputs {
            of_atoms: take(class.centers * self.width),
            dl_of_atoms: take(class.centers * self.width),
            of_frames: take(class.frames * self.width),
            dl_of_frames: take(class.frames * self.width),
            row_sums: take(2 * class.centers),
            frame_sums: take(FRAME_SUMS * class.frames),
            ..self.constants
        }
    }
}

/// How the kernels know what outputs are made of; `None` where they are the numbers of the net.
pub fn kind_of(made: Made) -> Option<i32> {
    match made {
        Made::Itself => None,
        Made::Vector => Some(0),
        Made::Diagonal => Some(1),
        Made::Matrix => Some(2),
    }
}

impl PlanCore {
    /// Outputs of frames, and the loss where there is one, from those of all centres.
    ///
    /// # Safety
    ///
    /// As for [`PlanCore::first_pass`], at the end of which it is.
    pub(super) unsafe fn frame_outputs(&self, shape: &Shape) -> Result<()> {
        let (b, outputs) = (shape.batch, shape.outputs);
        let entries = Ptr::at(shape.chunks[0].chunk.entries);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe {
            self.start(FRAME_OUTPUTS, Launch::new(shape.class.frames, 256), (b, entries, outputs))?;
            if outputs.loss != 0 {
                self.start(BATCH_OUTPUTS, Launch::new(1, 256), (b, outputs))?;
            }
        }
        Ok(())
    }

    /// What the first pass has found of a batch that was evaluated last, where that is no energy.
    pub(super) fn outputs(&self, out: &mut Prediction, shape: &Shape, batch: &[Resident]) -> Result<()> {
        let (outputs, width) = (shape.outputs, shape.outputs.width as usize);
        let n_atoms: usize = batch.iter().map(|r| r.facts.n_atoms).sum();
        let n_rows: usize = batch.iter().map(|r| r.facts.n_centers).sum();
        let mut of_rows = vec![0.0; n_rows * width];
        *out = Prediction {
            output: vec![0.0; batch.len() * width],
            atom_output: vec![0.0; n_atoms * width],
            ..Prediction::default()
        };
        // SAFETY: the shape has room for the rows and frames of this batch.
        unsafe {
            self.device.read_at(outputs.of_frames, &mut out.output)?;
            self.device.read_at(outputs.of_atoms, &mut of_rows)?;
        }
        let mut rows = of_rows.chunks_exact(width);
        each_row(batch, |atom| {
            let row = rows.next().expect("one for each centre");
            out.atom_output[atom * width..(atom + 1) * width].copy_from_slice(row);
        });
        Ok(())
    }

    /// Brings the derivatives of a loss by the outputs of a batch that was evaluated last.
    pub(super) fn set_output_seeds(&self, shape: &Shape, batch: &[Resident], seeds: &Seeds) -> Result<()> {
        let (outputs, width) = (shape.outputs, shape.outputs.width as usize);
        let mut of_rows = Vec::new();
        each_row(batch, |atom| {
            of_rows.extend_from_slice(&seeds.dl_atom_output[atom * width..(atom + 1) * width]);
        });
        // SAFETY: the shape has room for the rows and frames of this batch.
        unsafe {
            self.device.write_at(outputs.dl_of_frames, &seeds.dl_output)?;
            self.device.write_at(outputs.dl_of_atoms, &of_rows)
        }
    }
}

/// The number of each centre of a batch among its atoms, in the order of the rows.
fn each_row(batch: &[Resident], mut visit: impl FnMut(usize)) {
    let mut first = 0;
    for resident in batch {
        resident.facts.order().iter().for_each(|&atom| visit(first + atom as usize));
        first += resident.facts.n_atoms;
    }
}
