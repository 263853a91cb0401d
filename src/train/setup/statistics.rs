//! Statistics of the training data.

use super::DataSets;
use crate::data::{Dataset, Frame};
use crate::export::stat_file::StatFile;
use crate::model::dp::Dp;
use crate::model::dp::options::{ModelOptions, Precision};
use crate::model::dp::spec::DpStatistics;
use crate::model::dp::statistics::{Summary, Sums};
use crate::neighbor::Cut;
use crate::neighbor::stat::NeighborStat;
use crate::sample::torch::Generator;
use crate::sample::{frames_for_statistics, global_generator};
use crate::train::input::Input;
use crate::train::team::Team;
use crate::{Result, err};
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sums over the frames that the statistics look at, and the shortest distance among them.
pub struct Sampled {
    pub sums: Sums,
    pub min_distance: f64,
    /// System and frame, in the order of the sums.
    pub frames: Vec<(usize, usize)>,
}

/// What DeePMD-kit would draw for the same seeds before the first step.
pub struct Drawn {
    pub params: Vec<f64>,
    /// System and frame, system by system.
    pub frames: Vec<(usize, usize)>,
}

impl Drawn {
    pub fn new(input: &Input, data: &DataSets) -> Drawn {
        let last_opened = data.validation.as_ref().unwrap_or(&data.training);
        let mut generator = global_generator(input.training.seed, last_opened.systems.len());
        let params = Dp::new(input.model.clone(), DpStatistics::default()).initial_params(&mut generator);
        Drawn { params, frames: drawn_frames(&mut generator, input, data) }
    }
}

/// The frames that the statistics look at: system and frame, system by system.
pub fn drawn_frames(generator: &mut Generator, input: &Input, data: &DataSets) -> Vec<(usize, usize)> {
    let n_frames: Vec<usize> = data.training.systems.iter().map(|system| system.n_frames).collect();
    let (sizes, n_batches) = (&data.training.batch_sizes, input.model.data_stat_nbatch);
    let chosen = frames_for_statistics(generator, &n_frames, sizes, n_batches);
    chosen.iter().enumerate().flat_map(|(s, frames)| frames.iter().map(move |&k| (s, k))).collect()
}

/// What this rank does of some frames: every N-th of them, and of those with many atoms its blocks, where blocks are allowed. They do
/// not depend on the number of ranks.
pub fn own_work(
    team: &Team,
    data: &Dataset,
    frames: &[(usize, usize)],
    in_blocks: bool,
) -> Vec<(usize, usize, Cut)> {
    let cut = Cut { part: team.rank(), parts: team.size(), steady: true };
    let mut work = Vec::new();
    for (number, &(s, k)) in frames.iter().enumerate() {
        let n_atoms = data.systems[s].n_atoms;
        if in_blocks && cut.n_blocks(n_atoms) > 1 {
            if !cut.own(n_atoms).is_empty() {
                work.push((s, k, cut));
            }
        } else if number % team.size() == team.rank() {
            work.push((s, k, Cut::WHOLE));
        }
    }
    work
}

/// What `of_blocks` says of each frame, block by block, in their order. The work is shared over ranks; frames are cut into blocks where
/// ranks share them later too, or where the number of ranks must not matter.
fn of_frames<T: Serialize + DeserializeOwned + Send + Clone>(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: &[(usize, usize)],
    of_blocks: impl Fn(&Frame, Cut) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let in_blocks = team.ranks_per_group() > 1 || input.training.reproducible;
    let own = own_work(team, &data.training, frames, in_blocks);
    let at = |&(s, k, cut): &(usize, usize, Cut)| {
        let system = &data.training.systems[s];
        of_blocks(&system.read_frame(k)?, cut).map_err(|e| e.at(format!("{}: frame {k}", system.path)))
    };
    let local: Result<Vec<Vec<T>>> = own.par_iter().map(at).collect();
    let local = team.agree(local)?;
    let mine: Vec<(usize, usize, Vec<T>)> =
        own.iter().zip(local).map(|(&(s, k, _), found)| (s, k, found)).collect();
    let everyones = team.gather(&mine)?;
    let mut next = vec![0; everyones.len()];
    let mut all = Vec::new();
    for frame in frames {
        // A rank has the frames in this order, and lower ranks have lower blocks.
        for (theirs, next) in everyones.iter().zip(&mut next) {
            if let Some((_, _, found)) = theirs.get(*next).filter(|(s, k, _)| (*s, *k) == *frame) {
                all.extend(found.iter().cloned());
                *next += 1;
            }
        }
    }
    Ok(all)
}

/// The shortest distance in somebody's blocks of a frame, as a number that JSON can hold.
fn shortest_distance(model: &ModelOptions, frame: &Frame, cut: Cut) -> Result<f64> {
    let (rcut, n_types) = (model.descriptors.rcut(), model.type_map.len());
    Ok(NeighborStat::of_blocks(frame, rcut, n_types, cut)?.min_distance.min(f64::MAX))
}

/// The sums are added in the order of the frames, whatever the number of ranks is.
pub fn sample_statistics(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: Vec<(usize, usize)>,
) -> Result<Sampled> {
    let of_blocks = |frame: &Frame, cut: Cut| {
        let distance = shortest_distance(&input.model, frame, cut)?;
        Ok(Sums::of_blocks(&input.model, frame, cut)?.into_iter().map(|sums| (sums, distance)).collect())
    };
    let found = of_frames(team, input, data, &frames, of_blocks)?;
    let min_distance = found.iter().fold(f64::INFINITY, |least, (_, d)| least.min(*d));
    let sums = found.into_iter().map(|(sums, _)| sums).reduce(Sums::merge);
    let sums = team.agree(sums.ok_or_else(|| err!("there is no frame to take statistics from")))?;
    Ok(Sampled { sums, min_distance, frames })
}

/// The shortest distance among the frames that statistics look at.
pub fn sample_distance(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: &[(usize, usize)],
) -> Result<f64> {
    let of_blocks = |frame: &Frame, cut: Cut| Ok(vec![shortest_distance(&input.model, frame, cut)?]);
    let found = of_frames(team, input, data, frames, of_blocks)?;
    Ok(found.into_iter().fold(f64::INFINITY, f64::min))
}

/// Statistics from `stat_file` where they are there, from the data where not; with the shortest distance seen on
/// the way. What was missing is added to the file.
pub fn load_or_compute_statistics(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: &[(usize, usize)],
) -> Result<(Summary, Option<f64>)> {
    let file = input.training.stat_file.as_deref().map(StatFile::new);
    let known = match &file {
        Some(file) => team.from_root(|| file.load(&input.model))?,
        None => Summary::default(),
    };
    if known.is_complete() {
        return Ok((known, None));
    }
    let sampled = sample_statistics(team, input, data, frames.to_vec())?;
    let computed = team.agree(sampled.sums.summary(&input.model))?;
    if let (None, Some((bias, _))) = (&known.output, &computed.output)
        && sampled.sums.n_labels(&input.model) > 0
    {
        let output = input.model.fitting.output();
        let per_atom = if output.is_intensive { "" } else { "per atom " };
        let (name, rmse) = (&output.name, sampled.sums.rmse(&input.model, bias));
        log::info!("RMSE of {name} {per_atom}after linear regression is: {rmse} in the unit of {name}.");
    }
    if let Some(file) = &file {
        team.from_root(|| file.save(&input.model, &computed.clone().beyond(&known)))?;
    }
    Ok((known.or(computed), Some(sampled.min_distance)))
}

/// Statistics in the precision in which a model file stores them, so that a file predicts what was trained.
pub fn as_stored(mut stats: DpStatistics, model: &ModelOptions) -> DpStatistics {
    let round = |x: &mut f64| *x = f64::from(*x as f32);
    for rows in [&mut stats.davg, &mut stats.dstd] {
        for (se, rows) in model.descriptors.list.iter().zip(rows.chunks_exact_mut(model.type_map.len())) {
            if se.precision == Precision::Float32 {
                rows.iter_mut().flatten().for_each(round);
            }
        }
    }
    if model.fitting.precision == Precision::Float32 {
        let lists = [
            &mut stats.fparam_avg,
            &mut stats.fparam_inv_std,
            &mut stats.aparam_avg,
            &mut stats.aparam_inv_std,
        ];
        lists.into_iter().flatten().for_each(round);
    }
    stats
}
