//! Subcommands that DeePMD-kit has and Phalanx has not: known by name, so that the answer helps.

use crate::err;
use crate::error::Error;
use clap::{Arg, ArgAction};

/// Name, what DeePMD-kit does under it, and what to do instead.
const ABSENT: &[(&str, &str, &str)] = &[
    (
        "embed",
        "writes embeddings of a database of structures",
        "convert the model with `dp convert-backend model.dp model.pth` and use DeePMD-kit's `dp embed`; \
         descriptors are written here too: dp eval-desc",
    ),
    (
        "convert-from",
        "converts old TensorFlow models",
        "use DeePMD-kit's `dp convert-from`, then bring the model here with `dp convert-backend model.pb model.dp`",
    ),
    (
        "transfer",
        "copies parameters between TensorFlow models",
        "use DeePMD-kit's `dp transfer` on its .pb files; to start from the parameters of a model here: \
         dp train input.json --init-frz-model model.dp",
    ),
    ("train-nvnmd", "trains models for NVNMD hardware", "use DeePMD-kit's `dp train-nvnmd`"),
    (
        "gui",
        "serves the graphical editor of inputs",
        "use DeePMD-kit's `dp gui`; `dp doc-train-input` prints all keys of an input",
    ),
    (
        "pretrained",
        "downloads pretrained models",
        "use DeePMD-kit's `dp pretrained`; those models have descriptors that are not part of Phalanx yet",
    ),
];

/// Adds the names, hidden from the help; whatever follows them is accepted.
pub fn add_all(mut program: clap::Command) -> clap::Command {
    for (name, _, _) in ABSENT {
        let rest = Arg::new("rest")
            .action(ArgAction::Append)
            .num_args(0..)
            .allow_hyphen_values(true)
            .trailing_var_arg(true);
        program = program.subcommand(clap::Command::new(*name).hide(true).disable_help_flag(true).arg(rest));
    }
    program
}

/// Says that a command is not here, and what to do.
pub fn error(name: &str) -> Error {
    let found = ABSENT.iter().find(|(known, _, _)| *known == name);
    let (what, advice) = found.map_or(("", ""), |(_, what, advice)| (*what, *advice));
    err!("dp {name} ({what}) is not part of Phalanx yet").help(advice)
}
