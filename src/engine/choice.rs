//! Where to compute: what the user asked for, and the device that this rank gets.

use super::cuda::Cuda;
use crate::error::{Error, Result};
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
        let cuda = match self {
            DeviceChoice::Cpu => return Ok(None),
            _ => Cuda::find(env),
        };
        let cuda = match (self, cuda) {
            (_, Ok(cuda)) => cuda,
            (DeviceChoice::Auto, Err(e)) => {
                log::debug!("no GPU: {e}");
                return Ok(None);
            }
            (_, Err(e)) => return Err(e),
        };
        let index = match self {
            DeviceChoice::Cuda(Some(index)) => index,
            // Where each rank sees its own GPU only, that is number 0 on all of them.
            _ => local_rank % cuda.n_devices(),
        };
        let (name, uuid) = cuda.describe(index)?;
        Ok(Some(Gpu { index, name, uuid, cuda }))
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
