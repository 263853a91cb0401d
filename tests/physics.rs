//! What every potential must obey, on the CPU engine with random weights, on both of its paths.

mod common;

use common::Noise;
use phalanx::data::{Frame, Labels};
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::{Engine, Prediction};
use phalanx::export::read_model;
use phalanx::model::dp::Dp;
use std::path::Path;
use std::sync::Arc;

/// Largest deviations: eV and eV/A, of energies around 10 eV and forces around 1 eV/A.
mod tolerance {
    /// The same sums in another order.
    pub const SYMMETRY: f64 = 1e-11;
    /// The same frame alone and in a batch: the same arithmetic.
    pub const BATCH: f64 = 1e-12;
    /// Central differences with a step of 1e-5 A.
    pub const DERIVATIVE: f64 = 1e-7;
    /// Across the cutoff energies change like the third power of the distance to it.
    pub const SMOOTH_ENERGY: f64 = 1e-8;
    pub const SMOOTH_FORCE: f64 = 1e-5;
}

const MODELS: [&str; 4] = ["one_side_virial", "two_side_gelu", "exclude_two_side", "env_protection"];
const RCUT: f64 = 3.5;

/// A model and a way to evaluate frames with it.
struct Potential {
    name: String,
    engine: CpuEngine<f64>,
    params: Vec<f64>,
}

impl Potential {
    /// All models, on the series and on the direct path.
    fn all() -> Vec<Potential> {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/se_e2_a");
        let series = EmbeddingMode::Chebyshev { min_distance: 1.0 };
        let mut all = Vec::new();
        for name in MODELS {
            let (model, params) =
                Dp::from_spec(read_model(&golden.join(name).join("initial.dp")).unwrap()).unwrap();
            let model = Arc::new(model);
            for mode in [series, EmbeddingMode::Direct] {
                let mut engine = CpuEngine::<f64>::new(model.clone(), 2, mode).unwrap();
                engine.adapt(&params);
                all.push(Potential { name: format!("{name}, {mode:?}"), engine, params: params.clone() });
            }
        }
        all
    }

    fn batch(&mut self, frames: &[Frame]) -> Prediction {
        let prepare = self.engine.preparer();
        let prepared: Vec<_> = frames.iter().map(|frame| prepare(frame).unwrap()).collect();
        let mut out = Prediction::default();
        self.engine.evaluate(&mut out, &self.params, &prepared.iter().collect::<Vec<_>>());
        assert!(out.energy.iter().chain(&out.force).all(|x| x.is_finite()), "{}", self.name);
        out
    }

    fn of(&mut self, frame: &Frame) -> Prediction {
        self.batch(std::slice::from_ref(frame))
    }

    fn energy(&mut self, frame: &Frame) -> f64 {
        self.of(frame).energy[0]
    }

    #[track_caller]
    fn close(&self, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len(), "{}: {what}", self.name);
        for (k, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() <= tolerance, "{}: {what} {k}: {g} instead of {w}", self.name);
        }
    }
}

fn frame(types: Vec<i32>, coord: Vec<f64>, cell: Option<[f64; 9]>) -> Frame {
    Frame { types: types.into(), coord, cell, fparam: vec![], aparam: vec![], labels: Labels::default() }
}

/// Eight atoms in a triclinic cell that is smaller than twice the cutoff.
fn crystal(seed: u64) -> Frame {
    let mut noise = Noise(seed);
    let coord = (0..8).flat_map(|i| [i & 1, i >> 1 & 1, i >> 2]).map(|k| 2.2 * k as f64 + 0.3 * noise.next());
    let coord: Vec<f64> = coord.collect();
    frame(vec![0, 1, 1, 0, 1, 1, 0, 1], coord, Some([4.4, 0.2, -0.1, 0.3, 4.6, 0.0, -0.2, 0.1, 4.5]))
}

/// Six atoms with open boundaries.
fn molecule() -> Frame {
    let crystal = crystal(5);
    frame(crystal.types[..6].to_vec(), crystal.coord[..18].to_vec(), None)
}

fn frames() -> [Frame; 2] {
    [crystal(3), molecule()]
}

/// Rows times a matrix.
fn rows_times(rows: &[f64], m: &[f64; 9]) -> Vec<f64> {
    rows.chunks_exact(3)
        .flat_map(|r| [0, 1, 2].map(|k| r[0] * m[k] + r[1] * m[3 + k] + r[2] * m[6 + k]))
        .collect()
}

/// Positions and cell under a linear map.
fn mapped(frame: &Frame, m: &[f64; 9]) -> Frame {
    let cell = frame.cell.map(|cell| rows_times(&cell, m).try_into().unwrap());
    Frame { coord: rows_times(&frame.coord, m), cell, ..frame.clone() }
}

#[test]
fn rotated_atoms_have_the_same_energy_and_rotated_forces() {
    // A rotation about (1, 1, 1) / sqrt(3) by 1 rad, and the same with a reflection.
    let (c, s) = (1f64.cos(), 1f64.sin() / 3f64.sqrt());
    let (d, o) = (c + (1.0 - c) / 3.0, (1.0 - c) / 3.0);
    let rotation = [d, o + s, o - s, o - s, d, o + s, o + s, o - s, d];
    for mut p in Potential::all() {
        for frame in frames() {
            let want = p.of(&frame);
            for m in [rotation, rotation.map(|x| -x)] {
                let got = p.of(&mapped(&frame, &m));
                p.close("energy", &got.energy, &want.energy, tolerance::SYMMETRY);
                p.close("force", &got.force, &rows_times(&want.force, &m), tolerance::SYMMETRY);
            }
        }
    }
}

#[test]
fn the_order_of_atoms_does_not_matter() {
    for mut p in Potential::all() {
        for frame in frames() {
            let n = frame.n_atoms();
            let order: Vec<usize> = (0..n).map(|i| (i * 5 + 2) % n).collect();
            let mut seen = order.clone();
            seen.sort();
            let order = if seen == (0..n).collect::<Vec<_>>() { order } else { (0..n).rev().collect() };
            let rows =
                |x: &[f64]| order.iter().flat_map(|&i| x[3 * i..3 * i + 3].to_vec()).collect::<Vec<f64>>();
            let types: Vec<i32> = order.iter().map(|&i| frame.types[i]).collect();
            let shuffled = Frame { types: types.into(), coord: rows(&frame.coord), ..frame.clone() };
            let (want, got) = (p.of(&frame), p.of(&shuffled));
            p.close("energy", &got.energy, &want.energy, tolerance::SYMMETRY);
            p.close("force", &got.force, &rows(&want.force), tolerance::SYMMETRY);
            p.close("virial", got.virial.as_flattened(), want.virial.as_flattened(), tolerance::SYMMETRY);
        }
    }
}

#[test]
fn shifted_and_wrapped_atoms_feel_the_same() {
    for mut p in Potential::all() {
        for frame in frames() {
            let want = p.of(&frame);
            let mut moved = frame.clone();
            for (i, r) in moved.coord.chunks_exact_mut(3).enumerate() {
                let images = [(i % 3) as f64 - 1.0, (i % 2) as f64 * 7.0, -((i % 4) as f64)];
                for k in 0..3 {
                    r[k] += [3.7, -11.3, 0.9][k];
                    r[k] += frame.cell.map_or(0.0, |cell| (0..3).map(|v| images[v] * cell[3 * v + k]).sum());
                }
            }
            let got = p.of(&moved);
            p.close("energy", &got.energy, &want.energy, tolerance::SYMMETRY);
            p.close("force", &got.force, &want.force, tolerance::SYMMETRY);
            p.close("virial", got.virial.as_flattened(), want.virial.as_flattened(), tolerance::SYMMETRY);
        }
    }
}

#[test]
fn a_batch_is_its_frames() {
    for mut p in Potential::all() {
        let frames = [crystal(1), molecule(), crystal(2), crystal(1)];
        let all = p.batch(&frames);
        let mut first = 0;
        for (k, frame) in frames.iter().enumerate() {
            let one = p.of(frame);
            let atoms = first..first + frame.n_atoms();
            p.close("energy", &all.energy[k..=k], &one.energy, tolerance::BATCH);
            p.close("force", &all.force[3 * atoms.start..3 * atoms.end], &one.force, tolerance::BATCH);
            p.close("virial", &all.virial[k], &one.virial[0], tolerance::BATCH);
            p.close("atom_energy", &all.atom_energy[atoms.clone()], &one.atom_energy, tolerance::BATCH);
            first = atoms.end;
        }
    }
}

#[test]
fn forces_are_minus_the_slope_of_the_energy_and_add_up_to_nothing() {
    const STEP: f64 = 1e-5;
    for mut p in Potential::all() {
        for frame in frames() {
            let out = p.of(&frame);
            for k in 0..frame.coord.len() {
                let mut at = |shift: f64| {
                    let mut moved = frame.clone();
                    moved.coord[k] += shift;
                    p.energy(&moved)
                };
                let slope = -(at(STEP) - at(-STEP)) / (2.0 * STEP);
                p.close("force", &[out.force[k]], &[slope], tolerance::DERIVATIVE);
            }
            for k in 0..3 {
                let sum: f64 = out.force.iter().skip(k).step_by(3).sum();
                p.close("sum of forces", &[sum], &[0.0], tolerance::SYMMETRY);
            }
        }
    }
}

#[test]
fn the_virial_is_minus_the_slope_of_the_energy_by_strain() {
    const STEP: f64 = 1e-5;
    for mut p in Potential::all() {
        for frame in frames() {
            let virial = p.of(&frame).virial[0];
            for k in 0..9 {
                let mut at = |strain: f64| {
                    let mut m = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
                    m[k] += strain;
                    p.energy(&mapped(&frame, &m))
                };
                let slope = -(at(STEP) - at(-STEP)) / (2.0 * STEP);
                p.close("virial", &[virial[k]], &[slope], 10.0 * tolerance::DERIVATIVE);
            }
            // Torques vanish, so it is symmetric.
            for (a, b) in [(1, 3), (2, 6), (5, 7)] {
                p.close("virial", &[virial[a]], &[virial[b]], tolerance::SYMMETRY);
            }
        }
    }
}

#[test]
fn an_atom_that_crosses_the_cutoff_changes_nothing_abruptly() {
    for mut p in Potential::all() {
        let mut at = |r: f64| {
            let coord = vec![0.0, 0.0, 0.0, 1.1, 0.3, 0.0, r, 0.0, 0.0];
            p.of(&frame(vec![0, 1, 1], coord, None))
        };
        let (inside, outside) = (at(RCUT - 1e-4), at(RCUT + 1e-4));
        let changes = (at(RCUT - 1.0).energy[0] - outside.energy[0]).abs();
        // The atom at 1.1 A is still a neighbour of the one that moves: leave its part out.
        let alone = |r: f64| frame(vec![0, 1], vec![0.0, 0.0, 0.0, r, 0.0, 0.0], None);
        assert!(changes > 1e-6, "{}: the third atom has no effect at all", p.name);
        let (near, far) = (p.of(&alone(RCUT - 1e-4)), p.of(&alone(RCUT + 1e-4)));
        p.close("energy", &near.energy, &far.energy, tolerance::SMOOTH_ENERGY);
        p.close("force", &near.force, &[0.0; 6], tolerance::SMOOTH_FORCE);
        p.close("force", &far.force, &[0.0; 6], 0.0);
        assert!((inside.energy[0] - outside.energy[0]).abs() < 1e-3, "{}", p.name);
        for (a, b) in inside.force.iter().zip(&outside.force) {
            assert!((a - b).abs() < 1e-3, "{}: force {a} and {b}", p.name);
        }
    }
}

#[test]
fn isolated_atoms_have_an_energy_and_no_force() {
    for mut p in Potential::all() {
        let far: Vec<f64> = (0..4).flat_map(|i| [50.0 * i as f64, 0.0, 0.0]).collect();
        let cell = Some([300.0, 0.0, 0.0, 0.0, 300.0, 0.0, 0.0, 0.0, 300.0]);
        for cell in [None, cell] {
            let out = p.of(&frame(vec![0, 1, 0, 1], far.clone(), cell));
            assert!(out.force.iter().all(|&f| f == 0.0), "{}: {:?}", p.name, out.force);
            assert!(out.virial[0].iter().all(|&v| v == 0.0), "{}: {:?}", p.name, out.virial);
            p.close("atom energy", &out.atom_energy[..2], &out.atom_energy[2..], 0.0);
            let one = p.of(&frame(vec![0], vec![0.0; 3], cell));
            p.close("single atom", &one.energy, &out.atom_energy[..1], tolerance::BATCH);
        }
    }
}

#[test]
fn virtual_atoms_change_nothing() {
    for mut p in Potential::all() {
        for real in frames() {
            let mut types = vec![-1];
            let mut coord = real.coord[..3].to_vec(); // on top of the first atom
            for i in 0..real.n_atoms() {
                types.extend([real.types[i], -1]);
                coord.extend_from_slice(&real.coord[3 * i..3 * i + 3]);
                coord.extend([0.4 * i as f64, 0.0, 1.0]);
            }
            let (want, got) = (p.of(&real), p.of(&frame(types, coord, real.cell)));
            p.close("energy", &got.energy, &want.energy, tolerance::SYMMETRY);
            p.close("virial", &got.virial[0], &want.virial[0], tolerance::SYMMETRY);
            assert_eq!(got.force[..3], [0.0; 3], "{}", p.name);
            for i in 0..real.n_atoms() {
                let at = 3 * (1 + 2 * i);
                p.close("force", &got.force[at..at + 3], &want.force[3 * i..3 * i + 3], tolerance::SYMMETRY);
                assert_eq!(got.force[at + 3..at + 6], [0.0; 3], "{}", p.name);
            }
        }
    }
}

#[test]
fn a_supercell_has_as_many_times_the_energy() {
    const TIMES: [usize; 3] = [2, 1, 3];
    for mut p in Potential::all() {
        let unit = crystal(4);
        let cell = unit.cell.unwrap();
        let (mut types, mut coord) = (Vec::new(), Vec::new());
        for image in 0..TIMES.iter().product::<usize>() {
            let shift = [image % 2, 0, image / 2].map(|n| n as f64);
            for i in 0..unit.n_atoms() {
                types.push(unit.types[i]);
                coord.extend([0, 1, 2].map(|k| {
                    unit.coord[3 * i + k] + (0..3).map(|v| shift[v] * cell[3 * v + k]).sum::<f64>()
                }));
            }
        }
        let big: Vec<f64> = (0..9).map(|k| cell[k] * TIMES[k / 3] as f64).collect();
        let (want, got) = (p.of(&unit), p.of(&frame(types, coord, Some(big.try_into().unwrap()))));
        p.close("energy", &got.energy, &[6.0 * want.energy[0]], 10.0 * tolerance::SYMMETRY);
        for image in got.force.chunks_exact(unit.coord.len()) {
            p.close("force", image, &want.force, tolerance::SYMMETRY);
        }
    }
}
