//! `phalanx::OutputModel`, descriptors and last hidden layers: agreement with DeePMD-kit, neighbours from outside, bad input.

use phalanx::potential::{Derivatives, Domain, Outputs};
use phalanx::{OutputModel, Potential};
use std::path::Path;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
/// In `se_e2_a`; what DeePMD-kit says of them is in `outputs`.
const TENSORS: [&str; 4] = ["dipole", "se_atten_dipole", "polar", "polar_whole"];
const OTHERS: [&str; 2] = ["dos", "property_intensive"];

/// The first frame of `dp_test/bulk`.
struct Bulk {
    coord: Vec<f64>,
    cell: [f64; 9],
    types: Vec<i32>,
}

impl Bulk {
    fn new() -> Self {
        let of = |key: &str, n: usize| -> Vec<f64> {
            let path = format!("{GOLDEN}/dp_test/bulk/set.000/{key}.npy");
            let file = npyz::NpyFile::new(std::fs::File::open(path).unwrap()).unwrap();
            file.into_vec::<f64>().unwrap()[..n].to_vec()
        };
        // The data counts H before O, the models the other way round.
        let types = (0..12).map(|i| i32::from(i % 3 != 2)).collect();
        Bulk { coord: of("coord", 36), cell: of("box", 9).try_into().unwrap(), types }
    }

    fn evaluate(&self, model: &mut OutputModel, wanted: Derivatives) -> Outputs {
        model.evaluate(&self.coord, Some(self.cell), &self.types, &[], &[], wanted).unwrap()
    }

    /// As an MD program has it: images in the cells around as ghosts, of which atom each is one, and for each atom all others as
    /// neighbours.
    fn with_ghosts(&self) -> (Vec<f64>, Vec<i32>, Vec<usize>, Vec<Vec<i32>>) {
        let n = self.types.len();
        let (mut coord, mut types) = (self.coord.clone(), self.types.clone());
        let mut image_of: Vec<usize> = (0..n).collect();
        for image in (0..27).filter(|&image| image != 13) {
            let shift = [image / 9 - 1, image / 3 % 3 - 1, image % 3 - 1].map(f64::from);
            for i in 0..n {
                let moved = |k: usize| (0..3).map(|v| shift[v] * self.cell[3 * v + k]).sum::<f64>();
                coord.extend((0..3).map(|k| self.coord[3 * i + k] + moved(k)));
                types.push(self.types[i]);
                image_of.push(i);
            }
        }
        let all = types.len() as i32;
        let lists = (0..n as i32).map(|i| (0..all).filter(|&j| j != i).collect()).collect();
        (coord, types, image_of, lists)
    }
}

fn load(name: &str) -> OutputModel {
    let path = format!("{GOLDEN}/se_e2_a/{name}/initial.dp");
    OutputModel::load(path.as_ref()).unwrap().with_threads(2).unwrap()
}

/// What DeePMD-kit says, by name.
fn golden(name: &str) -> impl Fn(&str) -> Vec<f64> {
    let text = std::fs::read_to_string(format!("{GOLDEN}/outputs/{name}.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    move |key| all[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: how many numbers");
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{what}: element {k} is {g}, wanted {w}");
    }
}

#[test]
fn tensors_with_their_derivatives_are_those_of_deepmd_kit() {
    let bulk = Bulk::new();
    for name in TENSORS {
        let (mut model, want) = (load(name), golden(name));
        let got = bulk.evaluate(&mut model, Derivatives::OfAtoms);
        for (key, got) in [
            ("output", &got.output),
            ("atom_output", &got.atom_output),
            ("force", &got.force),
            ("virial", &got.virial),
            ("atom_virial", &got.atom_virial),
        ] {
            // DeePMD-kit has no derivatives of polarizabilities: those are slopes of the reference, in `engine/cpu/tests.rs`.
            if model.kind() == "dipole" || key.ends_with("output") {
                assert_close(&format!("{name}: {key}"), got, &want(key), 1e-10);
            }
        }
        let fewer = bulk.evaluate(&mut model, Derivatives::None);
        assert!(fewer.force.is_empty() && fewer.output == got.output, "nobody asked for derivatives");
    }
}

#[test]
fn densities_of_states_and_properties_are_those_of_deepmd_kit() {
    for name in OTHERS {
        let (mut model, want) = (load(name), golden(name));
        let got = Bulk::new().evaluate(&mut model, Derivatives::None);
        assert_close(&format!("{name}: output"), &got.output, &want("output"), 1e-10);
        assert_close(&format!("{name}: atom_output"), &got.atom_output, &want("atom_output"), 1e-10);
    }
    assert!(load("property_intensive").is_intensive() && !load("dos").is_intensive());
}

#[test]
fn descriptors_and_last_hidden_layers_are_those_of_deepmd_kit() {
    let Bulk { coord, cell, types } = Bulk::new();
    for name in TENSORS.into_iter().chain(OTHERS) {
        let (mut model, want) = (load(name), golden(name));
        let found = model.descriptors(&coord, Some(cell), &types, &[], &[]).unwrap();
        assert_eq!(found.len(), types.len() * model.n_descriptor());
        assert_close(&format!("{name}: descriptor"), &found, &want("descriptor"), 1e-10);
        let found = model.last_hidden(&coord, Some(cell), &types, &[], &[]).unwrap();
        assert_eq!(found.len(), types.len() * model.n_hidden());
        assert_close(&format!("{name}: last hidden layer"), &found, &want("last_hidden"), 1e-10);
    }
    let name = "one_side_virial";
    let path = format!("{GOLDEN}/se_e2_a/{name}/initial.dp");
    let (mut potential, want) = (Potential::load(path.as_ref()).unwrap(), golden(name));
    let found = potential.descriptors(&coord, Some(cell), &types, &[], &[]).unwrap();
    assert_close("descriptor", &found, &want("descriptor"), 1e-10);
    let found = potential.last_hidden(&coord, Some(cell), &types, &[], &[]).unwrap();
    assert_close("last hidden layer", &found, &want("last_hidden"), 1e-10);
}

#[test]
fn a_list_from_outside_gives_what_a_periodic_frame_gives() {
    let bulk = Bulk::new();
    let (coord, types, image_of, lists) = bulk.with_ghosts();
    let lists: Vec<&[i32]> = lists.iter().map(Vec::as_slice).collect();
    let domain = Domain { coord: &coord, types: &types, lists: &lists, mask: -1 };
    let n = bulk.types.len();
    for name in TENSORS {
        let mut model = load(name);
        let want = bulk.evaluate(&mut model, Derivatives::OfAtoms);
        let got = model.evaluate_with_neighbors(&domain, &[], &[], Derivatives::OfAtoms).unwrap();
        let width = model.width();
        let folded = |numbers: &[f64], each: usize| {
            let mut folded = vec![0.0; width * n * each];
            for c in 0..width {
                for (i, of) in image_of.iter().enumerate() {
                    let from = &numbers[(c * types.len() + i) * each..][..each];
                    let to = &mut folded[(c * n + of) * each..][..each];
                    to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
                }
            }
            folded
        };
        assert_close("output", &got.output, &want.output, 1e-10);
        assert_close("virial", &got.virial, &want.virial, 1e-10);
        assert_close("force", &folded(&got.force, 3), &want.force, 1e-10);
        assert_close("atom virial", &folded(&got.atom_virial, 9), &want.atom_virial, 1e-10);
        let (own, ghosts) = got.atom_output.split_at(n * width);
        assert_close("atom output", own, &want.atom_output, 1e-10);
        assert!(ghosts.iter().all(|&x| x == 0.0), "ghosts have no output here");
    }
}

#[test]
fn many_atoms_are_evaluated_some_at_a_time() {
    // Molecules far from each other: the sum is that of each.
    let mut model = load("dipole");
    let water = [0.0, 0.0, 0.0, 0.96, 0.0, 0.0, -0.24, 0.93, 0.0];
    let one = model.evaluate(&water, None, &[0, 1, 1], &[], &[], Derivatives::OfFrame).unwrap();
    let n = 900; // 2700 atoms
    let coord: Vec<f64> = (0..n)
        .flat_map(|k| {
            let place = [20.0 * (k % 10) as f64, 20.0 * (k / 10 % 10) as f64, 20.0 * (k / 100) as f64];
            let moved: Vec<f64> = (0..9).map(|c| water[c] + place[c % 3]).collect();
            moved
        })
        .collect();
    let types = [0, 1, 1].repeat(n);
    let all = model.evaluate(&coord, None, &types, &[], &[], Derivatives::OfFrame).unwrap();
    let times = |x: &[f64]| x.iter().map(|x| n as f64 * x).collect::<Vec<f64>>();
    assert_close("output", &all.output, &times(&one.output), 1e-9);
    assert_close("virial", &all.virial, &times(&one.virial), 1e-9);
    for c in 0..3 {
        let own = &all.force[c * 3 * types.len()..(c + 1) * 3 * types.len()];
        own.chunks_exact(9).for_each(|own| assert_close("force", own, &one.force[9 * c..9 * (c + 1)], 1e-9));
    }
}

#[test]
fn nonsense_is_an_error_and_nothing_worse() {
    let told = |found: phalanx::Result<OutputModel>| found.map(|_| ()).unwrap_err().to_string();
    let energy = format!("{GOLDEN}/dp_test/one_side.dp");
    assert!(told(OutputModel::load(energy.as_ref())).contains("predicts an energy"));
    let dipole = format!("{GOLDEN}/se_e2_a/dipole/initial.dp");
    let refused = Potential::load(dipole.as_ref()).map(|_| ()).unwrap_err();
    assert!(refused.message().contains("predicts no energy"));
    assert!(OutputModel::from_bytes(Path::new("model.dp"), b"rubbish".to_vec()).is_err());
    let mut model = load("dipole");
    let bad = [(&[0.0; 6][..], &[0][..]), (&[0.0; 3], &[7]), (&[0.0, f64::NAN, 0.0], &[0])];
    for (coord, types) in bad {
        assert!(model.evaluate(coord, None, types, &[], &[], Derivatives::OfAtoms).is_err());
    }
    assert!(model.evaluate(&[0.0; 3], None, &[0], &[1.0], &[], Derivatives::None).is_err());
    let none = model.evaluate(&[], None, &[], &[], &[], Derivatives::OfAtoms).unwrap();
    assert_eq!((none.output, none.virial.len()), (vec![0.0; 3], 27));
    let virtual_atom = model.evaluate(&[0.0; 3], None, &[-1], &[], &[], Derivatives::OfAtoms).unwrap();
    assert_eq!(virtual_atom.atom_output, [0.0; 3]);
}
