//! What is allowed, and is hardly what anyone wants: told at the start, where it saves a day.

use super::setup::DataSets;
use crate::data::field::Wants;
use crate::data::{Dataset, System};
use crate::loss::LossChoice;
use crate::optim::options::LearningRateOptions;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Matching energies after which no more frames are compared: then there is something to tell.
const MATCHES: usize = 100;
/// Displays that are averaged before they are compared with as many before them.
const WINDOW: usize = 20;

/// Labels that the loss has a prefactor for and the data does not have.
pub fn missing_labels(data: &Dataset, name: &str, loss: &LossChoice, wants: &Wants) -> Vec<String> {
    let n = data.systems.len();
    let mut lines = Vec::new();
    for (field, key) in loss.terms() {
        let without: Vec<&System> = data.systems.iter().filter(|system| !system.has(field)).collect();
        let file = &field.names(wants)[0];
        let Some(first) = without.first() else { continue };
        lines.push(match without.len() == n {
            true => format!(
                "loss.{key} is not zero, but no system of training.{name}_data has {file}.npy: the term is left \
                 out, and its errors are nan"
            ),
            false => format!(
                "loss.{key}: {} of {n} systems of training.{name}_data have no {file}.npy (the first: {}): the term \
                 is left out there",
                without.len(),
                first.path
            ),
        });
    }
    lines
}

/// Systems that stand in a list more than once, or in both lists, and frames that both lists hold.
pub fn doubled(data: &DataSets) -> Vec<String> {
    let mut lines = Vec::new();
    let lists = [("training", Some(&data.training)), ("validation", data.validation.as_ref())];
    for (name, list) in lists.iter().filter_map(|(name, list)| Some((name, (*list)?))) {
        let mut seen = HashSet::new();
        let twice: Vec<&str> = (list.systems.iter())
            .filter(|system| !seen.insert(place(&system.path)))
            .map(|system| system.path.as_str())
            .collect();
        if let Some(first) = twice.first() {
            lines.push(format!(
                "training.{name}_data: {} listed more than once (the first: {first}): their frames are drawn more often",
                crate::config::check::count(twice.len(), "system")
            ));
        }
    }
    if let Some(validation) = &data.validation {
        lines.extend(shared_frames(&data.training, validation));
    }
    lines
}

/// Where a system lies, however it is written.
fn place(path: &str) -> (PathBuf, String) {
    let (file, group) = path.split_once('#').unwrap_or((path, ""));
    let file = Path::new(file);
    (file.canonicalize().unwrap_or_else(|_| file.to_owned()), group.trim_matches('/').to_string())
}

/// Frames of the validation set that are trained on. Energies, which are quick to read, tell which ones to compare.
fn shared_frames(training: &Dataset, validation: &Dataset) -> Option<String> {
    let mut known: HashMap<(u64, usize), (usize, usize)> = HashMap::new();
    for (s, system) in validation.systems.iter().enumerate() {
        for (k, energy) in system.energies().ok()?.into_iter().enumerate() {
            known.insert((energy.to_bits(), system.n_atoms), (s, k));
        }
    }
    let (mut compared, mut shared, mut first) = (0, 0, None);
    'systems: for system in &training.systems {
        for (k, energy) in system.energies().ok()?.into_iter().enumerate() {
            let Some(&(s, other)) = known.get(&(energy.to_bits(), system.n_atoms)) else { continue };
            if compared == MATCHES {
                break 'systems;
            }
            compared += 1;
            let (a, b) = (system.read_frame(k).ok()?, validation.systems[s].read_frame(other).ok()?);
            if a.coord == b.coord {
                shared += 1;
                let path = &validation.systems[s].path;
                first.get_or_insert(format!("frame {other} of {path} is frame {k} of {}", system.path));
            }
        }
    }
    let more = if compared == MATCHES { "at least " } else { "" };
    first.map(|first| {
        format!(
            "training.validation_data: {more}{} also in training_data ({first}): the validation errors do not show how well the \
             model does on what it has not seen",
            crate::config::check::count(shared, "frame")
        )
    })
}

/// A learning rate that has hardly fallen when the run ends.
pub fn high_rate(rates: &LearningRateOptions, num_steps: u64) -> Option<String> {
    // Runs that are as short as this are trials.
    const TRIAL: u64 = 1000;
    let (start, end) = (rates.start_lr, rates.at(num_steps.saturating_sub(1), num_steps));
    (num_steps > TRIAL && end > 0.1 * start).then(|| {
        format!(
            "learning_rate: it starts at {start:e} and is still {end:e} after {num_steps} steps; errors fall most while it \
             falls by a factor of a thousand or more: see stop_lr, decay_steps and numb_steps"
        )
    })
}

/// Watches whether the errors still fall.
#[derive(Debug, Default)]
pub struct Plateau {
    rows: Vec<(u64, Vec<f64>)>,
    told: bool,
}

impl Plateau {
    /// Takes in the errors of a display; says once that they have not fallen for long, while `rate`, as part of its first
    /// value, was high enough for that.
    pub fn watch(&mut self, step: u64, errors: &[f64], rate: f64) -> Option<String> {
        if self.told {
            return None;
        }
        self.rows.push((step, errors.to_vec()));
        if self.rows.len() < 2 * WINDOW {
            return None;
        }
        if self.rows.len() > 2 * WINDOW {
            self.rows.remove(0);
        }
        let mean = |rows: &[(u64, Vec<f64>)], k: usize| {
            rows.iter().map(|(_, row)| row[k]).sum::<f64>() / WINDOW as f64
        };
        let (before, after) = self.rows.split_at(WINDOW);
        // A label that is missing is nan, and neither falls nor rises.
        let falls = |k: usize| mean(after, k) < 0.995 * mean(before, k);
        let known = (0..errors.len()).any(|k| mean(after, k).is_finite());
        if rate < 0.05 || !known || (0..errors.len()).any(falls) {
            return None;
        }
        self.told = true;
        Some(format!(
            "the errors have not fallen from step {} to step {step}: a lower learning rate may help, or a look at the data",
            self.rows[0].0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plateau_is_told_once_and_not_while_anything_falls() {
        let watch = |errors: &dyn Fn(u64) -> Vec<f64>, rate: f64| -> Vec<u64> {
            let mut plateau = Plateau::default();
            (0..200).filter(|&k| plateau.watch(100 * k, &errors(k), rate).is_some()).collect()
        };
        assert_eq!(watch(&|_| vec![1.0, 2.0], 0.5), [2 * WINDOW as u64 - 1]);
        assert_eq!(watch(&|k| vec![1.0, 0.99f64.powi(k as i32)], 0.5), [0; 0], "one of them falls");
        assert_eq!(watch(&|_| vec![1.0], 0.01), [0; 0], "the rate has fallen: this is the end");
        assert_eq!(watch(&|_| vec![f64::NAN], 0.5), [0; 0], "nothing is known");
        assert_eq!(watch(&|k| vec![f64::NAN, 1.0 + k as f64], 0.5).len(), 1);
        let falls_until_100 = |k: u64| vec![0.97f64.powi(k.min(100) as i32)];
        assert!(watch(&falls_until_100, 0.5)[0] > 110);
    }
}
