//! The built-in engine for ranks of several hosts: TCP between all pairs of ranks, no library.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::pairwise::{Into, Link, Out, Watch};
use crate::err;
use crate::error::Result;

/// How long a wait lasts before the signs of life are looked at.
const NAP: Duration = Duration::from_millis(100);

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

impl Link for Mesh {
    fn name(&self) -> &str {
        "TCP"
    }

    fn exchange(&mut self, mut out: Option<Out>, mut into: Option<Into>, watch: &mut Watch) -> Result<()> {
        loop {
            let mut moved = false;
            if let Some((to, bytes)) = &mut out {
                let n = once(self.stream(*to).write(bytes)).map_err(|e| watch.lost(*to, &e))?;
                *bytes = &bytes[n..];
                moved |= n > 0;
            }
            if let Some((from, bytes)) = &mut into {
                let n = receive(self.stream(*from), bytes).map_err(|e| watch.lost(*from, &e))?;
                *bytes = &mut std::mem::take(bytes)[n..];
                moved |= n > 0;
            }
            out = out.filter(|(_, bytes)| !bytes.is_empty());
            into = into.filter(|(_, bytes)| !bytes.is_empty());
            if out.is_none() && into.is_none() {
                return Ok(());
            }
            if !moved && !self.wait(out.map(|(to, _)| to), into.as_ref().map(|(from, _)| *from)) {
                watch.check()?;
            }
        }
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
    match stream.read(bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        other => once(other),
    }
}
