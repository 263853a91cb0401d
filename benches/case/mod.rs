//! A training step of a network on water, timed: shared by the benchmarks.

// Each benchmark uses a part of it.
#![allow(dead_code)]

use phalanx::data::{Frame, System, Wants};
use phalanx::engine::cpu::chebyshev::Plan;
use phalanx::engine::cpu::dense::{Accumulate, Strided, product};
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::{Engine, Piece, Prediction, Seeds, Take};
use phalanx::launch::threads::{Threads, available_cores};
use phalanx::loss::LossChoice;
use phalanx::loss::options::EnerLossOptions;
use phalanx::model::dp::Dp;
use phalanx::model::dp::geometry::Geometry;
use phalanx::model::dp::options::{ModelOptions, Sel};
use phalanx::model::dp::statistics::Sums;
use phalanx::neighbor::NeighborList;
use phalanx::neighbor::stat::NeighborStat;
use phalanx::optim::{Adam, AdamOptions};
use phalanx::train::input::Input;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A network and the frames that it learns.
pub struct Case {
    pub model: Arc<Dp>,
    pub frames: Vec<Frame>,
    pub threads: usize,
    input: Input,
    min_distance: f64,
}

/// What a case differs in from the stock water network on the bundled data.
#[derive(Clone)]
pub struct Variant {
    pub rcut: f64,
    pub sel: Vec<usize>,
    pub embedding: Vec<usize>,
    pub fitting: Vec<usize>,
    /// Copies of the box along each direction.
    pub copies: [usize; 3],
    /// Frames that are read of each system, at most.
    pub frames: usize,
    pub threads: usize,
}

/// How the embedding nets are, and how they are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nets {
    /// As `dp train` draws them.
    Fresh,
    /// Those of the stock network after 40,000 steps of 1,000,000 on the water set of DeePMD-kit's examples: steeper.
    Trained,
    /// Evaluated themselves for every pair.
    Direct,
}

/// What one case took.
pub struct Timing {
    /// Seconds of a step: the median, and the best.
    pub median: f64,
    pub best: f64,
    pub plan: Option<Plan>,
    /// Shares of the stages, in words.
    pub stages: String,
}

impl Variant {
    /// The stock water network, on all cores or as OMP_NUM_THREADS says.
    pub fn stock() -> Self {
        let threads =
            Threads::new(&|name| std::env::var(name).ok(), available_cores(), 1).expect("threads").compute;
        Variant {
            rcut: 6.0,
            sel: vec![46, 92],
            embedding: vec![25, 50, 100],
            fitting: vec![240, 240, 240],
            copies: [1, 1, 1],
            frames: 16,
            threads,
        }
    }

    fn apply(&self, model: &mut ModelOptions) {
        let se = &mut model.descriptors.list[0];
        (se.rcut, se.sel, se.neuron) = (self.rcut, Sel::Fixed(self.sel.clone()), self.embedding.clone());
        model.fitting.neuron = self.fitting.clone();
        let trainable = model.fitting.trainable[0];
        model.fitting.trainable = vec![trainable; self.fitting.len() + 1];
    }
}

/// GFLOP/s of a product that stays in cache, on all threads at once.
pub fn peak<T: Real>(threads: usize) -> f64 {
    let (m, n, k) = (64, 48, 512);
    let run = || {
        let a = vec![T::from_f64(0.5); m * k];
        let b = vec![T::from_f64(0.25); k * n];
        let mut c = vec![T::ZERO; m * n];
        let mut best = f64::MAX;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            let t = Instant::now();
            for _ in 0..20 {
                product(
                    &mut c,
                    n,
                    Accumulate::Overwrite,
                    Strided { data: &a, row: k, col: 1 },
                    &b,
                    n,
                    m,
                    n,
                    k,
                );
            }
            best = best.min(t.elapsed().as_secs_f64() / 20.0);
        }
        2.0 * (m * n * k) as f64 / best * 1e-9
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles.into_iter().map(|h| h.join().unwrap_or(0.0)).sum()
    })
}

/// The same box repeated along its vectors, with the energy and the forces that it has then.
fn repeat(frame: &Frame, copies: [usize; 3]) -> Frame {
    let Some(cell) = frame.cell else { return frame.clone() };
    let images = (0..copies[0] * copies[1] * copies[2])
        .map(|m| [m / (copies[1] * copies[2]), m / copies[2] % copies[1], m % copies[2]]);
    let n = images.clone().count();
    let mut out = frame.clone();
    out.types = frame.types.repeat(n).into();
    out.coord.clear();
    for image in images {
        for x in frame.coord.chunks_exact(3) {
            out.coord.extend(
                (0..3).map(|k| x[k] + (0..3).map(|v| image[v] as f64 * cell[3 * v + k]).sum::<f64>()),
            );
        }
    }
    out.cell = Some(std::array::from_fn(|k| cell[k] * copies[k / 3] as f64));
    out.labels.energy = frame.labels.energy.map(|e| e * n as f64);
    out.labels.force = frame.labels.force.as_ref().map(|f| f.repeat(n));
    out
}

impl Case {
    /// A variant on these systems, or on the bundled water data.
    pub fn open(variant: &Variant, systems: &[String]) -> Case {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut input, _) =
            Input::read(&here.join("examples/water/input.json")).expect("the bundled input is good");
        variant.apply(&mut input.model);
        let default = vec![here.join("examples/water/data_0").to_string_lossy().into_owned()];
        let paths = if systems.is_empty() { &default } else { systems };
        let mut loss = input.loss.options::<EnerLossOptions>().expect("the loss of energies").clone();
        loss.virial.start = 0.0;
        input.loss = LossChoice::new(loss);
        let wants = Wants { energy: true, force: true, ..Wants::default() };
        let mut frames = Vec::new();
        for path in paths {
            let system = System::open(path, &input.model.type_map, &wants).expect("the system opens");
            let read = |k| repeat(&system.read_frame(k).expect("the frame reads"), variant.copies);
            frames.extend((0..system.n_frames.min(variant.frames)).map(read));
        }
        let sums = frames.iter().map(|f| Sums::of(&input.model, f).expect("statistics")).reduce(Sums::merge);
        let stats = sums.expect("there are frames").finish(&input.model).expect("statistics");
        let min_distance = frames
            .iter()
            .map(|f| {
                NeighborStat::of(f, variant.rcut, input.model.type_map.len())
                    .expect("neighbours")
                    .min_distance
            })
            .fold(f64::INFINITY, f64::min);
        let model = Arc::new(Dp::new(input.model.clone(), stats));
        Case { model, frames, input, min_distance, threads: variant.threads }
    }

    /// Neighbours of an atom within the cutoff, on average.
    pub fn neighbors(&self) -> f64 {
        let (frame, rcut) = (&self.frames[0], self.model.descriptor().rcut);
        let list = NeighborList::new(frame, rcut, self.model.n_types(), None).expect("neighbours");
        list.n_pairs() as f64 / frame.n_atoms() as f64
    }

    /// Seconds to prepare a frame on one thread: neighbour list, slots, sorted columns. Medians.
    pub fn prepare(&self) -> [f64; 3] {
        let model = &self.model;
        let median = |work: &mut dyn FnMut(&Frame) -> f64| {
            let mut times = Vec::new();
            let began = Instant::now();
            while times.len() < 5 || began.elapsed() < Duration::from_millis(300) {
                times.push(work(&self.frames[times.len() % self.frames.len()]));
            }
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let list = median(&mut |frame| {
            let began = Instant::now();
            let list = NeighborList::new(frame, model.descriptor().rcut, model.n_types(), Some(model.sel()));
            let seconds = began.elapsed().as_secs_f64();
            drop(list.expect("neighbours"));
            seconds
        });
        let slots = median(&mut |frame| {
            let began = Instant::now();
            Geometry::new(model, frame).expect("geometry");
            began.elapsed().as_secs_f64()
        });
        // As many stay alive as a cache would hold: their memory is new.
        let engine = CpuEngine::<f64>::new(model.clone(), 1, EmbeddingMode::Direct).expect("an engine");
        let prepare = engine.preparer();
        let mut kept = Vec::new();
        let all = median(&mut |frame| {
            let began = Instant::now();
            kept.push(prepare(frame).expect("geometry"));
            let seconds = began.elapsed().as_secs_f64();
            if kept.len() > 200 {
                kept.clear();
            }
            seconds
        });
        [list, slots - list, all - slots]
    }

    /// Parameters before the first step.
    fn params(&self, nets: Nets) -> Vec<f64> {
        let mut params = self.model.random_params(1);
        if nets == Nets::Trained {
            let bytes = include_bytes!("trained_embedding.npy");
            let file = npyz::NpyFile::new(&bytes[..]).expect("an npy file");
            let trained: Vec<f64> = file.into_vec().expect("numbers");
            assert_eq!(trained.len(), self.model.fitting_params().start, "those of the stock network");
            params[..trained.len()].copy_from_slice(&trained);
        }
        params
    }

    /// Trains for `seconds`, at least six steps.
    pub fn time<T: Real>(&self, nets: Nets, batch: usize, seconds: f64) -> Timing {
        let mode = match nets {
            Nets::Direct => EmbeddingMode::Direct,
            _ => EmbeddingMode::Chebyshev { min_distance: self.min_distance },
        };
        let mut engine = CpuEngine::<T>::new(self.model.clone(), self.threads, mode).expect("an engine");
        let mut params = self.params(nets);
        engine.adapt(&params);
        let prepare = engine.preparer();
        let prepared: Vec<_> = self.frames.iter().map(|f| prepare(f).expect("geometry")).collect();
        let loss = self.input.loss.build(1e-3, &self.model);
        let options = *self.input.optimizer.options::<AdamOptions>().expect("Adam");
        let adam = Adam::new(options, self.model.trainable(), params.len());
        let mut adam = adam.on(engine.pool()).in_single(engine.is_single());
        let (mut out, mut seeds, mut grad) =
            (Prediction::default(), Seeds::default(), vec![0.0; params.len()]);
        let mut times = Vec::new();
        let began = Instant::now();
        for step in 0.. {
            let chosen: Vec<usize> = (0..batch).map(|k| (step * batch + k) % prepared.len()).collect();
            let inputs: Vec<_> = chosen.iter().map(|&k| &prepared[k]).collect();
            let frames: Vec<_> = chosen.iter().map(|&k| &self.frames[k]).collect();
            let t = Instant::now();
            engine.evaluate(&mut out, &params, &inputs);
            loss.differentiate(&mut seeds, &out, &frames, 1e-3);
            // As a trainer of one rank does it: the update is part of the pass that makes the gradient.
            let ready = engine.backward_but_pieces(&mut grad, &params, &inputs, &seeds).expect("pieces");
            // SAFETY: the engine gives out every piece once, and what is ready is not among them.
            let pieces = unsafe { adam.pieces(&mut params, 1e-4, step as u64) };
            engine.hand_out(&pieces);
            pieces.take(ready.start, Piece::Double(&grad[ready]));
            times.push(t.elapsed().as_secs_f64());
            if step == 4 || (step < 4 && began.elapsed().as_secs_f64() > seconds) {
                engine.laps = Default::default();
                times.clear();
            }
            if began.elapsed().as_secs_f64() > seconds && times.len() > 5 {
                break;
            }
        }
        let total: f64 = times.iter().sum();
        let share = |d: Duration| format!("{:.1}%", 100.0 * d.as_secs_f64() / total);
        let stages: Vec<String> = engine.laps.totals().map(|(s, d)| format!("{s:?} {}", share(d))).collect();
        let stages = stages.join(", ");
        times.sort_by(f64::total_cmp);
        Timing { median: times[times.len() / 2], best: times[0], plan: engine.plan().cloned(), stages }
    }

    /// Multiplications and additions of a step by the series, counted as two each. The first layer of the fitting nets is
    /// counted as it is computed, without the mirrored part of the descriptor.
    pub fn flops(&self, batch: usize, plan: Option<&Plan>) -> f64 {
        let n = self.frames[0].n_atoms() as f64;
        let (m1, m2) = (self.model.n_embed(), self.model.descriptor().form().square());
        let layers = &self.model.fitting[0].layers;
        let mirrored = m2 * (m2 - 1) / 2 * layers[0].n_out;
        let fitting = layers.iter().map(|l| l.n_in * l.n_out).sum::<usize>() - mirrored;
        let (terms, columns) = plan.map_or((64, 64 * self.model.n_types()), |p| (p.terms, p.columns()));
        let pairs = self.model.n_sel() as f64 * 0.75;
        let atom = 6.0 * fitting as f64 + 5.0 * (4 * columns * m1) as f64 + 8.0 * (4 * m1 * m2) as f64;
        let pair = 20.0 * terms as f64;
        2.0 * batch as f64 * n * (atom + pairs * pair)
    }
}
