//! PyTorch's key-value store over TCP, as a client. torchrun's agent serves it.
//!
//! All numbers are little endian; keys and values carry their length as u64. The server keeps each key below a `/`.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Store;
use crate::err;
use crate::error::Result;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const PING: u8 = 13;
const MAGIC: u32 = 0x3C85_F7CE;
/// Values of ours are far smaller; more means that something else answers.
const LONGEST: u64 = 1 << 28;

/// A connection to the store.
pub struct TorchStore {
    stream: TcpStream,
    place: String,
}

impl TorchStore {
    /// Connects, trying again for `limit`: the agent of another host may be slower than we are.
    /// The store may take as long, `limit`, for each answer.
    pub fn connect(address: &str, port: u16, limit: Duration) -> Result<TorchStore> {
        let place = format!("{address}:{port}");
        let stream = dial(address, port, Instant::now() + limit, limit).map_err(|e| {
            err!("cannot reach torchrun's store at {place}: {e}")
                .help("MASTER_ADDR has to name the first host as the others see it")
        })?;
        let mut store = TorchStore { stream, place };
        let nonce = std::process::id();
        let mut hello = vec![VALIDATE];
        hello.extend(MAGIC.to_le_bytes());
        hello.push(PING);
        hello.extend(nonce.to_le_bytes());
        store.send(&hello)?;
        match store.receive::<4>()? == nonce.to_le_bytes() {
            true => Ok(store),
            false => Err(err!("{} does not answer like PyTorch's store", store.place)),
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_all(message).map_err(|e| self.broken(&e))
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|e| self.broken(&e))?;
        Ok(bytes)
    }

    fn broken(&self, e: &std::io::Error) -> crate::error::Error {
        let why = match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer".to_string(),
            _ => e.to_string(),
        };
        err!("torchrun's store at {}: {why}", self.place)
            .help("its agent may have ended: look at torchrun's own messages")
    }

    fn is_there(&mut self, key: &str) -> Result<bool> {
        let mut message = vec![CHECK];
        message.extend(1u64.to_le_bytes());
        put(&mut message, format!("/{key}").as_bytes());
        self.send(&message)?;
        Ok(self.receive::<1>()? == [0])
    }
}

impl Store for TorchStore {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let mut message = vec![SET];
        put(&mut message, format!("/{key}").as_bytes());
        put(&mut message, value);
        self.send(&message)
    }

    /// Asks again and again rather than letting the server wait: a wait that runs out has to be taken back, which
    /// servers of different versions answer differently.
    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut pause = Duration::from_millis(1);
        while !self.is_there(key)? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        let mut message = vec![GET];
        put(&mut message, format!("/{key}").as_bytes());
        self.send(&message)?;
        let length = u64::from_le_bytes(self.receive()?);
        if length > LONGEST {
            return Err(err!("torchrun's store at {} gave a value of {length} bytes", self.place));
        }
        let mut value = Vec::with_capacity(length.min(1 << 16) as usize);
        let read = (&self.stream).take(length).read_to_end(&mut value);
        match read.map_err(|e| self.broken(&e))? as u64 == length {
            true => Ok(Some(value)),
            false => Err(self.broken(&ErrorKind::UnexpectedEof.into())),
        }
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|a| a.ip())
    }
}

fn put(message: &mut Vec<u8>, bytes: &[u8]) {
    message.extend((bytes.len() as u64).to_le_bytes());
    message.extend(bytes);
}

/// How long one address may take before the next is tried. All are tried again until the deadline.
const ONE_ADDRESS: Duration = Duration::from_secs(5);

/// Connects to a named host, trying all its addresses again until `deadline`. Later waits for an answer end after `limit`.
pub fn dial(address: &str, port: u16, deadline: Instant, limit: Duration) -> std::io::Result<TcpStream> {
    loop {
        let mut last = std::io::Error::new(ErrorKind::NotFound, "no such host");
        match (address, port).to_socket_addrs() {
            Err(e) => last = e,
            Ok(found) => {
                for address in found {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let patience = left.clamp(Duration::from_millis(50), ONE_ADDRESS);
                    match TcpStream::connect_timeout(&address, patience) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_read_timeout(Some(limit))?;
                            stream.set_write_timeout(Some(limit))?;
                            return Ok(stream);
                        }
                        Err(e) => last = e,
                    }
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(last);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::TcpListener;

    /// A server that knows the few requests that we make, as PyTorch's answers them.
    fn serve(mut stream: TcpStream) -> std::io::Result<()> {
        let mut values: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let number = |stream: &mut TcpStream| -> std::io::Result<u64> {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let text = |stream: &mut TcpStream| -> std::io::Result<Vec<u8>> {
            let mut bytes = vec![0; number(stream)? as usize];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        loop {
            let (mut kind, mut four) = ([0], [0; 4]);
            stream.read_exact(&mut kind)?;
            match kind[0] {
                VALIDATE => {
                    stream.read_exact(&mut four)?;
                    assert_eq!(u32::from_le_bytes(four), MAGIC);
                }
                PING => {
                    stream.read_exact(&mut four)?;
                    stream.write_all(&four)?;
                }
                SET => {
                    let key = text(&mut stream)?;
                    values.insert(key, text(&mut stream)?);
                }
                CHECK => {
                    assert_eq!(number(&mut stream)?, 1);
                    let there = values.contains_key(&text(&mut stream)?);
                    stream.write_all(&[u8::from(!there)])?;
                }
                GET => {
                    let value = values[&text(&mut stream)?].clone();
                    stream.write_all(&(value.len() as u64).to_le_bytes())?;
                    stream.write_all(&value)?;
                }
                other => panic!("request {other} is not one of ours"),
            }
        }
    }

    const SHORT: Duration = Duration::from_millis(50);

    fn soon() -> Instant {
        Instant::now() + SHORT
    }

    #[test]
    fn values_come_back_and_absent_ones_are_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let mut store = TorchStore::connect("127.0.0.1", port, SHORT).unwrap();
        store.set("job/a", b"value").unwrap();
        store.set("job/empty", b"").unwrap();
        assert_eq!(store.get("job/a", soon()).unwrap(), Some(b"value".to_vec()));
        assert_eq!(store.get("job/empty", soon()).unwrap(), Some(vec![]));
        let start = Instant::now();
        assert_eq!(store.get("job/b", soon()).unwrap(), None);
        assert!(start.elapsed() >= Duration::from_millis(40), "it waited until the deadline");
        assert_eq!(store.local_address(), Some(std::net::Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_store_that_is_not_there_or_not_pytorchs_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-x"));
        let error = TorchStore::connect("127.0.0.1", port, SHORT).err().unwrap();
        assert!(error.message().contains(&format!("127.0.0.1:{port}")), "{error}");
        let error = TorchStore::connect("127.0.0.1", 1, SHORT).err().unwrap();
        assert!(error.message().starts_with("cannot reach torchrun's store at 127.0.0.1:1:"), "{error}");
    }
}
