//! Others at the ports of a job.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// An address of this host that is not loopback: the one by which it would reach others.
pub fn address() -> Option<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // sends nothing
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => Some(address),
        _ => None,
    }
}

/// Threads that call a port again and again, each with manners of its own.
pub struct Crowd {
    over: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

/// What strangers say: nothing, noise, requests of a store without a secret, a length without end, the start of a greeting.
const SAYINGS: [&[u8]; 6] = [
    b"",
    b"GET / HTTP/1.0\r\n\r\n",
    b"\x01\x03\x00\x00\x00key\x05\x00\x00\x00value",
    b"\x01\xff\xff\xff\x0f",
    b"phalanx3\x01\x00\x00\x00\x00\x00\x00\x00",
    b"phalanx3\x01\x00\x00\x00\x00\x00\x00\x000123456789abcdefthis is no proof at all, is it not",
];

impl Crowd {
    pub fn at(address: Ipv4Addr, port: u16) -> Crowd {
        let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let call = |saying: &'static [u8]| {
            let (over, calls) = (over.clone(), calls.clone());
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let place = SocketAddr::new(address.into(), port);
                    if let Ok(mut stream) = TcpStream::connect_timeout(&place, Duration::from_millis(200)) {
                        calls.fetch_add(1, Ordering::Relaxed);
                        let _ = stream.write_all(saying);
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
                        let _ = stream.read(&mut [0; 64]);
                        held.push(stream); // and stays on the line
                    }
                    held.truncate(50);
                    std::thread::sleep(Duration::from_millis(3));
                }
            })
        };
        let threads = SAYINGS.iter().map(|saying| call(saying)).collect();
        Crowd { over, calls, threads }
    }

    /// How often they got through.
    pub fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.calls.load(Ordering::Relaxed)
    }
}

/// TCP ports at which one of these processes listens.
pub fn listening(pids: &[i32]) -> Vec<u16> {
    let mut inodes = Vec::new();
    for entry in
        pids.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok()).flatten().flatten()
    {
        let link = std::fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
        inodes.extend(
            link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')).map(str::to_string),
        );
    }
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens =
            words.get(3) == Some(&"0A") && inodes.iter().any(|inode| words.get(9) == Some(&inode.as_str()));
        let port = words.get(1)?.rsplit(':').next()?;
        listens.then(|| u16::from_str_radix(port, 16).ok())?
    };
    tables.iter().flat_map(|table| table.lines().skip(1).filter_map(port).collect::<Vec<_>>()).collect()
}
