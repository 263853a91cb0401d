//! TensorFlow's checkpoints: `model.ckpt-1000.index`, `model.ckpt-1000.data-00000-of-00001` and the file `checkpoint`, with PiNN's own
//! names, so that PiNN loads and continues what was trained here, and the other way round.

pub mod bundle; // named tensors in two files
mod names; // what PiNN calls the weights
mod table; // sorted keys and values in one file

use super::params::Params;
use super::train::state::{PinnRun, PinnState, UNKNOWN_DRAWS};
use crate::checkpoint::{Array, Checkpoint, Companion};
use crate::error::{IoContext, Result};
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::Wiring;
use crate::optim::keras_rate::Rate;
use crate::{bail, err};
use bundle::{Kind, Tensor, Tensors};
use std::path::{Path, PathBuf};

/// Where PiNN's optimiser keeps its numbers.
const ADAM: &str = "TRAIN_OP/Adam";
const STEP: &str = "global_step";
/// The moments of a parameter: in our checkpoints, and behind its name in PiNN's.
const MOMENTS: [(&str, &str); 2] = [("first_moment", "m"), ("second_moment", "v")];

/// Writes TensorFlow's files beside each checkpoint of a run.
#[derive(Debug)]
pub struct Twin {
    /// PiNN's name, the place in the flat vector and the shape of every parameter.
    variables: Vec<(String, std::ops::Range<usize>, Vec<usize>)>,
    /// The optimiser's own numbers.
    hyper: Vec<(&'static str, f64)>,
}

impl Twin {
    /// `None` for the wiring of the fork, whose networks the newer PiNN does not have.
    pub fn new(model: &PinetModel, params: &Params) -> Option<Self> {
        if params.style != Wiring::Master {
            return None;
        }
        let config = &params.written["optimizer"]["config"];
        let number = |key: &str, default: f64| config[key].as_f64().unwrap_or(default);
        let mut hyper =
            vec![("beta_1", number("beta_1", 0.9)), ("beta_2", number("beta_2", 0.999)), ("decay", 0.0)];
        if let Rate::Constant(rate) = params.rate {
            hyper.push(("learning_rate", rate));
        }
        Some(Twin { variables: variables(model), hyper })
    }

    fn tensors(&self, checkpoint: &Checkpoint) -> Result<Tensors> {
        let step = checkpoint.header["step"].as_u64().ok_or_else(|| err!("the header has no step"))?;
        let params = checkpoint.f64s("params")?;
        let float = |shape: &[usize], numbers: &[f64]| Tensor {
            shape: shape.to_vec(),
            numbers: numbers.to_vec(),
            kind: Kind::Float32,
        };
        let mut tensors = Tensors::new();
        for (name, range, shape) in &self.variables {
            tensors.insert(name.clone(), float(shape, &params[range.clone()]));
            for (ours, theirs) in MOMENTS {
                let moment = checkpoint.f64s(ours)?;
                tensors.insert(format!("{ADAM}/{name}/{theirs}"), float(shape, &moment[range.clone()]));
            }
        }
        for (name, value) in &self.hyper {
            tensors.insert(format!("{ADAM}/{name}"), float(&[], &[*value]));
        }
        tensors.insert(STEP.into(), Tensor { shape: vec![], numbers: vec![step as f64], kind: Kind::Int64 });
        Ok(tensors)
    }
}

impl Companion for Twin {
    fn write(&self, path: &Path, checkpoint: &Checkpoint) -> Result<()> {
        bundle::write(path, &self.tensors(checkpoint)?)
    }

    fn files(&self, path: &Path) -> Vec<PathBuf> {
        vec![bundle::index_of(path), bundle::data_of(path)]
    }

    fn pointer(&self, name: &str) -> String {
        format!("model_checkpoint_path: \"{name}\"\nall_model_checkpoint_paths: \"{name}\"\n")
    }
}

fn variables(model: &PinetModel) -> Vec<(String, std::ops::Range<usize>, Vec<usize>)> {
    let views = model.table.views().iter();
    names::names(model)
        .into_iter()
        .zip(views)
        .map(|(name, view)| (name, view.range(), view.shape.clone()))
        .collect()
}

/// TensorFlow's newest checkpoint in a folder, as the file `checkpoint` names it, and its step.
pub fn newest(folder: &Path) -> Result<Option<(PathBuf, u64)>> {
    let state = folder.join("checkpoint");
    let text = match std::fs::read_to_string(&state) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.io("read", &state)?,
    };
    let Some(name) = crate::checkpoint::named_by_tensorflow(&text) else { return Ok(None) };
    // A path in there may be of the machine that it was written on; the files lie beside it all the same.
    let file = Path::new(name).file_name().map(|name| folder.join(name)).unwrap_or_default();
    let step = name.rsplit_once('-').and_then(|(_, step)| step.parse().ok());
    Ok(step.filter(|_| bundle::index_of(&file).is_file()).map(|step| (file, step)))
}

/// Reads a checkpoint that PiNN has written; `prefix` is its name without `.index`. A run that goes on from it counts its draws anew.
pub fn read(prefix: &Path, model: &PinetModel, params: &Params) -> Result<PinnState> {
    if params.style != Wiring::Master {
        return Err(err!("{}: checkpoints of PiNN 0.3 and its fork are not read", prefix.display())
            .help("the newer style, `network: {name: PiNet, ...}`, is"));
    }
    let tensors = bundle::read(prefix)?;
    let read = || -> Result<PinnState> {
        let mut weights = vec![0.0; model.n_params()];
        let mut moments = MOMENTS.map(|_| vec![0.0; model.n_params()]);
        let mut slots = 0;
        for (name, range, shape) in variables(model) {
            copy(&mut weights[range.clone()], &tensors, &name, &shape)?;
            for (moment, (_, theirs)) in moments.iter_mut().zip(MOMENTS) {
                let slot = format!("{ADAM}/{name}/{theirs}");
                if tensors.contains_key(&slot) {
                    copy(&mut moment[range.clone()], &tensors, &slot, &shape)?;
                    slots += 1;
                }
            }
        }
        match slots {
            0 => log::warn!("{}: it holds no moments of Adam: they start at zero", prefix.display()),
            n if n < 2 * model.table.views().len() => bail!("it holds only {n} of the moments of Adam"),
            _ => {}
        }
        let step = tensors.get(STEP).and_then(|t| t.numbers.first().copied()).filter(|x| *x >= 0.0);
        let step = step.ok_or_else(|| err!("it holds no {STEP}"))? as u64;
        let optimizer = MOMENTS
            .into_iter()
            .zip(moments)
            .map(|((ours, _), x)| (ours.to_string(), Array::F64(x)))
            .collect();
        let engine = serde_json::Value::Null;
        Ok(PinnState {
            step,
            draws: UNKNOWN_DRAWS,
            draws_per_step: None,
            engine,
            params: weights,
            optimizer,
            about: PinnRun(params.written.clone()),
        })
    };
    read().map_err(|e| e.at(prefix.display()))
}

fn copy(out: &mut [f64], tensors: &Tensors, name: &str, shape: &[usize]) -> Result<()> {
    let help = "params.yml of this folder describes another network than the checkpoint holds";
    let Some(tensor) = tensors.get(name) else {
        return Err(err!("there is no {name} in it").help(help));
    };
    if tensor.shape != shape {
        return Err(err!("{name} has the shape {:?}, the network wants {shape:?}", tensor.shape).help(help));
    }
    if let Some(x) = tensor.numbers.iter().find(|x| !x.is_finite()) {
        bail!("{name} holds {x}");
    }
    out.copy_from_slice(&tensor.numbers);
    Ok(())
}
