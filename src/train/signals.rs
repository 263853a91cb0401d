//! SIGTERM, SIGINT and SIGHUP end a run at a step, with a checkpoint.

use crate::err;
use crate::error::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Stands in place of a signal's number where the program itself asks to stop.
const CALLER: i32 = -1;

/// Launchers pass on a signal that the terminal sent to every process already. Two within this time are one request.
const SAME_REQUEST: Duration = Duration::from_millis(150);

/// Watches for a request to stop. The loop asks between two steps.
///
/// The first signal asks; the second ends the process at once with 128 + n, wherever it is. This is the one place
/// besides `main` that ends the process: a loop that hangs could not do it.
#[derive(Debug)]
pub struct StopRequest {
    signal: Arc<AtomicI32>,
    /// `None` where signals are somebody else's.
    handle: Option<Handle>,
}

/// Asks a run to stop from elsewhere in the program: it finishes its step and saves.
#[derive(Debug, Clone, Default)]
pub struct StopHandle {
    signal: Arc<AtomicI32>,
}

impl StopHandle {
    pub fn stop(&self) {
        self.signal.store(CALLER, Ordering::Relaxed);
    }
}

impl StopRequest {
    /// Starts to watch. Once dropped, these signals are ignored: what follows is the end of the run.
    pub fn watch() -> Result<Self> {
        let mut watched = vec![SIGTERM, SIGINT];
        if !is_ignored(SIGHUP) {
            watched.push(SIGHUP);
        }
        let mut signals = Signals::new(watched).map_err(|e| err!("cannot watch for signals: {e}"))?;
        let handle = signals.handle();
        let signal = Arc::new(AtomicI32::new(0));
        let seen = Arc::clone(&signal);
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first: Option<Instant> = None;
                for n in signals.forever() {
                    match first {
                        None => {
                            first = Some(Instant::now());
                            seen.store(n, Ordering::Relaxed);
                            log::warn!(
                                "{} received: finishing the step and saving; once more to end at once",
                                name(n)
                            );
                        }
                        Some(first) if first.elapsed() < SAME_REQUEST => {}
                        Some(_) => signal_hook::low_level::exit(128 + n),
                    }
                }
            })
            .map_err(|e| err!("cannot start the thread that watches for signals: {e}"))?;
        Ok(StopRequest { signal, handle: Some(handle) })
    }

    /// Watches for no signal, since the process is somebody else's: `handle` asks.
    pub fn of(handle: &StopHandle) -> Self {
        StopRequest { signal: handle.signal.clone(), handle: None }
    }

    /// The program that started the run asked to stop.
    pub fn is_of_caller(&self) -> bool {
        self.requested() == Some(CALLER)
    }

    /// The signal that asked to stop, if one did.
    #[inline]
    pub fn requested(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|&n| n != 0)
    }
}

impl Drop for StopRequest {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.close();
        }
    }
}

/// Whether this process was started with a signal ignored, as `nohup` does: then it stays so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// `SIGTERM`, for messages.
pub fn name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGTERM => "SIGTERM",
        CALLER => "the program that started it",
        SIGHUP => "SIGHUP",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

    const CHILD: &str = "PHALANX_TEST_SIGNALS";

    /// The process of the tests below; does nothing on its own. `stubborn` never looks at the request.
    #[test]
    fn child_that_waits_for_a_signal() {
        let Ok(kind) = std::env::var(CHILD) else { return };
        let stop = StopRequest::watch().unwrap();
        println!("ready");
        for _ in 0..1000 {
            std::thread::sleep(Duration::from_millis(10));
            if let Some(n) = stop.requested().filter(|_| kind == "polite") {
                println!("saved after {}", name(n));
                std::process::exit(0);
            }
        }
        std::process::exit(99);
    }

    fn child(kind: &str) -> (Child, BufReader<ChildStdout>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "train::signals::tests::child_that_waits_for_a_signal", "--nocapture"])
            .env(CHILD, kind)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // Whoever runs the tests may have started them with signals ignored, as `nohup` does.
        let heed = || {
            for signal in [SIGINT, SIGHUP] {
                // SAFETY: no function of this program handles these signals.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: between fork and exec only `signal` is called, which may be.
        unsafe { command.pre_exec(heed) };
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        read_until(&mut out, "ready");
        (child, out)
    }

    fn read_until(out: &mut BufReader<ChildStdout>, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "the child ended without saying {wanted:?}");
        }
    }

    fn send(child: &Child, signal: &str) {
        let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn end(mut child: Child) -> ExitStatus {
        child.wait().unwrap()
    }

    #[test]
    fn the_first_signal_lets_the_run_save_and_end_well() {
        for signal in ["-TERM", "-INT", "-HUP"] {
            let (process, mut out) = child("polite");
            send(&process, signal);
            read_until(&mut out, &format!("saved after SIG{}", &signal[1..]));
            assert_eq!(end(process).code(), Some(0));
        }
    }

    #[test]
    fn a_second_signal_ends_at_once_and_an_echo_of_the_first_does_not() {
        let (process, _out) = child("stubborn");
        send(&process, "-INT");
        send(&process, "-TERM"); // what a launcher does after Ctrl-C
        std::thread::sleep(SAME_REQUEST * 3);
        let mut process = process;
        assert!(process.try_wait().unwrap().is_none(), "the echo ended the process");
        send(&process, "-TERM");
        assert_eq!(end(process).code(), Some(128 + SIGTERM));
    }
}
