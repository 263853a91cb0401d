//! What engines compute of a descriptor.

use super::DescriptorOptions;

/// What A of an atom is, and the descriptor D from A. A descriptor chooses one of them.
///
/// In the first two `A = sum_j env_j (x) G(s_j) / n_sel` over the slots of an atom. G is the embedding net; its argument s is the
/// first number of the normalised row of the environment matrix. They differ in env and in the way from A to D, every engine
/// knows them, and G may be a series. The fused engine for GPUs does not know the others; they go operation by operation there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// env is the row (s, q d), `D = A A[..axis]^T`. A slot whose neighbour is excluded has a row of zeros.
    Directions { axis: usize },
    /// env is the number 1, `D = scale A`. A slot whose neighbour is excluded has the argument 0, and counts.
    Distances { scale: f64 },
    /// `D = A = sum x G(x) / (sel_j sel_k)` over pairs of neighbours (j, k), where x is the product of the directions q d of their
    /// rows, and G is the net of their two types. A pair of two types counts once. Nobody is seen in empty slots: x is 0.
    Angles,
    /// `A = sum_j row_j (x) G_j / n_sel`, where G_j comes from attention between the neighbours, `D = A A[..axis]^T`, followed by `tail`
    /// numbers of the centre's type ([`super::SeAtten`]).
    Attention { axis: usize, tail: usize },
}

impl Form {
    /// Numbers of env: rows of A.
    pub const fn components(self) -> usize {
        match self {
            Form::Directions { .. } | Form::Attention { .. } => 4,
            Form::Distances { .. } | Form::Angles => 1,
        }
    }

    /// Numbers of a row of the environment matrix that are used.
    pub const fn row(self) -> usize {
        match self {
            Form::Distances { .. } => 1,
            _ => 4,
        }
    }

    /// Whether G is a function of s alone, which a series can stand for.
    pub const fn has_series(self) -> bool {
        matches!(self, Form::Directions { .. } | Form::Distances { .. })
    }

    /// D over A, where it is A times a number.
    pub const fn scale(self) -> f64 {
        match self {
            Form::Distances { scale } => scale,
            _ => 1.0,
        }
    }

    /// Numbers of D where the embedding has `m1` outputs.
    pub const fn width(self, m1: usize) -> usize {
        match self {
            Form::Directions { axis } => m1 * axis,
            Form::Distances { .. } | Form::Angles => m1,
            Form::Attention { axis, tail } => m1 * axis + tail,
        }
    }

    /// Rows of the symmetric square that D begins with.
    pub const fn square(self) -> usize {
        match self {
            Form::Directions { axis } | Form::Attention { axis, .. } => axis,
            Form::Distances { .. } | Form::Angles => 0,
        }
    }

    /// The first number of env where the argument of the net is `s`; the others are zero in a slot that has no direction.
    pub const fn first(self, s: f64) -> f64 {
        match self {
            Form::Directions { .. } | Form::Attention { .. } => s,
            Form::Distances { .. } | Form::Angles => 1.0,
        }
    }
}

impl DescriptorOptions {
    /// What engines compute of this descriptor.
    pub fn form(&self) -> Form {
        (self.kind.about().form)(self)
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
