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
const LONGEST: u64 = 1 << 30;

/// A connection to the store.
pub struct TorchStore {
    stream: TcpStream,
    place: String,
}

impl TorchStore {
    /// Connects, trying again until `deadline`: the agent of another host may be slower than we are.
    pub fn connect(address: &str, port: u16, deadline: Instant) -> Result<TorchStore> {
        let place = format!("{address}:{port}");
        let stream = dial(address, port, deadline).map_err(|e| {
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
        err!("torchrun's store at {}: {e}", self.place)
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
        let mut value = vec![0; length as usize];
        self.stream.read_exact(&mut value).map_err(|e| self.broken(&e))?;
        Ok(Some(value))
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|a| a.ip())
    }
}

fn put(message: &mut Vec<u8>, bytes: &[u8]) {
    message.extend((bytes.len() as u64).to_le_bytes());
    message.extend(bytes);
}

/// Connects to a named host, trying all its addresses again until `deadline`.
pub fn dial(address: &str, port: u16, deadline: Instant) -> std::io::Result<TcpStream> {
    loop {
        let mut last = std::io::Error::new(ErrorKind::NotFound, "no such host");
        match (address, port).to_socket_addrs() {
            Err(e) => last = e,
            Ok(found) => {
                for address in found {
                    match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
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
