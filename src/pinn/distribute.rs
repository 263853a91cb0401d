//! Files over ranks, as PiNN's `distribute_data` does it.

use crate::err;
use crate::error::Result;
use std::ops::Range;

/// The positions of a list of `len` files that one rank of `size` reads: parts that follow each other, the first
/// `len mod size` of them longer by one.
pub fn part(len: usize, rank: usize, size: usize) -> Range<usize> {
    assert!(rank < size, "rank {rank} of {size}");
    let (each, more) = (len / size, len % size);
    rank * each + rank.min(more)..(rank + 1) * each + (rank + 1).min(more)
}

/// The files of one rank.
///
/// - what  names the list in the error: "trajectories"
pub fn distribute<T: Clone>(list: &[T], what: &str, rank: usize, size: usize) -> Result<Vec<T>> {
    if list.len() < size {
        return Err(err!("a list of {} {what} cannot be split among {size} ranks", list.len()).help(
            "start at most as many processes as there are files, or split the files; \
             one file is distributed by its frames",
        ));
    }
    Ok(list[part(list.len(), rank, size)].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn parts_are_those_of_the_original_formula() {
        let vectors: Value = serde_json::from_str(include_str!("../../tests/pinn_data/splits.json")).unwrap();
        for (key, n, size) in [("distribute_11_over_4", 11, 4), ("distribute_5_over_3", 5, 3)] {
            let list: Vec<usize> = (0..n).collect();
            for rank in 0..size {
                let want: Vec<usize> = serde_json::from_value(vectors[key][rank].clone()).unwrap();
                assert_eq!(distribute(&list, "files", rank, size).unwrap(), want, "{key} rank {rank}");
            }
        }
    }

    #[test]
    fn as_many_files_as_ranks_are_enough_and_fewer_are_an_error() {
        assert_eq!(distribute(&["a", "b"], "files", 1, 2).unwrap(), ["b"]);
        let error = distribute(&["a", "b"], "trajectories", 0, 3).unwrap_err();
        assert_eq!(error.message(), "a list of 2 trajectories cannot be split among 3 ranks");
    }
}
