//! The data set that the project carries is what this generator makes, and the input suits it.

use std::path::{Path, PathBuf};

use crate::cell::{Cell, Vec3, dot};
use crate::spcfw::{Evaluation, SpcFw, type_of};

const N_ATOMS: usize = 192;

struct Stored {
    coord: Vec<Vec3>,
    cell: Cell,
    energy: f64,
    force: Vec<Vec3>,
    virial: Vec<f64>,
}

fn water() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/water")
}

fn read<T: npyz::Deserialize>(path: PathBuf) -> Vec<T> {
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    npyz::NpyFile::new(&bytes[..])
        .and_then(|npy| npy.into_vec())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn vectors(flat: &[f32]) -> Vec<Vec3> {
    flat.as_chunks::<3>().0.iter().map(|r| r.map(f64::from)).collect()
}

fn stored(system: usize) -> Vec<Stored> {
    let set = water().join(format!("data_{system}/set.000"));
    let [coord, force, cell] = ["coord", "force", "box"].map(|n| read::<f32>(set.join(format!("{n}.npy"))));
    let [energy, virial] = ["energy", "virial"].map(|n| read::<f64>(set.join(format!("{n}.npy"))));
    (0..energy.len())
        .map(|k| Stored {
            coord: vectors(&coord[3 * N_ATOMS * k..3 * N_ATOMS * (k + 1)]),
            cell: Cell::new(std::array::from_fn(|a| {
                std::array::from_fn(|b| f64::from(cell[9 * k + 3 * a + b]))
            })),
            energy: energy[k],
            force: vectors(&force[3 * N_ATOMS * k..3 * N_ATOMS * (k + 1)]),
            virial: virial[9 * k..9 * (k + 1)].to_vec(),
        })
        .collect()
}

fn input() -> serde_json::Value {
    let text = std::fs::read_to_string(water().join("input.json")).expect("examples/water/input.json");
    serde_json::from_str(&text).expect("examples/water/input.json")
}

#[test]
fn stored_labels_are_those_of_the_model_at_the_stored_coordinates() {
    let mut model = SpcFw::new();
    let mut out = Evaluation::default();
    for system in 0..crate::N_SYSTEMS {
        let frames = stored(system);
        assert_eq!(frames.len(), 80, "data_{system}");
        for (k, frame) in frames.iter().enumerate() {
            model.evaluate(&mut out, &frame.coord, &frame.cell);
            let place = format!("data_{system}, frame {k}");
            assert!((out.energy - frame.energy).abs() < 1e-9, "{place}: energy {}", out.energy);
            for (got, want) in out.force.iter().flatten().zip(frame.force.iter().flatten()) {
                assert!((got - want).abs() < 1e-6 + 1e-6 * want.abs(), "{place}: force {got}, stored {want}");
            }
            for (got, want) in out.virial.iter().flatten().zip(&frame.virial) {
                assert!((got - want).abs() < 1e-8, "{place}: virial {got}, stored {want}");
            }
        }
    }
}

#[test]
fn sel_of_the_input_holds_the_most_crowded_atom() {
    let descriptor = &input()["model"]["descriptor"];
    let rcut = descriptor["rcut"].as_f64().expect("rcut is a number");
    let sel: Vec<u64> = serde_json::from_value(descriptor["sel"].clone()).expect("sel is a list");
    let mut most = [0; 2];
    for frame in (0..crate::N_SYSTEMS).flat_map(stored) {
        let fraction: Vec<Vec3> = frame.coord.iter().map(|&r| frame.cell.wrapped_fraction(r)).collect();
        for i in 0..N_ATOMS {
            let mut count = [0; 2];
            for j in (0..N_ATOMS).filter(|&j| j != i) {
                let d = frame.cell.nearest_image(fraction[i], fraction[j]);
                count[type_of(j)] += u64::from(dot(d, d) < rcut * rcut);
            }
            (0..2).for_each(|t| most[t] = most[t].max(count[t]));
        }
    }
    println!("most neighbours within {rcut} A: {most:?}, sel {sel:?}");
    assert!((0..2).all(|t| most[t] <= sel[t]), "most neighbours {most:?}, sel {sel:?}");
    assert!((0..2).all(|t| most[t] > sel[t] / 2), "sel {sel:?} is far too large for {most:?}");
}

#[test]
fn the_systems_of_the_input_are_the_bundled_ones() {
    let training = &input()["training"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (set, want) in [("training_data", 3), ("validation_data", 1)] {
        let systems: Vec<String> =
            serde_json::from_value(training[set]["systems"].clone()).expect("systems is a list");
        assert_eq!(systems.len(), want, "{set}");
        for system in systems {
            assert!(root.join(&system).join("type.raw").is_file(), "{set}: {system} is no system");
        }
    }
}
