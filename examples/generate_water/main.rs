//! Makes the data set of `examples/water`: liquid water at several temperatures.
//!
//! `cargo run --release --example generate_water -- OUT_DIR` writes OUT_DIR/data_0 to OUT_DIR/data_3.

mod units;
mod cell;
mod random;
mod radial;
mod spcfw;
mod start;
mod dynamics;
mod write;
#[cfg(test)]
mod bundled;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rayon::prelude::*;

use cell::Cell;
use dynamics::{Liquid, Thermostat};
use random::Random;
use spcfw::{Evaluation, SpcFw};
use start::{box_length, lattice_of_molecules};
use write::{Frame, write_system};

/// One run of the dynamics, and the system that gets its frames.
struct Trajectory {
    system: usize,
    kelvin: f64,
    n_frames: usize,
}

/// Systems 0 to 2 train, one temperature each. System 3 validates: its own trajectories, at the two outer
/// temperatures and at two between those that are trained.
const TRAJECTORIES: [Trajectory; 7] = [
    Trajectory { system: 0, kelvin: 300.0, n_frames: 80 },
    Trajectory { system: 1, kelvin: 400.0, n_frames: 80 },
    Trajectory { system: 2, kelvin: 550.0, n_frames: 80 },
    Trajectory { system: 3, kelvin: 300.0, n_frames: 20 },
    Trajectory { system: 3, kelvin: 350.0, n_frames: 20 },
    Trajectory { system: 3, kelvin: 475.0, n_frames: 20 },
    Trajectory { system: 3, kelvin: 550.0, n_frames: 20 },
];
const N_SYSTEMS: usize = 4;

const SEED: u64 = 2006;
/// Time step, fs: a twentieth of the fastest vibration, the O-H stretch.
const DT: f64 = 0.5;
/// 1 ps with strong friction at the highest temperature: the lattice melts, and its heat is carried off.
const MELT: Stage = Stage { n_steps: 2_000, friction: 0.05 };
const MELT_KELVIN: f64 = 550.0;
/// 5 ps to forget the melt.
const EQUILIBRATE: Stage = Stage { n_steps: 10_000, friction: 0.01 };
/// 0.1 ps between frames, ten periods of the O-H stretch and about the time of a libration.
const BETWEEN_FRAMES: Stage = Stage { n_steps: 200, friction: 0.005 };

/// A stretch of dynamics; friction in 1/fs.
struct Stage {
    n_steps: usize,
    friction: f64,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [out_dir] = &arguments[..] else {
        eprintln!("usage: generate_water OUT_DIR\n  writes OUT_DIR/data_0 to OUT_DIR/data_{}", N_SYSTEMS - 1);
        return ExitCode::from(2);
    };
    match generate(Path::new(out_dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn generate(out_dir: &Path) -> Result<(), String> {
    let systems: Vec<PathBuf> = (0..N_SYSTEMS).map(|k| out_dir.join(format!("data_{k}"))).collect();
    if let Some(there) = systems.iter().find(|path| path.exists()) {
        let there = there.display();
        return Err(format!("{there} is there already\n  help: remove it, or choose another folder"));
    }
    let trajectories: Vec<Vec<Frame>> =
        TRAJECTORIES.par_iter().enumerate().map(|(stream, t)| simulate(t, stream as u64)).collect();
    for (k, system) in systems.iter().enumerate() {
        let parts: Vec<&[Frame]> = TRAJECTORIES
            .iter()
            .zip(&trajectories)
            .filter(|(t, _)| t.system == k)
            .map(|(_, f)| &f[..])
            .collect();
        write_system(system, &interleave(&parts), &Cell::cubic(box_length()))
            .map_err(|e| format!("cannot write {}: {e}", system.display()))?;
        eprintln!("wrote {}", system.display());
    }
    Ok(())
}

/// Melts, equilibrates, and takes frames. The stream of random numbers makes the trajectory.
fn simulate(trajectory: &Trajectory, stream: u64) -> Vec<Frame> {
    let Trajectory { system, kelvin, n_frames } = *trajectory;
    let mut random = Random::new(SEED, stream);
    let mut liquid = Liquid::new(lattice_of_molecules(&mut random), Cell::cubic(box_length()));
    let mut run = |liquid: &mut Liquid, stage: &Stage, kelvin: f64| {
        let thermostat = Thermostat { kelvin, friction: stage.friction };
        (0..stage.n_steps).for_each(|_| liquid.step(DT, thermostat, &mut random));
    };
    let report = |liquid: &Liquid, what: &str| {
        let (energy, now) = (liquid.now.energy, liquid.temperature());
        eprintln!("data_{system} at {kelvin:.0} K: {what}, potential energy {energy:8.3} eV, now {now:.0} K");
    };

    run(&mut liquid, &MELT, MELT_KELVIN);
    report(&liquid, "melted");
    run(&mut liquid, &EQUILIBRATE, kelvin);
    report(&liquid, "equilibrated");
    let mut frames = Vec::with_capacity(n_frames);
    for k in 1..=n_frames {
        run(&mut liquid, &BETWEEN_FRAMES, kelvin);
        frames.push(take_frame(&liquid));
        if k % 20 == 0 {
            report(&liquid, &format!("frame {k} of {n_frames}"));
        }
    }
    frames
}

/// The frame as it will be stored. Coordinates are rounded first, so that the labels belong to what is read.
fn take_frame(liquid: &Liquid) -> Frame {
    let cell = Cell::cubic(box_length());
    let coord: Vec<[f32; 3]> = liquid.coord.iter().map(|&r| cell.wrap(r).map(|x| x as f32)).collect();
    let rounded: Vec<_> = coord.iter().map(|r| r.map(f64::from)).collect();
    let mut out = Evaluation::default();
    SpcFw::new().evaluate(&mut out, &rounded, &cell);
    Frame { coord, energy: out.energy, force: out.force, virial: out.virial }
}

/// One frame of each part in turn, so that the first frames of a system already show all its temperatures.
fn interleave(parts: &[&[Frame]]) -> Vec<Frame> {
    let longest = parts.iter().map(|p| p.len()).max().unwrap_or(0);
    (0..longest).flat_map(|k| parts.iter().filter_map(move |p| p.get(k))).cloned().collect()
}
