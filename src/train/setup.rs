//! Data, statistics and model before the first step.
//!
//! Whatever is computed from the data is computed once for the whole job, the work shared over ranks; every rank
//! then has the same numbers.

use super::dp_state::{DpState, check_same_model};
use super::input::{Input, Length};
use super::options::{InputSource, RunOptions, Start};
use super::resume;
use super::same;
use super::team::Team;
use super::warnings;
use crate::checkpoint::Checkpoint;
use crate::data::field::Field;
use crate::data::{Dataset, Frame, Wants};
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::{Engine, Prediction};
use crate::export::stat_file::StatFile;
use crate::infer::checkpoint::check_numbers;
use crate::infer::load::load_model;
use crate::launch::Launch;
use crate::loss::options::EnerLossOptions;
use crate::model::dp::Dp;
use crate::model::dp::options::{DescriptorOptions, FittingOptions, ModelOptions, Sel};
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::model::dp::statistics::{Summary, Sums};
use crate::neighbor::stat::NeighborStat;
use crate::sample::{frames_for_statistics, global_generator};
use crate::{Result, bail, err};
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
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
    let save_ckpt = &input.training.save_ckpt;
    // Who names a checkpoint means that one.
    let named = matches!(options.start, Start::Restart(_));
    let found = match !named && options.resume.unwrap_or(input.training.resume) {
        true => team.from_root(|| resume::newest(save_ckpt))?,
        false => resume::after_restart(team, launch, save_ckpt)?,
    };
    let start = found.map_or(options.start.clone(), Start::Restart);
    let origin = load_origin(team, &start)?;
    if let Some(Origin::Restart(state)) = &origin
        && input.training.keep_global_batch
    {
        let kept = keep_global_batch(state.draws_per_step, team.size());
        if let Some(accumulation) = team.agree(kept)? {
            input.training.gradient_accumulation = accumulation;
            full["training"]["gradient_accumulation"] = accumulation.into();
        }
    }
    if let (Some(origin), true) = (&origin, options.use_pretrain_script) {
        input.model = origin.options()?;
        full["model"] = input.model.script.clone();
    }
    let wants = wants(&input.loss, &input.model.fitting);
    let training = open(team, &input.training.training_data, &input.model, &wants, "training")?;
    let validation = match &input.training.validation_data {
        Some(data) => Some(open(team, data, &input.model, &wants, "validation")?),
        None => None,
    };
    let data = DataSets { training, validation };
    if team.is_root() {
        let lists = [("training", Some(&data.training)), ("validation", data.validation.as_ref())];
        let lists = lists.into_iter().filter_map(|(name, list)| Some((name, list?)));
        let missing = lists.flat_map(|(name, list)| warnings::missing_labels(list, name, &input.loss));
        missing.chain(warnings::doubled(&data)).for_each(|line| log::warn!("{line}"));
    }
    let neighbors = neighbor_statistics(team, options, &input.model, &data.training, origin.is_some())?;
    let resolved = resolve_sel(&mut input.model, &mut full, neighbors.as_deref(), origin.as_ref());
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
    let num_steps = num_steps(&input, &data.training, team.size());
    let resumed = match origin {
        Some(Origin::Restart(state)) => Some(*state),
        _ => None,
    };
    Ok(Setup { input, full, data, model: Arc::new(model), params, min_distance, resumed, num_steps })
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

/// Batches that each rank adds up so that a step has as many as it had. None where the checkpoint does not tell.
fn keep_global_batch(before: Option<u64>, size: usize) -> Result<Option<usize>> {
    let Some(before) = before.and_then(|before| usize::try_from(before).ok()) else {
        log::warn!("training.keep_global_batch: the checkpoint does not tell how many batches a step had");
        return Ok(None);
    };
    if !before.is_multiple_of(size) {
        let fitting: Vec<String> =
            (1..=before.min(4096)).filter(|n| before.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        return Err(err!(
            "training.keep_global_batch: {before} batches a step cannot be shared by {size} ranks"
        )
        .help(format!("use {} ranks, or leave the key away", fitting.join(", "))));
    }
    log::info!(
        "training.gradient_accumulation is set to {} for {size} ranks: a step keeps its {before} batches",
        before / size
    );
    Ok(Some(before / size))
}

/// What training starts from, loaded.
enum Origin {
    Restart(Box<DpState>),
    Model(Box<DpModel>),
}

fn load_origin(team: &mut Team, start: &Start) -> Result<Option<Origin>> {
    let local = match start {
        Start::Fresh => return Ok(None),
        Start::Restart(path) => {
            // Rank 0 wrote it, perhaps where no other host can read it.
            let bytes = team.bytes_from_root(|| Ok(crate::checkpoint::load(path)?.to_bytes()))?;
            let state = Checkpoint::parse(&bytes).and_then(DpState::from_checkpoint);
            state.map(|state| Some(Origin::Restart(Box::new(state)))).map_err(|e| e.at(path.display()))
        }
        Start::Model(path) | Start::Finetune(path) => {
            load_model(path).map(|model| Some(Origin::Model(Box::new(model))))
        }
    };
    team.agree(local)
}

impl Origin {
    fn options(&self) -> Result<ModelOptions> {
        match self {
            Origin::Restart(state) => state.model_options(),
            Origin::Model(model) => Ok(model.options.clone()),
        }
    }

    /// Refuses an input that means another model. Weights alone may go on in another precision.
    fn check(&self, wanted: &ModelOptions) -> Result<()> {
        let mut saved = self.options()?;
        if let Origin::Model(_) = self {
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

/// Labels that the loss compares with, and the parameters that the model takes.
pub fn wants(loss: &EnerLossOptions, fitting: &FittingOptions) -> Wants {
    Wants {
        energy: true, // the bias is fitted to energies whatever the loss wants
        force: loss.force.is_used() || loss.atom_pref_force.is_used(),
        virial: loss.virial.is_used(),
        atom_energy: loss.atom_energy.is_used(),
        atom_pref: loss.atom_pref_force.is_used(),
        atom_ener_coeff: loss.enable_atom_ener_coeff,
        numb_fparam: fitting.numb_fparam,
        fparam_has_default: fitting.default_fparam.is_some(),
        numb_aparam: fitting.numb_aparam,
    }
}

/// Refuses data without any label that the loss compares with.
fn check_labels(data: &Dataset, name: &str, wants: &Wants) -> Result<()> {
    let labels = [
        (Field::Energy, wants.energy),
        (Field::Force, wants.force),
        (Field::Virial, wants.virial),
        (Field::AtomEnergy, wants.atom_energy),
    ];
    let wanted = || labels.iter().filter(|(_, wanted)| *wanted).map(|(field, _)| *field);
    if data.systems.iter().any(|system| wanted().any(|field| system.has(field))) {
        return Ok(());
    }
    let names: Vec<String> = wanted().map(|field| format!("{}.npy", field.names()[0])).collect();
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
    let opened = Dataset::open(options, &model.type_map, wants);
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

/// Shortest distance and largest numbers of neighbours over the whole training set, for each descriptor.
fn neighbor_statistics(
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
        .skip(team.rank())
        .step_by(team.size())
        .collect();
    let of_frame = |&(s, k): &(usize, usize)| {
        let system = &data.systems[s];
        let frame = system.read_frame(k)?;
        let stats = descriptors.list.iter().map(|se| NeighborStat::of(&frame, se.rcut, n_types));
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
fn resolve_sel(
    model: &mut ModelOptions,
    full: &mut Value,
    neighbors: Option<&[NeighborStat]>,
    origin: Option<&Origin>,
) -> Result<()> {
    let saved = origin.map(|origin| origin.options()).transpose()?;
    for k in 0..model.descriptors.list.len() {
        let saved = saved.as_ref().and_then(|saved| saved.descriptors.list.get(k));
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
struct Sampled {
    sums: Sums,
    min_distance: f64,
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
        let n_frames: Vec<usize> = data.training.systems.iter().map(|system| system.n_frames).collect();
        let (sizes, n_batches) = (&data.training.batch_sizes, input.model.data_stat_nbatch);
        let chosen = frames_for_statistics(&mut generator, &n_frames, sizes, n_batches);
        let frames = chosen.iter().enumerate().flat_map(|(s, frames)| frames.iter().map(move |&k| (s, k)));
        Drawn { params, frames: frames.collect() }
    }
}

/// What `of_frame` says of each frame, in their order; each rank takes every N-th frame.
fn of_frames<T: Serialize + DeserializeOwned + Send + Clone>(
    team: &mut Team,
    data: &DataSets,
    frames: &[(usize, usize)],
    of_frame: impl Fn(&Frame) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let at = |&&(s, k): &&(usize, usize)| {
        let system = &data.training.systems[s];
        of_frame(&system.read_frame(k)?).map_err(|e| e.at(format!("{}: frame {k}", system.path)))
    };
    let own: Vec<_> = frames.iter().skip(team.rank()).step_by(team.size()).collect();
    let local: Result<Vec<T>> = own.par_iter().map(at).collect();
    let mine = team.agree(local)?;
    let everyones = team.gather(&mine)?;
    let size = team.size();
    Ok((0..frames.len()).map(|k| everyones[k % size][k / size].clone()).collect())
}

/// The shortest distance in one frame, as a number that JSON can hold.
fn shortest_distance(model: &ModelOptions, frame: &Frame) -> Result<f64> {
    Ok(NeighborStat::of(frame, model.descriptors.rcut(), model.type_map.len())?.min_distance.min(f64::MAX))
}

/// The sums are added in the order of the frames, whatever the number of ranks is.
fn sample_statistics(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: Vec<(usize, usize)>,
) -> Result<Sampled> {
    let of_frame =
        |frame: &Frame| Ok((Sums::of(&input.model, frame)?, shortest_distance(&input.model, frame)?));
    let found = of_frames(team, data, &frames, of_frame)?;
    let min_distance = found.iter().fold(f64::INFINITY, |least, (_, d)| least.min(*d));
    let sums = found.into_iter().map(|(sums, _)| sums).reduce(Sums::merge);
    let sums = team.agree(sums.ok_or_else(|| err!("there is no frame to take statistics from")))?;
    Ok(Sampled { sums, min_distance, frames })
}

/// The shortest distance among the frames that statistics look at.
fn sample_distance(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: &[(usize, usize)],
) -> Result<f64> {
    let found = of_frames(team, data, frames, |frame| shortest_distance(&input.model, frame))?;
    Ok(found.into_iter().fold(f64::INFINITY, f64::min))
}

/// Statistics from `stat_file` where they are there, from the data where not; with the shortest distance seen on
/// the way. What was missing is added to the file.
fn load_or_compute_statistics(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    frames: &[(usize, usize)],
) -> Result<(DpStatistics, Option<f64>)> {
    let file = input.training.stat_file.as_deref().map(StatFile::new);
    let known = match &file {
        Some(file) => team.from_root(|| file.load(&input.model))?,
        None => Summary::default(),
    };
    if known.is_complete() {
        return Ok((known.finish(&input.model), None));
    }
    let sampled = sample_statistics(team, input, data, frames.to_vec())?;
    let computed = team.agree(sampled.sums.summary(&input.model))?;
    if let (None, Some((bias, _))) = (&known.output, &computed.output) {
        log::info!(
            "RMSE of energy per atom after linear regression is: {} in the unit of energy.",
            sampled.sums.energy_rmse_per_atom(bias)
        );
    }
    if let Some(file) = &file {
        team.from_root(|| file.save(&input.model, &computed.clone().beyond(&known)))?;
    }
    Ok((known.or(computed).finish(&input.model), Some(sampled.min_distance)))
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
    let (stats, sampled_distance) = load_or_compute_statistics(team, input, data, &drawn.frames)?;
    let min_distance = match (neighbors, sampled_distance) {
        (Some(stats), _) => stats.iter().map(|stat| stat.min_distance).fold(f64::INFINITY, f64::min),
        (None, Some(distance)) => distance,
        (None, None) => sample_distance(team, input, data, &drawn.frames)?,
    };
    let stats = as_stored(stats, &input.model);
    let model = Dp::new(input.model.clone(), stats);
    let mut params = drawn.params;
    if !options.pytorch_conventions {
        model.sharpen(&mut params);
    }
    Ok((model, params, min_distance))
}

/// Statistics in the precision in which a model file stores them, so that a file predicts what was trained.
fn as_stored(mut stats: DpStatistics, model: &ModelOptions) -> DpStatistics {
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

/// Fits the energy bias to what the model does not explain of the new data.
fn shift_bias(
    team: &mut Team,
    model: &mut Dp,
    params: &[f64],
    data: &Arc<Dataset>,
    input: &Input,
    sampled: &Sampled,
) -> Result<()> {
    let mode = EmbeddingMode::Chebyshev { min_distance: sampled.min_distance };
    let mut engine = CpuEngine::<f64>::new(Arc::new(model.clone()), 1, mode)?;
    let prepare = engine.preparer();
    let mut predict = |frame: &Frame| -> Result<f64> {
        let mut out = Prediction::default();
        engine.evaluate(&mut out, params, &[&prepare(frame)?]);
        Ok(out.energy[0])
    };
    let local: Result<Vec<f64>> = sampled
        .frames
        .iter()
        .skip(team.rank())
        .step_by(team.size())
        .map(|&(s, k)| predict(&data.systems[s].read_frame(k)?))
        .collect();
    let mine = team.agree(local)?;
    let everyones = team.gather(&mine)?;
    let size = team.size();
    let predicted: Vec<f64> = (0..sampled.frames.len()).map(|k| everyones[k % size][k / size]).collect();
    let shift = team.agree(sampled.sums.bias_shift(&input.model, &predicted))?;
    log::info!("energy bias {:?} is shifted by {shift:?}", model.stats.bias);
    for (bias, shift) in model.stats.bias.iter_mut().zip(shift) {
        *bias += shift;
    }
    Ok(())
}

/// Steps of the run; an epoch counts draws of all ranks.
fn num_steps(input: &Input, data: &Dataset, size: usize) -> u64 {
    match input.training.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => {
            let draws = epochs * data.draws_per_epoch() as f64;
            let steps = (draws / (size * input.training.gradient_accumulation) as f64).ceil().max(1.0) as u64;
            log::info!("{epochs} epochs are {steps} steps");
            steps
        }
    }
}
