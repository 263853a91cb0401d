//! Who is let in at a listening TCP socket: only who has the key of this job.
//!
//! Both sides prove that they have it, each with a number of the other's in it, so that nothing that was heard on the way
//! can be used again. The one that listens is proved first; a caller that gives up before it has proved itself was never
//! in. Until then a caller costs a few bytes and a place among a bounded number, and holds nobody up.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::secret::{Key, PROOF, nonce};

const MAGIC: [u8; 8] = *b"phalanx3";
/// What a caller says first: magic, rank, what the connection is for, its number.
const HELLO: usize = 32;
/// What the one that listens answers: its number, its proof.
const ANSWER: usize = 16 + PROOF;
/// Callers that have not proved themselves yet, beyond those that are expected. When there are more the oldest is sent away.
const STRANGERS: usize = 64;
/// How many strangers the log tells of.
const TOLD: usize = 4;

/// Somebody who has the key.
pub struct Caller {
    pub stream: TcpStream,
    pub rank: usize,
    /// What the connection is for, as the caller says.
    pub lane: u32,
}

/// Proves to the one that listens that this is `rank`, once that one has proved that it has the key.
pub fn introduce(
    stream: &mut TcpStream,
    key: &Key,
    rank: usize,
    lane: u32,
    deadline: Instant,
) -> io::Result<()> {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&(rank as u32).to_le_bytes());
    hello[12..16].copy_from_slice(&lane.to_le_bytes());
    hello[16..].copy_from_slice(&nonce());
    stream.write_all(&hello)?;
    let mut answer = [0; ANSWER];
    read_by(stream, &mut answer, deadline)?;
    let (theirs, shown) = answer.split_at(16);
    if !key.is_proof(&[b"listens", &hello, theirs], shown) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, OTHER_SECRET));
    }
    stream.write_all(&key.prove(&[b"calls", &hello, theirs]))
}

const OTHER_SECRET: &str = "it does not have this job's secret, or is another program";

/// Reads all of `bytes` before the deadline, however slowly they come.
pub fn read_by(stream: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => bytes = &mut bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(ErrorKind::TimedOut, "it does not answer"));
                }
            }
            Err(e) => return Err(e),
        }
    }
    stream.set_read_timeout(None)
}

/// A listening socket and those who wait there.
pub struct Gate {
    listener: TcpListener,
    key: Key,
    pending: VecDeque<Pending>,
    places: usize,
    told: usize,
}

impl Gate {
    /// `expected`: how many ranks may be on their way in at the same time.
    pub fn new(listener: TcpListener, key: Key, expected: usize) -> io::Result<Gate> {
        listener.set_nonblocking(true)?;
        Ok(Gate { listener, key, pending: VecDeque::new(), places: expected + STRANGERS, told: 0 })
    }

    /// The next that has the key; `None` if nobody has shown it within `wait`.
    pub fn next(&mut self, wait: Duration) -> Option<Caller> {
        let deadline = Instant::now() + wait;
        loop {
            self.wait(deadline.saturating_duration_since(Instant::now()));
            self.accept();
            for _ in 0..self.pending.len() {
                let mut one = self.pending.pop_front()?;
                match one.go_on(&self.key) {
                    Step::Waits => self.pending.push_back(one),
                    Step::In => match one.into_caller() {
                        Ok(caller) => return Some(caller),
                        Err(_) => continue,
                    },
                    Step::Refused => self.tell(&one),
                }
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// Sleeps until somebody comes or says something.
    fn wait(&self, limit: Duration) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let waiting = self.pending.iter().map(|one| entry(one.stream.as_raw_fd()));
        let mut list: Vec<libc::pollfd> =
            std::iter::once(entry(self.listener.as_raw_fd())).chain(waiting).collect();
        let limit = limit.as_millis().min(60_000) as i32 + 1;
        // SAFETY: the list lives through the call and its length is right.
        unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, limit) };
    }

    /// Takes in those who knock. A bounded number at once, lest a flood keeps the others from going on.
    fn accept(&mut self) {
        for _ in 0..self.places {
            let Ok((stream, address)) = self.listener.accept() else { return };
            if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
                continue;
            }
            if self.pending.len() >= self.places {
                self.pending.pop_front();
            }
            let said = Vec::with_capacity(HELLO + PROOF);
            self.pending.push_back(Pending { stream, address, said, number: None });
        }
    }

    fn tell(&mut self, one: &Pending) {
        self.told += 1;
        if self.told <= TOLD {
            let as_rank = one.rank().map_or(String::new(), |rank| format!(" as rank {rank}"));
            log::warn!("{} called{as_rank}, did not show this job's secret, and was not let in", one.address);
        }
    }
}

/// Somebody on the way in.
struct Pending {
    stream: TcpStream,
    address: SocketAddr,
    /// What it has said so far.
    said: Vec<u8>,
    /// Our number, once it was told.
    number: Option<[u8; 16]>,
}

enum Step {
    Waits,
    In,
    Refused,
}

impl Pending {
    fn go_on(&mut self, key: &Key) -> Step {
        let wanted = if self.number.is_none() { HELLO } else { HELLO + PROOF };
        match self.read_up_to(wanted) {
            Ok(true) => {}
            Ok(false) => return Step::Waits,
            Err(_) => return Step::Refused,
        }
        let (hello, shown) = self.said.split_at(HELLO);
        let Some(number) = self.number else {
            let number = nonce();
            let answer = [&number[..], &key.prove(&[b"listens", hello, &number])].concat();
            self.number = Some(number);
            // So few bytes always find room in a new connection.
            let ours = hello.starts_with(&MAGIC);
            let told = ours && self.stream.write(&answer).is_ok_and(|n| n == ANSWER);
            return if told { Step::Waits } else { Step::Refused };
        };
        if key.is_proof(&[b"calls", hello, &number], shown) { Step::In } else { Step::Refused }
    }

    /// Reads what is there; whether all that is wanted has come. Nothing beyond it is taken.
    fn read_up_to(&mut self, wanted: usize) -> io::Result<bool> {
        let mut bytes = [0; HELLO + PROOF];
        while self.said.len() < wanted {
            match self.stream.read(&mut bytes[..wanted - self.said.len()]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.said.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn number_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.said.get(at..)?.first_chunk()?))
    }

    /// The rank that it says it is.
    fn rank(&self) -> Option<u32> {
        self.number_at(8).filter(|_| self.said.starts_with(&MAGIC))
    }

    fn into_caller(self) -> io::Result<Caller> {
        let (rank, lane) = (self.number_at(8).unwrap_or(u32::MAX), self.number_at(12).unwrap_or(u32::MAX));
        self.stream.set_nonblocking(false)?;
        Ok(Caller { stream: self.stream, rank: rank as usize, lane })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(key: &Key) -> (Gate, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Gate::new(listener, key.clone(), 3).unwrap(), address)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn who_has_the_key_gets_in_and_nobody_else() {
        let key = Key::fresh();
        let (mut gate, address) = gate(&key);
        let call = move |key: Key, rank| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                introduce(&mut stream, &key, rank, 7, soon()).map(|()| stream)
            })
        };
        let stranger = call(Key::fresh(), 1);
        assert!(gate.next(Duration::from_millis(300)).is_none());
        assert_eq!(stranger.join().unwrap().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let rank = call(key.clone(), 2);
        let mut caller = gate.next(Duration::from_secs(5)).expect("a rank calls");
        assert_eq!((caller.rank, caller.lane), (2, 7));
        rank.join().unwrap().unwrap().write_all(b"more").unwrap();
        let mut more = [0; 4];
        read_by(&mut caller.stream, &mut more, soon()).unwrap();
        assert_eq!(&more, b"more", "nothing that came after the proof is lost");
    }

    #[test]
    fn what_was_heard_before_opens_nothing() {
        let key = Key::fresh();
        let (mut gate, address) = gate(&key);
        // A caller that says all that another one said, word for word.
        let mut said = vec![0; HELLO];
        said[..8].copy_from_slice(&MAGIC);
        said.extend(key.prove(&[b"calls", &said[..HELLO], &[0; 16]]));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&said).unwrap();
        assert!(gate.next(Duration::from_millis(200)).is_none());
    }

    #[test]
    fn those_who_say_nothing_hold_nobody_up_and_are_few() {
        let key = Key::fresh();
        let (mut gate, address) = gate(&key);
        let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut noise = TcpStream::connect(address).unwrap();
        noise.write_all(&[0xff; 5]).unwrap();
        let began = Instant::now();
        let theirs = key.clone();
        let rank = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            introduce(&mut stream, &theirs, 1, 0, soon())
        });
        assert_eq!(gate.next(Duration::from_secs(5)).map(|caller| caller.rank), Some(1));
        rank.join().unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(gate.pending.len() <= gate.places, "{} wait", gate.pending.len());
        drop(idle);
    }

    #[test]
    fn a_server_that_drips_does_not_stretch_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let mut stream = TcpStream::connect(address).unwrap();
        let began = Instant::now();
        let deadline = began + Duration::from_millis(300);
        assert!(introduce(&mut stream, &Key::fresh(), 0, 0, deadline).is_err());
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
