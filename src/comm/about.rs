//! What all ranks of a job have in common, and must: else they are not one job.

use crate::err;
use crate::error::{Error, Result};

/// Facts by name: "input", "program". A fact that a rank does not know is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About(Vec<(String, String)>);

impl About {
    /// Adds a fact, if it is known.
    pub fn with(mut self, what: &str, value: Option<String>) -> About {
        self.0.extend(value.map(|value| (clean(what), clean(&value))));
        self
    }

    /// One line each: name, tab, value.
    pub fn write(&self) -> String {
        self.0.iter().map(|(what, value)| format!("{what}\t{value}\n")).collect()
    }

    /// What [`About::write`] wrote.
    pub fn read(text: &str) -> About {
        let fact =
            |line: &str| line.split_once('\t').map(|(what, value)| (what.to_string(), value.to_string()));
        About(text.lines().filter_map(fact).collect())
    }

    /// The first fact that both know and that differs: its name, mine, the other's.
    fn difference<'a>(&'a self, other: &'a About) -> Option<(&'a str, &'a str, &'a str)> {
        self.0.iter().find_map(|(what, mine)| {
            let (_, theirs) = other.0.iter().find(|(name, _)| name == what)?;
            (mine != theirs).then_some((what.as_str(), mine.as_str(), theirs.as_str()))
        })
    }

    /// Why `rank`, of which `other` is known, is not of the job of this rank 0.
    pub fn refusal(&self, rank: usize, other: &About) -> Option<String> {
        let (what, mine, theirs) = self.difference(other)?;
        Some(format!(
            "rank {rank} is not of the job of rank 0: its {what} is {theirs}, that of rank 0 is {mine}"
        ))
    }
}

/// Refuses ranks that are not one job, by name; `all` by rank.
pub fn check_one_job(all: &[About]) -> Result<()> {
    let refusal = all.iter().enumerate().find_map(|(rank, about)| all[0].refusal(rank, about));
    refusal.map_or(Ok(()), |why| Err(refused(&why)))
}

/// The error of a rank that is not of the job.
pub fn refused(why: &str) -> Error {
    err!("{why}").help(
        "start all ranks with the same program and the same input; two jobs on one host need two MASTER_PORTs",
    )
}

/// Tabs and line ends would be taken for ours.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_and_what_is_unknown_does_not_matter() {
        let about = |input: Option<&str>| {
            About::default().with("program", Some("dp 1\t2".into())).with("input", input.map(str::to_string))
        };
        assert_eq!(About::read(&about(Some("x")).write()), about(Some("x")));
        check_one_job(&[about(Some("x")), about(None), about(Some("x"))]).unwrap();
        let error = check_one_job(&[about(Some("x")), about(None), about(Some("y"))]).unwrap_err();
        assert_eq!(
            error.message(),
            "rank 2 is not of the job of rank 0: its input is y, that of rank 0 is x"
        );
    }
}
