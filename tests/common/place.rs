//! A fresh folder with a small data set, and runs of the real `dp` in it.

use super::{Job, answers, find, for_open_mpi, free_port, skip};
use phalanx::checkpoint::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Longer than any job here takes, however busy the machine is.
pub const LONG: Duration = Duration::from_secs(60);

/// A fresh folder with the systems `a` (5 frames), `b` (3 frames: fewer than ranks) and `v` (for validation).
pub struct Place {
    folder: tempfile::TempDir,
    /// What was there before anything ran.
    before: BTreeSet<String>,
}

/// Ranks of a command whose variables are set by hand, as one does without a launcher: one job each.
pub fn by_hand(n: usize, env: &[(&str, &str)], command: impl Fn() -> Command) -> Vec<Job> {
    let (port, size) = (free_port().to_string(), n.to_string());
    let rank = |rank: usize| {
        let rank = rank.to_string();
        let mut command = command();
        command.envs([("RANK", &*rank), ("WORLD_SIZE", &size), ("LOCAL_RANK", &rank)]);
        command.envs([("LOCAL_WORLD_SIZE", &*size), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        command.envs(env.iter().copied());
        Job::start(command)
    };
    (0..n).map(rank).collect()
}

impl Place {
    /// With `input.json` of [`Place::input`].
    pub fn new(changes: &[(&str, Value)]) -> Place {
        let mut place = Place { folder: tempfile::tempdir().unwrap(), before: BTreeSet::new() };
        for (name, frames) in [("a", 5), ("b", 3), ("v", 3)] {
            write_system(&place.path(name), frames, 1);
        }
        place.input(changes);
        place.before = place.files();
        place
    }

    /// Writes `input.json`: small nets, 40 steps, displays every 10 and saves every 20, with changes by JSON pointer.
    pub fn input(&self, changes: &[(&str, Value)]) {
        let mut input = json!({
            "model": {
                "type_map": ["O", "H"],
                "descriptor": {
                    "type": "se_e2_a", "rcut": 3.0, "rcut_smth": 0.5, "sel": [12, 24],
                    "neuron": [4, 8], "axis_neuron": 2, "seed": 1
                },
                "fitting_net": { "neuron": [8, 8], "seed": 1 }
            },
            "learning_rate": { "type": "exp", "start_lr": 0.001, "stop_lr": 1e-5, "decay_steps": 10 },
            "loss": {
                "type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1
            },
            "training": {
                "training_data": { "systems": ["a", "b"], "batch_size": 1 },
                "validation_data": { "systems": ["v"], "batch_size": 1, "numb_btch": 2 },
                "numb_steps": 40, "disp_freq": 10, "save_freq": 20, "seed": 1
            }
        });
        for (pointer, value) in changes {
            let (section, key) = pointer.rsplit_once('/').unwrap();
            input.pointer_mut(section).unwrap()[key] = value.clone();
        }
        std::fs::write(self.path("input.json"), input.to_string()).unwrap();
    }

    /// The systems `a` and `b` become as many boxes on top of each other, of 12 atoms each.
    pub fn pile_up(&self, boxes: usize) {
        for (name, frames) in [("a", 5), ("b", 3)] {
            write_system(&self.path(name), frames, boxes);
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Names of files and folders.
    pub fn files(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Names of what was written since the folder was made.
    pub fn written(&self) -> Vec<String> {
        self.files().difference(&self.before).cloned().collect()
    }

    pub fn checkpoint(&self, name: &str) -> Checkpoint {
        phalanx::checkpoint::load(&self.path(name)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Step and last column, the learning rate, of each row of `lcurve.out`.
    pub fn curve(&self) -> Vec<(u64, f64)> {
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0].parse().unwrap(), words[words.len() - 1].parse().unwrap())
        };
        self.read("lcurve.out").lines().filter(|line| !line.starts_with('#')).map(row).collect()
    }

    /// `dp` with these arguments, in this folder, on one thread.
    fn dp(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dp"));
        command.args(args.split_whitespace());
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        for_open_mpi(command);
        command.current_dir(self.folder.path());
        command.env("OMP_NUM_THREADS", "1").env_remove("DP_BACKEND");
        // The ranks' secret, where they need one: not in the home folder of whoever runs the tests.
        command.env("XDG_CONFIG_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/settings"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// One process without a launcher.
    pub fn alone(&self, args: &str, env: &[(&str, &str)]) -> Job {
        let mut command = self.dp(args);
        command.envs(env.iter().copied());
        Job::start(command)
    }

    /// Ranks whose variables are set by hand, as one does without a launcher: one job each.
    pub fn by_hand(&self, n: usize, args: &str, env: &[(&str, &str)]) -> Vec<Job> {
        by_hand(n, env, || self.dp(args))
    }

    /// `dp` under a launcher, or None, skipped by name, where that is not installed. `{port}` is a free one.
    #[track_caller]
    pub fn launched(&self, line: &str, args: &str, env: &[(&str, &str)]) -> Option<Job> {
        let (launcher, options) = line.split_once(' ').unwrap_or((line, ""));
        let Some(program) = find(launcher) else {
            skip(format!("{launcher} is not installed"));
            return None;
        };
        if launcher == "srun" && !answers(&program) {
            skip("no Slurm controller answers");
            return None;
        }
        let mut command = Command::new(program);
        command.args(options.replace("{port}", &free_port().to_string()).split_whitespace());
        command.arg(env!("CARGO_BIN_EXE_dp")).args(args.split_whitespace());
        self.prepare(&mut command);
        command.envs(env.iter().copied());
        Some(Job::start(command))
    }

    /// The ranks that run in this folder: rank and process.
    pub fn ranks(&self) -> Vec<(usize, i32)> {
        let folder = self.folder.path().canonicalize().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_dp")).canonicalize().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is = |pid: i32, link: &str, wanted: &Path| {
            std::fs::read_link(format!("/proc/{pid}/{link}")).is_ok_and(|path| path == wanted)
        };
        let ours = pids.filter(|&pid| is(pid, "cwd", &folder) && is(pid, "exe", &program));
        let mut ranks: Vec<(usize, i32)> = ours.filter_map(|pid| Some((rank_of(pid)?, pid))).collect();
        ranks.sort_unstable();
        ranks
    }
}

/// The rank of a process, by what its launcher told it.
fn rank_of(pid: i32) -> Option<usize> {
    const NAMES: [&str; 5] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "RANK", "SLURM_PROCID"];
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let entries: Vec<&str> =
        environment.split(|&b| b == 0).filter_map(|entry| std::str::from_utf8(entry).ok()).collect();
    let value = |name: &&str| entries.iter().find_map(|e| e.strip_prefix(*name)?.strip_prefix('='));
    NAMES.iter().find_map(value)?.parse().ok()
}

/// Ends a job well, or shows what it said.
#[track_caller]
pub fn succeed(job: &mut Job) {
    let good = job.end(LONG);
    assert!(good, "the job failed:\n{}", job.said.join("\n"));
}

/// Four water-like molecules in a periodic box, or in each of several on top of each other; energies and forces of springs between O
/// and its H.
fn write_system(folder: &Path, frames: usize, boxes: usize) {
    let set = folder.join("set.000");
    std::fs::create_dir_all(&set).unwrap();
    std::fs::write(folder.join("type.raw"), "0 1 1 ".repeat(4 * boxes)).unwrap();
    std::fs::write(folder.join("type_map.raw"), "O\nH\n").unwrap();
    let wobble = |frame: usize, k: usize| 0.1 * ((frame * 37 + k * 11 + frames) as f64 * 0.73).sin();
    let (mut coord, mut energy, mut force) = (Vec::new(), Vec::new(), Vec::new());
    for frame in 0..frames {
        let mut e = -40.0 * boxes as f64;
        for molecule in 0..4 * boxes {
            let (place, floor) = (molecule % 4, (molecule / 4) as f64);
            let o = [3.0 * (place % 2) as f64, 3.0 * (place / 2) as f64, 6.5 * floor];
            let at = |side: f64, k: usize| wobble(frame, 9 * molecule + k) + side;
            let h: [[f64; 3]; 2] =
                [[at(1.0, 0), at(0.1, 1), at(0.0, 2)], [at(-0.3, 3), at(0.9, 4), at(0.0, 5)]];
            coord.extend(o);
            let start = force.len();
            force.extend([0.0; 9]);
            for (k, bond) in h.iter().enumerate() {
                let stretch = bond.iter().map(|x| x * x).sum::<f64>().sqrt() - 1.0;
                e += 5.0 * stretch * stretch;
                for axis in 0..3 {
                    coord.push(o[axis] + bond[axis]);
                    let pull = 10.0 * stretch * bond[axis] / (stretch + 1.0);
                    force[start + axis] += pull;
                    force[start + 3 + 3 * k + axis] -= pull;
                }
            }
        }
        energy.push(e);
    }
    let cell = [6.5, 0.0, 0.0, 0.0, 6.5, 0.0, 0.0, 0.0, 6.5 * boxes as f64].repeat(frames);
    write_npy(&set.join("coord.npy"), &[frames, 36 * boxes], &coord);
    write_npy(&set.join("force.npy"), &[frames, 36 * boxes], &force);
    write_npy(&set.join("box.npy"), &[frames, 9], &cell);
    write_npy(&set.join("energy.npy"), &[frames], &energy);
}

fn write_npy(path: &Path, shape: &[usize], values: &[f64]) {
    use npyz::WriterBuilder;
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    let file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(file).begin_nd().unwrap();
    writer.extend(values.iter().copied()).unwrap();
    writer.finish().unwrap();
}

/// Tests that start ranks take turns.
pub fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// All that a job printed.
pub fn said(job: &Job) -> String {
    job.said.join("\n")
}

/// Lines that begin with `error:`, whatever a launcher puts in front.
pub fn errors(jobs: &[Job]) -> usize {
    let is_error = |line: &&String| {
        let at = line.find("error: ");
        at.is_some_and(|at| at == 0 || line[..at].ends_with("] ") || line[..at].ends_with(":"))
    };
    jobs.iter().map(|job| job.said.iter().filter(is_error).count()).sum()
}
