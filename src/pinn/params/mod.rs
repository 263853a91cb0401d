//! params.yml: what is trained, in the style of PiNN 1 and 2 or in that of PiNN 0.3 and its fork.

mod tables; // the keys of every block
mod optimizer; // the optimiser and its rate
mod write; // params.yml in the folder of the model

pub use write::{to_yaml, write_params};

use crate::config::check::{check, did_you_mean, found};
use crate::config::{Section, Table, value};
use crate::err;
use crate::error::{Error, Result};
use crate::loss::pinn::{Entry, LOSSES};
use crate::model::dp::options::Precision;
use crate::model::pinet::options::{
    Act, Basis, BasisType, CutoffType, Gamma, ModelOptions, NetworkKind, PinetOptions, Pool, Wiring,
};
use crate::optim::OptimizerChoice;
use crate::optim::keras_rate::Rate;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A whole params.yml, as meant. No default is left to be applied.
#[derive(Debug, Clone)]
pub struct Params {
    /// The style of the file, which is also the version of network and losses.
    pub style: Wiring,
    /// Where everything of the model goes.
    pub model_dir: PathBuf,
    pub network: PinetOptions,
    pub model: ModelOptions,
    pub optimizer: OptimizerChoice,
    pub rate: Rate,
    /// `parallel: true`: the run is meant for several processes.
    pub parallel: bool,
    /// Number type of the network (Phalanx only); PiNN's is float32.
    pub precision: Precision,
    /// Seed of initial parameters and of the order of the data (Phalanx only).
    pub seed: u64,
    /// False where `atom_types` is the default; `--init` then takes the elements of the data.
    pub atom_types_given: bool,
    /// The file as it was read, for [`write_params`].
    pub written: Value,
}

impl Params {
    /// Reads a file, or `params.yml` of a model's folder, which then is `model_dir` whatever the file says.
    pub fn read(path: &Path) -> Result<Params> {
        let (file, folder) =
            if path.is_dir() { (path.join("params.yml"), Some(path)) } else { (path.into(), None) };
        let mut written = value::read(&file)?;
        if let (Some(folder), Some(map)) = (folder, written.as_object_mut()) {
            map.insert("model_dir".into(), folder.to_string_lossy().into());
        }
        Params::from_value(written, &file.display().to_string())
    }

    /// Checks and resolves what was read. `file` stands in front of errors.
    pub fn from_value(written: Value, file: &str) -> Result<Params> {
        let written = with_yaml_1_1_booleans(written);
        let style = style_of(&written).map_err(|e| e.at(file))?;
        let top = checked(&tables::TOP[usize::from(style == Wiring::Fork)], written.clone(), file)?;
        let blocks = match style {
            Wiring::Master => Blocks::master(&top, file)?,
            Wiring::Fork => Blocks::fork(&top, file)?,
        };
        let at = |e: Error| e.at(file);
        let top = Section::root(&top);
        let network = resolve_network(&blocks, style).map_err(at)?;
        let model = (blocks.loss.resolve)(&blocks.model(), style).map_err(at)?;
        if matches!(model, ModelOptions::Dipole(_)) && network.out_pool.is_some() {
            let error = err!("dipole_model needs the charge of every atom, which a pool does not leave");
            return Err(blocks.network().error("out_pool", error).help("leave out_pool out").at(file));
        }
        let (optimizer, rate) = match style {
            Wiring::Master => optimizer::keras(top.get("optimizer"), file)?,
            Wiring::Fork => optimizer::fork(&blocks.model()),
        };
        Ok(Params {
            style,
            model_dir: top.text("model_dir").into(),
            network,
            model,
            optimizer,
            rate,
            parallel: top.bool("parallel"),
            precision: if top.text("precision") == "float64" {
                Precision::Float64
            } else {
                Precision::Float32
            },
            seed: top.int("seed"),
            atom_types_given: blocks.atom_types_given,
            written,
        })
    }

    /// Uses another folder, as `--model-dir` asks.
    pub fn with_model_dir(mut self, folder: &Path) -> Self {
        self.model_dir = folder.into();
        if let Some(map) = self.written.as_object_mut() {
            map.insert("model_dir".into(), folder.to_string_lossy().into());
        }
        self
    }
}

/// PiNN's files are YAML 1.1, where True, yes and on are truth values too. No option has such a word as its value.
fn with_yaml_1_1_booleans(value: Value) -> Value {
    match value {
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Value::Bool(true),
            "false" | "no" | "off" => Value::Bool(false),
            _ => Value::String(text),
        },
        Value::Array(list) => Value::Array(list.into_iter().map(with_yaml_1_1_booleans).collect()),
        Value::Object(map) => {
            map.into_iter().map(|(key, value)| (key, with_yaml_1_1_booleans(value))).collect()
        }
        other => other,
    }
}

/// Which style a file has: `network` is a block or a name.
fn style_of(written: &Value) -> Result<Wiring> {
    let help = "write `network: {name: PiNet, params: {...}}`, or `network: pinet` with `network_params`";
    match written.get("network") {
        Some(Value::Object(_)) => Ok(Wiring::Master),
        Some(Value::String(_)) => Ok(Wiring::Fork),
        Some(other) => Err(err!("network: found {}, wanted a block or a name", found(other)).help(help)),
        None if written.is_object() => Err(err!("network: missing").help(help)),
        None => Err(err!("found {}, wanted keys and values", found(written)).help(help)),
    }
}

fn checked(table: &'static Table, value: Value, file: &str) -> Result<Value> {
    let checked = check(table, &value, file)?;
    for note in &checked.notes {
        log::warn!("{file}: {note}");
    }
    Ok(checked.value)
}

/// The checked blocks of network and model, each within an object that gives its keys their paths.
struct Blocks {
    kind: NetworkKind,
    loss: &'static Entry,
    network: Value,
    model: Value,
    /// The paths of the two blocks of parameters.
    paths: [&'static [&'static str]; 2],
    atom_types_given: bool,
}

impl Blocks {
    fn master(top: &Value, file: &str) -> Result<Blocks> {
        let kind = network_kind(&top["network"]["name"], "network.name").map_err(|e| e.at(file))?;
        let loss = loss_called(&top["model"]["name"], "model.name").map_err(|e| e.at(file))?;
        Ok(Blocks {
            kind,
            loss,
            network: checked(&tables::NETWORK[kind as usize], json!({"network": top["network"]}), file)?,
            model: checked(loss.keys[0], json!({"model": top["model"]}), file)?,
            paths: [&["network", "params"], &["model", "params"]],
            atom_types_given: top["network"]["params"].get("atom_types").is_some(),
        })
    }

    fn fork(top: &Value, file: &str) -> Result<Blocks> {
        let kind = network_kind(&top["network"], "network").map_err(|e| e.at(file))?;
        if kind == NetworkKind::PiNet2 {
            return Err(err!("network: PiNet2 belongs to the newer style")
                .help(
                    "write `network: {name: PiNet2, params: {...}}` and `model: {name: ..., params: {...}}`",
                )
                .at(file));
        }
        let loss = loss_called(&top["model"], "model").map_err(|e| e.at(file))?;
        let part = |key: &str| Value::Object(Map::from_iter([(key.to_owned(), top[key].clone())]));
        Ok(Blocks {
            kind,
            loss,
            network: checked(&tables::NETWORK_PARAMS, part("network_params"), file)?,
            model: checked(loss.keys[1], part("model_params"), file)?,
            paths: [&["network_params"], &["model_params"]],
            atom_types_given: top["network_params"].get("atom_types").is_some(),
        })
    }

    fn network(&self) -> Section<'_> {
        self.paths[0].iter().fold(Section::root(&self.network), |section, key| section.section(key))
    }

    fn model(&self) -> Section<'_> {
        self.paths[1].iter().fold(Section::root(&self.model), |section, key| section.section(key))
    }
}

fn network_kind(name: &Value, path: &str) -> Result<NetworkKind> {
    let text = name.as_str().unwrap_or_default();
    match text.to_ascii_lowercase().as_str() {
        "pinet" => Ok(NetworkKind::PiNet),
        "pinet2" => Ok(NetworkKind::PiNet2),
        "bpnn" | "lj" => {
            Err(err!("{path}: PiNN knows {text}, Phalanx does not support it")
                .help("supported: PiNet, PiNet2"))
        }
        _ => {
            let near = did_you_mean(text, ["PiNet", "PiNet2"].into_iter());
            Err(err!("{path}: found {}, wanted the name of a network", found(name))
                .help(format!("{near}supported: PiNet, PiNet2")))
        }
    }
}

fn loss_called(name: &Value, path: &str) -> Result<&'static Entry> {
    let text = name.as_str().unwrap_or_default();
    if let Some(entry) = LOSSES.iter().find(|entry| entry.name == text) {
        return Ok(entry);
    }
    let names = || LOSSES.iter().map(|entry| entry.name);
    let supported = names().collect::<Vec<&str>>().join(", ");
    if text.ends_with("_dipole_model") {
        return Err(err!("{path}: PiNN knows {text}, Phalanx does not support it")
            .help(format!("supported: {supported}")));
    }
    let near = did_you_mean(text, names());
    Err(err!("{path}: found {}, wanted the name of a model", found(name))
        .help(format!("{near}supported: {supported}")))
}

fn floats(section: &Section, key: &str) -> Option<Vec<f64>> {
    let list = section.optional_list(key)?;
    Some(list.iter().filter_map(Value::as_f64).collect())
}

fn resolve_network(blocks: &Blocks, version: Wiring) -> Result<PinetOptions> {
    let section = blocks.network();
    let mut options = PinetOptions::new(version, blocks.kind);
    options.atom_types = section.ints("atom_types");
    let distinct: BTreeSet<i32> = options.atom_types.iter().copied().collect();
    if options.atom_types.is_empty() || distinct.len() != options.atom_types.len() {
        return Err(section.error("atom_types", err!("wanted a list of different atomic numbers")));
    }
    options.rc = section.float("rc");
    options.cutoff_type = match section.text("cutoff_type") {
        "f2" => CutoffType::F2,
        "hip" => CutoffType::Hip,
        _ => CutoffType::F1,
    };
    options.depth = section.int("depth");
    let nodes = |key: &str| match section.ints::<usize>(key) {
        list if list.is_empty() => {
            Err(section.error(key, err!("found an empty list, wanted at least one width")))
        }
        list => Ok(list),
    };
    options.pp_nodes = nodes("pp_nodes")?;
    options.pi_nodes = nodes("pi_nodes")?;
    options.ii_nodes = nodes("ii_nodes")?;
    options.act = Act::parse(section.text("act")).map_err(|e| section.error("act", e))?;
    resolve_basis(&section, &mut options)?;
    match version {
        Wiring::Fork => options.out_nodes = section.ints("en_nodes"),
        Wiring::Master => resolve_output(&section, &mut options)?,
    }
    if blocks.kind == NetworkKind::PiNet2 {
        resolve_pinet2(&section, &mut options)?;
    }
    Ok(options)
}

fn resolve_basis(section: &Section, options: &mut PinetOptions) -> Result<()> {
    let gaussian = section.text("basis_type") == "gaussian";
    options.basis_type = if gaussian { BasisType::Gaussian } else { BasisType::Polynomial };
    options.n_basis = match floats(section, "n_basis") {
        Some(list) if gaussian || list.is_empty() => {
            let error = err!("found a list of {}, wanted the number of functions", list.len());
            return Err(
                section.error("n_basis", error.help("only a polynomial basis takes a list: its powers"))
            );
        }
        Some(list) => Basis::Exponents(list),
        None => Basis::Count(section.int("n_basis")),
    };
    let n = options.n_basis.len();
    let fits = |key: &str, list: &[f64]| match list.len() == n {
        true => Ok(()),
        false => Err(section.error(key, err!("{} numbers, but n_basis is {n}", list.len()))),
    };
    if let Some(list) = floats(section, "gamma") {
        fits("gamma", &list)?;
        options.gamma = Gamma::Each(list);
    } else {
        options.gamma = Gamma::Same(section.float("gamma"));
    }
    options.center = floats(section, "center");
    options.center.as_deref().map_or(Ok(()), |list| fits("center", list))
}

fn resolve_output(section: &Section, options: &mut PinetOptions) -> Result<()> {
    options.out_nodes = section.ints("out_nodes");
    options.out_units = section.int("out_units");
    options.out_pool = match section.get("out_pool") {
        Some(Value::Bool(true)) => {
            return Err(section.error("out_pool", err!("found true, wanted false, sum, max, min or avg")));
        }
        Some(Value::String(name)) => Some(match name.as_str() {
            "max" => Pool::Max,
            "min" => Pool::Min,
            "avg" => Pool::Avg,
            _ => Pool::Sum,
        }),
        _ => None,
    };
    Ok(())
}

fn resolve_pinet2(section: &Section, options: &mut PinetOptions) -> Result<()> {
    options.rank = section.int("rank");
    options.weighted = section.bool("weighted");
    if ![1, 3, 5].contains(&options.rank) {
        return Err(section.error("rank", err!("found {}, wanted 1, 3 or 5", options.rank)));
    }
    if options.ii_nodes.last() != options.pp_nodes.last() {
        return Err(section
            .error("ii_nodes", err!("the last width differs from that of pp_nodes"))
            .help("the two are multiplied with each other in PiNet2"));
    }
    for (name, width) in section.section("out_extra").value().as_object().into_iter().flatten() {
        let error = |e: Error| section.error("out_extra", e);
        if !["p1", "p3", "p5", "i1", "i3", "i5"].contains(&name.as_str()) {
            return Err(error(err!("found \"{name}\", wanted p1, p3, p5, i1, i3 or i5")));
        }
        let width = width.as_u64().filter(|w| (1..=100_000).contains(w));
        let width = width.ok_or_else(|| error(err!("{name}: wanted a width")))?;
        options.out_extra.insert(name.clone(), width as usize);
    }
    Ok(())
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
