//! Activation functions by DeePMD-kit's names.

use crate::err;
use crate::error::{Error, Result};
use std::fmt;

/// The activation of a layer. Formulas and derivatives stand with the engine's reference.
///
/// Two names of one function are two variants, so that a model file that is read and written again keeps its
/// words. [`Activation::function`] folds them together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Tanh,
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// ln(1 + exp(x)).
    Softplus,
    Sigmoid,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): always the tanh form, never the error function.
    Gelu,
    /// The same function as [`Activation::Gelu`] under the name `gelu_tf`.
    GeluTf,
    /// x sigmoid(x).
    Silu,
    /// x sigmoid(x) below the threshold t; at and above it tanh(s (x - t)) + c with s and c the slope and the
    /// value of SiLU at t, so that value and slope are continuous. The name is `silut:t`; plain `silut` is t = 3.
    Silut {
        threshold: f64,
    },
    /// The same function as [`Activation::Silut`] under the name `custom_silu:t`.
    CustomSilu {
        threshold: f64,
    },
    /// x.
    Linear,
    /// The same function as [`Activation::Linear`] under the name `none`.
    None,
}

/// The activations without a parameter, by name.
const NAMES: &[(&str, Activation)] = &[
    ("tanh", Activation::Tanh),
    ("relu", Activation::Relu),
    ("relu6", Activation::Relu6),
    ("softplus", Activation::Softplus),
    ("sigmoid", Activation::Sigmoid),
    ("gelu", Activation::Gelu),
    ("gelu_tf", Activation::GeluTf),
    ("silu", Activation::Silu),
    ("linear", Activation::Linear),
    ("none", Activation::None),
];

/// The threshold of `silut` and `custom_silu` without a number.
const DEFAULT_THRESHOLD: f64 = 3.0;

impl Activation {
    /// Whether all derivatives are continuous.
    pub fn is_smooth(self) -> bool {
        !matches!(self.function(), Activation::Relu | Activation::Relu6 | Activation::Silut { .. })
    }

    /// Reads a name as it stands in inputs and model files: `tanh`, `gelu_tf`, `silut:3.0`. Case does not matter.
    pub fn parse(name: &str) -> Result<Activation> {
        let lower = name.trim().to_ascii_lowercase();
        if let Some((_, activation)) = NAMES.iter().find(|(known, _)| *known == lower) {
            return Ok(*activation);
        }
        let (family, threshold) = match lower.split_once(':') {
            Some((family, number)) => (family, parse_threshold(name, number)?),
            None => (lower.as_str(), DEFAULT_THRESHOLD),
        };
        match family {
            "silut" => Ok(Activation::Silut { threshold }),
            "custom_silu" => Ok(Activation::CustomSilu { threshold }),
            _ => Err(unknown(name)),
        }
    }

    /// The name in inputs and model files. `parse(name())` gives the same activation.
    pub fn name(self) -> String {
        match self {
            Activation::Silut { threshold } => format!("silut:{threshold:?}"),
            Activation::CustomSilu { threshold } => format!("custom_silu:{threshold:?}"),
            _ => {
                let found = NAMES.iter().find(|(_, known)| *known == self);
                found.expect("every activation without a parameter has a name").0.to_string()
            }
        }
    }

    /// The same function under its first name: `gelu_tf` is `gelu`, `custom_silu` is `silut`, `none` is `linear`.
    pub fn function(self) -> Activation {
        match self {
            Activation::GeluTf => Activation::Gelu,
            Activation::CustomSilu { threshold } => Activation::Silut { threshold },
            Activation::None => Activation::Linear,
            other => other,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

fn parse_threshold(name: &str, number: &str) -> Result<f64> {
    match number.trim().parse::<f64>() {
        Ok(threshold) if threshold.is_finite() => Ok(threshold),
        _ => Err(err!("activation function \"{name}\": \"{number}\" is not a threshold")
            .help("write a finite number after the colon, as in silut:3.0")),
    }
}

fn unknown(name: &str) -> Error {
    let mut known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
    known.extend(["silut", "silut:<threshold>", "custom_silu:<threshold>"]);
    let nearest = NAMES
        .iter()
        .map(|(known, _)| *known)
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)));
    let hint = match nearest {
        Some(nearest) if strsim::jaro_winkler(name, nearest) > 0.8 => format!("did you mean {nearest}? "),
        _ => String::new(),
    };
    err!("unknown activation function \"{name}\"").help(format!("{hint}known: {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_as_an_activation_that_prints_the_same_name() {
        let names = NAMES.iter().map(|(name, _)| *name).chain(["silut:3.0", "silut:2.5", "custom_silu:0.1"]);
        for name in names {
            assert_eq!(Activation::parse(name).unwrap().name(), name);
        }
    }

    #[test]
    fn silut_without_a_number_has_the_threshold_three() {
        assert_eq!(Activation::parse("silut").unwrap(), Activation::Silut { threshold: 3.0 });
        assert_eq!(Activation::parse("custom_silu:7").unwrap(), Activation::CustomSilu { threshold: 7.0 });
    }

    #[test]
    fn case_does_not_matter() {
        assert_eq!(Activation::parse("Tanh").unwrap(), Activation::Tanh);
        assert_eq!(Activation::parse("SiLUT:4.0").unwrap(), Activation::Silut { threshold: 4.0 });
    }

    #[test]
    fn two_names_of_one_function_fold_together() {
        for (a, b) in [("gelu_tf", "gelu"), ("none", "linear"), ("custom_silu:2.0", "silut:2.0")] {
            assert_eq!(Activation::parse(a).unwrap().function(), Activation::parse(b).unwrap().function());
        }
    }

    #[test]
    fn a_wrong_name_gets_the_nearest_one_and_the_list() {
        let error = Activation::parse("sigmoit").unwrap_err();
        assert_eq!(error.message(), "unknown activation function \"sigmoit\"");
        assert!(error.advice().unwrap().starts_with("did you mean sigmoid? known: tanh, relu"));
        assert!(Activation::parse("silut:x").unwrap_err().message().contains("\"x\" is not a threshold"));
        assert!(Activation::parse("silut:inf").is_err());
        assert!(Activation::parse("gelu:3").is_err());
    }
}
