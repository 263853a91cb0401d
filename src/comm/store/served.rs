//! A key-value store that rank 0 serves itself, where the launcher offers none.
//!
//! Among ranks of one host it listens on an abstract Unix socket: a name without a file, which vanishes with its
//! process and so is never stale. Only processes of the same user are let in.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Store, torch::dial};
use crate::err;
use crate::error::Result;

/// Rank 0's store, seen by rank 0 or by another rank.
pub enum Served {
    /// Rank 0 itself.
    Here { shelf: Arc<Shelf>, closed: Arc<AtomicBool>, local: Option<IpAddr> },
    /// The others.
    There { stream: Box<dyn Stream>, local: Option<IpAddr> },
}

/// Bytes in and out.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// What is stored.
#[derive(Default)]
pub struct Shelf {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

const SET: u8 = 1;
const GET: u8 = 2;

impl Served {
    /// At an address that the user chose; rank 0 listens there.
    pub fn over_tcp(serve: bool, address: &str, port: u16, deadline: Instant) -> Result<Served> {
        if !serve {
            let stream = dial(address, port, deadline).map_err(|e| {
                err!("cannot reach rank 0 at MASTER_ADDR:MASTER_PORT = {address}:{port}: {e}")
            })?;
            let local = stream.local_addr().ok().map(|a| a.ip());
            return Ok(Served::There { stream: Box::new(stream), local });
        }
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|e| {
            err!("rank 0 cannot listen at MASTER_PORT={port}: {e}").help("choose another port")
        })?;
        listener.set_nonblocking(true).map_err(|e| err!("cannot listen: {e}"))?;
        Ok(Self::serve(move || {
            let (stream, _) = listener.accept().ok()?;
            stream.set_nonblocking(false).ok()?;
            Some(Box::new(stream) as Box<dyn Stream>)
        }))
    }

    /// Among the ranks of this host that know `name`.
    pub fn among_siblings(serve: bool, name: &str, deadline: Instant) -> Result<Served> {
        let address = SocketAddr::from_abstract_name(name).map_err(|e| err!("socket name {name:?}: {e}"))?;
        if serve {
            let listener = bind(&address, deadline).map_err(|e| err!("rank 0 cannot listen: {e}"))?;
            return Ok(Self::serve(move || {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(false).ok()?;
                same_user(stream.as_raw_fd()).then(|| Box::new(stream) as Box<dyn Stream>)
            }));
        }
        loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) if same_user(stream.as_raw_fd()) => {
                    return Ok(Served::There { stream: Box::new(stream), local: None });
                }
                Ok(_) => return Err(err!("another user listens where rank 0 should")),
                Err(e) if Instant::now() >= deadline => {
                    return Err(err!("rank 0 cannot be found on this host: {e}")
                        .help("all ranks have to be started by the same mpirun or srun, on one host"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Serves whoever `accept` lets in, one thread each, until this is dropped; those already in are served to
    /// their end.
    fn serve(accept: impl Fn() -> Option<Box<dyn Stream>> + Send + 'static) -> Served {
        let shelf = Arc::new(Shelf::default());
        let closed = Arc::new(AtomicBool::new(false));
        let (values, stop) = (shelf.clone(), closed.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match accept() {
                    Some(stream) => {
                        let values = values.clone();
                        std::thread::spawn(move || values.serve(stream));
                    }
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Served::Here { shelf, closed, local: None }
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
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert(key, value);
        self.changed.notify_all();
    }

    fn get(&self, key: &str, wait: Duration) -> Option<Vec<u8>> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let absent = |values: &mut HashMap<String, Vec<u8>>| !values.contains_key(key);
        let (values, _) =
            self.changed.wait_timeout_while(values, wait, absent).unwrap_or_else(PoisonError::into_inner);
        values.get(key).cloned()
    }

    /// Answers one client until it goes.
    fn serve(&self, mut stream: Box<dyn Stream>) {
        let mut answer_one = || -> std::io::Result<()> {
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            let key = String::from_utf8_lossy(&take(&mut stream)?).into_owned();
            let value = take(&mut stream)?;
            if kind[0] == SET {
                self.set(key, value);
                return Ok(());
            }
            let wait = Duration::from_millis(String::from_utf8_lossy(&value).parse().unwrap_or(0));
            match self.get(&key, wait) {
                Some(value) => stream.write_all(&[&[1], &frame(&value)[..]].concat()),
                None => stream.write_all(&[0]),
            }
        };
        while answer_one().is_ok() {}
    }
}

impl Store for Served {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        match self {
            Served::Here { shelf, .. } => shelf.set(key.to_string(), value.to_vec()),
            Served::There { stream, .. } => {
                let message = [&[SET], &frame(key.as_bytes())[..], &frame(value)].concat();
                stream.write_all(&message).map_err(|e| err!("lost the connection to rank 0: {e}"))?;
            }
        }
        Ok(())
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let wait = deadline.saturating_duration_since(Instant::now());
        match self {
            Served::Here { shelf, .. } => Ok(shelf.get(key, wait)),
            Served::There { stream, .. } => {
                let wait = wait.as_millis().to_string();
                let message = [&[GET], &frame(key.as_bytes())[..], &frame(wait.as_bytes())].concat();
                let mut ask = || {
                    stream.write_all(&message)?;
                    let mut there = [0];
                    stream.read_exact(&mut there)?;
                    if there[0] == 1 { take(stream).map(Some) } else { Ok(None) }
                };
                ask().map_err(|e: std::io::Error| err!("lost the connection to rank 0: {e}"))
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
        if let Served::Here { closed, .. } = self {
            closed.store(true, Ordering::Relaxed);
        }
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

fn take(stream: &mut Box<dyn Stream>) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > 1 << 28 {
        return Err(std::io::Error::other("not a message of ours"));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
