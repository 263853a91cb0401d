//! The sentences of a run, in DeePMD-kit's form where it has one.
//!
//! All are plain functions from values to text; the caller logs them.

use super::number::exp;
use super::timing::{Interval, Stopwatch};
use jiff::{ToSpan, Zoned};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `Batch     100: trn: rmse = 1.01e+01, rmse_e = 9.00e-01, lr = 1.00e-03`.
///
/// `names` and `values` go together, in the order of [`super::lcurve::Columns::names`].
pub fn train_line(step: u64, names: &[String], values: &[f64], lr: f64) -> String {
    format!("{}, lr = {:>8}", errors_line(step, "trn", names, values), exp(lr, 2))
}

/// `Batch     100: val: rmse = 1.03e+01, rmse_e = 9.00e-01`.
pub fn valid_line(step: u64, names: &[String], values: &[f64]) -> String {
    errors_line(step, "val", names, values)
}

/// What a branch of a multi-task model shows: its training errors, and those on its validation data, where it has any.
///
/// `Batch     100: water_1_trn: rmse = ..., lr = 1.00e-03` and `Batch     100: water_1_val: rmse = ...`.
pub fn branch_lines(
    step: u64,
    branch: &str,
    names: &[String],
    [train, valid]: [&[f64]; 2],
    lr: f64,
) -> Vec<String> {
    let line = |task: &str, values: &[f64]| errors_line(step, &format!("{branch}_{task}"), names, values);
    let mut lines = vec![format!("{}, lr = {:>8}", line("trn", train), exp(lr, 2))];
    lines.extend((!valid.is_empty()).then(|| line("val", valid)));
    lines
}

fn errors_line(step: u64, task: &str, names: &[String], values: &[f64]) -> String {
    assert_eq!(names.len(), values.len(), "a display line has one value for each name");
    let terms: Vec<String> =
        names.iter().zip(values).map(|(name, &value)| format!("{name} = {:>8}", exp(value, 2))).collect();
    format!("Batch {step:7}: {task}: {}", terms.join(", "))
}

/// `Batch     100: total wall time = 1.23 s, eta = 0:01:02 at 2026-01-31 12:01`.
pub fn time_line(interval: &Interval, now: &Zoned) -> String {
    let head = format!("Batch {:7}: total wall time = {:.2} s", interval.step, interval.wall.as_secs_f64());
    match interval.eta {
        None => head,
        Some(eta) => format!("{head}, eta = {} at {}", hours(eta), finish_time(now, eta)),
    }
}

/// One rank's own share of an interval: `Batch     100: training time = 1.20 s, testing time = 0.03 s`.
pub fn rank_time_line(step: u64, training: Duration, testing: Duration) -> String {
    format!(
        "Batch {step:7}: training time = {:.2} s, testing time = {:.2} s",
        training.as_secs_f64(),
        testing.as_secs_f64()
    )
}

/// `average training time: 0.0150 s/batch (100 batches excluded)`.
pub fn average_line(watch: &Stopwatch) -> Option<String> {
    let (seconds, left_out) = watch.average()?;
    let excluded = if left_out > 0 { format!(" ({left_out} batches excluded)") } else { String::new() };
    Some(format!("average training time: {seconds:.4} s/batch{excluded}"))
}

/// What to say when training has ended: where things are and what to do next.
///
/// `save_ckpt` is the prefix of the input, `system` any folder of data to test on.
pub fn end_lines(save_ckpt: &Path, lcurve: &Path, system: Option<&Path>) -> Vec<String> {
    let folder = match save_ckpt.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => format!(" -c {}", quoted(folder)),
        _ => String::new(),
    };
    let system = system.map_or_else(|| "<system>".into(), quoted);
    vec![
        format!("Trained model has been saved to: {}", save_ckpt.display()),
        format!("Learning curve: {}", lcurve.display()),
        format!("Next, make a model file: dp freeze{folder} -o model.dp"),
        format!("and see how good it is:  dp test -m model.dp -s {system}"),
    ]
}

pub use crate::error::quoted;

/// The command line of this process, as it may be typed again.
pub fn same_command() -> String {
    let words: Vec<PathBuf> = std::env::args_os().map(PathBuf::from).collect();
    let program = words.first().and_then(|path| path.file_name()).map(Path::new).unwrap_or(Path::new("pinn"));
    let words: Vec<String> =
        std::iter::once(program).chain(words.iter().skip(1).map(PathBuf::as_path)).map(quoted).collect();
    words.join(" ")
}

/// `0:01:02`, and `2 days, 3:04:05` for long times.
fn hours(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        1 => format!("1 day, {clock}"),
        _ => format!("{days} days, {clock}"),
    }
}

fn finish_time(now: &Zoned, eta: Duration) -> String {
    let seconds = i64::try_from(eta.as_secs()).unwrap_or(i64::MAX);
    let finish = 0.seconds().try_seconds(seconds).and_then(|span| now.checked_add(span));
    // A step that stalled for hours can forecast a time that no calendar holds.
    finish.map_or_else(|_| "a distant time".into(), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}

/// The facts of the block at the start of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub world_size: usize,
    pub rank: usize,
    /// Each host once.
    pub nodes: Vec<String>,
    pub running_on: String,
    /// `cpu`, `gpu:0`.
    pub device: String,
    /// As the environment has it; None where it is not set.
    pub cuda_visible_devices: Option<String>,
    pub visible_gpus: usize,
    pub intra_threads: usize,
    pub inter_threads: usize,
    /// Who started the processes: `mpirun (Open MPI)`, `torchrun`, `none`.
    pub launcher: String,
    /// Who carries the sums: `solo`, `shared memory`, `MPI`.
    pub engine: String,
}

impl Summary {
    /// The block, one line each.
    pub fn lines(&self) -> Vec<String> {
        let distributed = self.world_size > 1;
        let mut lines = vec![
            format!("{:-<65}", "---Summary of the training"),
            if distributed { "distributed".into() } else { "serial".into() },
        ];
        let mut fact = |name: &str, value: &str| lines.push(format!("{:<22}{value}", format!("{name}:")));
        if distributed {
            fact("world size", &self.world_size.to_string());
            fact("my rank", &self.rank.to_string());
            fact("node list", &self.nodes.join(", "));
        }
        fact("running on", &self.running_on);
        fact("computing device", &self.device);
        fact("CUDA_VISIBLE_DEVICES", self.cuda_visible_devices.as_deref().unwrap_or("unset"));
        fact("Count of visible GPU", &self.visible_gpus.to_string());
        fact("num_intra_threads", &self.intra_threads.to_string());
        fact("num_inter_threads", &self.inter_threads.to_string());
        fact("launcher", &self.launcher);
        fact("engine", &self.engine);
        lines.push("-".repeat(65));
        lines
    }
}

/// What follows the block of [`Summary`] where ranks share frames.
pub fn groups(ranks_per_frame: usize, groups: usize, accumulation: usize) -> Vec<String> {
    let fact = |name: &str, value: String| format!("{:<22}{value}", format!("{name}:"));
    vec![
        fact("ranks per frame", ranks_per_frame.to_string()),
        fact("batches a step", format!("{} ({groups} groups of ranks)", groups * accumulation)),
        "-".repeat(65),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["rmse", "rmse_e", "rmse_f"].map(String::from).to_vec()
    }

    fn noon() -> Zoned {
        "2026-01-31T12:00:30+00:00[UTC]".parse().unwrap()
    }

    #[test]
    fn display_lines_are_as_in_deepmd_kit() {
        assert_eq!(
            train_line(5, &names(), &[9.77, 0.749, f64::NAN], 1e-3),
            "Batch       5: trn: rmse = 9.77e+00, rmse_e = 7.49e-01, rmse_f =      nan, lr = 1.00e-03"
        );
        assert_eq!(
            valid_line(12_345_678, &names(), &[11.0, 0.815, 1.09]),
            "Batch 12345678: val: rmse = 1.10e+01, rmse_e = 8.15e-01, rmse_f = 1.09e+00"
        );
    }

    #[test]
    fn time_lines_are_as_in_deepmd_kit() {
        let interval = |eta| Interval { step: 100, wall: Duration::from_millis(1234), steps: 100, eta };
        assert_eq!(time_line(&interval(None), &noon()), "Batch     100: total wall time = 1.23 s");
        assert_eq!(
            time_line(&interval(Some(Duration::from_millis(62_900))), &noon()),
            "Batch     100: total wall time = 1.23 s, eta = 0:01:02 at 2026-01-31 12:01"
        );
        let days = Duration::from_secs(2 * 86_400 + 3 * 3600 + 4 * 60 + 5);
        assert!(
            time_line(&interval(Some(days)), &noon()).ends_with("eta = 2 days, 3:04:05 at 2026-02-02 15:04")
        );
        let never = Duration::from_secs(u64::MAX);
        assert!(time_line(&interval(Some(never)), &noon()).ends_with("at a distant time"));
    }

    #[test]
    fn the_average_says_what_it_leaves_out() {
        let mut watch = Stopwatch::new(0, 20, 5);
        assert_eq!(average_line(&watch), None);
        for step in [1, 5, 10, 15, 20] {
            watch.record(step, Duration::from_millis(15 * step));
        }
        assert_eq!(
            average_line(&watch).unwrap(),
            "average training time: 0.0150 s/batch (5 batches excluded)"
        );
    }

    #[test]
    fn the_end_names_the_files_and_the_next_commands() {
        let lines = end_lines(Path::new("out/model.ckpt"), Path::new("lcurve.out"), None).join("\n");
        for part in ["out/model.ckpt", "lcurve.out", "dp freeze -c out -o model.dp", "dp test -m model.dp"] {
            assert!(lines.contains(part), "{lines}");
        }
    }

    #[test]
    fn the_summary_tells_a_serial_run_from_a_distributed_one() {
        let mut summary = Summary {
            world_size: 4,
            rank: 3,
            nodes: vec!["node1".into(), "node2".into()],
            running_on: "node2".into(),
            device: "cpu".into(),
            cuda_visible_devices: None,
            visible_gpus: 0,
            intra_threads: 2,
            inter_threads: 1,
            launcher: "torchrun".into(),
            engine: "MPI".into(),
        };
        let lines = summary.lines();
        assert_eq!(lines[1], "distributed");
        assert!(lines.contains(&"world size:           4".to_owned()), "{lines:?}");
        assert!(lines.contains(&"node list:            node1, node2".to_owned()), "{lines:?}");
        assert!(lines.contains(&"CUDA_VISIBLE_DEVICES: unset".to_owned()), "{lines:?}");
        assert!(lines.contains(&"Count of visible GPU: 0".to_owned()), "{lines:?}");
        assert!(lines.contains(&"engine:               MPI".to_owned()), "{lines:?}");
        summary.world_size = 1;
        assert_eq!(summary.lines()[1], "serial");
        assert!(!summary.lines().iter().any(|line| line.starts_with("my rank")));
    }
}
