//! Finding and opening TCP connections between ranks.
//!
//! Each rank listens, tells the others its addresses through whatever meeting place there is, and dials those of
//! lower rank. A listener's random number travels the same way and makes, with the key of the job, the key of that listener:
//! who does not have it is no rank of this job, and a dialled address that does not either is another host with the same
//! private address (see `gate`). The listener is closed when all have called.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::CommOptions;
use super::gate::{self, Gate};
use super::pulse::name_ranks;
use super::secret::Key;
use crate::err;
use crate::error::Result;

/// Gives every rank the bytes of all ranks, by rank.
pub type Exchange<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>>;

/// Open connections, by rank of the peer; `None` where there is none.
pub struct Lanes {
    /// For numbers: with every other rank, if asked for.
    pub data: Vec<Option<TcpStream>>,
    /// For signs of life: rank 0 with every other rank, the others with rank 0.
    pub health: Vec<Option<TcpStream>>,
}

const DATA: u32 = 0;
const HEALTH: u32 = 1;
/// How long one address may take to answer before the next is tried. All are tried again until the deadline.
const ONE_ADDRESS: Duration = Duration::from_secs(3);

/// This rank among those that connect.
pub struct Place {
    pub rank: usize,
    pub size: usize,
    /// All ranks are on this host.
    pub one_host: bool,
    /// An address of this host that others can reach, if one is known.
    pub local: Option<IpAddr>,
    /// What only ranks of this job have.
    pub key: Key,
}

/// Connects all ranks; `with_data`: not only for signs of life.
pub fn connect(place: &Place, with_data: bool, options: &CommOptions, exchange: Exchange) -> Result<Lanes> {
    let (rank, size) = (place.rank, place.size);
    let addresses = addresses(place, options.interface.as_deref())?;
    let cannot = |e: io::Error| err!("cannot listen for ranks: {e}");
    let listener = listen(&addresses).map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    let card = Card { number: random(), addresses, port };
    let cards = exchange(card.write().as_bytes())?;
    let cards = cards.iter().map(|card| Card::read(card)).collect::<Result<Vec<_>>>()?;
    let deadline = Instant::now() + options.limit;
    let expected = expected_callers(rank, size, with_data);
    let gate = Gate::new(listener, card.key(&place.key), expected.len()).map_err(cannot)?;
    let accepting = std::thread::spawn(move || accept(gate, expected, size, deadline));
    let dialled = dial_all(place, &cards, with_data, deadline);
    let accepted = accepting.join().map_err(|_| err!("the thread that accepts ranks panicked"))?;
    let (mut lanes, mut more) = (accepted?, dialled?);
    for (have, new) in
        lanes.data.iter_mut().zip(&mut more.data).chain(lanes.health.iter_mut().zip(&mut more.health))
    {
        *have = have.take().or(new.take());
    }
    Ok(lanes)
}

/// Listens at the one address that others are told of, or at all where there are several: nobody knows yet which one
/// the others can reach.
fn listen(addresses: &[IpAddr]) -> io::Result<TcpListener> {
    match addresses {
        [one] => TcpListener::bind((*one, 0)),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)),
    }
}

/// Who dials me, as (rank, lane).
fn expected_callers(rank: usize, size: usize, with_data: bool) -> Vec<(usize, u32)> {
    let data = (rank + 1..size).filter(|_| with_data).map(|r| (r, DATA));
    let health = (1..size).filter(|_| rank == 0).map(|r| (r, HEALTH));
    data.chain(health).collect()
}

fn dial_all(place: &Place, cards: &[Card], with_data: bool, deadline: Instant) -> Result<Lanes> {
    let mut lanes = Lanes::none(cards.len());
    for peer in (0..place.rank).filter(|_| with_data) {
        lanes.data[peer] = Some(dial(place, &cards[peer], peer, DATA, deadline)?);
    }
    if place.rank > 0 {
        lanes.health[0] = Some(dial(place, &cards[0], 0, HEALTH, deadline)?);
    }
    Ok(lanes)
}

impl Lanes {
    fn none(size: usize) -> Lanes {
        let none = || (0..size).map(|_| None).collect();
        Lanes { data: none(), health: none() }
    }
}

/// What a rank tells the others about its listener.
struct Card {
    number: u64,
    addresses: Vec<IpAddr>,
    port: u16,
}

impl Card {
    fn write(&self) -> String {
        let addresses = self.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        format!("{} {} {addresses}", self.number, self.port)
    }

    fn read(bytes: &[u8]) -> Result<Card> {
        let text = String::from_utf8_lossy(bytes);
        let read = || {
            let mut words = text.split(' ');
            let (number, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let addresses = words.next()?.split(',').map(|a| a.parse().ok()).collect::<Option<_>>()?;
            Some(Card { number, addresses, port })
        };
        read().ok_or_else(|| err!("a rank gave an address that cannot be read: {text:?}"))
    }

    /// The key of this listener.
    fn key(&self, job: &Key) -> Key {
        job.derive(&self.number.to_le_bytes())
    }
}

/// Tries the addresses of a rank in turn until one answers with the right key. A rank that is slow to answer is called again:
/// it lets nobody in who has given up waiting.
fn dial(place: &Place, card: &Card, peer: usize, lane: u32, deadline: Instant) -> Result<TcpStream> {
    let (rank, key) = (place.rank, card.key(&place.key));
    let mut last = io::Error::other("it gave no address");
    loop {
        for address in &card.addresses {
            let address = SocketAddr::new(*address, card.port);
            match dial_one(address, &key, rank, lane, deadline) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = io::Error::new(e.kind(), format!("{address}: {e}")),
            }
        }
        if Instant::now() >= deadline {
            return Err(err!("rank {rank} cannot reach rank {peer}: {last}").help(
                "a firewall may be in the way, or PHALANX_COMM_INTERFACE may have to name the right network",
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn dial_one(
    address: SocketAddr,
    key: &Key,
    rank: usize,
    lane: u32,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let patience = deadline.saturating_duration_since(Instant::now()).min(ONE_ADDRESS);
    let patience = patience.max(Duration::from_millis(50));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    gate::introduce(&mut stream, key, rank, lane, Instant::now() + patience)?;
    Ok(stream)
}

/// Accepts until everyone expected has called.
fn accept(mut gate: Gate, mut expected: Vec<(usize, u32)>, size: usize, deadline: Instant) -> Result<Lanes> {
    let mut lanes = Lanes::none(size);
    while !expected.is_empty() {
        let Some(caller) = gate.next(deadline.saturating_duration_since(Instant::now())) else {
            let mut missing: Vec<usize> = expected.iter().map(|(rank, _)| *rank).collect();
            missing.sort_unstable();
            missing.dedup();
            return Err(err!("no connection came from {}", name_ranks(&missing)));
        };
        let called = (caller.rank, caller.lane);
        let Some(at) = expected.iter().position(|wanted| *wanted == called) else { continue };
        expected.swap_remove(at);
        let lane = if caller.lane == DATA { &mut lanes.data } else { &mut lanes.health };
        lane[caller.rank] = Some(caller.stream);
    }
    Ok(lanes)
}

/// The addresses to be reached at: of the interface that the user chose; loopback where all ranks are on this host; the one that
/// reaches the meeting place, where that is on another host or was named by a network's address; or, where none is known,
/// all, then loopback for ranks of this host.
fn addresses(place: &Place, interface: Option<&str>) -> Result<Vec<IpAddr>> {
    let all = interfaces();
    if let Some(wanted) = interface {
        let chosen: Vec<IpAddr> = all.iter().filter(|(name, _)| name == wanted).map(|(_, a)| *a).collect();
        if chosen.is_empty() {
            let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            names.dedup();
            return Err(err!(
                "no network interface {wanted:?} with an IPv4 address; there are {}",
                names.join(", ")
            ));
        }
        return Ok(chosen);
    }
    if place.one_host {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    if let Some(local) = place.local.filter(|a| a.is_ipv4() && !a.is_loopback()) {
        return Ok(vec![local]);
    }
    let mut addresses: Vec<IpAddr> = all.iter().map(|(_, a)| *a).filter(|a| !a.is_loopback()).collect();
    addresses.push(Ipv4Addr::LOCALHOST.into());
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|a| seen.insert(*a));
    Ok(addresses)
}

/// Every IPv4 address of this host with the name of its interface.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the system fills `list`, which is walked once and given back.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return found;
        }
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            at = entry.ifa_next;
            let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            if !up || entry.ifa_addr.is_null() || (*entry.ifa_addr).sa_family != libc::AF_INET as u16 {
                continue;
            }
            let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned().sin_addr.s_addr;
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            found.push((name, Ipv4Addr::from(u32::from_be(address)).into()));
        }
        libc::freeifaddrs(list);
    }
    found
}

/// A number that nobody can guess.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the system fills the 8 bytes. By number: old C libraries have no function for it.
    let n = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    assert!(n == 8, "the system has random numbers");
    u64::from_le_bytes(bytes)
}
