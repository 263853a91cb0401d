//! The branches in the checkpoint of a multi-task training.

use super::checkpoint::{check_kind, check_numbers, model_section};
use crate::checkpoint::Checkpoint;
use crate::config::check::did_you_mean;
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::branches::{Branch, Common, Shares};
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::{bail, err};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name that stands for none of the branches where fine-tuning takes the descriptor alone.
pub const RANDOM: &str = "RANDOM";

/// Marks checkpoints of multi-task trainings.
pub const KIND: &str = "phalanx multi-task state";

/// What a checkpoint says of a branch, under the key "branches".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BranchHeader {
    pub name: String,
    /// The `model` section of the branch, with all defaults and `sel` as numbers.
    pub model: Value,
    pub shares: Shares,
    pub statistics: DpStatistics,
    /// Shortest distance of its training data, A.
    pub min_distance: f64,
}

impl BranchHeader {
    /// Those of a checkpoint.
    pub fn list(header: &Value) -> Result<Vec<BranchHeader>> {
        serde_json::from_value(header["branches"].clone())
            .map_err(|e| err!("the header's branches cannot be read: {e}"))
    }

    /// Other names of it.
    pub fn aliases(&self) -> Vec<&str> {
        let list = self.model["model_branch_alias"].as_array();
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases().contains(&name)
    }
}

/// The branch that a user means: by its name or an alias, in capitals or not; without a name the one that is also called "Default".
pub fn find<'a>(branches: &'a [BranchHeader], head: Option<&str>) -> Result<&'a BranchHeader> {
    let names = || branches.iter().flat_map(|b| std::iter::once(b.name.as_str()).chain(b.aliases()));
    let list = || names().collect::<Vec<_>>().join(", ");
    let Some(head) = head else {
        let default = branches.iter().find(|branch| branch.is_called("Default"));
        return default.ok_or_else(|| {
            err!("this is a multi-task model, and it is not said which of its branches is meant")
                .help(format!("name one of {}: --head NAME, or freeze it: dp freeze --head NAME", list()))
        });
    };
    let lower = head.to_lowercase();
    let exact = branches.iter().find(|branch| branch.is_called(head));
    let near = || names().find(|name| name.to_lowercase() == lower);
    exact
        .or_else(|| near().and_then(|name| branches.iter().find(|branch| branch.is_called(name))))
        .ok_or_else(|| {
            let near = did_you_mean(head, names());
            err!("the model has no branch {head}").help(format!("{near}there: {}", list()))
        })
}

/// All branches of a checkpoint with their parameters.
pub struct SavedBranches {
    pub headers: Vec<BranchHeader>,
    pub branches: Vec<Branch>,
    pub common: Common,
    params: Vec<f64>,
}

impl SavedBranches {
    /// Whether a checkpoint is one of a multi-task training.
    pub fn is_one(saved: &Checkpoint) -> bool {
        saved.header["kind"] == KIND
    }

    pub fn of(saved: &Checkpoint) -> Result<Self> {
        check_kind(&saved.header, KIND)?;
        let headers = BranchHeader::list(&saved.header)?;
        let mut branches = Vec::with_capacity(headers.len());
        for header in &headers {
            let options =
                model_section(&header.model).map_err(|e| e.at(format!("branch {}", header.name)))?;
            if header.shares.descriptors.len() != options.descriptors.list.len() {
                bail!(
                    "branch {}: the header does not say of every descriptor whether it is shared",
                    header.name
                );
            }
            branches.push(Branch { name: header.name.clone(), options, shares: header.shares.clone() });
        }
        let common = Common::new(&branches)?;
        let params = saved.f64s("params")?.to_vec();
        for (header, branch) in headers.iter().zip(&branches) {
            check_numbers(&params, &header.statistics, header.min_distance, &branch.options)
                .map_err(|e| e.at(format!("branch {}", header.name)))?;
        }
        if params.len() != common.table.len() {
            bail!(
                "found {} parameters, the models of the branches want {}",
                params.len(),
                common.table.len()
            );
        }
        Ok(SavedBranches { headers, branches, common, params })
    }

    /// The place of the branch that a user means: see [`find`].
    pub fn place(&self, head: Option<&str>) -> Result<usize> {
        let found = find(&self.headers, head)?;
        Ok(self.headers.iter().position(|header| header.name == found.name).unwrap_or(0))
    }

    /// A branch as a model of its own: what its net makes of its case is part of the bias.
    pub fn model(&self, place: usize) -> DpModel {
        let (header, mut options) = (&self.headers[place], self.branches[place].options.clone());
        options.fitting.dim_case_embd = 0;
        if let Some(cases) = options.script["fitting_net"].get_mut("dim_case_embd") {
            *cases = 0.into();
        }
        let view = &self.common.views[place];
        let mut params = vec![0.0; view.len()];
        view.gather(&mut params, &self.params);
        Dp::new(options, header.statistics.clone()).to_spec(&params, Some(header.min_distance))
    }

    /// The parameters of a branch with the inputs that tell branches apart, block by block, by their names in the branch.
    pub fn named(&self, place: usize) -> Vec<(String, Vec<f64>)> {
        self.common.named(place, &self.branches[place].whole(), &self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn header(name: &str, aliases: &[&str]) -> BranchHeader {
        BranchHeader {
            name: name.into(),
            model: json!({ "model_branch_alias": aliases }),
            shares: Shares::default(),
            statistics: DpStatistics::default(),
            min_distance: 1.0,
        }
    }

    #[test]
    fn a_branch_goes_by_its_name_its_aliases_and_default() {
        let two = [header("water_1", &["Default", "Water"]), header("water_2", &["Water2"])];
        let name = |head: Option<&str>| find(&two, head).map(|branch| branch.name.clone());
        for (head, want) in [(None, "water_1"), (Some("Water"), "water_1"), (Some("water2"), "water_2")] {
            assert_eq!(name(head).unwrap(), want, "{head:?}");
        }
        assert_eq!(name(Some("water")).unwrap(), "water_1", "in capitals or not");
        let error = name(Some("ice")).unwrap_err();
        assert!(
            error.message().contains("no branch ice") && error.advice().unwrap().contains("water_2"),
            "{error}"
        );
        let error = find(&two[1..], None).unwrap_err();
        assert!(error.message().contains("which of its branches"), "{error}");
    }
}
