//! The library's face: train a model from an input, as `dp train` does.

pub use crate::engine::choice::DeviceChoice;
pub use crate::report::log::MpiLog;
pub use crate::train::caller::{Display, Ended};
pub use crate::train::signals::StopHandle;
pub use crate::train::{InputSource, Start};

use crate::Result;
use crate::train::RunOptions;
use crate::train::caller::Caller;
use serde_json::Value;
use std::path::PathBuf;

/// A training run in this process: all that `dp train` does, ranks of a launcher and log lines on standard error included.
///
/// Signals are left alone. Who wants to end a run has a [`StopHandle`], or says so when it is shown a row.
///
/// ```no_run
/// use phalanx::Training;
/// use std::path::PathBuf;
///
/// let ended = Training::of_file(PathBuf::from("examples/water/input.json")).run(|shown| {
///     println!("{} {:?}", shown.step, shown.valid);
///     shown.step < 1000 // false ends the run, with a checkpoint
/// })?;
/// println!("{} steps, {:?}", ended.step, ended.checkpoint);
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// An input can be made here, too:
///
/// ```
/// use phalanx::{Potential, Training};
/// use serde_json::json;
///
/// let folder = tempfile::tempdir().unwrap();
/// let at = |name: &str| folder.path().join(name);
/// let input = json!({
///     "model": {
///         "type_map": ["O", "H"],
///         "descriptor": { "type": "se_e2_a", "sel": [20, 40], "rcut": 4.0, "neuron": [4, 8], "axis_neuron": 2 },
///         "fitting_net": { "neuron": [10, 10] }
///     },
///     "learning_rate": { "type": "exp", "start_lr": 0.001, "decay_steps": 10, "stop_lr": 1e-5 },
///     "loss": { "type": "ener" },
///     "training": {
///         "training_data": { "systems": ["examples/water/data_0"], "batch_size": 1 },
///         "numb_steps": 20, "disp_freq": 5, "save_freq": 10, "seed": 1,
///         "save_ckpt": at("model.ckpt"), "disp_file": at("lcurve.out")
///     }
/// });
/// let mut steps = Vec::new();
/// let run = Training::of_value(input).quietly().with_output(at("out.json"));
/// let ended = run.run(|shown| {
///     steps.push(shown.step);
///     shown.step < 10
/// })?;
/// assert_eq!((steps.as_slice(), ended.step, ended.stopped), ([1, 5, 10].as_slice(), 10, true));
///
/// let water = Potential::load(&ended.checkpoint.unwrap())?;
/// assert_eq!(water.type_map(), ["O", "H"]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Training {
    options: RunOptions,
    stop: StopHandle,
}

impl Training {
    /// From an input file, JSON or YAML.
    pub fn of_file(path: PathBuf) -> Self {
        Self::of(InputSource::File(path))
    }

    /// From an input as a value: what stands in an input file. Paths in it count from the folder where the program runs.
    pub fn of_value(value: Value) -> Self {
        Self::of(InputSource::Value(value))
    }

    fn of(input: InputSource) -> Self {
        let options = RunOptions {
            model_branch: String::new(),
            input,
            start: Start::Fresh,
            output: "out.json".into(),
            skip_neighbor_stat: false,
            use_pretrain_script: false,
            pytorch_conventions: false,
            device: DeviceChoice::Auto,
            profile: false,
            find_rate: false,
            dashboard: None,
            no_backup: false,
            zero_on_stop: false,
            resume: None,
            checkpoint_endings: &[],
            log_level: log::LevelFilter::Info,
            log_path: None,
            mpi_log: MpiLog::Master,
        };
        Training { options, stop: StopHandle::default() }
    }

    /// Starts from a checkpoint or a model file.
    pub fn from(mut self, start: Start) -> Self {
        self.options.start = start;
        self
    }

    /// Where the input goes with all defaults; `out.json` unless told.
    pub fn with_output(mut self, path: PathBuf) -> Self {
        self.options.output = path;
        self
    }

    /// Where to compute.
    pub fn on(mut self, device: DeviceChoice) -> Self {
        self.options.device = device;
        self
    }

    /// Logs errors only.
    pub fn quietly(mut self) -> Self {
        self.options.log_level = log::LevelFilter::Error;
        self
    }

    /// All the rest that the command line of `dp train` knows.
    #[doc(hidden)]
    pub fn options_mut(&mut self) -> &mut RunOptions {
        &mut self.options
    }

    /// Ends the run from elsewhere: it finishes its step and saves.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Trains. `on_display` sees every row of the learning curve, on rank 0; false ends the run, with a checkpoint.
    pub fn run(self, on_display: impl FnMut(&Display) -> bool) -> Result<Ended> {
        let caller = Caller { on_display: Box::new(on_display), stop: self.stop };
        crate::train::dp::run(&self.options, Some(caller))
    }
}
