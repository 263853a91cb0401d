//! Finding and opening TCP connections between ranks.
//!
//! Each rank listens, tells the others its addresses through whatever meeting place there is, and dials those of
//! lower rank. A listener's random key travels the same way: who does not know it is no rank of this job, and a
//! dialled address that does not answer with it is another host with the same private address.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::CommOptions;
use super::pulse::name_ranks;
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

const MAGIC: u64 = 0x5048_414c_414e_5832;
const HELLO: usize = 24;
const DATA: u32 = 0;
const HEALTH: u32 = 1;

/// Connects all ranks. `local` is an address of this host that others can reach, if one is known.
pub fn connect(
    rank: usize,
    size: usize,
    with_data: bool,
    local: Option<IpAddr>,
    options: &CommOptions,
    exchange: Exchange,
) -> Result<Lanes> {
    let key = random();
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|e| err!("cannot listen for ranks: {e}"))?;
    let port = listener.local_addr().map_err(|e| err!("cannot listen for ranks: {e}"))?.port();
    let card = Card { key, addresses: addresses(local, options.interface.as_deref())?, port };
    let cards = exchange(card.write().as_bytes())?;
    let cards = cards.iter().map(|card| Card::read(card)).collect::<Result<Vec<_>>>()?;
    let deadline = Instant::now() + options.limit;
    let expected = expected_callers(rank, size, with_data);
    let accepting = std::thread::spawn(move || accept(&listener, key, expected, size, deadline));
    let dialled = dial_all(rank, &cards, with_data, deadline);
    let accepted = accepting.join().map_err(|_| err!("the thread that accepts ranks panicked"))?;
    let (mut lanes, mut more) = (accepted?, dialled?);
    for (have, new) in
        lanes.data.iter_mut().zip(&mut more.data).chain(lanes.health.iter_mut().zip(&mut more.health))
    {
        *have = have.take().or(new.take());
    }
    Ok(lanes)
}

/// Who dials me, as (rank, lane).
fn expected_callers(rank: usize, size: usize, with_data: bool) -> Vec<(usize, u32)> {
    let data = (rank + 1..size).filter(|_| with_data).map(|r| (r, DATA));
    let health = (1..size).filter(|_| rank == 0).map(|r| (r, HEALTH));
    data.chain(health).collect()
}

fn dial_all(rank: usize, cards: &[Card], with_data: bool, deadline: Instant) -> Result<Lanes> {
    let mut lanes = Lanes::none(cards.len());
    for peer in (0..rank).filter(|_| with_data) {
        lanes.data[peer] = Some(dial(&cards[peer], peer, rank, DATA, deadline)?);
    }
    if rank > 0 {
        lanes.health[0] = Some(dial(&cards[0], 0, rank, HEALTH, deadline)?);
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
    key: u64,
    addresses: Vec<IpAddr>,
    port: u16,
}

impl Card {
    fn write(&self) -> String {
        let addresses = self.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        format!("{} {} {addresses}", self.key, self.port)
    }

    fn read(bytes: &[u8]) -> Result<Card> {
        let text = String::from_utf8_lossy(bytes);
        let read = || {
            let mut words = text.split(' ');
            let (key, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let addresses = words.next()?.split(',').map(|a| a.parse().ok()).collect::<Option<_>>()?;
            Some(Card { key, addresses, port })
        };
        read().ok_or_else(|| err!("a rank gave an address that cannot be read: {text:?}"))
    }
}

/// Tries the addresses of a rank in turn until one answers with the right key.
fn dial(card: &Card, peer: usize, rank: usize, lane: u32, deadline: Instant) -> Result<TcpStream> {
    let mut last = io::Error::other("it gave no address");
    loop {
        for address in &card.addresses {
            match dial_one(SocketAddr::new(*address, card.port), card.key, rank, lane) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = io::Error::new(e.kind(), format!("{address}:{}: {e}", card.port)),
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

fn dial_one(address: SocketAddr, key: u64, rank: usize, lane: u32) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC.to_le_bytes());
    hello[8..16].copy_from_slice(&key.to_le_bytes());
    hello[16..20].copy_from_slice(&(rank as u32).to_le_bytes());
    hello[20..].copy_from_slice(&lane.to_le_bytes());
    stream.write_all(&hello)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    if answer != (!key).to_le_bytes() {
        return Err(io::Error::other("another program answers there"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Accepts until everyone expected has called.
fn accept(
    listener: &TcpListener,
    key: u64,
    mut expected: Vec<(usize, u32)>,
    size: usize,
    deadline: Instant,
) -> Result<Lanes> {
    let mut lanes = Lanes::none(size);
    listener.set_nonblocking(true).map_err(|e| err!("cannot listen for ranks: {e}"))?;
    while !expected.is_empty() {
        match listener.accept() {
            Ok((stream, _)) => {
                let Ok((stream, rank, lane)) = greet(stream, key) else { continue };
                let Some(at) = expected.iter().position(|caller| *caller == (rank, lane)) else { continue };
                expected.swap_remove(at);
                let lane = if lane == DATA { &mut lanes.data } else { &mut lanes.health };
                lane[rank] = Some(stream);
            }
            Err(_) if Instant::now() >= deadline => {
                let mut missing: Vec<usize> = expected.iter().map(|(rank, _)| *rank).collect();
                missing.sort_unstable();
                missing.dedup();
                return Err(err!("no connection came from {}", name_ranks(&missing)));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    Ok(lanes)
}

fn greet(mut stream: TcpStream, key: u64) -> io::Result<(TcpStream, usize, u32)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello)?;
    if hello[..8] != MAGIC.to_le_bytes() || hello[8..16] != key.to_le_bytes() {
        return Err(io::Error::other("not a rank of this job"));
    }
    stream.write_all(&(!key).to_le_bytes())?;
    stream.set_read_timeout(None)?;
    let number = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
    Ok((stream, number(16) as usize, number(20)))
}

/// The addresses to be reached at, best first: of the interface that the user chose; or the one that reaches the
/// meeting place, then all others, then loopback for ranks of this host.
fn addresses(local: Option<IpAddr>, interface: Option<&str>) -> Result<Vec<IpAddr>> {
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
    let mut addresses: Vec<IpAddr> = local.into_iter().filter(|a| a.is_ipv4() && !a.is_loopback()).collect();
    addresses.extend(all.iter().map(|(_, a)| *a).filter(|a| !a.is_loopback()));
    addresses.push(Ipv4Addr::LOCALHOST.into());
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|a| seen.insert(*a));
    Ok(addresses)
}

/// Every IPv4 address of this host with the name of its interface.
fn interfaces() -> Vec<(String, IpAddr)> {
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
    // SAFETY: the system fills the 8 bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert!(n == 8, "the system has random numbers");
    u64::from_le_bytes(bytes)
}
