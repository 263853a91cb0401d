//! Inputs in layouts of former times: each key is moved to where it is today.

use crate::bail;
use crate::config::check::whole_number;
use crate::err;
use crate::error::Result;
use serde_json::{Map, Value};

/// Keys that stood under `training` and now stand under `training.training_data`.
const DATA_KEYS: [&str; 9] = [
    "systems",
    "set_prefix",
    "batch_size",
    "sys_prob",
    "sys_probs",
    "auto_prob",
    "sys_weights",
    "auto_prob_style",
    "rglob_patterns",
];
/// Keys that stood under `training` and now stand under `optimizer`.
const OPTIMIZER_KEYS: [&str; 15] = [
    "opt_type",
    "kf_blocksize",
    "kf_start_pref_e",
    "kf_limit_pref_e",
    "kf_start_pref_f",
    "kf_limit_pref_f",
    "weight_decay",
    "momentum",
    "muon_momentum",
    "adam_beta1",
    "adam_beta2",
    "lr_adjust",
    "lr_adjust_coeff",
    "muon_2d_only",
    "min_2d_dim",
];
/// Keys that stood under `training` and now stand under `learning_rate`.
const WARMUP_KEYS: [&str; 3] = ["warmup_steps", "warmup_ratio", "warmup_start_factor"];
/// Some of these stand at the top of an input for DeePMD-kit 0.x.
const VERSION_0_KEYS: [&str; 6] =
    ["use_smooth", "sel_a", "filter_neuron", "fitting_neuron", "n_neuron", "rcut"];

/// Rewrites old layouts in place; what was moved comes back in words, for the log.
pub fn modernise(input: &mut Value) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let Value::Object(root) = input else { return Ok(notes) };
    refuse_version_0(root)?;
    refuse_multi_task(root)?;
    if !root.get("training").is_some_and(Value::is_object) {
        return Ok(notes);
    }
    let is_version_1 = root["training"].get("systems").is_some();
    if is_version_1 {
        move_data(root, &mut notes)?;
        replace_decay_rate(root, &mut notes);
    }
    if take(root, "training", "numb_test").is_some() {
        notes.push("training.numb_test: no effect since DeePMD-kit 2; see training.validation_data".into());
    }
    for key in WARMUP_KEYS {
        move_key(root, key, "learning_rate", key, &mut notes)?;
    }
    for key in OPTIMIZER_KEYS {
        let new = if key == "opt_type" { "type" } else { key };
        move_key(root, key, "optimizer", new, &mut notes)?;
    }
    Ok(notes)
}

fn refuse_version_0(root: &Map<String, Value>) -> Result<()> {
    if root.contains_key("model") {
        return Ok(());
    }
    let Some(key) = VERSION_0_KEYS.iter().find(|key| root.contains_key(**key)) else { return Ok(()) };
    Err(err!("`{key}` at the top is the layout of DeePMD-kit 0.x, which is not read any more")
        .help("write the sections model, learning_rate, loss and training; `dp doc-train-input` shows them"))
}

fn refuse_multi_task(root: &Map<String, Value>) -> Result<()> {
    if root.get("model").and_then(|model| model.get("model_dict")).is_none() {
        return Ok(());
    }
    Err(err!("model.model_dict: this is the input of a multi-task training, which has several models")
        .help("`dp train` trains them"))
}

/// DeePMD-kit 1 wrote the data directly under `training`.
fn move_data(root: &mut Map<String, Value>, notes: &mut Vec<String>) -> Result<()> {
    if root["training"].get("training_data").is_some() {
        return Err(err!("training.systems: the data are given here and in training.training_data too")
            .help("keep training.training_data"));
    }
    let mut data = Map::new();
    for key in DATA_KEYS {
        let Some(value) = take(root, "training", key) else { continue };
        let new = if key == "sys_prob" { "sys_probs" } else { key };
        notes.push(format!("training.{key}: the place of this key is training.training_data.{new} today"));
        data.insert(new.into(), value);
    }
    if let Some(Value::Object(training)) = root.get_mut("training") {
        training.insert("training_data".into(), Value::Object(data));
    }
    Ok(())
}

/// DeePMD-kit 1 had no stop_lr: its decay_rate becomes the stop_lr that it leads to.
fn replace_decay_rate(root: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let number = |section: &str, key: &str| root.get(section)?.get(key)?.as_f64();
    let steps = ["stop_batch", "numb_steps", "num_step", "num_steps", "numb_step"]
        .iter()
        .find_map(|key| root["training"].get(*key).and_then(whole_number));
    let decay_steps = number("learning_rate", "decay_steps").unwrap_or(5000.0);
    let (Some(rate), Some(start), Some(steps)) =
        (number("learning_rate", "decay_rate"), number("learning_rate", "start_lr"), steps)
    else {
        return;
    };
    let is_plain =
        rate > 0.0 && rate <= 1.0 && decay_steps > 0.0 && number("learning_rate", "stop_lr").is_none();
    if !is_plain {
        return; // a mistake that the table of keys reports, or an input that is not of version 1 here
    }
    let stop = (rate.ln() * (steps as f64 / decay_steps)).exp() * start;
    take(root, "learning_rate", "decay_rate");
    if let Some(Value::Object(section)) = root.get_mut("learning_rate") {
        section.insert("stop_lr".into(), Value::from(stop));
    }
    notes.push(format!("learning_rate.decay_rate: {rate} is taken as stop_lr = {stop:e}, as in old inputs"));
}

fn take(root: &mut Map<String, Value>, section: &str, key: &str) -> Option<Value> {
    root.get_mut(section)?.as_object_mut()?.shift_remove(key)
}

/// Moves `training.old` to `section.new`.
fn move_key(
    root: &mut Map<String, Value>,
    old: &str,
    section: &str,
    new: &str,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(value) = take(root, "training", old) else { return Ok(()) };
    let target = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(target) = target else { return Ok(()) }; // the table of keys reports a section that is none
    if target.contains_key(new) {
        bail!("training.{old}: given here and as {section}.{new} too");
    }
    notes.push(format!("training.{old}: the place of this key is {section}.{new} today"));
    target.insert(new.into(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_of_version_1_move_into_training_data() {
        let mut input = json!({
            "model": {},
            "learning_rate": {"start_lr": 0.001, "decay_steps": 5000, "decay_rate": 0.95},
            "training": {"systems": ["a"], "set_prefix": "set", "batch_size": 4, "stop_batch": 10000, "numb_test": 2}
        });
        let notes = modernise(&mut input).unwrap();
        let training = json!({
            "stop_batch": 10000, "training_data": {"systems": ["a"], "set_prefix": "set", "batch_size": 4}
        });
        assert_eq!(input["training"], training);
        let stop = input["learning_rate"]["stop_lr"].as_f64().unwrap();
        assert!((stop - 0.001 * 0.95 * 0.95).abs() < 1e-15);
        assert!(input["learning_rate"].get("decay_rate").is_none());
        assert_eq!(notes.len(), 5, "{notes:?}");
    }

    #[test]
    fn warm_up_and_optimiser_leave_the_training_section() {
        let mut input = json!({
            "model": {}, "learning_rate": {"start_lr": 1},
            "training": {"warmup_steps": 10, "opt_type": "AdamW", "weight_decay": 0.1}
        });
        modernise(&mut input).unwrap();
        assert_eq!(input["learning_rate"]["warmup_steps"], 10);
        assert_eq!(input["optimizer"], json!({"type": "AdamW", "weight_decay": 0.1}));
        let mut twice =
            json!({"model": {}, "learning_rate": {"warmup_steps": 1}, "training": {"warmup_steps": 1}});
        assert!(modernise(&mut twice).is_err());
    }

    #[test]
    fn inputs_of_today_stay_as_they_are() {
        let mut input = json!({"model": {}, "training": {"training_data": {"systems": "a"}}});
        let before = input.clone();
        assert!(modernise(&mut input).unwrap().is_empty());
        assert_eq!(input, before);
    }

    #[test]
    fn strange_values_do_not_panic() {
        for mut input in
            [json!(1), json!({}), json!({"training": 3}), json!({"training": {"systems": 1}, "model": 2})]
        {
            let _ = modernise(&mut input);
        }
        let mut input = json!({"learning_rate": 1, "training": {"systems": "a", "warmup_steps": 1}});
        let _ = modernise(&mut input);
    }
}
