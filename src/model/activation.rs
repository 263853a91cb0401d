//! Activation functions by DeePMD-kit's names.

/// The activation of a layer. Formulas and derivatives stand with the engine's reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Tanh,
    Relu,
    Relu6,
    Softplus,
    Sigmoid,
    /// Tanh approximation; DeePMD-kit's `gelu` and `gelu_tf`.
    Gelu,
    Silu,
    /// SiLU below the threshold, `tanh` joined smoothly above it.
    Silut {
        threshold: f64,
    },
    Linear,
}
