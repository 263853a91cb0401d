//! The bar on a terminal. Elsewhere a run shows plain log lines only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::RwLock;

/// The bar that is on the screen now, so that a log line can step in front of it.
static SHOWN: RwLock<Option<ProgressBar>> = RwLock::new(None);

/// The progress of a training run: steps, steps per second, time left, force error of the last display.
///
/// Ticks cost an atomic add; the bar redraws a few times a second at most.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar on standard error where that is a terminal and `wanted` is true, else nothing.
    ///
    /// `start` is the step that a restart continues from; the rate counts from there.
    pub fn new(start: u64, total: u64, wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        Self::on(ProgressDrawTarget::stderr_with_hz(5), start, total, "steps")
    }

    /// A bar that counts something else than steps, e.g. frames, where standard error is a terminal.
    pub fn counting(unit: &'static str, total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        Self::on(ProgressDrawTarget::stderr_with_hz(5), 0, total, unit)
    }

    fn on(target: ProgressDrawTarget, start: u64, total: u64, unit: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style(unit));
        bar.set_position(start);
        bar.tick(); // makes the estimator count from `start`,
        bar.reset_eta(); // which it would take for a very fast first step
        *SHOWN.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(bar.clone());
        Progress { bar: Some(bar) }
    }

    /// Whether there is a bar to see.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// The number of the step that just ended.
    pub fn step(&self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    /// What to show at the right end, e.g. `rmse_f = 1.23e-01`.
    pub fn note(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Takes the bar off the screen. Dropping does the same.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            *SHOWN.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Runs `write` with the bar off the screen, then draws it again.
pub(super) fn suspended<T>(write: impl FnOnce() -> T) -> T {
    let shown = SHOWN.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn style(unit: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(&format!(
        "{{bar:32}} {{pos}}/{{len}} {unit}  {{per_sec}}  eta {{eta}}  {{msg}}"
    ))
    .expect("the template is a constant and is valid")
    .progress_chars("=> ")
    .with_key("per_sec", move |state: &indicatif::ProgressState, w: &mut dyn std::fmt::Write| {
        // A failed write into the bar's own buffer cannot be reported to anyone.
        let _ = write!(w, "{:.1} {unit}/s", state.per_sec());
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A one-line terminal: remembers what is on the line now.
    #[derive(Debug, Clone, Default)]
    struct Line(Arc<Mutex<String>>);

    impl Line {
        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl TermLike for Line {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, s: &str) -> io::Result<()> {
            self.write_str(s)
        }
        fn write_str(&self, s: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(s);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_shows_steps_and_note_and_steps_aside_for_a_line() {
        let term = Line::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 200);
        let progress = Progress::on(target, 100, 1000, "steps");
        std::thread::sleep(std::time::Duration::from_millis(30));
        progress.step(251);
        std::thread::sleep(std::time::Duration::from_millis(30));
        progress.note("rmse_f = 1.23e-01");
        let seen = term.text();
        assert!(seen.contains("251/1000 steps"), "{seen}");
        assert!(seen.contains("rmse_f = 1.23e-01") && seen.contains("steps/s"), "{seen}");
        let during = suspended(|| term.text());
        assert!(!during.contains("1000"), "the bar was on the screen while a line was written: {during}");
        progress.finish();
        assert!(!term.text().contains("1000"));
    }

    #[test]
    fn a_bar_that_is_not_wanted_is_absent_and_takes_steps_all_the_same() {
        let progress = Progress::new(0, 10, false);
        progress.step(3);
        progress.note("nothing");
        assert!(!progress.is_shown());
    }
}
