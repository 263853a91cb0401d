//! `dp train`: trains a model.

use super::backend::Backend;
use super::logging::LogArgs;
use super::{Command, Global, typed};
use crate::engine::choice::DeviceChoice;
use crate::err;
use crate::error::Result;
use crate::report::dashboard::DashboardOptions;
use crate::report::log;
use crate::train::{RunOptions, Start};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

pub(super) const COMMAND: Command = Command {
    name: "train",
    about: "Train a model",
    examples: "Examples:\n  dp train input.json\n  dp train input.json --restart model.ckpt\n  \
               dp train input.json --resume auto\n  \
               dp train input.json --init-model model.ckpt\n  mpirun -n 4 dp train input.json",
    define: TrainFlags::augment_args,
    run: |matches, global| typed::<TrainFlags>(matches).resolve(*global).and_then(run),
};

/// What a backend's checkpoint `model.ckpt` ends in: DP-GEN looks for these files, takes them to the next iteration and restarts
/// where they are. Ours has these names too where a backend was named.
fn checkpoint_endings(backend: Option<Backend>) -> &'static [&'static str] {
    match backend {
        Some(Backend::PyTorch | Backend::PyTorchExportable) => &[".pt"],
        Some(Backend::TensorFlow) => &[".index", ".meta", ".data-00000-of-00001"],
        _ => &[],
    }
}

/// The command line of `dp train`, as typed.
#[derive(Debug, Clone, clap::Args)]
struct TrainFlags {
    /// The input of the training run, JSON or YAML
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Start with the weights of a checkpoint, at step 0
    #[arg(short = 'i', long, value_name = "CHECKPOINT", group = "start")]
    init_model: Option<PathBuf>,
    /// Continue the run that wrote a checkpoint: model.ckpt, model.ckpt-1000.phx, or the folder
    #[arg(short = 'r', long, value_name = "CHECKPOINT", group = "start")]
    restart: Option<PathBuf>,
    /// auto: continue from the newest complete checkpoint of this run, or begin where there is none; never: begin anew,
    /// whatever training.resume says (Phalanx only)
    #[arg(long, value_name = "MODE", value_parser = ["auto", "never"], conflicts_with = "restart")]
    resume: Option<String>,
    /// Start with the weights of a model file (.dp or .yaml), at step 0
    #[arg(short = 'f', long, value_name = "MODEL", group = "start")]
    init_frz_model: Option<PathBuf>,
    /// Adapt a trained model to new data: its weights, and an energy bias fitted to the data
    #[arg(short = 't', long, value_name = "MODEL", group = "start")]
    finetune: Option<PathBuf>,
    /// With --init-model or --finetune: take the model section from there instead of from the input
    #[arg(long)]
    use_pretrain_script: bool,
    /// Where the input goes with all defaults written out
    #[arg(short, long, value_name = "FILE", default_value = "out.json")]
    output: PathBuf,
    /// Leave the neighbour statistics out: sel is neither checked nor found
    #[arg(long)]
    skip_neighbor_stat: bool,
    /// Replace the learning curve and checkpoints of an earlier run without a backup (Phalanx only)
    #[arg(long)]
    no_backup: bool,
    /// With --finetune: the branch of a multi-task model to start from; RANDOM: its descriptor alone, with a new fitting net
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    model_branch: String,
    /// Accepted, as DeePMD-kit's users have it in their scripts; what does not fit is an error here all the same
    #[arg(long)]
    #[allow(dead_code)]
    force_load: bool,
    /// Where to compute: auto, cpu, cuda or cuda:INDEX (Phalanx only)
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceChoice::from_str)]
    device: DeviceChoice,
    /// At the end, tell where the time went (Phalanx only)
    #[arg(long)]
    profile: bool,
    /// Instead of training: try learning rates in a short run and propose learning_rate.start_lr; the curve goes to find_lr.out
    /// (Phalanx only)
    #[arg(long, conflicts_with_all = ["restart", "resume", "dashboard", "profile"])]
    find_lr: bool,
    /// Serve a page that shows the run: curves, speed, log (Phalanx only)
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = DashboardOptions::from_str
    )]
    dashboard: Option<DashboardOptions>,
    /// With --dashboard: whoever can reach the address may look
    #[arg(long, requires = "dashboard")]
    dashboard_for_all: bool,
    /// Exit with 0 also after SIGTERM, SIGINT or SIGHUP, instead of 143, 130 or 129 (Phalanx only)
    #[arg(long)]
    zero_on_stop: bool,
    /// With several processes: only rank 0 logs, all log to one place, or each to its own file
    #[arg(
        short = 'm',
        long,
        value_name = "MODE",
        default_value = "master",
        value_parser = ["master", "collect", "workers"]
    )]
    mpi_log: String,
    #[command(flatten)]
    log: LogArgs,
}

impl TrainFlags {
    /// What is meant.
    fn resolve(self, global: Global) -> Result<RunOptions> {
        let start = match (self.init_model, self.restart, self.init_frz_model, self.finetune) {
            (_, Some(path), _, _) => Start::Restart(path),
            (_, _, _, Some(path)) => Start::Finetune(path),
            (Some(path), _, _, _) | (_, _, Some(path), _) => Start::Model(path),
            _ => Start::Fresh,
        };
        if !self.model_branch.is_empty() && !matches!(start, Start::Finetune(_)) {
            return Err(err!(
                "--model-branch {}: there is no model that it could be a branch of",
                self.model_branch
            )
            .help("it goes with --finetune MODEL"));
        }
        let options = RunOptions {
            input: self.input.into(),
            start,
            model_branch: self.model_branch,
            output: self.output,
            skip_neighbor_stat: self.skip_neighbor_stat,
            no_backup: self.no_backup,
            use_pretrain_script: self.use_pretrain_script,
            checkpoint_endings: checkpoint_endings(global.backend),
            pytorch_conventions: global.backend == Some(Backend::PyTorch),
            device: self.device,
            profile: self.profile,
            find_rate: self.find_lr,
            dashboard: self
                .dashboard
                .map(|options| if self.dashboard_for_all { options.for_all() } else { options }),
            log_level: log::parse_level(&self.log.log_level)?,
            log_path: self.log.log_path,
            mpi_log: self.mpi_log.parse()?,
            zero_on_stop: self.zero_on_stop,
            resume: self.resume.map(|mode| mode == "auto"),
        };
        Ok(options)
    }
}

fn run(options: RunOptions) -> Result<()> {
    crate::train::main(&options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::log::MpiLog;
    use crate::train::InputSource;

    fn args(line: &str) -> Result<RunOptions> {
        let matches = super::super::definition()
            .try_get_matches_from(line.split_whitespace())
            .map_err(|e| err!("{e}"))?;
        let (_, matches) = matches.subcommand().unwrap();
        typed::<TrainFlags>(matches).resolve(Global { backend: Some(Backend::PyTorch) })
    }

    #[test]
    fn a_bare_line_has_the_defaults_of_deepmd_kit() {
        let args = args("dp --pt train input.json").unwrap();
        assert_eq!(args.input, InputSource::File("input.json".into()));
        assert_eq!(args.output, PathBuf::from("out.json"));
        assert_eq!(
            (args.start, args.mpi_log, args.device),
            (Start::Fresh, MpiLog::Master, DeviceChoice::Auto)
        );
        assert!(!args.skip_neighbor_stat && !args.use_pretrain_script && !args.profile);
    }

    #[test]
    fn every_start_has_its_flag_and_two_contradict() {
        let start = |flags: &str| args(&format!("dp train {flags} in.json")).map(|args| args.start);
        for flag in ["-i", "--init-model"] {
            assert_eq!(start(&format!("{flag} a")).unwrap(), Start::Model("a".into()));
        }
        for flag in ["-r", "--restart", "--rest"] {
            assert_eq!(start(&format!("{flag} a")).unwrap(), Start::Restart("a".into()));
        }
        assert_eq!(start("-f a.dp").unwrap(), Start::Model("a.dp".into()));
        assert_eq!(start("--finetune a.dp").unwrap(), Start::Finetune("a.dp".into()));
        assert!(start("-r a -i b").unwrap_err().message().contains("cannot be used with"));
    }

    #[test]
    fn the_device_is_part_of_the_line() {
        let device = |text: &str| args(&format!("dp train in.json --device {text}")).map(|args| args.device);
        assert_eq!(device("cuda:3").unwrap(), DeviceChoice::Cuda(Some(3)));
        assert!(device("tpu").is_err());
    }

    #[test]
    fn the_log_of_a_rank_follows_the_line() {
        let args = args("dp train in.json -m workers -l a.log -v 3").unwrap();
        assert_eq!(args.mpi_log, MpiLog::Workers);
        assert_eq!((args.log_level, args.log_path), (::log::LevelFilter::Debug, Some("a.log".into())));
    }

    #[test]
    fn a_branch_is_named_for_fine_tuning_alone() {
        let named = args("dp train in.json -t multi.ckpt --model-branch water").unwrap();
        assert_eq!(named.model_branch, "water");
        let error = args("dp train in.json --model-branch water").unwrap_err();
        assert!(error.message().contains("--model-branch water"), "{error}");
    }
}
