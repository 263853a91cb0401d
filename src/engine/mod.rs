//! Evaluates a batch and differentiates a loss.
//!
//! A step has two passes and no autodiff graph. The first gives energies, forces and virials. The loss turns
//! them into seeds. The second pushes the direction `x_dot = -dL/dF` (and the strain of dL/dvirial) forward
//! through the same network and runs one reverse pass over (value, tangent) pairs, which yields dL/dparams.
//!
//! A model that predicts no energy has no forces either: its first pass is the way forward alone, its second a reverse pass.

pub mod activation;
pub mod blend;
pub mod reference;
pub mod cpu;
pub mod pinet;
pub mod cuda;
pub mod choice;
pub mod blocks;
pub mod type_embedding; // parameters that follow from fewer

use crate::data::Frame;
use crate::error::{Error, Result};
use crate::neighbor::{Cut, NeighborList};
use crate::sample::Prepared;
use std::ops::Range;
use std::sync::Arc;

/// What a model says about a batch. Atoms are concatenated over frames, in file order. Either energies with forces and virials, or
/// another output; what a model does not predict is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prediction {
    /// `[n_frames]` eV
    pub energy: Vec<f64>,
    /// `[n_atoms]` eV; 0 for virtual atoms
    pub atom_energy: Vec<f64>,
    /// `[n_atoms, 3]` eV/A
    pub force: Vec<f64>,
    /// `[n_frames]` row-major sum of r (x) F, eV
    pub virial: Vec<[f64; 9]>,
    /// `[n_frames, width]` sum or mean over atoms
    pub output: Vec<f64>,
    /// `[n_atoms, width]` 0 for virtual atoms
    pub atom_output: Vec<f64>,
}

impl Prediction {
    /// All numbers, list by list.
    pub fn lists(&self) -> [&[f64]; 6] {
        let virial = self.virial.as_flattened();
        [&self.energy, &self.atom_energy, &self.force, virial, &self.output, &self.atom_output]
    }

    /// [`Prediction::lists`], to be changed.
    pub fn lists_mut(&mut self) -> [&mut [f64]; 6] {
        let Prediction { energy, atom_energy, force, virial, output, atom_output } = self;
        [energy, atom_energy, force, virial.as_flattened_mut(), output, atom_output]
    }

    /// Which of these lists have numbers of single atoms that are neither forces nor needed for them.
    pub const OF_ATOMS: [bool; 6] = [false, true, false, false, false, true];

    /// Adds what other centres of the same frames bring.
    pub fn add(&mut self, other: &Prediction) {
        for (sums, numbers) in self.lists_mut().into_iter().zip(other.lists()) {
            assert_eq!(sums.len(), numbers.len(), "blocks of the same frames");
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
        }
    }

    /// The frame with what is left of its labels when this is taken off: of the energy, or of another output. It is frame `f` of the
    /// batch, and its atoms begin with number `first_atom`.
    pub fn taken_off(&self, mut frame: Frame, f: usize, first_atom: usize) -> Frame {
        let labels = &mut frame.labels;
        labels.energy = labels.energy.map(|label| label - self.energy[f]);
        let width = labels.output.as_ref().map_or(0, Vec::len);
        let of_atoms = labels.atom_output.as_ref().map_or(0, Vec::len) / frame.types.len().max(1);
        for (label, predicted) in [
            (&mut labels.output, self.output.get(f * width..)),
            (&mut labels.atom_output, self.atom_output.get(first_atom * of_atoms..)),
        ] {
            for (label, x) in label.iter_mut().flatten().zip(predicted.into_iter().flatten()) {
                *label -= x;
            }
        }
        frame
    }
}

/// What a model says about one configuration of atoms. Lengths in A, energies in eV.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    pub energy: f64,
    /// `[n_atoms]` 0 for atoms that are none of the model, and for ghosts.
    pub atom_energy: Vec<f64>,
    /// `[n_atoms, 3]` eV/A
    pub force: Vec<f64>,
    /// Row by row the sum of r (x) F.
    pub virial: [f64; 9],
    /// `[n_atoms, 9]` what each atom brings to the virial, as in DeePMD-kit: row by row -dE_i/dd (x) d of the pairs in which it is the
    /// neighbour. Empty where nobody asked.
    pub atom_virial: Vec<f64>,
}

impl Evaluation {
    /// Zeros; with virials of atoms where they are wanted.
    pub fn zeros(n_atoms: usize, atom_virial: bool) -> Self {
        Evaluation {
            atom_energy: vec![0.0; n_atoms],
            force: vec![0.0; 3 * n_atoms],
            atom_virial: vec![0.0; if atom_virial { 9 * n_atoms } else { 0 }],
            ..Default::default()
        }
    }
}

/// Which derivatives of an output by positions are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derivatives {
    None,
    /// Force and virial of each component.
    OfFrame,
    /// The virials of atoms too.
    OfAtoms,
}

/// What a model that predicts no energy says about one configuration of atoms. Derivatives are by positions in A and have the signs of
/// an energy's; they are empty where nobody asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// `[width]` sum or mean over atoms
    pub output: Vec<f64>,
    /// `[n_atoms, width]` 0 for atoms that are none of the model, and for ghosts.
    pub atom_output: Vec<f64>,
    /// `[width, n_atoms, 3]` minus the slope of each component of `output`
    pub force: Vec<f64>,
    /// `[width, 9]` the sum of those of atoms, which is not symmetric where the output turns with the atoms
    pub virial: Vec<f64>,
    /// `[width, n_atoms, 9]` see [`Evaluation::atom_virial`]
    pub atom_virial: Vec<f64>,
}

impl Outputs {
    /// Zeros; with derivatives where they are wanted.
    pub fn zeros(n_atoms: usize, width: usize, wanted: Derivatives) -> Self {
        let (derivatives, atom_virial) = (wanted != Derivatives::None, wanted == Derivatives::OfAtoms);
        let room = |wanted: bool, n: usize| vec![0.0; if wanted { width * n } else { 0 }];
        Outputs {
            output: vec![0.0; width],
            atom_output: vec![0.0; width * n_atoms],
            force: room(derivatives, 3 * n_atoms),
            virial: room(derivatives, 9),
            atom_virial: room(atom_virial, 9 * n_atoms),
        }
    }
}

/// Derivatives of the loss by what was predicted; same shapes as [`Prediction`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seeds {
    pub dl_energy: Vec<f64>,
    pub dl_atom_energy: Vec<f64>,
    pub dl_force: Vec<f64>,
    pub dl_virial: Vec<[f64; 9]>,
    pub dl_output: Vec<f64>,
    pub dl_atom_output: Vec<f64>,
}

impl Seeds {
    /// Zeros in the shape of a prediction.
    pub fn reset(&mut self, out: &Prediction) {
        for (seeds, n) in [
            (&mut self.dl_energy, out.energy.len()),
            (&mut self.dl_atom_energy, out.atom_energy.len()),
            (&mut self.dl_force, out.force.len()),
            (&mut self.dl_output, out.output.len()),
            (&mut self.dl_atom_output, out.atom_output.len()),
        ] {
            seeds.clear();
            seeds.resize(n, 0.0);
        }
        self.dl_virial.clear();
        self.dl_virial.resize(out.virial.len(), [0.0; 9]);
    }

    /// The direction of the forces and of the virial in frame `f`, whose atoms begin with number `first_atom`, for a centre, its
    /// neighbour and the vector between them: `u_j - u_i - dL/dvirial^T d` with `u = -dL/dF`.
    pub fn direction(
        &self,
        f: usize,
        first_atom: usize,
        (center, neighbor): (usize, usize),
        d: [f64; 3],
    ) -> [f64; 3] {
        let (dl_force, strain) = (&self.dl_force[3 * first_atom..], &self.dl_virial[f]);
        [0, 1, 2].map(|k| {
            let bend = (0..3).map(|a| strain[3 * a + k] * d[a]).sum::<f64>();
            dl_force[3 * center + k] - dl_force[3 * neighbor + k] - bend
        })
    }
}

/// Turns a frame into what an engine needs of it.
pub type Preparer<P> = Arc<dyn Fn(&Frame) -> Result<P> + Send + Sync>;

/// What an engine needs of some atoms of a frame, as centres.
pub struct Block<P> {
    pub prepared: P,
    /// How many they are, and the neighbours that they have.
    pub centers: usize,
    pub pairs: usize,
}

impl<P> Block<P> {
    /// Of the centres of a list.
    pub fn of(list: &NeighborList, prepared: P) -> Self {
        Block { prepared, centers: list.n_centers(), pairs: list.n_pairs() }
    }
}

/// Turns a frame into somebody's blocks of it.
pub type BlockPreparer<P> = Arc<dyn Fn(&Frame) -> Result<Vec<Block<P>>> + Send + Sync>;

/// Evaluates a model and differentiates a loss.
pub trait Engine: Send {
    /// What a frame is turned into once, ahead of the step, on the loader threads.
    type Prepared: Prepared;

    /// Prepares frames; shared by all loader threads.
    fn preparer(&self) -> Preparer<Self::Prepared>;

    /// Prepares blocks of frames. What the passes give is then what these centres bring; the sum over all blocks is the whole.
    fn block_preparer(&self, cut: Cut) -> BlockPreparer<Self::Prepared>;

    /// The threads that it computes on, for whoever works between its passes.
    fn pool(&self) -> cpu::pool::Pool {
        cpu::pool::Pool::serial()
    }

    /// Whether gradients have the precision of float32.
    fn is_single(&self) -> bool {
        false
    }

    /// What went wrong in a pass since this was last asked: devices may fail. What the pass gave is worth nothing then.
    fn failure(&mut self) -> Option<Error> {
        None
    }

    /// First pass: energies, forces and virials of the batch.
    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&Self::Prepared]);

    /// Raises whatever the engine approximates to what these parameters need, before frames are prepared.
    fn adapt(&mut self, _params: &[f64]) {}

    /// Gives up what became more costly than these parameters need. It takes longer than a step.
    fn reconsider(&mut self, _params: &[f64]) {}

    /// What must be restored for a restart to give the same bits: see `resume`.
    fn state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Second pass: overwrites `grad` with dL/dparams. Must follow `evaluate` of the same batch and parameters.
    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&Self::Prepared], seeds: &Seeds);

    /// As [`Engine::backward`] for the parameters whose range is returned; the gradient of all others is then given out by
    /// [`Engine::hand_out`]. `None`: the engine has no such way, and did nothing.
    fn backward_but_pieces(
        &mut self,
        _grad: &mut [f64],
        _params: &[f64],
        _batch: &[&Self::Prepared],
        _seeds: &Seeds,
    ) -> Option<Range<usize>> {
        None
    }

    /// Gives out pieces of the gradient, each once, from all threads, while they are in cache. The parameters themselves are
    /// not looked at any more, so that whoever takes the pieces may change them.
    fn hand_out(&mut self, _to: &dyn Take) {}

    /// Must be called when the parameters of the last pass were changed by anyone but the taker of [`Engine::hand_out`]: the
    /// engine may keep a copy of them.
    fn forget_parameters(&mut self) {}
}

/// A piece of a gradient, in the precision of the engine.
pub enum Piece<'a> {
    Double(&'a [f64]),
    /// With the engine's own copy of the parameters: who changes them changes it too.
    Single {
        grad: &'a [f32],
        copy: &'a mut [f32],
    },
}

/// Takes pieces of a gradient.
pub trait Take: Sync {
    /// Takes a piece, from its first parameter on.
    fn take(&self, first: usize, piece: Piece);

    /// Where the numbers lie that [`Take::take`] will need from parameter `first` on, and how many bytes for each parameter, so
    /// that they can be fetched meanwhile. A null pointer stands for nothing.
    fn needs(&self, _first: usize) -> [(*const u8, usize); 3] {
        [(std::ptr::null(), 0); 3]
    }
}
