//! A web server for one page: few connections, short requests, deadlines, and nobody without the token.

use super::state::State;
use crate::err;
use crate::error::Result;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("page.html");
/// A request line and its headers; more is refused.
const REQUEST: usize = 8192;
/// Connections at a time; more are closed at once.
const CONNECTIONS: usize = 16;
/// From the first byte of a request to the last of the answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Serves on threads of its own until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: std::net::SocketAddr,
}

impl Server {
    pub fn start(listener: TcpListener, token: Option<String>, state: Arc<Mutex<State>>) -> Result<Self> {
        let address = listener.local_addr().map_err(|e| err!("--dashboard: {e}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("dashboard".into())
            .spawn(move || accept(&listener, &flag, &Arc::new((token, state))))
            .map_err(|e| err!("--dashboard: cannot start a thread: {e}"))?;
        Ok(Server { stop, thread: Some(thread), address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for the next connection.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Shared = Arc<(Option<String>, Arc<Mutex<State>>)>;

fn accept(listener: &TcpListener, stop: &AtomicBool, shared: &Shared) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Too many open files, say. Asking again at once would only burn time.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (shared, count) = (shared.clone(), open.clone());
        let serve = move || {
            // Whoever asked is gone: nobody to tell.
            let _ = serve(stream, &shared);
            count.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("dashboard".into()).spawn(serve).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    stream.set_write_timeout(Some(DEADLINE))?;
    let request = match read_request(&mut stream, deadline)? {
        Some(request) => request,
        None => {
            return answer(
                &mut stream,
                "400 Bad Request",
                "text/plain",
                "a request of a browser was expected\n",
            );
        }
    };
    let (token, state) = &**shared;
    let (path, query) = request.split_once('?').unwrap_or((&request, ""));
    let value = |name: &str| {
        query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name)).map(|(_, v)| v)
    };
    if let Some(token) = token
        && !is_same(token, value("token").unwrap_or(""))
    {
        let text = "open the address that the log of the run tells: it ends with a token\n";
        return answer(&mut stream, "403 Forbidden", "text/plain", text);
    }
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    match path {
        "/" => answer(&mut stream, "200 OK", "text/html; charset=utf-8", PAGE),
        "/data" => {
            let text = super::lock(state).since(number("rows") as usize, number("every"), number("lines"));
            answer(&mut stream, "200 OK", "application/json", &text)
        }
        _ => answer(&mut stream, "404 Not Found", "text/plain", "there is one page, /\n"),
    }
}

/// The target of a GET request; None for anything else. Ends with an error where the deadline has passed.
fn read_request(stream: &mut TcpStream, deadline: Instant) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let n = stream.read(&mut chunk)?;
        bytes.extend_from_slice(&chunk[..n]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) if request.method == Some("GET") => {
                return Ok(request.path.map(str::to_owned));
            }
            Ok(httparse::Status::Partial) if n > 0 && bytes.len() < REQUEST => {}
            _ => return Ok(None),
        }
    }
}

fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
         connect-src 'self'\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Takes as long for any wrong token.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(token: Option<&str>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server::start(listener, token.map(str::to_owned), Arc::new(Mutex::new(State::new("x")))).unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn strangers_get_nothing() {
        let server = server(Some("secret"));
        let get = |target: &str| ask(&server, &format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
        for target in ["/", "/data", "/?token=", "/data?token=secreT", "/data?tokens=secret"] {
            assert!(get(target).starts_with("HTTP/1.1 403 "), "{target}");
        }
        assert!(get("/?token=secret").contains("<!doctype html>"));
        assert!(get("/data?token=secret&rows=3").contains("\"title\":\"x\""));
        assert!(get("/etc/passwd?token=secret").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn rubbish_long_requests_and_idle_ones_do_no_harm() {
        let server = server(None);
        for request in
            ["POST / HTTP/1.1\r\n\r\n", "\0\u{1}\u{2}\r\n\r\n", &format!("GET /{}", "x".repeat(20_000))]
        {
            let said = ask(&server, request);
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{said}");
        }
        // More idle connections than there is room for: the next ones are turned away until the idle ones are given up.
        let idle: Vec<TcpStream> =
            (0..2 * CONNECTIONS).map(|_| TcpStream::connect(server.address).unwrap()).collect();
        drop(idle);
        let deadline = Instant::now() + 2 * DEADLINE;
        while !ask(&server, "GET / HTTP/1.1\r\n\r\n").contains("<!doctype html>") {
            assert!(Instant::now() < deadline, "the server does not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
