//! The loss of properties of frames, in units of the deviation of the labels.

use super::{Entry, Loss, LossChoice, LossOptions, LossValue, OutputLoss, OutputTerms, Term};
use crate::config::check::did_you_mean;
use crate::config::table::{Key, Kind};
use crate::config::{Section, Variant};
use crate::data::Frame;
use crate::data::field::{Field, Need, OutputLabel, Wants};
use crate::engine::{Prediction, Seeds};
use crate::err;
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::options::FittingOptions;

/// The `property` loss on the list of losses.
pub const PROPERTY: Entry =
    Entry::new(Variant::of("property", KEYS, "Errors of properties of frames"), |section| {
        PropertyLossOptions::resolve(section).map(LossChoice::new)
    });

/// Functions of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// x^2 / (2 beta) up to beta, then |x| - beta / 2.
    SmoothMae,
    Mae,
    Mse,
    /// The root of the mean of squares.
    Rmse,
    /// |x| over the label plus 0.001.
    Mape,
}

impl Measure {
    /// Its place in the order in which they are shown.
    pub fn place(self) -> usize {
        MEASURES.iter().position(|(_, known)| *known == self).unwrap_or(0)
    }
}

const MEASURES: [(&str, Measure); 5] = [
    ("smooth_mae", Measure::SmoothMae),
    ("mae", Measure::Mae),
    ("mse", Measure::Mse),
    ("rmse", Measure::Rmse),
    ("mape", Measure::Mape),
];
const NAMES: [&str; 5] = ["smooth_mae", "mae", "mse", "rmse", "mape"];

/// DeePMD-kit adds this to a label that it divides by, so that it is not zero.
const PROTECTION: f64 = 1e-3;

const KEYS: &[Key] = &[
    Key::new("loss_func", Kind::choice(&NAMES)).default("\"smooth_mae\"").doc(
        "What is made small: sums over frames of |x| (mae), x^2 (mse) or x^2 / (2 beta) up to beta and |x| - beta / 2 beyond \
         (smooth_mae); the root of the mean square (rmse); the mean of |x| over the label (mape). All but the last in units of the \
         deviation of the labels.",
    ),
    Key::new("metric", Kind::List(&Kind::Text))
        .default("[\"mae\"]")
        .doc("Errors that are shown, by the same names: means over frames, in the units of the labels."),
    Key::new("beta", Kind::NOT_NEGATIVE).default("1.0").doc("Where smooth_mae turns from squares to absolute values."),
];

/// `loss` of type `property`. Of an extensive property errors are divided by the number of atoms.
#[derive(Debug, Clone, PartialEq)]
pub struct PropertyLossOptions {
    pub function: Measure,
    /// In the order of [`MEASURES`], as DeePMD-kit shows them.
    pub metric: Vec<Measure>,
    pub beta: f64,
}

impl PropertyLossOptions {
    fn resolve(section: &Section) -> Result<Self> {
        let named =
            |name: &str| MEASURES.iter().find(|(known, _)| *known == name).map(|(_, measure)| *measure);
        let metric = section.texts("metric");
        if let Some(wrong) = metric.iter().find(|name| named(name).is_none()) {
            let near = did_you_mean(wrong, NAMES.into_iter());
            return Err(section
                .error("metric", err!("\"{wrong}\" is not an error that is shown"))
                .help(format!("{near}known: {}", NAMES.join(", "))));
        }
        let shown = MEASURES.iter().filter(|(name, _)| metric.iter().any(|asked| asked == name));
        Ok(PropertyLossOptions {
            function: named(section.text("loss_func")).expect("the table of keys knows the names"),
            metric: shown.map(|(_, measure)| *measure).collect(),
            beta: section.float("beta"),
        })
    }
}

impl LossOptions for PropertyLossOptions {
    fn fitting(&self) -> &'static [&'static str] {
        &["property"]
    }

    fn want(&self, wants: &mut Wants, fitting: &FittingOptions) {
        let (output, of_frames, of_atoms) = (fitting.output(), Need::Must, Need::No);
        let selected = Vec::new();
        wants.output =
            Some(OutputLabel { name: output.name, width: output.width, of_frames, of_atoms, selected });
    }

    fn terms(&self) -> Vec<(Field, &'static str)> {
        Vec::new()
    }

    fn names(&self, _fitting: &FittingOptions) -> Vec<String> {
        self.metric.iter().map(|measure| name(*measure).to_string()).collect()
    }

    fn on_device(&self, model: &Dp) -> Option<OutputTerms> {
        let (function, beta, deviation) = (self.function, self.beta, deviation(model));
        let shown = self.metric.iter().map(|&measure| (name(measure), measure.place()));
        Some(OutputTerms { loss: OutputLoss::Property { function, beta, deviation }, shown: shown.collect() })
    }

    fn build(&self, _start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        Box::new(PropertyLoss {
            options: self.clone(),
            left_out: model.options.atom_exclude_types.clone(),
            is_intensive: model.output.is_intensive,
            deviation: deviation(model),
        })
    }
}

/// The units of errors. As in DeePMD-kit those of the first type, also where types differ.
fn deviation(model: &Dp) -> Vec<f64> {
    model.stats.out_std[..model.output.width].to_vec()
}

fn name(measure: Measure) -> &'static str {
    MEASURES.iter().find(|(_, known)| *known == measure).map_or("", |(name, _)| name)
}

/// The `property` loss of a run.
struct PropertyLoss {
    options: PropertyLossOptions,
    /// Types whose atoms do not count.
    left_out: Vec<usize>,
    is_intensive: bool,
    /// `[width]`
    deviation: Vec<f64>,
}

/// One number that is compared.
struct Compared {
    got: f64,
    want: f64,
    /// What dL/dgot is multiplied by to be dL/doutput, and the unit of its error.
    scale: f64,
    unit: f64,
}

impl Loss for PropertyLoss {
    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], _lr: f64) -> LossValue {
        seeds.reset(out);
        let compared = self.compare(out, frames);
        let (loss, slopes) = self.loss(&compared);
        for ((dl, compared), slope) in seeds.dl_output.iter_mut().zip(&compared).zip(slopes) {
            *dl = slope * compared.scale;
        }
        let shown =
            |&measure: &Measure| Term { name: name(measure).into(), value: self.shown(measure, &compared) };
        LossValue { loss, terms: self.options.metric.iter().map(shown).collect() }
    }
}

impl PropertyLoss {
    /// Every number of every frame with its label; extensive ones for each atom.
    fn compare(&self, out: &Prediction, frames: &[&Frame]) -> Vec<Compared> {
        let width = self.deviation.len();
        let counts = |t: &&i32| usize::try_from(**t).is_ok_and(|t| !self.left_out.contains(&t));
        let mut compared = Vec::with_capacity(out.output.len());
        for (frame, got) in frames.iter().zip(out.output.chunks_exact(width)) {
            let n = if self.is_intensive { 1.0 } else { frame.types.iter().filter(counts).count() as f64 };
            let label = frame.labels.output.as_deref().expect("data without this label was refused");
            compared.extend((0..width).map(|k| Compared {
                got: got[k] / n,
                want: label[k] / n,
                scale: 1.0 / n,
                unit: self.deviation[k],
            }));
        }
        compared
    }

    /// The loss, and its slope by each number.
    fn loss(&self, compared: &[Compared]) -> (f64, Vec<f64>) {
        let (function, n) = (self.options.function, compared.len() as f64);
        let of = |c: &Compared| match function {
            Measure::Mape => mape(c),
            _ => {
                let (value, slope) = measure(function, (c.got - c.want) / c.unit, self.options.beta);
                (value, slope / c.unit)
            }
        };
        let sum: f64 = compared.iter().map(|c| of(c).0).sum();
        let slopes = compared.iter().map(|c| of(c).1);
        match function {
            Measure::Rmse => {
                let root = (sum / n).sqrt();
                let scale = if root == 0.0 { 0.0 } else { 0.5 / (n * root) };
                (root, slopes.map(|slope| scale * slope).collect())
            }
            Measure::Mape => (sum / n, slopes.map(|slope| slope / n).collect()),
            _ => (sum, slopes.collect()),
        }
    }

    /// An error as it is shown.
    fn shown(&self, shown: Measure, compared: &[Compared]) -> f64 {
        let of = |c: &Compared| match shown {
            Measure::Mape => mape(c).0,
            _ => measure(shown, c.got - c.want, self.options.beta).0,
        };
        let mean = compared.iter().map(of).sum::<f64>() / compared.len() as f64;
        if shown == Measure::Rmse { mean.sqrt() } else { mean }
    }
}

/// A function of an error, and its slope. That of [`Measure::Rmse`] is the square.
fn measure(measure: Measure, x: f64, beta: f64) -> (f64, f64) {
    let sign = if x == 0.0 { 0.0 } else { x.signum() };
    match measure {
        Measure::SmoothMae if x.abs() < beta => (0.5 * x * x / beta, x / beta),
        Measure::SmoothMae => (x.abs() - 0.5 * beta, sign),
        Measure::Mae | Measure::Mape => (x.abs(), sign),
        Measure::Mse | Measure::Rmse => (x * x, 2.0 * x),
    }
}

fn mape(c: &Compared) -> (f64, f64) {
    let (value, sign) = measure(Measure::Mape, (c.got - c.want) / (c.want + PROTECTION), 0.0);
    (value, sign / (c.want + PROTECTION))
}
