//! The CUDA engine against the reference; skipped by name where there is no GPU.

use super::rows::Room;
use super::*;
use crate::data::Frame;
use crate::engine::blocks::InBlocks;
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{
    compare_results, distances, frame, model, model_with, options, run, steep_params,
};
use crate::gpu::{Buffer, Cuda, Kernel, Launch, Numbers, Program};
use crate::model::activation::Activation;
use crate::model::dp::options::{DescriptorKind, DescriptorOptions, Form, SeE2A, Sel};

fn device(numbers: Numbers) -> Option<Arc<Device>> {
    device_for(numbers, options().form())
}

fn device_for(numbers: Numbers, form: Form) -> Option<Arc<Device>> {
    let env = |name: &str| std::env::var(name).ok();
    match Cuda::find(&env) {
        Ok(cuda) => Some(program::open(&cuda, 0, numbers, form, &env).unwrap()),
        Err(e) => {
            crate::skip::skip(e.message());
            None
        }
    }
}

/// How an engine is made.
type Make = fn(&Arc<Device>, &Arc<Dp>) -> Result<CudaEngine>;

fn series(device: &Arc<Device>, model: &Arc<Dp>) -> Result<CudaEngine> {
    CudaEngine::new(device, model, 0.3)
}

/// Batches of an engine share what is recorded.
fn sharing(engine: Result<CudaEngine>) -> Result<CudaEngine> {
    let mut engine = engine?;
    engine.core.share_shapes(Room {
        rows: 64,
        inputs: 128,
        places: 64,
        listed: 64,
        frames: 4,
        is_shared: false,
    });
    Ok(engine)
}

fn shared_series(device: &Arc<Device>, model: &Arc<Dp>) -> Result<CudaEngine> {
    sharing(series(device, model))
}

fn shared_direct(device: &Arc<Device>, model: &Arc<Dp>) -> Result<CudaEngine> {
    sharing(CudaEngine::direct(device, model))
}

/// A frame whose atoms, but the virtual one, have these types in turn.
fn frame_of(n: usize, salt: u64, types: &[i32]) -> Frame {
    let mut frame = frame(n, salt);
    let turned = |i: usize, old: i32| if old < 0 { old } else { types[i % types.len()] };
    frame.types = frame.types.iter().enumerate().map(|(i, &old)| turned(i, old)).collect();
    frame
}

fn compare(numbers: Numbers, model: Arc<Dp>, tolerance: f64) {
    compare_made(numbers, model, tolerance, series);
}

fn compare_made(numbers: Numbers, model: Arc<Dp>, tolerance: f64, make: Make) {
    let Some(device) = device_for(numbers, model.descriptor().form()) else { return };
    let mut engine = make(&device, &model).unwrap();
    // Another batch first: what it leaves behind must not matter.
    let params = model.random_params(9);
    run(&mut engine, &params, &[frame(23, 1)]);
    compare_frames(&mut engine, &model, &[frame(23, 1), frame(9, 4), frame(17, 8)], tolerance);
}

fn compare_frames(engine: &mut CudaEngine, model: &Arc<Dp>, frames: &[Frame], tolerance: f64) {
    compare_params(engine, model, &model.random_params(9), frames, tolerance);
}

fn compare_params(
    engine: &mut CudaEngine,
    model: &Arc<Dp>,
    params: &[f64],
    frames: &[Frame],
    tolerance: f64,
) {
    let want = run(&mut ReferenceEngine::new(model.clone()), params, frames);
    let got = run(engine, params, frames);
    let again = run(engine, params, frames);
    assert_eq!(got, again, "two runs give the same bits");
    let numbers = engine.core.device.numbers;
    compare_results(&got, &want, tolerance, |name, worst| println!("{numbers:?} {name}: {worst:.1e}"));
}

#[test]
fn float64_agrees_with_the_reference() {
    compare(Numbers::F64, model(options()), 1e-9);
}

#[test]
fn steep_nets_on_panels_agree_with_the_reference() {
    let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
    for type_one_side in [false, true] {
        let model = model(DescriptorOptions { type_one_side, ..options() });
        for (numbers, tolerance) in [(Numbers::F64, 1e-9), (Numbers::F32, 2e-3)] {
            let Some(device) = device(numbers) else { return };
            let mut engine = series(&device, &model).unwrap();
            compare_params(&mut engine, &model, &steep_params(&model), &frames, tolerance);
            let plan = engine.plan().expect("smooth nets have series");
            assert!(plan.panels().len() > 2 * model.n_types(), "{plan}");
        }
    }
}

#[test]
fn float32_agrees_with_the_reference_to_its_precision() {
    compare(Numbers::F32, model(options()), 3e-4);
}

#[test]
fn products_in_tf32_agree_with_the_reference_to_their_precision() {
    compare(Numbers::Tf32, model(options()), 3e-2);
}

#[test]
fn products_in_bf16_agree_with_the_reference_to_their_precision() {
    compare(Numbers::Bf16, model(options()), 5e-2);
}

#[test]
fn one_sided_nets_and_excluded_pairs_agree_with_the_reference() {
    let descriptor = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare(Numbers::F64, model(descriptor), 1e-9);
}

#[test]
fn distances_alone_agree_with_the_reference() {
    for descriptor in [distances(), DescriptorOptions { type_one_side: false, ..distances() }] {
        compare(Numbers::F64, model(descriptor.clone()), 1e-9);
        compare_made(Numbers::F64, model(descriptor.clone()), 1e-11, CudaEngine::direct);
        let with_inputs = model_with(descriptor, |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
        compare_made(Numbers::F32, with_inputs.clone(), 3e-4, shared_series);
        compare_made(Numbers::F32, with_inputs, 3e-4, shared_direct);
    }
}

#[test]
fn other_activations_agree_with_the_reference() {
    for activation in [Activation::Gelu, Activation::Softplus, Activation::Silu] {
        compare(Numbers::F64, model(DescriptorOptions { activation, ..options() }), 1e-9);
    }
}

#[test]
fn layers_with_many_inputs_agree_with_the_reference() {
    // Blocks make the first layer in teams; the last piece of its inputs is a short one.
    let neuron = vec![16, 75];
    let descriptor = DescriptorOptions {
        neuron,
        kind: DescriptorKind::SeE2A(SeE2A { axis_neuron: 8, linear_end: false }),
        type_one_side: true,
        ..options()
    };
    compare(Numbers::F64, model(descriptor.clone()), 1e-9);
    let wide = model_with(descriptor, |fitting| fitting.neuron = vec![100, 50]);
    compare(Numbers::F64, wide, 1e-9);
}

#[test]
fn energies_of_isolated_atoms_are_taken_off_as_the_reference_does() {
    let with_inputs = model_with(options(), |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare(Numbers::F64, with_inputs, 1e-9);
}

#[test]
fn the_nets_themselves_agree_with_the_reference_in_every_kind_of_number() {
    for (numbers, tolerance) in [(Numbers::F64, 1e-11), (Numbers::F32, 3e-4), (Numbers::Tf32, 3e-2)] {
        compare_made(numbers, model(options()), tolerance, CudaEngine::direct);
    }
}

#[test]
fn one_sided_nets_themselves_with_excluded_pairs_and_isolated_atoms_agree_with_the_reference() {
    let descriptor = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare_made(Numbers::F64, model(descriptor.clone()), 1e-11, CudaEngine::direct);
    let with_inputs = model_with(descriptor, |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare_made(Numbers::F64, with_inputs, 1e-11, CudaEngine::direct);
}

#[test]
fn nets_of_every_width_agree_with_the_reference() {
    // Layers in shared memory and beside it, one to three of them, with and without shortcuts and idt; widths that fill no
    // eight; more neighbours than a block takes at once.
    let widths = [vec![25, 50, 100], vec![7], vec![5, 10], vec![2, 3, 17], vec![90, 180, 180]];
    for (k, neuron) in widths.into_iter().enumerate() {
        for numbers in [Numbers::F64, Numbers::F32] {
            let tolerance = if numbers == Numbers::F64 { 1e-11 } else { 3e-4 };
            let (sel, neuron, resnet_dt) = (Sel::Fixed(vec![70, 50]), neuron.clone(), k % 2 == 1);
            let descriptor = DescriptorOptions { neuron, sel, resnet_dt, ..options() };
            compare_made(numbers, model(descriptor), tolerance, CudaEngine::direct);
        }
    }
}

#[test]
fn a_pair_alone_and_no_pair_at_all_agree_with_the_reference() {
    for type_one_side in [false, true] {
        let model = model(DescriptorOptions { type_one_side, ..options() });
        let Some(device) = device(Numbers::F64) else { return };
        let mut engine = CudaEngine::direct(&device, &model).unwrap();
        let mut near = frame(4, 4);
        near.cell = Some([40.0, 0.0, 0.0, 0.0, 40.0, 0.0, 0.0, 0.0, 40.0]);
        near.coord = vec![0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 12.0, 0.0, 0.0, 25.0, 0.0, 0.0];
        let mut apart = near.clone();
        apart.coord[3] = 6.5;
        compare_frames(&mut engine, &model, &[near.clone()], 1e-11);
        compare_frames(&mut engine, &model, &[apart.clone()], 1e-11);
        compare_frames(&mut engine, &model, &[apart, near], 1e-11);
    }
}

#[test]
fn nets_that_no_series_describes_are_evaluated_themselves() {
    for activation in [Activation::Relu, Activation::Relu6] {
        let model = model(DescriptorOptions { activation, ..options() });
        compare(Numbers::F64, model.clone(), 1e-11);
        let Some(device) = device(Numbers::F64) else { return };
        let mut engine = series(&device, &model).unwrap();
        engine.adapt_to(&model.random_params(9)).unwrap();
        assert_eq!(engine.plan(), None);
    }
}

#[test]
fn a_frame_that_no_series_reaches_is_evaluated_by_the_nets_and_the_others_by_the_series() {
    let model = model(options());
    // Arguments of the nets that change fast with the distance: one of two atoms near each other is far from all others.
    let mut stats = model.stats.clone();
    stats.dstd.iter_mut().for_each(|row| row[0] = 1e-7);
    let sharp = Arc::new(Dp::new(model.options.clone(), stats));
    let Some(device) = device(Numbers::F64) else { return };
    let mut engine = CudaEngine::new(&device, &sharp, 3.9).unwrap();
    let mut apart = frame(4, 4);
    apart.coord = vec![0.0, 0.0, 0.0, 3.95, 0.0, 0.0, 20.0, 0.0, 0.0, 25.0, 0.0, 0.0];
    apart.cell = Some([40.0, 0.0, 0.0, 0.0, 40.0, 0.0, 0.0, 0.0, 40.0]);
    compare_frames(&mut engine, &sharp, &[apart.clone()], 1e-9);
    let plan = engine.plan().cloned();
    assert!(plan.is_some(), "a series describes distances near the cutoff");
    let mut near = apart.clone();
    near.coord[3] = 0.5;
    compare_frames(&mut engine, &sharp, &[apart.clone(), near], 1e-9);
    assert_eq!(engine.plan().cloned(), plan, "the series is as it was");
    compare_frames(&mut engine, &sharp, &[apart], 1e-9);
}

/// Batches of other compositions, one after the other in the same room: all types, some type absent, one atom, one row less
/// and one more than a tile has, frames of different size, virtual atoms.
fn compare_kinds(numbers: Numbers, model: Arc<Dp>, tolerance: f64, make: Make) {
    let Some(device) = device_for(numbers, model.descriptor().form()) else { return };
    let mut engine = make(&device, &model).unwrap();
    let batches = [
        vec![frame(13, 1), frame(9, 4), frame(17, 8)],
        vec![frame_of(33, 2, &[0])],
        vec![frame_of(12, 3, &[1]), frame_of(7, 5, &[0])],
        vec![frame_of(1, 6, &[1])],
        vec![frame_of(3, 6, &[0]), frame_of(1, 7, &[1]), frame(2, 9), frame_of(16, 3, &[1, 1, 0])],
        vec![frame(34, 5)],
    ];
    let mut shapes = Vec::new();
    for frames in &batches {
        compare_frames(&mut engine, &model, frames, tolerance);
        shapes.push(engine.core.shape(&engine.slots.clone()).unwrap().id);
    }
    let first = shapes[0];
    assert!(shapes.iter().all(|&id| id == first), "one shape serves them all: {shapes:?}");
}

#[test]
fn batches_of_every_composition_share_a_shape() {
    compare_kinds(Numbers::F64, model(options()), 1e-9, shared_series);
    compare_kinds(Numbers::F32, model(options()), 3e-4, shared_series);
}

#[test]
fn batches_share_a_shape_with_one_sided_nets_and_many_inputs() {
    let descriptor = DescriptorOptions {
        neuron: vec![16, 75],
        kind: DescriptorKind::SeE2A(SeE2A { axis_neuron: 8, linear_end: false }),
        type_one_side: true,
        ..options()
    };
    compare_kinds(Numbers::F64, model(descriptor), 1e-9, shared_series);
}

#[test]
fn batches_share_a_shape_where_energies_of_isolated_atoms_are_taken_off() {
    for atom_ener in [vec![None, Some(-3.0)], vec![Some(1.5), None]] {
        let model = model_with(options(), |fitting| fitting.atom_ener = atom_ener);
        let Some(device) = device(Numbers::F64) else { return };
        let mut engine = shared_series(&device, &model).unwrap();
        for frames in
            [vec![frame(23, 1), frame(9, 4)], vec![frame_of(12, 3, &[0])], vec![frame_of(40, 3, &[1, 0])]]
        {
            compare_frames(&mut engine, &model, &frames, 1e-9);
        }
    }
}

#[test]
fn batches_share_a_shape_where_the_nets_themselves_are_evaluated() {
    compare_kinds(Numbers::F64, model(options()), 1e-11, shared_direct);
    compare_kinds(
        Numbers::F64,
        model(DescriptorOptions { type_one_side: true, ..options() }),
        1e-11,
        shared_direct,
    );
}

/// Every block on an engine of its own; what they bring, added up.
fn compare_blocks(numbers: Numbers, model: Arc<Dp>, tolerance: f64, make: Make) {
    let Some(device) = device_for(numbers, model.descriptor().form()) else { return };
    for n in [2, 5] {
        let mut engine = InBlocks::new(n, || make(&device, &model)).unwrap();
        let params = model.random_params(9);
        // Five blocks of four atoms: some are empty.
        run(&mut engine, &params, &[frame(4, 1)]);
        let frames = [frame(23, 1), frame(4, 4), frame(17, 8)];
        let want = run(&mut ReferenceEngine::new(model.clone()), &params, &frames);
        let got = run(&mut engine, &params, &frames);
        compare_results(&got, &want, tolerance, |name, worst| {
            println!("{n} blocks, {numbers:?} {name}: {worst:.1e}")
        });
    }
}

#[test]
fn blocks_of_frames_add_up_to_the_whole() {
    compare_blocks(Numbers::F64, model(options()), 1e-9, series);
    let one_sided = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    let with_inputs = model_with(one_sided, |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare_blocks(Numbers::F32, with_inputs, 3e-4, series);
    compare_blocks(Numbers::F64, model(distances()), 1e-9, series);
}

#[test]
fn blocks_of_frames_add_up_where_the_nets_themselves_are_evaluated() {
    compare_blocks(Numbers::F64, model(options()), 1e-11, CudaEngine::direct);
}

#[test]
fn only_so_many_shapes_are_kept() {
    let model = model(options());
    let Some(device) = device(Numbers::F64) else { return };
    let mut engine = series(&device, &model).unwrap();
    let params = model.random_params(9);
    let want = run(&mut engine, &params, &[frame(5, 1)]);
    let first = engine.core.shape(&engine.slots.clone()).unwrap().id;
    for n in 6..40 {
        run(&mut engine, &params, &[frame(n, 1)]);
    }
    assert!(!engine.core.keeps(first));
    assert_eq!(run(&mut engine, &params, &[frame(5, 1)]), want);
}

/// Run alone, by name: afterwards no other test of the process can use the GPU.
#[test]
#[ignore = "takes the GPU away from its process"]
fn a_gpu_that_is_lost_says_so_in_every_call_and_how_to_go_on() {
    let env = |name: &str| std::env::var(name).ok();
    let Some(whole) = device(Numbers::F64) else { return };
    let fall: Kernel<()> = Kernel::named("fall");
    let program = Program {
        name: "a trap",
        numbers: Numbers::F64,
        structures: String::new(),
        files: &["extern \"C\" __global__ void fall() { __trap(); }"],
        options: Vec::new(),
        signatures: vec![fall.signature()],
        always: |_| true,
        overlaps: false,
        clusters: false,
    };
    let trap = Device::open(&Cuda::find(&env).unwrap(), 0, &program, &env).unwrap();
    let held = Buffer::of(&whole, &[1.0f64; 8], "a test").unwrap();
    whole.synchronize().unwrap();
    // SAFETY: it touches no memory.
    unsafe { fall.launch(&trap, trap.stream(), Launch::new(1, 1), ()).unwrap() };
    let said = [
        trap.synchronize(),
        whole.synchronize(),
        held.read(0, &mut [0.0f64; 8]),
        Buffer::<u8>::zeroed(&whole, 64, "a test").map(|_| ()),
        CudaEngine::new(&whole, &model(options()), 0.3).map(|_| ()),
    ];
    for (k, outcome) in said.into_iter().enumerate() {
        let error = outcome.expect_err("the context is gone");
        println!("{error}");
        assert!(
            error.advice().is_some_and(|a| a.contains("restart from the last checkpoint")),
            "{k}: {error}"
        );
    }
}
