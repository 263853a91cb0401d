//! A training run. Rust trains on a thread of its own; the thread of Python that asked for it shows rows to the callback and looks
//! for Ctrl-C meanwhile, and holds Python back for nothing else.

use crate::errors::{bad_argument, exception, panic_exception};
use phalanx::Training;
use phalanx::config::value::parse;
use phalanx::report::log::parse_level;
use phalanx::train::RunOptions;
use phalanx::training::{Display, Ended, Start, StopHandle};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often a run is left alone to look for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// As much as a program's main thread has; other threads of Rust have 2 MB.
const STACK_BYTES: usize = 8 << 20;

/// What the training thread says.
enum Message {
    Shown(Display),
    Ended(std::thread::Result<phalanx::Result<Ended>>),
}

/// What `python/phalanx/training.py` hands over: the input and whether it is JSON or a path, the callback, and the rest by the names
/// of the flags.
type Arguments<'py> = (String, bool, Option<Bound<'py, PyAny>>, Bound<'py, PyDict>);

/// Trains as `dp train` does. Returns the steps done, whether the run was stopped, and the last checkpoint.
pub fn train(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (input, is_json, callback, flags): Arguments<'_> = args.extract()?;
    let mut training = match is_json {
        true => Training::of_value(parse(&input, "json").map_err(|e| bad_argument(e.at("the input")))?),
        false => Training::of_file(input.into()),
    };
    set_flags(training.options_mut(), &flags)?;
    let _alone = Alone::in_this_process()?;
    let ended = attend(py, training, callback)?;
    Ok((ended.step, ended.stopped, ended.checkpoint).into_pyobject(py)?.into_any().unbind())
}

/// The flags of `dp train`. All of them are there: defaults are Python's.
fn set_flags(options: &mut RunOptions, flags: &Bound<'_, PyDict>) -> PyResult<()> {
    let flag = |name: &str| {
        flags.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("{name}: this flag is missing")))
    };
    let start: Option<(String, PathBuf)> = flag("start")?.extract()?;
    options.start = match start.as_ref().map(|(kind, path)| (kind.as_str(), path.clone())) {
        None => Start::Fresh,
        Some(("restart", path)) => Start::Restart(path),
        Some(("finetune", path)) => Start::Finetune(path),
        Some(("init_model" | "init_frz_model", path)) => Start::Model(path),
        Some((other, _)) => return Err(PyValueError::new_err(format!("{other}: no way to start"))),
    };
    options.output = flag("output")?.extract()?;
    options.skip_neighbor_stat = flag("skip_neighbor_stat")?.extract()?;
    options.use_pretrain_script = flag("use_pretrain_script")?.extract()?;
    options.pytorch_conventions = flag("pytorch_conventions")?.extract()?;
    let device: String = flag("device")?.extract()?;
    options.device =
        device.parse().map_err(|e: phalanx::Error| bad_argument(e.at(format_args!("device: {device:?}"))))?;
    options.log_level = parse_level(&flag("log_level")?.extract::<String>()?).map_err(bad_argument)?;
    options.log_path = flag("log_path")?.extract()?;
    options.mpi_log = flag("mpi_log")?.extract::<String>()?.parse().map_err(bad_argument)?;
    Ok(())
}

/// Starts the run and stays with it to the end. What the callback raises, and Ctrl-C, ends the run first, with a checkpoint.
fn attend(py: Python<'_>, training: Training, callback: Option<Bound<'_, PyAny>>) -> PyResult<Ended> {
    let stop = training.stop_handle();
    let (say, mut hear) = channel();
    let (answer, answers) = channel();
    let thread = std::thread::Builder::new()
        .name("train".into())
        .stack_size(STACK_BYTES)
        .spawn(move || run(training, &say, &answers))?;
    let mut raised = None;
    let ended = loop {
        match next(py, &mut hear) {
            Ok(Message::Ended(ended)) => break ended,
            Ok(Message::Shown(row)) => {
                let goes_on = raised.is_none() && goes_on(py, callback.as_ref(), &row, &mut raised);
                let _ = answer.send(goes_on); // nobody hears it who has ended in between
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Box::new("the thread ended without a word") as Box<dyn Any + Send>);
            }
        }
        look_for_signals(py, &stop, &mut raised);
    };
    let _ = py.detach(|| thread.join()); // a panic there was told by `ended`
    match (raised, ended) {
        (Some(raised), _) => Err(raised),
        (None, Err(panic)) => Err(panic_exception(&*panic)),
        (None, Ok(ended)) => ended.map_err(exception),
    }
}

/// What the training thread does.
fn run(training: Training, say: &Sender<Message>, answers: &Receiver<bool>) {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        training.run(|row| say.send(Message::Shown(row.clone())).is_ok() && answers.recv().unwrap_or(false))
    }));
    let _ = say.send(Message::Ended(ended));
}

/// Waits a little for a message, while Python runs on.
fn next(py: Python<'_>, hear: &mut Receiver<Message>) -> Result<Message, RecvTimeoutError> {
    py.detach(move || hear.recv_timeout(LOOK_EVERY))
}

/// Shows a row to the callback: it goes on unless that returns False or raises.
fn goes_on(
    py: Python<'_>,
    callback: Option<&Bound<'_, PyAny>>,
    row: &Display,
    raised: &mut Option<PyErr>,
) -> bool {
    let Some(callback) = callback else { return true };
    match as_dict(py, row).and_then(|row| callback.call1((row,))) {
        // Python's False or NumPy's; whatever else a callback happens to return means nothing.
        Ok(answer) => answer.extract::<bool>().unwrap_or(true),
        Err(e) => {
            *raised = Some(e);
            false
        }
    }
}

/// A row as Python sees it: step, lr, and errors by the names in `lcurve.out`.
fn as_dict<'py>(py: Python<'py>, row: &Display) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("step", row.step)?;
    for (k, (name, value)) in row.train.iter().enumerate() {
        if let Some((_, valid)) = row.valid.get(k) {
            dict.set_item(format!("{name}_val"), valid)?;
        }
        dict.set_item(format!("{name}_trn"), value)?;
    }
    dict.set_item("lr", row.lr)?;
    Ok(dict)
}

/// Lets Python handle Ctrl-C and other signals; what a handler raises ends the run.
fn look_for_signals(py: Python<'_>, stop: &StopHandle, raised: &mut Option<PyErr>) {
    if let Err(e) = py.check_signals() {
        raised.get_or_insert(e);
        stop.stop();
    }
}

/// One run at a time: the log and the ranks are those of the process.
struct Alone;

static UNDER_WAY: AtomicBool = AtomicBool::new(false);
/// The process that trained first, 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// This process has met the other ranks of its job. MPI cannot be started twice.
static HAS_MET: AtomicBool = AtomicBool::new(false);

impl Alone {
    fn in_this_process() -> PyResult<Alone> {
        let me = std::process::id();
        let first = PROCESS.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_err_and(|first| first != me) {
            return Err(PyRuntimeError::new_err(
                "this process was forked from one that has trained, and has none of its threads\n  \
                 help: use multiprocessing's \"spawn\", or train in the child only",
            ));
        }
        if UNDER_WAY.swap(true, Ordering::SeqCst) {
            return Err(PyRuntimeError::new_err("another training run is under way in this process"));
        }
        let alone = Alone;
        let ranks = phalanx::launch::Launch::of_this_process().map_or(1, |launch| launch.size);
        if ranks > 1 && HAS_MET.swap(true, Ordering::SeqCst) {
            return Err(PyRuntimeError::new_err(
                "the ranks of a launcher train together once in a process\n  help: start a job for each run",
            ));
        }
        Ok(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        UNDER_WAY.store(false, Ordering::SeqCst);
    }
}
