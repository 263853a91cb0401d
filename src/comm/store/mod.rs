//! Where ranks meet before they are connected: a small key-value store, by courtesy of the launcher.

mod horovod;
mod meeting;
mod served;
mod torch;

use std::net::IpAddr;
use std::time::Instant;

use super::pairwise::Pairwise;
use super::star::Star;
use super::tcp::Mesh;
use super::{Attempt, CommOptions, hosts, net, shm};
use crate::err;
use crate::error::{Error, Result};
pub use meeting::Meeting;

/// A key-value store that all ranks of a job reach.
pub trait Store: Send {
    /// Stores a value.
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()>;
    /// The value, as soon as it is there; `None` if it is not by `deadline`.
    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>>;
    /// The address of this host on the way to the store.
    fn local_address(&self) -> Option<IpAddr>;
}

/// Joins ranks of one host by shared memory.
pub fn connect_shm(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    if let Some(why) = meeting.impossible() {
        return Attempt::NotForUs(why);
    }
    let (rank, size) = (meeting.rank(), meeting.size());
    match shm::join(rank, size, options, &mut |round, mine| meeting.exchange(round, mine)) {
        Ok(Ok(shm)) => Attempt::Connected(Box::new(shm)),
        Ok(Err(why)) => Attempt::NotForUs(why),
        Err(error) => Attempt::Failed(error),
    }
}

/// Joins ranks of any hosts by TCP.
pub fn connect_tcp(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    if let Some(why) = meeting.impossible() {
        return Attempt::NotForUs(why);
    }
    match try_tcp(meeting, options).and_then(|tcp| hosts::arrange(tcp, options)) {
        Ok(tcp) => Attempt::Connected(tcp),
        Err(error) => Attempt::Failed(error),
    }
}

fn try_tcp(meeting: &mut Meeting, options: &CommOptions) -> Result<Pairwise<Mesh>> {
    let (rank, size) = (meeting.rank(), meeting.size());
    let place = meeting.place()?;
    let mut exchange = |mine: &[u8]| meeting.exchange("listeners", mine);
    let lanes = net::connect(&place, true, options, &mut exchange);
    // A rank that could not connect tells the others now, or they would wait for it in their first collective.
    let verdict = lanes.as_ref().err().map_or(String::new(), |e| e.message().to_string());
    let verdicts = texts(meeting.exchange("connected", verdict.as_bytes())?);
    let lanes = lanes?;
    if let Some(verdict) = verdicts.into_iter().find(|v| !v.is_empty()) {
        return Err(Error::new(verdict));
    }
    let star =
        Star::start(rank, lanes.health, options.beat()).map_err(|e| err!("cannot start a thread: {e}"))?;
    Ok(Pairwise::new(Mesh::new(lanes.data)?, rank, size, options).with_star(star))
}

/// Bytes of ranks as text.
pub fn texts(all: Vec<Vec<u8>>) -> Vec<String> {
    all.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

#[cfg(test)]
mod tests;
