//! Multi-task training: several models, the branches, that share parameters; each step one of them learns.
//!
//! Each branch is the input, the data and the model of a single-task training, and what branches share stands once in the common vector
//! ([`crate::model::dp::branches`]). The branch of a step is a function of the seed and the step (`sample::draw::BranchDraw`), the same on
//! all ranks. [`learner`] takes the batch from the queue of that branch and runs the recipe of `train/step.rs`; its `Family` ([`family`])
//! gathers the branch's parameters, lets the branch's own `DeepPotential` work, and scatters the gradient. The optimiser leaves alone what
//! the branch does not have (`optim::ByParts`). A net that is told its branch (`dim_case_embd`) has a row of its first weights for each;
//! engines see that row as part of the bias.

pub mod input; // the whole input, as meant
pub mod state; // what a checkpoint says
mod family; // the branches as one network
mod origin; // what each branch starts from
mod setup; // data, statistics and models before the first step
mod learner; // learning, and that on CPU threads
mod gpu; // learning on a GPU
mod journal; // what rank 0 writes

pub use input::MultiInput;

use super::caller::{Caller, Ended};
use super::dp::{Course, folders, form_groups, plan};
use super::learner::Learner;
use super::options::{InputSource, RunOptions};
use super::run::{Journal, Plan, Run};
use super::session::{self, Session};
use super::team::Team;
use crate::model::dp::options::Precision;
use crate::{Result, err};
use journal::MultiJournal;
use serde_json::Value;
use setup::MultiSetup;
use std::sync::Arc;

/// Whether an input is one of a multi-task training. Rank 0 looks at it.
pub fn is_asked_for(team: &mut Team, source: &InputSource) -> Result<bool> {
    // What cannot be read is told where the input is read.
    team.from_root(|| Ok(source.read().is_ok_and(|written| MultiInput::is_one(&written))))
}

/// Trains the branches of a multi-task model.
pub fn train(
    team: &mut Team,
    session: &Session,
    options: &RunOptions,
    caller: Option<Caller>,
) -> Result<Ended> {
    let input = read_input(team, &options.input)?;
    team.tell_once(refuse(options, &input))?;
    let energies = input.branches.iter().find(|branch| !branch.input.model.fitting.is_energy());
    form_groups(team, session, energies.map_or(input.common(), |branch| &branch.input))?;
    let owner = session::own(team, || folders(input.common()))?;
    let setup = Arc::new(setup::setup(team, &session.launch, options, input)?);
    let rates = team.agree(setup.input.common().learning_rate.for_steps(setup.num_steps))?;
    let mut learner = learner(team, session, options, &setup, rates.start_lr)?;
    let course = Course {
        input: setup.input.common(),
        num_steps: setup.num_steps,
        resumed: setup.resumed.as_ref().map(|state| (state.step, state.draws, state.draws_per_step)),
    };
    let stop = caller.as_ref().map(|caller| caller.stop.clone());
    let plan = Plan { stop, owner, full_validation: None, ..plan(team, session, options, course, rates) };
    let journal = team.is_root().then(|| MultiJournal::open(options, setup.clone(), caller)).transpose();
    let mut journal = team.agree(journal)?;
    let journal = journal.as_mut().map(|journal| journal as &mut dyn Journal);
    Run::new(team, plan, &mut *learner, journal, &session.far_lines)?.to_the_end(team)
}

/// A learner on the GPU where there is one that can do it, else on the CPU.
fn learner(
    team: &mut Team,
    session: &Session,
    options: &RunOptions,
    setup: &MultiSetup,
    start_lr: f64,
) -> Result<Box<dyn Learner>> {
    let single = |setup: &super::setup::Setup| setup.model.options.precision() == Precision::Float32;
    let single = setup.branches.iter().all(single);
    if let Some((gpu, _)) = &session.gpu {
        let made = gpu::learner(team, session, setup, gpu, single, start_lr);
        // Every rank has found the same: what one of them cannot do all of them have agreed upon.
        if let Some(learner) = options.device.or_cpu(made)? {
            return Ok(Box::new(learner));
        }
    }
    Ok(match single {
        true => Box::new(learner::on_cpu::<f32>(team, session.threads, setup, start_lr)?),
        false => Box::new(learner::on_cpu::<f64>(team, session.threads, setup, start_lr)?),
    })
}

/// Rank 0 reads the input; all have the same, a random seed included.
fn read_input(team: &mut Team, source: &InputSource) -> Result<MultiInput> {
    let mut parsed = None;
    let seeded = team.from_root(|| {
        let input = MultiInput::of(source)?;
        let mut written = source.read()?;
        written["training"]["seed"] = input.common().training.seed.into();
        parsed = Some(input);
        Ok::<Value, crate::Error>(written)
    })?;
    match parsed {
        Some(input) => Ok(input),
        None => MultiInput::from_value(seeded, &source.name(), || 0),
    }
}

/// Refuses what the command line cannot ask of a multi-task training.
fn refuse(options: &RunOptions, input: &MultiInput) -> Result<()> {
    origin::refuse_branch(&options.model_branch, input)?;
    let flags = [(options.find_rate, "--find-lr"), (options.use_pretrain_script, "--use-pretrain-script")];
    match flags.iter().find(|(given, _)| *given) {
        Some((_, flag)) => {
            Err(err!("{flag}: a multi-task training does not have this yet").help("leave the flag away"))
        }
        None => Ok(()),
    }
}
