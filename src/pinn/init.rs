//! `--init`: energies of atoms and the list of elements, from the training data.

use super::data::Source;
use super::params::Params;
use crate::err;
use crate::error::Result;
use crate::model::pinet::options::{ModelOptions, Wiring};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Fits `e_dress` to the energies of a data set and, where params.yml does not name them, takes its elements as
/// `atom_types`. The file that is written to the model's folder says the same.
///
/// Elements that `e_dress` names are the only ones that are fitted. Dipole models are left as they are.
pub fn init_params(params: &mut Params, source: &dyn Source) -> Result<()> {
    let ModelOptions::Potential(model) = &mut params.model else { return Ok(()) };
    let named: Vec<i32> = model.e_dress.keys().copied().collect();
    let (counts, energies) = count_elements(source)?;
    let present: BTreeSet<i32> = counts.iter().flat_map(|row| row.keys().copied()).collect();
    let present: Vec<i32> = present.into_iter().collect();
    let elements = if named.is_empty() { &present } else { &named };
    model.e_dress = fit(&counts, &energies, elements);
    log::info!("e_dress fitted to {} energies: {:?}", energies.len(), model.e_dress);
    let dress: Map<String, Value> = model.e_dress.iter().map(|(z, e)| (z.to_string(), json!(e))).collect();
    if !params.atom_types_given {
        params.network.atom_types = present.clone();
    }
    let (network, model) = match params.style {
        Wiring::Master => ("/network/params", "/model/params"),
        Wiring::Fork => ("/network_params", "/model_params"),
    };
    put(&mut params.written, model, "e_dress", Value::Object(dress));
    if !params.atom_types_given {
        put(&mut params.written, network, "atom_types", json!(present));
        params.atom_types_given = true;
    }
    Ok(())
}

/// Sets a key of a block of the file; blocks that are not there are made.
fn put(file: &mut Value, block: &str, key: &str, value: Value) {
    let mut at = file;
    for name in block.split('/').skip(1) {
        at = &mut at[name];
        if at.is_null() {
            *at = json!({});
        }
    }
    at[key] = value;
}

/// How often each element stands in a structure.
type Counts = BTreeMap<i32, f64>;

fn count_elements(source: &dyn Source) -> Result<(Vec<Counts>, Vec<f64>)> {
    if !source.keys().e_data {
        return Err(
            err!("{}: found no energies (e_data)", source.place()).help("--init fits energies of atoms")
        );
    }
    let (mut counts, mut energies) = (Vec::new(), Vec::new());
    for i in 0..source.len() {
        let sample = source.read(i)?;
        let mut row = Counts::new();
        sample.elems.iter().for_each(|z| *row.entry(*z).or_default() += 1.0);
        counts.push(row);
        energies.extend(sample.e_data);
    }
    Ok((counts, energies))
}

/// The smallest energies of atoms among those that fit the energies of structures best.
fn fit(counts: &[Counts], energies: &[f64], elements: &[i32]) -> BTreeMap<i32, f64> {
    let n = elements.len();
    let count = |row: &Counts, i: usize| row.get(&elements[i]).copied().unwrap_or(0.0);
    let mut normal = vec![vec![0.0; n]; n];
    let mut right = vec![0.0; n];
    for (row, energy) in counts.iter().zip(energies) {
        for i in 0..n {
            right[i] += count(row, i) * energy;
            for j in 0..n {
                normal[i][j] += count(row, i) * count(row, j);
            }
        }
    }
    let (values, vectors) = eigen(normal);
    let largest = values.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let mut solution = vec![0.0; n];
    for (k, value) in values.iter().enumerate() {
        // Elements whose numbers go together, as in water, leave a direction that no energy determines.
        if value.abs() > 1e-12 * largest {
            let part: f64 = (0..n).map(|i| vectors[i][k] * right[i]).sum::<f64>() / value;
            (0..n).for_each(|i| solution[i] += vectors[i][k] * part);
        }
    }
    elements.iter().copied().zip(solution).collect()
}

/// Eigenvalues and, in columns, eigenvectors of a symmetric matrix, by Jacobi's rotations.
fn eigen(mut a: Vec<Vec<f64>>) -> (Vec<f64>, Vec<Vec<f64>>) {
    let n = a.len();
    let mut v: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..100 {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j] * a[i][j]).sum();
        let diagonal: f64 = (0..n).map(|i| a[i][i] * a[i][i]).sum();
        if off <= 1e-32 * diagonal {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..n {
                    (a[k][p], a[k][q]) = (c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]);
                }
                for k in 0..n {
                    (a[p][k], a[q][k]) = (c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]);
                    (v[k][p], v[k][q]) = (c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]);
                }
            }
        }
    }
    ((0..n).map(|i| a[i][i]).collect(), v)
}

#[cfg(test)]
mod tests {
    use super::super::data::Sample;
    use super::super::data::source::tests::Memory;
    use super::*;

    fn structure(elems: &[i32], energy: f64) -> Sample {
        Sample { elems: elems.to_vec(), e_data: Some(energy), ..Sample::default() }
    }

    fn params(text: &str) -> Params {
        Params::from_value(crate::config::value::parse(text, "yml").unwrap(), "params.yml").unwrap()
    }

    fn dress(params: &Params) -> BTreeMap<i32, f64> {
        match &params.model {
            ModelOptions::Potential(model) => model.e_dress.clone(),
            ModelOptions::Dipole(_) => panic!("a potential"),
        }
    }

    #[test]
    fn energies_of_atoms_are_found_and_written_down() {
        let data =
            Memory(vec![structure(&[1, 1, 8], -76.0), structure(&[1, 1], -1.0), structure(&[6, 8], -112.5)]);
        let mut params = params("network: {name: PiNet}\nmodel: {name: potential_model}\n");
        init_params(&mut params, &data).unwrap();
        let found = dress(&params);
        for (z, want) in [(1, -0.5), (6, -37.5), (8, -75.0)] {
            assert!((found[&z] - want).abs() < 1e-9, "{found:?}");
        }
        assert_eq!(params.network.atom_types, [1, 6, 8]);
        assert_eq!(params.written["network"]["params"]["atom_types"], json!([1, 6, 8]));
        assert!((params.written["model"]["params"]["e_dress"]["8"].as_f64().unwrap() + 75.0).abs() < 1e-9);
        let again = Params::from_value(params.written.clone(), "params.yml").unwrap();
        assert_eq!(again.network, params.network);
    }

    #[test]
    fn numbers_that_go_together_give_the_smallest_energies() {
        let data = Memory(vec![structure(&[8, 1, 1], -5.0), structure(&[8, 1, 1, 8, 1, 1], -10.0)]);
        let mut params = params("network: pinet\nnetwork_params: {atom_types: [8, 1]}\n");
        init_params(&mut params, &data).unwrap();
        let found = dress(&params);
        assert!((found[&1] + 2.0).abs() < 1e-9 && (found[&8] + 1.0).abs() < 1e-9, "{found:?}");
        assert_eq!(params.network.atom_types, [8, 1], "those of the file");
    }

    #[test]
    fn only_the_elements_that_are_named_are_fitted() {
        let data = Memory(vec![structure(&[8, 1, 1], -6.0)]);
        let mut params =
            params("network: {name: PiNet}\nmodel: {name: potential_model, params: {e_dress: {8: 0.0}}}\n");
        init_params(&mut params, &data).unwrap();
        let found = dress(&params);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [8]);
        assert!((found[&8] + 6.0).abs() < 1e-12);
    }
}
