//! How fast a training step is: `cargo bench --bench step`.
//!
//! The stock water network on the bundled water data (or on the systems given as arguments), float64 and float32,
//! batches of 1, 4 and 16 frames, by the series and by the net itself: samples/s, GFLOP/s, share of the measured peak of
//! matrix products, and where the time goes. `STEP_BENCH="float64 series 4"` leaves the others out.

use phalanx::data::{Frame, System, Wants};
use phalanx::engine::cpu::dense::{Accumulate, Strided, product};
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::{Engine, Prediction, Seeds};
use phalanx::launch::threads::{Threads, available_cores};
use phalanx::loss::EnerLoss;
use phalanx::model::dp::Dp;
use phalanx::model::dp::statistics::Sums;
use phalanx::neighbor::stat::NeighborStat;
use phalanx::optim::Adam;
use phalanx::train::input::Input;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Case {
    model: Arc<Dp>,
    frames: Vec<Frame>,
    input: Input,
    min_distance: f64,
    threads: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let case = Case::open(&arguments);
    println!(
        "{} threads, {} atoms, {} parameters",
        case.threads,
        case.frames[0].n_atoms(),
        case.model.table.len()
    );
    let peak = (peak::<f64>(case.threads), peak::<f32>(case.threads));
    println!("matrix products: {:.1} GFLOP/s float64, {:.1} float32", peak.0, peak.1);
    println!("precision  embedding  batch    ms/step  samples/s   GFLOP/s   of peak");
    for batch in [1, 4, 16] {
        case.time::<f64>("float64", true, batch, peak.0);
        case.time::<f32>("float32", true, batch, peak.1);
    }
    case.time::<f64>("float64", false, 1, peak.0);
}

/// GFLOP/s of a product that stays in cache, on all threads at once.
fn peak<T: Real>(threads: usize) -> f64 {
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

impl Case {
    fn open(arguments: &[String]) -> Case {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut input, _) =
            Input::read(&here.join("examples/water/input.json")).expect("the bundled input is good");
        let default = vec![here.join("examples/water/data_0").to_string_lossy().into_owned()];
        let paths = if arguments.is_empty() { &default } else { arguments };
        input.loss.virial.start = 0.0;
        let wants = Wants { energy: true, force: true, ..Wants::default() };
        let mut frames = Vec::new();
        for path in paths {
            let system = System::open(path, &input.model.type_map, &wants).expect("the system opens");
            frames
                .extend((0..system.n_frames.min(16)).map(|k| system.read_frame(k).expect("the frame reads")));
        }
        let sums = frames.iter().map(|f| Sums::of(&input.model, f).expect("statistics")).reduce(Sums::merge);
        let stats = sums.expect("there are frames").finish(&input.model).expect("statistics");
        let min_distance = frames
            .iter()
            .map(|f| NeighborStat::of(f, 6.0, input.model.type_map.len()).expect("neighbours").min_distance)
            .fold(f64::INFINITY, f64::min);
        let threads =
            Threads::new(&|name| std::env::var(name).ok(), available_cores(), 1).expect("threads").compute;
        let model = Arc::new(Dp::new(input.model.clone(), stats));
        Case { model, frames, input, min_distance, threads }
    }

    fn time<T: Real>(&self, precision: &str, series: bool, batch: usize, peak: f64) {
        let name = format!("{precision} {} {batch}", if series { "series" } else { "net" });
        if std::env::var("STEP_BENCH").is_ok_and(|only| only != name) {
            return;
        }
        let mode = match series {
            true => EmbeddingMode::Chebyshev { min_distance: self.min_distance },
            false => EmbeddingMode::Direct,
        };
        let mut engine =
            CpuEngine::<T>::new(self.model.clone(), self.threads, mode, None).expect("an engine");
        let mut params = self.model.random_params(1);
        engine.adapt(&params);
        let prepare = engine.preparer();
        let prepared: Vec<_> = self.frames.iter().map(|f| prepare(f).expect("geometry")).collect();
        let loss = EnerLoss::new(self.input.loss.clone(), 1e-3);
        let adam = Adam::new(self.input.optimizer.clone(), self.model.trainable(), params.len());
        let mut adam = adam.on(engine.pool());
        let (mut out, mut seeds, mut grad) =
            (Prediction::default(), Seeds::default(), vec![0.0; params.len()]);
        let mut times = Vec::new();
        let mut optimiser = Duration::ZERO;
        let began = Instant::now();
        for step in 0.. {
            let chosen: Vec<usize> = (0..batch).map(|k| (step * batch + k) % prepared.len()).collect();
            let inputs: Vec<_> = chosen.iter().map(|&k| &prepared[k]).collect();
            let frames: Vec<_> = chosen.iter().map(|&k| &self.frames[k]).collect();
            let t = Instant::now();
            engine.evaluate(&mut out, &params, &inputs);
            loss.differentiate(&mut seeds, &out, &frames, 1e-3);
            engine.backward(&mut grad, &params, &inputs, &seeds);
            let u = Instant::now();
            adam.step(&mut params, &grad, 1e-4, step as u64);
            optimiser += u.elapsed();
            times.push(t.elapsed().as_secs_f64());
            if step == 4 {
                (engine.laps, optimiser) = (Default::default(), Duration::ZERO);
                times.clear();
            }
            if began.elapsed() > Duration::from_secs(2) && times.len() > 5 {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let rate = self.flops(batch, engine.terms()) / median * 1e-9;
        println!(
            "{precision:<10} {:<9} {batch:>6} {:>10.2} {:>10.1} {rate:>9.1} {:>8.0}%",
            if series { "series" } else { "net" },
            median * 1e3,
            batch as f64 / median,
            100.0 * rate / peak
        );
        let total: f64 = times.iter().sum();
        let share = |d: Duration| format!("{:.0}%", 100.0 * d.as_secs_f64() / total);
        let stages: Vec<String> = engine.laps.totals().map(|(s, d)| format!("{s:?} {}", share(d))).collect();
        println!(
            "    {}, Adam {} (terms {:?}, best {:.2} ms)",
            stages.join(", "),
            share(optimiser),
            engine.terms(),
            times[0] * 1e3
        );
    }

    /// Multiplications and additions of a step by the series, counted as two each.
    fn flops(&self, batch: usize, terms: Option<usize>) -> f64 {
        let n = self.frames[0].n_atoms() as f64;
        let fitting: usize = self.model.fitting[0].layers.iter().map(|l| l.n_in * l.n_out).sum();
        let (m1, m2) = (self.model.n_embed(), self.model.descriptor().axis_neuron);
        let tk = terms.unwrap_or(64) * self.model.n_types();
        let pairs = self.model.n_sel() as f64 * 0.75;
        let atom = 6.0 * fitting as f64 + 5.0 * (4 * tk * m1) as f64 + 8.0 * (4 * m1 * m2) as f64;
        let pair = 20.0 * terms.unwrap_or(64) as f64;
        2.0 * batch as f64 * n * (atom + pairs * pair)
    }
}
