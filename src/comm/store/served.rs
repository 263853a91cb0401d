//! A key-value store that rank 0 serves itself, where the launcher offers none.
//!
//! Among ranks of one host it listens on an abstract Unix socket: a name without a file, which vanishes with its
//! process and so is never stale. Only processes of the same user are let in. Between hosts it is a TCP socket, at which
//! only those get in who have the key of the job (see `gate`). In both cases a caller then says which rank it is and what it
//! knows of the job, and is refused if that is another job. Nobody else is let in once all have met.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Store, torch::dial};
use crate::comm::about::{About, refused};
use crate::comm::gate::{self, Gate};
use crate::comm::net::interfaces;
use crate::comm::secret::Key;
use crate::err;
use crate::error::{Error, Result};

/// Longest name of a value.
const LONGEST_KEY: usize = 256;
/// Longest value of a rank; what rank 0 makes of all of them is longer.
const LONGEST: usize = 1 << 20;
/// Longest answer of rank 0.
const LONGEST_ANSWER: usize = 1 << 28;
/// How often the one who lets callers in looks whether the meeting is over.
const LOOK: Duration = Duration::from_millis(20);
/// How much longer than it was asked to rank 0 may take to answer.
const GRACE: Duration = Duration::from_secs(1);
/// How long rank 0 of an earlier job at the same port may take to leave.
const LEAVING: Duration = Duration::from_secs(1);

const JOIN: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 2;

/// This rank among those that meet at the store.
pub struct Member<'a> {
    pub rank: usize,
    pub size: usize,
    /// What it knows of the job.
    pub about: &'a About,
    /// How long to wait for rank 0, and for its answers.
    pub limit: Duration,
}

/// Rank 0's store, seen by rank 0 or by another rank.
pub enum Served {
    /// Rank 0 itself.
    Here { shelf: Arc<Shelf>, closed: Arc<AtomicBool>, local: Option<IpAddr> },
    /// The others.
    There { stream: Box<dyn Stream>, local: Option<IpAddr> },
}

/// Bytes in and out, with a limit for each wait.
pub trait Stream: Read + Write + Send {
    fn limit_waits(&self, limit: Option<Duration>) -> std::io::Result<()>;
}

impl Stream for TcpStream {
    fn limit_waits(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(limit).and_then(|()| self.set_write_timeout(limit))
    }
}

impl Stream for UnixStream {
    fn limit_waits(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(limit).and_then(|()| self.set_write_timeout(limit))
    }
}

/// What is stored, and who is there.
pub struct Shelf {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
    size: usize,
    about: About,
    here: Mutex<Vec<usize>>,
    /// How long a caller may take to say who it is.
    limit: Duration,
}

impl Served {
    /// At an address that the user chose; rank 0 listens there.
    pub fn over_tcp(me: &Member, address: &str, port: u16, key: Key) -> Result<Served> {
        if me.rank > 0 {
            return call(me, address, port, &key);
        }
        let (listener, local) = listen(address, port)?;
        let mut gate = Gate::new(listener, key, me.size).map_err(|e| err!("cannot listen: {e}"))?;
        Ok(Self::serve(me, local, move || {
            gate.next(LOOK).map(|caller| Box::new(caller.stream) as Box<dyn Stream>)
        }))
    }

    /// Among the processes of this host that know `name`.
    pub fn among_siblings(me: &Member, name: &str, wait_for_name: Duration) -> Result<Served> {
        let address = SocketAddr::from_abstract_name(name).map_err(|e| err!("socket name {name:?}: {e}"))?;
        if me.rank == 0 {
            let listener = bind(&address, Instant::now() + wait_for_name);
            let listener = listener.map_err(|e| err!("rank 0 cannot listen: {e}"))?;
            return Ok(Self::serve(me, None, move || {
                wait_readable(listener.as_raw_fd(), LOOK);
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(false).ok()?;
                same_user(stream.as_raw_fd()).then(|| Box::new(stream) as Box<dyn Stream>)
            }));
        }
        let deadline = Instant::now() + me.limit;
        loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) if same_user(stream.as_raw_fd()) => return join(me, Box::new(stream), None),
                Ok(_) => return Err(err!("another user listens where rank 0 should")),
                Err(e) if Instant::now() >= deadline => {
                    return Err(err!("rank 0 cannot be found on this host: {e}")
                        .help("all ranks have to be started by the same mpirun or srun, on one host"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// At a port of loopback that the user chose: the ranks are on this host, and no socket is open to anybody else.
    pub fn at_loopback(me: &Member, port: u16) -> Result<Served> {
        // SAFETY: a plain question to the system.
        let user = unsafe { libc::geteuid() };
        let found = Self::among_siblings(me, &format!("phalanx-{user}-port-{port}"), LEAVING);
        found.map_err(|e| match (me.rank, e.message().starts_with("rank 0 cannot")) {
            (0, true) => err!("{} at MASTER_PORT={port}", e.message())
                .help("another job is about to start there: choose another port"),
            (_, true) => err!("cannot reach rank 0 at MASTER_PORT={port} of this host: {}", e.message())
                .help("it may have failed at its start: look for its own message; PHALANX_COMM_LIMIT (seconds) waits longer"),
            _ => e,
        })
    }

    /// Serves whoever `accept` lets in, one thread each, until this is dropped; those already in are served to
    /// their end.
    fn serve(
        me: &Member,
        local: Option<IpAddr>,
        mut accept: impl FnMut() -> Option<Box<dyn Stream>> + Send + 'static,
    ) -> Served {
        let shelf = Arc::new(Shelf {
            values: Mutex::default(),
            changed: Condvar::new(),
            size: me.size,
            about: me.about.clone(),
            here: Mutex::default(),
            limit: me.limit,
        });
        let closed = Arc::new(AtomicBool::new(false));
        let (values, stop) = (shelf.clone(), closed.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if let Some(stream) = accept() {
                    let values = values.clone();
                    std::thread::spawn(move || values.serve(stream));
                }
            }
        });
        Served::Here { shelf, closed, local }
    }
}

/// Listens at the address of this host that the name means, or at all where that cannot be told.
fn listen(name: &str, port: u16) -> Result<(TcpListener, Option<IpAddr>)> {
    let taken = |e: std::io::Error| {
        err!("rank 0 cannot listen at MASTER_PORT={port}: {e}").help("choose another port")
    };
    let own: Vec<IpAddr> = interfaces().into_iter().map(|(_, address)| address).collect();
    let meant: Vec<IpAddr> = match (name, port).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip()).collect(),
        Err(_) => Vec::new(),
    };
    // Many hosts know themselves by a loopback address, by which nobody else can mean them.
    let meant = meant.into_iter().find(|address| own.contains(address) && !address.is_loopback());
    let bound = TcpListener::bind((meant.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port));
    Ok((bound.map_err(taken)?, meant))
}

/// Reaches rank 0 by TCP.
fn call(me: &Member, address: &str, port: u16, key: &Key) -> Result<Served> {
    let deadline = Instant::now() + me.limit;
    let place = format!("MASTER_ADDR:MASTER_PORT = {address}:{port}");
    loop {
        let stream = dial(address, port, deadline, me.limit);
        let mut stream = stream.map_err(|e| err!("cannot reach rank 0 at {place}: {e}"))?;
        match gate::introduce(&mut stream, key, me.rank, 0, deadline) {
            Ok(()) => {
                let local = stream.local_addr().ok().map(|a| a.ip());
                return join(me, Box::new(stream), local);
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied || Instant::now() >= deadline => {
                return Err(err!("cannot reach rank 0 at {place}: {e}").help(
                    "all ranks need the same secret: PHALANX_COMM_SECRET, PHALANX_COMM_SECRET_FILE, or the file \
                     phalanx/ranks.key in the folder of settings (~/.config)",
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Says who this rank is; rank 0 says whether it is of this job.
fn join(me: &Member, mut stream: Box<dyn Stream>, local: Option<IpAddr>) -> Result<Served> {
    let lost = |e: std::io::Error| lost(&e);
    stream.limit_waits(Some(me.limit)).map_err(lost)?;
    let card = format!("{}\n{}\n{}", me.rank, me.size, me.about.write());
    let message = [&[JOIN], &frame(card.as_bytes())[..], &frame(&[])].concat();
    stream.write_all(&message).map_err(lost)?;
    let answer = take(&mut stream, LONGEST).map_err(lost)?;
    match answer.is_empty() {
        true => Ok(Served::There { stream, local }),
        false => Err(refused(&String::from_utf8_lossy(&answer))),
    }
}

fn lost(e: &std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            err!("rank 0 does not answer").help("it may be stopped, or its host or network is gone")
        }
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            err!("rank 0 left before all ranks had met").help("its own message, or the launcher, may say why")
        }
        _ => err!("lost the connection to rank 0: {e}"),
    }
}

/// Rank 0 of an earlier command of the same job may still be on its way out.
fn bind(address: &SocketAddr, deadline: Instant) -> std::io::Result<UnixListener> {
    loop {
        match UnixListener::bind_addr(address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn wait_readable(fd: RawFd, limit: Duration) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry that lives through the call.
    unsafe { libc::poll(&raw mut entry, 1, limit.as_millis() as i32) };
}

fn same_user(fd: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure is the one that this option fills, and its length is given; geteuid only asks.
    unsafe {
        let out = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, out, &raw mut length) == 0
            && peer.uid == libc::geteuid()
    }
}

impl Shelf {
    fn set(&self, key: String, value: Vec<u8>) {
        lock(&self.values).insert(key, value);
        self.changed.notify_all();
    }

    fn get(&self, key: &str, wait: Duration) -> Option<Vec<u8>> {
        let absent = |values: &mut HashMap<String, Vec<u8>>| !values.contains_key(key);
        let waited = self.changed.wait_timeout_while(lock(&self.values), wait, absent);
        let (values, _) = waited.unwrap_or_else(PoisonError::into_inner);
        values.get(key).cloned()
    }

    /// Answers one client until it goes.
    fn serve(&self, mut stream: Box<dyn Stream>) {
        // An error means that it has gone, or speaks another language.
        let Ok(Some(rank)) = self.admit(&mut stream) else { return };
        while self.answer(&mut stream).is_ok() {}
        lock(&self.here).retain(|&other| other != rank);
    }

    /// Lets a rank of this job in; tells anybody else why not.
    fn admit(&self, stream: &mut Box<dyn Stream>) -> std::io::Result<Option<usize>> {
        stream.limit_waits(Some(self.limit))?;
        let (kind, card, _) = request(stream)?;
        let Some((rank, size, about)) = (kind == JOIN).then(|| read_card(&card)).flatten() else {
            return Ok(None);
        };
        let refusal = self.refusal(rank, size, &about);
        if let Some(why) = &refusal {
            log::warn!("sent away: {why}");
            stream.write_all(&frame(why.as_bytes()))?;
            return Ok(None);
        }
        stream.limit_waits(None)?;
        let welcomed = stream.write_all(&frame(&[]));
        if welcomed.is_err() {
            lock(&self.here).retain(|&other| other != rank);
        }
        welcomed.map(|()| Some(rank))
    }

    /// Why somebody who says this of itself is not let in. Notes it where it is.
    fn refusal(&self, rank: usize, size: usize, about: &About) -> Option<String> {
        if size != self.size || rank == 0 || rank >= size {
            let mine = self.size;
            return Some(format!(
                "rank {rank} of {size} is not of the job of rank 0, which has {mine} ranks"
            ));
        }
        if let Some(why) = self.about.refusal(rank, about) {
            return Some(why);
        }
        let mut here = lock(&self.here);
        if here.contains(&rank) {
            return Some(format!("rank {rank} came twice to the meeting place of rank 0"));
        }
        here.push(rank);
        None
    }

    fn answer(&self, stream: &mut Box<dyn Stream>) -> std::io::Result<()> {
        let (kind, key, value) = request(stream)?;
        let key = String::from_utf8_lossy(&key).into_owned();
        match kind {
            SET => {
                self.set(key, value);
                Ok(())
            }
            GET => {
                let wait = Duration::from_millis(String::from_utf8_lossy(&value).parse().unwrap_or(0));
                match self.get(&key, wait) {
                    Some(value) => stream.write_all(&[&[1], &frame(&value)[..]].concat()),
                    None => stream.write_all(&[0]),
                }
            }
            _ => Err(std::io::Error::other("not a request of ours")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rank, size and what it knows of the job.
fn read_card(card: &[u8]) -> Option<(usize, usize, About)> {
    let text = String::from_utf8_lossy(card);
    let mut lines = text.splitn(3, '\n');
    let (rank, size) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?);
    Some((rank, size, About::read(lines.next()?)))
}

/// One byte, a key and a value.
fn request(stream: &mut Box<dyn Stream>) -> std::io::Result<(u8, Vec<u8>, Vec<u8>)> {
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    let longest = if kind[0] == JOIN { LONGEST } else { LONGEST_KEY };
    Ok((kind[0], take(stream, longest)?, take(stream, LONGEST)?))
}

impl Store for Served {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        match self {
            Served::Here { shelf, .. } => shelf.set(key.to_string(), value.to_vec()),
            Served::There { stream, .. } => {
                let message = [&[SET], &frame(key.as_bytes())[..], &frame(value)].concat();
                stream.write_all(&message).map_err(|e| lost(&e))?;
            }
        }
        Ok(())
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let wait = deadline.saturating_duration_since(Instant::now());
        match self {
            Served::Here { shelf, .. } => Ok(shelf.get(key, wait)),
            Served::There { stream, .. } => {
                let milliseconds = wait.as_millis().to_string();
                let message = [&[GET], &frame(key.as_bytes())[..], &frame(milliseconds.as_bytes())].concat();
                let mut ask = || {
                    stream.limit_waits(Some(wait + GRACE))?;
                    stream.write_all(&message)?;
                    let mut there = [0];
                    stream.read_exact(&mut there)?;
                    if there[0] == 1 { take(stream, LONGEST_ANSWER).map(Some) } else { Ok(None) }
                };
                ask().map_err(|e: std::io::Error| lost(&e))
            }
        }
    }

    fn local_address(&self) -> Option<IpAddr> {
        match self {
            Served::Here { local, .. } | Served::There { local, .. } => *local,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The thread that lets callers in closes the door within its next look.
        if let Served::Here { closed, .. } = self {
            closed.store(true, Ordering::Relaxed);
        }
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Reads what has its length in front. Memory is taken as bytes come, not as they are announced.
fn take(stream: &mut Box<dyn Stream>, longest: usize) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > longest {
        return Err(std::io::Error::other("not a message of ours"));
    }
    let mut bytes = Vec::with_capacity(length.min(1 << 16));
    Read::by_ref(stream).take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}
