//! Training steps of the default PiNet on 24-atom periodic frames: energies alone, and energies with forces.
//!
//! `cargo bench --bench pinet -- [--frames N] [--threads N] [--float32] [--only energies|forces] [--write-xyz FILE]`;
//! `--float32` leaves out float64; `--write-xyz` only writes the frames, for PiNN to train on the same (`tools/bench_pinn.sh`).

use phalanx::engine::cpu::real::Real;
use phalanx::engine::pinet::cpu::PinetCpu;
use phalanx::engine::pinet::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use phalanx::loss::pinn::{PinnLabels, PinnLoss};
use phalanx::model::pinet::PinetModel;
use phalanx::model::pinet::options::{ModelOptions, NetworkKind, PinetOptions, PotentialOptions, Wiring};
use phalanx::optim::keras_rate::Rate;
use phalanx::optim::{KerasAdam, KerasAdamOptions};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

/// A frame with random labels.
struct Sample {
    elems: Vec<i32>,
    coord: Vec<f64>,
    labels: PinnLabels,
}

/// Side of the cube, A: eight molecules of water at its density.
const SIDE: f64 = 6.2;

/// Eight molecules on a grid, turned and shaken at random.
fn sample(k: usize) -> Sample {
    let noise = |n: usize| (((k * 977 + n) as f64 * 12.9898).sin() * 43758.5453).fract();
    let (mut elems, mut coord) = (vec![], vec![]);
    for m in 0..8 {
        let center = [m / 4, m / 2 % 2, m % 2].map(|c| (c as f64 + 0.5) * SIDE / 2.0);
        let shaken = [0, 1, 2].map(|x| center[x] + 0.4 * noise(40 * m + x));
        let mut axes = [[0.0; 3]; 2];
        for (a, axis) in axes.iter_mut().enumerate() {
            let v = [0, 1, 2].map(|x| noise(40 * m + 10 * a + 5 + x));
            let r = v.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
            *axis = v.map(|x| x / r);
        }
        elems.extend([8, 1, 1]);
        coord.extend(shaken);
        coord.extend(axes.iter().flat_map(|axis| [0, 1, 2].map(|x| shaken[x] + 0.97 * axis[x])));
    }
    let labels = PinnLabels {
        energy: Some(noise(901)),
        force: Some((0..72).map(|n| noise(1000 + n)).collect()),
        ..PinnLabels::default()
    };
    Sample { elems, coord, labels }
}

fn write_xyz(path: &str, samples: &[Sample]) {
    let mut text = String::new();
    for sample in samples {
        let force = sample.labels.force.as_deref().unwrap_or(&[]);
        let energy = sample.labels.energy.unwrap_or(0.0);
        let _ = writeln!(
            text,
            "24\nLattice=\"{SIDE} 0 0 0 {SIDE} 0 0 0 {SIDE}\" Properties=species:S:1:pos:R:3:forces:R:3 energy={energy} pbc=\"T T T\""
        );
        for (i, z) in sample.elems.iter().enumerate() {
            let (x, f) = (&sample.coord[3 * i..3 * i + 3], &force[3 * i..3 * i + 3]);
            let name = if *z == 8 { "O" } else { "H" };
            let _ = writeln!(text, "{name} {} {} {} {} {} {}", x[0], x[1], x[2], f[0], f[1], f[2]);
        }
    }
    std::fs::write(path, text).expect("the file can be written");
}

/// Steps a second over about three seconds, after a warm-up.
fn steps_per_second<T: Real>(threads: usize, batch: usize, forces: bool, samples: &[Sample]) -> f64 {
    let network =
        PinetOptions { atom_types: vec![1, 8], ..PinetOptions::new(Wiring::Master, NetworkKind::PiNet) };
    let model = Arc::new(PinetModel::new(network).expect("the default network"));
    let options = PotentialOptions { use_force: forces, ..PotentialOptions::new(Wiring::Master) };
    let loss = PinnLoss::new(ModelOptions::Potential(options), &model, 0);
    let cell = Some([SIDE, 0.0, 0.0, 0.0, SIDE, 0.0, 0.0, 0.0, SIDE]);
    let frames: Vec<PinetFrame> = samples
        .iter()
        .map(|s| PinetFrame::new(&model, &s.elems, &s.coord, cell).expect("a sound frame"))
        .collect();
    let mut engine = PinetCpu::<T>::new(model.clone(), threads, forces).expect("threads");
    let mut params = model.init(1);
    let variables = model.table.views().iter().map(|view| view.range()).collect();
    let mut adam = KerasAdam::new(KerasAdamOptions::master(), variables, params.len());
    let (mut out, mut seeds) = (PinetPrediction::default(), PinetSeeds::default());
    let mut grad = vec![0.0; params.len()];
    let mut run = |first: u64, steps: u64| {
        for step in first..first + steps {
            let chosen: Vec<usize> = (0..batch).map(|k| (step as usize * batch + k) % frames.len()).collect();
            let frames: Vec<&PinetFrame> = chosen.iter().map(|&k| &frames[k]).collect();
            let labels: Vec<&PinnLabels> = chosen.iter().map(|&k| &samples[k].labels).collect();
            engine.evaluate(&mut out, &params, &frames);
            loss.differentiate(&mut seeds, &out, &frames, &labels, &params, step, 0);
            engine.backward(&mut grad, &params, &frames, &seeds);
            adam.step(&mut params, &grad, Rate::master().at(step), step);
        }
    };
    run(0, 20);
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed().as_secs_f64() < 3.0 {
        run(20 + done, 10);
        done += 10;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|k| args.get(k + 1));
    let number = |name: &str, default: usize| value(name).and_then(|v| v.parse().ok()).unwrap_or(default);
    let samples: Vec<Sample> = (0..100).map(sample).collect();
    if let Some(path) = value("--write-xyz") {
        return write_xyz(path, &samples);
    }
    let (batch, threads) = (number("--frames", 10), number("--threads", 2));
    println!("default PiNet, {batch} frames of 24 atoms a step, {threads} threads: steps/s");
    for forces in [false, true] {
        if value("--only").is_some_and(|only| (only == "forces") != forces) {
            continue;
        }
        let name = if forces { "energies and forces" } else { "energies" };
        let float32 = steps_per_second::<f32>(threads, batch, forces, &samples);
        print!("{name:<22} float32 {float32:8.1}");
        match args.iter().any(|a| a == "--float32") {
            true => println!(),
            false => println!("   float64 {:8.1}", steps_per_second::<f64>(threads, batch, forces, &samples)),
        }
    }
}
