//! What the page shows, and how it is told: JSON with what is new since the page last asked.

use crate::gpu::load::Load;
use crate::report::lcurve::Row;
use crate::report::profile::{Phase, RankTimes};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Rows that are kept. With more than that every second one is left out, and the page asks for all of them again.
const ROWS: usize = 4096;
/// Lines of the log that are kept, and how long one may be.
const LINES: usize = 500;
const LINE: usize = 2000;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Steps {
    pub done: u64,
    pub total: u64,
    /// Steps and batches of all ranks, a second.
    pub rate: f64,
    pub batches: f64,
    /// Seconds left.
    pub eta: Option<f64>,
}

/// What one rank tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankState {
    pub times: RankTimes,
    /// Of its GPU, where it has one that tells.
    pub gpu: Option<Load>,
}

#[derive(Debug)]
pub struct State {
    title: String,
    names: Vec<String>,
    validates: bool,
    /// Step, learning rate, training values, validation values.
    rows: Vec<Vec<f64>>,
    /// Each row of these many is kept; changes tell the page to ask for all rows.
    every: u64,
    seen: u64,
    lines: VecDeque<String>,
    /// Lines that there have been.
    n_lines: u64,
    pub steps: Steps,
    pub ranks: Vec<RankState>,
}

impl State {
    pub fn new(title: &str) -> Self {
        State {
            title: title.to_owned(),
            names: Vec::new(),
            validates: false,
            rows: Vec::new(),
            every: 1,
            seen: 0,
            lines: VecDeque::new(),
            n_lines: 0,
            steps: Steps::default(),
            ranks: Vec::new(),
        }
    }

    pub fn row(&mut self, names: &[String], row: &Row) {
        if self.names != names {
            self.names = names.to_vec();
        }
        self.validates |= !row.valid.is_empty();
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) && self.seen != 1 {
            return;
        }
        let values = row.train.iter().chain(&row.valid).copied();
        self.rows.push([row.step as f64, row.lr].into_iter().chain(values).collect());
        if self.rows.len() > ROWS {
            let mut index = 0;
            self.rows.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
    }

    pub fn line(&mut self, line: &str) {
        let cut = line.char_indices().nth(LINE).map_or(line.len(), |(at, _)| at);
        self.lines.push_back(line[..cut].to_owned());
        self.n_lines += 1;
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    /// What came after the first `rows` rows, thinned out `every`-fold, and after the first `lines` lines.
    pub fn since(&self, rows: usize, every: u64, lines: u64) -> String {
        let first = if every == self.every { rows.min(self.rows.len()) } else { 0 };
        let new_lines = (self.n_lines.saturating_sub(lines)).min(self.lines.len() as u64) as usize;
        serde_json::json!({
            "title": self.title,
            "names": self.names,
            "validates": self.validates,
            "first": first,
            "every": self.every,
            // JSON has no NaN: a value that is missing is null.
            "rows": &self.rows[first..],
            "log": self.lines.range(self.lines.len() - new_lines..).collect::<Vec<_>>(),
            "lines": self.n_lines,
            "steps": self.steps,
            "phases": Phase::ALL.map(Phase::name),
            "ranks": self.ranks.iter().map(|r| (&r.times.phases, r.times.total)).collect::<Vec<_>>(),
            "gpus": self.ranks.iter().map(|r| r.gpu).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn told(state: &State, rows: usize, every: u64, lines: u64) -> Value {
        serde_json::from_str(&state.since(rows, every, lines)).unwrap()
    }

    #[test]
    fn only_what_is_new_is_told_and_what_is_missing_is_null() {
        let mut state = State::new("water");
        let names = ["rmse".to_owned()];
        for step in 1..=3 {
            state.row(&names, &Row { step, train: vec![0.5], valid: vec![f64::NAN], lr: 1e-3 });
            state.line("a line");
        }
        let all = told(&state, 0, 0, 0);
        assert_eq!(all["rows"].as_array().unwrap().len(), 3);
        assert_eq!(all["rows"][2], serde_json::json!([3.0, 1e-3, 0.5, null]));
        let new = told(&state, 2, 1, 2);
        assert_eq!((new["first"].as_u64(), new["rows"].as_array().unwrap().len()), (Some(2), 1));
        assert_eq!(new["log"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn memory_is_bounded_however_long_the_run_is() {
        let mut state = State::new("water");
        for step in 1..=40_000 {
            state.row(&["rmse".to_owned()], &Row { step, train: vec![1.0], valid: vec![], lr: 0.0 });
            state.line(&"ä".repeat(5000));
        }
        assert!(state.rows.len() <= ROWS && state.lines.len() == LINES);
        assert!(state.rows.is_sorted_by(|a, b| a[0] < b[0]));
        // A page that knew rows of the time before they were thinned out gets all of them.
        assert_eq!(told(&state, 100, 1, 0)["first"], 0);
        assert!(state.lines[0].chars().count() == LINE);
    }
}
