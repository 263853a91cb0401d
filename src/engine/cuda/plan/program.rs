//! The kernels of the plan. Those of the loss and of the update are the ones of the fused engine.

use super::layout::{self, Chunk, Entry, Op, Outputs, Part};
use crate::Result;
use crate::engine::cuda::layout::{Batch, Turn};
use crate::engine::cuda::program as fused;
use crate::gpu::launch::kernels;
use crate::gpu::{Cuda, Device, Numbers, Program, Ptr};
use crate::model::dp::options::Form;
use std::sync::Arc;

const OWN: [&str; 7] = [
    include_str!("kernels/numbers.cu"),
    include_str!("kernels/layers.cu"),
    include_str!("kernels/surroundings.cu"),
    include_str!("kernels/attend.cu"),
    include_str!("kernels/outputs.cu"),
    include_str!("kernels/blend.cu"),
    include_str!("kernels/evaluate.cu"),
];

/// In the order in which they need each other.
const SOURCES: [&str; fused::SOURCES.len() + OWN.len()] = {
    let mut all = [""; fused::SOURCES.len() + OWN.len()];
    let mut k = 0;
    while k < all.len() {
        all[k] = if k < fused::SOURCES.len() { fused::SOURCES[k] } else { OWN[k - fused::SOURCES.len()] };
        k += 1;
    }
    all
};

kernels! {
    DENSE = "plan_dense" (Op, i32);
    DENSE_BACK = "plan_dense_back" (Op, i32);
    WEIGHTS = "plan_weights" (Op, i32);
    NARROW_DENSE = "plan_narrow" (Op, i32);
    NARROW_BACK = "plan_narrow_back" (Op, i32);
    NARROW_WEIGHTS = "plan_narrow_weights" (Op, i32);
    REDUCE = "plan_reduce" (Op, Ptr<f64>, i32);
    ACTIVATE = "plan_activate" (Op, i32);
    ACTIVATE_BACK = "plan_activate_back" (Op, i32);
    VECTORS = "plan_vectors" (Op, i32, i32);
    NORMALIZE = "plan_normalize" (Op, i32);
    NORMALIZE_BACK = "plan_normalize_back" (Op, i32);
    UNIT = "plan_unit" (Op, i32);
    UNIT_BACK = "plan_unit_back" (Op, i32);
    GATHER = "plan_gather" (Op, i32);
    COPY_BACK = "plan_copy_back" (Op, i32);
    GATHER_BACK = "plan_gather_back" (Op, i32);
    GATHER_REDUCE = "plan_gather_reduce" (Op, i32);
    COMBINE = "plan_combine" (Op, i32);
    COMBINE_BACK = "plan_combine_back" (Op, i32);
    TAKE_ATOMS = "plan_take_atoms" (Chunk);
    TAKE_PAIRS = "plan_take_pairs" (Chunk, Part);
    TAKE_COUPLES = "plan_take_couples" (Chunk, Part);
    ROWS = "plan_rows" (Batch, Chunk, Part, Op, i32);
    ROWS_BACK = "plan_rows_back" (Batch, Part, Op);
    OUTER = "plan_outer" (Chunk, Part, Op, i32);
    OUTER_BACK = "plan_outer_back" (Part, Op, i32);
    STILL_BACK = "plan_still_back" (Chunk, Part, Op, i32);
    SQUARE = "plan_square" (Op, i32);
    SQUARE_BACK = "plan_square_back" (Op, i32);
    EXTRA = "plan_extra" (Chunk, Op, i32);
    COUPLES = "plan_couples" (Part, Op, i32);
    COUPLES_BACK = "plan_couples_back" (Part, Op, i32);
    COUPLE_SUM = "plan_couple_sum" (Chunk, Part, Op, i32);
    COUPLE_SUM_BACK = "plan_couple_sum_back" (Part, Op, i32);
    BEGIN = "plan_begin" (Ptr<f64>, u64, Ptr<Turn>);
    ENERGIES = "plan_energies" (Batch, Chunk, Op);
    SEEDS = "plan_seeds" (Batch, Chunk, Op, i32);
    COLLECT = "plan_collect" (Batch, Ptr<Entry>, i32, i32);
    ATOM_VIRIALS = "plan_atom_virials" (Batch, Ptr<Entry>, i32, Ptr<f64>);
    SEGMENTS = "plan_segments" (Chunk, Part, Op, i32);
    SOFTMAX = "plan_softmax" (Part, Op, i32);
    SOFTMAX_BACK = "plan_softmax_back" (Part, Op, i32);
    SHARED_BACK = "plan_shared_back" (Part, Op, i32);
    OUTPUTS = "plan_outputs" (Batch, Chunk, Outputs, Op);
    FRAME_OUTPUTS = "plan_frame_outputs" (Batch, Ptr<Entry>, Outputs);
    BATCH_OUTPUTS = "plan_batch_outputs" (Batch, Outputs);
    OUTPUT_SEEDS = "plan_output_seeds" (Chunk, Outputs, Op);
    TURNED = "plan_turned" (Op);
    TURNED_BACK = "plan_turned_back" (Op);
    BLEND = "plan_blend" (Batch, Chunk, i32);
    BLEND_SEEDS = "plan_blend_seeds" (Batch, Chunk, Op, i32, i32);
}

/// Opens a GPU with the kernels of the plan.
pub fn open(
    cuda: &Arc<Cuda>,
    index: usize,
    numbers: Numbers,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<Device>> {
    Device::open(cuda, index, &program(numbers, env), env)
}

/// Which of them a model needs shows when it is there.
fn program(numbers: Numbers, env: &dyn Fn(&str) -> Option<String>) -> Program {
    let base = fused::program(numbers, Form::Directions { axis: 4 }, env);
    Program {
        name: "Deep Potential by operations",
        structures: base.structures + &layout::declarations(),
        files: &SOURCES,
        signatures: base.signatures.into_iter().chain(signatures()).collect(),
        always: |_| false,
        overlaps: false,
        clusters: false,
        ..base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::program::tests::{all_are_declared, compile_all};

    #[test]
    fn every_kernel_of_the_plan_compiles_for_both_kinds_of_number() {
        compile_all(&[Numbers::F64, Numbers::F32].map(|numbers| program(numbers, &|_| None)));
    }

    #[test]
    fn the_host_knows_what_every_kernel_of_the_plan_takes() {
        all_are_declared(&program(Numbers::F64, &|_| None));
    }
}
