//! Who am I among the processes.
//!
//! Nothing in the input file says how many ranks there are: the launcher does, through environment variables.
//! Each launcher is one file that reads its own variables; [`LAUNCHERS`] is the order in which they are asked.
//! The environment is an argument, so that every case is a test.

pub mod threads; // how many threads this process may use
mod horovod;
mod hydra;
mod openmpi;
mod slurm;
mod solo;
mod torchrun;
mod vars;

use crate::error::{Error, Result};
use vars::Vars;

/// Looks up one environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The place of this process in its job, as the launcher told it.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Which launcher started us: a name of [`LAUNCHERS`].
    pub launcher: &'static str,
    /// 0 to `size - 1`.
    pub rank: usize,
    /// Number of processes in the job.
    pub size: usize,
    /// 0 to `local_size - 1` among the ranks of this host.
    pub local_rank: usize,
    /// Number of ranks on this host.
    pub local_size: usize,
    /// Where the ranks can meet without MPI.
    pub rendezvous: Option<Rendezvous>,
    /// Which kind of MPI library this launcher expects its processes to use, if any.
    pub mpi: Option<MpiFamily>,
    /// Name of this host.
    pub host: String,
    /// What tells this job from another one of the same launcher; empty when the launcher gives no such name.
    pub job: String,
    /// How often the launcher has already restarted the job after a failure (torchrun).
    pub restarts: usize,
}

/// A meeting place that the launcher provides.
#[derive(Debug, Clone, PartialEq)]
pub enum Rendezvous {
    /// torchrun's agent serves a key-value store of PyTorch's kind.
    TorchStore { address: String, port: u16 },
    /// No agent: rank 0 itself has to serve at the address that the user chose (`MASTER_ADDR`, `MASTER_PORT`).
    RankZero { address: String, port: u16 },
    /// horovodrun serves a key-value store over HTTP.
    HorovodHttp { address: String, port: u16 },
}

/// Libraries of one kind understand the same launchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpiFamily {
    /// Open MPI: speaks PMIx with its launcher.
    OpenMpi,
    /// MPICH, Intel MPI and relatives: speak PMI with their launcher.
    Mpich,
}

/// One launcher: its name, and the function that recognises it.
pub struct Launcher {
    /// The name in logs and messages.
    pub name: &'static str,
    /// `None`: not this one. An error: this one, but its variables contradict each other.
    detect: fn(&Vars) -> Result<Option<Place>>,
}

/// What a launcher's file works out.
struct Place {
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: usize,
    rendezvous: Option<Rendezvous>,
    mpi: Option<MpiFamily>,
    job: String,
    restarts: usize,
}

/// Every launcher, innermost first.
///
/// Launchers nest, and the variables of the outer one stay visible in the inner one's processes. horovodrun and
/// torchrun run inside an mpirun or a Slurm allocation, never around them; `horovodrun --mpi` only calls mpirun and
/// sets nothing of its own; both mpiruns may themselves be started by srun, or start their daemons with it. So: those
/// two, then the MPI launchers, then Slurm. Solo recognises everything and comes last.
pub const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "horovodrun", detect: horovod::detect },
    Launcher { name: "torchrun", detect: torchrun::detect },
    Launcher { name: "mpirun (Open MPI)", detect: openmpi::detect },
    Launcher { name: "mpirun (Hydra)", detect: hydra::detect },
    Launcher { name: "srun", detect: slurm::detect },
    Launcher { name: "none", detect: solo::detect },
];

impl Launch {
    /// Works out the place of this process from the environment; `host` is the name of this host.
    pub fn detect(env: Env, host: &str) -> Result<Launch> {
        let vars = Vars::new(env);
        for launcher in LAUNCHERS {
            let found =
                (launcher.detect)(&vars).map_err(|e| e.at(format_args!("launched by {}", launcher.name)));
            if let Some(place) = found? {
                return Ok(Launch {
                    launcher: launcher.name,
                    rank: place.rank,
                    size: place.size,
                    local_rank: place.local_rank,
                    local_size: place.local_size,
                    rendezvous: place.rendezvous,
                    mpi: place.mpi,
                    host: host.to_string(),
                    job: place.job,
                    restarts: place.restarts,
                });
            }
        }
        unreachable!("the last launcher recognises every environment")
    }

    /// Whether all ranks are on this host.
    pub fn is_one_host(&self) -> bool {
        self.local_size == self.size
    }

    /// Whether the launcher may start the job again by itself, on as many ranks or on others.
    pub fn is_elastic(&self) -> bool {
        self.launcher == "torchrun" && !self.job.is_empty()
    }

    /// For an error that every rank of this host meets: the first of them tells the user.
    pub fn one_of_host_tells(&self, error: Error) -> Error {
        if self.local_rank == 0 { error } else { error.told_elsewhere() }
    }

    /// [`Launch::detect`] for this very process.
    pub fn of_this_process() -> Result<Launch> {
        Launch::detect(&|name| std::env::var(name).ok(), &host_name())
    }
}

/// The name of this host, as the kernel knows it.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_string() } else { name.trim().to_string() }
}

#[cfg(test)]
mod tests;
