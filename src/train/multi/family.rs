//! The branches of a multi-task model as the recipe of a step sees them: one network whose parameters are the common vector.

use crate::data::Frame;
use crate::engine::Engine;
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::loss::LossValue;
use crate::model::dp::branches::Common;
use crate::train::blocks::OwnBlocks;
use crate::train::deep_potential::DeepPotential;
use crate::train::family::{Family, Frames, Now};
use crate::train::team::Team;
use serde_json::{Value, json};
use std::sync::Arc;

/// All branches, one of which learns at a time.
pub struct Branches<E: Engine> {
    common: Arc<Common>,
    list: Vec<Net<E>>,
    /// The branch that learns.
    now: usize,
    /// The gradient by its own parameters.
    grad: Vec<f64>,
}

/// One branch, with its own parameters as they are in the common vector.
struct Net<E: Engine> {
    family: DeepPotential<E>,
    params: Vec<f64>,
    /// Steps in which it has learnt, and draws of all ranks that it took.
    steps: u64,
    draws: u64,
}

/// What a branch had done when a run was saved.
#[derive(Debug, Clone, Default)]
pub struct Done {
    pub steps: u64,
    pub draws: u64,
    /// The state of its engine.
    pub engine: Value,
}

impl Done {
    /// Those of so many branches, from what [`Family::state`] said.
    pub fn list(state: &Value, n: usize) -> Vec<Done> {
        let number = |b: usize, key: &str| state[b][key].as_u64().unwrap_or(0);
        let done = |b| Done {
            steps: number(b, "steps"),
            draws: number(b, "draws"),
            engine: state[b]["engine"].clone(),
        };
        (0..n).map(done).collect()
    }
}

impl<E: Engine> Branches<E> {
    /// `families` and what each has done already, in the order of the common vector's views.
    pub fn new(common: Arc<Common>, families: Vec<DeepPotential<E>>, done: &[Done]) -> Self {
        let nets = families.into_iter().zip(&common.views).zip(done);
        let list = nets.map(|((family, view), done)| Net {
            family,
            params: vec![0.0; view.len()],
            steps: done.steps,
            draws: done.draws,
        });
        Branches { list: list.collect(), common, now: 0, grad: Vec::new() }
    }

    /// The branch that learns, or did last.
    pub fn now(&self) -> usize {
        self.now
    }

    /// Gives a branch its turn. Returns how many updates each part of the common vector has had, `None` for those that the branch
    /// does not have.
    pub fn give_turn(&mut self, branch: usize) -> Vec<Option<u64>> {
        self.now = branch;
        let done = |members: &Vec<usize>| {
            members.contains(&branch).then(|| members.iter().map(|&member| self.list[member].steps).sum())
        };
        self.common.parts.iter().map(|(_, members)| done(members)).collect()
    }

    /// The step of that turn is done, and took so many draws of all ranks.
    pub fn end_turn(&mut self, draws: u64) {
        let net = &mut self.list[self.now];
        net.steps += 1;
        net.draws += draws;
    }

    /// What went wrong in the second pass of the branch that learns.
    pub fn failure(&mut self) -> Option<Error> {
        self.list[self.now].family.engine.failure()
    }

    /// A branch by itself, with its parameters.
    pub fn branch(&mut self, branch: usize, common: &[f64]) -> (&mut DeepPotential<E>, &[f64]) {
        let Net { family, params, .. } = &mut self.list[branch];
        self.common.views[branch].gather(params, common);
        (family, params)
    }
}

impl<E: Engine> Family for Branches<E> {
    type Frame = Frame;
    type Prepared = OwnBlocks<E::Prepared>;
    type Value = LossValue;

    fn evaluate(
        &mut self,
        params: &[f64],
        batch: &Frames<Self>,
        now: &Now,
        team: &mut Team,
    ) -> Result<LossValue> {
        let (family, params) = self.branch(self.now, params);
        family.evaluate(params, batch, now, team)
    }

    fn n_gradients(&self, batch: &Frames<Self>) -> usize {
        self.list[self.now].family.n_gradients(batch)
    }

    fn backward(&mut self, grad: &mut [f64], _params: &[f64], batch: &Frames<Self>, k: usize, now: &Now) {
        let Net { family, params, .. } = &mut self.list[self.now];
        self.grad.resize(params.len(), 0.0);
        family.backward(&mut self.grad, params, batch, k, now);
        self.common.views[self.now].scatter(grad, &self.grad);
    }

    fn forget_parameters(&mut self) {
        self.list.iter_mut().for_each(|net| net.family.forget_parameters());
    }

    fn reconsider(&mut self, params: &[f64]) {
        for branch in 0..self.list.len() {
            let (family, params) = self.branch(branch, params);
            family.reconsider(params);
        }
    }

    fn state(&self) -> Value {
        let of = |net: &Net<E>| json!({"steps": net.steps, "draws": net.draws, "engine": net.family.state()});
        self.list.iter().map(of).collect()
    }

    fn pool(&self) -> Pool {
        self.list[0].family.pool()
    }

    fn is_single(&self) -> bool {
        self.list[0].family.is_single()
    }
}
