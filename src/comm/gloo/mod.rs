//! Gloo, where the program was built with it: TCP between all pairs of ranks, carried by the library that PyTorch and
//! Horovod use.
//!
//! Only messages between pairs are asked of Gloo; the collectives are ours (see `pairwise`), so that sums have the
//! same bits as over TCP and MPI, and every wait can be given up. Signs of life go over connections of our own.

mod api;
mod sys;

use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::pairwise::{Into, Link, Out, Pairwise, Watch};
use super::star::Star;
use super::store::{Meeting, texts};
use super::{Attempt, CommOptions, hosts, net};
use crate::err;
use crate::error::{Error, Result};
use api::{Interrupt, Mesh, Message};

/// How long a wait lasts before the signs of life are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Joins ranks of any hosts by Gloo.
pub fn connect(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    if let Some(why) = meeting.impossible() {
        return Attempt::NotForUs(why);
    }
    match start(meeting, options).and_then(|gloo| hosts::arrange(gloo, options)) {
        Ok(gloo) => Attempt::Connected(gloo),
        Err(error) => Attempt::Failed(error),
    }
}

fn start(meeting: &mut Meeting, options: &CommOptions) -> Result<Pairwise<Gloo>> {
    let (rank, size) = (meeting.rank(), meeting.size());
    let place = meeting.place()?;
    let mut exchange = |mine: &[u8]| meeting.exchange("listeners", mine);
    let lanes = net::connect(&place, false, options, &mut exchange);
    // Each round goes on only where the one before succeeded on every rank.
    let lanes = everyone(meeting, "reached", lanes)?;
    let address = address_on(&lanes.health)?;
    let opened = Mesh::open(rank, size, address, options.limit);
    let opened = everyone(meeting, "opened", opened.and_then(|mesh| Ok((cards(&mesh, rank, size)?, mesh))));
    let (cards, mesh) = opened?;
    let all = meeting.exchange("pairs", &cards)?;
    let connected = connect_pairs(&mesh, &all, rank);
    everyone(meeting, "connected", connected)?;
    let star =
        Star::start(rank, lanes.health, options.beat()).map_err(|e| err!("cannot start a thread: {e}"))?;
    let gloo = Gloo::new(mesh, options).map_err(|e| err!("cannot start a thread: {e}"))?;
    Ok(Pairwise::new(gloo, rank, size, options).with_star(star))
}

/// Passes a result on where every rank succeeded; otherwise the first failure is everyone's.
fn everyone<T>(meeting: &mut Meeting, round: &str, mine: Result<T>) -> Result<T> {
    let verdict = mine.as_ref().err().map_or(String::new(), |e| e.message().to_string());
    let verdicts = texts(meeting.exchange(round, verdict.as_bytes())?);
    let mine = mine?;
    match verdicts.into_iter().find(|v| !v.is_empty()) {
        Some(verdict) => Err(Error::new(verdict)),
        None => Ok(mine),
    }
}

/// The address of this host that the signs of life use, so that the others are known to reach it.
fn address_on(lanes: &[Option<TcpStream>]) -> Result<IpAddr> {
    let addresses = lanes.iter().flatten().filter_map(|lane| Some(lane.local_addr().ok()?.ip()));
    // Loopback only where nobody came from elsewhere.
    addresses
        .min_by_key(IpAddr::is_loopback)
        .ok_or_else(|| err!("the connections of this rank have no address"))
}

/// Where each rank reaches this one, in order: length of four bytes, then the address.
fn cards(mesh: &Mesh, rank: usize, size: usize) -> Result<Vec<u8>> {
    let mut cards = Vec::new();
    for peer in 0..size {
        let address = if peer == rank { Vec::new() } else { mesh.address(peer)? };
        cards.extend((address.len() as u32).to_le_bytes());
        cards.extend(address);
    }
    Ok(cards)
}

/// The `rank`-th address of a rank's cards.
fn card_for(mut cards: &[u8], rank: usize) -> Option<&[u8]> {
    for at in 0.. {
        let (length, rest) = cards.split_first_chunk::<4>()?;
        let (address, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if at == rank {
            return Some(address);
        }
        cards = rest;
    }
    None
}

fn connect_pairs(mesh: &Mesh, all: &[Vec<u8>], rank: usize) -> Result<()> {
    for (peer, cards) in all.iter().enumerate().filter(|(peer, _)| *peer != rank) {
        let address =
            card_for(cards, rank).ok_or_else(|| err!("rank {peer} gave addresses that cannot be read"))?;
        mesh.connect(peer, address).map_err(|e| {
            err!("rank {rank} cannot reach rank {peer}: {}", e.message()).help(
                "a firewall may be in the way, or PHALANX_COMM_INTERFACE may have to name the right network",
            )
        })?;
    }
    Ok(())
}

/// Messages between pairs of ranks.
struct Gloo {
    mesh: Mesh,
    /// Longer than any wait: Gloo closes all connections when its own limit is reached.
    never: Duration,
    alarm: Alarm,
}

impl Gloo {
    fn new(mesh: Mesh, options: &CommOptions) -> std::io::Result<Gloo> {
        let never = 2 * options.late_limit + Duration::from_secs(3600);
        Ok(Gloo { mesh, never, alarm: Alarm::start()? })
    }

    /// Waits for a message, and looks at the signs of life while it lasts.
    fn arrive(&self, message: &Message, peer: usize, watch: &mut Watch) -> Result<()> {
        let _set = self.alarm.set(message.interrupt());
        while !message.wait(self.never).map_err(|e| watch.lost(peer, &e.message()))? {
            watch.check()?;
        }
        Ok(())
    }
}

impl Link for Gloo {
    fn name(&self) -> &str {
        "Gloo"
    }

    fn exchange(&mut self, out: Option<Out>, into: Option<Into>, watch: &mut Watch) -> Result<()> {
        let receiving = into.map(|(from, bytes)| Ok((from, self.mesh.receive(bytes, from)?))).transpose();
        let sending = out.map(|(to, bytes)| Ok((to, self.mesh.send(bytes, to)?))).transpose();
        for posted in [receiving, sending] {
            match posted {
                Ok(Some((peer, message))) => self.arrive(&message, peer, watch)?,
                Ok(None) => {}
                Err(e) => return Err(failed(e, watch)),
            }
        }
        Ok(())
    }

    fn forgets_at_close(&self) -> bool {
        true
    }
}

/// A message could not be posted, because a connection is gone: the signs of life know whose.
fn failed(error: Error, watch: &mut Watch) -> Error {
    watch.gone().unwrap_or_else(|| err!("a connection is lost: {}", error.message()))
}

/// Interrupts a wait a few times a second.
struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    /// Who waits now. Held while the wait is interrupted, so that the message is still there.
    waiting: Mutex<Option<Interrupt>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<Interrupt>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the wait when dropped.
struct Set<'a>(&'a Shared);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        *self.0.waiting() = None;
    }
}

impl Alarm {
    fn start() -> std::io::Result<Alarm> {
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), waiting: Mutex::new(None) });
        let mine = shared.clone();
        let thread = std::thread::Builder::new().name("gloo-alarm".into()).spawn(move || {
            while !mine.stop.load(Ordering::SeqCst) {
                std::thread::park_timeout(LOOK);
                if let Some(interrupt) = &*mine.waiting() {
                    // SAFETY: who waits takes this out, under the same lock, before the message is dropped.
                    unsafe { interrupt.now() };
                }
            }
        })?;
        Ok(Alarm { shared, thread: Some(thread) })
    }

    /// Interrupts this wait from now on, until the answer is dropped.
    fn set(&self, interrupt: Interrupt) -> Set<'_> {
        *self.shared.waiting() = Some(interrupt);
        Set(&self.shared)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_for_a_rank_is_found_and_damage_is_noticed() {
        let mut cards = Vec::new();
        for address in [&b"abc"[..], b"", b"defgh"] {
            cards.extend((address.len() as u32).to_le_bytes());
            cards.extend(address);
        }
        assert_eq!(card_for(&cards, 0), Some(&b"abc"[..]));
        assert_eq!(card_for(&cards, 1), Some(&b""[..]));
        assert_eq!(card_for(&cards, 2), Some(&b"defgh"[..]));
        assert_eq!(card_for(&cards, 3), None);
        assert_eq!(card_for(&cards[..cards.len() - 1], 2), None);
    }
}
