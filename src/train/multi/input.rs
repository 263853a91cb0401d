//! The input of a multi-task training.
//!
//! Each branch is the input of a single-task training: its model with the shared parts put in, its loss, its data, and all that
//! holds for the whole run.

use crate::config::check::did_you_mean;
use crate::err;
use crate::error::{Error, ErrorKind, Result};
use crate::model::dp::branches::{Branch, Common, Shared, Shares};
use crate::optim::AdamOptions;
use crate::train::input::{Input, random_seed};
use crate::train::options::InputSource;
use serde_json::{Map, Value, json};

/// The input of a multi-task training, as meant.
#[derive(Debug, Clone)]
pub struct MultiInput {
    pub branches: Vec<BranchInput>,
    pub weights: Weights,
}

/// One branch of it.
#[derive(Debug, Clone)]
pub struct BranchInput {
    pub name: String,
    /// The input of the branch by itself.
    pub input: Input,
    /// The same as JSON with all defaults.
    pub full: Value,
    pub shares: Shares,
    /// How `model.model_dict` names what is shared, by key.
    named: Map<String, Value>,
    /// The branch of another multi-task model that fine-tuning starts from.
    pub finetune_head: Option<String>,
}

/// How often a branch is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Weights {
    /// `model_prob`, one for each branch.
    Given(Vec<f64>),
    /// By the number of systems of its training data.
    BySystems,
    /// So that each branch sees its data as often as `num_epoch_dict` wants.
    ByEpochs,
}

/// Keys of the whole run below which every branch has an entry of its own.
const MODEL_DICT: &str = "model.model_dict";
const SHARED_DICT: &str = "model.shared_dict";
const DATA_DICT: &str = "training.data_dict";
const LOSS_DICT: &str = "loss_dict";
/// What an entry of `data_dict` may hold.
const DATA_KEYS: [&str; 4] = ["training_data", "validation_data", "stat_file", "stat_file_mode"];

impl MultiInput {
    /// Whether an input is one of a multi-task training.
    pub fn is_one(written: &Value) -> bool {
        written.get("model").and_then(|model| model.get("model_dict")).is_some_and(|dict| !dict.is_null())
    }

    /// Reads an input; where it gives no seed, one is taken at random.
    pub fn of(source: &InputSource) -> Result<MultiInput> {
        let read = source.read().and_then(|written| Self::from_value(written, &source.name(), random_seed));
        read.map_err(|e| if e.kind() == ErrorKind::Other { e.of_kind(ErrorKind::Input) } else { e })
    }

    /// Resolves an input that was read from `file`; `new_seed` is asked where `training.seed` is absent.
    pub fn from_value(mut written: Value, file: &str, new_seed: impl FnOnce() -> u64) -> Result<MultiInput> {
        strip_comments(&mut written);
        let at_file = |e: Error| e.at(file);
        let parts = Written::of(&written).map_err(at_file)?;
        let mut training = parts.training.clone();
        if training.get("seed").is_none_or(Value::is_null) {
            let seed = new_seed();
            log::info!("training.seed: {seed}, taken at random");
            training.insert("seed".into(), seed.into());
        }
        let mut branches = Vec::with_capacity(parts.model_dict.len());
        for name in parts.model_dict.keys() {
            let (value, shares, named, finetune_head) = parts.branch(name, &training).map_err(at_file)?;
            let place = format!("{file}: branch {name}");
            let (input, full) = Input::of_branch(value, &place)?;
            branches.push(BranchInput { name: name.clone(), input, full, shares, named, finetune_head });
        }
        let weights = parts.weights().map_err(at_file)?;
        let input = MultiInput { branches, weights };
        input.check().map_err(at_file)?;
        Ok(input)
    }

    /// What holds for the whole run is the same in every branch.
    pub fn common(&self) -> &Input {
        &self.branches[0].input
    }

    /// The branches of the model.
    pub fn model(&self) -> Vec<Branch> {
        let branch = |b: &BranchInput| Branch {
            name: b.name.clone(),
            options: b.input.model.clone(),
            shares: b.shares.clone(),
        };
        self.branches.iter().map(branch).collect()
    }

    fn check(&self) -> Result<()> {
        let embeds = |branch: &&BranchInput| branch.input.model.type_embedding.is_some();
        if let Some(branch) = self.branches.iter().find(embeds) {
            return Err(err!(
                "{MODEL_DICT}.{}.type_embedding: a multi-task training does not have this yet",
                branch.name
            )
            .help("leave the key out; se_atten has a type embedding of its own"));
        }
        self.check_shares()?;
        self.check_cases()?;
        let common = self.common();
        if common.optimizer.options::<AdamOptions>().is_none() {
            return Err(err!("optimizer.type: with this optimizer branches cannot take turns yet")
                .help("a multi-task training takes Adam or AdamW"));
        }
        let training = &common.training;
        let refused = [
            (common.validating.live || common.validating.average, "validating.full_validation"),
            (training.disp_avg, "training.disp_avg"),
            (training.change_bias_after_training, "training.change_bias_after_training"),
        ];
        if let Some((_, key)) = refused.iter().find(|(given, _)| *given) {
            return Err(err!("{key}: a multi-task training does not have this yet").help("leave the key out"));
        }
        if self.branches.iter().all(|branch| branch.input.model.descriptors.is_fixed()) {
            Common::new(&self.model())?; // parts that cannot be shared are known already
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<()> {
        for (k, branch) in self.branches.iter().enumerate() {
            let path = format!("{MODEL_DICT}.{}", branch.name);
            let descriptors = &branch.input.model.descriptors;
            for (se, shared) in descriptors.list.iter().zip(&branch.shares.descriptors) {
                let Some(shared) = shared else { continue };
                let whole_hybrid = descriptors.is_hybrid && branch.named.contains_key("descriptor");
                let most = usize::from(se.attention().is_some() && !whole_hybrid);
                check_level(shared, most, &format!("{path}.descriptor"))?;
            }
            if let Some(shared) = &branch.shares.fitting {
                check_level(shared, 0, &format!("{path}.fitting_net"))?;
            }
            for other in &self.branches[..k] {
                let (own, theirs) = (&branch.input.model.type_map, &other.input.model.type_map);
                if own != theirs && branch.shares.names().any(|name| other.shares.names().any(|n| n == name))
                {
                    return Err(err!(
                        "{path}.type_map: found {own:?}, and {theirs:?} in the branch {}, with which it shares a part",
                        other.name
                    )
                    .help("branches that share a part have the same types in the same order"));
                }
            }
        }
        Ok(())
    }

    /// All branches have as many inputs that tell them apart, and enough of them.
    fn check_cases(&self) -> Result<()> {
        let n = self.branches.len();
        let cases = |branch: &BranchInput| branch.input.model.fitting.dim_case_embd;
        let first = cases(&self.branches[0]);
        for branch in &self.branches {
            let (found, path) =
                (cases(branch), format!("{MODEL_DICT}.{}.fitting_net.dim_case_embd", branch.name));
            if found != first {
                return Err(err!(
                    "{path}: found {found}, and {first} in the branch {}",
                    self.branches[0].name
                )
                .help("all branches have the same number, or none"));
            }
            if found > 0 && found < n {
                return Err(err!("{path}: found {found} for {n} branches").help("give one for each branch"));
            }
        }
        Ok(())
    }

    /// The input with all defaults: `out.json`.
    pub fn full(&self) -> Value {
        let (mut shared, mut models) = (Map::new(), Map::new());
        let (mut losses, mut data) = (Map::new(), Map::new());
        let mut epochs = Map::new();
        for branch in &self.branches {
            let (name, full) = (branch.name.clone(), &branch.full);
            models.insert(name.clone(), branch.with_names(&mut shared));
            losses.insert(name.clone(), full["loss"].clone());
            let entry = DATA_KEYS
                .iter()
                .filter_map(|key| Some((key.to_string(), full["training"].get(*key)?.clone())));
            data.insert(name.clone(), Value::Object(entry.collect()));
            epochs.insert(name, full["training"]["numb_epoch"].clone());
        }
        let mut root = self.branches[0].full.clone();
        root["model"] = json!({ "shared_dict": shared, "model_dict": models });
        if let Value::Object(root) = &mut root {
            root.shift_remove("loss");
            root.insert("loss_dict".into(), losses.into());
        }
        if let Some(training) = root["training"].as_object_mut() {
            DATA_KEYS.iter().chain(&["numb_epoch"]).for_each(|key| drop(training.shift_remove(*key)));
            training.insert("data_dict".into(), data.into());
            match &self.weights {
                Weights::Given(weights) => {
                    let names = self.branches.iter().map(|branch| branch.name.clone());
                    let given: Map<String, Value> = names.zip(weights.iter().map(|&w| w.into())).collect();
                    training.insert("model_prob".into(), given.into());
                }
                Weights::ByEpochs => drop(training.insert("num_epoch_dict".into(), epochs.into())),
                Weights::BySystems => {}
            }
        }
        root
    }
}

impl BranchInput {
    /// Its `model` section, with names in place of what is shared; what they stand for goes into `shared`.
    fn with_names(&self, shared: &mut Map<String, Value>) -> Value {
        let mut model = self.full["model"].clone();
        for (key, name) in &self.named {
            let own = match key.strip_prefix("descriptor.") {
                Some(k) => &mut model["descriptor"]["list"][k.parse::<usize>().expect("we wrote it")],
                None => &mut model[key.as_str()],
            };
            let text = name.as_str().unwrap_or_default();
            let entry = text.split(':').next().unwrap_or_default().to_string();
            shared.entry(entry).or_insert_with(|| own.clone());
            *own = name.clone();
        }
        if let Some(head) = &self.finetune_head {
            model["finetune_head"] = head.as_str().into();
        }
        model
    }
}

fn check_level(shared: &Shared, most: usize, path: &str) -> Result<()> {
    if shared.level <= most {
        return Ok(());
    }
    let help = match most {
        0 => "wanted 0: all parameters are shared",
        _ => "wanted 0: all parameters are shared, or 1: those of the type embedding",
    };
    Err(err!("{path}: found level {} of \"{}\"", shared.level, shared.name).help(help))
}

/// Removes the keys that are comments.
fn strip_comments(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !key.starts_with('_'));
            map.values_mut().for_each(strip_comments);
        }
        Value::Array(list) => list.iter_mut().for_each(strip_comments),
        _ => {}
    }
}

/// The objects of an input that every branch has an entry in.
struct Written<'a> {
    root: &'a Map<String, Value>,
    model: &'a Map<String, Value>,
    model_dict: &'a Map<String, Value>,
    shared_dict: Option<&'a Map<String, Value>>,
    training: &'a Map<String, Value>,
}

/// The input of a branch by itself, what it shares, how that is called, and what fine-tuning starts from.
type OneBranch = (Value, Shares, Map<String, Value>, Option<String>);

fn object<'a>(value: Option<&'a Value>, path: &str, wanted: &str) -> Result<&'a Map<String, Value>> {
    match value {
        Some(Value::Object(map)) => Ok(map),
        Some(other) => Err(err!("{path}: found {other}, wanted {wanted}")),
        None => Err(err!("{path}: missing; wanted {wanted}")),
    }
}

impl<'a> Written<'a> {
    fn of(written: &'a Value) -> Result<Self> {
        let root = object(Some(written), "the input", "an object")?;
        let model = object(root.get("model"), "model", "an object")?;
        let model_dict =
            object(model.get("model_dict"), MODEL_DICT, "an object with a model for each branch")?;
        let shared_dict =
            model.get("shared_dict").map(|dict| object(Some(dict), SHARED_DICT, "an object")).transpose()?;
        if model_dict.is_empty() {
            return Err(
                err!("{MODEL_DICT}: found no branch").help("give a model for each branch, by its name")
            );
        }
        if let Some(name) =
            model_dict.keys().find(|name| name.is_empty() || name.contains(char::is_whitespace))
        {
            return Err(err!("{MODEL_DICT}: \"{name}\" cannot be the name of a branch")
                .help("names are parts of the columns of the learning curve: give it one without spaces"));
        }
        let written = Written {
            root,
            model,
            model_dict,
            shared_dict,
            training: object(root.get("training"), "training", "an object")?,
        };
        written.check_aliases()?;
        Ok(written)
    }

    /// Refuses a name that stands for two branches.
    fn check_aliases(&self) -> Result<()> {
        let mut names: Vec<(&str, &str)> =
            self.model_dict.keys().map(|name| (name.as_str(), name.as_str())).collect();
        for (branch, model) in self.model_dict {
            let aliases = model.get("model_branch_alias").and_then(Value::as_array);
            for alias in aliases.into_iter().flatten().filter_map(Value::as_str) {
                if let Some((_, other)) = names.iter().find(|(name, _)| *name == alias) {
                    return Err(err!(
                        "{MODEL_DICT}.{branch}.model_branch_alias: \"{alias}\" stands for the branch {other} already"
                    ));
                }
                names.push((alias, branch));
            }
        }
        Ok(())
    }

    /// Refuses an entry for a branch that is not there, and a branch without one.
    fn entries(&self, dict: Option<&'a Value>, path: &str, what: &str) -> Result<&'a Map<String, Value>> {
        let map = object(dict, path, &format!("an object with {what} of each branch"))?;
        if let Some(name) = map.keys().find(|name| !self.model_dict.contains_key(*name)) {
            let near = did_you_mean(name, self.model_dict.keys().map(String::as_str));
            return Err(err!("{path}.{name}: there is no such branch")
                .help(format!("{near}branches: {}", self.names())));
        }
        match self.model_dict.keys().find(|name| !map.contains_key(*name)) {
            Some(name) => Err(err!("{path}.{name}: missing; wanted {what} of this branch")),
            None => Ok(map),
        }
    }

    fn names(&self) -> String {
        self.model_dict.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The input of a branch by itself.
    fn branch(&self, name: &str, training: &Map<String, Value>) -> Result<OneBranch> {
        let (model, shares, named, finetune_head) = self.model_of(name)?;
        let losses = self.entries(self.root.get(LOSS_DICT), LOSS_DICT, "the loss")?;
        let data = self.entries(self.training.get("data_dict"), DATA_DICT, "the data")?;
        let data = object(data.get(name), &format!("{DATA_DICT}.{name}"), "an object")?;
        if let Some(key) = data.keys().find(|key| !DATA_KEYS.contains(&key.as_str())) {
            let near = did_you_mean(key, DATA_KEYS.into_iter());
            return Err(err!("{DATA_DICT}.{name}.{key}: unknown key")
                .help(format!("{near}known: {}", DATA_KEYS.join(", "))));
        }
        if !data.contains_key("training_data") {
            return Err(err!(
                "{DATA_DICT}.{name}.training_data: missing; wanted the data that the branch learns"
            ));
        }
        for (key, instead) in [("training_data", DATA_DICT), ("validation_data", DATA_DICT)] {
            if training.contains_key(key) {
                return Err(
                    err!("training.{key}: branches have data of their own").help(format!("write {instead}"))
                );
            }
        }
        let epochs = ["numb_epoch", "num_epoch", "num_epochs", "numb_epochs"];
        if let Some(key) = epochs.iter().find(|key| training.contains_key(**key)) {
            return Err(err!("training.{key}: branches have epochs of their own")
                .help("write training.num_epoch_dict"));
        }
        if self.root.contains_key("loss") {
            return Err(err!("loss: branches have losses of their own").help(format!("write {LOSS_DICT}")));
        }
        let mut own: Map<String, Value> = training.clone();
        ["data_dict", "model_prob", "num_epoch_dict"].iter().for_each(|key| drop(own.shift_remove(*key)));
        own.extend(data.iter().map(|(key, value)| (key.clone(), value.clone())));
        if let Some(epochs) = self.epochs()? {
            own.insert("numb_epoch".into(), epochs[name].clone());
        }
        let mut root = self.root.clone();
        root.shift_remove(LOSS_DICT);
        root.insert("model".into(), model);
        root.insert("loss".into(), losses[name].clone());
        root.insert("training".into(), own.into());
        Ok((root.into(), shares, named, finetune_head))
    }

    /// The model of a branch with all that is shared in place of its names.
    fn model_of(&self, name: &str) -> Result<OneBranch> {
        let path = format!("{MODEL_DICT}.{name}");
        let mut model = object(self.model_dict.get(name), &path, "an object")?.clone();
        // What stands beside the branches holds for each that does not say otherwise.
        for (key, value) in self.model.iter().filter(|(key, _)| *key != "model_dict" && *key != "shared_dict")
        {
            model.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let head = match model.shift_remove("finetune_head") {
            None => None,
            Some(Value::String(head)) => Some(head),
            Some(other) => {
                return Err(err!("{path}.finetune_head: found {other}, wanted the name of a branch"));
            }
        };
        let (mut shares, mut named) = (Shares::default(), Map::new());
        if let Some(Value::String(text)) = model.get("type_map") {
            let (list, _) = self.shared(text, &format!("{path}.type_map"))?;
            model.insert("type_map".into(), list);
        }
        let mut descriptor = model.get("descriptor").cloned().unwrap_or_default();
        let mut whole = None;
        if let Value::String(text) = &descriptor {
            named.insert("descriptor".into(), text.as_str().into());
            let (value, shared) = self.shared(text, &format!("{path}.descriptor"))?;
            (descriptor, whole) = (value, Some(shared));
        }
        let is_hybrid = descriptor.get("type").is_some_and(|kind| kind == "hybrid");
        match descriptor.get_mut("list").and_then(Value::as_array_mut).filter(|_| is_hybrid) {
            Some(list) => {
                for (k, item) in list.iter_mut().enumerate() {
                    shares.descriptors.push(match (&whole, &item) {
                        (Some(whole), _) => {
                            Some(Shared { name: format!("{}.{k}", whole.name), level: whole.level })
                        }
                        (None, Value::String(text)) => {
                            let text = text.clone();
                            let (value, shared) =
                                self.shared(&text, &format!("{path}.descriptor.list[{k}]"))?;
                            named.insert(format!("descriptor.{k}"), text.into());
                            *item = value;
                            Some(shared)
                        }
                        _ => None,
                    });
                }
            }
            None => shares.descriptors.push(whole),
        }
        if !descriptor.is_null() {
            model.insert("descriptor".into(), descriptor);
        }
        if let Some(Value::String(text)) = model.get("fitting_net") {
            named.insert("fitting_net".into(), text.as_str().into());
            let (value, shared) = self.shared(text, &format!("{path}.fitting_net"))?;
            model.insert("fitting_net".into(), value);
            shares.fitting = Some(shared);
        }
        Ok((model.into(), shares, named, head))
    }

    /// What a name, with a level after a colon, stands for.
    fn shared(&self, text: &str, path: &str) -> Result<(Value, Shared)> {
        let (name, level) = text.split_once(':').unwrap_or((text, "0"));
        let Ok(level) = level.trim().parse::<usize>() else {
            return Err(
                err!("{path}: \"{text}\" has no level after the colon").help("wanted NAME or NAME:LEVEL")
            );
        };
        let known: Vec<&str> =
            self.shared_dict.into_iter().flat_map(|dict| dict.keys().map(String::as_str)).collect();
        let Some(value) = self.shared_dict.and_then(|dict| dict.get(name)) else {
            let near = did_you_mean(name, known.iter().copied());
            let help = match known.is_empty() {
                true => "give what is shared in model.shared_dict, or write it out here".to_string(),
                false => format!("{near}there: {}", known.join(", ")),
            };
            return Err(err!("{path}: \"{name}\" is not in {SHARED_DICT}").help(help));
        };
        Ok((value.clone(), Shared { name: name.to_string(), level }))
    }

    /// `num_epoch_dict`, where there is one.
    fn epochs(&self) -> Result<Option<&'a Map<String, Value>>> {
        const PATH: &str = "training.num_epoch_dict";
        let given = |key: &str| self.training.get(key).filter(|v| !v.as_object().is_some_and(Map::is_empty));
        let Some(dict) = given("num_epoch_dict").filter(|dict| !dict.is_null()) else { return Ok(None) };
        let steps = ["numb_steps", "stop_batch", "num_step", "num_steps", "numb_step", "model_prob"];
        if let Some(key) = steps.iter().find(|key| given(key).is_some()) {
            return Err(err!("{PATH}: is given together with training.{key}").help(
                "the epochs say how long to train, and how often each branch is drawn: keep one of them",
            ));
        }
        let epochs = self.entries(Some(dict), PATH, "the epochs")?;
        Ok(Some(epochs))
    }

    fn weights(&self) -> Result<Weights> {
        const PATH: &str = "training.model_prob";
        if self.epochs()?.is_some() {
            return Ok(Weights::ByEpochs);
        }
        let given =
            self.training.get("model_prob").filter(|dict| !dict.as_object().is_some_and(Map::is_empty));
        let Some(dict) = given.filter(|dict| !dict.is_null()) else { return Ok(Weights::BySystems) };
        let entries = self.entries(Some(dict), PATH, "the weight")?;
        let mut weights = Vec::with_capacity(entries.len());
        for name in self.model_dict.keys() {
            match entries[name].as_f64() {
                Some(weight) if weight.is_finite() && weight >= 0.0 => weights.push(weight),
                _ => {
                    return Err(err!(
                        "{PATH}.{name}: found {}, wanted a number of at least 0",
                        entries[name]
                    ));
                }
            }
        }
        let sum: f64 = weights.iter().sum();
        if sum == 0.0 || !sum.is_finite() {
            return Err(err!("{PATH}: the weights add up to {sum}, so that no branch could be drawn")
                .help("give one branch at least a weight above 0"));
        }
        Ok(Weights::Given(weights))
    }
}
