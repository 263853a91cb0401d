//! `pinn convert`: writes a data set as TFRecords, whole or in subsets.

use super::note;
use crate::cli::{Command, print, typed};
use crate::error::Result;
use crate::pinn::data::{Source, detect::DataSet, tfrecord};
use crate::pinn::split::split_list;
use crate::{bail, err};
use clap::Args;
use std::collections::BTreeSet;
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "convert",
    about: "Convert or split a data set into TFRecords",
    examples: "Examples:\n  pinn convert frames.xyz -o dataset\n  pinn convert input.data -o 'train:8,eval:2'\n  \
               pinn convert mimic.mpt,mimic.trr,ENERGIES -o 'train:8,eval:1,test:1'",
    define: ConvertArgs::augment_args,
    run: |matches, _| run(&typed::<ConvertArgs>(matches)),
};

/// The command line of `pinn convert`.
#[derive(Debug, Clone, clap::Args)]
struct ConvertArgs {
    /// The data set: a file, a folder, several joined by commas
    #[arg(value_name = "FILENAME")]
    filename: String,
    /// Its format: auto, tfr, runner, ase (xyz), qm9, qm9:LABEL, deepmd, mimic
    #[arg(short, long, alias = "format", value_name = "FORMAT", default_value = "auto")]
    fmt: String,
    /// Name of the new data set, or subsets with their ratios: train:8,eval:2
    #[arg(short, long, value_name = "NAME", default_value = "dataset")]
    output: String,
    /// Shuffle before splitting (the default); a data set that is not split keeps its order
    #[arg(long, overrides_with = "no_shuffle")]
    shuffle: bool,
    /// Split in the order of the data set
    #[arg(long, overrides_with = "shuffle")]
    no_shuffle: bool,
    /// Seed of the shuffle
    #[arg(long, value_name = "SEED", default_value_t = 0, allow_negative_numbers = true)]
    seed: i64,
    /// Structures in all, over the subsets by their ratios; -1 for all
    #[arg(short, long, value_name = "NUMBER", default_value_t = -1, allow_negative_numbers = true)]
    total: i64,
}

fn run(args: &ConvertArgs) -> Result<()> {
    if args.total < -1 || args.total == 0 {
        return Err(err!("--total {}: wanted a number above 0, or -1 for all", args.total));
    }
    let subsets = subsets(&args.output)?;
    let data = DataSet::new(&args.filename, &args.fmt)?;
    let source = data.open()?;
    if data.has_mixed_units() && source.keys().f_data {
        note(
            "note: energies are in Hartree and forces in kJ/(mol A), as PiNN has them for MiMiC; see docs/pinn.md",
        );
    }
    match subsets {
        None => {
            let n = usize::try_from(args.total).map_or(source.len(), |total| total.min(source.len()));
            let name = args.output.strip_suffix(".yml").unwrap_or(&args.output);
            write(name, source.as_ref(), &(0..n).collect::<Vec<_>>())
        }
        Some(ratios) => {
            let sum: f64 = ratios.iter().map(|(_, ratio)| ratio).sum();
            // Python takes the absolute value of a seed.
            let shuffle = (!args.no_shuffle).then(|| args.seed.unsigned_abs());
            let mut parts = split_list(source.len(), &ratios, shuffle).map_err(|e| e.at("--output"))?;
            for ((name, part), (_, ratio)) in parts.iter_mut().zip(&ratios) {
                if args.total > 0 {
                    part.truncate((args.total as f64 * ratio / sum) as usize);
                }
                if part.is_empty() {
                    return Err(err!(
                        "{name}: none of the {} structures is left for this subset",
                        source.len()
                    )
                    .help("change the ratios of --output, or raise --total"));
                }
            }
            parts.iter().try_for_each(|(name, part)| write(name, source.as_ref(), part))
        }
    }
}

/// Names and ratios; `None` where the output is one data set.
fn subsets(output: &str) -> Result<Option<Vec<(String, f64)>>> {
    if !output.contains(':') {
        return Ok(None);
    }
    let mut ratios = Vec::new();
    for part in output.split(',') {
        let wrong =
            || err!("--output: found \"{part}\", wanted name:ratio").help("write it as train:8,eval:2");
        let (name, ratio) = part.split_once(':').ok_or_else(wrong)?;
        let ratio =
            ratio.trim().parse::<f64>().ok().filter(|r| r.is_finite() && *r >= 0.0).ok_or_else(wrong)?;
        if name.trim().is_empty() {
            return Err(wrong());
        }
        ratios.push((name.trim().to_owned(), ratio));
    }
    if ratios.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len() < ratios.len() {
        bail!("--output: two subsets have the same name");
    }
    Ok(Some(ratios))
}

fn write(name: &str, source: &dyn Source, indices: &[usize]) -> Result<()> {
    let yml = PathBuf::from(format!("{name}.yml"));
    let n = tfrecord::write(&yml, source.keys(), indices.iter().map(|&i| source.read(i)))?;
    print(&format!("{n} samples written to {name}.tfr\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_one_name_or_names_with_ratios() {
        assert_eq!(subsets("dataset").unwrap(), None);
        let want = vec![("train".to_string(), 8.0), ("eval".to_string(), 0.5)];
        assert_eq!(subsets("train:8, eval:0.5").unwrap(), Some(want));
        for wrong in ["train:8,eval", "train:x", ":8", "a:1,a:2", "a:-1"] {
            assert!(subsets(wrong).is_err(), "{wrong}");
        }
    }
}
