//! `phalanx::Potential`: agreement with DeePMD-kit, neighbours from outside, bad input.

use phalanx::Potential;
use phalanx::potential::{Domain, Evaluation};
use std::path::{Path, PathBuf};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// The first frame of a periodic system, and a model for it.
struct Case {
    name: &'static str,
    tolerance: f64,
}

const CASES: [Case; 2] =
    [Case { name: "one_side", tolerance: 1e-10 }, Case { name: "two_side", tolerance: 2e-5 }];

struct Bulk {
    coord: Vec<f64>,
    cell: [f64; 9],
    types: Vec<i32>,
    fparam: Vec<f64>,
    aparam: Vec<f64>,
}

fn numbers(path: &Path, n: usize) -> Vec<f64> {
    let file = npyz::NpyFile::new(std::fs::File::open(path).unwrap()).unwrap();
    file.into_vec::<f64>().unwrap()[..n].to_vec()
}

impl Case {
    fn path(&self) -> PathBuf {
        Path::new(GOLDEN).join("dp_test").join(format!("{}.dp", self.name))
    }

    fn potential(&self) -> Potential {
        Potential::load(&self.path()).unwrap().with_threads(2).unwrap()
    }

    fn bulk(&self) -> Bulk {
        let folder = Path::new(GOLDEN).join("dp_test/bulk/set.000");
        let of = |key: &str, n: usize| numbers(&folder.join(format!("{key}.npy")), n);
        let has_parameters = self.name == "two_side";
        let parameter = |key: &str, n: usize| if has_parameters { of(key, n) } else { vec![] };
        Bulk {
            coord: of("coord", 36),
            cell: of("box", 9).try_into().unwrap(),
            // The data counts H before O, the models the other way round.
            types: (0..12).map(|i| i32::from(i % 3 != 2)).collect(),
            fparam: parameter("fparam", 2),
            aparam: parameter("aparam", 12),
        }
    }
}

impl Bulk {
    fn evaluate(&self, potential: &mut Potential) -> Evaluation {
        potential.evaluate(&self.coord, Some(self.cell), &self.types, &self.fparam, &self.aparam).unwrap()
    }

    /// As an MD program has it: images within `reach` of the cell as ghosts, and for each atom all others as neighbours.
    fn with_ghosts(&self, reach: i32) -> (Vec<f64>, Vec<i32>, Vec<usize>, Vec<Vec<i32>>) {
        let n = self.types.len();
        let (mut coord, mut types) = (self.coord.clone(), self.types.clone());
        let mut image_of: Vec<usize> = (0..n).collect();
        for image in 0..(2 * reach + 1).pow(3) {
            let width = 2 * reach + 1;
            let shift = [image / width / width - reach, image / width % width - reach, image % width - reach];
            if shift == [0; 3] {
                continue;
            }
            for i in 0..n {
                for k in 0..3 {
                    let moved: f64 = (0..3).map(|v| f64::from(shift[v]) * self.cell[3 * v + k]).sum();
                    coord.push(self.coord[3 * i + k] + moved);
                }
                types.push(self.types[i]);
                image_of.push(i);
            }
        }
        let all = types.len() as i32;
        let lists = (0..n as i32).map(|i| (0..all).filter(|&j| j != i).collect()).collect();
        (coord, types, image_of, lists)
    }
}

fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: how many numbers");
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{what}: element {k} is {g}, wanted {w}");
    }
}

#[test]
fn energies_forces_and_virials_of_atoms_are_those_of_deepmd_kit() {
    for case in CASES {
        let text = std::fs::read_to_string(format!("{GOLDEN}/potential/{}.json", case.name)).unwrap();
        let want: serde_json::Value = serde_json::from_str(&text).unwrap();
        let want = |key: &str| -> Vec<f64> {
            want[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let got = case.bulk().evaluate(&mut case.potential());
        let what = |key: &str| format!("{}: {key}", case.name);
        assert_close(&what("energy"), &[got.energy], &want("energy"), case.tolerance);
        assert_close(&what("force"), &got.force, &want("force"), case.tolerance);
        assert_close(&what("virial"), &got.virial, &want("virial"), case.tolerance);
        assert_close(&what("atom_energy"), &got.atom_energy, &want("atom_energy"), case.tolerance);
        assert_close(&what("atom_virial"), &got.atom_virial, &want("atom_virial"), case.tolerance);
    }
}

#[test]
fn a_list_from_outside_gives_what_a_periodic_frame_gives() {
    for case in CASES {
        let (bulk, mut potential) = (case.bulk(), case.potential());
        let want = bulk.evaluate(&mut potential);
        let (coord, types, image_of, lists) = bulk.with_ghosts(1);
        let lists: Vec<&[i32]> = lists.iter().map(Vec::as_slice).collect();
        let domain = Domain { coord: &coord, types: &types, lists: &lists, mask: -1 };
        let got = potential.evaluate_with_neighbors(&domain, &bulk.fparam, &bulk.aparam, true).unwrap();
        let n = bulk.types.len();
        let mut folded = Evaluation { force: vec![0.0; 3 * n], atom_virial: vec![0.0; 9 * n], ..got.clone() };
        for (i, &of) in image_of.iter().enumerate() {
            (0..3).for_each(|k| folded.force[3 * of + k] += got.force[3 * i + k]);
            (0..9).for_each(|k| folded.atom_virial[9 * of + k] += got.atom_virial[9 * i + k]);
        }
        let tolerance = case.tolerance.max(1e-10);
        assert_close("energy", &[got.energy], &[want.energy], tolerance);
        assert_close("force", &folded.force, &want.force, tolerance);
        assert_close("virial", &got.virial, &want.virial, tolerance);
        assert_close("atom_energy", &got.atom_energy[..n], &want.atom_energy, tolerance);
        assert!(got.atom_energy[n..].iter().all(|&e| e == 0.0), "ghosts have no energy here");
        assert_close("atom_virial", &folded.atom_virial, &want.atom_virial, tolerance);
    }
}

#[test]
fn a_part_of_the_atoms_in_each_of_two_domains_adds_up_to_the_whole() {
    let case = &CASES[0];
    let (bulk, mut potential) = (case.bulk(), case.potential());
    let want = bulk.evaluate(&mut potential);
    let (coord, types, image_of, _) = bulk.with_ghosts(1);
    let (mut energy, mut force) = (0.0, vec![0.0; want.force.len()]);
    for own in [0..5, 5..12] {
        // Local atoms come first.
        let mut order: Vec<usize> = (0..types.len()).collect();
        order.sort_by_key(|i| !own.contains(i));
        let coord: Vec<f64> = order.iter().flat_map(|&i| coord[3 * i..3 * i + 3].to_vec()).collect();
        let types: Vec<i32> = order.iter().map(|&i| types[i]).collect();
        let lists: Vec<Vec<i32>> =
            (0..own.len() as i32).map(|i| (0..types.len() as i32).filter(|&j| j != i).collect()).collect();
        let lists: Vec<&[i32]> = lists.iter().map(Vec::as_slice).collect();
        let domain = Domain { coord: &coord, types: &types, lists: &lists, mask: -1 };
        let part = potential.evaluate_with_neighbors(&domain, &[], &[], false).unwrap();
        assert!(part.atom_virial.is_empty(), "nobody asked for virials of atoms");
        energy += part.energy;
        for (k, &i) in order.iter().enumerate() {
            (0..3).for_each(|c| force[3 * image_of[i] + c] += part.force[3 * k + c]);
        }
    }
    assert_close("energy", &[energy], &[want.energy], 1e-10);
    assert_close("force", &force, &want.force, 1e-10);
}

#[test]
fn atoms_closer_than_the_training_data_and_atoms_alone_are_evaluated() {
    let mut potential = CASES[0].potential();
    // 0.875 A is the shortest distance that the model knows of.
    for distance in [0.05, 0.3, 0.6, 0.9] {
        let energy = |r: f64, potential: &mut Potential| {
            potential.evaluate(&[0.0, 0.0, 0.0, r, 0.0, 0.0], None, &[0, 1], &[], &[]).unwrap()
        };
        let step = 1e-5;
        let slope = (energy(distance + step, &mut potential).energy
            - energy(distance - step, &mut potential).energy)
            / (2.0 * step);
        let force = energy(distance, &mut potential).force[3];
        assert!((force + slope).abs() < 1e-6 * (1.0 + slope.abs()), "{distance} A: {force} and {slope}");
    }
    let alone = potential.evaluate(&[1.0, 2.0, 3.0], None, &[1], &[], &[]).unwrap();
    assert!(alone.energy.is_finite() && alone.force == [0.0; 3]);
}

#[test]
fn models_come_from_bytes_and_know_their_facts() {
    let path = CASES[1].path();
    let potential = Potential::from_bytes(&path, std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(potential.type_map(), ["O", "H"]);
    assert_eq!((potential.rcut(), potential.numb_fparam(), potential.numb_aparam()), (4.0, 2, 1));
    for (name, bytes) in
        [("model.dp", &b"rubbish"[..]), ("model.yaml", b"a: ["), ("x.phx", b""), ("model.pb", b"")]
    {
        assert!(Potential::from_bytes(Path::new(name), bytes.to_vec()).is_err(), "{name}");
    }
}

#[test]
fn nonsense_is_an_error_and_nothing_worse() {
    let mut potential = CASES[0].potential();
    let mut text = |coord: &[f64], types: &[i32], fparam: &[f64]| {
        potential.evaluate(coord, None, types, fparam, &[]).unwrap_err().message().to_string()
    };
    let one = [0.0; 3];
    assert_eq!(text(&[f64::NAN, 0.0, 0.0], &[0], &[]), "atom 0: the coordinate NaN is not a number");
    assert_eq!(text(&one, &[2], &[]), "atom 0 has type 2, the model has the types 0 to 1");
    assert_eq!(text(&one, &[0, 1], &[]), "found 3 coordinates of 2 atoms, wanted three for each");
    assert!(text(&one, &[0], &[1.0]).starts_with("found 1 frame parameters"));
    assert!(text(&[0.0; 6], &[0, 1], &[]).contains("at the same place"));

    let nothing = potential.evaluate(&[], None, &[], &[], &[]).unwrap();
    assert_eq!(nothing, Evaluation::default());
    // Ghosts alone, and an atom that is none of the model.
    let coord = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    let domain = Domain { coord: &coord, types: &[0, 1], lists: &[], mask: -1 };
    let empty = potential.evaluate_with_neighbors(&domain, &[], &[], true).unwrap();
    assert_eq!((empty.energy, empty.force), (0.0, vec![0.0; 6]));
    let lists: [&[i32]; 1] = [&[1]];
    let domain = Domain { coord: &coord, types: &[-1, 1], lists: &lists, mask: -1 };
    assert_eq!(potential.evaluate_with_neighbors(&domain, &[], &[], true).unwrap().energy, 0.0);
    let lists: [&[i32]; 1] = [&[2]];
    let domain = Domain { coord: &coord, types: &[0, 1], lists: &lists, mask: -1 };
    assert!(potential.evaluate_with_neighbors(&domain, &[], &[], true).is_err());
}
