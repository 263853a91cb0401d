//! Where the time goes: spans of each phase of a step, a table at the end, a timeline.
//!
//! Off, a span costs one test of a flag. On, it costs two readings of the clock and a push into memory that was
//! allocated at the start.

use crate::error::{IoContext, Result};
use crate::{bail, err};
use serde::{Deserialize, Serialize};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What a rank was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    DataWait,
    Forward,
    Backward,
    Communication,
    Optimizer,
    Validation,
    Save,
}

impl Phase {
    /// All phases, in the order of the table.
    pub const ALL: [Phase; 7] = [
        Phase::DataWait,
        Phase::Forward,
        Phase::Backward,
        Phase::Communication,
        Phase::Optimizer,
        Phase::Validation,
        Phase::Save,
    ];

    /// Name in table and timeline.
    pub fn name(self) -> &'static str {
        match self {
            Phase::DataWait => "data wait",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Communication => "communication",
            Phase::Optimizer => "optimizer",
            Phase::Validation => "validation",
            Phase::Save => "save",
        }
    }
}

/// The threads of a rank, a row each in the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Lane {
    /// The loop itself.
    Step,
    /// Sums over ranks that overlap with the backward pass. Not part of the loop's time.
    Communication,
    /// The thread that writes checkpoints.
    Save,
}

impl Lane {
    const ALL: [Lane; 3] = [Lane::Step, Lane::Communication, Lane::Save];

    fn name(self) -> &'static str {
        match self {
            Lane::Step => "step",
            Lane::Communication => "communication",
            Lane::Save => "save",
        }
    }
}

/// Spans that the timeline keeps, the latest ones; the table counts all.
const CAPACITY: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    phase: Phase,
    lane: Lane,
    step: u64,
    /// Since the profiler was made.
    start_ns: u64,
    length_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Total {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

#[derive(Debug)]
struct Recorder {
    /// A ring: once full, `next` is the oldest.
    events: Vec<Event>,
    next: usize,
    /// Of the lane of the loop, by phase.
    totals: [Total; Phase::ALL.len()],
    step: u64,
}

/// Records the spans of one rank. Threads may share it.
#[derive(Debug)]
pub struct Profiler {
    recorder: Option<Mutex<Recorder>>,
    rank: usize,
    start: Instant,
    start_wall: SystemTime,
}

/// Ends its span when dropped.
#[must_use = "a span lasts as long as this value lives"]
#[derive(Debug)]
pub struct Span<'a> {
    open: Option<(&'a Profiler, Phase, Lane, Instant)>,
}

impl Profiler {
    /// Records nothing and costs nothing.
    pub fn off() -> Self {
        Profiler { recorder: None, rank: 0, start: Instant::now(), start_wall: UNIX_EPOCH }
    }

    /// Records the spans of this rank.
    pub fn on(rank: usize) -> Self {
        Self::with_capacity(rank, CAPACITY)
    }

    fn with_capacity(rank: usize, capacity: usize) -> Self {
        let recorder =
            Recorder { events: Vec::with_capacity(capacity), next: 0, totals: Default::default(), step: 0 };
        Profiler {
            recorder: Some(Mutex::new(recorder)),
            rank,
            start: Instant::now(),
            start_wall: SystemTime::now(),
        }
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Spans that end from now on belong to this step.
    pub fn set_step(&self, step: u64) {
        if let Some(mut recorder) = self.lock() {
            recorder.step = step;
        }
    }

    /// Opens a span of the loop: `let _span = profiler.span(Phase::Forward);`.
    #[inline]
    pub fn span(&self, phase: Phase) -> Span<'_> {
        self.span_on(Lane::Step, phase)
    }

    /// Opens a span of another thread.
    #[inline]
    pub fn span_on(&self, lane: Lane, phase: Phase) -> Span<'_> {
        Span { open: self.is_on().then(|| (self, phase, lane, Instant::now())) }
    }

    /// Times one call.
    #[inline]
    pub fn time<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let _span = self.span(phase);
        work()
    }

    /// How long each phase took the loop until now, and all of it together.
    pub fn times(&self) -> RankTimes {
        let totals = self.lock().map(|recorder| recorder.totals).unwrap_or_default();
        let phases = totals.iter().map(|total| total.sum_ns as f64 * 1e-9).collect();
        RankTimes { phases, total: self.start.elapsed().as_secs_f64() }
    }

    /// What was recorded until now, e.g. to be sent to rank 0.
    pub fn profile(&self) -> RankProfile {
        let start_wall_ns = self.start_wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let mut profile = RankProfile {
            rank: self.rank,
            start_wall_ns,
            elapsed_ns: self.start.elapsed().as_nanos() as u64,
            totals: Default::default(),
            events: Vec::new(),
        };
        if let Some(recorder) = self.lock() {
            profile.totals = recorder.totals;
            let (newer, older) = recorder.events.split_at(recorder.next);
            profile.events = [older, newer].concat();
        }
        profile
    }

    fn lock(&self) -> Option<std::sync::MutexGuard<'_, Recorder>> {
        self.recorder.as_ref().map(|r| r.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn record(&self, phase: Phase, lane: Lane, start: Instant, end: Instant) {
        let Some(mut recorder) = self.lock() else { return };
        let start_ns = start.duration_since(self.start).as_nanos() as u64;
        let length_ns = end.duration_since(start).as_nanos() as u64;
        if lane == Lane::Step {
            let total = &mut recorder.totals[phase as usize];
            total.count += 1;
            total.sum_ns += length_ns;
            total.max_ns = total.max_ns.max(length_ns);
        }
        let event = Event { phase, lane, step: recorder.step, start_ns, length_ns };
        recorder.push(event);
    }
}

impl Recorder {
    fn push(&mut self, event: Event) {
        if self.events.len() < self.events.capacity() {
            self.events.push(event);
        } else {
            let next = self.next;
            self.events[next] = event;
            self.next = (next + 1) % self.events.len();
        }
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((profiler, phase, lane, start)) = self.open.take() {
            profiler.record(phase, lane, start, Instant::now());
        }
    }
}

/// The time of one rank until now, in seconds: by phase, in the order of [`Phase::ALL`], and in all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankTimes {
    pub phases: Vec<f64>,
    pub total: f64,
}

/// The record of one rank, which travels to rank 0 as bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RankProfile {
    pub rank: usize,
    /// Puts the ranks on one time axis, as far as the clocks of their hosts agree.
    start_wall_ns: u64,
    elapsed_ns: u64,
    totals: [Total; Phase::ALL.len()],
    events: Vec<Event>,
}

impl RankProfile {
    /// Forgets all but the latest `n` spans; the table is not touched. Many ranks share rank 0's memory.
    pub fn keep_latest(&mut self, n: usize) {
        let excess = self.events.len().saturating_sub(n);
        self.events.drain(..excess);
    }

    /// Little-endian numbers of eight bytes: rank, start, elapsed, totals, events.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![self.rank as u64, self.start_wall_ns, self.elapsed_ns];
        words.extend(self.totals.iter().flat_map(|t| [t.count, t.sum_ns, t.max_ns]));
        for e in &self.events {
            words.extend([(e.phase as u64) << 8 | e.lane as u64, e.step, e.start_ns, e.length_ns]);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The inverse of [`RankProfile::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const HEAD: usize = 3 + 3 * Phase::ALL.len();
        let (chunks, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        if !rest.is_empty() || words.len() < HEAD || !(words.len() - HEAD).is_multiple_of(4) {
            bail!("profile of a rank: {} bytes do not hold whole spans", bytes.len());
        }
        let mut totals = [Total::default(); Phase::ALL.len()];
        for (total, word) in totals.iter_mut().zip(words[3..HEAD].chunks_exact(3)) {
            *total = Total { count: word[0], sum_ns: word[1], max_ns: word[2] };
        }
        let events = words[HEAD..].chunks_exact(4).map(event_of_words).collect::<Result<_>>()?;
        Ok(RankProfile {
            rank: words[0] as usize,
            start_wall_ns: words[1],
            elapsed_ns: words[2],
            totals,
            events,
        })
    }
}

fn event_of_words(words: &[u64]) -> Result<Event> {
    let phase = Phase::ALL.get((words[0] >> 8) as usize);
    let lane = Lane::ALL.get((words[0] & 0xff) as usize);
    match (phase, lane) {
        (Some(&phase), Some(&lane)) => {
            Ok(Event { phase, lane, step: words[1], start_ns: words[2], length_ns: words[3] })
        }
        _ => Err(err!("profile of a rank: {:#x} is not a phase of a step", words[0])),
    }
}

/// A row for each rank and a column for each phase: seconds, and the share of the rank's whole time.
pub fn table(ranks: &[RankProfile]) -> Vec<String> {
    let mut head = format!("{:>5} {:>10}", "rank", "total s");
    for phase in Phase::ALL {
        head += &format!(" {:>17}", phase.name());
    }
    head += &format!(" {:>17}", "other");
    let mut lines = vec!["Where the time went, in seconds and percent:".to_owned(), head];
    for rank in ranks {
        let total = rank.elapsed_ns.max(1);
        let cell =
            |ns: u64| format!(" {:>10.3} {:>5.1}%", ns as f64 * 1e-9, 100.0 * ns as f64 / total as f64);
        let mut line = format!("{:>5} {:>10.3}", rank.rank, total as f64 * 1e-9);
        for phase in Phase::ALL {
            line += &cell(rank.totals[phase as usize].sum_ns);
        }
        let spent: u64 = rank.totals.iter().map(|total| total.sum_ns).sum();
        lines.push(line + &cell(total.saturating_sub(spent)));
    }
    lines
}

/// A line for each phase of one rank: calls, mean and longest.
pub fn detail(rank: &RankProfile) -> Vec<String> {
    let mut lines = vec![format!(
        "rank {:<8} {:>9} {:>12} {:>12} {:>12}",
        rank.rank, "calls", "total s", "mean ms", "max ms"
    )];
    for phase in Phase::ALL {
        let total = rank.totals[phase as usize];
        if total.count > 0 {
            lines.push(format!(
                "{:<13} {:>9} {:>12.3} {:>12.4} {:>12.4}",
                phase.name(),
                total.count,
                total.sum_ns as f64 * 1e-9,
                total.sum_ns as f64 * 1e-6 / total.count as f64,
                total.max_ns as f64 * 1e-6
            ));
        }
    }
    lines
}

/// Writes the timeline of all ranks in the Chrome trace format, which Perfetto reads too.
///
/// A rank is a process, a lane is a thread; times are microseconds since the first rank began.
pub fn write_timeline(path: &Path, ranks: &[RankProfile]) -> Result<()> {
    let file = std::fs::File::create(path).io("create the timeline", path)?;
    let mut out = BufWriter::new(file);
    timeline(&mut out, ranks).and_then(|()| out.flush()).io("write the timeline", path)
}

fn timeline(out: &mut impl Write, ranks: &[RankProfile]) -> std::io::Result<()> {
    let first = ranks.iter().map(|rank| rank.start_wall_ns).min().unwrap_or(0);
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut separator = "\n";
    for rank in ranks {
        let pid = rank.rank;
        let name = |kind: &str, tid: usize, args: String| {
            format!("{{\"ph\":\"M\",\"name\":\"{kind}\",\"pid\":{pid},\"tid\":{tid},\"args\":{{{args}}}}}")
        };
        write!(out, "{separator}{}", name("process_name", 0, format!("\"name\":\"rank {pid}\"")))?;
        separator = ",\n";
        write!(out, "{separator}{}", name("process_sort_index", 0, format!("\"sort_index\":{pid}")))?;
        for lane in Lane::ALL.into_iter().filter(|lane| rank.events.iter().any(|e| e.lane == *lane)) {
            let args = format!("\"name\":\"{}\"", lane.name());
            write!(out, "{separator}{}", name("thread_name", lane as usize, args))?;
        }
        let offset = rank.start_wall_ns - first;
        for e in &rank.events {
            write!(
                out,
                "{separator}{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{pid},\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\
                 \"args\":{{\"step\":{}}}}}",
                e.phase.name(),
                e.lane as usize,
                (offset + e.start_ns) as f64 * 1e-3,
                e.length_ns as f64 * 1e-3,
                e.step
            )?;
        }
    }
    writeln!(out, "\n]}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn recorded(rank: usize) -> RankProfile {
        let profiler = Profiler::on(rank);
        for step in 1..=3 {
            profiler.set_step(step);
            profiler.time(Phase::Forward, || std::thread::sleep(Duration::from_millis(2)));
            let _wait = profiler.span(Phase::Communication);
            let _overlapped = profiler.span_on(Lane::Communication, Phase::Communication);
        }
        profiler.profile()
    }

    /// Not a test of correctness: prints what a span costs.
    #[test]
    #[ignore = "prints timings"]
    fn what_a_span_costs() {
        const N: u32 = 200_000;
        for (name, profiler) in [("off", Profiler::off()), ("on", Profiler::on(0))] {
            let start = Instant::now();
            for _ in 0..N {
                profiler.time(Phase::Forward, || std::hint::black_box(()));
            }
            println!("a span, profiler {name}: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(N));
        }
    }

    #[test]
    fn off_records_nothing() {
        let profiler = Profiler::off();
        assert_eq!(profiler.time(Phase::Save, || 7), 7);
        assert!(!profiler.is_on());
        assert_eq!(profiler.profile().events.len(), 0);
    }

    #[test]
    fn the_table_adds_up_the_spans_of_the_loop_only() {
        let profile = recorded(1);
        let forward = profile.totals[Phase::Forward as usize];
        assert_eq!(forward.count, 3);
        assert!(forward.sum_ns >= 6_000_000 && forward.max_ns < forward.sum_ns, "{forward:?}");
        assert_eq!(profile.totals[Phase::Communication as usize].count, 3, "the other lane is not the loop");
        assert_eq!(profile.events.len(), 9);
        let lines = table(&[recorded(0), profile.clone()]);
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("data wait") && lines[3].trim_start().starts_with("1 "), "{lines:#?}");
        assert!(lines.iter().skip(1).all(|line| line.len() == lines[1].len()), "{lines:#?}");
        assert_eq!(detail(&profile).len(), 3);
    }

    #[test]
    fn profiles_travel_as_bytes_and_damage_is_an_error() {
        let profile = recorded(2);
        let bytes = profile.to_bytes();
        assert_eq!(RankProfile::from_bytes(&bytes).unwrap(), profile);
        assert!(RankProfile::from_bytes(&bytes[..bytes.len() - 8]).is_err());
        assert!(RankProfile::from_bytes(&bytes[..5]).is_err());
        let mut wrong = bytes;
        let at = 8 * (3 + 3 * Phase::ALL.len());
        wrong[at] = 9;
        assert!(RankProfile::from_bytes(&wrong).unwrap_err().message().contains("not a phase"));
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_spans_and_keeps_their_order() {
        let profiler = Profiler::with_capacity(0, 4);
        let capacity = profiler.lock().unwrap().events.capacity() as u64;
        for step in 1..=capacity + 2 {
            profiler.set_step(step);
            profiler.time(Phase::Backward, || ());
        }
        let mut profile = profiler.profile();
        let steps: Vec<u64> = profile.events.iter().map(|e| e.step).collect();
        assert_eq!(steps, (3..=capacity + 2).collect::<Vec<_>>());
        profile.keep_latest(1);
        assert_eq!(profile.events[0].step, capacity + 2);
        assert_eq!(profile.totals[Phase::Backward as usize].count, capacity + 2);
    }

    #[test]
    fn the_timeline_is_json_with_the_ranks_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timeline.json");
        let mut late = recorded(1);
        let early = recorded(0);
        late.start_wall_ns = early.start_wall_ns + 5_000_000;
        write_timeline(&path, &[early.clone(), late]).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 * (2 + 2 + 9));
        let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert!(spans.iter().filter(|e| e["pid"] == 1).all(|e| e["ts"].as_f64().unwrap() >= 5000.0));
        assert_eq!(spans[0]["name"], "forward");
        assert_eq!(spans[0]["args"]["step"], 1);
        write_timeline(&path, &[]).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).is_ok());
    }
}
