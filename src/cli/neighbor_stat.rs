//! `dp neighbor-stat`: the shortest distance and the most neighbours in data.

use super::literal::list;
use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::data::{Frame, System, Wants, format};
use crate::err;
use crate::error::Result;
use crate::neighbor::stat::NeighborStat;
use crate::report::progress::Progress;
use clap::Args;
use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const COMMAND: Command = Command {
    name: "neighbor-stat",
    about: "Find the shortest distance and the most neighbours in data",
    examples: "Example:\n  dp neighbor-stat -s data -r 6.0 -t O H",
    define: NeighborStatArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp neighbor-stat`.
#[derive(Debug, Clone, clap::Args)]
struct NeighborStatArgs {
    /// Folders that are searched for systems
    #[arg(short, long, value_name = "SYSTEM", num_args = 1.., default_value = ".")]
    system: Vec<String>,
    /// Cutoff radius, A
    #[arg(short, long, value_name = "RCUT", allow_negative_numbers = true)]
    rcut: f64,
    /// Names of the types, in the order of the numbers that are wanted; those of the data if absent
    #[arg(short, long, value_name = "TYPE", num_args = 1..)]
    type_map: Option<Vec<String>>,
    /// Count neighbours of all types together
    #[arg(long, alias = "one-type")]
    mixed_type: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &NeighborStatArgs) -> Result<()> {
    args.log.start()?;
    if !(args.rcut.is_finite() && args.rcut > 0.0) {
        return Err(err!("--rcut: {} A is not a cutoff radius", args.rcut).help("give a length above zero"));
    }
    let paths = systems::search(&args.system)?;
    let type_map = match &args.type_map {
        Some(type_map) => type_map.clone(),
        None => {
            let type_map = type_map_of(&paths)?;
            log::info!("type_map: {}", list(&type_map));
            type_map
        }
    };
    let open = |path: &String| System::open(path, &type_map, &Wants::default());
    let systems: Vec<System> = paths.par_iter().map(open).collect::<Result<_>>()?;
    let stat = statistics(&systems, args.rcut, type_map.len(), args.mixed_type)?;
    log::info!("min_nbor_dist: {:.6}", stat.min_distance);
    log::info!("max_nbor_size: {}", row(&stat.max_neighbors));
    Ok(())
}

/// Every name that a system has for its types, in the order of first appearance. Systems without names count.
fn type_map_of(paths: &[String]) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    let mut unnamed = 0;
    for path in paths {
        let source = format::open(path)?;
        match source.type_map()? {
            Some(own) => {
                let new: Vec<String> = own.into_iter().filter(|name| !names.contains(name)).collect();
                names.extend(new);
            }
            None => {
                let most = source.types()?.into_iter().max().unwrap_or(0).max(0);
                unnamed = unnamed.max(most as usize + 1);
            }
        }
    }
    for t in names.len()..unnamed {
        names.push(format!("Type_{t}"));
    }
    Ok(names)
}

/// The statistics of all frames of all systems, on all cores.
fn statistics(systems: &[System], rcut: f64, n_types: usize, mixed: bool) -> Result<NeighborStat> {
    let n_frames: usize = systems.iter().map(|system| system.n_frames).sum();
    let progress = Progress::counting("frames", n_frames as u64);
    let done = AtomicU64::new(0);
    let n_types = if mixed { 1 } else { n_types };
    let of_frame = |system: &System, index: usize| {
        let mut frame = system.read_frame(index)?;
        if mixed {
            forget_types(&mut frame);
        }
        let place = || format!("{}: frame {index}", system.path);
        let stat = NeighborStat::of(&frame, rcut, n_types).map_err(|e| e.at(place()))?;
        progress.step(done.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(stat)
    };
    let empty = || Ok(NeighborStat::empty(n_types));
    systems
        .par_iter()
        .flat_map(|system| (0..system.n_frames).into_par_iter().map(move |index| (system, index)))
        .map(|(system, index)| of_frame(system, index))
        .try_reduce_with(|a, b| Ok(a.merge(&b)))
        .unwrap_or_else(empty)
}

/// All real atoms become of one type.
fn forget_types(frame: &mut Frame) {
    frame.types = frame.types.iter().map(|&t| t.min(0)).collect();
}

/// `[ 8 26]`: numbers of equal width in brackets, broken before column 75, as scripts expect it.
fn row(numbers: &[usize]) -> String {
    let width = numbers.iter().map(|n| n.to_string().len()).max().unwrap_or(0);
    let (mut text, mut column) = (String::from("["), 1);
    for (i, n) in numbers.iter().enumerate() {
        if i > 0 {
            text.push(' ');
            column += 1;
        }
        if column + width > 74 {
            text.truncate(text.trim_end().len());
            text.push_str("\n ");
            column = 1;
        }
        text.push_str(&format!("{n:>width$}"));
        column += width;
    }
    text + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_numbers_is_aligned_and_broken() {
        assert_eq!(row(&[14, 26]), "[14 26]");
        assert_eq!(row(&[8, 126]), "[  8 126]");
        let long = row(&[100; 20]);
        assert_eq!(long, format!("[{}\n {}]", ["100"; 18].join(" "), ["100"; 2].join(" ")));
    }
}
