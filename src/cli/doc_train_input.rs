//! `dp doc-train-input`: prints all keys of a training input.

use super::logging::LogArgs;
use super::{Command, print, typed};
use crate::error::Result;
use crate::train::input;
use clap::Args;

pub(super) const COMMAND: Command = Command {
    name: "doc-train-input",
    about: "Print all keys of a training input",
    examples: "Examples:\n  dp doc-train-input | less\n  dp doc-train-input --out-type json_schema > input.schema.json",
    define: DocArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp doc-train-input`.
#[derive(Debug, Clone, clap::Args)]
struct DocArgs {
    /// Form of the output: text, DeePMD-kit's list of keys, or a schema for editors
    #[arg(long, value_name = "FORM", default_value = "rst", value_parser = ["rst", "json", "json_schema"])]
    out_type: String,
    /// Keys of multi-task inputs; they are among the others, so it has no effect
    #[arg(long)]
    #[allow(dead_code)]
    multi_task: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &DocArgs) -> Result<()> {
    args.log.start()?;
    match args.out_type.as_str() {
        "json" => print(&format!("{}\n", input::input_arguments())),
        "json_schema" => print(&format!("{:#}\n", input::input_schema())),
        _ => print(&input::doc_train_input()),
    }
}
