//! MPI, found at run time: one binary for Open MPI, MPICH and its relatives, and the standard interface of MPI 5.
//!
//! Ranks of one host meet through MPI and then share memory (see `shm`). Between hosts only messages between pairs are asked of
//! MPI; the collectives are ours (see `pairwise`), so that sums have the same bits on all ranks with every library, and every
//! wait can be given up. Signs of life go over TCP beside it.

mod api;
mod find;
mod sys;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::pairwise::{Into, Link, Out, Pairwise, Watch};
use super::pulse::name_ranks;
use super::secret::Key;
use super::star::Star;
use super::store::Meeting;
use super::{Attempt, CommOptions, Communicator, hosts, net, process, shm};
use crate::err;
use crate::error::{Error, Result};
use crate::launch::{Launch, MpiFamily};
use api::Api;

/// Messages are cut to this many bytes, below what a C int can count.
const PIECE: usize = 1 << 30;
/// Open MPI's mpirun answers SIGTERM with SIGKILL after 0.25 s (version 5) or 1 s (version 4), and in between MPI_Finalize
/// waits for it in vain. A rank that was asked to stop waits no longer than this.
const FINALIZE: Duration = Duration::from_millis(120);
/// How long ranks stay that give up a start of MPI, so that all see the same processes and one of them tells.
const TIME_TO_TELL: Duration = Duration::from_millis(500);
/// How often a long wait looks at the signs of life.
const LOOK: Duration = Duration::from_millis(100);

/// Joins ranks through the MPI of the launcher.
pub fn connect(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    let launch = meeting.launch();
    let Some(family) = launch.mpi else {
        return Attempt::NotForUs(format!("{} does not start MPI programs", launch.launcher));
    };
    let (api, path) = match find::load(family, options) {
        Ok(found) => found,
        Err(why) if options.mpi_library.is_some() => {
            return Attempt::Failed(launch.one_of_host_tells(err!("PHALANX_MPI_LIBRARY: {why}")));
        }
        Err(why) => return Attempt::NotForUs(why),
    };
    match start(api, &path, launch, options) {
        Ok(comm) => Attempt::Connected(comm),
        Err(error) => Attempt::Failed(error),
    }
}

fn start(api: Api, path: &str, launch: &Launch, options: &CommOptions) -> Result<Box<dyn Communicator>> {
    let version = api.version();
    let may_move = initialise(&api, launch, options)?;
    let (rank, size) = api.place()?;
    if (rank, size) != (launch.rank, launch.size) {
        return Err(launch.one_of_host_tells(err!(
            "{path} ({version}) sees rank {rank} of {size}, where {} started rank {} of {}",
            launch.launcher,
            launch.rank,
            launch.size
        )
        .help("this MPI library does not belong to this launcher: use the mpirun that came with it, or name the \
               launcher's own library in PHALANX_MPI_LIBRARY (with srun, `--mpi` may have to be pmi2 or pmix)")));
    }
    let thread = (!may_move).then(|| std::thread::current().id());
    let link = Mpi { api, name: format!("mpi ({})", short(&version)), thread, hurry: false };
    // Until the star is there nobody can be seen to be silent: give up on the late after the limit itself.
    let impatient = CommOptions { late_limit: options.limit, ..options.clone() };
    let mut comm = Pairwise::new(link, rank, size, &impatient);
    // Who asks for MPI by name gets its messages, also on one host.
    if options.engine.is_none() {
        let joined = shm::join(rank, size, options, &mut |_, mine| comm.all_gather(mine))?;
        match joined {
            Ok(shm) => {
                // Hydra kills all ranks when one has died, and names that one by its process alone.
                if launch.mpi == Some(MpiFamily::Mpich) {
                    let pids: Vec<String> = shm.pids().iter().map(u32::to_string).collect();
                    log::info!("processes of ranks 0 to {}: {}", size - 1, pids.join(", "));
                }
                return Ok(Box::new(shm.introduced_by(comm.into_link())));
            }
            Err(why) => log::debug!("no shared memory beside MPI: {why}"),
        }
    }
    let key = Key::of(launch, &options.secret, false)?;
    let place = net::Place { rank, size, one_host: launch.is_one_host(), local: None, key };
    let mut exchange = |mine: &[u8]| comm.all_gather(mine);
    let lanes = net::connect(&place, false, options, &mut exchange);
    let verdict = lanes.as_ref().err().map_or(String::new(), |e| e.message().to_string());
    let verdicts = comm.all_gather(verdict.as_bytes())?;
    let comm = comm.with_options(options);
    match (lanes, verdicts.iter().find(|v| !v.is_empty())) {
        (Ok(lanes), None) => {
            let star = Star::start(rank, lanes.health, options.beat());
            let comm = comm.with_star(star.map_err(|e| err!("cannot start a thread: {e}"))?);
            hosts::arrange(comm, options)
        }
        (_, verdict) => {
            let why = verdict.map_or(String::new(), |v| String::from_utf8_lossy(v).into_owned());
            if rank == 0 {
                log::warn!(
                    "a rank that falls silent cannot be noticed, because TCP does not work beside MPI: {why}"
                );
            }
            Ok(Box::new(comm))
        }
    }
}

/// Starts MPI, which returns only when every rank has come. There is no way to give up that wait but to end.
fn initialise(api: &Api, launch: &Launch, options: &CommOptions) -> Result<bool> {
    let (done, waiting) = mpsc::channel::<()>();
    let (launch, limit, last_words) = (launch.clone(), options.limit, options.last_words);
    std::thread::spawn(move || {
        if waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            let ranks = process::ranks_of_this_host();
            // One of this host tells, before the launcher ends it because another has ended.
            if ranks.iter().find(|one| !one.stopped).is_none_or(|one| one.rank == launch.rank) {
                last_words(&not_started(&ranks, &launch, limit));
            }
            std::thread::sleep(TIME_TO_TELL);
            std::process::exit(1);
        }
    });
    let may_move = api.init();
    drop(done);
    may_move
}

/// Why MPI has not started, as far as the processes of this host show it.
fn not_started(ranks: &[process::RankProcess], launch: &Launch, limit: Duration) -> Error {
    let seconds = limit.as_secs_f64();
    let stopped: Vec<&process::RankProcess> = ranks.iter().filter(|one| one.stopped).collect();
    let gone: Vec<usize> =
        (0..launch.size).filter(|rank| ranks.iter().all(|one| one.rank != *rank)).collect();
    let why = if let Some(first) = stopped.first() {
        let numbers: Vec<usize> = stopped.iter().map(|one| one.rank).collect();
        format!("{} stopped (process {} of {})", is_or_are(&numbers), first.pid, launch.host)
    } else if launch.is_one_host() && !gone.is_empty() && !ranks.is_empty() {
        format!("{} not there any more", is_or_are(&gone))
    } else if launch.is_one_host() {
        "a rank has not come".to_string()
    } else {
        format!("all ranks of {} are there and run, so that it is a rank of another host", launch.host)
    };
    err!("MPI did not start within {seconds:.0} s: {why}")
        .help("PHALANX_COMM_LIMIT (seconds) waits longer for ranks that start late")
}

fn is_or_are(ranks: &[usize]) -> String {
    format!("{} {}", name_ranks(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

/// "Open MPI v4.1.4", "MPICH 4.0.2" out of what the library says of itself.
fn short(version: &str) -> String {
    let words: Vec<&str> = version.split([',', ' ', ':', '\t']).filter(|w| !w.is_empty()).collect();
    let is_number = |w: &&str| w.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    let name: Vec<&str> =
        words.iter().copied().take_while(|w| !is_number(w) && *w != "Version").take(4).collect();
    let number = words.iter().copied().find(is_number).unwrap_or("");
    format!("{} {number}", name.join(" ")).trim().to_string()
}

/// Messages between pairs of ranks.
struct Mpi {
    api: Api,
    name: String,
    /// The thread that has to make all calls, where the library insists.
    thread: Option<std::thread::ThreadId>,
    /// The launcher ends the job, and may not answer any more.
    hurry: bool,
}

impl Link for Mpi {
    fn name(&self) -> &str {
        &self.name
    }

    fn exchange(&mut self, out: Option<Out>, into: Option<Into>, watch: &mut Watch) -> Result<()> {
        if self.thread.is_some_and(|id| id != std::thread::current().id()) {
            return Err(err!("this MPI library wants all calls from the thread that started it"));
        }
        let (to, out) = out.unwrap_or((0, &[]));
        let (from, into) = into.unwrap_or((0, &mut []));
        let (mut out, mut into) = (out.chunks(PIECE), into.chunks_mut(PIECE));
        loop {
            let (sent, received) = (out.next(), into.next());
            if sent.is_none() && received.is_none() {
                return Ok(());
            }
            self.piece(sent.map(|bytes| (to, bytes)), received.map(|bytes| (from, bytes)), watch)?;
        }
    }

    fn abort(&self) {
        self.api.abort();
    }

    fn hurry(&mut self) {
        self.hurry = true;
    }

    fn finish(&mut self) -> Result<()> {
        let (done, waiting) = mpsc::channel::<()>();
        if self.hurry {
            std::thread::spawn(move || {
                if waiting.recv_timeout(FINALIZE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // SAFETY: ends the process at once. Everything is saved and all ranks have agreed to part; nothing
                    // that the library registered for the end of the process may run, since it hangs.
                    unsafe { libc::_exit(0) };
                }
            });
        }
        let finalized = self.api.finalize();
        drop(done);
        finalized
    }
}

impl Mpi {
    fn piece(&self, out: Option<Out>, into: Option<Into>, watch: &mut Watch) -> Result<()> {
        // SAFETY: both buffers are borrowed until this function returns. It returns early only with an error, after
        // which no MPI function is called but MPI_Abort: a communicator that failed is of no further use.
        let (mut receiving, mut sending) = unsafe {
            let receiving = into.map(|(from, bytes)| self.api.irecv(bytes, from)).transpose()?;
            (receiving, out.map(|(to, bytes)| self.api.isend(bytes, to)).transpose()?)
        };
        let mut pause = Pause::new();
        loop {
            for request in [&mut receiving, &mut sending] {
                if let Some(open) = request
                    && self.api.test(open)?
                {
                    *request = None;
                }
            }
            if receiving.is_none() && sending.is_none() {
                return Ok(());
            }
            if pause.take() {
                watch.check()?;
            }
        }
    }
}

/// What to do between two tests. MPI makes progress only while it is asked, so a short wait asks often; a long one
/// leaves the core to others.
struct Pause {
    since: Instant,
    looked: Instant,
    tests: u32,
}

impl Pause {
    fn new() -> Pause {
        let now = Instant::now();
        Pause { since: now, looked: now, tests: 0 }
    }

    /// Waits a little; true when it is time to look at the signs of life.
    fn take(&mut self) -> bool {
        self.tests += 1;
        if self.tests < 64 {
            std::hint::spin_loop();
            return false;
        }
        let now = Instant::now();
        match now - self.since {
            waited if waited < Duration::from_millis(20) => std::thread::yield_now(),
            waited if waited < Duration::from_secs(1) => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        let look = now - self.looked >= LOOK;
        if look {
            self.looked = now;
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_keeps_mpi_from_starting_is_named() {
        let launch = Launch { size: 3, local_size: 3, ..Launch::detect(&|_| None, "node7").unwrap() };
        let rank = |rank, stopped| process::RankProcess { rank, pid: 40 + rank as u32, stopped };
        let why = |ranks: &[process::RankProcess], launch: &Launch| {
            let error = not_started(ranks, launch, Duration::from_secs(3));
            error.message().strip_prefix("MPI did not start within 3 s: ").unwrap().to_string()
        };
        let all = [rank(0, false), rank(1, true), rank(2, false)];
        assert_eq!(why(&all, &launch), "rank 1 is stopped (process 41 of node7)");
        assert_eq!(why(&all[..1], &launch), "ranks 1, 2 are not there any more");
        assert_eq!(why(&[], &launch), "a rank has not come");
        let far = Launch { local_size: 1, ..launch };
        assert!(why(&all[..1], &far).ends_with("a rank of another host"));
    }

    #[test]
    fn versions_are_shortened_for_the_log() {
        let cases = [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI v4.1.4"),
            ("MPICH Version:      4.0.2", "MPICH 4.0.2"),
            ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel(R) MPI Library 2021.18"),
        ];
        for (long, want) in cases {
            assert_eq!(short(long), want);
        }
    }
}
