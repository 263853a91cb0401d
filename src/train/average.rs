//! A running mean of the parameters: `training.enable_ema`.
//!
//! It begins where the parameters begin, and after every step comes closer to them by a part of the way. Every rank has it whole,
//! with the same bits, since all have the same parameters.

use super::learner::Snapshot;
use crate::Result;
use crate::checkpoint::{Array, Arrays, f64s_of};
use crate::err;
use crate::optim::moments::copied;
use std::path::{Path, PathBuf};

/// What it is called in a checkpoint, beside the state of the optimiser.
const NAME: &str = "ema_params";

/// The mean, and how slowly it follows.
pub struct Average {
    decay: f64,
    mean: Vec<f64>,
}

/// The mean that a run had, or where there was none, these parameters.
pub fn begin(params: &[f64], resumed: Option<&Arrays>) -> Result<Vec<f64>> {
    let saved = resumed.filter(|arrays| arrays.iter().any(|(name, _)| name == NAME));
    let mean = match saved {
        Some(arrays) => f64s_of(arrays, NAME)?.to_vec(),
        None => params.to_vec(),
    };
    if mean.len() != params.len() {
        return Err(err!("found {} numbers in {NAME} for {} parameters", mean.len(), params.len())
            .help("the checkpoint is of another network"));
    }
    Ok(mean)
}

/// A mean for a checkpoint.
pub fn named(mean: Vec<f64>) -> (String, Array) {
    (NAME.to_string(), Array::F64(mean))
}

impl Average {
    /// See [`begin`].
    pub fn new(decay: f64, params: &[f64], resumed: Option<&Arrays>) -> Result<Self> {
        Ok(Average { decay, mean: begin(params, resumed)? })
    }

    /// A step closer to the parameters.
    pub fn follow(&mut self, params: &[f64]) {
        let part = 1.0 - self.decay;
        self.mean.iter_mut().zip(params).for_each(|(mean, p)| *mean += part * (p - *mean));
    }

    pub fn params(&self) -> &[f64] {
        &self.mean
    }

    /// For a checkpoint; `spare` is memory that may be used for it.
    pub fn save(&self, spare: &mut Vec<Vec<f64>>) -> (String, Array) {
        named(copied(spare, &self.mean))
    }
}

/// The mean of a snapshot as a model of its own, where there is one. A run cannot go on from it: the optimiser is left out.
pub fn of(snapshot: &Snapshot) -> Option<Snapshot> {
    let mean = f64s_of(&snapshot.optimizer, NAME).ok()?.to_vec();
    Some(Snapshot { params: mean, optimizer: Vec::new(), engine: serde_json::Value::Null })
}

/// `model.ckpt` becomes `model_ema.ckpt`, as in DeePMD-kit.
pub fn with_ema(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match path.extension() {
        Some(ending) => path.with_file_name(format!("{stem}_ema.{}", ending.to_string_lossy())),
        None => path.with_file_name(format!("{stem}_ema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_parameters_and_survives_a_checkpoint() {
        let mut average = Average::new(0.75, &[1.0, 0.0], None).unwrap();
        average.follow(&[2.0, 4.0]);
        assert_eq!(average.params(), [1.25, 1.0]);
        let arrays = vec![average.save(&mut Vec::new())];
        assert_eq!(Average::new(0.75, &[9.0, 9.0], Some(&arrays)).unwrap().params(), [1.25, 1.0]);
        assert!(Average::new(0.75, &[9.0], Some(&arrays)).is_err());
        assert_eq!(Average::new(0.75, &[9.0], Some(&Vec::new())).unwrap().params(), [9.0]);
    }

    #[test]
    fn its_files_are_told_from_the_others_by_name() {
        assert_eq!(with_ema(Path::new("out/model.ckpt")), Path::new("out/model_ema.ckpt"));
        assert_eq!(with_ema(Path::new("model")), Path::new("model_ema"));
    }
}
