//! The kernels of PiNet: their files, and what each of them takes.

use super::layout::{self, Batch, MOST_OUTPUTS, Op, Source, Status, Turn};
use crate::Result;
use crate::gpu::launch::kernels;
use crate::gpu::{Cuda, Device, Numbers, Program, Ptr, Real};
use std::sync::Arc;

/// In the order in which they need each other.
const SOURCES: [&str; 8] = [
    include_str!("kernels/common.cu"),
    include_str!("kernels/dense.cu"),
    include_str!("kernels/pairs.cu"),
    include_str!("kernels/chain.cu"),
    include_str!("kernels/tensors.cu"),
    include_str!("kernels/batch.cu"),
    include_str!("kernels/loss.cu"),
    include_str!("kernels/update.cu"),
];

kernels! {
    DENSE_FORWARD = "dense_forward" (Op);
    DENSE_REVERSE = "dense_reverse" (Op);
    DENSE_TANGENT = "dense_tangent" (Op);
    DENSE_ADJOINT = "dense_adjoint" (Op);
    INPUT_FORWARD = "input_forward" (Batch, Op);
    INPUT_REVERSE = "input_reverse" (Batch, Op);
    INPUT_TANGENT = "input_tangent" (Batch, Op);
    INPUT_ADJOINT = "input_adjoint" (Batch, Op);
    SPREAD_REVERSE = "spread_reverse" (Batch, Op);
    SPREAD_ADJOINT = "spread_adjoint" (Batch, Op);
    CONTRACT_FORWARD = "contract_forward" (Batch, Op);
    CONTRACT_REVERSE = "contract_reverse" (Batch, Op);
    CONTRACT_TANGENT = "contract_tangent" (Batch, Op);
    CONTRACT_ADJOINT = "contract_adjoint" (Batch, Op);
    SUM_FORWARD = "sum_forward" (Batch, Op);
    SUM_REVERSE = "sum_reverse" (Batch, Op);
    SUM_TANGENT = "sum_tangent" (Batch, Op);
    SUM_ADJOINT = "sum_adjoint" (Batch, Op);
    ADD_FORWARD = "add_forward" (Batch, Op);
    ADD_REVERSE = "add_reverse" (Batch, Op);
    ADD_TANGENT = "add_tangent" (Batch, Op);
    ADD_ADJOINT = "add_adjoint" (Batch, Op);
    CHAIN_FORWARD = "chain_forward" (Batch, Ptr<Op>, i32);
    CHAIN_REVERSE = "chain_reverse" (Batch, Ptr<Op>, i32);
    CHAIN_TANGENT = "chain_tangent" (Batch, Ptr<Op>, i32);
    CHAIN_ADJOINT = "chain_adjoint" (Batch, Ptr<Op>, i32);
    TURN_FORWARD = "turn_forward" (Batch, Op);
    TURN_REVERSE = "turn_reverse" (Batch, Op);
    TURN_TANGENT = "turn_tangent" (Batch, Op);
    TURN_ADJOINT = "turn_adjoint" (Batch, Op);
    TURN_DIRECTIONS = "turn_directions" (Batch, Op);
    FIRST_REVERSE = "first_reverse" (Batch, Op);
    FIRST_ADJOINT = "first_adjoint" (Batch, Op);
    SECOND_REVERSE = "second_reverse" (Batch, Op);
    SECOND_ADJOINT = "second_adjoint" (Batch, Op);
    DOT_FORWARD = "dot_forward" (Batch, Op);
    DOT_REVERSE = "dot_reverse" (Batch, Op);
    DOT_TANGENT = "dot_tangent" (Batch, Op);
    DOT_ADJOINT = "dot_adjoint" (Batch, Op);
    SCALE_FORWARD = "scale_forward" (Batch, Op);
    SCALE_REVERSE = "scale_reverse" (Batch, Op);
    SCALE_TANGENT = "scale_tangent" (Batch, Op);
    SCALE_ADJOINT = "scale_adjoint" (Batch, Op);
    GATHER = "gather" (Batch);
    PAIR_GRADIENT = "pair_gradient" (Batch);
    FORCES = "forces" (Batch);
    STRESSES = "stresses" (Batch);
    SET_TANGENTS = "set_tangents" (Batch);
    ENERGIES = "energies" (Batch);
    LOSSES = "losses" (Batch);
    SUM_VALUES = "sum_values" (Batch, Ptr<f64>, Ptr<f64>, u32);
    SEED_OUTPUTS = "seed_outputs" (Batch);
    REDUCE = "reduce" (Ptr<f64>, Ptr<Source>, Ptr<f64>, Ptr<f64>, u32, Ptr<Turn>);
    MEAN = "mean" (Ptr<f64>, u32, Ptr<Turn>, Ptr<Status>);
    NORMS = "norms" (Ptr<f64>, Ptr<f64>, Ptr<u32>);
    ADAM = "adam" (
        Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<u32>, u32, u32, i32, f64, Ptr<Turn>, Ptr<Status>
    );
    PACK = "pack" (Ptr<Real>, Ptr<f64>, Ptr<u32>, u32);
}

/// Opens a GPU with the kernels of PiNet.
pub fn open(
    cuda: &Arc<Cuda>,
    index: usize,
    numbers: Numbers,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<Device>> {
    Device::open(cuda, index, &program(numbers), env)
}

/// Which of them a model needs shows when it is there.
fn program(numbers: Numbers) -> Program {
    Program {
        name: "PiNet",
        numbers,
        structures: layout::declarations(),
        files: &SOURCES,
        options: vec![format!("-DMOST_OUTPUTS={MOST_OUTPUTS}")],
        signatures: signatures(),
        always: |_| true,
        overlaps: false,
        clusters: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::program::tests::{all_are_declared, compile_all};

    #[test]
    fn every_kernel_of_pinet_compiles_for_both_kinds_of_number() {
        compile_all(&[Numbers::F64, Numbers::F32].map(program));
    }

    #[test]
    fn the_host_knows_what_every_kernel_of_pinet_takes() {
        all_are_declared(&program(Numbers::F64));
    }
}
