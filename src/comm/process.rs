//! Facts about processes of this host: who is alive, who started us.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// Number of cores of this host, whatever this process is bound to.
pub fn cores() -> usize {
    // SAFETY: a plain question to the system.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(n).unwrap_or(1).max(1)
}

/// Another process whose end we want to notice.
pub struct Watched {
    pid: u32,
    /// A handle that cannot come to mean another process; absent on old kernels.
    handle: Option<OwnedFd>,
    /// Whether it was already gone when we began.
    gone: bool,
}

impl Watched {
    /// Begins to watch.
    pub fn new(pid: u32) -> Watched {
        // SAFETY: no memory is passed; a descriptor or an error comes back.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        let gone = fd < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        // SAFETY: a non-negative result is a new descriptor of ours.
        let handle = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) });
        Watched { pid, handle, gone }
    }

    /// Whether it has ended; a zombie has.
    pub fn has_ended(&self) -> bool {
        match &self.handle {
            Some(handle) => {
                let mut poll = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, no waiting.
                unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
            }
            None => self.gone || stat(self.pid).is_none_or(|s| matches!(s.state, 'Z' | 'X')),
        }
    }
}

/// Returns when one of these has ended, or after `limit`.
pub fn await_an_end(watched: &[Watched], limit: std::time::Duration) {
    let entry = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut list: Vec<libc::pollfd> =
        watched.iter().filter_map(|one| one.handle.as_ref().map(entry)).collect();
    // SAFETY: the list lives through the call and its length is right.
    unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, limit.as_millis() as i32) };
}

/// One process on the way up to the first.
#[derive(Debug, Clone)]
pub struct Ancestor {
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since boot: with `pid` this names a process for as long as the host is up.
    pub start: u64,
    /// Its name, cut to 15 characters by the kernel.
    pub name: String,
    /// Its program, where we may know it.
    pub program: Option<PathBuf>,
}

impl Ancestor {
    /// How long ago it started.
    pub fn age(&self) -> Option<std::time::Duration> {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: plain questions to the system; `now` is ours to write to.
        let (failed, ticks) = unsafe {
            (libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now), libc::sysconf(libc::_SC_CLK_TCK))
        };
        if failed != 0 || ticks <= 0 {
            return None;
        }
        let seconds = now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9 - self.start as f64 / ticks as f64;
        std::time::Duration::try_from_secs_f64(seconds).ok()
    }

    /// Whether a variable is in its environment, as it was when its program began; None where we may not know.
    pub fn has_variable(&self, name: &str) -> Option<bool> {
        let environment = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let is_it =
            |entry: &[u8]| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        Some(environment.split(|&byte| byte == 0).any(is_it))
    }
}

/// The processes that started us, nearest first.
pub fn ancestors() -> Vec<Ancestor> {
    above(std::process::id())
}

/// The processes that started another one, nearest first.
fn above(pid: u32) -> Vec<Ancestor> {
    let mut found = Vec::new();
    let mut pid = stat(pid).map_or(0, |stat| stat.parent);
    while pid > 1 && found.len() < 64 {
        let Some(stat) = stat(pid) else { break };
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        found.push(Ancestor { pid, start: stat.start, name: stat.name, program });
        pid = stat.parent;
    }
    found
}

/// The nearest process that looks like a launcher or its helper on this host.
pub fn launcher() -> Option<Ancestor> {
    const NAMES: &[&str] = &[
        "mpirun",
        "mpiexec",
        "orterun",
        "orted",
        "prterun",
        "prted",
        "prte",
        "mpiexec.hydra",
        "mpirun.openmpi",
        "mpirun.mpich",
        "mpirun.hydra",
        "hydra_pmi_proxy",
        "hydra_bstrap_pr",
        "pmi_proxy",
        "slurmstepd",
    ];
    ancestors()
        .into_iter()
        .find(|a| NAMES.iter().any(|name| a.name == *name || a.name.starts_with("slurmstepd")))
}

/// A rank of this host, as a process.
#[derive(Debug, Clone, PartialEq)]
pub struct RankProcess {
    pub rank: usize,
    pub pid: u32,
    /// Stopped by a signal or a debugger.
    pub stopped: bool,
}

/// The ranks of this host that the same launcher process has started, as far as the system shows them.
pub fn ranks_of_this_host() -> Vec<RankProcess> {
    let Some(launcher) = launcher() else { return Vec::new() };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let rank = |pid: u32| {
        let (rank, state) = (rank_of(pid)?, stat(pid)?.state);
        let ours = above(pid).iter().any(|a| (a.pid, a.start) == (launcher.pid, launcher.start));
        let alive = !matches!(state, 'Z' | 'X');
        (ours && alive).then_some(RankProcess { rank, pid, stopped: matches!(state, 'T' | 't') })
    };
    let mut found: Vec<RankProcess> = pids.filter_map(rank).collect();
    found.sort_by_key(|process| process.rank);
    found
}

/// The rank of a process, by what an MPI launcher told it.
fn rank_of(pid: u32) -> Option<usize> {
    const NAMES: [&[u8]; 4] = [b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"PMIX_RANK=", b"SLURM_PROCID="];
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &&[u8]| environment.split(|&byte| byte == 0).find_map(|e| e.strip_prefix(*name));
    std::str::from_utf8(NAMES.iter().find_map(value)?).ok()?.parse().ok()
}

/// Which host, and which view of its processes, this process lives in. Ranks that agree can share memory.
pub fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    // SAFETY: a plain question to the system.
    let user = unsafe { libc::geteuid() };
    format!("{} {} {user}", boot.trim(), pids.display())
}

struct Stat {
    name: String,
    state: char,
    parent: u32,
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may itself contain some.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let rest: Vec<&str> = text[close + 1..].split_whitespace().collect();
    Some(Stat {
        name: text[open + 1..close].to_string(),
        state: rest.first()?.chars().next()?,
        parent: rest.get(1)?.parse().ok()?,
        start: rest.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn my_parent_is_the_first_ancestor() {
        let first = ancestors().into_iter().next().expect("a test has a parent");
        assert_eq!(first.pid, std::os::unix::process::parent_id());
        assert!(first.start > 0 && !first.name.is_empty());
        let (young, old) = (std::time::Duration::ZERO, std::time::Duration::from_secs(86_400 * 3650));
        assert!(first.age().is_some_and(|age| age >= young && age < old), "{:?}", first.age());
        assert_eq!(first.has_variable("PHALANX_NO_SUCH_VARIABLE"), Some(false));
    }

    #[test]
    fn the_end_of_a_process_is_noticed_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let watched = Watched::new(child.id());
        assert!(!watched.has_ended());
        child.kill().unwrap();
        let start = std::time::Instant::now();
        while !watched.has_ended() && start.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(watched.has_ended());
        child.wait().unwrap();
    }
}
