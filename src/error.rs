//! The one error type: what was wrong, where, and what to do about it.

use std::fmt;

/// An error that a user can act on.
///
/// The message names the place (`input.json: model.descriptor.rcut: ...`), what was found and what was wanted.
/// The help says what to do. Only `main` turns it into an exit code.
#[derive(Debug, Clone)]
pub struct Error {
    message: String,
    help: Option<String>,
    told_elsewhere: bool,
    kind: ErrorKind,
    /// With what the process ends.
    status: u8,
}

/// What kind of thing went wrong, for code that decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorKind {
    /// The operating system would not do something with a file.
    Io(std::io::ErrorKind),
    /// An input or an argument that cannot be meant.
    Input,
    /// Training has led to a loss that is no number.
    Diverged,
    #[default]
    Other,
}

/// A path as it may be typed in a shell.
pub fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The result of everything that can fail because of the outside world.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with no advice yet.
    pub fn new(message: impl Into<String>) -> Self {
        Error {
            message: message.into(),
            help: None,
            told_elsewhere: false,
            kind: ErrorKind::Other,
            status: 1,
        }
    }

    /// The end of a run that a signal asked for. Nothing went wrong and all is said; only the status tells, as shells have it:
    /// 128 and the number of the signal.
    pub fn stopped_by(signal: u8) -> Self {
        Error {
            status: 128u8.saturating_add(signal),
            ..Error::new(format!("stopped by signal {signal}")).told_elsewhere()
        }
    }

    /// The status of a process that ends with this error.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Adds what the user can do about it.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Puts a place in front of the message: a file, a key, a rank.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Says what kind it is of.
    pub fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Marks an error that another rank tells the user about; this one only has to end.
    pub fn told_elsewhere(mut self) -> Self {
        self.told_elsewhere = true;
        self
    }

    /// True where another rank tells the user.
    pub fn is_told_elsewhere(&self) -> bool {
        self.told_elsewhere
    }

    /// The message without the advice.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The advice, if there is one.
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Builds an [`Error`] from a format string.
#[doc(hidden)]
#[macro_export]
macro_rules! err {
    ($($arg:tt)*) => { $crate::error::Error::new(format!($($arg)*)) };
}

/// Returns early with an [`Error`] built from a format string.
#[doc(hidden)]
#[macro_export]
macro_rules! bail {
    ($($arg:tt)*) => { return Err($crate::error::Error::new(format!($($arg)*))) };
}

/// Names the file in errors of the operating system.
pub trait IoContext<T> {
    /// `what` is a verb phrase: "read", "create".
    fn io(self, what: &str, path: &std::path::Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn io(self, what: &str, path: &std::path::Path) -> Result<T> {
        self.map_err(|e| {
            Error::new(format!("{}: cannot {what}: {e}", path.display())).of_kind(ErrorKind::Io(e.kind()))
        })
    }
}
