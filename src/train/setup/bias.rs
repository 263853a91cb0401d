//! The bias of outputs, fitted to what a model does not explain.

use super::Setup;
use super::statistics::{Drawn, Sampled, sample_statistics};
use crate::Result;
use crate::data::{Dataset, Frame};
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::type_embedding::plain;
use crate::engine::{Engine, Prediction};
use crate::model::dp::Dp;
use crate::model::dp::spec::DpStatistics;
use crate::model::dp::statistics::Sums;
use crate::neighbor::Cut;
use crate::train::input::Input;
use crate::train::team::Team;
use std::sync::Arc;

impl Setup {
    /// Statistics in which the energy bias is shifted by what these parameters leave unexplained.
    pub fn with_shifted_bias(&self, team: &mut Team, params: &[f64]) -> Result<DpStatistics> {
        let frames = Drawn::new(&self.input, &self.data).frames;
        let sampled = sample_statistics(team, &self.input, &self.data, frames)?;
        let mut model = (*self.model).clone();
        shift_bias(team, &mut model, params, &self.data.training, &self.input, &sampled)?;
        Ok(model.stats)
    }
}

/// Fits the bias to what the model does not explain of the new data.
pub fn shift_bias(
    team: &mut Team,
    model: &mut Dp,
    params: &[f64],
    data: &Arc<Dataset>,
    input: &Input,
    sampled: &Sampled,
) -> Result<()> {
    let mode = EmbeddingMode::Chebyshev { min_distance: sampled.min_distance };
    let params = &*plain(model, params);
    let mut engine = CpuEngine::<f64>::new(Arc::new(model.clone()), 1, mode)?;
    // Large frames are shared in blocks, the others go to the ranks in turn.
    let cut = Cut { part: team.rank(), parts: team.size(), steady: true };
    let is_large = |&&(s, _): &&(usize, usize)| cut.n_blocks(data.systems[s].n_atoms) > 1;
    let read = |&(s, k): &(usize, usize)| data.systems[s].read_frame(k);
    let prepare = engine.preparer();
    let mut rest = |frame: Frame| -> Result<Sums> {
        let mut out = Prediction::default();
        engine.evaluate(&mut out, params, &[&prepare(&frame)?]);
        Ok(Sums::of_outputs(&input.model, &out.taken_off(frame, 0, 0)))
    };
    let small = sampled.frames.iter().filter(|at| !is_large(at));
    let local = small.skip(team.rank()).step_by(team.size()).map(|at| rest(read(at)?));
    let local: Result<Vec<Sums>> = local.collect();
    let mine = team.agree(local)?;
    let everyones = team.gather(&mine)?;
    let (size, n) = (team.size(), sampled.frames.len());
    let mut small = (0..).map(|k| everyones[k % size][k / size].clone());
    let mut all = Vec::with_capacity(n);
    for at in &sampled.frames {
        all.push(match is_large(&at) {
            true => {
                Sums::of_outputs(&input.model, &rest_of_blocks(team, &mut engine, params, read(at), cut)?)
            }
            false => small.next().unwrap_or_default(),
        });
    }
    let sums = all.into_iter().reduce(Sums::merge).unwrap_or_default();
    let (shift, spread) = team.agree(sums.shift_and_spread(&input.model, n))?;
    let name = &model.output.name;
    log::info!("{name} bias {:?} is shifted by {shift:?}", model.stats.bias);
    for (bias, shift) in model.stats.bias.iter_mut().zip(shift) {
        *bias += shift;
    }
    if model.output.applied.takes_deviation() {
        model.stats.out_std = spread;
    }
    Ok(())
}

/// What a model does not explain of the labels of a frame that all ranks have read, each of which evaluates some of its blocks. The
/// same bits for every number of ranks: blocks are added up in their order.
fn rest_of_blocks(
    team: &mut Team,
    engine: &mut CpuEngine<f64>,
    params: &[f64],
    frame: Result<Frame>,
    cut: Cut,
) -> Result<Frame> {
    let mut own = Vec::new();
    let local = frame.and_then(|frame| {
        // Who has no block gets one without atoms, and with it the lengths of all lists.
        for block in engine.block_preparer(cut)(&frame)? {
            let mut out = Prediction::default();
            engine.evaluate(&mut out, params, &[&block.prepared]);
            own.push(out);
        }
        Ok(frame)
    });
    let frame = team.agree(local)?;
    let (n_blocks, places) = (cut.n_blocks(frame.n_atoms()), cut.own(frame.n_atoms()));
    let of_frame = |out: &Prediction| [&out.energy[..], &out.output].concat();
    let n = of_frame(&own[0]).len();
    let mut slots = vec![0.0; n_blocks * n];
    for (place, out) in places.clone().zip(&own) {
        slots[place * n..][..n].copy_from_slice(&of_frame(out));
    }
    team.sum(&mut slots)?;
    let sums = (0..n).map(|k| slots.iter().skip(k).step_by(n).sum());
    let sums: Vec<f64> = sums.collect();
    let (energy, output) = sums.split_at(own[0].energy.len());
    let mut all = Prediction { energy: energy.to_vec(), output: output.to_vec(), ..Prediction::default() };
    if frame.labels.atom_output.is_some() {
        // An atom is in one block, and zero in the others.
        all.atom_output = vec![0.0; own[0].atom_output.len()];
        for out in &own[..places.len()] {
            all.atom_output.iter_mut().zip(&out.atom_output).for_each(|(sum, x)| *sum += x);
        }
        team.sum(&mut all.atom_output)?;
    }
    Ok(all.taken_off(frame, 0, 0))
}
