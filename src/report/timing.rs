//! Wall time, time left and the average of a run.

use std::time::Duration;

/// One display interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The step that it ends at, counted from one.
    pub step: u64,
    /// Time since the display before.
    pub wall: Duration,
    /// Steps since the display before.
    pub steps: u64,
    /// Time left at the rate of this interval. None for the first one, which holds the costs of starting.
    pub eta: Option<Duration>,
}

impl Interval {
    /// Steps per second over the interval.
    pub fn rate(&self) -> f64 {
        self.steps as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Adds up the display intervals of a run.
///
/// The average leaves out the first `disp_freq` steps, unless the run is so short that little would be left.
/// The clock is an argument: time since the start of the loop.
#[derive(Debug, Clone)]
pub struct Stopwatch {
    start_step: u64,
    end_step: u64,
    disp_freq: u64,
    last_step: u64,
    last_time: Duration,
    seen_any: bool,
    timed: Duration,
    timed_steps: u64,
}

impl Stopwatch {
    /// For a run from `start_step` (not zero after a restart) to `end_step` that displays every `disp_freq` steps.
    pub fn new(start_step: u64, end_step: u64, disp_freq: u64) -> Self {
        Stopwatch {
            start_step,
            end_step,
            disp_freq: disp_freq.max(1),
            last_step: start_step,
            last_time: Duration::ZERO,
            seen_any: false,
            timed: Duration::ZERO,
            timed_steps: 0,
        }
    }

    /// Ends an interval at `step`, `now` after the start of the loop.
    pub fn record(&mut self, step: u64, now: Duration) -> Interval {
        let wall = now.saturating_sub(self.last_time);
        let steps = step.saturating_sub(self.last_step).max(1);
        self.last_time = now;
        self.last_step = step;
        if self.counts(step) {
            self.timed += wall;
            self.timed_steps += steps;
        }
        let left = self.end_step.saturating_sub(step) as f64 / steps as f64;
        let eta = self.seen_any.then(|| wall.mul_f64(left));
        self.seen_any = true;
        Interval { step, wall, steps, eta }
    }

    /// Seconds for a step, and how many steps the figure leaves out; None before a representative interval.
    pub fn average(&self) -> Option<(f64, u64)> {
        if self.timed_steps == 0 {
            return None;
        }
        let left_out = (self.end_step - self.start_step).saturating_sub(self.timed_steps);
        Some((self.timed.as_secs_f64() / self.timed_steps as f64, left_out))
    }

    /// Steps that the run was cut short at, e.g. by a signal.
    pub fn ended_at(&mut self, step: u64) {
        self.end_step = step.max(self.start_step);
    }

    fn counts(&self, step: u64) -> bool {
        let is_short = self.end_step - self.start_step <= 2 * self.disp_freq;
        is_short || step > self.start_step + self.disp_freq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_interval_forecasts_nothing_and_is_left_out_of_the_average() {
        let mut watch = Stopwatch::new(0, 20, 5);
        assert_eq!(watch.record(1, 60 * SECOND).eta, None);
        let second = watch.record(5, 68 * SECOND);
        assert_eq!((second.steps, second.wall, second.eta), (4, 8 * SECOND, Some(30 * SECOND)));
        assert_eq!(watch.average(), None);
        for (step, seconds) in [(10, 78), (15, 93), (20, 103)] {
            watch.record(step, seconds * SECOND);
        }
        assert_eq!(watch.average(), Some((35.0 / 15.0, 5)));
    }

    #[test]
    fn a_short_run_counts_every_step() {
        let mut watch = Stopwatch::new(100, 110, 5);
        watch.record(105, 5 * SECOND);
        watch.record(110, 10 * SECOND);
        assert_eq!(watch.average(), Some((1.0, 0)));
    }

    #[test]
    fn a_run_that_was_cut_short_leaves_out_no_more_than_it_ran() {
        let mut watch = Stopwatch::new(0, 1000, 5);
        watch.record(1, SECOND);
        watch.record(5, 5 * SECOND);
        watch.record(10, 10 * SECOND);
        watch.ended_at(12);
        assert_eq!(watch.average(), Some((1.0, 7)));
    }
}
