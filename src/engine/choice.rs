//! Where to compute: what the user asked for, and the device that this rank gets.

use crate::error::{Error, Result};
use crate::gpu::Cuda;
use crate::{bail, err};
use std::str::FromStr;
use std::sync::Arc;

/// Where to compute, as `--device` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// A GPU where there is one.
    #[default]
    Auto,
    Cpu,
    /// A GPU, by index where one is given.
    Cuda(Option<usize>),
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "auto" => Ok(DeviceChoice::Auto),
            None if text == "cpu" => Ok(DeviceChoice::Cpu),
            None if text == "cuda" || text == "gpu" => Ok(DeviceChoice::Cuda(None)),
            Some(("cuda" | "gpu", index)) if index.parse::<usize>().is_ok() => {
                Ok(DeviceChoice::Cuda(index.parse().ok()))
            }
            _ => bail!("wanted auto, cpu, cuda or cuda:INDEX"),
        }
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceChoice::Auto => write!(f, "auto"),
            DeviceChoice::Cpu => write!(f, "cpu"),
            DeviceChoice::Cuda(None) => write!(f, "cuda"),
            DeviceChoice::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

/// How a line begins that tells of a GPU which is not used.
const ON_THE_CPU: &str = "computing on the CPU";

/// The GPU of this rank.
#[derive(Clone)]
pub struct Gpu {
    pub cuda: Arc<Cuda>,
    pub index: usize,
    pub name: String,
    /// What tells this GPU from every other.
    pub uuid: String,
}

impl DeviceChoice {
    /// The GPU for the rank with this number on its host; `None`: the CPU.
    pub fn find(self, local_rank: usize, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Gpu>> {
        if self == DeviceChoice::Cpu {
            return Ok(None);
        }
        match self.gpu_of(local_rank, env) {
            // Most machines without a GPU have no driver either; there this is no warning.
            Err(_) if self == DeviceChoice::Auto && !Cuda::has_driver(env) => {
                log::info!("{ON_THE_CPU}: no CUDA driver was found");
                Ok(None)
            }
            gpu => self.or_cpu(gpu),
        }
    }

    /// What becomes of a GPU that cannot be had, or cannot do what this model wants: where the user asked for a GPU, an error;
    /// under `auto` the CPU, told in one line. Every command asks here.
    pub fn or_cpu<T>(self, on_gpu: Result<T>) -> Result<Option<T>> {
        match on_gpu {
            Ok(on_gpu) => Ok(Some(on_gpu)),
            Err(e) if self == DeviceChoice::Auto => {
                log::warn!("{ON_THE_CPU}: {}", e.to_string().replace("\n  help: ", "; "));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn gpu_of(self, local_rank: usize, env: &dyn Fn(&str) -> Option<String>) -> Result<Gpu> {
        let cuda = Cuda::find(env)?;
        let index = match self {
            DeviceChoice::Cuda(Some(index)) => index,
            // Where each rank sees its own GPU only, that is number 0 on all of them.
            _ => local_rank % cuda.n_devices(),
        };
        let (name, uuid) = cuda.describe(index)?;
        Ok(Gpu { index, name, uuid, cuda })
    }
}

/// Refuses ranks that would share a GPU, given the host and the GPU of every rank, unless that is allowed.
pub fn check_shared(places: &[Option<(String, String)>], allowed: bool) -> Result<bool> {
    for (rank, place) in places.iter().enumerate() {
        let Some((host, _)) = place else { continue };
        let Some(first) = places[..rank].iter().position(|other| other == place) else { continue };
        if allowed {
            return Ok(true);
        }
        let ranks = places.iter().flatten().filter(|(other, _)| other == host).count();
        let mut gpus: Vec<_> = places.iter().flatten().filter(|(other, _)| other == host).collect();
        gpus.sort();
        gpus.dedup();
        return Err(err!(
            "{ranks} ranks on {host} but {} GPUs: ranks {first} and {rank} would share one",
            gpus.len()
        )
        .help(
            "start as many ranks as there are GPUs, or use --device cpu; PHALANX_SHARE_GPU=1 lets ranks share a GPU, which \
             is of use for tests only",
        ));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_numbered() {
        let device = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(device("auto").unwrap(), DeviceChoice::Auto);
        assert_eq!(device("cpu").unwrap(), DeviceChoice::Cpu);
        assert_eq!(device("cuda").unwrap(), DeviceChoice::Cuda(None));
        assert_eq!(device("cuda:3").unwrap(), DeviceChoice::Cuda(Some(3)));
        assert!(device("cuda:x").is_err() && device("tpu").is_err());
    }

    #[test]
    fn a_gpu_that_cannot_be_had_is_the_cpu_under_auto_and_an_error_where_it_was_asked_for() {
        let refused = || -> Result<()> { Err(err!("too wide").help("use --device cpu")) };
        assert_eq!(DeviceChoice::Auto.or_cpu(Ok(7)).unwrap(), Some(7));
        assert_eq!(DeviceChoice::Auto.or_cpu(refused()).unwrap(), None);
        for asked in [DeviceChoice::Cuda(None), DeviceChoice::Cuda(Some(1))] {
            assert_eq!(asked.or_cpu(Ok(7)).unwrap(), Some(7));
            assert_eq!(asked.or_cpu(refused()).unwrap_err().message(), "too wide");
        }
    }

    #[test]
    fn ranks_share_a_gpu_only_where_that_is_allowed() {
        let place = |host: &str, gpu: &str| Some((host.to_string(), gpu.to_string()));
        let apart = [place("a", "1"), place("a", "2"), place("b", "1"), None, None];
        assert!(!check_shared(&apart, false).unwrap());
        let together = [place("a", "1"), place("a", "2"), place("a", "1")];
        let error = check_shared(&together, false).unwrap_err();
        assert_eq!(error.message(), "3 ranks on a but 2 GPUs: ranks 0 and 2 would share one");
        assert!(check_shared(&together, true).unwrap());
    }
}
