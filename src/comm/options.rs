//! Limits and preferences of a communicator.

use std::path::PathBuf;
use std::time::Duration;

use super::about::About;
use super::secret::Secret;
use crate::err;
use crate::error::{Error, Result};
use crate::launch::Env;

/// Limits and preferences. The defaults serve; the environment may change them.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// A rank without a sign of life for so long is an error on all the others; also the limit for connecting.
    /// `PHALANX_COMM_LIMIT`, in seconds.
    pub limit: Duration,
    /// A wait of so long is warned about once, naming the ranks that are missing. `PHALANX_COMM_WARN`, in seconds.
    pub warn_after: Duration,
    /// A rank that is alive but does not come to a collective for so long is an error too.
    /// `PHALANX_COMM_LATE_LIMIT`, in seconds.
    pub late_limit: Duration,
    /// Use this engine and no other: "mpi", "shm", "tcp", or "gloo" where the program was built with it.
    /// `PHALANX_COMM`.
    pub engine: Option<String>,
    /// The MPI library to load, instead of looking for the launcher's own. `PHALANX_MPI_LIBRARY`.
    pub mpi_library: Option<PathBuf>,
    /// Where MPI may be installed: `OPAL_PREFIX`, `I_MPI_ROOT`, `MPI_HOME` and `MPI_ROOT`.
    pub mpi_roots: Vec<PathBuf>,
    /// The network interface to be reached at, such as "eth1". `PHALANX_COMM_INTERFACE`, or `GLOO_SOCKET_IFNAME`
    /// and `HOROVOD_GLOO_IFACE`, which users of torchrun and horovodrun set already.
    pub interface: Option<String>,
    /// What ranks on several hosts recognise each other by: `PHALANX_COMM_SECRET` (words), or `PHALANX_COMM_SECRET_FILE`.
    pub secret: Secret,
    /// What all ranks of this job have in common, as far as this one knows.
    pub about: About,
    /// Says a line that the user must see although this process cannot go on, or may be ended at any moment.
    pub last_words: fn(&Error),
}

impl Default for CommOptions {
    fn default() -> Self {
        CommOptions {
            limit: Duration::from_secs(60),
            warn_after: Duration::from_secs(5),
            late_limit: Duration::from_secs(1800),
            engine: None,
            mpi_library: None,
            mpi_roots: Vec::new(),
            interface: None,
            secret: Secret::default(),
            about: About::default(),
            last_words: |error| log::error!("{error}"),
        }
    }
}

impl CommOptions {
    /// The defaults, changed by what the environment says.
    pub fn from_env(env: Env) -> Result<CommOptions> {
        let text = |name: &str| env(name).filter(|value| !value.is_empty());
        let seconds = |name: &str, default: Duration| match text(name) {
            None => Ok(default),
            Some(value) => match value.parse::<f64>() {
                Ok(s) if s > 0.0 && s < 1e9 => Ok(Duration::from_secs_f64(s)),
                _ => Err(err!("{name}={value:?} is not a positive number of seconds")),
            },
        };
        let default = CommOptions::default();
        let limit = seconds("PHALANX_COMM_LIMIT", default.limit)?;
        Ok(CommOptions {
            limit,
            warn_after: seconds("PHALANX_COMM_WARN", default.warn_after.min(limit / 2))?,
            late_limit: seconds("PHALANX_COMM_LATE_LIMIT", default.late_limit.max(limit))?,
            engine: text("PHALANX_COMM"),
            mpi_library: text("PHALANX_MPI_LIBRARY").map(PathBuf::from),
            mpi_roots: ["OPAL_PREFIX", "I_MPI_ROOT", "MPI_HOME", "MPI_ROOT"]
                .iter()
                .filter_map(|name| text(name).map(PathBuf::from))
                .collect(),
            interface: ["PHALANX_COMM_INTERFACE", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"]
                .iter()
                .find_map(|name| text(name)),
            secret: match (text("PHALANX_COMM_SECRET"), text("PHALANX_COMM_SECRET_FILE")) {
                (Some(words), _) => Secret::Words(words),
                (None, Some(path)) => Secret::File(path.into()),
                (None, None) => Secret::Unnamed,
            },
            ..default
        })
    }

    /// With another limit; the warning still comes before it, and nobody is late before it.
    pub fn with_limit(self, limit: Duration) -> CommOptions {
        CommOptions {
            limit,
            warn_after: self.warn_after.min(limit / 2),
            late_limit: self.late_limit.max(limit),
            ..self
        }
    }

    /// How often a rank gives a sign of life.
    pub fn beat(&self) -> Duration {
        (self.limit / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}
