//! Where ranks meet before they are connected: a small key-value store, by courtesy of the launcher.

mod horovod;
mod meeting;
mod served;
mod torch;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::pairwise::Pairwise;
use super::star::Star;
use super::tcp::Mesh;
use super::{Attempt, CommOptions, net, process, shm};
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
    match try_shm(meeting, options) {
        Ok(Ok(shm)) => Attempt::Connected(Box::new(shm)),
        Ok(Err(why)) => Attempt::NotForUs(why),
        Err(error) => Attempt::Failed(error),
    }
}

/// The outer result is about meeting at all; the inner one is about sharing memory, and the same on every rank.
fn try_shm(meeting: &mut Meeting, options: &CommOptions) -> Result<Result<shm::Shm, String>> {
    if let Some(why) = meeting.impossible() {
        return Ok(Err(why));
    }
    let (rank, size) = (meeting.rank(), meeting.size());
    let mine = format!("{}\n{}", std::process::id(), process::host_identity());
    let cards = texts(meeting.exchange("hosts", mine.as_bytes())?);
    let split: Vec<(&str, &str)> = cards.iter().filter_map(|card| card.split_once('\n')).collect();
    if split.len() < size || split.iter().any(|(_, host)| *host != split[0].1) {
        return Ok(Err("the ranks are on several hosts, or in several containers".to_string()));
    }
    let pids: Vec<u32> = split.iter().map(|(pid, _)| pid.parse().unwrap_or(0)).collect();

    let key = net::random();
    let made = (rank == 0).then(|| shm::Region::create(size, key)).transpose();
    let offer = match &made {
        Ok(Some(region)) => format!("{key}\n{}", region.path()),
        Ok(None) => String::new(),
        Err(e) => format!("!{}", e.message()),
    };
    let offers = texts(meeting.exchange("memory", offer.as_bytes())?);
    let opened = match (made, offers[0].split_once('\n')) {
        (Ok(Some(region)), _) => Ok(region),
        (_, Some((key, path))) => shm::Region::open(path, size, key.parse().unwrap_or(0)),
        (_, None) => Err(err!("rank 0: {}", offers[0].trim_start_matches('!'))),
    };
    let verdict = opened.as_ref().err().map_or(String::new(), |e| e.message().to_string());
    let verdicts = texts(meeting.exchange("opened", verdict.as_bytes())?);
    if let Some(rank) = verdicts.iter().position(|v| !v.is_empty()) {
        return Ok(Err(format!("rank {rank}: {}", verdicts[rank])));
    }
    Ok(opened.map(|region| shm::Shm::new(Arc::new(region), rank, &pids, options)).map_err(|e| e.to_string()))
}

/// Joins ranks of any hosts by TCP.
pub fn connect_tcp(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    if let Some(why) = meeting.impossible() {
        return Attempt::NotForUs(why);
    }
    match try_tcp(meeting, options) {
        Ok(tcp) => Attempt::Connected(Box::new(tcp)),
        Err(error) => Attempt::Failed(error),
    }
}

fn try_tcp(meeting: &mut Meeting, options: &CommOptions) -> Result<Pairwise<Mesh>> {
    let (rank, size) = (meeting.rank(), meeting.size());
    let local = meeting.local_address()?;
    let mut exchange = |mine: &[u8]| meeting.exchange("listeners", mine);
    let lanes = net::connect(rank, size, true, local, options, &mut exchange);
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
