//! What engines compute of a descriptor.

use super::DescriptorOptions;

/// `A = sum_j env_j (x) G(s_j) / n_sel` over the slots of an atom, and the descriptor D from A.
///
/// G is the embedding net; its argument s is the first number of the normalised row of the environment matrix in every
/// form. Forms differ in env and in the way from A to D. A descriptor chooses one of them, and every engine knows all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// env is the row (s, q d), `D = A A[..axis]^T`. A slot whose neighbour is excluded has a row of zeros.
    Directions { axis: usize },
    /// env is the number 1, `D = scale A`. A slot whose neighbour is excluded has the argument 0, and counts.
    Distances { scale: f64 },
}

impl Form {
    /// Numbers of env: rows of A.
    pub const fn components(self) -> usize {
        match self {
            Form::Directions { .. } => 4,
            Form::Distances { .. } => 1,
        }
    }

    /// Numbers of D where the embedding has `m1` outputs.
    pub const fn width(self, m1: usize) -> usize {
        match self {
            Form::Directions { axis } => m1 * axis,
            Form::Distances { .. } => m1,
        }
    }

    /// Rows of the symmetric square that D begins with.
    pub const fn square(self) -> usize {
        match self {
            Form::Directions { axis } => axis,
            Form::Distances { .. } => 0,
        }
    }

    /// The first number of env where the argument of the net is `s`; the others are zero in a slot that has no direction.
    pub const fn first(self, s: f64) -> f64 {
        match self {
            Form::Directions { .. } => s,
            Form::Distances { .. } => 1.0,
        }
    }
}

impl DescriptorOptions {
    /// What engines compute of this descriptor.
    pub fn form(&self) -> Form {
        (self.kind.entry().form)(self)
    }

    /// Length of the descriptor of one atom.
    pub fn width(&self) -> usize {
        self.form().width(self.neuron.last().copied().unwrap_or(0))
    }

    /// Whether neighbours of type `b` are left out around centres of type `a`.
    pub fn excludes(&self, a: usize, b: usize) -> bool {
        self.exclude_types.iter().any(|&(x, y)| (x, y) == (a, b) || (y, x) == (a, b))
    }
}
