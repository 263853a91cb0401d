//! horovodrun's key-value store over HTTP, as a client: PUT and GET of `/scope/key`, 404 for an absent key.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Store, torch::dial};
use crate::err;
use crate::error::{Error, Result};

/// Answers are far shorter; more means that something else speaks.
const LONGEST: u64 = 1 << 28;

/// The store of one horovodrun.
pub struct HorovodStore {
    address: String,
    port: u16,
    local: Option<IpAddr>,
    /// How long to try to reach it, and to wait for an answer.
    limit: Duration,
}

impl HorovodStore {
    /// Reaches the store once, to know that it is there.
    pub fn new(address: &str, port: u16, limit: Duration) -> Result<HorovodStore> {
        let mut store = HorovodStore { address: address.to_string(), port, local: None, limit };
        let stream = store.dial().map_err(|e| store.broken(&e))?;
        store.local = stream.local_addr().ok().map(|a| a.ip());
        Ok(store)
    }

    fn dial(&self) -> std::io::Result<TcpStream> {
        dial(&self.address, self.port, Instant::now() + self.limit, self.limit)
    }

    /// One request on a connection of its own: the server speaks HTTP/1.0. Gives status and body.
    fn request(&self, method: &str, key: &str, body: &[u8]) -> Result<(u32, Vec<u8>)> {
        // The server takes exactly two parts.
        let (scope, key) = key.split_once('/').unwrap_or(("phalanx", key));
        let key = key.replace('/', "-");
        let mut stream = self.dial().map_err(|e| self.broken(&e))?;
        let head = format!(
            "{method} /{scope}/{key} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        let mut answer = Vec::new();
        stream.write_all(&[head.as_bytes(), body].concat()).map_err(|e| self.broken(&e))?;
        stream.take(LONGEST).read_to_end(&mut answer).map_err(|e| self.broken(&e))?;
        read_answer(&answer).ok_or_else(|| err!("{}:{} does not answer like HTTP", self.address, self.port))
    }

    fn broken(&self, e: &std::io::Error) -> Error {
        err!("cannot reach horovodrun's store at {}:{}: {e}", self.address, self.port).help(
            "it may have ended, or `--network-interface` of horovodrun may have to name the right network",
        )
    }
}

impl Store for HorovodStore {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        match self.request("PUT", key, value)? {
            (200, _) => Ok(()),
            (status, _) => Err(err!("horovodrun's store refused a value: HTTP status {status}")),
        }
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut pause = Duration::from_millis(5);
        loop {
            match self.request("GET", key, &[])? {
                (200, value) => return Ok(Some(value)),
                (404, _) if Instant::now() >= deadline => return Ok(None),
                (404, _) => std::thread::sleep(pause),
                (status, _) => return Err(err!("horovodrun's store gave HTTP status {status}")),
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.local
    }
}

/// Status and body of an answer; the body is cut to its announced length.
fn read_answer(answer: &[u8]) -> Option<(u32, Vec<u8>)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.lines().next()?.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let body = &answer[end + 4..];
    Some((status, body[..length.unwrap_or(body.len()).min(body.len())].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::read_answer;

    #[test]
    fn an_answer_is_read_with_and_without_a_length() {
        let with = b"HTTP/1.0 200 OK\r\nServer: x\r\ncontent-length: 3\r\n\r\nabcdef";
        assert_eq!(read_answer(with), Some((200, b"abc".to_vec())));
        assert_eq!(read_answer(b"HTTP/1.0 404 Not Found\r\n\r\n"), Some((404, vec![])));
        assert_eq!(read_answer(b"SSH-2.0-OpenSSH"), None);
    }
}
