//! What the tests that start ranks share: launchers, jobs, processes.
//!
//! A launcher that is not installed is skipped by name. `PHALANX_TEST_LAUNCHERS` may list folders (separated by `:`)
//! to look in before the usual ones, such as the `bin` of a Python environment with other versions.

// Each test program uses its own part of this.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Lets Open MPI 4 and 5 start as root, with more ranks than cores, which then yield to each other.
const OPEN_MPI: &[(&str, &str)] = &[
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    ("OMPI_MCA_plm_rsh_agent", "false"),
];

/// Prepares a command for Open MPI's launcher, should it be one. Jobs that start or end at the same time disturb each
/// other in the one session folder that they share by default ("mkdir: File exists"): each job gets its own, deleted
/// with the thread of its test.
pub fn for_open_mpi(command: &mut Command) {
    thread_local! {
        static SESSIONS: (tempfile::TempDir, std::cell::Cell<u32>) =
            (tempfile::Builder::new().prefix("mpi").tempdir_in("/tmp").unwrap(), Default::default());
    }
    let session = SESSIONS.with(|(folder, jobs)| {
        jobs.set(jobs.get() + 1);
        folder.path().join(jobs.get().to_string())
    });
    command.envs(OPEN_MPI.iter().copied());
    command.env("OMPI_MCA_orte_tmpdir_base", &session).env("PRTE_MCA_prte_tmpdir_base", session);
}

/// The path of a launcher, where it is installed.
pub fn find(name: &str) -> Option<PathBuf> {
    let extra = std::env::var("PHALANX_TEST_LAUNCHERS").unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = extra.split(':').chain(path.split(':')).filter(|folder| !folder.is_empty());
    folders.map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// Whether srun can start anything here, within a few seconds. Asked once.
pub fn answers(srun: &Path) -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| starts(srun))
}

pub fn starts(srun: &Path) -> bool {
    let quiet = || Stdio::null();
    let probe =
        Command::new(srun).args(["-n", "1", "--immediate=3", "true"]).stdout(quiet()).stderr(quiet()).spawn();
    let Ok(mut probe) = probe else { return false };
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Ok(Some(status)) = probe.try_wait() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = probe.kill();
    let _ = probe.wait();
    false
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a job said, line by line, while it runs.
pub struct Job {
    pub child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    pub said: Vec<String>,
}

impl Job {
    pub fn start(mut command: Command) -> Job {
        let mut child = command.spawn().unwrap();
        let (tell, lines) = std::sync::mpsc::channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let tell = tell.clone();
            std::thread::spawn(move || {
                use std::io::BufRead;
                for line in std::io::BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = tell.send(line);
                }
            });
        }
        Job { child, lines, said: Vec::new() }
    }

    /// Listens until `enough` or the limit.
    pub fn listen(&mut self, limit: Duration, enough: impl Fn(&[String]) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !enough(&self.said) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(_) => return enough(&self.said),
            }
        }
        true
    }

    /// Waits for the end; whether it was a success. A job that does not end is killed, and the test fails.
    pub fn end(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            self.listen(Duration::from_millis(50), |_| false);
            if let Some(status) = self.child.try_wait().unwrap() {
                self.listen(Duration::from_millis(300), |_| false);
                return status.success();
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("the job did not end within {limit:?}; it said\n{}", self.said.join("\n"));
            }
        }
    }

    pub fn lines_with<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a String> {
        self.said.iter().filter(move |line| line.contains(what))
    }
}

/// Whether a process ends soon.
pub fn gone(pid: i32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    // SAFETY: signal 0 only asks.
    while unsafe { libc::kill(pid, 0) } == 0 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.contains(") Z ") {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
