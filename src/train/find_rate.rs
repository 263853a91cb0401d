//! Which learning rate to start with: `dp train --find-lr`.
//!
//! The rate grows by the same factor at every step of a short run, and the loss is looked at as it goes: first nothing happens, then
//! it falls, then it rises again. Nothing is kept of that run but its curve.

use super::learner::{Learner, StepRate, Turn};
use super::team::Team;
use crate::error::{ErrorKind, Result};
use crate::export::atomic;
use crate::report::profile::Profiler;
use crate::report::progress::{Note, Progress, curve_of};
use std::io::Write;
use std::path::Path;

/// Rates of the first and of the last step.
const FROM: f64 = 1e-5;
const TO: f64 = 1.0;
/// Steps in which the rate becomes ten times as high.
const STEPS_A_DECADE: u64 = 80;
/// A loss so many times the lowest one shows that the rate is too high.
const TOO_HIGH: f64 = 4.0;
/// A loss that has not fallen to this part of the first one has not fallen.
const FALLS: f64 = 0.95;
/// What part of its past a smoothed loss keeps at each step.
const SMOOTHING: f64 = 0.95;
/// The lowest loss comes when the rate is already too high for a whole run.
const BELOW_LOWEST: f64 = 10.0;
/// Where the curve is written.
pub const FILE: &str = "find_lr.out";

/// One step of the sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    rate: f64,
    /// The root of the loss, as it was and smoothed.
    loss: f64,
    smooth: f64,
}

/// Sweeps over rates with `learner`, tells what it found and writes the curve. `rates` are those of the first step of a run: the
/// prefactors of the loss stay what they are there, and the sweep's rates are scaled by the number of batches a step as they are.
pub fn sweep(
    team: &mut Team,
    learner: &mut dyn Learner,
    rates: StepRate,
    shows_progress: bool,
) -> Result<()> {
    let steps = (TO / FROM).log10() as u64 * STEPS_A_DECADE;
    log::info!("looking for start_lr: {FROM:e} to {TO:e} in at most {steps} steps; no checkpoint is written");
    let progress = Progress::new(0, steps, shows_progress && team.is_root());
    let mut curve = Curve::default();
    for step in 0..steps {
        let rate = FROM * (TO / FROM).powf(step as f64 / steps as f64);
        let scaled = rate * rates.scaled / rates.schedule;
        let rate_now = StepRate { schedule: rates.schedule, scaled };
        let turn = Turn { step, rate: rate_now, wants_values: true, wants_norm: false, stop: false };
        let report = match learner.step(&turn, team, &Profiler::off()) {
            Err(e) if e.kind() == ErrorKind::Diverged && team.size() == 1 => break,
            other => other?,
        };
        let mine: Vec<f64> = report.values.iter().map(|value| value.loss).collect();
        let all: Vec<f64> = team.gather_from_groups(&mine)?.concat();
        let loss = (all.iter().sum::<f64>() / all.len() as f64).sqrt();
        curve.add(rate, loss);
        progress.step(step + 1);
        progress.note(&Note { text: format!("rate {rate:.1e}, loss {loss:.3}"), value: loss });
        if curve.is_over() {
            break;
        }
    }
    progress.finish();
    if team.is_root() {
        curve.tell();
        curve.write(Path::new(FILE))?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Curve(Vec<Point>);

impl Curve {
    fn add(&mut self, rate: f64, loss: f64) {
        // Losses span orders of magnitude.
        let smooth = self
            .0
            .last()
            .map_or(loss, |last| (SMOOTHING * last.smooth.ln() + (1.0 - SMOOTHING) * loss.ln()).exp());
        self.0.push(Point { rate, loss, smooth });
    }

    fn lowest(&self) -> Option<&Point> {
        self.0.iter().min_by(|a, b| a.smooth.total_cmp(&b.smooth))
    }

    fn is_over(&self) -> bool {
        let (Some(lowest), Some(last)) = (self.lowest(), self.0.last()) else { return false };
        let far_behind = self.proposal().is_some() && last.rate > BELOW_LOWEST * lowest.rate;
        far_behind || last.smooth.is_nan() || last.smooth > TOO_HIGH * lowest.smooth
    }

    /// The rate to start with, to one digit. `None`: the loss has not fallen.
    fn proposal(&self) -> Option<f64> {
        let (first, lowest) = (self.0.first()?, self.lowest()?);
        if lowest.smooth >= FALLS * first.smooth {
            return None;
        }
        let rate = lowest.rate / BELOW_LOWEST;
        let ten = 10f64.powf(rate.log10().floor());
        Some((rate / ten).round() * ten)
    }

    fn tell(&self) {
        log::info!("{:>10} {:>12}", "rate", "rmse");
        for point in self.0.iter().step_by(STEPS_A_DECADE as usize / 4) {
            log::info!("{:>10.1e} {:>12.4}", point.rate, point.smooth);
        }
        let drawn: Vec<f64> = self.0.iter().map(|point| point.smooth).collect();
        let (from, to) = (FROM, self.0.last().map_or(FROM, |point| point.rate));
        log::info!("{from:.0e} {} {to:.0e}", curve_of(&drawn));
        match (self.proposal(), self.lowest()) {
            (Some(rate), Some(lowest)) => log::info!(
                "the loss was lowest at {:.1e}: start_lr {rate:.0e} is proposed (the curve is in {FILE})",
                lowest.rate
            ),
            _ => log::warn!(
                "the loss did not fall at any rate: look at the data and at the prefactors of the loss (the curve is in {FILE})"
            ),
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        atomic::write(path, |out| {
            let io = |e: std::io::Error| crate::err!("{}: {e}", path.display());
            writeln!(out, "#     rate         rmse  smoothed rmse").map_err(io)?;
            for point in &self.0 {
                writeln!(out, "{:.4e} {:>12.5e} {:>14.5e}", point.rate, point.loss, point.smooth)
                    .map_err(io)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss that falls where the rate is near `good` and rises beyond.
    fn curve(good: f64) -> Curve {
        let mut curve = Curve::default();
        let mut loss: f64 = 20.0;
        for step in 0..400 {
            let rate = FROM * 10f64.powf(step as f64 / 80.0);
            loss *= if rate > 10.0 * good { 1.2 } else { 1.0 - 0.02 * (rate / good).min(1.0) };
            curve.add(rate, loss);
            if curve.is_over() {
                break;
            }
        }
        curve
    }

    #[test]
    fn a_rate_well_below_the_lowest_loss_is_proposed_and_the_sweep_ends_soon_after() {
        for good in [1e-4, 1e-3, 1e-2] {
            let curve = curve(good);
            let proposed = curve.proposal().unwrap();
            assert!((0.5 * good..=2.0 * good).contains(&proposed), "{good}: {proposed}");
            assert!(curve.is_over() && curve.0.len() < 400, "{good}: {} steps", curve.0.len());
        }
    }

    #[test]
    fn where_the_loss_never_falls_nothing_is_proposed() {
        let mut curve = Curve::default();
        (0..200).for_each(|step| curve.add(FROM * 1.03f64.powi(step), 3.0));
        assert_eq!(curve.proposal(), None);
        curve.add(1e-2, f64::NAN);
        assert!(curve.is_over(), "a loss that is not a number ends the sweep");
    }
}
