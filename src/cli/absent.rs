//! Subcommands that DeePMD-kit has and Phalanx has not: known by name, so that the answer helps.

use crate::err;
use crate::error::Error;
use clap::{Arg, ArgAction};

/// Name, and what DeePMD-kit does under it.
const ABSENT: &[(&str, &str)] = &[
    ("compress", "turns embedding nets into tables"),
    ("convert-backend", "converts a model file between frameworks"),
    ("change-bias", "adjusts the energy bias to data"),
    ("model-devi", "compares the predictions of several models"),
    ("eval-desc", "writes descriptors of frames"),
    ("embed", "writes embeddings of frames"),
    ("convert-from", "converts old TensorFlow models"),
    ("transfer", "copies parameters between TensorFlow models"),
    ("train-nvnmd", "trains models for NVNMD hardware"),
    ("gui", "serves the graphical editor of inputs"),
    ("pretrained", "downloads pretrained models"),
];

/// Adds the names, hidden from the help; whatever follows them is accepted.
pub fn add_all(mut program: clap::Command) -> clap::Command {
    for (name, _) in ABSENT {
        let rest = Arg::new("rest")
            .action(ArgAction::Append)
            .num_args(0..)
            .allow_hyphen_values(true)
            .trailing_var_arg(true);
        program = program.subcommand(clap::Command::new(*name).hide(true).disable_help_flag(true).arg(rest));
    }
    program
}

/// Says that a command is not here, and where it is.
pub fn error(name: &str) -> Error {
    let what = ABSENT.iter().find(|(known, _)| *known == name).map_or("", |(_, what)| what);
    err!("dp {name} ({what}) is not part of Phalanx yet").help(format!(
        "make a model file with `dp freeze -o model.dp` and use DeePMD-kit's `dp {name}` with it: it reads .dp files"
    ))
}
