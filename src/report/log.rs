//! The back end of the `log` crate: console and file, one write for each line, a mode for ranks.
//!
//! A line is handed to the system in one piece, so lines of different ranks never mix on a shared console or in
//! a shared file.

use super::{dashboard, progress};
use crate::error::{IoContext, Result};
use crate::{bail, err};
use jiff::Zoned;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::RwLock;

/// What `-m/--mpi-log` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MpiLog {
    /// Rank 0 speaks, the others are silent.
    #[default]
    Master,
    /// Every rank speaks on the console; all lines go to one file.
    Collect,
    /// Every rank speaks on the console and has a file of its own.
    Workers,
}

impl FromStr for MpiLog {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "master" => Ok(MpiLog::Master),
            "collect" => Ok(MpiLog::Collect),
            "workers" => Ok(MpiLog::Workers),
            other => {
                Err(err!("--mpi-log: {other:?} is not a mode of logging")
                    .help("use master, collect or workers"))
            }
        }
    }
}

/// Reads `-v/--log-level`: 0 to 3, or a name.
pub fn parse_level(text: &str) -> Result<LevelFilter> {
    match text.to_ascii_uppercase().as_str() {
        "0" | "ERROR" => Ok(LevelFilter::Error),
        "1" | "WARNING" => Ok(LevelFilter::Warn),
        "2" | "INFO" => Ok(LevelFilter::Info),
        "3" | "DEBUG" => Ok(LevelFilter::Debug),
        _ => Err(err!("--log-level: {text:?} is not a level")
            .help("use 0 or ERROR, 1 or WARNING, 2 or INFO, 3 or DEBUG")),
    }
}

/// How a process logs.
#[derive(Debug, Clone)]
pub struct LogOptions {
    pub level: LevelFilter,
    /// `-l/--log-path`; its folder is made if need be.
    pub path: Option<PathBuf>,
    pub mode: MpiLog,
    pub rank: usize,
    /// Number of ranks; a run of one has no ranks to tell apart and logs plainly in every mode.
    pub size: usize,
    /// Leave the file as it is until [`start_file`]: a run that is refused must not empty the log of another.
    pub waits: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            level: LevelFilter::Info,
            path: None,
            mode: MpiLog::Master,
            rank: 0,
            size: 1,
            waits: false,
        }
    }
}

/// Carries a line of this rank to rank 0, which hands it to [`write_collected`].
pub type Collector = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// The program's name in every line; `DEEPMD` unless another was set.
static PROGRAM: std::sync::OnceLock<&'static str> = std::sync::OnceLock::new();

/// Names the program in log lines. The first name holds.
pub fn set_program(name: &'static str) {
    let _ = PROGRAM.set(name);
}

/// Installs the back end. A second call replaces the settings of the first: a process logs before it knows its rank.
pub fn init(options: &LogOptions) -> Result<()> {
    let sink = Sink::open(options)?;
    let mut state = LOGGER.write();
    *state = Some(sink);
    drop(state);
    // The error says only that a logger is installed already. It is ours, from an earlier call.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(options.level);
    Ok(())
}

/// With `collect`: says that rank 0 has opened the shared file, e.g. after the first barrier.
///
/// Until then a rank keeps its lines for the file, lest rank 0 starts the file afresh after they were written.
pub fn ranks_connected() {
    if let Some(sink) = LOGGER.write().as_mut() {
        sink.release();
    }
}

/// With `collect` over several hosts: sends this rank's lines for the file through `collector`.
pub fn set_collector(collector: Collector) {
    if let Some(sink) = LOGGER.write().as_mut() {
        sink.collector = Some(collector);
        sink.release();
    }
}

/// With `waits`: this run may write its files. Starts the log file afresh, with the lines that waited for it.
pub fn start_file() {
    if let Some(sink) = LOGGER.write().as_mut() {
        sink.start_file();
    }
}

/// With `waits`: this run may not write its files. A log file with something in it stays as it is.
pub fn forget_file() {
    if let Some(sink) = LOGGER.write().as_mut() {
        sink.forget_file();
    }
}

/// Tells the user why the run ends: `error: ...`, after everything that was logged, and in the log file too.
pub fn tell_error(error: &crate::error::Error) {
    log::logger().flush();
    let text = printable(&error.to_string());
    // Nobody is left to tell when the console is gone.
    let _ = std::io::stderr().lock().write_all(format!("error: {text}\n").as_bytes());
    if let Some(sink) = LOGGER.read().as_ref().filter(|sink| sink.file.is_some()) {
        let args = format_args!("{error}");
        let record = Record::builder().level(Level::Error).target("phalanx").args(args).build();
        sink.to_file(file_line(&Zoned::now(), sink.file_rank, &record).as_bytes());
    }
}

/// Writes a whole line of another rank, newline included, to this rank's file.
pub fn write_collected(line: &[u8]) {
    if let Some(sink) = LOGGER.read().as_ref() {
        sink.to_file(line);
    }
}

static LOGGER: Logger = Logger { sink: RwLock::new(None) };

struct Logger {
    sink: RwLock<Option<Sink>>,
}

impl Logger {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Option<Sink>> {
        self.sink.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Option<Sink>> {
        self.sink.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        is_wanted(metadata)
    }

    fn log(&self, record: &Record) {
        if is_wanted(record.metadata())
            && let Some(sink) = self.read().as_ref()
        {
            sink.log(&Zoned::now(), record);
        }
    }

    fn flush(&self) {
        if let Some(sink) = self.write().as_mut() {
            sink.release();
        }
    }
}

/// Our own lines at the chosen level; libraries only when something is wrong.
fn is_wanted(metadata: &Metadata) -> bool {
    let ours = matches!(metadata.target().split("::").next(), Some("phalanx" | "dp"));
    let limit = if ours { log::max_level() } else { log::max_level().min(LevelFilter::Warn) };
    metadata.level() <= limit
}

/// Where the lines of this process go.
struct Sink {
    /// This rank speaks at all.
    speaks: bool,
    /// The rank to name on the console, where there are several.
    console_rank: Option<usize>,
    /// The rank to name in the file, where several share it.
    file_rank: Option<usize>,
    file: Option<File>,
    /// Lines for the file that wait: for rank 0 to start a shared one, or until the file is ours.
    held: Option<std::sync::Mutex<Vec<Vec<u8>>>>,
    /// Whether the file is yet to be emptied.
    starts_afresh: bool,
    collector: Option<Collector>,
}

impl Sink {
    fn open(options: &LogOptions) -> Result<Self> {
        let ranks = options.size > 1;
        let mode = if ranks { options.mode } else { MpiLog::Master };
        let rank = options.rank;
        let speaks = !(ranks && mode == MpiLog::Master && rank != 0);
        let shares = mode == MpiLog::Collect;
        let follows = shares && rank != 0;
        let waits = options.waits && !follows;
        let file = match &options.path {
            Some(path) if speaks => Some(open_file(&file_path(path, mode, rank), !follows && !waits)?),
            _ => None,
        };
        Ok(Sink {
            speaks,
            console_rank: (mode != MpiLog::Master).then_some(rank),
            file_rank: shares.then_some(rank),
            held: ((follows || waits) && file.is_some()).then(Default::default),
            starts_afresh: waits && file.is_some(),
            file,
            collector: None,
        })
    }

    fn log(&self, now: &Zoned, record: &Record) {
        if !self.speaks {
            return;
        }
        let line = console_line(now, self.console_rank, record);
        // Nobody is left to tell when the console is gone; the run goes on.
        progress::suspended(|| {
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        });
        dashboard::line(line.trim_end());
        if self.file.is_some() {
            self.to_file(file_line(now, self.file_rank, record).as_bytes());
        }
    }

    /// One write: with O_APPEND the system puts it at the end as one piece, also among processes.
    fn to_file(&self, line: &[u8]) {
        if let Some(held) = &self.held {
            held.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(line.to_vec());
            return;
        }
        if let Some(collector) = &self.collector
            && collector(line).is_ok()
        {
            return;
        }
        if let Some(file) = &self.file {
            // A full disk must not end a training run for the sake of its log.
            let _ = (&mut &*file).write_all(line);
        }
    }

    fn start_file(&mut self) {
        if !std::mem::take(&mut self.starts_afresh) {
            return;
        }
        if let Some(file) = self.file.as_ref().filter(|file| file.metadata().is_ok_and(|m| m.is_file())) {
            let _ = file.set_len(0); // what cannot be emptied is added to
        }
        self.release();
    }

    fn forget_file(&mut self) {
        let has_content = |file: &File| file.metadata().is_ok_and(|m| m.is_file() && m.len() > 0);
        if self.starts_afresh && self.file.as_ref().is_some_and(has_content) {
            (self.file, self.held) = (None, None);
        }
    }

    fn release(&mut self) {
        let Some(held) = self.held.take() else { return };
        for line in held.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            self.to_file(&line);
        }
    }
}

fn open_file(path: &Path, afresh: bool) -> Result<File> {
    if path.file_name().is_none() {
        bail!("--log-path: {} is not the name of a file", path.display());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).io("create the folder of the log", folder)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path).io("open the log", path)?;
    // Devices such as /dev/null cannot be cut, and need not be.
    if afresh && file.metadata().io("inspect the log", path)?.is_file() {
        file.set_len(0).io("empty the log", path)?;
    }
    Ok(file)
}

/// With `workers` `train.log` becomes `train_3.log` and `trainlog` becomes `trainlog.3`.
pub fn file_path(path: &Path, mode: MpiLog, rank: usize) -> PathBuf {
    if mode != MpiLog::Workers {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    match path.extension() {
        Some(extension) => {
            name.push(format!("_{rank}."));
            name.push(extension);
        }
        None => name.push(format!(".{rank}")),
    }
    path.with_file_name(name)
}

/// `[2026-01-31 12:00:00,123] DEEPMD rank:3  INFO    message`, the rank only where there are several.
fn console_line(now: &Zoned, rank: Option<usize>, record: &Record) -> String {
    format!("{} {}\n", line_head(now, rank, record.level()), printable(&record.args().to_string()))
}

/// As on the console, with the module that speaks in front of the message.
fn file_line(now: &Zoned, rank: Option<usize>, record: &Record) -> String {
    let module = record.target().replace("::", ".");
    let text = printable(&record.args().to_string());
    format!("{} {module:<45} {text}\n", line_head(now, rank, record.level()))
}

/// Text as it may stand on a terminal and in a log: names of files and keys come from outside, and could move the cursor or
/// forge a line. Control characters become `\\x1b`, and lines after the first are indented.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\t' => out.push(c),
            '\n' => {
                out.push(c);
                if rest.peek().is_some_and(|next| *next != ' ') {
                    out.push_str("  ");
                }
            }
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

fn line_head(now: &Zoned, rank: Option<usize>, level: Level) -> String {
    let level = match level {
        Level::Error => "ERROR",
        Level::Warn => "WARNING",
        Level::Info => "INFO",
        Level::Debug | Level::Trace => "DEBUG",
    };
    let time = now.strftime("%Y-%m-%d %H:%M:%S");
    let milliseconds = now.millisecond();
    let program = PROGRAM.get().unwrap_or(&"DEEPMD");
    match rank {
        None => format!("[{time},{milliseconds:03}] {program} {level:<7}"),
        Some(rank) => format!("[{time},{milliseconds:03}] {program} rank:{rank:<2} {level:<7}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> Zoned {
        "2026-01-31T12:00:00.007+00:00[UTC]".parse().unwrap()
    }

    fn say(sink: &Sink, text: &str) {
        let target = "phalanx::train::run";
        sink.log(
            &noon(),
            &Record::builder().level(Level::Info).target(target).args(format_args!("{text}")).build(),
        );
    }

    fn options(path: &Path, mode: MpiLog, rank: usize) -> LogOptions {
        LogOptions { path: Some(path.to_owned()), mode, rank, size: 4, ..Default::default() }
    }

    #[test]
    fn lines_have_the_form_that_scripts_read() {
        let args = format_args!("Start to train");
        let record = Record::builder().level(Level::Warn).target("phalanx::train").args(args).build();
        assert_eq!(
            console_line(&noon(), None, &record),
            "[2026-01-31 12:00:00,007] DEEPMD WARNING Start to train\n"
        );
        assert_eq!(
            console_line(&noon(), Some(3), &record),
            "[2026-01-31 12:00:00,007] DEEPMD rank:3  WARNING Start to train\n"
        );
        assert_eq!(
            file_line(&noon(), Some(12), &record),
            format!(
                "[2026-01-31 12:00:00,007] DEEPMD rank:12 WARNING phalanx.train{}Start to train\n",
                " ".repeat(33)
            )
        );
    }

    #[test]
    fn what_comes_from_outside_cannot_forge_lines_or_move_the_cursor() {
        let name =
            "data\x1b[2J\r\u{9b}1m\n[2026-01-31 12:00:00,007] DEEPMD INFO    all is well\tx\n  help: y";
        assert_eq!(
            printable(name),
            "data\\x1b[2J\\x0d\\x9b1m\n  [2026-01-31 12:00:00,007] DEEPMD INFO    all is well\tx\n  help: y"
        );
    }

    #[test]
    fn a_file_that_waits_is_emptied_when_it_is_ours_and_kept_when_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.log");
        let waiting = || {
            let options = LogOptions { path: Some(path.clone()), waits: true, ..Default::default() };
            Sink::open(&options).unwrap()
        };
        let text = || std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "of another run\n").unwrap();
        let mut refused = waiting();
        say(&refused, "unheard");
        refused.forget_file();
        refused.release();
        assert_eq!(text(), "of another run\n");
        let mut failed = waiting();
        say(&failed, "failed early");
        failed.release();
        assert!(text().starts_with("of another run\n") && text().ends_with(" failed early\n"), "{}", text());
        let mut ours = waiting();
        say(&ours, "early");
        ours.start_file();
        say(&ours, "late");
        assert!(text().lines().count() == 2 && text().ends_with(" late\n"), "{}", text());
    }

    #[test]
    fn levels_are_numbers_or_names() {
        assert_eq!(parse_level("0").unwrap(), LevelFilter::Error);
        assert_eq!(parse_level("WARNING").unwrap(), LevelFilter::Warn);
        assert_eq!(parse_level("info").unwrap(), LevelFilter::Info);
        assert_eq!(parse_level("3").unwrap(), LevelFilter::Debug);
        assert!(parse_level("4").unwrap_err().to_string().contains("help:"));
        assert!("all".parse::<MpiLog>().is_err());
    }

    #[test]
    fn workers_have_files_of_their_own() {
        let name = |path: &str, rank| file_path(Path::new(path), MpiLog::Workers, rank);
        assert_eq!(name("train.log", 0), Path::new("train_0.log"));
        assert_eq!(name("logs/trainlog", 12), Path::new("logs/trainlog.12"));
        assert_eq!(name("a.b/run.7.log", 1), Path::new("a.b/run.7_1.log"));
        assert_eq!(file_path(Path::new("x.log"), MpiLog::Collect, 3), Path::new("x.log"));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/train.log");
        for rank in [0, 2] {
            say(&Sink::open(&options(&path, MpiLog::Workers, rank)).unwrap(), "mine");
        }
        let text = std::fs::read_to_string(folder.path().join("deep/train_2.log")).unwrap();
        assert!(text.ends_with(" mine\n") && !text.contains("rank:"), "{text}");
        assert!(folder.path().join("deep/train_0.log").exists() && !path.exists());
    }

    #[test]
    fn master_is_the_only_one_to_speak() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.log");
        std::fs::write(&path, "an older run\n").unwrap();
        let other = Sink::open(&options(&path, MpiLog::Master, 1)).unwrap();
        say(&other, "unheard");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older run\n");
        say(&Sink::open(&options(&path, MpiLog::Master, 0)).unwrap(), "heard");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with(" heard\n") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn collect_brings_whole_lines_of_all_ranks_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.log");
        let mut sinks: Vec<Sink> =
            (0..4).map(|rank| Sink::open(&options(&path, MpiLog::Collect, 3 - rank)).unwrap()).collect();
        say(&sinks[0], "early");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "rank 3 waits until rank 0 is there");
        sinks.iter_mut().for_each(Sink::release);
        std::thread::scope(|scope| {
            for sink in &sinks {
                scope.spawn(move || {
                    for i in 0..200 {
                        sink.to_file(format!("{}{i}\n", "x".repeat(300)).as_bytes());
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("[2026-01-31 12:00:00,007] DEEPMD rank:3  INFO    phalanx.train.run "),
            "{text:.100}"
        );
        assert_eq!(text.lines().count(), 801);
        assert!(text.lines().skip(1).all(|line| line.rfind('x') == Some(299) && line.len() <= 303));
    }

    #[test]
    fn a_collector_takes_the_lines_to_rank_0() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.log");
        let mut sink = Sink::open(&options(&path, MpiLog::Collect, 2)).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        sink.collector =
            Some(Box::new(move |line| send.lock().unwrap().send(line.to_vec()).map_err(|e| err!("{e}"))));
        sink.release();
        say(&sink, "over the wire");
        assert!(receive.recv().unwrap().ends_with(b"over the wire\n"));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        drop(receive);
        say(&sink, "the wire is cut");
        assert!(std::fs::read(&path).unwrap().ends_with(b"the wire is cut\n"));
    }
}
