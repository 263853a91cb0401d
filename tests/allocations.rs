//! A training step asks for no memory once the buffers are there.
//!
//! The only test of its program: requests of all threads are counted.

use phalanx::data::{Frame, System, Wants};
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::{Engine, Prediction, Seeds};
use phalanx::memory::count_requests;
use phalanx::model::dp::Dp;
use phalanx::model::dp::statistics::Sums;
use phalanx::optim::{Adam, AdamOptions};
use phalanx::train::input::Input;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

/// Steps that may pass until every thread has had the largest task of each kind.
const WARM_UP: usize = 60;
/// Steps in a row that must do without.
const QUIET: usize = 10;

/// Requests in the passes and the update of each step, and in its loss.
fn requests<T: Real>(batch: usize) -> Vec<[u64; 2]> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/water");
    let (input, _) = Input::read(&example.join("input.json")).unwrap();
    let wants = Wants { energy: true, force: true, virial: true, ..Wants::default() };
    let data = example.join("data_0").to_string_lossy().into_owned();
    let system = System::open(&data, &input.model.type_map, &wants).unwrap();
    let frames: Vec<Frame> = (0..batch).map(|k| system.read_frame(k).unwrap()).collect();
    let frames: Vec<&Frame> = frames.iter().collect();
    let sums = frames.iter().map(|f| Sums::of(&input.model, f).unwrap()).reduce(Sums::merge).unwrap();
    let model = Arc::new(Dp::new(input.model.clone(), sums.finish(&input.model).unwrap()));
    let mode = EmbeddingMode::Chebyshev { min_distance: 0.8 };
    let mut engine = CpuEngine::<T>::new(model.clone(), 2, mode).unwrap();
    let mut params = model.random_params(1);
    engine.adapt(&params);
    let prepare = engine.preparer();
    let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
    let prepared: Vec<_> = prepared.iter().collect();
    let loss = input.loss.build(1e-3, &model);
    let options = *input.optimizer.options::<AdamOptions>().unwrap();
    let mut adam = Adam::new(options, model.trainable(), params.len()).on(engine.pool());
    let (mut out, mut seeds, mut grad) = (Prediction::default(), Seeds::default(), vec![0.0; params.len()]);
    (0..WARM_UP as u64)
        .map(|step| {
            let (_, first) = count_requests(|| engine.evaluate(&mut out, &params, &prepared));
            let (_, of_loss) = count_requests(|| loss.differentiate(&mut seeds, &out, &frames, 1e-3));
            let (_, second) = count_requests(|| {
                engine.backward(&mut grad, &params, &prepared, &seeds);
                // Small steps: the number of terms stays what it is.
                adam.step(&mut params, &grad, 1e-7, step)
            });
            [first + second, of_loss]
        })
        .collect()
}

#[test]
fn a_step_asks_for_no_memory_once_its_buffers_are_there() {
    for (name, counts) in [
        ("float64, 1 frame", requests::<f64>(1)),
        ("float64, 3 frames", requests::<f64>(3)),
        ("float32, 1 frame", requests::<f32>(1)),
    ] {
        println!("{name}: {:?} requests in the last steps", &counts[WARM_UP - 4..]);
        let quiet = counts.windows(QUIET).any(|steps| steps.iter().all(|n| n[0] == 0));
        assert!(quiet, "{name}: {counts:?}");
        // The errors that are shown are handed over by name.
        assert!(counts[WARM_UP - 1][1] <= 16, "{name}: {counts:?}");
    }
}
