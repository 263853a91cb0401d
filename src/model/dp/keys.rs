//! Kinds of keys that descriptors and fitting nets share, and what they mean.

use super::options::Precision;
use crate::config::Section;
use crate::config::check::did_you_mean;
use crate::config::table::{Choice, Kind, Pattern};
use crate::err;
use crate::error::Result;
use crate::model::activation::Activation;

/// The width of a layer. The limit is far beyond use; it turns a slip of the keyboard into an error.
pub const WIDTH: Kind = Kind::Int(1, 100_000);
/// A size that may be zero, with the same limit.
pub const SIZE: Kind = Kind::Int(0, 100_000);

pub const ACTIVATION: Kind = Kind::Pattern(Pattern {
    wanted: "the name of an activation function (tanh, relu, relu6, softplus, sigmoid, gelu, gelu_tf, silu, silut, \
             silut:THRESHOLD, linear, none)",
    check: |text| parse_activation(text).map(|_| ()),
});

pub const PRECISION: Kind =
    Kind::Choice(Choice { known: &["default", "float64", "float32"], not_yet: &["float16", "bfloat16"] });

/// An activation function by DeePMD-kit's name for it, in any case.
pub fn parse_activation(text: &str) -> Result<Activation> {
    const NAMES: [&str; 11] = [
        "tanh", "relu", "relu6", "softplus", "sigmoid", "gelu", "gelu_tf", "silu", "silut", "linear", "none",
    ];
    let lower = text.to_lowercase();
    let (name, argument) = match lower.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (lower.as_str(), None),
    };
    let activation = match (name, argument) {
        ("silut" | "custom_silu", None) => Activation::Silut { threshold: 3.0 },
        ("silut" | "custom_silu", Some(text)) => match text.trim().parse::<f64>() {
            Ok(threshold) if threshold.is_finite() => Activation::Silut { threshold },
            _ => return Err(err!("the threshold \"{text}\" of silut is not a number")),
        },
        ("tanh", None) => Activation::Tanh,
        ("relu", None) => Activation::Relu,
        ("relu6", None) => Activation::Relu6,
        ("softplus", None) => Activation::Softplus,
        ("sigmoid", None) => Activation::Sigmoid,
        ("gelu" | "gelu_tf", None) => Activation::Gelu,
        ("silu", None) => Activation::Silu,
        ("linear" | "none", None) => Activation::Linear,
        _ => {
            let near = did_you_mean(&lower, NAMES.iter().copied());
            return Err(err!("\"{text}\" is not an activation function")
                .help(format!("{near}known: {}", NAMES.join(", "))));
        }
    };
    Ok(activation)
}

pub fn precision(section: &Section) -> Precision {
    if section.text("precision") == "float32" { Precision::Float32 } else { Precision::Float64 }
}

pub fn activation(section: &Section) -> Result<Activation> {
    let key = "activation_function";
    parse_activation(section.text(key)).map_err(|e| section.error(key, e))
}

pub fn neuron(section: &Section) -> Result<Vec<usize>> {
    let neuron: Vec<usize> = section.ints("neuron");
    if neuron.is_empty() {
        return Err(
            section.error("neuron", err!("found an empty list, wanted the width of at least one layer"))
        );
    }
    Ok(neuron)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_deepmd_kits_names() {
        assert_eq!(parse_activation("Tanh").unwrap(), Activation::Tanh);
        assert_eq!(parse_activation("none").unwrap(), Activation::Linear);
        assert_eq!(parse_activation("silut:10.0").unwrap(), Activation::Silut { threshold: 10.0 });
        assert_eq!(parse_activation("silut").unwrap(), Activation::Silut { threshold: 3.0 });
        assert!(parse_activation("silut:x").is_err() && parse_activation("tanh:1").is_err());
        assert!(parse_activation("gelo").unwrap_err().advice().unwrap().starts_with("did you mean `gelu`?"));
    }
}
