//! One job, its faults, and how it ended.

use crate::chance::Chance;
use crate::common::place::{Place, said};
use crate::common::{Job, find, free_port};
use crate::strangers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Draws of a step, on however many ranks.
const DRAWS: usize = 6;
/// Steps, and steps between rows of the curve and between checkpoints. A program without optimisation is given fewer.
const STEPS: usize = if cfg!(debug_assertions) { 10 } else { 300 };
const ROWS: usize = STEPS / 10;
const SAVES: usize = STEPS / 20 + 2;
/// Longer than any run here takes.
const PATIENCE: Duration = Duration::from_secs(240);
/// Seconds after which a silent rank ends the others.
const LIMIT: &str = "2";

/// What an undisturbed run leaves, and the ways to start one.
pub struct Campaign {
    training: &'static Training,
    curve: String,
    numbers: Vec<u64>,
    /// The best checkpoints and the log of validations.
    best: BTreeMap<String, Vec<u64>>,
    /// How long it took.
    took: Duration,
    ways: Vec<Way>,
}

/// What is trained: changes to an input that has the same bits on every number of ranks.
pub struct Training {
    pub name: &'static str,
    change: fn(&mut Value, usize),
}

/// The plain training first.
pub const TRAININGS: [Training; 7] = [
    Training { name: "Adam", change: |_, _| () },
    Training { name: "two branches", change: |input, _| into_branches(input) },
    Training { name: "ranks that share frames", change: |input, ranks| share_frames(input, ranks) },
    Training { name: "best checkpoints", change: |input, _| keep_the_best(input) },
    Training { name: "HybridMuon", change: |input, _| input["optimizer"] = json!({"type": "HybridMuon"}) },
    Training {
        name: "SOAP",
        change: |input, _| input["optimizer"] = json!({"type": "SOAP", "precondition_frequency": 3}),
    },
    Training {
        name: "LKF",
        change: |input, _| input["optimizer"] = json!({"type": "LKF", "kf_blocksize": 100}),
    },
];

/// Two branches that share a descriptor; they learn from one system each.
fn into_branches(input: &mut Value) {
    let (model, loss) = (input["model"].take(), input["loss"].take());
    let branch = |neuron: Value| json!({"type_map": "types", "descriptor": "local", "fitting_net": {"neuron": neuron, "seed": 1}});
    input["model"] = json!({
        "shared_dict": {"types": model["type_map"], "local": model["descriptor"]},
        "model_dict": {"one": branch(json!([8, 8])), "other": branch(json!([5, 7]))}
    });
    let input = input.as_object_mut().unwrap();
    input.remove("loss");
    input.insert("loss_dict".into(), json!({"one": loss.clone(), "other": loss}));
    let training = input["training"].as_object_mut().unwrap();
    let validation = training.remove("validation_data").unwrap();
    training.remove("training_data");
    training.insert("model_prob".into(), json!({"one": 0.4, "other": 0.6}));
    let data = json!({
        "one": {"training_data": {"systems": ["a"], "batch_size": 1}, "validation_data": validation},
        "other": {"training_data": {"systems": ["b"], "batch_size": 1}}
    });
    training.insert("data_dict".into(), data);
}

/// All ranks work on one batch after another.
fn share_frames(input: &mut Value, ranks: usize) {
    input["training"]["ranks_per_frame"] = json!(ranks);
    input["training"]["gradient_accumulation"] = json!(DRAWS);
}

/// The best two checkpoints of the parameters and of their running mean, found out at every row.
fn keep_the_best(input: &mut Value) {
    input["training"]["enable_ema"] = json!(true);
    input["training"]["ema_decay"] = json!(0.9);
    input["validating"] = json!({
        "full_validation": true, "ema_full_validation": true, "validation_freq": ROWS.div_ceil(3), "full_val_start": 0,
        "validation_metric": "F:RMSE", "max_best_ckpt": 2
    });
}

/// A way to start ranks.
#[derive(Clone)]
struct Way {
    name: &'static str,
    /// The launcher and its options; none: variables set by hand.
    line: Option<&'static str>,
    env: &'static [(&'static str, &'static str)],
}

const BY_HAND: [Way; 2] = [
    Way { name: "by hand", line: None, env: &[] },
    Way { name: "by hand over TCP", line: None, env: &[("PHALANX_COMM", "tcp")] },
];

const LAUNCHERS: [Way; 4] = [
    Way { name: "Open MPI", line: Some("mpirun.openmpi -np {n}"), env: &[] },
    Way { name: "MPICH", line: Some("mpirun.mpich -launcher=fork -hosts=localhost -np {n}"), env: &[] },
    Way {
        name: "torchrun",
        line: Some("torchrun --nproc_per_node={n} --master_port={port} --no-python"),
        env: &[],
    },
    Way { name: "horovodrun", line: Some("horovodrun -np {n} --gloo"), env: &[] },
];

/// A job that was started: one process, one of a launcher, or one for each rank.
struct Running {
    jobs: Vec<Job>,
    ranks: usize,
    told: String,
}

impl Campaign {
    /// Trains once without any fault. `launchers`: with those that are installed, too.
    pub fn new(training: &'static Training, launchers: bool) -> Campaign {
        let installed =
            |way: &&Way| way.line.is_some_and(|line| find(line.split(' ').next().unwrap()).is_some());
        let mut ways = BY_HAND.to_vec();
        ways.extend(LAUNCHERS.iter().filter(|way| launchers && installed(way)).cloned());
        let mut campaign = Campaign {
            training,
            curve: String::new(),
            numbers: Vec::new(),
            best: BTreeMap::new(),
            took: Duration::ZERO,
            ways,
        };
        let place = Place::new(&[]);
        let began = Instant::now();
        let mut run = campaign.start(&place, 1, &BY_HAND[0]);
        run.must_end_well();
        campaign.took = began.elapsed();
        (campaign.curve, campaign.numbers) = (place.read("lcurve.out"), numbers(&place));
        campaign.best = best(&place);
        assert!(campaign.curve.lines().filter(|line| !line.starts_with('#')).count() >= STEPS / ROWS);
        campaign
    }

    /// Of a run with the same bits on every number of ranks.
    fn write_input(&self, place: &Place, ranks: usize) {
        place.input(&[
            ("/training/numb_steps", json!(STEPS)),
            ("/training/disp_freq", json!(ROWS)),
            ("/training/save_freq", json!(SAVES)),
            ("/training/max_ckpt_keep", json!(3)),
            ("/training/reproducible", json!(true)),
            ("/training/gradient_accumulation", json!(DRAWS / ranks)),
        ]);
        let mut input = serde_json::from_str(&place.read("input.json")).unwrap();
        (self.training.change)(&mut input, ranks);
        std::fs::write(place.path("input.json"), input.to_string()).unwrap();
    }

    pub fn launchers(&self) -> String {
        self.ways.iter().map(|way| way.name).collect::<Vec<_>>().join(", ")
    }

    /// Starts or continues a run in this folder.
    fn start(&self, place: &Place, ranks: usize, way: &Way) -> Running {
        self.write_input(place, ranks);
        let saved = place.path("model.ckpt.phx").exists();
        let args = if saved { "train input.json --restart model.ckpt" } else { "train input.json" };
        let env: Vec<(&str, &str)> = way.env.iter().copied().chain([("PHALANX_COMM_LIMIT", LIMIT)]).collect();
        let line = way.line.map(|line| line.replace("{n}", &ranks.to_string()));
        let jobs = match line {
            _ if ranks == 1 => vec![place.alone(args, &env)],
            Some(line) => vec![place.launched(&line, args, &env).expect("it was found before")],
            None => place.by_hand(ranks, args, &env),
        };
        let by = if ranks == 1 { "alone" } else { way.name };
        Running { jobs, ranks, told: format!("{ranks} {by}") }
    }

    /// Kills or stops ranks of runs that go on from where the last one was, until one ends by itself.
    pub fn strike_ranks(&self, chance: &mut Chance) -> String {
        let place = Place::new(&[]);
        let mut told = vec![self.training.name.to_string()];
        for _ in 0..1 + chance.below(3) {
            let ranks = *chance.one_of(&[1, 2, 3]);
            let mut run = self.start(&place, ranks, chance.one_of(&self.ways));
            let struck = match !self.best.is_empty() && chance.one_in(2) {
                true => self.strike_at_a_best_checkpoint(&place, &mut run, chance),
                false => self.strike(&place, &mut run, chance),
            };
            told.push(format!("{}, {struck}", run.told));
        }
        told.push(self.finish(&place, chance));
        format!("{}: the undisturbed curve", told.join("; "))
    }

    /// Strikes one rank at some time; what was done.
    fn strike(&self, place: &Place, run: &mut Running, chance: &mut Chance) -> String {
        let pause = self.took.mul_f64(chance.below(1200) as f64 / 1000.0);
        std::thread::sleep(pause);
        let stop = run.ranks > 1 && chance.one_in(3);
        let victims = place.ranks_or_alone(run);
        let Some(&pid) = (!victims.is_empty()).then(|| chance.one_of(&victims)) else {
            run.end_somehow();
            return format!("over before {} ms", pause.as_millis());
        };
        signal(pid, if stop { libc::SIGSTOP } else { libc::SIGKILL });
        if stop {
            // The others notice; what was stopped is then let go, and must not go on.
            let began = Instant::now();
            while place.ranks_or_alone(run).len() > 1 && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20));
            }
            signal(pid, libc::SIGCONT);
        }
        run.end_somehow();
        let what = if stop { "stopped" } else { "killed" };
        format!("one {what} after {} ms", pause.as_millis())
    }

    /// Kills the writing rank while a best checkpoint is being written, or is about to push another one out; what was done.
    fn strike_at_a_best_checkpoint(&self, place: &Place, run: &mut Running, chance: &mut Chance) -> String {
        let (which, within) = (chance.below(12), chance.below(3000) as u64);
        let began = Instant::now();
        let (mut seen, mut last) = (0, String::new());
        loop {
            let over = run.jobs.iter_mut().any(|job| job.child.try_wait().unwrap().is_some());
            if over || began.elapsed() > PATIENCE {
                run.end_somehow();
                return format!("over after {seen} best checkpoints");
            }
            // The file of its parts has the first letters of its name.
            let written = place.files().into_iter().find(|name| name.starts_with(".best"));
            if let Some(name) = written.filter(|name| *name != last) {
                (seen, last) = (seen + 1, name);
                if seen > which
                    && let Some(&root) = place.ranks_or_alone(run).first()
                {
                    std::thread::sleep(Duration::from_micros(within));
                    signal(root, libc::SIGKILL);
                    run.end_somehow();
                    return format!("killed {within} us into best checkpoint {seen}");
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Goes on to the end without a fault, on some number of ranks, and compares with the undisturbed run.
    #[track_caller]
    fn finish(&self, place: &Place, chance: &mut Chance) -> String {
        let ranks = *chance.one_of(&[1, 2, 3]);
        let mut run = self.start(place, ranks, chance.one_of(&self.ways));
        run.must_end_well();
        self.check(place);
        run.told
    }

    #[track_caller]
    fn check(&self, place: &Place) {
        assert!(
            numbers(place) == self.numbers,
            "the parameters are others than those of the undisturbed run"
        );
        assert_eq!(place.read("lcurve.out"), self.curve, "the curve is another than the undisturbed one");
        let found = best(place);
        let names = |best: &BTreeMap<String, Vec<u64>>| best.keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(&found),
            names(&self.best),
            "other best checkpoints than those of the undisturbed run"
        );
        assert!(
            found == self.best,
            "the best checkpoints have other numbers than those of the undisturbed run"
        );
        let litter: Vec<String> = place.files().into_iter().filter(|name| name.ends_with(".tmp")).collect();
        assert!(litter.is_empty(), "left by runs that were killed: {litter:?}");
    }

    /// Ends a run in the middle, then cuts or changes one of its files.
    pub fn damage_a_file(&self, chance: &mut Chance) -> String {
        let place = Place::new(&[]);
        let mut run = self.start(&place, 1, &BY_HAND[0]);
        wait_for(&mut run, || place.path("model.ckpt.phx").exists());
        std::thread::sleep(self.took.mul_f64(chance.below(600) as f64 / 1000.0));
        run.jobs.iter_mut().for_each(|job| job.child.kill().unwrap());
        run.end_somehow();
        let saved = newest(&place);
        let (path, told) = damage(&place, chance);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, damaged(&whole, chance)).unwrap();
        let is_curve = path.ends_with("lcurve.out");
        let is_data = path.extension().is_some_and(|e| e == "npy" || e == "raw");
        let ranks = *chance.one_of(&[1, 2]);
        let mut run = self.start(&place, ranks, chance.one_of(&BY_HAND));
        if run.end_somehow() {
            // A changed number of the data is another number to train on; the curve before this run may be what was changed.
            if !is_data && !is_curve {
                self.check(&place);
            } else if is_curve {
                assert!(numbers(&place) == self.numbers, "{told}: other parameters");
            }
            return format!("{told}: did no harm");
        }
        run.must_have_refused(&told);
        std::fs::write(&path, whole).unwrap();
        if is_data && newest(&place) != saved {
            return format!("{told}: trained on other numbers, then refused");
        }
        let mut again = self.start(&place, 1, &BY_HAND[0]);
        again.must_end_well();
        self.check(&place);
        format!("{told}: refused, and nothing was lost")
    }

    /// From some time on files of rank 0 cannot grow beyond some length.
    pub fn let_writes_fail(&self, chance: &mut Chance) -> String {
        let place = Place::new(&[]);
        let ranks = *chance.one_of(&[1, 2]);
        let mut run = self.start(&place, ranks, chance.one_of(&BY_HAND));
        let pause = self.took.mul_f64(chance.below(1000) as f64 / 1000.0);
        std::thread::sleep(pause);
        let length = chance.below(20_000) as u64;
        if let Some(&pid) = place.ranks_or_alone(&mut run).first() {
            let limit = libc::rlimit64 { rlim_cur: length, rlim_max: length };
            // SAFETY: a limit of a process of ours; the structure lives through the call.
            unsafe { libc::prlimit64(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
        }
        run.end_somehow();
        let told = format!(
            "{}, {}, no file beyond {length} bytes after {} ms",
            self.training.name,
            run.told,
            pause.as_millis()
        );
        format!("{told}; {}: the undisturbed curve", self.finish(&place, chance))
    }

    /// Ranks meet at an address that others can reach, and others come.
    pub fn invite_strangers(&self, chance: &mut Chance) -> String {
        let Some(address) = strangers::address() else {
            crate::common::skip("this host has no network but loopback");
            return "no network: skipped".to_string();
        };
        let place = Place::new(&[]);
        let settings = place.path("settings");
        let port = free_port();
        let (port_text, settings) = (port.to_string(), settings.to_str().unwrap().to_string());
        let ranks = 2 + chance.below(2);
        let late = chance.below(800);
        let env = |rank: usize| {
            let (rank, ranks) = (rank.to_string(), ranks.to_string());
            [
                ("RANK", rank.clone()),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", ranks.clone()),
                ("LOCAL_WORLD_SIZE", ranks),
                ("MASTER_ADDR", address.to_string()),
                ("MASTER_PORT", port_text.clone()),
                ("XDG_CONFIG_HOME", settings.clone()),
                ("PHALANX_COMM", "tcp".to_string()),
                ("PHALANX_COMM_LIMIT", "20".to_string()),
            ]
        };
        self.write_input(&place, ranks);
        let start = |rank: usize| {
            let env = env(rank);
            let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
            place.alone("train input.json", &env)
        };
        let mut run = Running { jobs: vec![start(0)], ranks, told: String::new() };
        let strangers = strangers::Crowd::at(address, port);
        for rank in 1..ranks {
            std::thread::sleep(Duration::from_millis(late as u64 / (ranks - 1) as u64));
            run.jobs.push(start(rank));
        }
        // Once they train nobody listens any more.
        wait_for(&mut run, || place.path("model.ckpt.phx").exists());
        let open = strangers::listening(&place.ranks_or_alone(&mut run));
        assert_eq!(open, [0u16; 0], "ports that are open while ranks train");
        run.must_end_well();
        self.check(&place);
        let calls = strangers.end();
        assert!(calls > 0, "nobody called");
        format!(
            "{ranks} at {address}, the last {late} ms late, {calls} calls of strangers: the undisturbed curve"
        )
    }
}

impl Running {
    /// Waits until every process has ended; whether all ended well. Nothing that ends badly does so without a word.
    #[track_caller]
    fn end_somehow(&mut self) -> bool {
        let mut good = true;
        for job in &mut self.jobs {
            good &= job.end(PATIENCE);
        }
        let all = self.said();
        assert!(!all.contains("panicked"), "{all}");
        good
    }

    #[track_caller]
    fn must_end_well(&mut self) {
        assert!(self.end_somehow(), "{}: it failed:\n{}", self.told, self.said());
    }

    /// It ended with a message and by itself, not by a signal.
    #[track_caller]
    fn must_have_refused(&mut self, told: &str) {
        use std::os::unix::process::ExitStatusExt;
        let all = self.said();
        assert!(all.lines().any(|line| line.starts_with("error: ")), "{told}: no message:\n{all}");
        for job in &mut self.jobs {
            let status = job.child.wait().unwrap();
            assert_eq!(status.signal(), None, "{told}: {all}");
        }
    }

    fn said(&self) -> String {
        self.jobs.iter().map(said).collect::<Vec<_>>().join("\n")
    }
}

impl Place {
    /// The processes of a run that are there: its ranks, or the one that is alone.
    fn ranks_or_alone(&self, run: &mut Running) -> Vec<i32> {
        match run.ranks {
            1 => {
                let alive = run.jobs[0].child.try_wait().unwrap().is_none();
                Vec::from_iter(alive.then(|| run.jobs[0].child.id() as i32))
            }
            _ => self.ranks().into_iter().map(|(_, pid)| pid).collect(),
        }
    }
}

#[track_caller]
fn wait_for(run: &mut Running, enough: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !enough() {
        assert!(Instant::now() < deadline, "{}", run.said());
        for job in &mut run.jobs {
            job.listen(Duration::from_millis(5), |_| false);
        }
    }
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a process of ours; it may be gone.
    unsafe { libc::kill(pid, signal) };
}

/// The bits of all parameters and of the optimiser's state at the end.
fn numbers(place: &Place) -> Vec<u64> {
    let checkpoint = place.checkpoint("model.ckpt");
    assert_eq!(checkpoint.header["step"], json!(STEPS));
    checkpoint.into_numbers().concat().iter().map(|x: &f64| x.to_bits()).collect()
}

/// The numbers of the best checkpoints by name, and the log of validations.
fn best(place: &Place) -> BTreeMap<String, Vec<u64>> {
    let files = place.files().into_iter().filter(|name| name.starts_with("best") || name.starts_with("val"));
    let content = |name: &str| match name.ends_with(".log") {
        true => place.read(name).bytes().map(u64::from).collect(),
        false => place.checkpoint(name).into_numbers().concat().iter().map(|x| x.to_bits()).collect(),
    };
    files.map(|name| (name.clone(), content(&name))).collect()
}

/// The file of the newest checkpoint.
fn newest(place: &Place) -> PathBuf {
    std::fs::canonicalize(place.path("model.ckpt.phx")).unwrap()
}

/// A file of a run that was ended: what it has saved, or its data.
fn damage(place: &Place, chance: &mut Chance) -> (PathBuf, String) {
    let newest = newest(place);
    let data =
        ["coord.npy", "energy.npy", "force.npy", "box.npy"].map(|name| place.path("a/set.000").join(name));
    let path = match chance.below(6) {
        0..=2 => newest,
        3 => place.path("lcurve.out"),
        4 => place.path("a/type.raw"),
        _ => chance.one_of(&data).clone(),
    };
    let name = path.file_name().unwrap_or_else(|| Path::new("?").as_os_str()).to_string_lossy().into_owned();
    (path, format!("{name} damaged"))
}

/// Cut somewhere, or one byte changed, or a piece of zeros, as a file system leaves it after a power cut.
fn damaged(whole: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    if bytes.is_empty() {
        return b"?".to_vec();
    }
    let at = chance.below(bytes.len());
    match chance.below(3) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << chance.below(8),
        _ => {
            let end = (at + 1 + chance.below(512)).min(bytes.len());
            bytes[at..end].fill(0);
        }
    }
    bytes
}
