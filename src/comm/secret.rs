//! What ranks of one job know and nobody else: the key by which they recognise each other.
//!
//! The user may give a secret (`PHALANX_COMM_SECRET`, or a file named by `PHALANX_COMM_SECRET_FILE`). Otherwise there is a file
//! in the user's folder of settings, made when it is first needed, which all hosts see where they share home folders. What
//! the launcher gives goes into the key too: its name of the job, and how often it was restarted.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::net::random;
use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::{bail, err};

/// Bytes of a proof.
pub const PROOF: usize = 32;
/// A secret is no longer than this: more is not a file of ours.
const LONGEST: u64 = 4096;

/// Where a secret comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Secret {
    /// The user has named none.
    #[default]
    Unnamed,
    /// The words themselves.
    Words(String),
    /// The first bytes of a file that only its owner may read.
    File(PathBuf),
}

/// A key of one job.
#[derive(Clone)]
pub struct Key([u8; PROOF]);

impl Key {
    /// The key of a job. `own_file`: a user who has named no secret has one in a file.
    pub fn of(launch: &Launch, secret: &Secret, own_file: bool) -> Result<Key> {
        let secret = match secret {
            Secret::Words(words) => words.clone().into_bytes(),
            Secret::File(path) => read(path)?,
            Secret::Unnamed if own_file => own()?,
            Secret::Unnamed => Vec::new(),
        };
        let job = format!("{}\0{}\0{}", launch.job, launch.restarts, launch.size);
        Ok(Key(proof(&secret, &[b"ranks of one job", job.as_bytes()])))
    }

    /// A key that nobody knows yet.
    #[cfg(test)]
    pub fn fresh() -> Key {
        Key(nonce_and(nonce()))
    }

    /// A key for one use of this one.
    pub fn derive(&self, what: &[u8]) -> Key {
        Key(self.prove(&[b"derived", what]))
    }

    /// Shows that whoever says this has the key.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF] {
        proof(&self.0, parts)
    }

    /// Whether these bytes are the proof. Takes as long for a wrong one as for the right one.
    pub fn is_proof(&self, parts: &[&[u8]], shown: &[u8]) -> bool {
        keyed(&self.0, parts).verify_slice(shown).is_ok()
    }
}

#[cfg(test)]
fn nonce_and(half: [u8; 16]) -> [u8; PROOF] {
    [half, nonce()].concat().try_into().expect("twice sixteen bytes")
}

/// Sixteen bytes that nobody can guess, used once.
pub fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random().to_le_bytes());
    bytes[8..].copy_from_slice(&random().to_le_bytes());
    bytes
}

/// Each part goes in with its length, so that no two lists of parts look alike.
fn keyed(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn proof(key: &[u8], parts: &[&[u8]]) -> [u8; PROOF] {
    keyed(key, parts).finalize().into_bytes().into()
}

/// Reads a secret; nobody but its owner, who is this user or root, may be able to read it.
fn read(path: &Path) -> Result<Vec<u8>> {
    let open = || -> std::io::Result<(std::fs::Metadata, Vec<u8>)> {
        let file = std::fs::File::open(path)?;
        let about = file.metadata()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes)?;
        Ok((about, bytes))
    };
    let (about, bytes) = open().map_err(|e| err!("the ranks' secret {}: {e}", path.display()))?;
    // SAFETY: a plain question to the system.
    let me = unsafe { libc::geteuid() };
    if about.mode() & 0o077 != 0 || (about.uid() != me && about.uid() != 0) {
        let e = err!("the ranks' secret {} can be read by others", path.display());
        return Err(e.help(format!("`chmod 600 {}`; it has to be your own file", path.display())));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        bail!("the ranks' secret {} is empty", path.display());
    }
    Ok(bytes)
}

/// The secret in the user's folder of settings; made where there is none.
fn own() -> Result<Vec<u8>> {
    let path = own_path()?;
    match make(&path) {
        // Somebody was here before: perhaps another rank, a moment ago, through another host's view of the same folder.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => read_soon(&path),
        Err(e) => Err(err!("the ranks' secret {} cannot be made: {e}", path.display()).help(HOW)),
        Ok(()) => read(&path),
    }
}

const HOW: &str = "set PHALANX_COMM_SECRET to the same words on all ranks, or PHALANX_COMM_SECRET_FILE";

fn own_path() -> Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let settings = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    match settings {
        Some(settings) => Ok(settings.join("phalanx/ranks.key")),
        None => Err(Error::new("there is no home folder to keep the ranks' secret in").help(HOW)),
    }
}

/// A complete file appears under its name, or none: it is written under another name and linked.
fn make(path: &Path) -> std::io::Result<()> {
    if path.try_exists()? {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let draft = folder.join(format!("ranks.{:016x}", random()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let words: String = nonce().iter().chain(&nonce()).map(|byte| format!("{byte:02x}")).collect();
    let written = file.write_all(format!("{words}\n").as_bytes()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    let _ = std::fs::remove_file(&draft);
    linked
}

/// Network file systems may show a new file a moment after its name is taken.
fn read_soon(path: &Path) -> Result<Vec<u8>> {
    for _ in 0..20 {
        match read(path) {
            Err(_) if !path.exists() => std::thread::sleep(std::time::Duration::from_millis(100)),
            found => return found,
        }
    }
    read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(job: &str) -> Launch {
        Launch { job: job.into(), ..Launch::detect(&|_| None, "here").unwrap() }
    }

    #[test]
    fn proofs_are_those_of_the_standard() {
        // RFC 4231, test case 2, one part without its length.
        let mut mac = keyed(b"Jefe", &[]);
        mac.update(b"what do ya want for nothing?");
        let digest: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn another_secret_or_another_job_is_another_key() {
        let key = |job: &str, words: &str| {
            Key::of(&launch(job), &Secret::Words(words.into()), true).unwrap().prove(&[b"x"])
        };
        assert_eq!(key("a", "s"), key("a", "s"));
        assert_ne!(key("a", "s"), key("b", "s"));
        assert_ne!(key("a", "s"), key("a", "t"));
        let one = Key::fresh();
        assert!(one.is_proof(&[b"ab", b"c"], &one.prove(&[b"ab", b"c"])));
        assert!(!one.is_proof(&[b"ab", b"c"], &one.prove(&[b"a", b"bc"])), "parts have their borders");
        assert!(!one.is_proof(&[b"ab"], b""));
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_and_one_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/ranks.key");
        make(&path).unwrap();
        let first = read(&path).unwrap();
        assert_eq!(first.len(), 65);
        assert_eq!(make(&path).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(read_soon(&path).unwrap(), first);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(read(&path).unwrap_err().message().ends_with("can be read by others"));
        assert!(read(&folder.path().join("none")).is_err());
    }
}
