//! How many threads to compute with.

/// Variables that set the number of threads, the first one that is set counts. Zero means: all cores.
const VARIABLES: [&str; 3] =
    ["DP_INTRA_OP_PARALLELISM_THREADS", "TF_INTRA_OP_PARALLELISM_THREADS", "OMP_NUM_THREADS"];

/// The number of threads that the environment asks for, else the cores that this process may use.
pub fn n_threads(environment: impl Fn(&str) -> Option<String>) -> usize {
    let asked = VARIABLES.iter().find_map(|name| {
        let text = environment(name)?;
        match text.trim().parse::<usize>() {
            Ok(n) => Some(n),
            Err(_) => {
                log::warn!("{name}={text} is not a number of threads; ignored");
                None
            }
        }
    });
    match asked {
        Some(n) if n > 0 => n,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_sets_the_number_of_threads() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let with = |pairs: &'static [(&str, &str)]| {
            n_threads(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, v)| v.to_string()))
        };
        assert_eq!(with(&[]), cores);
        assert_eq!(with(&[("OMP_NUM_THREADS", "3")]), 3);
        assert_eq!(with(&[("OMP_NUM_THREADS", "3"), ("DP_INTRA_OP_PARALLELISM_THREADS", "5")]), 5);
        assert_eq!(with(&[("DP_INTRA_OP_PARALLELISM_THREADS", "0")]), cores);
        assert_eq!(with(&[("OMP_NUM_THREADS", "many")]), cores);
    }
}
