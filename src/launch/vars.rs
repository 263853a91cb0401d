//! Environment variables with errors that name them.

use super::{Env, Place};
use crate::error::Result;
use crate::{bail, err};

/// The environment, read with errors that name the variable.
pub struct Vars<'a> {
    env: Env<'a>,
}

impl<'a> Vars<'a> {
    /// Reads from `env`.
    pub fn new(env: Env<'a>) -> Self {
        Vars { env }
    }

    /// The value, if the variable is there and not empty.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.trim().is_empty())
    }

    /// Whether the variable is there and not empty.
    pub fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// A count, if the variable is there.
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(err!("{name}={text:?} is not a whole number").help(ADVICE)),
        }
    }

    /// A text that the launcher always sets; `because` is a variable that shows it was there.
    pub fn need_text(&self, name: &str, because: &str) -> Result<String> {
        self.text(name).ok_or_else(|| err!("{because} is set, but {name} is not").help(ADVICE))
    }

    /// A count that the launcher always sets.
    pub fn need_count(&self, name: &str, because: &str) -> Result<usize> {
        self.need_text(name, because)?;
        Ok(self.count(name)?.unwrap_or_default())
    }

    /// A port that the launcher always sets.
    pub fn need_port(&self, name: &str, because: &str) -> Result<u16> {
        let text = self.need_text(name, because)?;
        match text.trim().parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(err!("{name}={text:?} is not a port (1 to 65535)").help(ADVICE)),
        }
    }

    /// Rank, size, local rank and local size from four variables that the launcher always sets together.
    pub fn place(&self, names: [&str; 4]) -> Result<Place> {
        let because = names.iter().find(|name| self.has(name)).unwrap_or(&names[0]);
        let [rank, size, local_rank, local_size] = names;
        let place = Place {
            rank: self.need_count(rank, because)?,
            size: self.need_count(size, because)?,
            local_rank: self.need_count(local_rank, because)?,
            local_size: self.need_count(local_size, because)?,
            rendezvous: None,
            mpi: None,
            job: String::new(),
            restarts: 0,
        };
        place.check(names)?;
        Ok(place)
    }
}

impl Place {
    /// A rank lies below its size, and no host has more ranks than the job.
    pub fn check(&self, names: [&str; 4]) -> Result<()> {
        let [rank, size, local_rank, local_size] = names;
        below(rank, self.rank, size, self.size)?;
        below(local_rank, self.local_rank, local_size, self.local_size)?;
        if self.local_size > self.size {
            let (n, all) = (self.local_size, self.size);
            return Err(err!("{local_size}={n} is more than {size}={all}").help(ADVICE));
        }
        Ok(())
    }
}

fn below(rank: &str, r: usize, size: &str, n: usize) -> Result<()> {
    if n == 0 {
        bail!("{size}=0: a job has at least one rank");
    }
    if r >= n {
        return Err(err!("{rank}={r} is not below {size}={n}").help(ADVICE));
    }
    Ok(())
}

const ADVICE: &str =
    "variables of two launchers may be mixed: start from a fresh shell, or unset the one that is wrong";
