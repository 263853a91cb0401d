//! `dp train --dashboard`: a page with the curves, the speed and the log of a run while it runs. Rank 0 serves it.

mod server; // who may ask, and how
mod state; // what is shown

pub use state::{RankState, Steps};

use super::lcurve::Row;
use crate::err;
use crate::error::Result;
use server::Server;
use state::State;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// Where the page is served unless the user says otherwise; another port where this one is taken.
const USUAL: &str = "127.0.0.1:8470";

/// What `--dashboard` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DashboardOptions {
    address: SocketAddr,
    /// The user has named the port: no other will do.
    is_fixed: bool,
    /// Whoever asks must know a token that is in the address which the log tells.
    wants_token: bool,
}

impl DashboardOptions {
    /// Whoever can reach the address may look.
    pub fn for_all(self) -> Self {
        DashboardOptions { wants_token: false, ..self }
    }
}

impl FromStr for DashboardOptions {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (text, is_fixed) = if text.is_empty() { (USUAL, false) } else { (text, true) };
        // A port alone is one of this machine.
        let full = if text.contains(':') { text.to_owned() } else { format!("127.0.0.1:{text}") };
        let address = full.replace("localhost:", "127.0.0.1:").parse().map_err(|_| {
            err!("--dashboard: {text:?} is not an address")
                .help("use for example 127.0.0.1:8470, 8470, or nothing")
        })?;
        Ok(DashboardOptions { address, is_fixed, wants_token: true })
    }
}

/// The dashboard of this process, for those who have something to show.
static SHOWN: RwLock<Option<Arc<Mutex<State>>>> = RwLock::new(None);

/// Calls `change` with what is shown, where there is a dashboard.
fn with(change: impl FnOnce(&mut State)) {
    let shown = SHOWN.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    if let Some(state) = shown {
        change(&mut lock(&state));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Shows a row of the learning curve.
pub fn row(names: &[String], row: &Row) {
    with(|state| state.row(names, row));
}

/// Shows a line of the log, without its newline.
pub(super) fn line(line: &str) {
    with(|state| state.line(line));
}

/// A page that is served until this value is dropped.
#[derive(Debug)]
pub struct Dashboard {
    address: String,
    _server: Server,
}

impl Dashboard {
    /// Begins to serve. `title` says what is trained, and where.
    pub fn open(options: &DashboardOptions, title: &str) -> Result<Self> {
        let listener = listen(options)?;
        let bound = listener.local_addr().map_err(|e| err!("--dashboard: {e}"))?;
        let token = options.wants_token.then(new_token).transpose()?;
        let query = token.as_ref().map_or(String::new(), |token| format!("/?token={token}"));
        let state = Arc::new(Mutex::new(State::new(title)));
        let server = Server::start(listener, token, state.clone())?;
        *SHOWN.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(state);
        Ok(Dashboard { address: format!("http://{bound}{query}"), _server: server })
    }

    /// What to open in a browser.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How far the run is.
    pub fn steps(&self, steps: Steps) {
        with(|state| state.steps = steps);
    }

    /// Where the time of each rank went so far, and what its GPU does.
    pub fn ranks(&self, ranks: Vec<RankState>) {
        with(|state| state.ranks = ranks);
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        *SHOWN.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }
}

fn listen(options: &DashboardOptions) -> Result<TcpListener> {
    let mut other = options.address;
    other.set_port(0);
    match TcpListener::bind(options.address) {
        Err(_) if !options.is_fixed => TcpListener::bind(other),
        bound => bound,
    }
    .map_err(|e| {
        err!("--dashboard: cannot serve at {}: {e}", options.address).help("choose another address or port")
    })
}

/// 128 bits that nobody can guess.
fn new_token() -> Result<String> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is as long as it is said to be. By number: old C libraries have no function for it.
    let n = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    if n != bytes.len() as i64 {
        return Err(err!("--dashboard: the system gives no random numbers"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_port_or_nothing() {
        let parsed =
            |text: &str| text.parse::<DashboardOptions>().map(|o| (o.address.to_string(), o.is_fixed));
        assert_eq!(parsed("").unwrap(), (USUAL.into(), false));
        assert_eq!(parsed("9000").unwrap(), ("127.0.0.1:9000".into(), true));
        assert_eq!(parsed("localhost:9000").unwrap(), ("127.0.0.1:9000".into(), true));
        assert_eq!(parsed("0.0.0.0:80").unwrap(), ("0.0.0.0:80".into(), true));
        assert!(parsed("somewhere").is_err() && parsed("1.2.3.4:99999").is_err());
    }
}
