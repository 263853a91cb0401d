//! The kernels of Deep Potential: their files, and what each of them takes.

use super::layout::{
    self, Batch, Columns, Direct, Embedding, Frame, Kalman, Listed, MAX_LAYERS, MAX_TASKS, Muon, Observing,
    Status, Turn, View,
};
use super::products;
use crate::Result;
use crate::gpu::launch::kernels;
use crate::gpu::{Cuda, Device, Numbers, Program, Ptr};
use crate::model::dp::options::Form;
use std::sync::Arc;

/// In the order in which they need each other.
pub(super) const SOURCES: [&str; 14] = [
    include_str!("kernels/ptx.cu"),
    include_str!("kernels/common.cu"),
    include_str!("kernels/product.cu"),
    include_str!("kernels/embedding.cu"),
    include_str!("kernels/pairs.cu"),
    include_str!("kernels/descriptor.cu"),
    include_str!("kernels/direct.cu"),
    include_str!("kernels/loss.cu"),
    include_str!("kernels/blocks.cu"),
    include_str!("kernels/update.cu"),
    include_str!("kernels/muon.cu"),
    include_str!("kernels/kalman.cu"),
    include_str!("kernels/evaluate.cu"),
    include_str!("kernels/fold.cu"),
];

// Those of product.cu are in products.rs.
kernels! {
    EMBED_FORWARD = "embed_forward" (Embedding, i32);
    EMBED_TRANSFORM = "embed_transform" (Embedding);
    EMBED_BACKWARD = "embed_backward" (Embedding, i32);
    EMBED_WEIGHTS = "embed_weights" (
        Embedding, Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<u32>, Ptr<Turn>, Ptr<Status>
    );
    CUT_PAIRS = "cut_pairs" (Batch, Ptr<Frame>, Ptr<u32>);
    FEATURES = "features" (Batch, Ptr<Frame>, Ptr<u32>, i32);
    FEATURES_TANGENT = "features_tangent" (Batch, i32);
    PAIR_FORCES = "pair_forces" (Batch, i32);
    PAIR_FORCES_FAR = "pair_forces_far" (Batch, i32);
    BEGIN = "begin" (Batch, Ptr<u8>, u32, u32, Ptr<u32>, u32, i32);
    DESCRIPTOR = "descriptor" (Batch, i32);
    DESCRIPTOR_TANGENT = "descriptor_tangent" (Batch, i32);
    DESCRIPTOR_ADJOINT = "descriptor_adjoint" (Batch, i32, i32);
    DIRECT_PLAN = "direct_plan" (Batch, Direct);
    DIRECT_PLACES = "direct_places" (Batch, Direct);
    DIRECT_NETS = "direct_nets" (Batch, Embedding, Direct);
    DIRECT_NETS_BESIDE = "direct_nets_beside" (Batch, Embedding, Direct);
    DIRECT_ADJOINT = "direct_adjoint" (Batch, Embedding, Direct);
    DIRECT_ADJOINT_BESIDE = "direct_adjoint_beside" (Batch, Embedding, Direct);
    DIRECT_DESCRIBE = "direct_describe" (Batch, Embedding, Direct);
    DIRECT_TANGENT = "direct_tangent" (Batch, Embedding, Direct);
    DIRECT_FORCES = "direct_forces" (Batch, Embedding, Direct);
    DIRECT_WEIGHTS = "direct_weights" (
        Batch, Embedding, Direct, i32, Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<u32>, Ptr<Turn>, Ptr<Status>
    );
    COLLECT = "collect" (Batch);
    ENERGY_SEEDS = "energy_seeds" (Batch);
    SUM_FRAMES = "sum_frames" (Batch);
    SUM_BATCH = "sum_batch" (Batch, Embedding);
    COLLECT_NEIGHBORS = "collect_neighbors" (Batch);
    COLLECT_CENTERS = "collect_centers" (Batch);
    SUM_CENTERS = "sum_centers" (Batch);
    SEED_FORCES = "seed_forces" (Batch);
    SEED_FRAMES = "seed_frames" (Batch);
    SEED_CENTERS = "seed_centers" (Batch);
    SELECT_NEIGHBORS = "select_neighbors" (Batch, Listed);
    FEATURES_LISTED = "features_listed" (Batch, Listed);
    DESCRIPTOR_LISTED = "descriptor_listed" (Batch, Listed, i32);
    ADJOINT_LISTED = "adjoint_listed" (Batch, Listed, i32);
    FORCES_LISTED = "forces_listed" (Batch, Listed);
    FORCES_LISTED_FAR = "forces_listed_far" (Batch, Listed);
    END_EVALUATION = "end_evaluation" (Listed, Ptr<f64>, Ptr<f64>, Ptr<f64>);
    SUM_COLUMNS = "sum_columns" (Ptr<Columns>, i32);
    REDUCE = "reduce" (Ptr<f64>, Ptr<View>, i32, u64, Ptr<Turn>);
    GRADIENT_NORM = "gradient_norm" (Ptr<f64>, Ptr<f64>, u64, Ptr<Turn>);
    ADAM = "adam" (
        Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<f64>, Ptr<f64>, i32, Ptr<View>, i32, u64, Ptr<Turn>, Ptr<Status>, i32, i32, i32
    );
    FOLLOW = "follow" (Ptr<f64>, Ptr<f64>, u64, f64);
    MUON_PREPARE = "muon_prepare" (Muon, i32);
    MUON_MEASURE = "muon_measure" (Muon);
    MUON_POLYNOMIAL = "muon_polynomial" (Muon, i32, i32);
    MUON_EVEN = "muon_even" (Muon);
    MUON_EVEN_LENGTH = "muon_even_length" (Muon);
    MUON_PAUSE = "muon_pause" (Ptr<Status>);
    MUON_MOVE = "muon_move" (Muon, i32);
    KALMAN_BEGIN = "kalman_begin" (Kalman);
    KALMAN_GATHER = "kalman_gather" (Kalman, f64);
    KALMAN_PASS = "kalman_pass" (Kalman, f64, f64, i32, i32);
    KALMAN_GAIN = "kalman_gain" (Kalman);
    KALMAN_SUMS = "kalman_sums" (Kalman);
    KALMAN_MOVE = "kalman_move" (Kalman, f64);
    KALMAN_OBSERVE = "kalman_observe" (Batch, Ptr<Observing>, Ptr<u32>, Ptr<f64>);
}

/// Kernels that training does not need.
pub const EVALUATION: [&str; 6] = [
    "select_neighbors",
    "features_listed",
    "descriptor_listed",
    "adjoint_listed",
    "forces_listed",
    "end_evaluation",
];

/// Kernels that only frames need which several ranks share.
const OF_BLOCKS: [&str; 6] = [
    COLLECT_NEIGHBORS.name(),
    COLLECT_CENTERS.name(),
    SUM_CENTERS.name(),
    SEED_FORCES.name(),
    SEED_FRAMES.name(),
    SEED_CENTERS.name(),
];

/// Opens a GPU with the kernels of Deep Potential for descriptors of a form.
pub fn open(
    cuda: &Arc<Cuda>,
    index: usize,
    numbers: Numbers,
    form: Form,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<Device>> {
    Device::open(cuda, index, &program(numbers, form, env), env)
}

/// Which products are needed shows with the first batch; the embedding nets themselves are evaluated for few models.
pub(super) fn program(numbers: Numbers, form: Form, env: &dyn Fn(&str) -> Option<String>) -> Program {
    let is_on = |name: &str| env(name).is_none_or(|value| value != "0");
    let mut options = vec![
        format!("-DPRODUCTS={}", products::bits(numbers)),
        format!("-DMAX_LAYERS={MAX_LAYERS}"),
        format!("-DMAX_TASKS={MAX_TASKS}"),
        format!("-DCOMPONENTS={}", form.components()),
        format!("-DCOMPONENT_BITS={}", form.components().ilog2()),
    ];
    let mut files = &SOURCES[..];
    if let Form::Distances { scale } = form {
        options.push(format!("-DMAP_SCALE={scale:?}"));
        // There is no square that could be folded.
        files = &SOURCES[..SOURCES.len() - 1];
    }
    options.extend(products::defines(numbers));
    Program {
        name: "Deep Potential",
        numbers,
        structures: layout::declarations(),
        files,
        options,
        signatures: signatures().into_iter().chain(products::signatures()).collect(),
        always: |kernel| {
            !["product_", "direct_", "muon_", "kalman_"].iter().any(|kind| kernel.starts_with(kind))
                && ![PAIR_FORCES_FAR.name(), FORCES_LISTED_FAR.name(), FOLLOW.name()].contains(&kernel)
                && !EVALUATION.contains(&kernel)
                && !OF_BLOCKS.contains(&kernel)
        },
        overlaps: is_on("PHALANX_OVERLAP"),
        clusters: is_on("PHALANX_TEAMS"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::program::tests::{all_are_declared, compile_all};

    const DIRECTIONS: Form = Form::Directions { axis: 4 };

    #[test]
    fn every_kernel_compiles_for_every_kind_of_number() {
        let kinds = [Numbers::F64, Numbers::F32, Numbers::Tf32, Numbers::Bf16];
        let mut programs = Vec::from(kinds.map(|numbers| program(numbers, DIRECTIONS, &|_| None)));
        // What the form decides is the same for every kind of number.
        programs.push(program(Numbers::F64, Form::Distances { scale: 0.2 }, &|_| None));
        compile_all(&programs);
    }

    #[test]
    fn the_host_knows_what_every_kernel_takes() {
        all_are_declared(&program(Numbers::F64, DIRECTIONS, &|_| None));
    }

    #[test]
    fn every_kernel_waits_for_the_one_before_it() {
        // Kernels are brought in while the one before them runs: one that does not wait reads what is not there yet.
        let source = SOURCES.concat();
        let kernels: Vec<&str> = source.split("__global__").skip(1).collect();
        for kernel in &kernels {
            let name: String = kernel.chars().take(120).collect();
            let body = kernel.split("\n}\n").next().unwrap_or_default();
            let waits = [
                "after_previous();",
                "::run(p);",
                "_of_row<",
                "_of_rows<",
                "_of_pairs<",
                "_of_tiles<",
                " describe<",
            ];
            assert!(waits.iter().any(|call| body.contains(call)), "{name}");
        }
        let run = source.split("void run(const P& p) {").nth(1).expect("products have one body");
        let before_a = run.split("load_a.start(").next().unwrap_or_default();
        assert!(before_a.contains("after_previous();"), "products wait before they read what a kernel made");
        let bodies = [
            "descriptor_of_row",
            "tangent_of_row",
            "adjoint_of_row",
            "folded_of_row",
            "unfolded_of_row",
            "features_of_row",
            "forces_of_rows",
            "nets_of_tiles",
            "adjoint_of_tiles",
            "describe",
        ];
        for shared in bodies {
            let body = source
                .split(&format!("void {shared}("))
                .nth(1)
                .expect("kernels of rows and tiles have one body");
            let body = body.split("\n}\n").next().unwrap_or_default();
            assert!(body.contains("after_previous();"), "{shared}");
        }
        assert!(kernels.len() > 15, "{} kernels", kernels.len());
    }
}
