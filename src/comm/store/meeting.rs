//! The ranks of one job at their meeting place.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::served::{Member, Served};
use super::{Store, horovod, torch};
use crate::comm::about::About;
use crate::comm::pulse::name_ranks;
use crate::comm::secret::{Key, PROOF, Secret};
use crate::comm::{CommOptions, net, process};
use crate::err;
use crate::error::{Error, Result};
use crate::launch::{Launch, Rendezvous};

/// The ranks of one job at their meeting place. Opened by the first exchange, closed when dropped.
pub struct Meeting<'a> {
    launch: &'a Launch,
    limit: Duration,
    about: &'a About,
    secret: &'a Secret,
    store: Option<Box<dyn Store>>,
    /// What all keys of this meeting begin with.
    prefix: String,
    key: Option<Key>,
}

impl<'a> Meeting<'a> {
    /// A meeting of the ranks of `launch`; nothing happens yet.
    pub fn new(launch: &'a Launch, options: &'a CommOptions) -> Self {
        Meeting {
            launch,
            limit: options.limit,
            about: &options.about,
            secret: &options.secret,
            store: None,
            prefix: String::new(),
            key: None,
        }
    }

    #[cfg(test)]
    pub fn at(launch: &'a Launch, options: &'a CommOptions, store: Box<dyn Store>) -> Self {
        Meeting { store: Some(store), prefix: "test".into(), ..Meeting::new(launch, options) }
    }

    /// Whose ranks meet.
    pub fn launch(&self) -> &'a Launch {
        self.launch
    }

    /// My number.
    pub fn rank(&self) -> usize {
        self.launch.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.launch.size
    }

    /// Why there is no meeting place at all, if there is none. The same on every rank.
    pub fn impossible(&self) -> Option<String> {
        if self.launch.rendezvous.is_some() || self.store.is_some() || self.launch.is_one_host() {
            return None;
        }
        Some(format!(
            "{} offers no meeting place to ranks on several hosts, except through MPI",
            self.launch.launcher
        ))
    }

    /// This rank, for those who connect it with the others.
    pub fn place(&mut self) -> Result<net::Place> {
        let local = self.open()?.local_address();
        let one_host = self.launch.is_one_host() || self.is_at_loopback();
        Ok(net::Place { rank: self.rank(), size: self.size(), one_host, local, key: self.key()? })
    }

    /// Whether the meeting place can only be reached from this host.
    fn is_at_loopback(&self) -> bool {
        match &self.launch.rendezvous {
            Some(Rendezvous::RankZero { address, port }) => {
                is_loopback(address, *port, self.launch.is_one_host())
            }
            _ => false,
        }
    }

    /// The key of this job. A user who has named no secret has one in a file, where that is sure to be the same for all ranks,
    /// or where otherwise anybody could walk in: at a port that rank 0 itself opens to other hosts.
    fn key(&mut self) -> Result<Key> {
        if let Some(key) = &self.key {
            return Ok(key.clone());
        }
        let by_tcp = self.launch.rendezvous.is_some() && !self.is_at_loopback();
        let needs_file =
            matches!(self.launch.rendezvous, Some(Rendezvous::RankZero { .. })) && !self.is_at_loopback();
        let key = match Key::of(self.launch, self.secret, by_tcp && (needs_file || self.launch.is_one_host()))
        {
            // Without a home folder a store that the launcher serves on this host is trusted, as the launcher does.
            Err(_) if *self.secret == Secret::Unnamed && !needs_file => {
                Key::of(self.launch, self.secret, false)?
            }
            key => key?,
        };
        self.key = Some(key.clone());
        Ok(key)
    }

    /// Gives every rank the bytes of all ranks, by rank. `round` is a name that is used once.
    ///
    /// Rank 0 collects and publishes, so that all ranks get the same answer: also the same error. Everything that is said
    /// carries the proof that a rank of this job has said it.
    pub fn exchange(&mut self, round: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (rank, size, key) = (self.rank(), self.size(), self.key()?);
        self.open()?;
        let deadline = Instant::now() + self.limit;
        let name = |what: &str| format!("{}/{round}/{what}", self.prefix);
        let names: Vec<String> = (0..size).map(|r| name(&r.to_string())).collect();
        let all_name = name("all");
        let store = self.open()?;
        if rank > 0 {
            store.set(&names[rank], &sign(&key, &names[rank], mine))?;
            // Rank 0 needs a moment to publish that somebody did not come.
            let answer = store.get(&all_name, deadline + Duration::from_secs(2))?;
            let answer = answer.ok_or_else(|| err!("rank 0 did not come to the meeting place"))?;
            return unpack(open_signed(&key, &all_name, &answer, 0)?).map_err(Error::told_elsewhere);
        }
        let mut all = vec![mine.to_vec()];
        let (mut missing, mut foreign) = (Vec::new(), None);
        for (rank, name) in names.iter().enumerate().skip(1) {
            match store.get(name, deadline)? {
                Some(signed) => match open_signed(&key, name, &signed, rank) {
                    Ok(bytes) => all.push(bytes.to_vec()),
                    Err(error) => foreign = foreign.or(Some(error)),
                },
                None => missing.push(rank),
            }
        }
        let answer = match &foreign {
            Some(error) => pack_refusal(error.message()),
            None => pack(&all, &missing),
        };
        store.set(&all_name, &sign(&key, &all_name, &answer))?;
        foreign.map_or_else(|| unpack(&answer), Err)
    }

    fn open(&mut self) -> Result<&mut Box<dyn Store>> {
        if self.store.is_none() {
            let store = self.connect()?;
            self.prefix = self.visit(store)?;
        }
        Ok(self.store.as_mut().expect("it was opened above"))
    }

    fn connect(&mut self) -> Result<Box<dyn Store>> {
        let (launch, limit) = (self.launch, self.limit);
        let me = Member { rank: launch.rank, size: launch.size, about: self.about, limit };
        Ok(match &launch.rendezvous {
            Some(Rendezvous::TorchStore { address, port }) => {
                let store = torch::TorchStore::connect(address, *port, limit);
                Box::new(store.map_err(|e| launch.one_of_host_tells(e))?)
            }
            Some(Rendezvous::HorovodHttp { address, port }) => {
                let store = horovod::HorovodStore::new(address, *port, limit);
                Box::new(store.map_err(|e| launch.one_of_host_tells(e))?)
            }
            Some(Rendezvous::RankZero { port, .. }) if self.is_at_loopback() => {
                Box::new(Served::at_loopback(&me, *port)?)
            }
            Some(Rendezvous::RankZero { address, port }) => {
                Box::new(Served::over_tcp(&me, address, *port, self.key()?)?)
            }
            None => Box::new(Served::among_siblings(&me, &self.siblings()?, limit)?),
        })
    }

    /// A name that only the processes below the same launcher process know, for as long as that process lives.
    fn siblings(&self) -> Result<String> {
        let launcher = process::launcher().ok_or_else(|| {
            err!("cannot find the process of {} that started this rank", self.launch.launcher)
        })?;
        // SAFETY: a plain question to the system.
        let user = unsafe { libc::geteuid() };
        Ok(format!("phalanx-{user}-{}-{}-{}", launcher.pid, launcher.start, self.launch.job))
    }

    /// A store may outlive us, and the same job may come again (a script with two commands, a restart): each visit
    /// has its own keys. It may come on another number of ranks, some of which have been here before: those of one number count
    /// for themselves.
    pub(super) fn visit(&mut self, mut store: Box<dyn Store>) -> Result<String> {
        let (rank, Launch { job, restarts, size, .. }) = (self.rank(), self.launch);
        let job: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let base = format!("phalanx-{job}-{restarts}-{size}");
        let counter = format!("{base}/visits-{rank}");
        let before = store.get(&counter, Instant::now())?;
        let before: u64 = before.and_then(|v| String::from_utf8_lossy(&v).parse().ok()).unwrap_or(0);
        store.set(&counter, (before + 1).to_string().as_bytes())?;
        self.store = Some(store);
        Ok(format!("{base}-{before}"))
    }
}

/// Whether an address leads nowhere but to this host. A name that this host alone takes for a loopback address counts where all
/// ranks are on it.
fn is_loopback(address: &str, port: u16, one_host: bool) -> bool {
    let literal = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if let Ok(address) = literal {
        return address.is_loopback();
    }
    if ["localhost", "ip6-localhost", "localhost.localdomain"].iter().any(|n| address.eq_ignore_ascii_case(n))
    {
        return true;
    }
    let mut found = (address, port).to_socket_addrs().into_iter().flatten().peekable();
    one_host && found.peek().is_some() && found.all(|address| address.ip().is_loopback())
}

/// What is said under a name, behind the proof of who says it.
fn sign(key: &Key, name: &str, bytes: &[u8]) -> Vec<u8> {
    [&key.prove(&[name.as_bytes(), bytes])[..], bytes].concat()
}

fn open_signed<'b>(key: &Key, name: &str, signed: &'b [u8], rank: usize) -> Result<&'b [u8]> {
    match signed.split_at_checked(PROOF) {
        Some((proof, bytes)) if key.is_proof(&[name.as_bytes(), bytes], proof) => Ok(bytes),
        _ => Err(err!("what stands at the meeting place for rank {rank} does not carry this job's secret").help(
            "all ranks need the same secret (PHALANX_COMM_SECRET, PHALANX_COMM_SECRET_FILE) and the same program;              or somebody else writes there",
        )),
    }
}

/// 0 and everybody's bytes with their lengths; or 1 and what is wrong.
fn pack(all: &[Vec<u8>], missing: &[usize]) -> Vec<u8> {
    if !missing.is_empty() {
        return pack_refusal(&format!("{} did not come to the meeting place", name_ranks(missing)));
    }
    let mut answer = 0u64.to_le_bytes().to_vec();
    for bytes in all {
        answer.extend((bytes.len() as u64).to_le_bytes());
        answer.extend(bytes);
    }
    answer
}

fn pack_refusal(why: &str) -> Vec<u8> {
    [&1u64.to_le_bytes(), why.as_bytes()].concat()
}

fn unpack(answer: &[u8]) -> Result<Vec<Vec<u8>>> {
    let broken = || Error::new("the meeting place gave an answer that cannot be read");
    let (refused, mut rest) = answer.split_first_chunk::<8>().ok_or_else(broken)?;
    if u64::from_le_bytes(*refused) > 0 {
        return Err(err!("{}", String::from_utf8_lossy(rest))
            .help("it may have failed at its start: look for its own message; PHALANX_COMM_LIMIT (seconds) waits longer"));
    }
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (length, more) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        let (bytes, more) = more.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or_else(broken)?;
        all.push(bytes.to_vec());
        rest = more;
    }
    Ok(all)
}
