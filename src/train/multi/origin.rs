//! What a multi-task training starts from, and what each branch takes of it.

use super::input::MultiInput;
use super::state::MultiState;
use crate::checkpoint::Checkpoint;
use crate::infer::branches::{RANDOM, SavedBranches};
use crate::infer::checkpoint::model_section;
use crate::infer::load::{load_checkpoint, load_model};
use crate::model::dp::Dp;
use crate::model::dp::options::ModelOptions;
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::train::dp_state::check_same_model;
use crate::train::options::Start;
use crate::train::setup::as_stored;
use crate::train::team::Team;
use crate::{Result, err};

/// What training starts from, loaded.
pub enum Origin {
    Nothing,
    Restart(Box<MultiState>),
    /// Another multi-task model.
    Branches(Box<SavedBranches>, Goal),
    /// A model of one task.
    Model(Box<DpModel>, Goal),
}

/// What weights are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// To go on with them.
    Init,
    /// To adapt them to other data.
    Finetune,
}

/// What a branch takes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// All of a branch, given by its place, as it is.
    Whole(usize),
    /// The same, and its bias is fitted to the data.
    Adapted(usize),
    /// The descriptor alone.
    Descriptor(usize),
}

impl Origin {
    pub fn load(team: &mut Team, start: &Start) -> Result<Origin> {
        let local = match start {
            Start::Fresh => return Ok(Origin::Nothing),
            Start::Restart(path) => {
                // Rank 0 wrote it, perhaps where no other host can read it.
                let bytes = team.bytes_from_root(|| Ok(crate::checkpoint::load(path)?.to_bytes()))?;
                let state = Checkpoint::parse(&bytes).and_then(MultiState::from_checkpoint);
                state.map(|state| Origin::Restart(Box::new(state))).map_err(|e| e.at(path.display()))
            }
            Start::Model(path) => Self::weights(path, Goal::Init),
            Start::Finetune(path) => Self::weights(path, Goal::Finetune),
        };
        team.agree(local)
    }

    fn weights(path: &std::path::Path, goal: Goal) -> Result<Origin> {
        if let Some((file, saved)) = load_checkpoint(path)?
            && SavedBranches::is_one(&saved)
        {
            let branches = SavedBranches::of(&saved).map_err(|e| e.at(file.display()))?;
            return Ok(Origin::Branches(Box::new(branches), goal));
        }
        Ok(Origin::Model(Box::new(load_model(path)?), goal))
    }

    /// What a branch takes, by its name and its `finetune_head`; `None`: nothing.
    fn taken(&self, name: &str, head: Option<&str>) -> Result<Option<Taken>> {
        let random = head == Some(RANDOM);
        Ok(match self {
            Origin::Nothing | Origin::Restart(_) => None,
            Origin::Branches(saved, goal) => Some(match (goal, head) {
                (Goal::Init, _) => Taken::Whole(saved.place(Some(name))?),
                (Goal::Finetune, Some(head)) if !random => Taken::Adapted(saved.place(Some(head))?),
                (Goal::Finetune, None) if saved.branches.iter().any(|branch| branch.name == name) => {
                    Taken::Whole(saved.place(Some(name))?)
                }
                (Goal::Finetune, _) => Taken::Descriptor(0),
            }),
            Origin::Model(_, Goal::Init) => {
                return Err(err!("the model that the run should begin with has one task, and no branches")
                    .help("--finetune takes its descriptor, or with finetune_head \"Default\" all of it"));
            }
            Origin::Model(_, Goal::Finetune) => Some(match head {
                Some("Default") => Taken::Adapted(0),
                Some(head) if !random => {
                    return Err(err!("finetune_head: found {head}, and the model has one task")
                        .help("write \"Default\", or \"RANDOM\" for its descriptor alone"));
                }
                _ => Taken::Descriptor(0),
            }),
        })
    }

    /// The options of the model that a branch starts from, where there is one.
    pub fn options_of(&self, name: &str, head: Option<&str>) -> Result<Option<ModelOptions>> {
        if let Origin::Restart(state) = self {
            let saved = state.about.branches.iter().find(|branch| branch.name == name);
            return saved.map(|branch| model_section(&branch.model)).transpose();
        }
        Ok(self.taken(name, head)?.map(|taken| {
            let (Taken::Whole(place) | Taken::Adapted(place) | Taken::Descriptor(place)) = taken;
            match self {
                Origin::Branches(saved, _) => saved.branches[place].options.clone(),
                Origin::Model(model, _) => model.options.clone(),
                Origin::Nothing | Origin::Restart(_) => unreachable!("nothing is taken of them"),
            }
        }))
    }

    /// Whether the bias of a branch is fitted to its data.
    pub fn shifts(&self, name: &str, head: Option<&str>) -> bool {
        matches!(self.taken(name, head), Ok(Some(Taken::Adapted(_))))
    }

    /// Overwrites what a branch takes among its parameters, which are those of `whole`. Returns its statistics, which without an origin
    /// are those given, and the shortest distance that the model knows.
    pub fn take(
        &self,
        name: &str,
        head: Option<&str>,
        whole: &Dp,
        params: &mut [f64],
        stats: DpStatistics,
    ) -> Result<(DpStatistics, Option<f64>)> {
        let Some(taken) = self.taken(name, head)? else { return Ok((stats, None)) };
        let (Taken::Whole(place) | Taken::Adapted(place) | Taken::Descriptor(place)) = taken;
        let descriptor_alone = matches!(taken, Taken::Descriptor(_));
        let mut options = self.options_of(name, head)?.expect("something is taken");
        options.fitting.precision = whole.options.fitting.precision;
        for (se, wanted) in options.descriptors.list.iter_mut().zip(&whole.options.descriptors.list) {
            se.precision = wanted.precision;
        }
        if descriptor_alone {
            options.fitting = whole.options.fitting.clone();
        }
        check_same_model(&options, &whole.options)?;
        let (blocks, saved, distance) = self.blocks(place)?;
        for view in whole.table.views() {
            if descriptor_alone && view.name.starts_with("fitting_net") {
                continue;
            }
            let block = blocks.iter().find(|(name, block)| *name == view.name && block.len() == view.len());
            let Some((_, block)) = block else {
                return Err(err!("the model has no {} of the shape {:?}", view.name, view.shape));
            };
            params[view.range()].copy_from_slice(block);
        }
        let saved = as_stored(saved, &whole.options);
        let stats = match descriptor_alone {
            true => DpStatistics { davg: saved.davg, dstd: saved.dstd, ..stats },
            false => saved,
        };
        Ok((stats, distance))
    }

    /// Parameters by their names, statistics, shortest distance.
    #[allow(clippy::type_complexity)]
    fn blocks(&self, place: usize) -> Result<(Vec<(String, Vec<f64>)>, DpStatistics, Option<f64>)> {
        match self {
            Origin::Branches(saved, _) => {
                let header = &saved.headers[place];
                Ok((saved.named(place), header.statistics.clone(), Some(header.min_distance)))
            }
            Origin::Model(model, _) => {
                // A compressed model has its nets beside the tables; training takes the nets.
                let (dp, params) = Dp::from_spec(DpModel { tables: None, ..(**model).clone() })?;
                let block = |view: &crate::model::params::ParamView| {
                    (view.name.clone(), params[view.range()].to_vec())
                };
                let blocks = dp.table.views().iter().map(block).collect();
                Ok((blocks, model.stats.clone(), model.min_nbor_dist))
            }
            Origin::Nothing | Origin::Restart(_) => unreachable!("nothing is taken of them"),
        }
    }
}

/// Refuses a branch on the command line: each branch of the input says for itself what it starts from.
pub fn refuse_branch(branch: &str, input: &MultiInput) -> Result<()> {
    if branch.is_empty() {
        return Ok(());
    }
    let first = &input.branches[0].name;
    Err(err!("--model-branch {branch}: the input has branches of its own").help(format!(
        "write \"finetune_head\": \"{branch}\" into model.model_dict.{first}, or whichever is meant"
    )))
}
