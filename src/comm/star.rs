//! Signs of life over TCP: every rank tells rank 0, and rank 0 tells everybody.
//!
//! One thread of each rank does nothing else, so that a rank is heard while it computes. The connections close by
//! themselves when a process dies, however it dies; rank 0 then tells the others at once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::pulse::{End, Vital};

/// This rank's end of the star.
pub struct Star {
    shared: Arc<Shared>,
    /// A byte here makes the thread look at `shared` now.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    /// Collectives that this rank has entered.
    entered: AtomicU64,
    /// Whether everything that this rank had to say was handed to the system.
    said: AtomicBool,
    stop: AtomicBool,
    ranks: Mutex<Vec<Known>>,
}

/// What is known of one rank.
#[derive(Clone)]
struct Known {
    entered: u64,
    /// When it was heard, directly or (with `silent_then` already passed) through rank 0.
    heard: Instant,
    silent_then: Duration,
    /// Whether its silence is measured here or reported by rank 0.
    direct: bool,
    end: Option<End>,
}

impl Star {
    /// Starts the thread over connections with rank 0 (on rank 0: with everybody else), by rank.
    pub fn start(rank: usize, lanes: Vec<Option<TcpStream>>, beat: Duration) -> std::io::Result<Star> {
        let size = lanes.len();
        let known = |r| Known {
            entered: 0,
            heard: Instant::now(),
            silent_then: Duration::ZERO,
            direct: rank == 0 || r == 0,
            end: None,
        };
        let shared = Arc::new(Shared {
            rank,
            entered: AtomicU64::new(0),
            said: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            ranks: Mutex::new((0..size).map(known).collect()),
        });
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut peers = Vec::new();
        for (r, stream) in lanes.into_iter().enumerate() {
            if let Some(stream) = stream {
                stream.set_nonblocking(true)?;
                peers.push(Peer { rank: r, stream, unread: Vec::new(), unsent: Vec::new(), open: true });
            }
        }
        let mut worker = Worker { shared: shared.clone(), peers, woken, beat };
        let thread = std::thread::Builder::new().name("ranks-heart".into()).spawn(move || worker.run())?;
        Ok(Star { shared, wake, thread: Some(thread) })
    }

    /// This rank enters its next collective.
    pub fn enter(&self) {
        self.shared.entered.fetch_add(1, Ordering::Relaxed);
    }

    /// What is known of every rank now.
    pub fn vitals(&self) -> Vec<Vital> {
        let silence = |k: &Known| if k.direct { k.heard.elapsed() } else { k.silent_then };
        let vital = |k: &Known| Vital { entered: k.entered, silent: silence(k), end: k.end.clone() };
        self.shared.lock().iter().map(vital).collect()
    }

    /// Returns when every rank is known to have ended, or after `limit`.
    pub fn await_ends(&self, limit: Duration) {
        let start = Instant::now();
        while self.shared.lock().iter().any(|known| known.end.is_none()) && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tells the others how this rank ends, unless it told already. Waits until that is on its way, 0.5 s at most.
    pub fn end(&self, end: End) {
        {
            let mut ranks = self.shared.lock();
            let mine = &mut ranks[self.shared.rank].end;
            if mine.is_some() {
                return;
            }
            *mine = Some(end);
            self.shared.said.store(false, Ordering::SeqCst);
        }
        let _ = (&self.wake).write_all(&[1]);
        let start = Instant::now();
        while !self.shared.said.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = (&self.wake).write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection, with what was half read and half sent.
struct Peer {
    rank: usize,
    stream: TcpStream,
    unread: Vec<u8>,
    unsent: Vec<u8>,
    open: bool,
}

impl Peer {
    /// Reads what is there; gives whole reports.
    fn read(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 4096];
        while self.open {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(n) => self.unread.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
        let mut reports = Vec::new();
        while let Some(head) = self.unread.first_chunk::<4>() {
            let n = u32::from_le_bytes(*head) as usize;
            if self.unread.len() < 4 + n {
                break;
            }
            reports.push(self.unread[4..4 + n].to_vec());
            self.unread.drain(..4 + n);
        }
        reports
    }

    /// Queues a report, unless an older one still waits: a stopped rank must not fill our memory.
    fn queue(&mut self, report: &[u8], urgent: bool) {
        if self.open && (urgent || self.unsent.is_empty()) {
            self.unsent.extend((report.len() as u32).to_le_bytes());
            self.unsent.extend_from_slice(report);
        }
    }

    fn flush(&mut self) {
        while self.open && !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    peers: Vec<Peer>,
    woken: UnixStream,
    beat: Duration,
}

impl Worker {
    fn run(&mut self) {
        let mut next = Instant::now();
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.wait(next.saturating_duration_since(Instant::now()));
            let news = self.listen();
            let mine = !self.shared.said.load(Ordering::SeqCst);
            if news || mine || Instant::now() >= next {
                self.tell(news || mine);
                next = Instant::now() + self.beat;
            }
            self.peers.iter_mut().for_each(Peer::flush);
            if mine && self.peers.iter().all(|p| !p.open || p.unsent.is_empty()) {
                self.shared.said.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Sleeps until something can be read, a byte wakes us, or `limit` has passed.
    fn wait(&mut self, limit: Duration) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut list = vec![entry(self.woken.as_raw_fd(), libc::POLLIN)];
        for peer in self.peers.iter().filter(|p| p.open) {
            let out = if peer.unsent.is_empty() { 0 } else { libc::POLLOUT };
            list.push(entry(peer.stream.as_raw_fd(), libc::POLLIN | out));
        }
        // SAFETY: the list lives through the call and its length is right.
        unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, limit.as_millis() as i32 + 1) };
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(n) if n > 0) {}
    }

    /// Takes in what the peers say; whether a rank ended.
    fn listen(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut ranks = shared.lock();
        let ended = |ranks: &[Known]| ranks.iter().filter(|k| k.end.is_some()).count();
        let before = ended(&ranks);
        for peer in &mut self.peers {
            let was_open = peer.open;
            for report in peer.read() {
                ranks[peer.rank].heard = Instant::now();
                take_report(&mut ranks, shared.rank, peer.rank, &report);
            }
            if was_open && !peer.open && ranks[peer.rank].end.is_none() {
                ranks[peer.rank].end = Some(End::Died);
            }
        }
        ended(&ranks) != before
    }

    /// Rank 0 tells about everybody, the others about themselves.
    fn tell(&mut self, urgent: bool) {
        let mut report = Vec::new();
        {
            let mut ranks = self.shared.lock();
            ranks[self.shared.rank].entered = self.shared.entered.load(Ordering::Relaxed);
            ranks[self.shared.rank].heard = Instant::now();
            for (rank, known) in ranks.iter().enumerate() {
                if self.shared.rank == 0 || rank == self.shared.rank {
                    write_entry(&mut report, rank, known);
                }
            }
        }
        self.peers.iter_mut().for_each(|peer| peer.queue(&report, urgent));
    }
}

/// rank u32, entered u64, silence in ms u32, end u8, length of the text u16, text
fn write_entry(report: &mut Vec<u8>, rank: usize, known: &Known) {
    let (code, text) = match &known.end {
        None => (0u8, ""),
        Some(End::Finished) => (1, ""),
        Some(End::Aborted(why)) => (2, why.as_str()),
        Some(End::Died) => (3, ""),
        Some(End::Followed(verdict)) => (4, verdict.as_str()),
    };
    let text = &text.as_bytes()[..text.len().min(4096)];
    report.extend((rank as u32).to_le_bytes());
    report.extend(known.entered.to_le_bytes());
    report.extend((known.heard.elapsed().as_millis().min(u128::from(u32::MAX)) as u32).to_le_bytes());
    report.push(code);
    report.extend((text.len() as u16).to_le_bytes());
    report.extend(text);
}

fn take_report(ranks: &mut [Known], me: usize, from: usize, mut report: &[u8]) {
    const HEAD: usize = 19;
    while let Some(head) = report.first_chunk::<HEAD>() {
        let field =
            |at: usize, n: usize| head[at..at + n].iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
        let (rank, length) = (field(0, 4) as usize, field(17, 2) as usize);
        let Some(text) = report.get(HEAD..HEAD + length) else { return };
        let text = String::from_utf8_lossy(text).into_owned();
        report = &report[HEAD + length..];
        // Only rank 0 speaks for others, and nobody but me for me.
        if rank >= ranks.len() || rank == me || (from != 0 && rank != from) {
            continue;
        }
        let known = &mut ranks[rank];
        known.entered = field(4, 8);
        known.silent_then = Duration::from_millis(field(12, 4));
        known.end = match head[16] {
            0 => None,
            1 => Some(End::Finished),
            2 => Some(End::Aborted(text)),
            4 => Some(End::Followed(text)),
            _ => Some(End::Died),
        };
    }
}
