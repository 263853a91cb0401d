//! The CPU engine against the reference.

use super::*;
use crate::data::Frame;
use crate::engine::Piece;
use crate::engine::blocks::InBlocks;
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{
    angles, attention, blended, compare_results, distances, frame, hybrid, model, model_with, options,
    other_outputs, run, seeds, steep_params, turned_outputs, with_directions,
};
use crate::model::activation::Activation;
use crate::model::dp::options::{
    DescriptorKind, DescriptorOptions, Descriptors, Embedding, FittingOptions, ModelOptions,
};
use crate::optim::{Adam, AdamOptions};

fn compare<T: Real>(descriptor: impl Into<Descriptors>, mode: EmbeddingMode, threads: usize, tolerance: f64) {
    compare_models::<T>(model(descriptor), mode, threads, tolerance);
}

fn compare_models<T: Real>(model: Arc<Dp>, mode: EmbeddingMode, threads: usize, tolerance: f64) {
    let params = model.random_params(9);
    compare_params::<T>(model, &params, mode, threads, tolerance);
}

fn compare_params<T: Real>(
    model: Arc<Dp>,
    params: &[f64],
    mode: EmbeddingMode,
    threads: usize,
    tolerance: f64,
) {
    let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
    let want = run(&mut ReferenceEngine::new(model.clone()), params, &frames);
    let got = run(&mut CpuEngine::<T>::new(model, threads, mode).unwrap(), params, &frames);
    compare_results(&got, &want, tolerance, |_, _| {});
}

/// The sum over blocks is the whole, for every number of them, also where some have no atom.
fn compare_blocks<T: Real>(descriptor: impl Into<Descriptors>, mode: EmbeddingMode, tolerance: f64) {
    compare_blocks_of::<T>(model(descriptor), mode, tolerance);
}

fn compare_blocks_of<T: Real>(model: Arc<Dp>, mode: EmbeddingMode, tolerance: f64) {
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
    let want = run(&mut ReferenceEngine::new(model.clone()), &params, &frames);
    for n in [1, 2, 3, 4, 8, 11] {
        let mut engine = InBlocks::new(n, || CpuEngine::<T>::new(model.clone(), 1, mode)).unwrap();
        let got = run(&mut engine, &params, &frames);
        compare_results(&got, &want, tolerance, |_, _| {});
    }
    let mut reference = InBlocks::new(3, || Ok(ReferenceEngine::new(model.clone()))).unwrap();
    compare_results(&run(&mut reference, &params, &frames), &want, 1e-12, |_, _| {});
}

#[test]
fn blocks_of_frames_add_up_whatever_the_model_predicts() {
    for kind in other_outputs().into_iter().chain(turned_outputs()) {
        let model = model_with(options(), |fitting| fitting.kind = kind.clone());
        compare_blocks_of::<f64>(model.clone(), SERIES, 1e-9);
        compare_blocks_of::<f32>(model, EmbeddingMode::Direct, 3e-4);
    }
    for kind in turned_outputs() {
        let [_, both, _] = with_directions();
        compare_blocks_of::<f64>(model_with(both, |fitting| fitting.kind = kind.clone()), SERIES, 1e-9);
    }
}

#[test]
fn blocks_of_frames_add_up_to_the_whole() {
    compare_blocks::<f64>(options(), SERIES, 1e-9);
    compare_blocks::<f64>(options(), EmbeddingMode::Direct, 1e-11);
    compare_blocks::<f32>(options(), SERIES, 3e-4);
    compare_blocks::<f64>(hybrid(), SERIES, 1e-9);
    compare_blocks::<f64>(distances(), SERIES, 1e-9);
    let excluding = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare_blocks::<f64>(excluding, SERIES, 1e-9);
}

const SERIES: EmbeddingMode = EmbeddingMode::Chebyshev { min_distance: 0.3 };

#[test]
fn the_series_in_float64_agrees_with_the_reference() {
    compare::<f64>(options(), SERIES, 2, 1e-9);
}

#[test]
fn descriptors_one_after_another_agree_with_the_reference() {
    compare::<f64>(hybrid(), SERIES, 2, 1e-9);
    compare::<f64>(hybrid(), EmbeddingMode::Direct, 2, 1e-9);
    compare::<f32>(hybrid(), SERIES, 2, 2e-3);
    let mut one_direct = hybrid();
    one_direct.list[1].embedding = Embedding::Direct;
    compare::<f64>(one_direct, SERIES, 2, 1e-9);
    // No fold where the first has no square.
    let mut turned = hybrid();
    turned.list.rotate_left(1);
    compare::<f64>(turned, SERIES, 2, 1e-9);
    let atom_ener = |fitting: &mut FittingOptions| fitting.atom_ener = vec![Some(-3.0), None];
    compare_models::<f64>(model_with(hybrid(), atom_ener), SERIES, 2, 1e-9);
}

#[test]
fn steep_nets_on_panels_agree_with_the_reference_for_every_number_of_threads() {
    for type_one_side in [false, true] {
        let model = model(DescriptorOptions { type_one_side, ..options() });
        let params = steep_params(&model);
        compare_params::<f64>(model.clone(), &params, SERIES, 2, 1e-9);
        compare_params::<f32>(model.clone(), &params, SERIES, 2, 2e-3);
        let frames = [frame(23, 1), frame(17, 8)];
        let mut results = Vec::new();
        for threads in [1, 3] {
            let mut engine = CpuEngine::<f64>::new(model.clone(), threads, SERIES).unwrap();
            results.push(run(&mut engine, &params, &frames));
            let plan = engine.plan().expect("smooth nets have series");
            assert!(plan.panels().len() > 2 * model.n_types(), "{plan}");
        }
        assert!(results[0] == results[1], "the same bits");
    }
}

#[test]
fn the_net_itself_in_float64_agrees_with_the_reference() {
    compare::<f64>(options(), EmbeddingMode::Direct, 2, 1e-12);
}

#[test]
fn frames_below_the_shortest_distance_take_the_direct_path() {
    compare::<f64>(options(), EmbeddingMode::Chebyshev { min_distance: 2.5 }, 1, 1e-11);
}

#[test]
fn float32_agrees_with_the_reference_to_its_precision() {
    compare::<f32>(options(), SERIES, 2, 3e-4);
}

#[test]
fn one_sided_nets_and_excluded_pairs_agree_with_the_reference() {
    let descriptor = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
    compare::<f64>(descriptor, EmbeddingMode::Direct, 2, 1e-12);
}

#[test]
fn distances_alone_agree_with_the_reference() {
    for descriptor in [distances(), DescriptorOptions { type_one_side: false, ..distances() }] {
        compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
        compare::<f32>(descriptor.clone(), SERIES, 2, 3e-4);
        compare::<f64>(descriptor.clone(), EmbeddingMode::Direct, 2, 1e-12);
        let model = model(descriptor);
        let params = steep_params(&model);
        compare_params::<f64>(model, &params, SERIES, 2, 1e-9);
    }
}

#[test]
fn other_outputs_agree_with_the_reference_for_every_number_of_threads() {
    let descriptors: [Descriptors; 3] = [options().into(), distances().into(), hybrid()];
    let all = descriptors.iter().flat_map(|d| other_outputs().into_iter().map(move |kind| (d, kind)));
    let with_directions = with_directions();
    let turned = with_directions.iter().flat_map(|d| turned_outputs().into_iter().map(move |kind| (d, kind)));
    for (descriptor, kind) in all.chain(turned) {
        let model = |activation| {
            let change = |fitting: &mut FittingOptions| {
                (fitting.kind, fitting.activation) = (kind.clone(), activation)
            };
            model_with(descriptor.clone(), change)
        };
        compare_models::<f64>(model(Activation::Tanh), SERIES, 2, 1e-9);
        compare_models::<f64>(model(Activation::Gelu), EmbeddingMode::Direct, 1, 1e-11);
        compare_models::<f32>(model(Activation::Tanh), SERIES, 2, 2e-3);
        let (model, frames) = (model(Activation::Tanh), [frame(23, 1), frame(17, 8)]);
        let params = model.random_params(9);
        let of = |threads| {
            run(&mut CpuEngine::<f64>::new(model.clone(), threads, SERIES).unwrap(), &params, &frames)
        };
        assert!(of(1) == of(3), "the same bits");
    }
}

/// Force and virial of each component of what a frame has, from slopes of the reference.
fn slopes(model: &Arc<Dp>, params: &[f64], frame: &Frame) -> Vec<(Vec<f64>, [f64; 9])> {
    let mut reference = ReferenceEngine::new(model.clone());
    let prepare = reference.preparer();
    let mut output = |change: &dyn Fn(&mut Frame)| {
        let mut frame = frame.clone();
        change(&mut frame);
        let (prepared, mut out) = (prepare(&frame).unwrap(), Prediction::default());
        reference.evaluate(&mut out, params, &[&prepared]);
        out.output
    };
    let h = 1e-5;
    let mut slope = |change: &dyn Fn(&mut Frame, f64)| -> Vec<f64> {
        let (high, low) = (output(&|frame| change(frame, h)), output(&|frame| change(frame, -h)));
        high.iter().zip(low).map(|(high, low)| (high - low) / (2.0 * h)).collect()
    };
    let by_coord: Vec<_> = (0..frame.coord.len()).map(|k| slope(&|frame, h| frame.coord[k] += h)).collect();
    let strain = |k: usize, l: usize| {
        move |frame: &mut Frame, h: f64| {
            let cell = frame.cell.as_mut().unwrap();
            for row in frame.coord.chunks_exact_mut(3).chain(cell.chunks_exact_mut(3)) {
                row[l] += h * row[k];
            }
        }
    };
    let by_strain: Vec<_> = (0..9).map(|n| slope(&strain(n / 3, n % 3))).collect();
    let of_component = |c: usize| {
        let force = by_coord.iter().map(|slopes| -slopes[c]).collect();
        // What a pair brings is -dE/dd (x) d.
        (force, std::array::from_fn(|n| -by_strain[n % 3 * 3 + n / 3][c]))
    };
    (0..model.output.width).map(of_component).collect()
}

#[test]
fn derivatives_of_other_outputs_are_the_slopes_of_the_reference() {
    let attention = attention().into_iter().map(Descriptors::from);
    for descriptor in attention.chain([options().into()]) {
        for kind in turned_outputs().into_iter().chain(other_outputs()).step_by(2) {
            let model = model_with(descriptor.clone(), |fitting| fitting.kind = kind.clone());
            let (params, frame) = (model.random_params(9), frame(11, 1));
            let want = slopes(&model, &params, &frame);
            let modes = [(SERIES, 2), (EmbeddingMode::Direct, 1)];
            for (mode, threads) in modes {
                let mut engine = CpuEngine::<f64>::new(model.clone(), threads, mode).unwrap();
                let (prepared, mut out) = (engine.preparer()(&frame).unwrap(), Prediction::default());
                engine.evaluate(&mut out, &params, &[&prepared]);
                for (c, (force, virial)) in want.iter().enumerate() {
                    let (mut f, mut v, mut of_atoms) = (vec![0.0; 33], [0.0; 9], vec![0.0; 99]);
                    engine.component_add((&mut f, &mut v, &mut of_atoms), &params, &prepared, c);
                    let sums: Vec<f64> =
                        (0..9).map(|k| of_atoms.iter().skip(k).step_by(9).sum::<f64>()).collect();
                    let got = f.iter().copied().chain(v).chain(sums);
                    let want = force.iter().chain(virial).chain(virial);
                    for (k, (got, want)) in got.zip(want).enumerate() {
                        let close = (got - want).abs() < 2e-6 * (1.0 + want.abs());
                        assert!(close, "{kind:?}, component {c}, number {k}: {got} instead of {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn neighbours_two_by_two_agree_with_the_reference() {
    for descriptor in [angles(), DescriptorOptions { exclude_types: vec![(0, 1)], ..angles() }] {
        compare::<f64>(descriptor.clone(), EmbeddingMode::Direct, 2, 1e-11);
        compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
        compare::<f32>(descriptor, SERIES, 2, 3e-4);
    }
    // Kinks: no series.
    compare::<f64>(DescriptorOptions { activation: Activation::Relu, ..angles() }, SERIES, 2, 1e-9);
    compare::<f64>(Descriptors { list: vec![angles(), options()], is_hybrid: true }, SERIES, 2, 1e-9);
    compare_blocks::<f64>(angles(), SERIES, 1e-9);
}

#[test]
fn attention_agrees_with_the_reference() {
    for descriptor in attention() {
        compare::<f64>(descriptor.clone(), EmbeddingMode::Direct, 2, 1e-10);
        compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
        compare::<f32>(descriptor.clone(), SERIES, 2, 2e-3);
        let atom_ener = |fitting: &mut FittingOptions| fitting.atom_ener = vec![Some(-3.0), None];
        compare_models::<f64>(model_with(descriptor, atom_ener), SERIES, 2, 1e-9);
    }
}

/// Descriptors with types and no layer of attention: nets that know the types, and those scaled by them, switched off or not.
fn flat() -> Vec<DescriptorOptions> {
    let of = |strip: bool, smooth: bool, one_side: bool| {
        let mut descriptor = attention().swap_remove(0);
        let DescriptorKind::SeAtten(own) = &mut descriptor.kind else { panic!("se_atten") };
        (own.strip, own.smooth, own.attn_layer) = (strip, smooth, 0);
        DescriptorOptions { type_one_side: one_side, ..descriptor }
    };
    [(false, false), (true, false), (true, true)]
        .into_iter()
        .flat_map(|(strip, smooth)| [of(strip, smooth, true), of(strip, smooth, false)])
        .collect()
}

#[test]
fn series_of_nets_with_types_agree_with_the_reference() {
    for descriptor in flat() {
        let excluding = DescriptorOptions { exclude_types: vec![(0, 1)], ..descriptor.clone() };
        for descriptor in [descriptor.clone(), excluding] {
            compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
            compare::<f32>(descriptor, SERIES, 2, 2e-3);
        }
        let kinks = DescriptorOptions { activation: Activation::Relu, ..descriptor.clone() };
        compare::<f64>(kinks, SERIES, 2, 1e-9);
        let model = model(descriptor);
        let params = steep_params(&model);
        compare_params::<f64>(model, &params, SERIES, 2, 1e-8);
    }
}

#[test]
fn steep_nets_of_angles_agree_with_the_reference() {
    let model = model(angles());
    let params = steep_params(&model);
    compare_params::<f64>(model, &params, SERIES, 2, 1e-8);
}

#[test]
fn bits_depend_neither_on_threads_nor_on_what_is_kept() {
    for descriptor in attention().into_iter().chain(flat()).chain([angles()]) {
        let model = model(descriptor);
        let params = model.random_params(9);
        let frames = [frame(23, 1), frame(17, 8)];
        let of = |threads: usize, kept_bytes: Option<usize>| {
            let mut engine = CpuEngine::<f64>::new(model.clone(), threads, SERIES).unwrap();
            if let (Some(bytes), Some(attention)) = (kept_bytes, &mut engine.parts[0].buffers.attention) {
                attention.kept_bytes = bytes;
            }
            run(&mut engine, &params, &frames)
        };
        let all = of(1, None);
        assert!(all == of(3, None), "the same bits on three threads");
        assert!(all == of(2, Some(0)), "the same bits with nothing kept");
        assert!(all == of(2, Some(100_000)), "the same bits with some atoms kept");
    }
}

#[test]
fn a_table_beside_the_nets_agrees_with_the_reference() {
    for model in blended() {
        compare_models::<f64>(model.clone(), SERIES, 2, 1e-10);
        compare_models::<f32>(model.clone(), SERIES, 2, 2e-3);
        let (params, frames) = (model.random_params(9), [frame(23, 1), frame(17, 8)]);
        let want = run(&mut ReferenceEngine::new(model.clone()), &params, &frames);
        for n in [2, 5] {
            let mut engine = InBlocks::new(n, || CpuEngine::<f64>::new(model.clone(), 1, SERIES)).unwrap();
            compare_results(&run(&mut engine, &params, &frames), &want, 1e-10, |_, _| {});
        }
        let of = |threads| {
            run(&mut CpuEngine::<f64>::new(model.clone(), threads, SERIES).unwrap(), &params, &frames)
        };
        assert!(of(1) == of(3), "the same bits");
        let plain = CpuEngine::<f64>::new(
            Arc::new(Dp {
                options: ModelOptions { short_range: None, ..model.options.clone() },
                ..Dp::clone(&model)
            }),
            1,
            SERIES,
        );
        let energies = run(&mut plain.unwrap(), &params, &frames).0.atom_energy;
        let moved = energies.iter().zip(&want.0.atom_energy).filter(|(a, b)| (*a - *b).abs() > 1e-3).count();
        assert!((5..energies.len()).contains(&moved), "{moved} atoms feel the table");
    }
}

#[test]
fn other_activations_agree_with_the_reference() {
    for activation in [Activation::Gelu, Activation::Relu, Activation::Softplus] {
        compare::<f64>(DescriptorOptions { activation, ..options() }, SERIES, 2, 1e-9);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let model = model(options());
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(17, 8)];
    let one = run(&mut CpuEngine::<f64>::new(model.clone(), 1, SERIES).unwrap(), &params, &frames);
    let three = run(&mut CpuEngine::<f64>::new(model, 3, SERIES).unwrap(), &params, &frames);
    assert_eq!(one, three);
}

#[test]
fn energies_of_isolated_atoms_are_taken_off_as_the_reference_does() {
    let with_inputs = model_with(options(), |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare_models::<f64>(with_inputs, SERIES, 2, 1e-9);
}

/// The gradient by [`Engine::backward`], and by pieces.
fn gradients_both_ways<T: Real>(model: &Arc<Dp>, threads: usize) -> (Vec<f64>, Vec<f64>) {
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(17, 8)];
    let mut engine = CpuEngine::<T>::new(model.clone(), threads, SERIES).unwrap();
    let whole = run(&mut engine, &params, &frames).1;
    let prepare = engine.preparer();
    let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
    let batch: Vec<_> = prepared.iter().collect();
    let mut out = Prediction::default();
    engine.evaluate(&mut out, &params, &batch);
    let seeds = seeds(&out);
    let mut grad = vec![f64::NAN; params.len()];
    let ready = engine.backward_but_pieces(&mut grad, &params, &batch, &seeds).expect("it has pieces");
    grad[ready.end..].fill(f64::NAN);
    engine.hand_out(&Collected(pool::Parts::new(&mut grad)));
    (whole, grad)
}

/// Puts pieces of a gradient side by side.
struct Collected(pool::Parts<f64>);

impl Take for Collected {
    fn take(&self, first: usize, piece: Piece) {
        let wide: Vec<f64> = match piece {
            Piece::Double(grad) => grad.to_vec(),
            Piece::Single { grad, .. } => grad.iter().map(|&x| f64::from(x)).collect(),
        };
        // SAFETY: pieces are disjoint, which the test would show.
        unsafe { self.0.part(first, wide.len()) }.copy_from_slice(&wide);
    }
}

/// Some steps with the update as part of the gradient's pass, then one whose update the engine has to be told of.
fn train<T: Real>(engine: &mut CpuEngine<T>, params: &mut [f64]) {
    let frames = [frame(23, 1), frame(17, 8)];
    let prepare = engine.preparer();
    let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
    let batch: Vec<_> = prepared.iter().collect();
    let options = AdamOptions { beta1: 0.9, beta2: 0.999, weight_decay: 0.0, decoupled: false };
    let adam = Adam::new(options, std::iter::once(0..params.len()).collect(), params.len());
    let mut adam = adam.in_single(engine.is_single());
    let (mut out, mut grad) = (Prediction::default(), vec![0.0; params.len()]);
    for step in 0..4 {
        engine.evaluate(&mut out, params, &batch);
        let seeds = seeds(&out);
        let ready = engine.backward_but_pieces(&mut grad, params, &batch, &seeds).expect("it has pieces");
        // SAFETY: the engine gives out every piece once, and what is ready is not among them.
        let pieces = unsafe { adam.pieces(params, 1e-2, step) };
        engine.hand_out(&pieces);
        pieces.take(ready.start, Piece::Double(&grad[ready]));
    }
    engine.evaluate(&mut out, params, &batch);
    let seeds = seeds(&out);
    engine.backward(&mut grad, params, &batch, &seeds);
    adam.step(params, &grad, 1e-2, 4);
    engine.forget_parameters();
}

#[test]
fn an_engine_that_keeps_a_copy_of_the_parameters_gives_what_a_new_one_gives() {
    fn check<T: Real>(threads: usize) {
        let model = model(options());
        let mut params = model.random_params(9);
        let mut engine = CpuEngine::<T>::new(model.clone(), threads, SERIES).unwrap();
        train(&mut engine, &mut params);
        let mut fresh = CpuEngine::<T>::new(model, threads, SERIES).unwrap();
        fresh.resume(&engine.state());
        let frames = [frame(12, 5)];
        assert!(run(&mut engine, &params, &frames) == run(&mut fresh, &params, &frames), "{threads} threads");
    }
    check::<f32>(1);
    check::<f32>(3);
    check::<f64>(2);
}

#[test]
fn pieces_of_a_gradient_are_the_gradient_to_the_bit() {
    for threads in [1, 3] {
        let (whole, pieces) = gradients_both_ways::<f64>(&model(options()), threads);
        assert_eq!(whole, pieces);
        let (whole, pieces) = gradients_both_ways::<f32>(&model(options()), threads);
        assert_eq!(whole, pieces);
    }
}

/// Threads that shared memory by mistake would show here: more of them than cores, many short steps, batches that
/// change from step to step.
#[test]
fn many_threads_give_the_same_bits_step_after_step() {
    let model = model(options());
    let params = model.random_params(9);
    let batches = [vec![frame(23, 1)], vec![frame(9, 4), frame(17, 8), frame(12, 2)], vec![frame(5, 3)]];
    for mode in [SERIES, EmbeddingMode::Direct] {
        let mut alone = CpuEngine::<f64>::new(model.clone(), 1, mode).unwrap();
        let want: Vec<_> = batches.iter().map(|frames| run(&mut alone, &params, frames)).collect();
        for threads in [1, 2, 5, 8] {
            let mut engine = CpuEngine::<f64>::new(model.clone(), threads, mode).unwrap();
            for turn in 0..30 {
                let k = turn % batches.len();
                assert!(run(&mut engine, &params, &batches[k]) == want[k], "{threads} threads, turn {turn}");
            }
        }
    }
}
