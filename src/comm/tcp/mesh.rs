//! Connections between all pairs of ranks, and the one operation on them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::comm::pulse::{End, Patience, Vital};
use crate::comm::star::Star;
use crate::err;
use crate::error::{Error, Result};

/// How long a wait lasts before the signs of life are looked at.
const NAP: Duration = Duration::from_millis(100);
/// How long to wait for the reason when a connection closes.
const REASON: Duration = Duration::from_secs(1);

/// Connections by rank; `None` for my own.
pub struct Mesh {
    streams: Vec<Option<TcpStream>>,
}

impl Mesh {
    /// Takes the connections over.
    pub fn new(streams: Vec<Option<TcpStream>>) -> Result<Mesh> {
        for stream in streams.iter().flatten() {
            stream.set_nonblocking(true).map_err(|e| err!("cannot set up a connection: {e}"))?;
        }
        Ok(Mesh { streams })
    }

    /// Sends to one rank and receives from another, both at once, so that rings cannot block.
    pub fn exchange(
        &mut self,
        mut out: Option<(usize, &[u8])>,
        mut into: Option<(usize, &mut [u8])>,
        star: &Star,
        mut patience: Patience,
        me: usize,
    ) -> Result<()> {
        loop {
            let mut moved = false;
            if let Some((to, bytes)) = &mut out {
                let n = once(self.stream(*to).write(bytes))
                    .map_err(|e| lost(*to, &e, star, me, &mut patience))?;
                *bytes = &bytes[n..];
                moved |= n > 0;
            }
            if let Some((from, bytes)) = &mut into {
                let n = receive(self.stream(*from), bytes)
                    .map_err(|e| lost(*from, &e, star, me, &mut patience))?;
                *bytes = &mut std::mem::take(bytes)[n..];
                moved |= n > 0;
            }
            out = out.filter(|(_, bytes)| !bytes.is_empty());
            into = into.filter(|(_, bytes)| !bytes.is_empty());
            if out.is_none() && into.is_none() {
                return Ok(());
            }
            if !moved && !self.wait(out.map(|(to, _)| to), into.as_ref().map(|(from, _)| *from)) {
                patience.check(&star.vitals(), me)?;
            }
        }
    }

    fn stream(&mut self, rank: usize) -> &mut TcpStream {
        self.streams[rank].as_mut().expect("a rank exchanges with others only")
    }

    /// Sleeps until a connection is ready; false if none was for a while.
    fn wait(&self, to: Option<usize>, from: Option<usize>) -> bool {
        let entry = |rank: Option<usize>, events| {
            let stream = rank.and_then(|r| self.streams[r].as_ref());
            stream.map(|s| libc::pollfd { fd: s.as_raw_fd(), events, revents: 0 })
        };
        let entries = [entry(to, libc::POLLOUT), entry(from, libc::POLLIN)];
        let mut list: Vec<libc::pollfd> = entries.into_iter().flatten().collect();
        // SAFETY: the list lives through the call and its length is right.
        unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, NAP.as_millis() as i32) > 0 }
    }
}

/// "Not now" counts as nothing moved.
fn once(result: std::io::Result<usize>) -> std::io::Result<usize> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

fn receive(stream: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    match stream.read(bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        other => once(other),
    }
}

/// A connection closed. The star soon knows who ended first, and why; the rank at the other end may only have
/// followed.
fn lost(peer: usize, error: &std::io::Error, star: &Star, me: usize, patience: &mut Patience) -> Error {
    let start = Instant::now();
    while start.elapsed() < REASON {
        let vitals = star.vitals();
        let known = |v: &Vital| matches!(v.end, Some(End::Died | End::Aborted(_) | End::Followed(_)));
        if vitals.iter().any(known)
            && let Err(verdict) = patience.check(&vitals, me)
        {
            return verdict;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    err!("rank {peer} closed its connection: {error}")
}
