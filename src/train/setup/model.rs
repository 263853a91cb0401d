//! The model before the first step: a new one, or one that was saved.

use super::DataSets;
use super::bias::shift_bias;
use super::statistics::{Drawn, as_stored, load_or_compute_statistics, sample_distance, sample_statistics};
use crate::checkpoint::Checkpoint;
use crate::infer::branches::{RANDOM, SavedBranches};
use crate::infer::checkpoint::check_numbers;
use crate::infer::load::{load_branch, load_checkpoint, load_model};
use crate::model::dp::Dp;
use crate::model::dp::options::ModelOptions;
use crate::model::dp::short_range::PairTable;
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::neighbor::stat::NeighborStat;
use crate::train::dp_state::{DpState, check_same_model};
use crate::train::input::Input;
use crate::train::options::{RunOptions, Start};
use crate::train::team::Team;
use crate::{Result, err};
use serde_json::Value;
use std::path::Path;

/// The branch that fine-tuning starts from, where the command line or else the input names one.
pub fn finetune_branch<'a>(options: &'a RunOptions, full: &'a Value) -> &'a str {
    match options.model_branch.as_str() {
        "" => full["model"]["finetune_head"].as_str().unwrap_or(""),
        name => name,
    }
}

/// What training starts from, loaded.
pub enum Origin {
    Restart(Box<DpState>),
    Model(Box<DpModel>),
    /// A model of which the descriptor alone is taken.
    Descriptor(Box<DpModel>),
}

pub fn load_origin(team: &mut Team, start: &Start, branch: &str) -> Result<Option<Origin>> {
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
    pub fn options(&self) -> Result<ModelOptions> {
        match self {
            Origin::Restart(state) => state.model_options(),
            Origin::Model(model) | Origin::Descriptor(model) => Ok(as_trained(model).clone()),
        }
    }

    /// Refuses an input that means another model. Weights alone may go on in another precision.
    fn check(&self, wanted: &ModelOptions) -> Result<()> {
        let mut saved = self.options()?;
        if wanted.type_embedding.is_some() != saved.type_embedding.is_some() {
            saved = self.with_types_as(wanted, saved)?;
        }
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

    /// The options to compare with where one of the two has embedded types and the other has not.
    fn with_types_as(&self, wanted: &ModelOptions, saved: ModelOptions) -> Result<ModelOptions> {
        match self {
            // Without them the plain model goes on.
            Origin::Model(model) | Origin::Descriptor(model) if wanted.type_embedding.is_none() => {
                Ok(model.options.clone())
            }
            Origin::Restart(_) => Ok(saved), // the same input is wanted
            _ => Err(err!("model.type_embedding: the model to begin with has no embedded types").help(
                "begin with a checkpoint of such a training or what dp freeze made of one, or leave the key out",
            )),
        }
    }

    /// The model, its parameters and the shortest distance of its data.
    pub fn model(
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
                let n = model.trained_table().len();
                if state.params.len() != n {
                    let e = err!("the checkpoint does not hold the {n} parameters of this model");
                    return team.agree(Err(e));
                }
                Ok((model, state.params.clone(), state.about.min_distance))
            }
            Origin::Descriptor(_) if input.model.type_embedding.is_some() => {
                let error = err!("model.type_embedding: the descriptor alone of a model is not taken then");
                team.agree(Err(error.help("name the branch, or begin with the whole model: --init-model")))
            }
            Origin::Descriptor(saved) => with_descriptor_of(team, input, data, saved),
            Origin::Model(saved) => {
                let trained = saved.embedded.as_ref().filter(|_| input.model.type_embedding.is_some());
                if let Some(trained) = trained {
                    let model = Dp::new(input.model.clone(), as_stored(saved.stats.clone(), &input.model));
                    return taken(
                        team,
                        input,
                        data,
                        model,
                        (trained.params.clone(), saved.min_nbor_dist),
                        finetune,
                    );
                }
                // A compressed model has its nets beside the tables; training takes the nets.
                let saved = DpModel { options: input.model.clone(), tables: None, ..(**saved).clone() };
                let known = saved.min_nbor_dist;
                let (mut model, params) = team.agree(Dp::from_spec(saved))?;
                model.stats = as_stored(model.stats, &input.model);
                taken(team, input, data, model, (params, known), finetune)
            }
        }
    }
}

/// The options that a model was trained with.
fn as_trained(model: &DpModel) -> &ModelOptions {
    model.embedded.as_ref().map_or(&model.options, |trained| &trained.options)
}

/// A model that was there before, with its parameters and the shortest distance of its data and of these.
fn taken(
    team: &mut Team,
    input: &Input,
    data: &DataSets,
    mut model: Dp,
    (params, known): (Vec<f64>, Option<f64>),
    finetune: bool,
) -> Result<(Dp, Vec<f64>, f64)> {
    let sums = sample_statistics(team, input, data, Drawn::new(input, data).frames)?;
    let min_distance = known.unwrap_or(sums.min_distance).min(sums.min_distance);
    if finetune {
        shift_bias(team, &mut model, &params, &data.training, input, &sums)?;
    }
    Ok((model, params, min_distance))
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

/// A model with statistics of the data and random parameters.
pub fn fresh_model(
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
