//! How many threads this rank may use.

use crate::{Result, err};

/// Compute and loader threads of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Threads of the engine.
    pub compute: usize,
    /// Threads that read and prepare frames.
    pub loaders: usize,
    /// The compute threads of the ranks of this host have every core: loaders would be in their way.
    pub crowded: bool,
}

/// Variables that set the compute threads, the first that is there wins.
const COMPUTE: [&str; 3] =
    ["DP_INTRA_OP_PARALLELISM_THREADS", "TF_INTRA_OP_PARALLELISM_THREADS", "OMP_NUM_THREADS"];
/// Variables that set the loader threads.
const LOADERS: [&str; 3] =
    ["NUM_WORKERS", "DP_INTER_OP_PARALLELISM_THREADS", "TF_INTER_OP_PARALLELISM_THREADS"];

impl Threads {
    /// As the environment says; by default the ranks of a host share its cores.
    pub fn new(env: &dyn Fn(&str) -> Option<String>, cores: usize, local_size: usize) -> Result<Self> {
        let share = (cores / local_size.max(1)).max(1);
        let compute = first(env, &COMPUTE)?.unwrap_or(share);
        Ok(Threads {
            compute,
            loaders: first(env, &LOADERS)?.unwrap_or(share.min(8)),
            crowded: compute * local_size.max(1) >= cores,
        })
    }
}

/// The first variable that is set; 0 and an empty value mean the default, as in DeePMD-kit.
fn first(env: &dyn Fn(&str) -> Option<String>, names: &[&str]) -> Result<Option<usize>> {
    for name in names {
        let Some(text) = env(name).filter(|text| !text.trim().is_empty()) else { continue };
        // OMP_NUM_THREADS may list numbers for nested levels; the outermost counts.
        let number = text.split(',').next().unwrap_or_default().trim();
        return match number.parse::<usize>() {
            Ok(0) => Ok(None),
            Ok(n) if n <= 4096 => Ok(Some(n)),
            _ => Err(err!("{name}: found \"{text}\", wanted a number of threads up to 4096")
                .help(format!("unset {name} to use all cores"))),
        };
    }
    Ok(None)
}

/// Cores that this process may run on.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(vars: &[(&str, &str)], cores: usize, local_size: usize) -> Result<Threads> {
        let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Threads::new(&env, cores, local_size)
    }

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        assert_eq!(threads(&[], 16, 4).unwrap(), Threads { compute: 4, loaders: 4, crowded: true });
        assert_eq!(threads(&[], 2, 8).unwrap(), Threads { compute: 1, loaders: 1, crowded: true });
        assert_eq!(threads(&[], 64, 1).unwrap(), Threads { compute: 64, loaders: 8, crowded: true });
    }

    #[test]
    fn variables_are_obeyed_and_deepmds_own_come_first() {
        let vars = [("OMP_NUM_THREADS", "3,2"), ("NUM_WORKERS", "5")];
        assert_eq!(threads(&vars, 8, 1).unwrap(), Threads { compute: 3, loaders: 5, crowded: false });
        let vars = [("OMP_NUM_THREADS", "3"), ("DP_INTRA_OP_PARALLELISM_THREADS", "2")];
        assert_eq!(threads(&vars, 8, 1).unwrap().compute, 2);
        assert_eq!(threads(&[("OMP_NUM_THREADS", "0")], 8, 1).unwrap().compute, 8);
    }

    #[test]
    fn nonsense_is_an_error_that_names_the_variable() {
        let e = threads(&[("OMP_NUM_THREADS", "many")], 8, 1).unwrap_err();
        assert!(e.message().starts_with("OMP_NUM_THREADS: found \"many\""), "{e}");
    }
}
