//! `pinn train`: trains a PiNet model.

use crate::cli::logging::LogArgs;
use crate::cli::{Command, typed};
use crate::engine::choice::DeviceChoice;
use crate::error::Result;
use crate::pinn::train::{self, TrainArgs};
use crate::report::log::parse_level;
use crate::{bail, err};
use clap::Args;
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "train",
    about: "Train a model",
    examples: "Examples:\n  pinn train params.yml -t train.yml -e eval.yml -b 10\n  \
               pinn train params.yml -d model --init --train-steps 100000\n  mpirun -n 4 pinn train params.yml -b 10",
    define: TrainFlags::augment_args,
    run: |matches, _| typed::<TrainFlags>(matches).resolve().and_then(|args| train::main(&args)),
};

/// The command line of `pinn train`, as typed.
#[derive(Debug, Clone, clap::Args)]
struct TrainFlags {
    /// params.yml, or the folder of a model
    #[arg(value_name = "PARAMS")]
    params: PathBuf,
    /// The folder of the model [default: model_dir of params.yml]
    #[arg(short = 'd', long, value_name = "DIR")]
    model_dir: Option<PathBuf>,
    /// The training data: TFRecords (.yml), or what `pinn convert` reads
    #[arg(short, long, value_name = "DATA", default_value = "train.yml")]
    train_ds: String,
    /// The data of evaluations
    #[arg(short, long, value_name = "DATA", default_value = "eval.yml")]
    eval_ds: String,
    /// Format of both (Phalanx only): auto, tfr, runner, ase, qm9, deepmd, mimic
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    fmt: String,
    /// Structures in a batch [default: batches as they are stored]
    #[arg(short, long, value_name = "NUMBER", value_parser = whole)]
    batch: Option<u64>,
    /// Structures in a batch of an evaluation [default: as --batch]
    #[arg(long, value_name = "NUMBER", value_parser = whole)]
    eval_bs: Option<u64>,
    /// Keep prepared structures in memory (the default)
    #[arg(long, overrides_with = "no_cache")]
    cache: bool,
    /// Read structures anew each time
    #[arg(long, overrides_with = "cache")]
    no_cache: bool,
    /// Make neighbour lists once (the default)
    #[arg(long, overrides_with = "no_preprocess")]
    preprocess: bool,
    /// Make neighbour lists anew each time
    #[arg(long, overrides_with = "preprocess")]
    no_preprocess: bool,
    /// Where prepared structures are kept instead of in memory
    #[arg(long, value_name = "DIR")]
    scratch_dir: Option<PathBuf>,
    /// Steps of the whole run; a run that is continued goes on to this number
    #[arg(long, value_name = "STEPS", default_value = "1000000", value_parser = whole)]
    train_steps: u64,
    /// Batches of an evaluation [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = whole)]
    eval_steps: Option<u64>,
    /// Batches among which the next one is drawn
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = whole)]
    shuffle_buffer: u64,
    /// Steps between log lines and events
    #[arg(long, value_name = "STEPS", default_value = "1000", value_parser = whole)]
    log_every: u64,
    /// Steps between checkpoints
    #[arg(long, value_name = "STEPS", default_value = "10000", value_parser = whole)]
    ckpt_every: u64,
    /// Checkpoints that are kept
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = whole)]
    max_ckpts: u64,
    /// End when a metric has not fallen for that many steps: metric:steps, several joined by commas
    #[arg(long, value_name = "METRIC:STEPS")]
    early_stop: Option<String>,
    /// Fit e_dress and atom_types to the training data first
    #[arg(long, overrides_with = "no_init")]
    init: bool,
    /// Take e_dress and atom_types from params.yml (the default)
    #[arg(long, overrides_with = "init")]
    no_init: bool,
    /// Where to compute: auto, cpu, cuda or cuda:INDEX (Phalanx only)
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// The same bits for every number of processes that share one training set (Phalanx only)
    #[arg(long)]
    reproducible: bool,
    /// At the end, tell where the time went (Phalanx only)
    #[arg(long)]
    profile: bool,
    /// Exit with 0 also after SIGTERM, SIGINT or SIGHUP, instead of 143, 130 or 129 (Phalanx only)
    #[arg(long)]
    zero_on_stop: bool,
    /// With several processes: only rank 0 logs, all log to one place, or each to its own file (Phalanx only)
    #[arg(short = 'm', long, value_name = "MODE", default_value = "master", value_parser = ["master", "collect", "workers"])]
    mpi_log: String,
    #[command(flatten)]
    log: LogArgs,
}

impl TrainFlags {
    /// What is meant.
    fn resolve(self) -> Result<TrainArgs> {
        for (flag, value) in [
            ("--log-every", self.log_every),
            ("--ckpt-every", self.ckpt_every),
            ("--max-ckpts", self.max_ckpts),
        ] {
            if value == 0 {
                bail!("{flag} 0: wanted at least 1");
            }
        }
        for (flag, value) in [("--batch", self.batch), ("--eval-bs", self.eval_bs)] {
            if value == Some(0) {
                bail!("{flag} 0: wanted at least 1");
            }
        }
        Ok(TrainArgs {
            params: self.params,
            model_dir: self.model_dir,
            train_ds: self.train_ds,
            eval_ds: self.eval_ds,
            fmt: self.fmt,
            batch: self.batch.map(|n| n as usize),
            eval_batch: self.eval_bs.map(|n| n as usize),
            cache: !self.no_cache,
            preprocess: !self.no_preprocess,
            scratch_dir: self.scratch_dir,
            train_steps: self.train_steps,
            eval_steps: self.eval_steps,
            shuffle_buffer: self.shuffle_buffer as usize,
            log_every: self.log_every,
            ckpt_every: self.ckpt_every,
            max_ckpts: self.max_ckpts as usize,
            early_stop: self.early_stop.as_deref().map_or(Ok(Vec::new()), early_stops)?,
            init: self.init,
            device: self.device,
            profile: self.profile,
            reproducible: self.reproducible,
            log_level: parse_level(&self.log.log_level)?,
            log_path: self.log.log_path,
            mpi_log: self.mpi_log.parse()?,
            zero_on_stop: self.zero_on_stop,
        })
    }
}

/// A number of steps; 1e6 is one too.
fn whole(text: &str) -> Result<u64> {
    let float =
        || text.parse::<f64>().ok().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64);
    text.parse().ok().or_else(float).ok_or_else(|| err!("wanted a whole number of at least 0"))
}

/// `METRICS/E_RMSE:10000,loss:500`.
fn early_stops(text: &str) -> Result<Vec<(String, u64)>> {
    let one = |part: &str| {
        let wrong = || err!("--early-stop: found \"{part}\", wanted metric:steps");
        let (metric, steps) = part.rsplit_once(':').ok_or_else(wrong)?;
        if metric.trim().is_empty() {
            return Err(wrong());
        }
        Ok((metric.trim().to_owned(), whole(steps.trim()).map_err(|_| wrong())?))
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<TrainArgs> {
        let matches = super::super::definition()
            .try_get_matches_from(line.split_whitespace())
            .map_err(|e| err!("{e}"))?;
        let (_, matches) = matches.subcommand().unwrap();
        typed::<TrainFlags>(matches).resolve()
    }

    #[test]
    fn a_bare_line_has_the_defaults_of_pinn() {
        let args = args("pinn train params.yml").unwrap();
        assert_eq!((args.train_ds.as_str(), args.eval_ds.as_str()), ("train.yml", "eval.yml"));
        assert_eq!((args.batch, args.eval_batch, args.eval_steps, args.model_dir), (None, None, None, None));
        assert_eq!((args.train_steps, args.log_every, args.ckpt_every), (1_000_000, 1000, 10_000));
        assert_eq!((args.shuffle_buffer, args.max_ckpts), (100, 1));
        assert!(args.cache && args.preprocess && !args.init && args.early_stop.is_empty());
    }

    #[test]
    fn every_flag_is_understood_and_the_last_of_two_opposites_holds() {
        let args = args(
            "pinn train p.yml -d m -t a.yml -e b.yml -b 10 --eval-bs 5 --no-cache --no-preprocess --scratch-dir s \
             --train-steps 1e5 --eval-steps 7 --shuffle-buffer 3 --log-every 10 --ckpt-every 20 --max-ckpts 4 \
             --early-stop METRICS/E_RMSE:1000,loss:5e2 --no-init --init",
        )
        .unwrap();
        assert_eq!((args.batch, args.eval_batch, args.train_steps), (Some(10), Some(5), 100_000));
        assert!(!args.cache && !args.preprocess && args.init);
        assert_eq!(args.early_stop, [("METRICS/E_RMSE".to_string(), 1000), ("loss".to_string(), 500)]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for line in
            ["-b 0", "-b x", "--early-stop loss", "--ckpt-every 0", "--device tpu", "--train-steps 1.5"]
        {
            assert!(args(&format!("pinn train p.yml {line}")).is_err(), "{line}");
        }
    }
}
