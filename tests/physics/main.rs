//! What every potential must obey, with random weights: every model of the table in `models.rs` on every engine.

#[path = "../common/mod.rs"]
mod common;
mod models;

use common::Noise;
use models::{Outcome, Potential, all};
use phalanx::data::{Frame, Labels};

/// Largest deviations: eV and eV/A, of energies around 10 eV and forces around 1 eV/A.
struct Tolerance {
    /// The same sums in another order.
    symmetry: f64,
    /// The same frame alone and in a batch: the same arithmetic, in other blocks of rows.
    batch: f64,
    /// Central differences with a step of so many A.
    step: f64,
    derivative: f64,
    /// Within 1e-4 A of the cutoff; forces where energies go like the third power of that distance.
    smooth_energy: f64,
    smooth_force: f64,
}

const DOUBLE: Tolerance = Tolerance {
    symmetry: 1e-11,
    batch: 1e-12,
    step: 1e-5,
    derivative: 1e-7,
    smooth_energy: 1e-8,
    smooth_force: 1e-5,
};

/// Energies have seven digits, so that only long steps show a slope.
const SINGLE: Tolerance = Tolerance {
    symmetry: 3e-5,
    batch: 1e-5,
    step: 4e-3,
    derivative: 5e-3,
    smooth_energy: 1e-5,
    smooth_force: 1e-4,
};

const RCUT: f64 = 3.5;

impl Potential {
    fn tolerance(&self) -> Tolerance {
        if self.is_single { SINGLE } else { DOUBLE }
    }

    fn of(&mut self, frame: &Frame) -> Outcome {
        self.batch(std::slice::from_ref(frame))
    }

    /// -dE/dx by central differences, of pairs of frames that are moved by a step forward and back.
    fn slopes(&mut self, moved: Vec<[Frame; 2]>) -> Vec<f64> {
        let step = self.tolerance().step;
        let energy = self.batch(moved.as_flattened()).energy;
        energy.chunks_exact(2).map(|e| -(e[0] - e[1]) / (2.0 * step)).collect()
    }

    /// Outputs as they are where the atoms are rotated.
    fn turned(&self, outputs: &[f64], m: &[f64; 9]) -> Vec<f64> {
        match (self.is_turned, self.width) {
            (false, _) => outputs.to_vec(),
            (true, 3) => rows_times(outputs, m),
            // Both indices of each tensor, the second, then the first.
            (true, _) => outputs
                .chunks_exact(9)
                .flat_map(|t| transposed(&rows_times(&transposed(&rows_times(t, m)), m)))
                .collect(),
        }
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

fn transposed(t: &[f64]) -> Vec<f64> {
    (0..9).map(|k| t[3 * (k % 3) + k / 3]).collect()
}

/// Positions and cell under a linear map.
fn mapped(frame: &Frame, m: &[f64; 9]) -> Frame {
    let cell = frame.cell.map(|cell| rows_times(&cell, m).try_into().unwrap());
    Frame { coord: rows_times(&frame.coord, m), cell, ..frame.clone() }
}

#[test]
fn rotated_atoms_have_the_same_energy_and_rotated_forces_and_tensors() {
    // A rotation about (1, 1, 1) / sqrt(3) by 1 rad, and the same with a reflection.
    let (c, s) = (1f64.cos(), 1f64.sin() / 3f64.sqrt());
    let (d, o) = (c + (1.0 - c) / 3.0, (1.0 - c) / 3.0);
    let rotation = [d, o + s, o - s, o - s, d, o + s, o + s, o - s, d];
    for mut p in all() {
        let tolerance = p.tolerance();
        for frame in frames() {
            let want = p.of(&frame);
            for m in [rotation, rotation.map(|x| -x)] {
                let got = p.of(&mapped(&frame, &m));
                p.close("energy", &got.energy, &p.turned(&want.energy, &m), tolerance.symmetry);
                p.close("outputs of atoms", &got.atomic, &p.turned(&want.atomic, &m), tolerance.symmetry);
                p.close("force", &got.force, &rows_times(&want.force, &m), tolerance.symmetry);
                p.close("dipole", &got.dipole, &want.dipole, tolerance.symmetry);
            }
        }
    }
}

#[test]
fn the_order_of_atoms_does_not_matter() {
    for mut p in all() {
        let tolerance = p.tolerance();
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
            p.close("energy", &got.energy, &want.energy, tolerance.symmetry);
            let atom = |&i: &usize| want.atomic[i * p.width..(i + 1) * p.width].to_vec();
            let atomic: Vec<f64> = order.iter().flat_map(atom).collect();
            p.close("outputs of atoms", &got.atomic, &atomic, tolerance.symmetry);
            let force = if p.has_forces { rows(&want.force) } else { vec![] };
            p.close("force", &got.force, &force, tolerance.symmetry);
            p.close("dipole", &got.dipole, &want.dipole, tolerance.symmetry);
            p.close("virial", got.virial.as_flattened(), want.virial.as_flattened(), tolerance.symmetry);
        }
    }
}

#[test]
fn shifted_and_wrapped_atoms_feel_the_same() {
    for mut p in all() {
        let tolerance = p.tolerance();
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
            p.close("energy", &got.energy, &want.energy, tolerance.symmetry);
            p.close("outputs of atoms", &got.atomic, &want.atomic, tolerance.symmetry);
            p.close("force", &got.force, &want.force, tolerance.symmetry);
            p.close("virial", got.virial.as_flattened(), want.virial.as_flattened(), tolerance.symmetry);
        }
    }
}

#[test]
fn a_batch_is_its_frames() {
    for mut p in all() {
        let tolerance = p.tolerance();
        let frames = [crystal(1), molecule(), crystal(2), crystal(1)];
        let all = p.batch(&frames);
        let mut first = 0;
        for (k, frame) in frames.iter().enumerate() {
            let one = p.of(frame);
            let atoms = first..first + frame.n_atoms();
            p.close("energy", &all.energy[k * p.width..(k + 1) * p.width], &one.energy, tolerance.batch);
            let atomic = &all.atomic[atoms.start * p.width..atoms.end * p.width];
            p.close("outputs of atoms", atomic, &one.atomic, tolerance.batch);
            if p.has_forces {
                p.close("force", &all.force[3 * atoms.start..3 * atoms.end], &one.force, tolerance.batch);
                p.close("virial", &all.virial[k], &one.virial[0], tolerance.batch);
            } else if !all.dipole.is_empty() {
                p.close("dipole", &all.dipole[k..=k], &one.dipole, tolerance.batch);
            }
            first = atoms.end;
        }
    }
}

#[test]
fn forces_are_minus_the_slope_of_the_energy_and_add_up_to_nothing() {
    for mut p in all().into_iter().filter(|p| p.has_forces) {
        let tolerance = p.tolerance();
        for frame in frames() {
            let out = p.of(&frame);
            let moved = |k: usize, shift: f64| {
                let mut moved = frame.clone();
                moved.coord[k] += shift;
                moved
            };
            let both = |k| [moved(k, tolerance.step), moved(k, -tolerance.step)];
            let slopes = p.slopes((0..frame.coord.len()).map(both).collect());
            p.close("force", &out.force, &slopes, tolerance.derivative);
            for k in 0..3 {
                let sum: f64 = out.force.iter().skip(k).step_by(3).sum();
                p.close("sum of forces", &[sum], &[0.0], tolerance.symmetry);
            }
        }
    }
}

#[test]
fn the_virial_is_minus_the_slope_of_the_energy_by_strain() {
    for mut p in all().into_iter().filter(|p| p.has_forces) {
        let tolerance = p.tolerance();
        for frame in frames() {
            let virial = p.of(&frame).virial[0];
            let strained = |k: usize, strain: f64| {
                let mut m = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
                m[k] += strain;
                mapped(&frame, &m)
            };
            let both = |k| [strained(k, tolerance.step), strained(k, -tolerance.step)];
            let slopes = p.slopes((0..9).map(both).collect());
            p.close("virial", &virial, &slopes, 10.0 * tolerance.derivative);
            // Torques vanish, so it is symmetric.
            for (a, b) in [(1, 3), (2, 6), (5, 7)] {
                p.close("virial", &[virial[a]], &[virial[b]], tolerance.symmetry);
            }
        }
    }
}

#[test]
fn an_atom_that_crosses_the_cutoff_changes_nothing_abruptly() {
    for mut p in all() {
        let tolerance = p.tolerance();
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
        let none = vec![0.0; near.force.len()];
        p.close("energy", &near.energy, &far.energy, tolerance.smooth_energy);
        p.close("outputs of atoms", &near.atomic, &far.atomic, tolerance.smooth_energy);
        let slower = if p.cutoff_power == 2 { 10.0 } else { 1.0 };
        p.close("force", &near.force, &none, slower * tolerance.smooth_force);
        p.close("force", &far.force, &none, 0.0);
        p.close("energy", &inside.energy, &outside.energy, 1e-3);
        p.close("force", &inside.force, &outside.force, 1e-3);
    }
}

#[test]
fn isolated_atoms_have_an_energy_and_no_force() {
    for mut p in all() {
        let tolerance = p.tolerance();
        let far: Vec<f64> = (0..4).flat_map(|i| [50.0 * i as f64, 0.0, 0.0]).collect();
        let cell = Some([300.0, 0.0, 0.0, 0.0, 300.0, 0.0, 0.0, 0.0, 300.0]);
        for cell in [None, cell] {
            let out = p.of(&frame(vec![0, 1, 0, 1], far.clone(), cell));
            assert!(out.force.iter().all(|&f| f == 0.0), "{}: {:?}", p.name, out.force);
            assert!(out.virial.as_flattened().iter().all(|&v| v == 0.0), "{}: {:?}", p.name, out.virial);
            p.close("outputs of atoms", &out.atomic[..2 * p.width], &out.atomic[2 * p.width..], 0.0);
            let one = p.of(&frame(vec![0], vec![0.0; 3], cell));
            p.close("single atom", &one.atomic, &out.atomic[..p.width], tolerance.batch);
        }
    }
}

#[test]
fn virtual_atoms_change_nothing() {
    for mut p in all().into_iter().filter(|p| p.knows_virtual_atoms) {
        let tolerance = p.tolerance();
        for real in frames() {
            let mut types = vec![-1];
            let mut coord = real.coord[..3].to_vec(); // on top of the first atom
            for i in 0..real.n_atoms() {
                types.extend([real.types[i], -1]);
                coord.extend_from_slice(&real.coord[3 * i..3 * i + 3]);
                coord.extend([0.4 * i as f64, 0.0, 1.0]);
            }
            let (want, got) = (p.of(&real), p.of(&frame(types, coord, real.cell)));
            p.close("energy", &got.energy, &want.energy, tolerance.symmetry);
            assert_eq!(got.atomic[..p.width], vec![0.0; p.width], "{}", p.name);
            if !p.has_forces {
                continue;
            }
            p.close("virial", &got.virial[0], &want.virial[0], tolerance.symmetry);
            assert_eq!(got.force[..3], [0.0; 3], "{}", p.name);
            for i in 0..real.n_atoms() {
                let at = 3 * (1 + 2 * i);
                p.close("force", &got.force[at..at + 3], &want.force[3 * i..3 * i + 3], tolerance.symmetry);
                assert_eq!(got.force[at + 3..at + 6], [0.0; 3], "{}", p.name);
            }
        }
    }
}

#[test]
fn a_supercell_has_as_many_times_the_energy() {
    const TIMES: [usize; 3] = [2, 1, 3];
    for mut p in all() {
        let tolerance = p.tolerance();
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
        let times = if p.is_mean { 1.0 } else { 6.0 };
        let energy: Vec<f64> = want.energy.iter().map(|e| times * e).collect();
        p.close("energy", &got.energy, &energy, 10.0 * tolerance.symmetry);
        for image in got.atomic.chunks_exact(unit.n_atoms() * p.width) {
            p.close("outputs of atoms", image, &want.atomic, tolerance.symmetry);
        }
        for image in got.force.chunks_exact(unit.coord.len()) {
            p.close("force", image, &want.force, tolerance.symmetry);
        }
    }
}
