//! All systems of one section of the input, with their batch sizes and weights.

use super::expand::expand_systems;
use super::field::{LABELS, Wants};
use super::options::{BatchSize, DataOptions, Mix, SystemWeights};
use super::system::System;
use crate::error::{Error, Result};
use crate::{bail, err};
use rayon::prelude::*;

/// The systems of `training_data` or `validation_data`.
pub struct Dataset {
    pub systems: Vec<System>,
    /// Frames for each draw, one number for each system. The last batch of an epoch may be smaller. Where batches mix systems, those
    /// of a batch of that system alone.
    pub batch_sizes: Vec<usize>,
    /// How batches mix the frames of all systems, where they do.
    pub mixes: Option<Mix>,
    /// How likely each system is drawn; their sum is 1.
    pub weights: Vec<f64>,
}

impl Dataset {
    /// Finds and opens every system. No array is read, no file stays open.
    pub fn open(options: &DataOptions, type_map: &[String], wants: &Wants) -> Result<Dataset> {
        Self::new(Self::systems(options, type_map, wants)?, &options.batch_size, &options.weights)
    }

    /// Finds and opens every system.
    pub fn systems(options: &DataOptions, type_map: &[String], wants: &Wants) -> Result<Vec<System>> {
        let paths = expand_systems(options)?;
        paths.par_iter().map(|path| System::open(path, type_map, wants)).collect()
    }

    /// Works out batch sizes and weights of systems that are open.
    pub fn new(systems: Vec<System>, batch_size: &BatchSize, weights: &SystemWeights) -> Result<Dataset> {
        let systems = filter(systems, batch_size)?;
        let batch_size = match *batch_size {
            BatchSize::Mixed(mix) => &BatchSize::Mixed(at_most_all(mix, &systems)),
            _ => batch_size,
        };
        let batch_sizes = batch_sizes(&systems, batch_size)?;
        let mixes = if let BatchSize::Mixed(mix) = *batch_size { Some(mix) } else { None };
        let mut dataset = Dataset { systems, batch_sizes, mixes, weights: Vec::new() };
        dataset.check_mixed_labels()?;
        // Where frames fill batches one by one, a system is as large as it has frames.
        let sizes = match mixes {
            Some(Mix::Atoms(_)) => dataset.systems.iter().map(|system| system.n_frames as u64).collect(),
            _ => dataset.batch_counts(),
        };
        dataset.weights = probabilities(weights, &sizes)?;
        // Where the size was chosen by rule, a small system is no surprise.
        if matches!(batch_size, BatchSize::Fixed(_) | BatchSize::List(_)) {
            dataset.warn_about_small_systems();
        }
        Ok(dataset)
    }

    /// Batches in one epoch of a system.
    pub fn n_batches(&self, system: usize) -> usize {
        self.systems[system].n_frames.div_ceil(self.batch_sizes[system])
    }

    /// Frames of the largest batch in which no frame has more atoms than those of this system, and the atoms of all of them, at most.
    pub fn largest_batch(&self, system: usize) -> (usize, usize) {
        let n_atoms = self.systems[system].n_atoms;
        match self.mixes {
            None => {
                let frames = self.batch_sizes[system].min(self.systems[system].n_frames);
                (frames, frames * n_atoms)
            }
            Some(Mix::Frames(frames)) => (frames, frames * n_atoms),
            Some(Mix::Atoms(most)) => {
                let fewest = self.systems.iter().map(|s| s.n_atoms).min().unwrap_or(n_atoms);
                (1 + most.saturating_sub(n_atoms) / fewest, most.max(n_atoms))
            }
        }
    }

    /// Frames of all systems together.
    pub fn n_frames(&self) -> usize {
        self.systems.iter().map(|system| system.n_frames).sum()
    }

    /// Draws after which every system is expected to have been seen whole at least once: what one of
    /// `num_epoch` means.
    pub fn draws_per_epoch(&self) -> u64 {
        let drawn =
            |(&weight, batches): (&f64, u64)| if weight > 0.0 { batches as f64 / weight } else { 0.0 };
        let most = |counts: Vec<u64>| self.weights.iter().zip(counts).map(drawn).fold(0.0, f64::max);
        let frames = || self.systems.iter().map(|system| system.n_frames as u64).collect();
        let draws = match self.mixes {
            None => most(self.batch_counts()),
            Some(Mix::Frames(each)) => most(frames()) / each as f64,
            Some(Mix::Atoms(each)) => {
                let atoms = self.weights.iter().zip(&self.systems).map(|(w, s)| w * s.n_atoms as f64);
                most(frames()) / (each as f64 / atoms.sum::<f64>()).max(1.0)
            }
        };
        draws.ceil() as u64
    }

    /// Reads everything that is wanted, and refuses what cannot be trained on; see [`System::check_finite`].
    pub fn check_finite(&self, progress: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.systems.par_iter().try_for_each(|system| system.check_finite(progress))
    }

    /// A table of the systems, at most `max_rows` of them, as lines for the log.
    pub fn summary(&self, name: &str, max_rows: usize) -> Vec<String> {
        let mut lines = vec![
            format!("{:-<86}", format!("---Summary of DataSystem: {name:<13}")),
            format!("Found {} system(s), {} frames:", self.systems.len(), self.n_frames()),
            format!("{:>42}  natoms  bch_sz   n_bch       prob  pbc", "system"),
        ];
        let shown =
            if self.systems.len() <= max_rows { self.systems.len() } else { max_rows.saturating_sub(1) };
        lines.extend((0..shown).map(|i| self.summary_row(i)));
        if shown < self.systems.len() {
            lines.push(format!("{:>42}", format!("... and {} more", self.systems.len() - shown)));
        }
        lines.push("-".repeat(86));
        lines
    }

    fn summary_row(&self, i: usize) -> String {
        let system = &self.systems[i];
        format!(
            "{:>42}  {:6}  {:6}  {:6}  {:>9}  {:>3}",
            tail(&system.path, 42),
            system.n_atoms,
            self.batch_sizes[i],
            self.n_batches(i),
            scientific(self.weights[i]),
            if system.pbc { "T" } else { "F" }
        )
    }

    fn batch_counts(&self) -> Vec<u64> {
        (0..self.systems.len()).map(|i| self.n_batches(i) as u64).collect()
    }

    /// Refuses labels that some systems have and others have not, where their frames come into one batch: what such a batch lacks
    /// would be left out of the loss for all of its frames.
    fn check_mixed_labels(&self) -> Result<()> {
        if self.mixes.is_none() {
            return Ok(());
        }
        for field in LABELS {
            let found = self.systems.iter().find_map(|system| system.place_of(field));
            let without = self.systems.iter().find(|system| !system.has(field));
            if let (Some(found), Some(without)) = (found, without) {
                return Err(err!(
                    "batch_size: batches mix the frames of all systems, and {} has no such labels as {found}",
                    without.path
                )
                .help(
                    "leave one or the other out, set the prefactors of these labels to zero, or give batch_size as a number of frames",
                ));
            }
        }
        Ok(())
    }

    fn warn_about_small_systems(&self) {
        let small = |&i: &usize| self.systems[i].n_frames < self.batch_sizes[i];
        let found: Vec<usize> = (0..self.systems.len()).filter(small).collect();
        if let Some(&first) = found.first() {
            log::warn!(
                "{} system(s) hold fewer frames than batch_size; their batches are as small as they are \
                 (the first: {}, {} frames, batch_size {})",
                found.len(),
                self.systems[first].path,
                self.systems[first].n_frames,
                self.batch_sizes[first]
            );
        }
    }
}

/// The end of a long path, marked.
fn tail(path: &str, width: usize) -> String {
    let length = path.chars().count();
    if length <= width {
        return path.to_owned();
    }
    let end: String = path.chars().skip(length - (width - 3)).collect();
    format!("-- {end}")
}

/// `1.250e-01`: Rust writes the exponent without zeros.
fn scientific(x: f64) -> String {
    let text = format!("{x:.3e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// Leaves out systems that are too large, where the rule says so.
fn filter(systems: Vec<System>, batch_size: &BatchSize) -> Result<Vec<System>> {
    let BatchSize::Filter(limit) = *batch_size else { return Ok(systems) };
    let before = systems.len();
    let systems: Vec<System> = systems.into_iter().filter(|system| system.n_atoms <= limit).collect();
    if systems.is_empty() {
        return Err(err!("batch_size: filter:{limit}: all {before} systems have more than {limit} atoms"));
    }
    if systems.len() < before {
        log::warn!("left out {} system(s) with more than {limit} atoms", before - systems.len());
    }
    Ok(systems)
}

/// No batch is larger than all frames together.
fn at_most_all(mix: Mix, systems: &[System]) -> Mix {
    let frames: usize = systems.iter().map(|system| system.n_frames).sum();
    let atoms: usize = systems.iter().map(|system| system.n_frames * system.n_atoms).sum();
    let (cut, all) = match mix {
        Mix::Frames(n) => (Mix::Frames(n.min(frames)), frames),
        Mix::Atoms(n) => (Mix::Atoms(n.min(atoms)), atoms),
    };
    if cut != mix {
        let what = if matches!(mix, Mix::Frames(_)) { "frames" } else { "atoms" };
        log::warn!("batch_size: the systems hold no more than {all} {what}, and so do batches");
    }
    cut
}

fn batch_sizes(systems: &[System], rule: &BatchSize) -> Result<Vec<usize>> {
    let by_atoms = |f: &dyn Fn(usize) -> usize| systems.iter().map(|system| f(system.n_atoms)).collect();
    let sizes: Vec<usize> = match *rule {
        BatchSize::Fixed(size) => vec![size; systems.len()],
        BatchSize::List(ref sizes) => sizes.clone(),
        BatchSize::Auto(atoms) => by_atoms(&|n| atoms.div_ceil(n)),
        BatchSize::Max(atoms) | BatchSize::Filter(atoms) | BatchSize::Mixed(Mix::Atoms(atoms)) => {
            by_atoms(&|n| (atoms / n).max(1))
        }
        BatchSize::Mixed(Mix::Frames(size)) => vec![size; systems.len()],
    };
    if sizes.len() != systems.len() {
        return Err(err!("batch_size: {} numbers found, {} systems", sizes.len(), systems.len())
            .help("a list needs one number for each system, in the order of the systems"));
    }
    if sizes.contains(&0) {
        bail!("batch_size: 0 found, at least 1 wanted");
    }
    Ok(sizes)
}

/// The probability of each system; `batches` holds the number of batches of each.
fn probabilities(weights: &SystemWeights, batches: &[u64]) -> Result<Vec<f64>> {
    let raw = match weights {
        SystemWeights::Uniform => vec![1.0; batches.len()],
        SystemWeights::BySize => batches.iter().map(|&n| n as f64).collect(),
        SystemWeights::Blocks(blocks) => by_blocks(blocks, batches).map_err(|e| e.at("auto_prob"))?,
        SystemWeights::Explicit(probs) => by_list(probs, batches).map_err(|e| e.at("sys_probs"))?,
    };
    let sum: f64 = raw.iter().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        bail!("the weights of the systems add up to {sum}, wanted a positive number");
    }
    Ok(raw.into_iter().map(|x| x / sum).collect())
}

/// Blocks share by their weights; within a block systems share by their number of batches.
fn by_blocks(blocks: &[(usize, usize, f64)], batches: &[u64]) -> Result<Vec<f64>> {
    let n = batches.len();
    let mut probs = vec![0.0; n];
    for &(begin, end, weight) in blocks {
        let block = || format!("block {begin}:{end}:{weight}");
        if begin >= end || begin >= n {
            return Err(err!("{}: this holds none of the {n} systems", block())
                .help("begin:end:weight; systems are counted from 0 and end is not part of the block"));
        }
        if !(weight >= 0.0 && weight.is_finite()) {
            bail!("{}: the weight must not be negative", block());
        }
        if end > n {
            log::warn!("auto_prob: {}: there are {n} systems only", block());
        }
        let range = begin..end.min(n);
        let total: u64 = batches[range.clone()].iter().sum();
        for i in range {
            probs[i] = weight * batches[i] as f64 / total as f64;
        }
    }
    Ok(probs)
}

/// Numbers below zero share what the others leave, by the number of batches.
fn by_list(probs: &[f64], batches: &[u64]) -> Result<Vec<f64>> {
    const SLACK: f64 = 1e-8;
    if probs.len() != batches.len() {
        return Err(wrong_sum(err!("{} numbers found, {} systems", probs.len(), batches.len())));
    }
    if let Some(p) = probs.iter().find(|p| !p.is_finite()) {
        return Err(wrong_sum(err!("found {p}, wanted numbers")));
    }
    let given: f64 = probs.iter().filter(|&&p| p >= 0.0).sum();
    let rest = 1.0 - given;
    if rest < -SLACK {
        return Err(wrong_sum(err!("the numbers add up to {given}, wanted at most 1")));
    }
    let open: u64 = probs.iter().zip(batches).filter(|(p, _)| **p < 0.0).map(|(_, &n)| n).sum();
    if open == 0 && rest > 1e-5 {
        return Err(wrong_sum(err!("the numbers add up to {given}, wanted 1")));
    }
    if open > 0 && rest <= SLACK {
        return Err(wrong_sum(err!("the numbers add up to 1 and leave nothing for the negative ones")));
    }
    let share = |(&p, &n): (&f64, &u64)| if p >= 0.0 { p } else { rest * n as f64 / open as f64 };
    Ok(probs.iter().zip(batches).map(share).collect())
}

fn wrong_sum(e: Error) -> Error {
    e.help(
        "one probability for each system, 1 in all; a negative one means: a share of the rest by the size of the system",
    )
}
