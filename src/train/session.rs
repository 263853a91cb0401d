//! A process finds its place: launcher, log, ranks, threads. The same for every model family.

use super::collect::FarLines;
use super::team::Team;
use crate::comm::{CommOptions, connect, rank_zero_is_missing};
use crate::engine::choice::{DeviceChoice, Gpu, check_shared};
use crate::launch::Launch;
use crate::launch::threads::{Threads, available_cores};
use crate::report::log::{LogOptions, MpiLog};
use crate::report::messages::Summary;
use crate::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Launchers end all ranks as soon as one has ended badly. Ranks that cannot be joined cannot wait for each other
/// either: those with nothing to tell leave rank 0 so much time.
const TIME_TO_TELL: Duration = Duration::from_secs(1);

/// What a process must know before it can join the others.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    pub log_level: log::LevelFilter,
    pub log_path: Option<PathBuf>,
    pub mpi_log: MpiLog,
    /// Silence of a rank after which the others give up; the environment goes first.
    pub stall_timeout: Option<Duration>,
    /// Where to compute.
    pub device: DeviceChoice,
}

/// The place of this process among the others.
pub struct Session {
    pub launch: Launch,
    pub threads: Threads,
    /// The GPU of this rank, and whether another rank has the same one.
    pub gpu: Option<(Gpu, bool)>,
    pub far_lines: FarLines,
}

/// Joins the other processes and does `work` with them; all end in agreement.
pub fn run(options: &SessionOptions, work: impl FnOnce(&mut Team, &Session) -> Result<()>) -> Result<()> {
    let launch = Launch::of_this_process()?;
    let logging = crate::report::log::init(&LogOptions {
        level: options.log_level,
        path: options.log_path.clone(),
        mode: options.mpi_log,
        rank: launch.rank,
        size: launch.size,
    });
    let env = |name: &str| std::env::var(name).ok();
    // What keeps ranks apart keeps all of them apart: rank 0 tells, if there is a rank 0.
    let one_tells = |e: Error| {
        if launch.rank == 0 || rank_zero_is_missing(&e) {
            return e;
        }
        std::thread::sleep(TIME_TO_TELL);
        e.told_elsewhere()
    };
    let mut comm_options = CommOptions::from_env(&env).map_err(one_tells)?;
    if let (Some(limit), None) = (options.stall_timeout, env("PHALANX_COMM_LIMIT")) {
        comm_options = comm_options.with_limit(limit);
    }
    let comm = connect(&launch, &comm_options).map_err(one_tells)?;
    let mut team = Team::new(comm);
    let outcome = team.agree(logging).and_then(|()| join(&mut team, launch, options)).and_then(|session| {
        work(&mut team, &session)?;
        session.far_lines.gather(&mut team)
    });
    team.part(outcome)
}

/// Threads, hosts and the summary, once all ranks are connected.
fn join(team: &mut Team, launch: Launch, options: &SessionOptions) -> Result<Session> {
    team.barrier()?;
    crate::report::log::ranks_connected();
    let threads = Threads::new(&|name| std::env::var(name).ok(), available_cores(), launch.local_size);
    let threads = team.agree(threads)?;
    // Set-up runs on as many threads as the steps will. The pool exists already where a process trains twice.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads.compute).build_global();
    let hosts = team.gather(&launch.host)?;
    let gpu = find_gpu(team, &launch, options.device)?;
    let far_lines = FarLines::new(&hosts, team.rank(), options.mpi_log == MpiLog::Collect);
    summary(team, &launch, &hosts, threads, gpu.as_ref().map(|(gpu, _)| gpu));
    Ok(Session { launch, threads, gpu, far_lines })
}

/// The GPU of this rank. All ranks compute on GPUs, or none does.
fn find_gpu(team: &mut Team, launch: &Launch, choice: DeviceChoice) -> Result<Option<(Gpu, bool)>> {
    let env = |name: &str| std::env::var(name).ok();
    let gpu = team.agree(choice.find(launch.local_rank, &env))?;
    let place = gpu.as_ref().map(|gpu| (launch.host.clone(), gpu.uuid.clone()));
    let places = team.gather(&place)?;
    let allowed = env("PHALANX_SHARE_GPU").is_some_and(|value| value != "0");
    let shared = check_shared(&places, allowed)?;
    if places.iter().any(Option::is_some) && places.iter().any(Option::is_none) {
        let without: Vec<String> =
            (0..places.len()).filter(|&rank| places[rank].is_none()).map(|rank| rank.to_string()).collect();
        return Err(crate::err!("rank {} has no GPU, others have one", without.join(", "))
            .help("give every rank a GPU, or use --device cpu"));
    }
    Ok(gpu.map(|gpu| (gpu, shared)))
}

fn summary(team: &Team, launch: &Launch, hosts: &[String], threads: Threads, gpu: Option<&Gpu>) {
    let first = |k: &usize| !hosts[..*k].contains(&hosts[*k]);
    let nodes = (0..hosts.len()).filter(first).map(|k| hosts[k].clone()).collect();
    let cuda_visible_devices = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let summary = Summary {
        world_size: team.size(),
        rank: team.rank(),
        nodes,
        running_on: launch.host.clone(),
        device: gpu.map_or("cpu".to_string(), |gpu| format!("cuda:{} ({})", gpu.index, gpu.name)),
        cuda_visible_devices,
        visible_gpus: gpu.map_or(0, |gpu| gpu.cuda.n_devices()),
        intra_threads: threads.compute,
        inter_threads: threads.loaders,
        launcher: launch.launcher.to_string(),
        engine: team.engine().to_string(),
    };
    for line in summary.lines() {
        log::info!("{line}");
    }
}
