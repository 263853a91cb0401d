//! The branches of a multi-task model, and the parameters that they have in common.
//!
//! Each branch is a whole model. What branches share stands once in the common vector; a branch sees its own part of it through a
//! [`View`].

use super::fitting::FittingOptions;
use super::model::Dp;
use super::options::ModelOptions;
use super::spec::DpStatistics;
use crate::err;
use crate::error::{Error, Result};
use crate::model::net::Shortcut;
use crate::model::params::{ParamTable, ParamView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

/// Something that branches share: a descriptor or a fitting net.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shared {
    /// Its name in `shared_dict`.
    pub name: String,
    /// 0: all parameters; 1: those of the type embedding.
    pub level: usize,
}

/// What a branch shares with others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// One for each descriptor of the branch.
    pub descriptors: Vec<Option<Shared>>,
    pub fitting: Option<Shared>,
}

impl Shares {
    /// The names of all that is shared.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.descriptors.iter().flatten().chain(&self.fitting).map(|shared| shared.name.as_str())
    }
}

/// A branch of a multi-task model.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    pub name: String,
    pub options: ModelOptions,
    pub shares: Shares,
}

/// Where the parameters of all branches lie in one flat vector.
#[derive(Debug)]
pub struct Common {
    pub table: ParamTable,
    /// `[n_branches]`
    pub views: Vec<View>,
    /// Ranges of the vector that belong to the same branches, in order, and which these are.
    pub parts: Vec<(Range<usize>, Vec<usize>)>,
    /// Of each branch: where the blocks of [`Branch::whole`] stand in the table, and the level at which they are shared.
    places: Vec<Vec<(usize, usize)>>,
}

/// Where the parameters of a branch lie in the common vector.
#[derive(Debug)]
pub struct View {
    pieces: Vec<Piece>,
    /// Parameters of the branch as a model of its own.
    len: usize,
}

/// A block of parameters of a branch.
#[derive(Debug)]
struct Piece {
    own: Range<usize>,
    /// Where it begins in the common vector.
    common: usize,
    /// What else is added to it, of the same length: a bias has the row of the weights that the branch's own case multiplies by 1.
    more: Option<usize>,
}

/// Names of the parameters of a type embedding have it.
const TYPE_EMBEDDING: &str = "type_embedding";
const FITTING: &str = "fitting_net";

/// A part of a branch, all of which is shared or not.
struct Owner<'a> {
    /// Front of the names of its parameters.
    front: String,
    shared: Option<&'a Shared>,
}

impl<'a> Owner<'a> {
    /// What a parameter is called wherever it is shared, and how; `None` where it is the branch's own, or not of this part.
    fn key(&self, name: &str) -> Option<(String, &'a Shared)> {
        let shared = self.shared?;
        let rest = name.strip_prefix(&self.front).filter(|rest| rest.starts_with('.'))?;
        (shared.level == 0 || rest.contains(TYPE_EMBEDDING))
            .then(|| (format!("{}{rest}", shared.name), shared))
    }
}

/// The parts of a branch.
fn owners(branch: &Branch) -> Vec<Owner<'_>> {
    let descriptors = &branch.options.descriptors;
    let front = |k: usize| match descriptors.is_hybrid {
        true => format!("descriptor.descrpt_list.{k}"),
        false => "descriptor".to_string(),
    };
    let shared = branch.shares.descriptors.iter().enumerate();
    let mut owners: Vec<Owner> =
        shared.map(|(k, shared)| Owner { front: front(k), shared: shared.as_ref() }).collect();
    owners.push(Owner { front: FITTING.to_string(), shared: branch.shares.fitting.as_ref() });
    owners
}

impl Branch {
    /// The model with the inputs of the fitting nets that tell the branches apart: its parameters are those that are kept.
    pub fn whole(&self) -> Dp {
        let more = self.options.fitting.dim_case_embd;
        Dp::with_inputs(self.options.clone(), DpStatistics::default(), more)
    }

    /// Refuses nets whose first layer has a shortcut with those inputs and none without, or the other way round.
    fn check_shortcut(&self) -> Result<()> {
        let FittingOptions { dim_case_embd, neuron, .. } = &self.options.fitting;
        let (whole, own) = (self.whole(), Dp::new(self.options.clone(), DpStatistics::default()));
        let [whole, own] = [&whole, &own].map(|dp| dp.fitting[0].layers[0].shortcut);
        if whole == own && (*dim_case_embd == 0 || whole == Shortcut::None) {
            return Ok(());
        }
        Err(err!(
            "fitting_net.dim_case_embd: the first layer of {} has a shortcut to its {dim_case_embd} inputs that tell branches apart",
            neuron[0]
        )
        .help("give it another width"))
    }
}

impl Common {
    /// Lays out the parameters of these branches; the case of a branch is its place in the order of names, as in DeePMD-kit.
    pub fn new(branches: &[Branch]) -> Result<Common> {
        let mut names: Vec<&str> = branches.iter().map(|branch| branch.name.as_str()).collect();
        names.sort_unstable();
        let mut table = ParamTable::default();
        let mut known: HashMap<String, (usize, &str)> = HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new(); // of each view of the table
        let (mut views, mut places) =
            (Vec::with_capacity(branches.len()), Vec::with_capacity(branches.len()));
        for (b, branch) in branches.iter().enumerate() {
            let at = |e: Error| e.at(format!("model.model_dict.{}", branch.name));
            branch.check_shortcut().map_err(at)?;
            let (whole, own) = (branch.whole(), Dp::new(branch.options.clone(), DpStatistics::default()));
            let owners = owners(branch);
            let mut own_places = Vec::with_capacity(whole.table.views().len());
            for view in whole.table.views() {
                let key = owners.iter().find_map(|owner| owner.key(&view.name));
                let level = key.as_ref().map_or(0, |(_, shared)| shared.level);
                if let Some(&(place, first)) = key.as_ref().and_then(|(key, _)| known.get(key)) {
                    let shape = &table.views()[place].shape;
                    if *shape != view.shape {
                        let error = err!(
                            "{} has the shape {:?}, and {shape:?} in the branch {first}, which shares it",
                            view.name,
                            view.shape
                        );
                        return Err(at(
                            error.help("what surrounds a shared part must be the same in all branches")
                        ));
                    }
                    members[place].push(b);
                    own_places.push((place, level));
                    continue;
                }
                let place = members.len();
                let name = match &key {
                    Some((key, _)) => key.clone(),
                    None => format!("{}.{}", branch.name, view.name),
                };
                table.add(name, &view.shape, view.trainable);
                members.push(vec![b]);
                own_places.push((place, level));
                if let Some((key, _)) = key {
                    known.insert(key, (place, &branch.name));
                }
            }
            let case = names.iter().position(|name| *name == branch.name).unwrap_or(0);
            let piece = |(own, &(place, _)): (&ParamView, &(usize, usize))| Piece {
                own: own.range(),
                common: table.views()[place].offset,
                more: None,
            };
            let pieces = own.table.views().iter().zip(&own_places).map(piece).collect();
            let mut view = View { pieces, len: own.table.len() };
            if branch.options.fitting.dim_case_embd > 0 {
                view.tell_case(&own, &whole, case);
            }
            views.push(view);
            places.push(own_places);
        }
        let mut parts: Vec<(Range<usize>, Vec<usize>)> = Vec::new();
        for (view, members) in table.views().iter().zip(members) {
            match parts.last_mut() {
                Some((range, last)) if *last == members => range.end = view.range().end,
                _ => parts.push((view.range(), members)),
            }
        }
        Ok(Common { table, views, parts, places })
    }

    /// The common vector from the initial parameters of all branches, as [`Branch::whole`] has them: what is shared is that of the
    /// branch that shares most of it, the first of several.
    pub fn initial(&self, wholes: &[Dp], params: &[Vec<f64>]) -> Vec<f64> {
        let mut common = vec![0.0; self.table.len()];
        let mut levels = vec![usize::MAX; self.table.views().len()];
        for ((whole, places), params) in wholes.iter().zip(&self.places).zip(params) {
            for (view, &(place, level)) in whole.table.views().iter().zip(places) {
                if level < levels[place] {
                    levels[place] = level;
                    common[self.table.views()[place].range()].copy_from_slice(&params[view.range()]);
                }
            }
        }
        common
    }
}

impl Common {
    /// The blocks of a branch, by their names in [`Branch::whole`].
    pub fn named(&self, branch: usize, whole: &Dp, common: &[f64]) -> Vec<(String, Vec<f64>)> {
        let places = self.places[branch].iter().map(|&(place, _)| self.table.views()[place].range());
        let names = whole.table.views().iter().map(|view| view.name.clone());
        names.zip(places).map(|(name, range)| (name, common[range].to_vec())).collect()
    }
}

impl View {
    /// Folds what the fitting nets make of the branch's case into the bias of their first layers.
    fn tell_case(&mut self, own: &Dp, whole: &Dp, case: usize) {
        for (own, whole) in own.fitting.iter().zip(&whole.fitting) {
            let (own, whole) = (&own.layers[0], &whole.layers[0]);
            let weights =
                self.pieces.iter().find(|p| p.own == own.w_range()).expect("a layer has weights").common;
            let bias = self.pieces.iter_mut().find(|p| Some(&p.own) == own.b_range().as_ref());
            let row = own.n_in + case;
            assert!(row < whole.n_in, "the input was checked: there is a number for each branch");
            bias.expect("a hidden layer has a bias").more = Some(weights + row * own.n_out);
        }
    }

    /// Parameters of the branch as a model of its own.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Overwrites the parameters of the branch with those of the common vector.
    ///
    /// - own     out  `[self.len()]`
    /// - common  in   `[Common::table.len()]`
    pub fn gather(&self, own: &mut [f64], common: &[f64]) {
        for Piece { own: range, common: at, more } in &self.pieces {
            let own = &mut own[range.clone()];
            own.copy_from_slice(&common[*at..at + range.len()]);
            if let Some(more) = more {
                own.iter_mut().zip(&common[*more..]).for_each(|(x, more)| *x += more);
            }
        }
    }

    /// Overwrites the derivatives by the common vector with those by the parameters of the branch; 0 where it has none.
    ///
    /// - common  out  `[Common::table.len()]`
    /// - own     in   `[self.len()]`
    pub fn scatter(&self, common: &mut [f64], own: &[f64]) {
        common.fill(0.0);
        for Piece { own: range, common: at, more } in &self.pieces {
            for at in [Some(*at), *more].into_iter().flatten() {
                common[at..at + range.len()].copy_from_slice(&own[range.clone()]);
            }
        }
    }
}
