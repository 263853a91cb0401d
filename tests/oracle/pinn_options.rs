//! The options of a PiNN case from its oracle.json.

use phalanx::model::pinet::options::*;
use phalanx::optim::keras_adam::{Clip, KerasAdamOptions};
use phalanx::optim::keras_rate::Rate;
use phalanx::{Result, bail, err};
use serde_json::Value;
use std::collections::BTreeMap;

/// A case as it was run.
pub struct Options {
    pub network: PinetOptions,
    pub model: ModelOptions,
    pub adam: KerasAdamOptions,
    pub rate: Rate,
    pub float32: bool,
}

/// Sets what the object says; other keys of it must be in `others`.
macro_rules! set {
    ($object:expr, $target:ident, { $($key:literal => $field:ident: $kind:ident),* $(,)? }) => {
        $(if let Some(value) = $object.get($key) { $target.$field = $kind(value)?; })*
    };
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| err!("{value} is not a number"))
}

fn count(value: &Value) -> Result<usize> {
    value.as_u64().map(|n| n as usize).ok_or_else(|| err!("{value} is not a count"))
}

fn flag(value: &Value) -> Result<bool> {
    value.as_bool().ok_or_else(|| err!("{value} is not true or false"))
}

fn counts(value: &Value) -> Result<Vec<usize>> {
    value.as_array().into_iter().flatten().map(count).collect()
}

fn elements(value: &Value) -> Result<Vec<i32>> {
    Ok(counts(value)?.into_iter().map(|z| z as i32).collect())
}

fn numbers(value: &Value) -> Result<Vec<f64>> {
    value.as_array().into_iter().flatten().map(number).collect()
}

/// A number, or false.
fn limit(value: &Value) -> Result<Option<f64>> {
    Ok(value.as_f64())
}

fn some_count(value: &Value) -> Result<Option<usize>> {
    Ok(value.as_u64().map(|n| n as usize))
}

fn dress(value: &Value) -> Result<BTreeMap<i32, f64>> {
    let Some(map) = value.as_object() else { bail!("{value} is not a dress") };
    map.iter().map(|(z, e)| Ok((z.parse().map_err(|_| err!("{z} is not an element"))?, number(e)?))).collect()
}

fn basis(value: &Value) -> Result<Basis> {
    Ok(if value.is_array() { Basis::Exponents(numbers(value)?) } else { Basis::Count(count(value)?) })
}

fn gamma(value: &Value) -> Result<Gamma> {
    Ok(if value.is_array() { Gamma::Each(numbers(value)?) } else { Gamma::Same(number(value)?) })
}

fn centers(value: &Value) -> Result<Option<Vec<f64>>> {
    Ok(if value.is_array() { Some(numbers(value)?) } else { None })
}

fn cutoff(value: &Value) -> Result<CutoffType> {
    Ok(match value.as_str() {
        Some("f1") => CutoffType::F1,
        Some("f2") => CutoffType::F2,
        Some("hip") => CutoffType::Hip,
        _ => bail!("{value} is not a cutoff"),
    })
}

fn basis_type(value: &Value) -> Result<BasisType> {
    Ok(match value.as_str() {
        Some("polynomial") => BasisType::Polynomial,
        Some("gaussian") => BasisType::Gaussian,
        _ => bail!("{value} is not a basis"),
    })
}

fn act(value: &Value) -> Result<Act> {
    Act::parse(value.as_str().unwrap_or_default())
}

fn pool(value: &Value) -> Result<Option<Pool>> {
    Ok(match value.as_str() {
        Some("sum") => Some(Pool::Sum),
        Some("max") => Some(Pool::Max),
        Some("min") => Some(Pool::Min),
        Some("avg") => Some(Pool::Avg),
        _ => None,
    })
}

fn network(version: Wiring, kind: NetworkKind, params: &Value) -> Result<PinetOptions> {
    let mut o = PinetOptions::new(version, kind);
    set!(params, o, {
        "atom_types" => atom_types: elements, "rc" => rc: number, "cutoff_type" => cutoff_type: cutoff,
        "basis_type" => basis_type: basis_type, "n_basis" => n_basis: basis, "gamma" => gamma: gamma,
        "center" => center: centers, "pp_nodes" => pp_nodes: counts, "pi_nodes" => pi_nodes: counts,
        "ii_nodes" => ii_nodes: counts, "out_nodes" => out_nodes: counts, "en_nodes" => out_nodes: counts,
        "out_units" => out_units: count, "out_pool" => out_pool: pool, "depth" => depth: count, "act" => act: act,
        "rank" => rank: count, "weighted" => weighted: flag,
    });
    Ok(o)
}

fn potential(version: Wiring, params: &Value) -> Result<PotentialOptions> {
    let mut o = PotentialOptions::new(version);
    set!(params, o, {
        "e_dress" => e_dress: dress, "e_scale" => e_scale: number, "e_unit" => e_unit: number,
        "max_energy" => max_energy: limit, "use_e_per_atom" => use_e_per_atom: flag,
        "use_e_per_sqrt" => use_e_per_sqrt: flag, "log_e_per_atom" => log_e_per_atom: flag,
        "use_e_weight" => use_e_weight: flag, "use_force" => use_force: flag, "max_force" => max_force: limit,
        "max_force_comp" => max_force: limit, "no_force_comp" => no_force_comp: some_count,
        "use_f_weights" => use_f_weights: flag, "use_stress" => use_stress: flag, "use_l2" => use_l2: flag,
        "e_loss_multiplier" => e_loss_multiplier: number, "f_loss_multiplier" => f_loss_multiplier: number,
        "s_loss_multiplier" => s_loss_multiplier: number, "l2_loss_multiplier" => l2_loss_multiplier: number,
        "separate_errors" => separate_errors: flag,
    });
    Ok(o)
}

fn dipole(version: Wiring, params: &Value) -> Result<DipoleOptions> {
    let mut o = DipoleOptions::new(version);
    set!(params, o, {
        "d_scale" => d_scale: number, "d_unit" => d_unit: number, "max_dipole" => max_dipole: limit,
        "use_d_per_atom" => use_d_per_atom: flag, "use_d_per_sqrt" => use_d_per_sqrt: flag,
        "log_d_per_atom" => log_d_per_atom: flag, "use_d_weight" => use_d_weight: flag, "use_l2" => use_l2: flag,
        "d_loss_multiplier" => d_loss_multiplier: number, "l2_loss_multiplier" => l2_loss_multiplier: number,
    });
    Ok(o)
}

/// A Keras optimizer as {class_name, config}, or "default".
fn keras(value: &Value) -> Result<(KerasAdamOptions, Rate)> {
    let mut o = KerasAdamOptions::master();
    if value.is_null() || value.as_str() == Some("default") {
        return Ok((o, Rate::master()));
    }
    if value["class_name"] != "Adam" {
        bail!("optimizer {} is unsupported", value["class_name"]);
    }
    let config = &value["config"];
    set!(config, o, { "beta_1" => beta1: number, "beta_2" => beta2: number, "epsilon" => epsilon: number });
    o.clip = Clip::None;
    for (key, clip) in [
        ("clipnorm", Clip::Variable as fn(f64) -> Clip),
        ("global_clipnorm", Clip::Global),
        ("clipvalue", Clip::Value),
    ] {
        if let Some(most) = config[key].as_f64() {
            o.clip = clip(most);
        }
    }
    let rate = match &config["learning_rate"] {
        Value::Null => Rate::Constant(1e-3),
        Value::Object(schedule) if schedule["class_name"] == "ExponentialDecay" => {
            let c = &schedule["config"];
            Rate::Exponential {
                initial: number(&c["initial_learning_rate"])?,
                steps: number(&c["decay_steps"])?,
                rate: number(&c["decay_rate"])?,
                staircase: c["staircase"].as_bool().unwrap_or(false),
            }
        }
        Value::Object(schedule) => bail!("schedule {} is unsupported", schedule["class_name"]),
        rate => Rate::Constant(number(rate)?),
    };
    Ok((o, rate))
}

/// The optimizer keys of the fork's model_params.
fn tensorflow1(params: &Value) -> (KerasAdamOptions, Rate) {
    let mut o = KerasAdamOptions::fork();
    let get = |key: &str, default: f64| params[key].as_f64().unwrap_or(default);
    let initial = get("learning_rate", 3e-4);
    let rate = match params["use_decay"].as_bool() {
        Some(false) => Rate::Constant(initial),
        _ => {
            let (steps, rate) = (get("decay_step", 1e4), get("decay_rate", 0.999));
            Rate::Exponential { initial, steps, rate, staircase: true }
        }
    };
    o.clip = match params["use_norm_clip"].as_bool() {
        Some(false) => Clip::None,
        _ => Clip::Global(get("norm_clip", 0.01)),
    };
    (o, rate)
}

impl Options {
    /// Both styles of oracle.json.
    pub fn read(oracle: &Value) -> Result<Options> {
        let float32 = oracle["dtype"] == "float32";
        let fork = &oracle["params"];
        if fork.is_object() {
            let (params, model_params) = (&fork["network_params"], &fork["model_params"]);
            let of_dipoles =
                |key: &String| ["d_", "use_d_", "log_d_", "max_d"].iter().any(|start| key.starts_with(start));
            let is_dipole = oracle["model"] == "dipole_model"
                || oracle["eval_metrics"].get("METRICS/D_MAE").is_some()
                || model_params.as_object().is_some_and(|o| o.keys().any(of_dipoles));
            let model = match is_dipole {
                true => ModelOptions::Dipole(dipole(Wiring::Fork, model_params)?),
                false => ModelOptions::Potential(potential(Wiring::Fork, model_params)?),
            };
            let network = network(Wiring::Fork, NetworkKind::PiNet, params)?;
            let (adam, rate) = tensorflow1(model_params);
            return Ok(Options { network, model, adam, rate, float32 });
        }
        let kind = match oracle["network"]["name"].as_str() {
            Some("PiNet") => NetworkKind::PiNet,
            Some("PiNet2") => NetworkKind::PiNet2,
            other => bail!("network {other:?} is unsupported"),
        };
        let params = &oracle["model"]["params"];
        let model = match oracle["model"]["name"].as_str() {
            Some("potential_model") => ModelOptions::Potential(potential(Wiring::Master, params)?),
            Some("dipole_model") => ModelOptions::Dipole(dipole(Wiring::Master, params)?),
            other => bail!("model {other:?} is unsupported"),
        };
        let network = network(Wiring::Master, kind, &oracle["network"]["params"])?;
        let (adam, rate) = keras(&oracle["optimizer"])?;
        Ok(Options { network, model, adam, rate, float32 })
    }
}
