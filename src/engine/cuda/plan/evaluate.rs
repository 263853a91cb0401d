//! Single configurations: a model that is only used, for atoms whose neighbours are known.
//!
//! Some centres at a time become a frame of their own, with those atoms alone that they see; so memory follows the atoms. CPU threads make
//! the next frames while the GPU works. Parameters are copied once. The second evaluation of pieces of about the same size is recorded,
//! all others are replayed.

use super::core::{PlanCore, Resident};
use super::frame::PlanFrame;
use super::graph::Rows;
use super::program::ATOM_VIRIALS;
use super::shape::{Common, Shape};
use crate::engine::cpu::frame::CpuFrames;
use crate::engine::cuda::core::Terms;
use crate::engine::cuda::layout::Turn;
use crate::engine::{Evaluation, Prediction};
use crate::gpu::{Buffer, Device, Graph, Launch, Ptr};
use crate::model::dp::Dp;
use crate::model::dp::geometry::Geometry;
use crate::{Result, err};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Centres that are worked on at a time, unless there is too little memory.
const CENTERS: usize = 2048;

/// A model on a GPU that is only used.
pub struct PlanEvaluator {
    core: PlanCore,
    /// Centres of a piece.
    centers: usize,
    /// `[places, 9]` virials of atoms of a piece.
    virials: Buffer<f64>,
    /// By shape and whether virials of atoms are wanted; `None`: done once, and to be recorded the next time.
    graphs: HashMap<(u64, bool), Option<Graph>>,
    generation: u64,
    records: bool,
    bytes: Vec<u8>,
}

/// Some centres as a frame.
struct Piece {
    frame: PlanFrame,
    /// What its atoms are among all.
    atoms: Vec<u32>,
}

impl PlanEvaluator {
    /// The device comes from [`super::program::open`].
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>, params: &[f64]) -> Result<Self> {
        let core = PlanCore::new(device, model, Terms { loss: None, virial: true })?;
        core.set_params(params)?;
        Ok(PlanEvaluator {
            centers: (core.chunk_bytes / bytes_of_center(&core.common)).clamp(1, CENTERS),
            virials: Buffer::zeroed(device, 9, "virials of atoms")?,
            graphs: HashMap::new(),
            generation: core.generation,
            records: std::env::var("PHALANX_GRAPHS").map_or(true, |value| value != "0"),
            bytes: Vec::new(),
            core,
        })
    }

    /// Works on at most so many centres at a time.
    pub fn with_centers(mut self, centers: usize) -> Self {
        self.centers = self.centers.min(centers).max(1);
        self
    }

    /// Evaluates a configuration, given its geometry for each of [`Dp::parts`]. Atoms of type -1 are neighbours and no centres.
    ///
    /// Takes all threads of the rayon pool that this is called from.
    pub fn evaluate(&mut self, geometries: &[Geometry], atom_virial: bool) -> Result<Evaluation> {
        let geometry = &geometries[0];
        let mut all = Evaluation::zeros(geometry.n_atoms(), atom_virial);
        // Ghosts stand behind the last centre.
        let n_centers = geometry.types.iter().rposition(|&t| t >= 0).map_or(0, |last| last + 1);
        let pieces: Vec<Range<usize>> = (0..n_centers)
            .step_by(self.centers)
            .map(|first| first..n_centers.min(first + self.centers))
            .filter(|centers| geometry.types[centers.clone()].iter().any(|&t| t >= 0))
            .collect();
        let (common, numbers) = (&self.core.common, self.core.device.numbers);
        let (parts, lists) = (common.parts.clone(), common.graph.lists.clone());
        let prepare = |centers: &Range<usize>| -> Result<Piece> {
            let mut frames = CpuFrames::<f64>::of_centers(&parts, geometries, centers.clone())?;
            let atoms = PlanFrame::number_anew(&mut frames);
            Ok(Piece { frame: PlanFrame::of_rows(&parts, &lists, &frames, numbers), atoms })
        };
        let prepare =
            |some: &[Range<usize>]| -> Result<Vec<Piece>> { some.par_iter().map(prepare).collect() };
        let mut rest = pieces.chunks(rayon::current_num_threads().max(1));
        let mut ready = rest.next().map_or(Ok(Vec::new()), prepare)?;
        while !ready.is_empty() {
            let work = || ready.iter().try_for_each(|piece| self.add(&mut all, piece, atom_virial));
            let (done, next) = rayon::join(work, || rest.next().map_or(Ok(Vec::new()), prepare));
            done?;
            ready = next?;
        }
        Ok(all)
    }

    /// Adds what some centres bring.
    fn add(&mut self, all: &mut Evaluation, piece: &Piece, atom_virial: bool) -> Result<()> {
        let mut found = Prediction::default();
        let virials = self.run(&mut found, &piece.frame, atom_virial)?;
        all.energy += found.energy[0];
        all.virial.iter_mut().zip(&found.virial[0]).for_each(|(sum, x)| *sum += x);
        for (k, &atom) in piece.atoms.iter().enumerate() {
            let atom = atom as usize;
            // A centre of one piece is seen in others, and has no energy there.
            all.atom_energy[atom] += found.atom_energy[k];
            (0..3).for_each(|c| all.force[3 * atom + c] += found.force[3 * k + c]);
            if atom_virial {
                (0..9).for_each(|c| all.atom_virial[9 * atom + c] += virials[9 * k + c]);
            }
        }
        Ok(())
    }

    /// The first pass of a piece; returns the virials of its atoms where they are wanted.
    fn run(&mut self, out: &mut Prediction, frame: &PlanFrame, atom_virial: bool) -> Result<Vec<f64>> {
        let core = &mut self.core;
        core.device.bind()?;
        core.store.clear(); // results of the last piece were read, so nobody reads its frame any more
        let full = || err!("the GPU has no room for {} atoms and their neighbours", frame.facts.n_centers);
        let batch = [core.bring(frame)?.ok_or_else(full)?];
        let arranged = core.arrange(&batch);
        let shape = core.shape(&arranged.class)?;
        core.numbers(&mut self.bytes, &Turn { count: 1.0, ..Turn::default() }, &batch, &arranged);
        core.set_turn(&self.bytes)?;
        let room = if atom_virial { 9 * shape.class.places } else { 0 };
        if self.virials.bytes() < 8 * room {
            core.device.synchronize()?;
            self.graphs.clear();
            self.virials = Buffer::zeroed(&core.device, room, "virials of atoms")?;
        }
        self.replay(&shape, atom_virial)?;
        self.core.prediction(out, &shape, &batch)?;
        self.read_virials(&batch, atom_virial)
    }

    /// All kernels of a shape, as they were recorded where they were.
    fn replay(&mut self, shape: &Shape, atom_virial: bool) -> Result<()> {
        if self.generation != self.core.generation {
            self.graphs.clear();
            self.generation = self.core.generation;
        }
        let key = (shape.id, atom_virial);
        match self.graphs.get(&key) {
            // SAFETY: whatever moves the memory of shapes forgets the graphs.
            Some(Some(graph)) => return unsafe { graph.launch() },
            Some(None) => {
                let graph = Graph::record(&self.core.device, || self.start(shape, atom_virial))?;
                // SAFETY: as above.
                unsafe { graph.launch()? };
                self.graphs.insert(key, Some(graph));
                return Ok(());
            }
            None => {}
        }
        if self.records {
            self.graphs.insert(key, None);
        }
        self.start(shape, atom_virial)
    }

    fn start(&self, shape: &Shape, atom_virial: bool) -> Result<()> {
        let core = &self.core;
        // SAFETY: the numbers that were brought are those of a batch of this shape's class.
        unsafe { core.first_pass(shape)? };
        if !atom_virial {
            return Ok(());
        }
        let entries = Ptr::at(shape.chunks[0].chunk.entries);
        let arguments = (shape.batch, entries, core.n_parts(), self.virials.ptr());
        let warps = Launch::new(shape.class.places.div_ceil(8), 256);
        // SAFETY: see the module of this engine; there is room for the virials of all places.
        unsafe { ATOM_VIRIALS.launch(&core.device, core.device.stream(), warps, arguments) }
    }

    fn read_virials(&self, batch: &[Resident], wanted: bool) -> Result<Vec<f64>> {
        let mut virials = vec![0.0; if wanted { 9 * batch[0].facts.n_atoms } else { 0 }];
        if wanted {
            self.virials.read(0, &mut virials)?;
        }
        Ok(virials)
    }
}

/// Bytes that the matrices of a centre take whose slots are all taken.
fn bytes_of_center(common: &Common) -> usize {
    let rows = |rows: Rows| match rows {
        Rows::Pairs(k) => common.parts[k].n_sel(),
        Rows::Squares(k) => common.parts[k].n_sel().pow(2),
        Rows::Couples(k) => {
            let sel = common.parts[k].sel();
            (0..sel.len()).map(|b| sel[b] * sel[..=b].iter().sum::<usize>()).sum()
        }
        _ => 1,
    };
    let kinds = common.kinds.iter().zip(&common.row_bytes);
    kinds.map(|(&(kind, _), bytes)| rows(kind) * bytes).sum::<usize>().max(1)
}
