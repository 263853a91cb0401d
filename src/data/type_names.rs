//! Names of the types where the input gives none.

use super::expand::expand_systems;
use super::format;
use super::options::DataOptions;
use crate::err;
use crate::error::Result;

/// The types that the systems name in type_map.raw, which must agree about them; those beyond are called by their numbers.
pub fn type_names(options: &DataOptions) -> Result<Vec<String>> {
    let (mut names, mut place, mut n_types) = (Vec::new(), String::new(), 0);
    for path in expand_systems(options)? {
        let source = format::open(&path)?;
        let highest = source.types()?.into_iter().max().unwrap_or(-1);
        n_types = n_types.max(usize::try_from(highest + 1).unwrap_or(0));
        let Some(own) = source.type_map()? else { continue };
        let shared = own.iter().zip(&names).enumerate();
        if let Some((t, (own, other))) = shared.into_iter().find(|(_, (own, other))| own != other) {
            return Err(err!(
                "{}: type {t} is {own}, and in {place} it is {other}; the input has no model.type_map that would tell which counts",
                source.type_map_place()
            )
            .help("write the names of all types into model.type_map"));
        }
        if own.len() > names.len() {
            (names, place) = (own, source.type_map_place());
        }
    }
    names.extend((names.len()..n_types).map(|t| format!("Type_{t}")));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::options::{BatchSize, SystemWeights};
    use crate::data::testing::{TestSystem, message, names};

    fn found(files: &TestSystem, systems: &[&str]) -> Result<Vec<String>> {
        type_names(&DataOptions {
            min_pair_dist: 0.0,
            systems: systems.iter().map(|name| format!("{}/{name}", files.path())).collect(),
            search: false,
            patterns: None,
            batch_size: BatchSize::Fixed(1),
            weights: SystemWeights::BySize,
        })
    }

    fn systems() -> TestSystem {
        let files = TestSystem::empty();
        for (name, types, map) in [
            ("bare", "0\n1\n", None),
            ("water", "0\n1\n1\n", Some("O\nH\n")),
            ("salt", "2\n3\n", Some("O\nH\nNa\nCl\n")),
            ("turned", "0\n", Some("H\nO\n")),
            ("many", "4\n", None),
        ] {
            files.text(&format!("{name}/type.raw"), types).npy(
                &format!("{name}/set.000/coord.npy"),
                &[1, 3],
                &[0.0; 3],
            );
            if let Some(map) = map {
                files.text(&format!("{name}/type_map.raw"), map);
            }
        }
        files
    }

    #[test]
    fn names_are_those_of_the_systems_or_numbers() {
        let files = systems();
        assert_eq!(found(&files, &["bare"]).unwrap(), ["Type_0", "Type_1"]);
        assert_eq!(found(&files, &["bare", "water"]).unwrap(), ["O", "H"]);
        assert_eq!(found(&files, &["water", "salt", "bare"]).unwrap(), ["O", "H", "Na", "Cl"]);
        assert_eq!(
            found(&files, &["many", "water"]).unwrap(),
            names(&["O", "H", "Type_2", "Type_3", "Type_4"])
        );
    }

    #[test]
    fn systems_that_disagree_are_refused() {
        let files = systems();
        let text = message(found(&files, &["water", "turned"]), &files);
        assert!(
            text.contains("turned/type_map.raw: type 0 is H, and in water/type_map.raw it is O"),
            "{text}"
        );
    }
}
