//! Where the time of a step goes, stage by stage. A lap costs one reading of the clock.

use std::time::{Duration, Instant};

/// The stages of both passes, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The embedding nets at the nodes, and their coefficients.
    Series,
    /// A and the descriptor.
    Describe,
    FittingForward,
    FittingBackward,
    /// dE/dA, dE/dd of each pair.
    Differentiate,
    /// Sums over atoms and pairs.
    Collect,
    /// Tangents of pairs, A and descriptor.
    Tangent,
    FittingTangent,
    /// The reverse pass of the fitting nets: adjoints.
    FittingReverse,
    /// dL/dA.
    Adjoint,
    /// The gradient of the embedding nets.
    Embedding,
    /// The gradient of the fitting nets, with the update where it is done piece by piece.
    FittingGradient,
}

impl Stage {
    pub const ALL: [Stage; 12] = [
        Stage::Series,
        Stage::Describe,
        Stage::FittingForward,
        Stage::FittingBackward,
        Stage::Differentiate,
        Stage::Collect,
        Stage::Tangent,
        Stage::FittingTangent,
        Stage::FittingReverse,
        Stage::Adjoint,
        Stage::Embedding,
        Stage::FittingGradient,
    ];
}

/// Time spent in each stage since the last reset.
#[derive(Debug, Clone)]
pub struct Laps {
    total: [Duration; Stage::ALL.len()],
    last: Instant,
}

impl Default for Laps {
    fn default() -> Self {
        Laps { total: [Duration::ZERO; Stage::ALL.len()], last: Instant::now() }
    }
}

impl Laps {
    /// The next lap begins now.
    pub fn start(&mut self) {
        self.last = Instant::now();
    }

    /// What was done since the last call was this stage.
    pub fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.total[stage as usize] += now - self.last;
        self.last = now;
    }

    /// Time of each stage.
    pub fn totals(&self) -> impl Iterator<Item = (Stage, Duration)> + '_ {
        Stage::ALL.into_iter().map(|stage| (stage, self.total[stage as usize]))
    }
}
