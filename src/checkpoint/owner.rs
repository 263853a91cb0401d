//! A folder has one owner: the run that writes into it.
//!
//! The owner keeps `.phalanx.lock` in each of its folders: who it is, and a count that goes up every few seconds. The file is
//! written under another name and linked to its own, which NFS does exclusively too, and it carries a lock of the system. A
//! lock whose owner is gone is taken over: on the same host the process says so, on another one a count that stands still.

use crate::comm::process::Watched;
use crate::error::{Error, IoContext, Result};
use crate::{bail, err};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The file of the lock.
pub const LOCK: &str = ".phalanx.lock";
/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(10);
/// Without a sign of life for so long, an owner that we cannot ask counts as gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Ranks that a launcher has just killed may need a moment to be gone.
const GRACE: Duration = Duration::from_secs(2);

/// Who holds a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    host: String,
    pid: u32,
    /// When the process began, in ticks since the host was started: numbers of processes are used again.
    began: u64,
    /// Tells one start of the host from another.
    boot: String,
    /// Numbers of processes mean something inside one of these only.
    pid_namespace: String,
    since: String,
    command: String,
    job: String,
    /// No two are alike.
    id: String,
}

impl Holder {
    fn this_process() -> Holder {
        let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let command: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let pid = std::process::id();
        Holder {
            host: crate::launch::host_name(),
            pid,
            began: began(pid).unwrap_or(0),
            boot: line("/proc/sys/kernel/random/boot_id"),
            pid_namespace: namespace.display().to_string(),
            since: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string(),
            command: command.join(" "),
            job: job(&|name| std::env::var(name).ok()),
            id: random_id(),
        }
    }

    /// Whether this process can ask after that one.
    fn is_near(&self, me: &Holder) -> bool {
        (&self.host, &self.boot, &self.pid_namespace) == (&me.host, &me.boot, &me.pid_namespace)
    }

    fn is_alive(&self) -> bool {
        !Watched::new(self.pid).has_ended() && began(self.pid).is_none_or(|began| began == self.began)
    }

    fn describe(&self) -> String {
        let job = if self.job.is_empty() { String::new() } else { format!(", {}", self.job) };
        format!("process {} on {} since {} ({}{job})", self.pid, self.host, self.since, self.command)
    }
}

/// The batch job that this process is part of.
fn job(env: &dyn Fn(&str) -> Option<String>) -> String {
    let known = [("SLURM_JOB_ID", "Slurm job"), ("PBS_JOBID", "PBS job"), ("LSB_JOBID", "LSF job")];
    known.iter().find_map(|(name, what)| Some(format!("{what} {}", env(name)?))).unwrap_or_default()
}

/// When a process began, in ticks since the host was started.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold spaces; after it stand the fields from the third on.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Taken from the random state that the standard library has from the operating system.
fn random_id() -> String {
    use std::hash::{BuildHasher, Hasher};
    format!("{:016x}", std::collections::hash_map::RandomState::new().build_hasher().finish())
}

/// The folders that this process owns, until it is dropped.
#[derive(Debug)]
pub struct Owner {
    claims: Vec<Claim>,
    beats: Option<(Sender<()>, JoinHandle<()>)>,
}

/// One folder.
#[derive(Debug)]
struct Claim {
    folder: PathBuf,
    /// Open as long as it is ours: the system's lock goes with it.
    file: File,
    id: String,
    /// Where the count stands in the file.
    beat_at: u64,
    /// Whether the folder was made for this run; an empty one is taken away again.
    made: bool,
}

impl Owner {
    /// Makes this process the owner of folders, or says who is. Folders that are not there are made.
    pub fn claim(folders: &[PathBuf]) -> Result<Owner> {
        let me = Holder::this_process();
        let mut owner = Owner { claims: Vec::new(), beats: None };
        for folder in folders {
            let made = !folder.exists();
            std::fs::create_dir_all(folder).io("create the folder", folder)?;
            let folder = folder.canonicalize().io("find the folder", folder)?;
            if !owner.claims.iter().any(|claim| claim.folder == folder) {
                owner.claims.push(claim(&folder, &me, made)?);
            }
        }
        owner.beats = Some(owner.start_beats()?);
        Ok(owner)
    }

    /// Fails where another run has taken a folder, because it heard nothing of this one for too long.
    pub fn check(&self) -> Result<()> {
        self.claims.iter().try_for_each(|claim| match read_lock(&claim.folder.join(LOCK)) {
            Ok(Some(found)) if found.holder.as_ref().is_some_and(|holder| holder.id == claim.id) => Ok(()),
            Ok(found) => {
                let by = match found.and_then(|found| found.holder) {
                    Some(holder) => format!("now {} owns it", holder.describe()),
                    None => format!("its lock, {LOCK}, is gone"),
                };
                Err(err!("{}: this run owns the folder no more: {by}", claim.folder.display())
                    .help("nothing was overwritten since; continue from the newest checkpoint once no other run is there"))
            }
            // A file system that does not answer now may answer later.
            Err(_) => Ok(()),
        })
    }

    fn start_beats(&self) -> Result<(Sender<()>, JoinHandle<()>)> {
        let files: Vec<(File, u64)> = self
            .claims
            .iter()
            .map(|claim| Ok((claim.file.try_clone().io("watch over", &claim.folder)?, claim.beat_at)))
            .collect::<Result<_>>()?;
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("owner".into())
            .spawn(move || {
                for beat in 1u64.. {
                    if stopped.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    for (file, at) in &files {
                        let _ = file.write_at(beat_line(beat).as_bytes(), *at); // the next one may get through
                    }
                }
            })
            .map_err(|e| err!("cannot start the thread that keeps folders: {e}"))?;
        Ok((stop, thread))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.beats.take() {
            drop(stop);
            let _ = thread.join(); // it only writes numbers
        }
        for claim in &self.claims {
            let path = claim.folder.join(LOCK);
            if is_same_file(&path, &claim.file) {
                let _ = std::fs::remove_file(&path); // a lock that stays is taken over by the next run
            }
            if claim.made {
                let _ = std::fs::remove_dir(&claim.folder); // goes only where it is empty
            }
        }
    }
}

/// A lock as it was found.
struct Found {
    /// None where the file cannot be understood.
    holder: Option<Holder>,
    content: Vec<u8>,
    file: File,
}

fn claim(folder: &Path, me: &Holder, made: bool) -> Result<Claim> {
    let path = folder.join(LOCK);
    let began = Instant::now();
    let mut told = false;
    loop {
        if let Some(mut claim) = create(folder, me)? {
            claim.made = made;
            return Ok(claim);
        }
        let Some(found) = read_lock(&path)? else { continue }; // it went away in the meantime
        match state(&found, folder, me)? {
            State::Gone => {
                if let Some(holder) = &found.holder {
                    log::info!("{}: the run that owned it is gone: {}", folder.display(), holder.describe());
                }
                take_away(&path, &found)?;
            }
            State::Alive if began.elapsed() > GRACE => return Err(refusal(folder, &found)),
            State::Alive => std::thread::sleep(Duration::from_millis(100)),
            State::Unknown => {
                if !told {
                    let who = found.holder.as_ref().map_or("an unknown run".into(), Holder::describe);
                    log::warn!("{}: owned by {who}; waiting for a sign of life", folder.display());
                    told = true;
                }
                std::thread::sleep(Duration::from_secs(1));
                let again = read_lock(&path)?;
                if again.is_some_and(|again| again.content != found.content) {
                    return Err(refusal(folder, &found));
                }
            }
        }
    }
}

enum State {
    Alive,
    Gone,
    /// Silent, but not for long enough.
    Unknown,
}

fn state(found: &Found, folder: &Path, me: &Holder) -> Result<State> {
    // Where a system has no locks, or keeps them to one host, the rest must do.
    if matches!(found.file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Ok(State::Alive);
    }
    if let Some(holder) = found.holder.as_ref().filter(|holder| holder.is_near(me)) {
        return Ok(if holder.is_alive() { State::Alive } else { State::Gone });
    }
    let last = found.file.metadata().and_then(|m| m.modified()).io("inspect", &folder.join(LOCK))?;
    let silent = clock_of(folder)?.duration_since(last).unwrap_or_default();
    Ok(if silent >= SILENCE { State::Gone } else { State::Unknown })
}

/// The time by the clock that stamps files of this folder, which may be another machine's.
fn clock_of(folder: &Path) -> Result<SystemTime> {
    let file = tempfile::Builder::new().prefix(LOCK).tempfile_in(folder).io("create a file", folder)?;
    file.as_file().metadata().and_then(|m| m.modified()).io("inspect a file", folder)
}

/// Makes the lock, complete from its first moment; None where there is one.
fn create(folder: &Path, me: &Holder) -> Result<Option<Claim>> {
    let path = folder.join(LOCK);
    let head =
        serde_json::to_string(me).map_err(|e| err!("cannot write down who owns a folder: {e}"))? + "\n";
    let mut temporary = tempfile::Builder::new()
        .prefix(&format!("{LOCK}."))
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)
        .io("write into the folder", folder)?;
    let text = format!("{head}{}", beat_line(0));
    temporary.write_all(text.as_bytes()).io("write", temporary.path())?;
    let _ = temporary.as_file().try_lock(); // where a system has no locks the rest must do
    let made = match std::fs::hard_link(temporary.path(), &path) {
        Ok(()) => Some(temporary.as_file().try_clone().io("keep", &path)?),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => None,
        Err(_) => create_without_links(&path, &text)?,
    };
    let beat_at = head.len() as u64;
    Ok(made.map(|file| Claim { folder: folder.to_owned(), file, id: me.id.clone(), beat_at, made: false }))
}

/// For file systems that know no hard links.
fn create_without_links(path: &Path, text: &str) -> Result<Option<File>> {
    match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        opened => {
            let mut file = opened.io("create", path)?;
            let _ = file.try_lock();
            file.write_all(text.as_bytes()).io("write", path)?;
            Ok(Some(file))
        }
    }
}

/// The lock that is there, if there is one. A link in its place is not followed.
fn read_lock(path: &Path) -> Result<Option<Found>> {
    const LONGEST: u64 = 1 << 16;
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.io("read the lock", path)?,
    };
    if !file.metadata().io("inspect", path)?.is_file() {
        bail!("{}: found something else than a file, wanted the lock of a folder", path.display());
    }
    let mut content = Vec::new();
    (&file).take(LONGEST).read_to_end(&mut content).io("read the lock", path)?;
    let head = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(Some(Found { holder: serde_json::from_slice(head).ok(), content, file }))
}

/// Removes a lock whose owner is gone. Two runs may come here at once: only what was looked at goes.
fn take_away(path: &Path, found: &Found) -> Result<()> {
    if !is_same_file(path, &found.file) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).io("remove the lock of a run that is gone", path)
        }
        _ => Ok(()),
    }
}

/// Whether a name still means a file that is open.
fn is_same_file(path: &Path, file: &File) -> bool {
    let (Ok(a), Ok(b)) = (std::fs::symlink_metadata(path), file.metadata()) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

fn beat_line(beat: u64) -> String {
    format!("beat {beat:010}\n")
}

fn refusal(folder: &Path, found: &Found) -> Error {
    let lock = folder.join(LOCK);
    let who = found.holder.as_ref().map_or("an unknown run".into(), Holder::describe);
    err!("{}: another run writes into this folder: {who}", folder.display())
        .help(format!("let it end, or start this one in another folder; its lock is {}", lock.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, holder: &Holder, age: Duration) {
        let path = folder.join(LOCK);
        std::fs::write(&path, serde_json::to_string(holder).unwrap() + "\n" + &beat_line(0)).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    fn of_another_host() -> Holder {
        Holder { host: "far".into(), boot: "x".into(), id: "other".into(), ..Holder::this_process() }
    }

    #[test]
    fn a_folder_has_one_owner_and_is_free_again_when_that_one_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned(), folder.path().join("new/run"), folder.path().join(".")];
        let first = Owner::claim(&folders).unwrap();
        first.check().unwrap();
        let error = Owner::claim(&folders[1..2]).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        assert!(!folder.path().join("new/run").exists(), "what is empty goes");
        drop(Owner::claim(&folders).unwrap());
        assert!(!folder.path().join(LOCK).exists());
    }

    #[test]
    fn the_lock_of_a_process_that_ended_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let me = Holder::this_process();
        let gone = Holder { pid: child.id(), began: 1, ..me.clone() };
        child.wait().unwrap();
        // Its number may be in use again, by a process that began at another time.
        for gone in [gone, Holder { began: me.began + 1, ..me }] {
            put(folder.path(), &gone, Duration::ZERO);
            Owner::claim(&[folder.path().to_owned()]).unwrap().check().unwrap();
        }
    }

    #[test]
    fn an_owner_on_another_host_counts_while_it_gives_signs_of_life() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        put(folder.path(), &of_another_host(), SILENCE + Duration::from_secs(1));
        drop(Owner::claim(&folders).unwrap());
        std::fs::write(folder.path().join(LOCK), "").unwrap(); // a host that lost power in mid-write
        let file = File::options().write(true).open(folder.path().join(LOCK)).unwrap();
        file.set_modified(SystemTime::now() - 2 * SILENCE).unwrap();
        drop(Owner::claim(&folders).unwrap());

        put(folder.path(), &of_another_host(), Duration::ZERO);
        let path = folder.path().join(LOCK);
        let alive = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            let text = std::fs::read_to_string(&path).unwrap().replace("beat 0000000000", "beat 0000000001");
            std::fs::write(&path, text).unwrap();
        });
        let error = Owner::claim(&folders).unwrap_err().to_string();
        assert!(error.contains("on far since"), "{error}");
        alive.join().unwrap();
        put(folder.path(), &of_another_host(), SILENCE - Duration::from_secs(1));
        drop(Owner::claim(&folders).unwrap());
    }

    #[test]
    fn an_owner_that_was_taken_for_dead_notices() {
        let folder = tempfile::tempdir().unwrap();
        let owner = Owner::claim(&[folder.path().to_owned()]).unwrap();
        let path = folder.path().join(LOCK);
        std::fs::remove_file(&path).unwrap();
        assert!(owner.check().unwrap_err().message().contains("is gone"));
        put(folder.path(), &of_another_host(), Duration::ZERO);
        assert!(owner.check().unwrap_err().message().contains("on far since"));
        drop(owner);
        assert!(path.exists(), "the other's lock stays");
    }

    #[test]
    fn a_link_in_place_of_a_lock_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("precious");
        std::fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join(LOCK)).unwrap();
        Owner::claim(&[folder.path().to_owned()]).unwrap_err();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "untouched");
    }

    #[test]
    fn batch_jobs_are_named() {
        assert_eq!(job(&|name| (name == "SLURM_JOB_ID").then(|| "77".into())), "Slurm job 77");
        assert_eq!(job(&|_| None), "");
    }
}
