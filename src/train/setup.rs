//! Data, statistics and model before the first step.
//!
//! Whatever is computed from the data is computed once for the whole job, the work shared over ranks; every rank
//! then has the same numbers.

use super::dp_state::{DpState, check_same_model, check_same_optimizer};
use super::input::{Input, Length};
use super::options::{InputSource, RunOptions, Start};
use super::resume;
use super::same;
use super::team::Team;
use super::warnings;
use crate::checkpoint::Checkpoint;
use crate::data::field::{Field, Need};
use crate::data::{Dataset, Frame, System, Wants};
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::{Engine, Prediction};
use crate::export::stat_file::StatFile;
use crate::infer::branches::{RANDOM, SavedBranches};
use crate::infer::checkpoint::check_numbers;
use crate::infer::load::{load_branch, load_checkpoint, load_model};
use crate::launch::Launch;
use crate::model::dp::Dp;
use crate::model::dp::options::{DescriptorOptions, ModelOptions, Sel};
use crate::model::dp::short_range::PairTable;
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::model::dp::statistics::{Summary, Sums};
use crate::neighbor::Cut;
use crate::neighbor::stat::NeighborStat;
use crate::sample::torch::Generator;
use crate::sample::{frames_for_statistics, global_generator};
use crate::{Result, bail, err};
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Everything that the loop needs.
pub struct Setup {
    pub input: Input,
    /// The input with all defaults and `sel` as numbers: `out.json`.
    pub full: Value,
    pub data: DataSets,
    pub model: Arc<Dp>,
    pub params: Vec<f64>,
    /// Shortest distance of the training data, A.
    pub min_distance: f64,
    /// Where a restarted run continues.
    pub resumed: Option<DpState>,
    /// Steps of the whole run.
    pub num_steps: u64,
}

/// The data of a run.
#[derive(Clone)]
pub struct DataSets {
    pub training: Arc<Dataset>,
    pub validation: Option<Arc<Dataset>>,
}

/// Does everything that comes before the first step; `full` is the input with all defaults.
pub fn setup(
    team: &mut Team,
    launch: &Launch,
    options: &RunOptions,
    mut input: Input,
    mut full: Value,
) -> Result<Setup> {
    let start = start_of(team, launch, options, &input)?;
    let origin = load_origin(team, &start, finetune_branch(options, &full))?;
    if let Some(Origin::Restart(state)) = &origin {
        team.agree(check_same_optimizer(&state.about.input, &full))?;
    }
    if let Some(Origin::Restart(state)) = &origin
        && input.training.keep_global_batch
    {
        let kept = keep_global_batch(state.draws_per_step, team.n_groups(), team.ranks_per_group());
        if let Some(accumulation) = team.agree(kept)? {
            input.training.gradient_accumulation = accumulation;
            full["training"]["gradient_accumulation"] = accumulation.into();
        }
    }
    if let (Some(origin), true) = (&origin, options.use_pretrain_script) {
        input.model = origin.options()?;
        full["model"] = input.model.script.clone();
    }
    let data = open_data(team, &input)?;
    let neighbors = neighbor_statistics(team, options, &input.model, &data.training, origin.is_some())?;
    let saved = origin.as_ref().map(Origin::options).transpose()?;
    let resolved = resolve_sel(&mut input.model, &mut full, neighbors.as_deref(), saved.as_ref());
    team.agree(resolved)?;
    let (mut model, params, min_distance) = match &origin {
        None => fresh_model(team, options, &input, &data, neighbors.as_deref())?,
        Some(origin) => origin.model(team, &input, &data, matches!(start, Start::Finetune(_)))?,
    };
    // The same data gave everyone the same numbers, unless hosts round differently. Rank 0's count.
    let (stats, min_distance) = team.from_root(|| Ok((model.stats.clone(), min_distance)))?;
    model.stats = stats;
    let mut params = params;
    team.broadcast(&mut params)?;
    let num_steps = num_steps(&input, &data.training, team.n_groups());
    let resumed = match origin {
        Some(Origin::Restart(state)) => Some(*state),
        _ => None,
    };
    Ok(Setup { input, full, data, model: Arc::new(model), params, min_distance, resumed, num_steps })
}

/// The branch that fine-tuning starts from, where the command line or else the input names one.
fn finetune_branch<'a>(options: &'a RunOptions, full: &'a Value) -> &'a str {
    match options.model_branch.as_str() {
        "" => full["model"]["finetune_head"].as_str().unwrap_or(""),
        name => name,
    }
}

/// What a run starts from, which may be what the same run has saved before.
pub(super) fn start_of(
    team: &mut Team,
    launch: &Launch,
    options: &RunOptions,
    input: &Input,
) -> Result<Start> {
    let save_ckpt = &input.training.save_ckpt;
    // Who names a checkpoint means that one.
    let named = matches!(options.start, Start::Restart(_));
    let found = match !named && options.resume.unwrap_or(input.training.resume) {
        true => team.from_root(|| resume::newest(save_ckpt))?,
        false => resume::after_restart(team, launch, save_ckpt)?,
    };
    Ok(found.map_or(options.start.clone(), Start::Restart))
}

/// Opens the data of a run, and warns of what is hardly meant.
pub(super) fn open_data(team: &mut Team, input: &Input) -> Result<DataSets> {
    let wants = input.loss.wants(&input.model.fitting);
    let training = open(team, &input.training.training_data, &input.model, &wants, "training")?;
    let validation = match &input.training.validation_data {
        Some(data) => Some(open(team, data, &input.model, &wants, "validation")?),
        None => None,
    };
    let data = DataSets { training, validation };
    if team.is_root() {
        let lists = [("training", Some(&data.training)), ("validation", data.validation.as_ref())];
        let lists = lists.into_iter().filter_map(|(name, list)| Some((name, list?)));
        let missing =
            lists.flat_map(|(name, list)| warnings::missing_labels(list, name, &input.loss, &wants));
        missing.chain(warnings::doubled(&data)).for_each(|line| log::warn!("{line}"));
    }
    Ok(data)
}

/// Rank 0 reads the input; all have the same, a random seed included.
pub fn read_input(team: &mut Team, source: &InputSource) -> Result<(Input, Value)> {
    let mut parsed = None;
    let full = team.from_root(|| {
        let (input, full) = Input::of(source)?;
        parsed = Some(input);
        Ok(full)
    })?;
    match parsed {
        Some(input) => Ok((input, full)),
        None => Input::from_value(full, &source.name(), || 0),
    }
}

/// Batches that each group of ranks adds up so that a step has as many as it had. None where the checkpoint does not tell.
pub(super) fn keep_global_batch(before: Option<u64>, groups: usize, each: usize) -> Result<Option<usize>> {
    let Some(before) = before.and_then(|before| usize::try_from(before).ok()) else {
        log::warn!("training.keep_global_batch: the checkpoint does not tell how many batches a step had");
        return Ok(None);
    };
    if !before.is_multiple_of(groups) {
        let fitting = (1..=before.min(4096)).filter(|n| before.is_multiple_of(*n));
        let fitting: Vec<String> = fitting.map(|n| (n * each).to_string()).collect();
        return Err(err!(
            "training.keep_global_batch: {before} batches a step cannot be shared by {} ranks",
            groups * each
        )
        .help(format!("use {} ranks, or leave the key away", fitting.join(", "))));
    }
    log::info!(
        "training.gradient_accumulation is set to {} for {} ranks: a step keeps its {before} batches",
        before / groups,
        groups * each
    );
    Ok(Some(before / groups))
}

/// What training starts from, loaded.
enum Origin {
    Restart(Box<DpState>),
    Model(Box<DpModel>),
    /// A model of which the descriptor alone is taken.
    Descriptor(Box<DpModel>),
}

fn load_origin(team: &mut Team, start: &Start, branch: &str) -> Result<Option<Origin>> {
    let local = match start {
        Start::Fresh => return Ok(None),
        Start::Restart(path) => {
            // Rank 0 wrote it, perhaps where no other host can read it.
            let bytes = team.bytes_from_root(|| Ok(crate::checkpoint::load(path)?.to_bytes()))?;
            let state = Checkpoint::parse(&bytes).and_then(DpState::from_checkpoint);
            state.map(|state| Some(Origin::Restart(Box::new(state)))).map_err(|e| e.at(path.display()))
        }
        Start::Model(path) => load_model(path).map(|model| Some(Origin::Model(Box::new(model)))),
        Start::Finetune(path) => load_to_finetune(path, branch).map(Some),
    };
    team.agree(local)
}

/// The model that fine-tuning starts from: a branch of it where it has several. Without a name that is the descriptor alone, as in
/// DeePMD-kit; a model of one task is taken whole.
fn load_to_finetune(path: &Path, branch: &str) -> Result<Origin> {
    let saved = load_checkpoint(path)?.filter(|(_, saved)| SavedBranches::is_one(saved));
    let Some((file, saved)) = saved else {
        let model = load_branch(path, Some(branch).filter(|name| !name.is_empty() && *name != RANDOM))?;
        return Ok(if branch == RANDOM {
            Origin::Descriptor(Box::new(model))
        } else {
            Origin::Model(Box::new(model))
        });
    };
    let of_file = || -> Result<Origin> {
        let saved = SavedBranches::of(&saved)?;
        if branch.is_empty() || branch == RANDOM {
            log::warn!(
                "no branch of {} is named: the descriptor is taken from there, and the fitting net begins anew",
                file.display()
            );
            return Ok(Origin::Descriptor(Box::new(saved.model(0))));
        }
        Ok(Origin::Model(Box::new(saved.model(saved.place(Some(branch))?))))
    };
    of_file().map_err(|e| e.at(file.display()))
}

impl Origin {
    fn options(&self) -> Result<ModelOptions> {
        match self {
            Origin::Restart(state) => state.model_options(),
            Origin::Model(model) | Origin::Descriptor(model) => Ok(model.options.clone()),
        }
    }

    /// Refuses an input that means another model. Weights alone may go on in another precision.
    fn check(&self, wanted: &ModelOptions) -> Result<()> {
        let mut saved = self.options()?;
        if let Origin::Descriptor(_) = self {
            saved.fitting = wanted.fitting.clone();
        }
        if !matches!(self, Origin::Restart(_)) {
            saved.fitting.precision = wanted.fitting.precision;
            for (se, wanted) in saved.descriptors.list.iter_mut().zip(&wanted.descriptors.list) {
                se.precision = wanted.precision;
            }
        }
        check_same_model(&saved, wanted)
    }

    /// The model, its parameters and the shortest distance of its data.
    fn model(
        &self,
        team: &mut Team,
        input: &Input,
        data: &DataSets,
        finetune: bool,
    ) -> Result<(Dp, Vec<f64>, f64)> {
        team.agree(self.check(&input.model))?;
        match self {
            Origin::Restart(state) => {
                let about = &state.about;
                let checked = check_numbers(&state.params, &about.stats, about.min_distance, &input.model);
                team.agree(checked)?;
                let model = Dp::new(input.model.clone(), state.about.stats.clone());
                let n = model.table.len();
                if state.params.len() != n {
                    let e = err!("the checkpoint does not hold the {n} parameters of this model");
                    return team.agree(Err(e));
                }
                Ok((model, state.params.clone(), state.about.min_distance))
            }
            Origin::Descriptor(saved) => with_descriptor_of(team, input, data, saved),
            Origin::Model(saved) => {
                // A compressed model has its nets beside the tables; training takes the nets.
                let saved = DpModel { options: input.model.clone(), tables: None, ..(**saved).clone() };
                let known = saved.min_nbor_dist;
                let (mut model, params) = team.agree(Dp::from_spec(saved))?;
                model.stats = as_stored(model.stats, &input.model);
                let sums = sample_statistics(team, input, data, Drawn::new(input, data).frames)?;
                let min_distance = known.unwrap_or(sums.min_distance).min(sums.min_distance);
                if finetune {
                    shift_bias(team, &mut model, &params, &data.training, input, &sums)?;
                }
                Ok((model, params, min_distance))
            }
        }
    }
}

/// A model with the descriptor of another, and a fitting net and biases of its own.
fn with_descriptor_of(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    saved: &DpModel,
) -> Result<(Dp, Vec<f64>, f64)> {
    let drawn = Drawn::new(input, data);
    let (summary, sampled) = load_or_compute_statistics(team, input, data, &drawn.frames)?;
    let distance = match sampled {
        Some(distance) => distance,
        None => sample_distance(team, input, data, &drawn.frames)?,
    };
    let (davg, dstd) = (saved.stats.davg.clone(), saved.stats.dstd.clone());
    let stats = DpStatistics { davg, dstd, ..summary.finish(&input.model) };
    let model = Dp::new(input.model.clone(), as_stored(stats, &input.model));
    let (theirs, taken) = team.agree(Dp::from_spec(DpModel { tables: None, ..saved.clone() }))?;
    let mut params = drawn.params;
    let own = model.fitting_params().start;
    assert_eq!(own, theirs.fitting_params().start, "the options of the descriptors were compared");
    params[..own].copy_from_slice(&taken[..own]);
    Ok((model, params, saved.min_nbor_dist.unwrap_or(distance).min(distance)))
}

/// Refuses data without any label that the loss compares with.
fn check_labels(data: &Dataset, name: &str, wants: &Wants) -> Result<()> {
    let labels =
        [Field::Energy, Field::Force, Field::Virial, Field::AtomEnergy, Field::Output, Field::AtomOutput];
    let wanted = || labels.into_iter().filter(|field| field.need(wants, false, false) != Need::No);
    if data.systems.iter().any(|system| wanted().any(|field| system.has(field))) {
        return Ok(());
    }
    let names: Vec<String> = wanted().map(|field| format!("{}.npy", field.names(wants)[0])).collect();
    Err(err!("training.{name}_data: no system has any of {}", names.join(", "))
        .help("a label that is missing is left out of the loss; here nothing is left"))
}

/// Opens and checks a data set; the reading is shared over ranks.
fn open(
    team: &mut Team,
    options: &crate::data::options::DataOptions,
    model: &ModelOptions,
    wants: &Wants,
    name: &str,
) -> Result<Arc<Dataset>> {
    let systems = team.agree(Dataset::systems(options, &model.type_map, wants))?;
    let systems = far_apart(team, systems, options.min_pair_dist, model.type_map.len())?;
    let opened = Dataset::new(systems, &options.batch_size, &options.weights);
    let opened = opened.and_then(|data| check_labels(&data, name, wants).map(|()| data));
    let data = team.agree(opened)?;
    same::check_data(team, &data, name)?;
    for line in data.summary(name, 40) {
        log::info!("{line}");
    }
    let (rank, size) = (team.rank(), team.size());
    let own: Vec<_> = data.systems.iter().skip(rank).step_by(size).collect();
    let checked = own.par_iter().try_for_each(|system| system.check_finite(&|_| ()));
    team.agree(checked)?;
    Ok(Arc::new(data))
}

/// Leaves out frames with atoms closer than `distance`; the reading is shared over ranks.
fn far_apart(
    team: &mut Team,
    mut systems: Vec<System>,
    distance: f64,
    n_types: usize,
) -> Result<Vec<System>> {
    if distance == 0.0 {
        return Ok(systems);
    }
    let is_good = |system: &System, k: usize| -> Result<bool> {
        let frame = system.read_frame(k)?;
        let stat = NeighborStat::even_where_atoms_overlap(&frame, distance, n_types);
        Ok(stat.map_err(|e| e.at(format!("{}: frame {k}", system.path)))?.min_distance >= distance)
    };
    let all: Vec<(usize, usize)> = systems
        .iter()
        .enumerate()
        .flat_map(|(s, system)| (0..system.n_frames).map(move |k| (s, k)))
        .collect();
    let (rank, size) = (team.rank(), team.size());
    let own: Vec<(usize, usize)> = all.iter().skip(rank).step_by(size).copied().collect();
    let mine: Result<Vec<bool>> = own.par_iter().map(|&(s, k)| is_good(&systems[s], k)).collect();
    let mine = team.agree(mine)?;
    let everyones = team.gather(&mine)?;
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); systems.len()];
    for (i, &(s, k)) in all.iter().enumerate() {
        if everyones[i % size][i / size] {
            kept[s].push(k);
        }
    }
    let n_kept: usize = kept.iter().map(Vec::len).sum();
    log::info!(
        "{} of {} frames have atoms closer than {distance} A and are left out",
        all.len() - n_kept,
        all.len()
    );
    for (system, kept) in systems.iter_mut().zip(kept) {
        if kept.is_empty() {
            let e = err!("{}: every frame has atoms closer than min_pair_dist, {distance} A", system.path);
            return team.agree(Err(e.help("take it out of training_data.systems")));
        }
        system.keep(kept);
    }
    Ok(systems)
}

/// Shortest distance and largest numbers of neighbours over the whole training set, for each descriptor.
pub(super) fn neighbor_statistics(
    team: &mut Team,
    options: &RunOptions,
    model: &ModelOptions,
    data: &Arc<Dataset>,
    has_origin: bool,
) -> Result<Option<Vec<NeighborStat>>> {
    let descriptors = &model.descriptors;
    if options.skip_neighbor_stat || has_origin {
        if !descriptors.is_fixed() && !has_origin {
            let e = err!(
                "sel is \"auto\", which needs the neighbour statistics that --skip-neighbor-stat leaves out"
            );
            return team.agree(Err(e));
        }
        return Ok(None);
    }
    log::info!("Calculating neighbor statistics... (add --skip-neighbor-stat to skip this step)");
    let n_types = model.type_map.len();
    let frames: Vec<(usize, usize)> = data
        .systems
        .iter()
        .enumerate()
        .flat_map(|(s, system)| (0..system.n_frames).map(move |k| (s, k)))
        .collect();
    let frames = own_work(team, data, &frames, team.size() > 1);
    let of_frame = |&(s, k, cut): &(usize, usize, Cut)| {
        let system = &data.systems[s];
        let frame = system.read_frame(k)?;
        let stats = descriptors.list.iter().map(|se| NeighborStat::of_blocks(&frame, se.rcut, n_types, cut));
        stats.collect::<Result<Vec<_>>>().map_err(|e| e.at(format!("{}: frame {k}", system.path)))
    };
    let empty = || vec![NeighborStat::empty(n_types); descriptors.list.len()];
    let merge =
        |a: Vec<NeighborStat>, b: &[NeighborStat]| a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
    let local = frames.par_iter().map(of_frame).try_reduce(empty, |a, b| Ok(merge(a, &b)));
    let mut mine = team.agree(local)?;
    // An infinite distance has no place in JSON.
    mine.iter_mut().for_each(|stat| stat.min_distance = stat.min_distance.min(f64::MAX));
    let total = team.gather(&mine)?.iter().fold(empty(), |a, b| merge(a, b));
    for stat in &total {
        log::info!("training data with min nbor dist: {}", stat.min_distance);
        log::info!("training data with max nbor size: {:?}", stat.max_neighbors);
    }
    Ok(Some(total))
}

/// Turns "auto" into numbers, and warns where the numbers of the input are too small.
pub(super) fn resolve_sel(
    model: &mut ModelOptions,
    full: &mut Value,
    neighbors: Option<&[NeighborStat]>,
    saved: Option<&ModelOptions>,
) -> Result<()> {
    for k in 0..model.descriptors.list.len() {
        let saved = saved.and_then(|saved| saved.descriptors.list.get(k));
        let stat = neighbors.map(|stats| &stats[k]);
        let Some(sel) = sel_of(&model.descriptors.list[k], &model.type_map, stat, saved)? else { continue };
        log::info!("sel is set to {sel:?}");
        let in_input = model.descriptors.list[k].sel_in_input(&sel);
        for model_section in [&mut full["model"], &mut model.script] {
            if let Some(section) = model.descriptors.section_of(model_section, k) {
                section["sel"] = in_input.clone();
            }
        }
        model.descriptors.list[k].sel = Sel::Fixed(sel);
    }
    Ok(())
}

/// The numbers in place of "auto"; `None` where they are there, with a warning where they are too small.
fn sel_of(
    se: &DescriptorOptions,
    type_map: &[String],
    stat: Option<&NeighborStat>,
    saved: Option<&DescriptorOptions>,
) -> Result<Option<Vec<usize>>> {
    Ok(Some(match (&se.sel, stat, saved) {
        (Sel::Fixed(sel), Some(stat), _) if se.is_mixed() => {
            if sel[0] < stat.max_together {
                log::warn!(
                    "sel is {}, but some atom has {} neighbors: only the nearest count, and energies are not smooth where one \
                     drops out",
                    sel[0],
                    stat.max_together
                );
            }
            return Ok(None);
        }
        (Sel::Fixed(sel), Some(stat), _) => {
            for (t, (&sel, &most)) in sel.iter().zip(&stat.max_neighbors).enumerate() {
                if sel < most {
                    log::warn!(
                        "sel of type {} is {sel}, but some atom has {most} such neighbors: only the nearest count, and \
                         energies are not smooth where one drops out",
                        type_map[t]
                    );
                }
            }
            return Ok(None);
        }
        (Sel::Fixed(_), None, _) => return Ok(None),
        (Sel::Auto(ratio), Some(stat), _) => {
            // A multiple of four above what was found, as DeePMD-kit takes it.
            let enough = |&most: &usize| ((most.max(1) as f64 * ratio).floor() as usize).div_ceil(4) * 4;
            match se.is_mixed() {
                true => vec![enough(&stat.max_together)],
                false => stat.max_neighbors.iter().map(enough).collect::<Vec<usize>>(),
            }
        }
        (Sel::Auto(_), None, Some(saved)) => saved.fixed_sel().to_vec(),
        (Sel::Auto(_), None, None) => bail!("sel is \"auto\" and there are no neighbour statistics"),
    }))
}

/// Sums over the frames that the statistics look at, and the shortest distance among them.
pub(super) struct Sampled {
    sums: Sums,
    pub(super) min_distance: f64,
    /// System and frame, in the order of the sums.
    frames: Vec<(usize, usize)>,
}

/// What DeePMD-kit would draw for the same seeds before the first step.
struct Drawn {
    params: Vec<f64>,
    /// System and frame, system by system.
    frames: Vec<(usize, usize)>,
}

impl Drawn {
    fn new(input: &Input, data: &DataSets) -> Drawn {
        let last_opened = data.validation.as_ref().unwrap_or(&data.training);
        let mut generator = global_generator(input.training.seed, last_opened.systems.len());
        let params = Dp::new(input.model.clone(), DpStatistics::default()).initial_params(&mut generator);
        Drawn { params, frames: drawn_frames(&mut generator, input, data) }
    }
}

/// The frames that the statistics look at: system and frame, system by system.
pub(super) fn drawn_frames(generator: &mut Generator, input: &Input, data: &DataSets) -> Vec<(usize, usize)> {
    let n_frames: Vec<usize> = data.training.systems.iter().map(|system| system.n_frames).collect();
    let (sizes, n_batches) = (&data.training.batch_sizes, input.model.data_stat_nbatch);
    let chosen = frames_for_statistics(generator, &n_frames, sizes, n_batches);
    chosen.iter().enumerate().flat_map(|(s, frames)| frames.iter().map(move |&k| (s, k))).collect()
}

/// What this rank does of some frames: every N-th of them, and of those with many atoms its blocks, where blocks are allowed. They do
/// not depend on the number of ranks.
fn own_work(
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
pub(super) fn sample_statistics(
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
pub(super) fn sample_distance(
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
pub(super) fn load_or_compute_statistics(
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

/// A model with statistics of the data and random parameters.
fn fresh_model(
    team: &mut Team,
    options: &RunOptions,
    input: &Input,
    data: &DataSets,
    neighbors: Option<&[NeighborStat]>,
) -> Result<(Dp, Vec<f64>, f64)> {
    let drawn = Drawn::new(input, data);
    let (summary, sampled_distance) = load_or_compute_statistics(team, input, data, &drawn.frames)?;
    let min_distance = match (neighbors, sampled_distance) {
        (Some(stats), _) => stats.iter().map(|stat| stat.min_distance).fold(f64::INFINITY, f64::min),
        (None, Some(distance)) => distance,
        (None, None) => sample_distance(team, input, data, &drawn.frames)?,
    };
    let mut stats = as_stored(summary.finish(&input.model), &input.model);
    if let Some(own) = &input.model.short_range {
        let (n_types, rcut) = (input.model.type_map.len(), input.model.descriptors.rcut());
        let read =
            || PairTable::read(Path::new(&own.file), n_types, rcut).map_err(|e| e.at("model.use_srtab"));
        stats.pair_table = Some(team.from_root(read)?);
    }
    let model = Dp::new(input.model.clone(), stats);
    let mut params = drawn.params;
    if !options.pytorch_conventions && model.is_energy() {
        model.sharpen(&mut params);
    }
    Ok((model, params, min_distance))
}

/// Statistics in the precision in which a model file stores them, so that a file predicts what was trained.
pub(super) fn as_stored(mut stats: DpStatistics, model: &ModelOptions) -> DpStatistics {
    use crate::model::dp::options::Precision;
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
pub(super) fn shift_bias(
    team: &mut Team,
    model: &mut Dp,
    params: &[f64],
    data: &Arc<Dataset>,
    input: &Input,
    sampled: &Sampled,
) -> Result<()> {
    let mode = EmbeddingMode::Chebyshev { min_distance: sampled.min_distance };
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

/// Steps of the run; an epoch counts draws of all groups of ranks.
pub(super) fn num_steps(input: &Input, data: &Dataset, groups: usize) -> u64 {
    match input.training.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => {
            let draws = epochs * data.draws_per_epoch() as f64;
            let steps =
                (draws / (groups * input.training.gradient_accumulation) as f64).ceil().max(1.0) as u64;
            log::info!("{epochs} epochs are {steps} steps");
            steps
        }
    }
}
