//! `dp eval-desc`: writes the descriptors of atoms.

use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::data::{System, npy};
use crate::engine::choice::DeviceChoice;
use crate::err;
use crate::error::{IoContext, Result};
use crate::export::atomic;
use crate::infer::Predictor;
use crate::report::progress::Progress;
use clap::Args;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "eval-desc",
    about: "Write the descriptors of atoms",
    examples: "Examples:\n  dp eval-desc -m model.dp -s data -o desc\n  dp eval-desc -m model.dp -f systems.txt --dtype fp32",
    define: DescriptorArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp eval-desc`.
#[derive(Debug, Clone, clap::Args)]
struct DescriptorArgs {
    /// Model file (model.dp, model.yaml) or checkpoint (model.ckpt, its folder)
    #[arg(short, long, value_name = "MODEL", default_value = "frozen_model")]
    model: PathBuf,
    /// A folder that is searched for systems
    #[arg(short, long, value_name = "SYSTEM", default_value = ".", group = "data")]
    system: String,
    /// A text file with one system on each line
    #[arg(short = 'f', long, value_name = "FILE", group = "data")]
    datafile: Option<PathBuf>,
    /// The folder to write to: NAME.npy for each system, [frames, atoms, descriptor]
    #[arg(short, long, value_name = "FOLDER", default_value = "desc")]
    output: PathBuf,
    /// Numbers in the file; native is fp64, which DeePMD-kit writes for models of both precisions
    #[arg(long, value_name = "TYPE", default_value = "native", value_parser = ["fp32", "fp64", "native"])]
    dtype: String,
    /// The branch of a multi-task checkpoint
    #[arg(long, alias = "model-branch", value_name = "NAME")]
    head: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &DescriptorArgs) -> Result<()> {
    args.log.start()?;
    let paths = match &args.datafile {
        Some(file) => systems::listed(file)?,
        None => systems::search(std::slice::from_ref(&args.system))?,
    };
    let files = file_names(&paths, &args.output)?;
    let mut predictor = super::test::predictor(&args.model, args.head.as_deref(), DeviceChoice::Cpu)?;
    std::fs::create_dir_all(&args.output).io("create the folder", &args.output)?;
    for (path, file) in paths.iter().zip(&files) {
        log::info!("# -------output of dp eval_desc------- ");
        log::info!("# processing system : {path}");
        write_system(args, path, file, &mut predictor)?;
        log::info!("# ----------------------------------- ");
    }
    log::info!("# eval_desc completed successfully");
    Ok(())
}

/// A file for each system, named after the last part of its path. Two systems of one name would overwrite each other.
fn file_names(paths: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut taken: HashMap<String, &String> = HashMap::new();
    let mut files = Vec::new();
    for path in paths {
        let name = match path.trim_end_matches('/').rsplit('/').next() {
            Some(name) if !matches!(name, "" | "." | "..") => name.to_owned(),
            _ => real_name(path)?,
        };
        if let Some(other) = taken.insert(name.clone(), path) {
            return Err(err!("{other} and {path} would both be written to {name}.npy")
                .help("name the systems one by one, each with an output folder of its own (-o)"));
        }
        files.push(folder.join(format!("{name}.npy")));
    }
    Ok(files)
}

/// The name of a folder that was given as `.` or the like.
fn real_name(path: &str) -> Result<String> {
    let full = std::fs::canonicalize(path).io("find", Path::new(path))?;
    Ok(full.file_name().map_or("root".into(), |name| name.to_string_lossy().into_owned()))
}

fn write_system(args: &DescriptorArgs, path: &str, file: &Path, predictor: &mut Predictor) -> Result<()> {
    let system = System::open(path, predictor.type_map(), &predictor.wants())?;
    log::info!("# evaluating descriptors for {} frames", system.n_frames);
    let single = args.dtype == "fp32";
    let shape = [system.n_frames, system.n_atoms, predictor.model().n_descriptor()];
    let progress = Progress::counting("frames", system.n_frames as u64);
    let mut done = 0;
    atomic::write(file, |out| {
        npy::write_header(out, if single { "<f4" } else { "<f8" }, &shape.map(|n| n as u64))
            .io("write", file)?;
        predictor.for_each_descriptor(&system, |descriptors| {
            for x in descriptors {
                let written = if single {
                    out.write_all(&(*x as f32).to_le_bytes())
                } else {
                    out.write_all(&x.to_le_bytes())
                };
                written.io("write", file)?;
            }
            done += 1;
            progress.step(done);
            Ok(())
        })
    })?;
    progress.finish();
    log::info!("# descriptors saved to {}", file.display());
    log::info!("# descriptor shape: ({}, {}, {})", shape[0], shape[1], shape[2]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_systems_and_no_two_share_one() {
        let paths = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let names = file_names(&paths(&["a/water/", "b.hdf5#/ice"]), Path::new("desc")).unwrap();
        assert_eq!(names, [Path::new("desc/water.npy"), Path::new("desc/ice.npy")]);
        let error = file_names(&paths(&["a/water", "b/water"]), Path::new("desc")).unwrap_err();
        assert!(error.message().contains("a/water and b/water"), "{error}");
    }
}
