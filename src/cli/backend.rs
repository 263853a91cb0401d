//! `--pt`, `--tf` and the like: accepted so that command lines of DeePMD-kit run as they are.

use crate::config::check::did_you_mean;
use crate::err;
use crate::error::Result;

/// The framework whose conventions are meant. There is one engine; nothing of the framework itself is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    TensorFlow,
    TensorFlow2,
    PyTorch,
    PyTorchExportable,
    Paddle,
    Jax,
    DpModel,
}

impl Backend {
    /// How DeePMD-kit's model files of this backend end.
    pub fn model_ending(self) -> &'static str {
        match self {
            Backend::TensorFlow => "pb",
            Backend::TensorFlow2 => "savedmodeltf",
            Backend::PyTorch => "pth",
            Backend::PyTorchExportable => "pt2",
            Backend::Paddle => "json",
            Backend::Jax => "hlo",
            Backend::DpModel => "dp",
        }
    }
}

/// Every name of every backend.
const NAMES: &[(&str, Backend)] = &[
    ("pytorch", Backend::PyTorch),
    ("pt", Backend::PyTorch),
    ("tensorflow", Backend::TensorFlow),
    ("tf", Backend::TensorFlow),
    ("tensorflow2", Backend::TensorFlow2),
    ("tf2", Backend::TensorFlow2),
    ("pytorch-exportable", Backend::PyTorchExportable),
    ("pt-expt", Backend::PyTorchExportable),
    ("paddle", Backend::Paddle),
    ("pd", Backend::Paddle),
    ("jax", Backend::Jax),
    ("dpmodel", Backend::DpModel),
    ("dp", Backend::DpModel),
    ("numpy", Backend::DpModel),
    ("np", Backend::DpModel),
];

/// The flags before the subcommand, as typed.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Backend (conventions only: Phalanx has its own engine)")]
pub struct BackendFlags {
    /// Backend by name: pytorch, tensorflow, tensorflow2, paddle, jax, dpmodel; DP_BACKEND sets the default
    #[arg(short, long, value_name = "NAME", value_parser = by_name, group = "framework")]
    backend: Option<Backend>,
    /// The same as --backend pytorch
    #[arg(long, alias = "pytorch", group = "framework")]
    pt: bool,
    /// The same as --backend tensorflow
    #[arg(long, alias = "tensorflow", group = "framework")]
    tf: bool,
    /// The same as --backend tensorflow2
    #[arg(long, alias = "tensorflow2", group = "framework")]
    tf2: bool,
    /// The same as --backend paddle
    #[arg(long, alias = "paddle", group = "framework")]
    pd: bool,
    /// The same as --backend jax
    #[arg(long, group = "framework")]
    jax: bool,
    /// The same as --backend dpmodel
    #[arg(long, aliases = ["dpmodel", "numpy", "np"], group = "framework")]
    dp: bool,
    /// The same as --backend pytorch-exportable
    #[arg(long, alias = "pytorch-exportable", group = "framework")]
    pt_expt: bool,
}

impl BackendFlags {
    /// The backend that was named, by a flag or, in `default`, by the environment.
    pub fn resolve(&self, default: Option<String>) -> Result<Option<Backend>> {
        let flags = [
            (self.pt, Backend::PyTorch),
            (self.tf, Backend::TensorFlow),
            (self.tf2, Backend::TensorFlow2),
            (self.pd, Backend::Paddle),
            (self.jax, Backend::Jax),
            (self.dp, Backend::DpModel),
            (self.pt_expt, Backend::PyTorchExportable),
        ];
        let flag = flags.iter().find(|(set, _)| *set).map(|(_, backend)| *backend);
        match (self.backend.or(flag), default.filter(|name| !name.is_empty())) {
            (Some(backend), _) => Ok(Some(backend)),
            (None, Some(name)) => by_name(&name).map(Some).map_err(|e| e.at("DP_BACKEND")),
            (None, None) => Ok(None),
        }
    }
}

fn by_name(text: &str) -> Result<Backend> {
    let lower = text.to_lowercase();
    NAMES.iter().find(|(name, _)| *name == lower).map(|(_, backend)| *backend).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let near = did_you_mean(&lower, names.iter().copied());
        err!("\"{text}\" is not a backend").help(format!("{near}known: {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn backend(line: &str, default: Option<&str>) -> Result<Option<Backend>> {
        let program = BackendFlags::augment_args(clap::Command::new("dp")).infer_long_args(true);
        let matches = program.try_get_matches_from(line.split_whitespace()).map_err(|e| err!("{e}"))?;
        BackendFlags::from_arg_matches(&matches).unwrap().resolve(default.map(str::to_owned))
    }

    #[test]
    fn every_spelling_of_a_backend_is_understood() {
        for (name, want) in NAMES {
            assert_eq!(backend(&format!("dp --{name}"), None).unwrap(), Some(*want), "--{name}");
            assert_eq!(backend(&format!("dp -b {name}"), None).unwrap(), Some(*want), "-b {name}");
            assert_eq!(backend("dp", Some(name)).unwrap(), Some(*want), "DP_BACKEND={name}");
        }
        assert_eq!(backend("dp", None).unwrap(), None);
        assert_eq!(backend("dp --tf", Some("jax")).unwrap(), Some(Backend::TensorFlow));
    }

    #[test]
    fn two_backends_and_unknown_ones_are_refused() {
        assert!(backend("dp --pt --tf", None).is_err());
        assert!(backend("dp", Some("tourch")).unwrap_err().to_string().contains("DP_BACKEND"));
    }
}
