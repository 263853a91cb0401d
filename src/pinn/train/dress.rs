//! `--init`: the energy of each element and the list of elements, from the training set.
//!
//! The energies are the least-squares fit of the total energies by the numbers of atoms of each element, as PiNN takes
//! them: the solution of smallest norm where the counts do not determine it.

use crate::err;
use crate::error::Result;
use crate::model::dp::statistics::least_squares;
use crate::model::pinet::options::ModelOptions;
use crate::pinn::data::Source;
use crate::pinn::params::Params;
use crate::train::team::Team;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Directions in which the counts vary less than this, relative to the most, do not count.
const RCOND: f64 = 1e-12;

/// Structures of one composition, enough for the fit.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Composition {
    /// Elements, and how often each stands in the structure.
    counts: Vec<(i32, usize)>,
    /// How many structures, and the sum of their energies.
    number: f64,
    energy: f64,
}

/// Fills `e_dress` (and `atom_types`, where the file does not give it) of a potential model.
pub fn init(team: &mut Team, params: &mut Params, source: &dyn Source, by_file: bool) -> Result<()> {
    let ModelOptions::Potential(options) = &mut params.model else {
        log::warn!("--init works out energies of elements: a dipole model has none");
        return Ok(());
    };
    if !source.keys().e_data {
        let e =
            err!("{}: found no energies (e_data)", source.place()).help("--init fits energies of elements");
        return team.agree(Err(e));
    }
    let share = if by_file { (0, 1) } else { (team.rank(), team.size()) };
    let sums = team.agree(sums(source, share))?;
    let all = team.gather(&sums)?;
    let mut elements: Vec<i32> = match options.e_dress.is_empty() {
        true => all.iter().flatten().flat_map(|c| c.counts.iter().map(|(z, _)| *z)).collect(),
        false => options.e_dress.keys().copied().collect(),
    };
    elements.sort_unstable();
    elements.dedup();
    let dress = fit(&all, &elements);
    options.e_dress = elements.iter().copied().zip(dress.iter().copied()).collect();
    log::info!("energies of elements from the data: {:?}", options.e_dress);
    let table: BTreeMap<String, f64> = options.e_dress.iter().map(|(z, e)| (z.to_string(), *e)).collect();
    let (model, network) = match params.written.get("network").is_some_and(Value::is_object) {
        true => ("/model/params", "/network/params"),
        false => ("/model_params", "/network_params"),
    };
    set(&mut params.written, model, "e_dress", json!(table));
    if !params.atom_types_given {
        params.network.atom_types = elements.clone();
        set(&mut params.written, network, "atom_types", json!(elements));
    }
    Ok(())
}

/// Sets a key of a block that may not be there yet.
fn set(value: &mut Value, path: &str, key: &str, new: Value) {
    let mut at = value;
    for name in path.split('/').skip(1) {
        if !at[name].is_object() {
            at[name] = json!({});
        }
        at = &mut at[name];
    }
    at[key] = new;
}

fn sums(source: &dyn Source, (rank, size): (usize, usize)) -> Result<Vec<Composition>> {
    let mut found: BTreeMap<Vec<(i32, usize)>, (f64, f64)> = BTreeMap::new();
    for index in (rank..source.len()).step_by(size) {
        let sample = source.read(index)?;
        let Some(energy) = sample.e_data else { continue };
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        sample.elems.iter().for_each(|z| *counts.entry(*z).or_default() += 1);
        let sum = found.entry(counts.into_iter().collect()).or_default();
        sum.0 += 1.0;
        sum.1 += energy;
    }
    Ok(found.into_iter().map(|(counts, (number, energy))| Composition { counts, number, energy }).collect())
}

/// The least-squares fit of smallest norm. Structures of one composition count by their number.
fn fit(all: &[Vec<Composition>], elements: &[i32]) -> Vec<f64> {
    let (mut rows, mut energies) = (Vec::new(), Vec::new());
    for Composition { counts, number, energy } in all.iter().flatten() {
        let count = |z: &i32| counts.iter().find(|(other, _)| other == z).map_or(0.0, |(_, n)| *n as f64);
        rows.extend(elements.iter().map(|z| number.sqrt() * count(z)));
        energies.push(energy / number.sqrt());
    }
    least_squares(&rows, &energies, elements.len(), RCOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinn::data::Sample;
    use crate::pinn::data::source::tests::Memory;

    fn sample(elems: &[i32], energy: f64) -> Sample {
        Sample { elems: elems.to_vec(), e_data: Some(energy), ..Sample::default() }
    }

    #[test]
    fn energies_of_elements_are_found_and_shared_work_gives_the_same() {
        let water = |noise: f64| sample(&[8, 1, 1], -17.0 + noise);
        let data = Memory(vec![water(0.1), water(-0.1), sample(&[1, 1], -2.0), water(0.0)]);
        let whole = fit(&[sums(&data, (0, 1)).unwrap()], &[1, 8]);
        assert!((whole[0] + 1.0).abs() < 1e-12 && (whole[1] + 15.0).abs() < 1e-12, "{whole:?}");
        let shares: Vec<_> = (0..3).map(|rank| sums(&data, (rank, 3)).unwrap()).collect();
        let shared = fit(&shares, &[1, 8]);
        assert!(whole.iter().zip(&shared).all(|(a, b)| (a - b).abs() < 1e-12), "{shared:?}");
    }

    #[test]
    fn one_composition_gives_the_shortest_solution() {
        let data = Memory(vec![sample(&[8, 1, 1], -15.0)]);
        let dress = fit(&[sums(&data, (0, 1)).unwrap()], &[1, 8]);
        assert!((dress[0] + 6.0).abs() < 1e-12 && (dress[1] + 3.0).abs() < 1e-12, "{dress:?}");
    }
}
