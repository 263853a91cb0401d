//! The bar on a terminal. Elsewhere a run shows plain log lines only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, RwLock};

/// The bar that is on the screen now, so that a log line can step in front of it.
static SHOWN: RwLock<Option<ProgressBar>> = RwLock::new(None);

/// What a display adds to the bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// E.g. `rmse_f 0.0341`.
    pub text: String,
    /// Drawn as the next point of a small curve.
    pub value: f64,
}

/// The progress of a training run: steps, steps per second, time left, force error of the last display and its curve.
///
/// Ticks cost an atomic add; the bar redraws a few times a second at most.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    unit: &'static str,
    /// Asked at every display: a user may change it.
    width: fn() -> u16,
    history: Mutex<History>,
}

impl Progress {
    /// A bar on standard error where that is a terminal and `wanted` is true, else nothing.
    ///
    /// `start` is the step that a restart continues from; the rate counts from there.
    pub fn new(start: u64, total: u64, wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self::absent();
        }
        Self::on(ProgressDrawTarget::stderr_with_hz(5), terminal_width, start, total, "steps")
    }

    /// A bar that counts something else than steps, e.g. frames, where standard error is a terminal.
    pub fn counting(unit: &'static str, total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::absent();
        }
        Self::on(ProgressDrawTarget::stderr_with_hz(5), terminal_width, 0, total, unit)
    }

    fn absent() -> Self {
        Progress { bar: None, unit: "", width: terminal_width, history: Mutex::default() }
    }

    fn on(
        target: ProgressDrawTarget,
        width: fn() -> u16,
        start: u64,
        total: u64,
        unit: &'static str,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style(unit, width()));
        bar.set_position(start);
        bar.tick(); // makes the estimator count from `start`,
        bar.reset_eta(); // which it would take for a very fast first step
        *SHOWN.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(bar.clone());
        Progress { bar: Some(bar), unit, width, history: Mutex::default() }
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

    /// What to show at the right end.
    pub fn note(&self, note: &Note) {
        if let Some(bar) = &self.bar {
            let mut history = self.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            history.push(note.value);
            bar.set_style(style(self.unit, (self.width)()));
            bar.set_message(format!("{} {}", note.text, history.curve()));
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

/// A value over the whole run in few points: where there would be more, two become one.
#[derive(Debug, Default)]
struct History {
    points: Vec<f64>,
    /// Values in a point, and those of the last one so far.
    each: usize,
    last: Vec<f64>,
}

impl History {
    const POINTS: usize = 24;

    fn push(&mut self, value: f64) {
        // Errors span orders of magnitude.
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        self.each = self.each.max(1);
        self.last.push(value.ln());
        if self.last.len() < self.each {
            return;
        }
        self.points.push(self.last.iter().sum::<f64>() / self.last.len() as f64);
        self.last.clear();
        if self.points.len() > Self::POINTS {
            self.points =
                self.points.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
            self.each *= 2;
        }
    }

    /// `▇▅▃▂▁`
    fn curve(&self) -> String {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let (low, high) = self.points.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        let height = |x: &f64| match high > low {
            true => HEIGHTS[((x - low) / (high - low) * 7.0).round() as usize],
            false => HEIGHTS[3],
        };
        self.points.iter().map(height).collect()
    }
}

/// Values over a run, all above 0, as a small curve on a logarithmic scale.
pub fn curve_of(values: &[f64]) -> String {
    let mut history = History::default();
    values.iter().for_each(|&value| history.push(value));
    history.curve()
}

/// Runs `write` with the bar off the screen, then draws it again.
pub(super) fn suspended<T>(write: impl FnOnce() -> T) -> T {
    let shown = SHOWN.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Columns of the terminal behind standard error.
fn terminal_width() -> u16 {
    // SAFETY: the call fills the structure, or fails and leaves zeros.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &mut size);
        size
    };
    if size.ws_col == 0 { 80 } else { size.ws_col }
}

/// What a terminal of so many columns has room for: the note ends at its edge, and below 100 columns there is no bar.
fn style(unit: &'static str, width: u16) -> ProgressStyle {
    let template = match width {
        100.. => {
            format!("{{wide_bar:.cyan}} {{pos}}/{{len}} {unit}  {{per_sec}}  eta {{eta}}  {{msg:.green}}")
        }
        50.. => "{pos}/{len}  {per_sec}  eta {eta}  {wide_msg:.green}".to_owned(),
        _ => "{pos}/{len}  {wide_msg:.green}".to_owned(),
    };
    ProgressStyle::with_template(&template)
        .expect("the templates are constants and are valid")
        .progress_chars("━╸ ")
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
    use std::sync::Arc;

    /// A one-line terminal: remembers what is on the line now.
    #[derive(Debug, Clone)]
    struct Line {
        text: Arc<Mutex<String>>,
        width: u16,
    }

    impl Default for Line {
        fn default() -> Self {
            Line { text: Arc::default(), width: 120 }
        }
    }

    impl Line {
        fn text(&self) -> String {
            self.text.lock().unwrap().clone()
        }
    }

    impl TermLike for Line {
        fn width(&self) -> u16 {
            self.width
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
            self.text.lock().unwrap().push_str(s);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.text.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// There is one bar at a time: [`SHOWN`].
    static ONE_BAR: Mutex<()> = Mutex::new(());

    #[test]
    fn the_bar_shows_steps_and_note_and_steps_aside_for_a_line() {
        let _one = ONE_BAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let term = Line::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 200);
        let progress = Progress::on(target, || 120, 100, 1000, "steps");
        std::thread::sleep(std::time::Duration::from_millis(30));
        progress.step(251);
        std::thread::sleep(std::time::Duration::from_millis(30));
        for value in [0.4, 0.2, 0.1] {
            progress.note(&Note { text: "rmse_f = 1.23e-01".into(), value });
        }
        let seen = term.text();
        assert!(seen.contains("251/1000 steps"), "{seen}");
        assert!(seen.contains("rmse_f = 1.23e-01 █▅▁") && seen.contains("steps/s"), "{seen}");
        let during = suspended(|| term.text());
        assert!(!during.contains("1000"), "the bar was on the screen while a line was written: {during}");
        progress.finish();
        assert!(!term.text().contains("1000"));
    }

    #[test]
    fn a_line_fits_terminals_of_any_width() {
        let _one = ONE_BAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let widths: [fn() -> u16; 4] = [|| 24, || 60, || 100, || 200];
        for width in widths {
            let term = Line { width: width(), ..Line::default() };
            let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 200);
            let progress = Progress::on(target, width, 999_000, 1_000_000, "steps");
            std::thread::sleep(std::time::Duration::from_millis(30));
            progress.note(&Note { text: "rmse_f = 1.23e-01".into(), value: 0.1 });
            let seen = console_width(&term.text());
            assert!(
                seen <= usize::from(width()),
                "{seen} columns on a terminal of {}: {}",
                width(),
                term.text()
            );
        }
    }

    /// Columns of a text, without what sets its colours.
    fn console_width(text: &str) -> usize {
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\u{1b}') {
            plain += before;
            rest = after.split_once('m').map_or("", |(_, after)| after);
        }
        (plain + rest).trim_end().chars().count()
    }

    #[test]
    fn a_long_history_keeps_its_form() {
        let mut history = History::default();
        (0..10_000).for_each(|i| history.push(1.0 / f64::from(i + 1)));
        let curve = history.curve();
        assert!(curve.chars().count() <= History::POINTS, "{curve}");
        assert!(curve.starts_with('█') && curve.ends_with('▁'), "{curve}");
        history.push(f64::NAN);
        assert_eq!(history.curve(), curve);
    }

    #[test]
    fn a_bar_that_is_not_wanted_is_absent_and_takes_steps_all_the_same() {
        let progress = Progress::new(0, 10, false);
        progress.step(3);
        progress.note(&Note { text: "nothing".into(), value: 1.0 });
        assert!(!progress.is_shown());
    }
}
