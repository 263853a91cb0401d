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
pub mod nets;
pub mod chebyshev;
pub mod panels;
pub mod walk;
pub mod evaluate;
pub mod pairs;
mod distances;
pub mod frame;
mod features;
pub mod descriptor;
pub mod jets;
pub mod direct;
mod angle_series;
mod angles;
mod attention;
pub mod fitting;
mod vacuum;
pub mod laps;
mod batch;
mod blocks;
mod outputs;
mod turned;
mod part;
#[cfg(test)]
mod tests;

use super::{Block, BlockPreparer, Engine, Prediction, Preparer, Seeds, Take};
use crate::Result;
use crate::model::dp::Dp;
use crate::model::dp::geometry::lists_of;
use crate::model::dp::options::Form;
use crate::neighbor::Cut;
use batch::Inputs;
use chebyshev::Plan;
use fitting::Fitting;
use fitting::fold::Fold;
use frame::{CpuFrames, FramesOfPart, empty_slot};
use laps::{Laps, Stage};
use part::Part;
use pool::Pool;
use real::Real;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use turned::{Rows, Turned};
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
    /// One for each descriptor: [`Dp::parts`].
    models: Arc<[Arc<Dp>]>,
    parts: Vec<Part<T>>,
    pool: Pool,
    fitting: Fitting<T>,
    vacuum: Vacuum,
    turned: Turned,
    /// By type: dL/denergy of the atoms, and inputs of the fitting nets beside the descriptor.
    dl_e: Vec<Vec<f64>>,
    /// By type, where a table of pair energies has a part: the share of the nets in the energy of each atom. By atom: what the nets said.
    shares: Vec<Vec<f64>>,
    net_energies: Vec<f64>,
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
        let models = model.parts();
        // The square that may be folded comes first among the inputs.
        let square = models[0].descriptor().form().square();
        let fitting = Fitting::new(model.fitting.clone(), square, model.is_energy());
        let inputs = place_inputs(&models, fitting.fold());
        let parts = models.iter().zip(inputs).map(|(model, inputs)| Part::new(model, inputs, mode));
        Ok(CpuEngine {
            pool: Pool::new(threads)?,
            parts: parts.collect(),
            fitting,
            vacuum: Vacuum::default(),
            turned: Turned::default(),
            dl_e: Vec::new(),
            shares: Vec::new(),
            net_energies: Vec::new(),
            extra: Vec::new(),
            weights: Vec::new(),
            copied: None,
            frozen: false,
            gradient: Vec::new(),
            laps: Laps::default(),
            models: models.into(),
            model,
        })
    }

    /// Continues with the series of an earlier run, given what [`Engine::state`] said of it.
    pub fn resume(&mut self, state: &serde_json::Value) {
        for (k, part) in self.parts.iter_mut().enumerate() {
            part.resume(if self.model.options.descriptors.is_hybrid { &state[k] } else { state });
        }
    }

    /// Expands the nets and copies the weights once for all evaluations of these parameters, which must stay where they are and
    /// what they are until [`Engine::forget_parameters`].
    pub fn freeze(&mut self, params: &[f64]) {
        for part in &mut self.parts {
            if let Some(attention) = &mut part.buffers.attention {
                attention.step.prepare(&part.model, params);
            }
            if let Some(plan) = part.expand(&self.pool, params) {
                part.buffers.stack_coefficients(&part.model, &plan, &part.series);
            }
        }
        T::copy(params, &mut self.weights, &self.pool);
        self.copied = Some(params.as_ptr().addr());
        self.frozen = true;
    }

    /// The models of the descriptors, in the order of the parts of a frame.
    pub fn models(&self) -> &Arc<[Arc<Dp>]> {
        &self.models
    }

    /// The series in force for the first descriptor; `None` where the net itself is used.
    pub fn plan(&self) -> Option<&Plan> {
        self.parts[0].plan.as_deref()
    }

    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Expands the embedding nets of all descriptors.
    fn expand(&mut self, params: &[f64]) {
        self.frozen = false;
        for part in &mut self.parts {
            part.expand(&self.pool, params);
        }
    }
}

/// Numbers of atoms by type as lists of the fitting nets: one net for all types has the atoms of one after another.
fn by_net<'a>(model: &Dp, by_type: &'a [Vec<f64>]) -> Cow<'a, [Vec<f64>]> {
    match model.fitting.len() == by_type.len() {
        true => Cow::Borrowed(by_type),
        false => Cow::Owned(vec![by_type.concat()]),
    }
}

/// Where the numbers of each descriptor stand among the inputs of the fitting nets, the first of them folded.
fn place_inputs(models: &[Arc<Dp>], fold: Fold) -> Vec<Inputs> {
    let n_extra = models[0].n_extra();
    let (mut end, mut rows) = (0, 0);
    let mut inputs: Vec<Inputs> = models
        .iter()
        .enumerate()
        .map(|(k, model)| {
            let fold = if k == 0 { fold } else { Fold::NONE };
            let first = end;
            end += fold.width(model.n_descriptor());
            let directions = Rows { first: rows, all: 0 };
            rows += model.n_embed();
            Inputs { fold, first, end, width: 0, is_last: k + 1 == models.len(), directions }
        })
        .collect();
    for inputs in &mut inputs {
        inputs.width = end + n_extra;
        inputs.directions.all = rows;
    }
    inputs
}

/// From the argument of an empty slot (s = 0) to that of the shortest distance, over all centre types.
pub(crate) fn argument_range(model: &Dp, min_distance: f64) -> (f64, f64) {
    // Distances of other frames may be a little shorter: leave room before the direct path has to take over.
    let r = (0.95 * min_distance).clamp(1e-3, model.descriptor().rcut);
    let [s, ..] = super::reference::env::radial(model.descriptor(), r);
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    for center in 0..model.n_types() {
        if model.descriptor().form() == Form::Angles {
            let x = frame::largest_product(model, center, r);
            range = (range.0.min(-x), range.1.max(x));
            continue;
        }
        let high = (s - model.stats.davg[center][0]) / model.stats.dstd[center][0];
        range = (range.0.min(empty_slot(model, center)), range.1.max(high));
    }
    range
}

impl<T: Real> Engine for CpuEngine<T> {
    type Prepared = CpuFrames<T>;

    fn preparer(&self) -> Preparer<CpuFrames<T>> {
        let models = self.models.clone();
        Arc::new(move |frame| CpuFrames::prepare(&models, frame))
    }

    fn block_preparer(&self, cut: Cut) -> BlockPreparer<CpuFrames<T>> {
        let models = self.models.clone();
        Arc::new(move |frame| {
            let lists = lists_of(&models[0], frame, cut)?;
            let of = |list| Ok(Block::of(list, CpuFrames::of_list(&models, frame, list)?));
            lists.iter().map(of).collect()
        })
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
        self.frozen = false;
        for part in &mut self.parts {
            part.reconsider(&self.pool, params);
        }
    }

    fn state(&self) -> serde_json::Value {
        let mut states = self.parts.iter().map(Part::state);
        match self.model.options.descriptors.is_hybrid {
            true => states.collect(),
            false => states.next_back().unwrap_or_default(),
        }
    }

    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&CpuFrames<T>]) {
        self.laps.start();
        if !self.frozen {
            self.expand(params);
        }
        if self.copied != Some(params.as_ptr().addr()) {
            T::copy(params, &mut self.weights, &self.pool);
        }
        let fitted = self.model.fitting_params();
        debug_assert!(
            T::is_copy(&params[fitted.clone()], &T::viewed(params, &self.weights)[fitted]),
            "a copy of the parameters"
        );
        let weights = T::viewed(params, &self.weights);
        let frames = |part| FramesOfPart::new(batch, part);
        for (k, part) in self.parts.iter_mut().enumerate() {
            part.arrange(params, frames(k), self.frozen);
        }
        self.fitting.resize(&self.parts[0].layout.group_sizes);
        if self.model.options.short_range.is_some() {
            let (first, ..) = self.parts[0].batch(params, frames(0));
            first.shares(&mut self.shares);
            self.fitting.put_shares(&by_net(&self.model, &self.shares));
        }
        self.laps.lap(Stage::Series);
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, frames(k));
            blocks::describe(&self.pool, &batch, buffers, &mut self.fitting);
        }
        self.laps.lap(Stage::Describe);
        self.fitting.forward(&self.pool, weights);
        if self.model.output.made.is_turned() {
            for (k, part) in self.parts.iter_mut().enumerate() {
                let (batch, buffers, _) = part.batch(params, frames(k));
                self.turned.resize(&batch);
                self.turned.take(&batch, &buffers.a);
            }
            let (first, ..) = self.parts[0].batch(params, frames(0));
            turned::forward(&self.pool, &first, &mut self.turned, &self.fitting);
        }
        let (first, ..) = self.parts[0].batch(params, frames(0));
        if !self.model.is_energy() {
            self.laps.lap(Stage::FittingForward);
            outputs::collect(out, &first, &self.turned.outputs, &self.fitting);
            return self.laps.lap(Stage::Collect);
        }
        first.extra_inputs(&mut self.extra);
        self.vacuum.forward(&self.model, params, &self.extra);
        self.laps.lap(Stage::FittingForward);
        self.fitting.backward_input(&self.pool, weights);
        self.laps.lap(Stage::FittingBackward);
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, frames(k));
            blocks::differentiate(&self.pool, &batch, buffers, &self.fitting);
        }
        self.laps.lap(Stage::Differentiate);
        let (first, ..) = self.parts[0].batch(params, frames(0));
        blocks::energies(out, &first, &self.fitting, &self.vacuum);
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, frames(k));
            blocks::forces_add(&self.pool, out, &batch, buffers);
        }
        if self.model.options.short_range.is_some() {
            self.net_energies.clone_from(&out.atom_energy);
            for (f, frame) in batch.iter().enumerate() {
                frame.blend.apply(out, &self.model, f, self.parts[0].layout.first_atom[f]);
            }
        }
        self.laps.lap(Stage::Collect);
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&CpuFrames<T>], seeds: &Seeds) {
        self.second_pass(grad, params, batch, seeds);
        let gradient = T::target(grad, &mut self.gradient);
        self.fitting.gradient(&self.pool, gradient);
        T::deliver(grad, &self.gradient, self.model.fitting_params().start, &self.pool);
        if self.model.is_energy() {
            self.vacuum.backward_add(grad, &self.model, params, &self.dl_e);
        }
        self.laps.lap(Stage::FittingGradient);
    }

    fn backward_but_pieces(
        &mut self,
        grad: &mut [f64],
        params: &[f64],
        batch: &[&CpuFrames<T>],
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
    pub fn atom_virial_add(&self, out: &mut [f64], frame: &CpuFrames<T>) {
        for (part, frame) in self.parts.iter().zip(&frame.parts) {
            blocks::atom_virial_add(&self.pool, out, frame, &part.buffers);
        }
        frame.blend.atom_virial_add(out, &self.model, &self.net_energies);
    }

    /// The descriptor of each atom `[n_atoms, width]`, after [`Engine::evaluate`] of this frame alone; zeros for others than the
    /// atoms of the model.
    pub fn descriptors(&self, out: &mut [f64], frame: &CpuFrames<T>) {
        out.fill(0.0);
        let (mut first, width) = (0, self.model.n_descriptor());
        for (part, frame) in self.parts.iter().zip(&frame.parts) {
            blocks::descriptors(out, (first, width), &part.model, frame, &part.layout, &part.buffers);
            first += part.model.n_descriptor();
        }
    }

    /// Adds the derivatives by positions of one component of what is no energy, summed over the centres of a frame, after
    /// [`Engine::evaluate`] of this frame alone: the signs are those of an energy, `force = -d/dx`.
    ///
    /// - force        out  `[n_atoms, 3]`
    /// - virial       out  the sum of those of atoms
    /// - atom_virial  out  `[n_atoms, 9]`, or nothing; see [`CpuEngine::atom_virial_add`]
    pub fn component_add(
        &mut self,
        (force, virial, atom_virial): (&mut [f64], &mut [f64; 9], &mut [f64]),
        params: &[f64],
        frame: &CpuFrames<T>,
        component: usize,
    ) {
        assert!(!self.model.is_energy(), "an energy has its forces already");
        let (width, n_atoms) = (self.model.output.width, frame.parts[0].n_atoms);
        let mut seeds = Seeds {
            dl_output: vec![0.0; width],
            dl_atom_output: vec![0.0; n_atoms * width],
            ..Seeds::default()
        };
        seeds.dl_output[component] = 1.0;
        let batch = [frame];
        self.output_pass(params, &batch, &seeds);
        let mut out =
            Prediction { force: vec![0.0; 3 * n_atoms], virial: vec![[0.0; 9]], ..Prediction::default() };
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, FramesOfPart::new(&batch, k));
            blocks::differentiate_output(&self.pool, &batch, buffers);
            blocks::forces_add(&self.pool, &mut out, &batch, buffers);
        }
        force.iter_mut().zip(&out.force).for_each(|(sum, x)| *sum += x);
        // That of an energy is symmetric; here the order matters.
        virial.iter_mut().enumerate().for_each(|(n, sum)| *sum += out.virial[0][n % 3 * 3 + n / 3]);
        if !atom_virial.is_empty() {
            self.atom_virial_add(atom_virial, frame);
        }
    }

    /// The last hidden layer of the fitting net of each atom `[n_atoms, width]`, after [`Engine::evaluate`] of this frame alone; zeros for
    /// others than the atoms of the model.
    pub fn last_hidden(&self, out: &mut [f64], frame: &CpuFrames<T>) {
        out.fill(0.0);
        let (first, layout) = (&frame.parts[0], &self.parts[0].layout);
        let width = self.model.fitting[0].layers.last().map_or(0, |layer| layer.n_in);
        for s in &layout.segments {
            let net = self.model.fitting_net(s.center);
            let rows = self.fitting.last_hidden(net, s.row - layout.group_rows[net], s.n);
            for (k, row) in rows.chunks_exact(width).enumerate() {
                let atom = first.order[s.local + k] as usize;
                let to = &mut out[atom * width..(atom + 1) * width];
                to.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_f64());
            }
        }
    }

    /// The reverse pass of a model that predicts no energy down to derivatives by A, without the gradient of any net.
    fn output_pass(&mut self, params: &[f64], batch: &[&CpuFrames<T>], seeds: &Seeds) {
        self.seed_outputs(params, batch, seeds);
        self.fitting.backward(&self.pool, T::viewed(params, &self.weights));
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, FramesOfPart::new(batch, k));
            blocks::adjoint(&self.pool, &batch, buffers, &self.fitting, &self.turned);
        }
    }

    /// The last hidden layer's derivatives by way of what is no energy.
    fn seed_outputs(&mut self, params: &[f64], batch: &[&CpuFrames<T>], seeds: &Seeds) {
        let (first, ..) = self.parts[0].batch(params, FramesOfPart::new(batch, 0));
        outputs::put_seeds(&mut self.fitting, &first, &mut self.turned.dl_outputs, seeds);
        if self.model.output.made.is_turned() {
            turned::adjoint(&self.pool, &first, &mut self.turned, &mut self.fitting);
        }
        self.fitting.output_adjoint(&self.pool, T::viewed(params, &self.weights));
    }

    /// The second pass without the gradient of the fitting nets.
    fn second_pass(&mut self, grad: &mut [f64], params: &[f64], batch: &[&CpuFrames<T>], seeds: &Seeds) {
        self.laps.start();
        let frames = |part| FramesOfPart::new(batch, part);
        if self.model.is_energy() {
            for (k, part) in self.parts.iter_mut().enumerate() {
                let (batch, buffers, _) = part.batch(params, frames(k));
                blocks::tangent(&self.pool, &batch, buffers, &mut self.fitting, seeds);
            }
            self.laps.lap(Stage::Tangent);
            let (first, ..) = self.parts[0].batch(params, frames(0));
            first.energy_seeds(&mut self.dl_e, seeds);
            let weights = T::viewed(params, &self.weights);
            self.fitting.tangent(&self.pool, weights, &by_net(&self.model, &self.dl_e));
        } else {
            self.seed_outputs(params, batch, seeds);
        }
        self.laps.lap(Stage::FittingTangent);
        self.fitting.backward(&self.pool, T::viewed(params, &self.weights));
        self.laps.lap(Stage::FittingReverse);
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, _) = part.batch(params, frames(k));
            blocks::adjoint(&self.pool, &batch, buffers, &self.fitting, &self.turned);
        }
        self.laps.lap(Stage::Adjoint);
        for (k, part) in self.parts.iter_mut().enumerate() {
            let (batch, buffers, series) = part.batch(params, frames(k));
            blocks::embedding_gradient(&self.pool, grad, &batch, buffers, series, &self.fitting);
        }
        self.laps.lap(Stage::Embedding);
    }
}
