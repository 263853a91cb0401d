//! A process finds its place: launcher, log, ranks, threads. The same for every model family.

use super::collect::FarLines;
use super::same;
use super::team::Team;
use crate::checkpoint::owner::Owner;
use crate::comm::about::{About, check_one_job};
use crate::comm::{CommOptions, connect};
use crate::engine::choice::{DeviceChoice, Gpu, check_shared};
use crate::gpu::load::Meter;
use crate::launch::Launch;
use crate::launch::threads::{Threads, available_cores};
use crate::report::log::{LogOptions, MpiLog};
use crate::report::messages::Summary;
use crate::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Launchers end all ranks as soon as one has ended badly. Ranks that cannot be joined cannot wait for each other
/// either: those with nothing to tell leave the one that tells so much time.
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
    /// End with 0 also where a signal ended the run early.
    pub zero_on_stop: bool,
    /// The file that says what to train; all ranks that see it see the same.
    pub input: Option<PathBuf>,
    /// What the command line asks for, as far as all ranks must ask for the same.
    pub task: String,
    /// Tell in the log who works together.
    pub tells_summary: bool,
}

/// The place of this process among the others.
pub struct Session {
    pub launch: Launch,
    pub threads: Threads,
    /// The GPU of this rank, and whether another rank has the same one.
    pub gpu: Option<(Gpu, bool)>,
    pub far_lines: FarLines,
}

impl Session {
    /// What tells how busy the GPU of this rank is. Where there is a GPU and it does not tell, a line in the log says why.
    pub fn gpu_meter(&self) -> Option<Meter> {
        let (gpu, _) = self.gpu.as_ref()?;
        let meter = Meter::open(&gpu.uuid, &|name| std::env::var(name).ok());
        let told = meter.and_then(|meter| meter.read().map(|_| meter));
        told.inspect_err(|e| log::info!("the load of the GPU is not shown: {}", e.message())).ok()
    }
}

/// Joins the other processes and does `work` with them; all end in agreement.
///
/// `work` returns the signal that ended it early, if one did. Then the process ends with 128 and its number, as shells have
/// it, unless `zero_on_stop`.
pub fn run(
    options: &SessionOptions,
    work: impl FnOnce(&mut Team, &Session) -> Result<Option<i32>>,
) -> Result<()> {
    let launch = Launch::of_this_process()?;
    let logging = crate::report::log::init(&LogOptions {
        level: options.log_level,
        path: options.log_path.clone(),
        mode: options.mpi_log,
        rank: launch.rank,
        size: launch.size,
        waits: true,
    });
    let env = |name: &str| std::env::var(name).ok();
    let told = |e: Error| {
        if e.is_told_elsewhere() {
            std::thread::sleep(TIME_TO_TELL);
        }
        e
    };
    let mut comm_options = CommOptions::from_env(&env).map_err(|e| told(launch.one_of_host_tells(e)))?;
    if let (Some(limit), None) = (options.stall_timeout, env("PHALANX_COMM_LIMIT")) {
        comm_options = comm_options.with_limit(limit);
    }
    comm_options.last_words = crate::report::log::tell_error;
    if launch.size > 1 {
        comm_options.about = same::about(&launch, options, &env);
    }
    let about = comm_options.about.clone();
    let comm = connect(&launch, &comm_options).map_err(told)?;
    let mut team = Team::new(comm);
    // It would be started again.
    let elastic = launch.is_elastic();
    let mut stopped = None;
    let outcome =
        team.agree(logging).and_then(|()| join(&mut team, launch, options, &about)).and_then(|session| {
            stopped = work(&mut team, &session)?;
            session.far_lines.gather(&mut team)
        });
    team.part(outcome)?;
    match stopped {
        Some(signal) if !elastic && !options.zero_on_stop => {
            // 0: the signal came to another rank.
            let signal = u8::try_from(signal).ok().filter(|&n| n > 0).unwrap_or(libc::SIGTERM as u8);
            Err(Error::stopped_by(signal))
        }
        _ => Ok(()),
    }
}

/// Threads, hosts and the summary, once all ranks are connected.
fn join(team: &mut Team, launch: Launch, options: &SessionOptions, about: &About) -> Result<Session> {
    let threads = Threads::new(&|name| std::env::var(name).ok(), available_cores(), launch.local_size);
    let threads = team.agree(threads)?;
    // Set-up runs on as many threads as the steps will. The pool exists already where a process trains twice.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads.compute).build_global();
    let cards = team.gather(&(launch.host.clone(), about.write()))?;
    let (hosts, abouts): (Vec<String>, Vec<String>) = cards.into_iter().unzip();
    let abouts: Vec<About> = abouts.iter().map(|text| About::read(text)).collect();
    team.tell_once(check_one_job(&abouts))?;
    let gpu = find_gpu(team, &launch, options.device)?;
    let far_lines = FarLines::new(&hosts, team.rank(), options.mpi_log == MpiLog::Collect);
    if options.tells_summary {
        summary(team, &launch, &hosts, threads, gpu.as_ref().map(|(gpu, _)| gpu));
    }
    Ok(Session { launch, threads, gpu, far_lines })
}

/// Makes rank 0 the owner of the folders that the run writes into, before it writes anything. The log files start with that.
///
/// Returns the owner on rank 0.
pub fn own(team: &mut Team, folders: impl FnOnce() -> Vec<PathBuf>) -> Result<Option<Owner>> {
    let mut owner = None;
    let owned = team.from_root(|| {
        owner = Some(Owner::claim(&folders())?);
        Ok(())
    });
    if owned.is_err() {
        crate::report::log::forget_file();
    }
    owned?;
    crate::report::log::start_file();
    team.barrier()?;
    crate::report::log::ranks_connected();
    Ok(owner)
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
