//! Data, statistics and models of all branches before the first step.

use super::input::{MultiInput, Weights};
use super::origin::Origin;
use super::state::MultiState;
use crate::infer::checkpoint::check_numbers;
use crate::launch::Launch;
use crate::model::dp::Dp;
use crate::model::dp::branches::{Branch, Common, Shared};
use crate::model::dp::options::ModelOptions;
use crate::model::dp::spec::DpStatistics;
use crate::model::dp::statistics::Summary;
use crate::neighbor::stat::NeighborStat;
use crate::sample::global_generator;
use crate::train::input::{Input, Length};
use crate::train::options::RunOptions;
use crate::train::setup::{
    DataSets, Setup, as_stored, drawn_frames, keep_global_batch, leave_out_unselected,
    load_or_compute_statistics, neighbor_statistics, open_data, resolve_sel, sample_distance,
    sample_statistics, shift_bias, start_of,
};
use crate::train::team::Team;
use crate::{Result, err};
use std::sync::Arc;

/// Everything that the loop needs.
pub struct MultiSetup {
    pub input: MultiInput,
    /// Each branch by itself; the parameters are those of its first step.
    pub branches: Vec<Setup>,
    pub common: Arc<Common>,
    /// The common vector.
    pub params: Vec<f64>,
    /// How often each branch is drawn.
    pub weights: Vec<f64>,
    /// Where a restarted run continues.
    pub resumed: Option<MultiState>,
    pub num_steps: u64,
}

/// A branch on its way to the first step.
struct Candidate {
    data: DataSets,
    neighbors: Option<Vec<NeighborStat>>,
    /// The model with the inputs that tell branches apart, and its parameters.
    whole: Dp,
    params: Vec<f64>,
    /// Frames that the statistics look at.
    frames: Vec<(usize, usize)>,
}

/// Does everything that comes before the first step.
pub fn setup(
    team: &mut Team,
    launch: &Launch,
    options: &RunOptions,
    mut input: MultiInput,
) -> Result<MultiSetup> {
    let start = start_of(team, launch, options, input.common())?;
    let origin = Origin::load(team, &start)?;
    if let Origin::Restart(state) = &origin
        && input.common().training.keep_global_batch
    {
        let kept = keep_global_batch(state.draws_per_step, team.n_groups(), team.ranks_per_group());
        if let Some(accumulation) = team.agree(kept)? {
            for branch in &mut input.branches {
                branch.input.training.gradient_accumulation = accumulation;
                branch.full["training"]["gradient_accumulation"] = accumulation.into();
            }
        }
    }
    let (data, neighbors) = open_all(team, options, &mut input, &origin)?;
    let model = input.model();
    let common = team.agree(Common::new(&model))?;
    let weights = weights(&input, &data);
    let mut candidates = candidates(&input, &model, data, neighbors);
    let stats = match &origin {
        Origin::Restart(state) => restarted(team, state, &model, &common)?,
        origin => begun(team, options, &input, &mut candidates, &weights, origin)?,
    };
    let mut params = match &origin {
        Origin::Restart(state) => state.params.clone(),
        _ => {
            let (wholes, own): (Vec<Dp>, Vec<Vec<f64>>) =
                candidates.iter().map(|c| (c.whole.clone(), c.params.clone())).unzip();
            common.initial(&wholes, &own)
        }
    };
    team.broadcast(&mut params)?;
    let mut setups = own_setups(team, &input, candidates, stats, &common, &params)?;
    shift_biases(team, &input, &origin, &mut setups)?;
    let num_steps = num_steps(&input, &setups, team.n_groups());
    setups.iter_mut().for_each(|setup| setup.num_steps = num_steps);
    let resumed = match origin {
        Origin::Restart(state) => Some(*state),
        _ => None,
    };
    Ok(MultiSetup { input, branches: setups, common: Arc::new(common), params, weights, resumed, num_steps })
}

/// The data of each branch, and the neighbours found in it.
type Opened = (Vec<DataSets>, Vec<Option<Vec<NeighborStat>>>);

/// Opens the data of all branches, and replaces "auto" where `sel` has it.
fn open_all(
    team: &mut Team,
    options: &RunOptions,
    input: &mut MultiInput,
    origin: &Origin,
) -> Result<Opened> {
    let (mut data, mut neighbors) = (Vec::new(), Vec::new());
    for branch in &mut input.branches {
        let at = |e: crate::Error| e.at(format!("branch {}", branch.name));
        log::info!("data of the branch {}:", branch.name);
        let own = open_data(team, &branch.input).map_err(at)?;
        leave_out_unselected(&mut branch.input.model, &mut branch.full, &own);
        let has_origin = !matches!(origin, Origin::Nothing);
        let found =
            neighbor_statistics(team, options, &branch.input.model, &own.training, has_origin).map_err(at)?;
        data.push(own);
        neighbors.push(found);
    }
    let together = merge_neighbors(input, &neighbors);
    for (branch, stats) in input.branches.iter_mut().zip(&together) {
        let saved = origin.options_of(&branch.name, branch.finetune_head.as_deref());
        let resolved = saved.and_then(|saved| {
            resolve_sel(&mut branch.input.model, &mut branch.full, stats.as_deref(), saved.as_ref())
        });
        team.agree(resolved.map_err(|e| e.at(format!("branch {}", branch.name))))?;
    }
    Ok((data, neighbors))
}

/// Branches that share a descriptor see the neighbours of all of them.
fn merge_neighbors(input: &MultiInput, own: &[Option<Vec<NeighborStat>>]) -> Vec<Option<Vec<NeighborStat>>> {
    let mut together = own.to_vec();
    for (branch, stats) in input.branches.iter().zip(&mut together) {
        for (k, shared) in branch.shares.descriptors.iter().enumerate() {
            let (Some(shared), Some(stats)) = (shared, stats.as_mut()) else { continue };
            for (other, theirs) in input.branches.iter().zip(own) {
                let place = other.shares.descriptors.iter().position(|s| s.as_ref() == Some(shared));
                if let (Some(place), Some(theirs)) = (place, theirs) {
                    stats[k] = stats[k].clone().merge(&theirs[place]);
                }
            }
        }
    }
    together
}

/// Draws what DeePMD-kit would draw for the same seeds: the parameters of all branches, then the frames of their statistics.
fn candidates(
    input: &MultiInput,
    model: &[Branch],
    data: Vec<DataSets>,
    neighbors: Vec<Option<Vec<NeighborStat>>>,
) -> Vec<Candidate> {
    // The generator is seeded anew for each data set that is opened.
    let last = data.last().map(|data| data.validation.as_ref().unwrap_or(&data.training).systems.len());
    let mut generator = global_generator(input.common().training.seed, last.unwrap_or(0));
    let own = model.iter().zip(data).zip(neighbors).map(|((branch, data), neighbors)| {
        let whole = branch.whole();
        let params = whole.initial_params(&mut generator);
        Candidate { data, neighbors, whole, params, frames: Vec::new() }
    });
    let mut all: Vec<Candidate> = own.collect();
    for (candidate, branch) in all.iter_mut().zip(&input.branches) {
        candidate.frames = drawn_frames(&mut generator, &branch.input, &candidate.data);
    }
    all
}

/// Statistics and shortest distance of each branch of a run that is continued.
fn restarted(
    team: &mut Team,
    state: &MultiState,
    model: &[Branch],
    common: &Common,
) -> Result<Vec<(DpStatistics, f64)>> {
    let checked = || {
        let names = |list: Vec<&str>| list.join(", ");
        let (saved, wanted): (Vec<&str>, Vec<&str>) = (
            state.about.branches.iter().map(|b| b.name.as_str()).collect(),
            model.iter().map(|b| b.name.as_str()).collect(),
        );
        if saved != wanted {
            return Err(err!(
                "the checkpoint has the branches {}, the input {}",
                names(saved),
                names(wanted)
            )
            .help("restart with the input that the run was started with, or train anew"));
        }
        let mut stats = Vec::with_capacity(model.len());
        for (saved, branch) in state.about.branches.iter().zip(model) {
            let at = |e: crate::Error| e.at(format!("branch {}", branch.name));
            let options = crate::infer::checkpoint::model_section(&saved.model).map_err(at)?;
            crate::train::dp_state::check_same_model(&options, &branch.options).map_err(at)?;
            if saved.shares != branch.shares {
                return Err(at(err!("it shares other parts than when the run was saved")
                    .help("restart with the input that the run was started with, or train anew")));
            }
            check_numbers(&state.params, &saved.statistics, saved.min_distance, &branch.options)
                .map_err(at)?;
            stats.push((saved.statistics.clone(), saved.min_distance));
        }
        if state.params.len() != common.table.len() {
            return Err(err!(
                "the checkpoint does not hold the {} parameters of this model",
                common.table.len()
            ));
        }
        Ok(stats)
    };
    team.agree(checked())
}

/// Statistics and shortest distance of each branch of a run that begins; the parameters are those that it begins with.
fn begun(
    team: &mut Team,
    options: &RunOptions,
    input: &MultiInput,
    candidates: &mut [Candidate],
    weights: &[f64],
    origin: &Origin,
) -> Result<Vec<(DpStatistics, f64)>> {
    let (mut summaries, mut distances) = (Vec::new(), Vec::new());
    for (branch, candidate) in input.branches.iter().zip(candidates.iter_mut()) {
        let Candidate { data, frames, neighbors, whole, params } = candidate;
        let found = load_or_compute_statistics(team, &branch.input, data, frames);
        let (summary, sampled) = found.map_err(|e| e.at(format!("branch {}", branch.name)))?;
        distances.push(match (neighbors, sampled) {
            (Some(stats), _) => stats.iter().map(|stat| stat.min_distance).fold(f64::INFINITY, f64::min),
            (None, Some(distance)) => distance,
            (None, None) => sample_distance(team, &branch.input, data, frames)?,
        });
        summaries.push(summary);
        if !options.pytorch_conventions && whole.is_energy() {
            whole.sharpen(params);
        }
    }
    merge_summaries(input, &mut summaries, weights);
    let mut all = Vec::with_capacity(summaries.len());
    for (((branch, summary), candidate), distance) in
        input.branches.iter().zip(summaries).zip(candidates).zip(distances)
    {
        let model = &branch.input.model;
        let stats = as_stored(summary.finish(model), model);
        let name = &branch.name;
        let taken = origin.take(
            name,
            branch.finetune_head.as_deref(),
            &candidate.whole,
            &mut candidate.params,
            stats,
        );
        let (stats, known) = team.agree(taken.map_err(|e| e.at(format!("branch {name}"))))?;
        all.push((stats, known.map_or(distance, |known| known.min(distance))));
    }
    Ok(all)
}

/// Statistics of what branches share are those of the data of all of them: of descriptors as they are, of parameters of frames and
/// atoms by how often a branch is drawn, as in DeePMD-kit.
fn merge_summaries(input: &MultiInput, summaries: &mut [Summary], weights: &[f64]) {
    let own = summaries.to_vec();
    let n_types = |k: usize| input.branches[k].input.model.type_map.len();
    for (b, branch) in input.branches.iter().enumerate() {
        for (part, shared) in branch.shares.descriptors.iter().enumerate() {
            let Some(shared) = shared.as_ref().filter(|shared| shared.level == 0) else { continue };
            let mut merged = None::<Vec<_>>;
            for (k, theirs) in sharing(input, shared) {
                let mut rows = own[k].clone();
                let rows = rows.rows_of(theirs, n_types(k));
                match &mut merged {
                    None => merged = Some(rows.to_vec()),
                    Some(sum) => sum.iter_mut().zip(rows).for_each(|(sum, more)| {
                        sum.0.add_weighted(&more.0, 1.0);
                        sum.1.add_weighted(&more.1, 1.0);
                    }),
                }
            }
            summaries[b].rows_of(part, n_types(b)).copy_from_slice(&merged.unwrap_or_default());
        }
        let Some(shared) = &branch.shares.fitting else { continue };
        let users = |k: &usize| input.branches[*k].shares.fitting.as_ref() == Some(shared);
        let users: Vec<usize> = (0..own.len()).filter(users).collect();
        let first = users[0];
        let (mut fparam, mut aparam) = (own[first].fparam.clone(), own[first].aparam.clone());
        for &k in &users[1..] {
            let times = weights[k] / weights[first];
            for (sums, more) in [(&mut fparam, &own[k].fparam), (&mut aparam, &own[k].aparam)] {
                for (sum, more) in sums.iter_mut().flatten().zip(more.iter().flatten()) {
                    sum.add_weighted(more, times);
                }
            }
        }
        (summaries[b].fparam, summaries[b].aparam) = (fparam, aparam);
    }
}

/// Who shares a descriptor wholly: branch, and which of its descriptors it is.
fn sharing<'a>(input: &'a MultiInput, shared: &'a Shared) -> impl Iterator<Item = (usize, usize)> + 'a {
    input.branches.iter().enumerate().flat_map(move |(k, branch)| {
        let own = branch.shares.descriptors.iter().enumerate();
        own.filter(|(_, s)| s.as_ref() == Some(shared)).map(move |(part, _)| (k, part))
    })
}

/// Each branch as the set-up of a run of its own.
fn own_setups(
    team: &mut Team,
    input: &MultiInput,
    candidates: Vec<Candidate>,
    stats: Vec<(DpStatistics, f64)>,
    common: &Common,
    params: &[f64],
) -> Result<Vec<Setup>> {
    // The same data gave everyone the same numbers, unless hosts round differently. Rank 0's count.
    let stats = team.from_root(|| Ok(stats))?;
    let n = input.branches.len() as u64;
    let branches = input.branches.iter().zip(candidates).zip(stats).zip(&common.views);
    let own = branches.map(|(((branch, candidate), (stats, min_distance)), view)| {
        let mut own = vec![0.0; view.len()];
        view.gather(&mut own, params);
        let mut of_branch: Input = branch.input.clone();
        of_branch.training.geometry_cache_bytes /= n;
        let options: ModelOptions = of_branch.model.clone();
        Setup {
            input: of_branch,
            full: branch.full.clone(),
            data: candidate.data,
            model: Arc::new(Dp::new(options, stats)),
            params: own,
            min_distance,
            resumed: None,
            num_steps: 0,
        }
    });
    Ok(own.collect())
}

/// Shifts the bias of branches that are adapted to other data.
fn shift_biases(team: &mut Team, input: &MultiInput, origin: &Origin, setups: &mut [Setup]) -> Result<()> {
    for (branch, setup) in input.branches.iter().zip(setups) {
        if !origin.shifts(&branch.name, branch.finetune_head.as_deref()) {
            continue;
        }
        let mut generator = global_generator(setup.input.training.seed, setup.data.training.systems.len());
        let frames = drawn_frames(&mut generator, &setup.input, &setup.data);
        let sampled = sample_statistics(team, &setup.input, &setup.data, frames)?;
        let mut model = (*setup.model).clone();
        shift_bias(team, &mut model, &setup.params, &setup.data.training, &setup.input, &sampled)?;
        setup.model = Arc::new(model);
    }
    Ok(())
}

/// How often each branch is drawn.
fn weights(input: &MultiInput, data: &[DataSets]) -> Vec<f64> {
    match &input.weights {
        Weights::Given(weights) => weights.clone(),
        Weights::BySystems => {
            log::info!("training.model_prob is not there: branches are drawn by the number of their systems");
            data.iter().map(|data| data.training.systems.len() as f64).collect()
        }
        Weights::ByEpochs => {
            input.branches.iter().zip(data).map(|(branch, data)| draws(&branch.input, data)).collect()
        }
    }
}

/// Draws of a branch that make its epochs.
fn draws(input: &Input, data: &DataSets) -> f64 {
    match input.training.length {
        Length::Epochs(epochs) => epochs * data.training.draws_per_epoch() as f64,
        Length::Steps(steps) => steps as f64,
    }
}

/// Steps of the whole run; epochs count draws of all groups of ranks.
fn num_steps(input: &MultiInput, branches: &[Setup], groups: usize) -> u64 {
    let training = &input.common().training;
    match training.length {
        Length::Steps(steps) => steps,
        Length::Epochs(_) => {
            let draws: f64 = branches.iter().map(|setup| draws(&setup.input, &setup.data)).sum();
            let steps = (draws / (groups * training.gradient_accumulation) as f64).ceil().max(1.0) as u64;
            log::info!("the epochs of all branches are {steps} steps");
            steps
        }
    }
}
