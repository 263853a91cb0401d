//! The ranks of one job at their meeting place.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::served::Served;
use super::{Store, horovod, torch};
use crate::comm::pulse::name_ranks;
use crate::comm::{CommOptions, process};
use crate::err;
use crate::error::{Error, Result};
use crate::launch::{Launch, Rendezvous};

/// The ranks of one job at their meeting place. Opened by the first exchange, closed when dropped.
pub struct Meeting<'a> {
    launch: &'a Launch,
    limit: Duration,
    store: Option<Box<dyn Store>>,
    /// What all keys of this meeting begin with.
    prefix: String,
}

impl<'a> Meeting<'a> {
    /// A meeting of the ranks of `launch`; nothing happens yet.
    pub fn new(launch: &'a Launch, options: &CommOptions) -> Self {
        Meeting { launch, limit: options.limit, store: None, prefix: String::new() }
    }

    #[cfg(test)]
    pub fn at(launch: &'a Launch, options: &CommOptions, store: Box<dyn Store>) -> Self {
        Meeting { launch, limit: options.limit, store: Some(store), prefix: "test".into() }
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
        if self.launch.rendezvous.is_some()
            || self.store.is_some()
            || self.launch.local_size == self.launch.size
        {
            return None;
        }
        Some(format!(
            "{} offers no meeting place to ranks on several hosts, except through MPI",
            self.launch.launcher
        ))
    }

    /// The address of this host on the way to the meeting place.
    pub fn local_address(&mut self) -> Result<Option<IpAddr>> {
        Ok(self.open()?.local_address())
    }

    /// Gives every rank the bytes of all ranks, by rank. `round` is a name that is used once.
    ///
    /// Rank 0 collects and publishes, so that all ranks get the same answer: also the same error.
    pub fn exchange(&mut self, round: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let deadline = Instant::now() + self.limit;
        let (rank, size) = (self.rank(), self.size());
        self.open()?;
        let key = |what: &str| format!("{}/{round}/{what}", self.prefix);
        let (mine_key, all_key) = (key(&rank.to_string()), key("all"));
        let rank_keys: Vec<String> = (0..size).map(|r| key(&r.to_string())).collect();
        let store = self.open()?;
        if rank > 0 {
            store.set(&mine_key, mine)?;
            // Rank 0 needs a moment to publish that somebody did not come.
            let answer = store.get(&all_key, deadline + Duration::from_secs(2))?;
            return unpack(&answer.ok_or_else(|| err!("rank 0 did not come to the meeting place"))?);
        }
        let mut all = vec![mine.to_vec()];
        let mut missing = Vec::new();
        for (rank, key) in rank_keys.iter().enumerate().skip(1) {
            match store.get(key, deadline)? {
                Some(bytes) => all.push(bytes),
                None => missing.push(rank),
            }
        }
        let answer = pack(&all, &missing);
        store.set(&all_key, &answer)?;
        unpack(&answer)
    }

    fn open(&mut self) -> Result<&mut Box<dyn Store>> {
        if self.store.is_none() {
            let store = self.connect()?;
            self.prefix = self.visit(store)?;
        }
        Ok(self.store.as_mut().expect("it was opened above"))
    }

    fn connect(&self) -> Result<Box<dyn Store>> {
        let (launch, deadline) = (self.launch, Instant::now() + self.limit);
        Ok(match &launch.rendezvous {
            Some(Rendezvous::TorchStore { address, port }) => {
                Box::new(torch::TorchStore::connect(address, *port, deadline)?)
            }
            Some(Rendezvous::HorovodHttp { address, port }) => {
                Box::new(horovod::HorovodStore::new(address, *port)?)
            }
            Some(Rendezvous::RankZero { address, port }) => {
                Box::new(Served::over_tcp(launch.rank == 0, address, *port, deadline)?)
            }
            None => Box::new(Served::among_siblings(launch.rank == 0, &self.siblings()?, deadline)?),
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
    /// has its own keys.
    fn visit(&mut self, mut store: Box<dyn Store>) -> Result<String> {
        let (rank, Launch { job, restarts, .. }) = (self.rank(), self.launch);
        let job: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let base = format!("phalanx-{job}-{restarts}");
        let counter = format!("{base}/visits-{rank}");
        let before = store.get(&counter, Instant::now())?;
        let before: u64 = before.and_then(|v| String::from_utf8_lossy(&v).parse().ok()).unwrap_or(0);
        store.set(&counter, (before + 1).to_string().as_bytes())?;
        self.store = Some(store);
        Ok(format!("{base}-{before}"))
    }
}

/// Number of missing ranks and their names; or 0 and everybody's bytes with their lengths.
fn pack(all: &[Vec<u8>], missing: &[usize]) -> Vec<u8> {
    let mut answer = (missing.len() as u64).to_le_bytes().to_vec();
    if missing.is_empty() {
        for bytes in all {
            answer.extend((bytes.len() as u64).to_le_bytes());
            answer.extend(bytes);
        }
    } else {
        answer.extend(name_ranks(missing).bytes());
    }
    answer
}

fn unpack(answer: &[u8]) -> Result<Vec<Vec<u8>>> {
    let broken = || Error::new("the meeting place gave an answer that cannot be read");
    let (missing, mut rest) = answer.split_first_chunk::<8>().ok_or_else(broken)?;
    if u64::from_le_bytes(*missing) > 0 {
        let who = String::from_utf8_lossy(rest);
        return Err(err!("{who} did not come to the meeting place")
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
