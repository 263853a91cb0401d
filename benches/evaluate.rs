//! Atoms a millisecond of evaluations with a neighbour list, on a GPU and on CPU threads.
//!
//!     cargo bench --bench evaluate -- --model model.dp --data examples/water/data_0 [--first 0] [--sizes 4] [--numbers float64,tf32]
//!
//! A frame of water is repeated; lists reach 2 A beyond the cutoff, as those of LAMMPS do. A row has the best and the median of
//! several evaluations in which only positions change, then the parts of one in which the host waits after each, and what a new list
//! takes. Errors are those of the smallest sizes, as parts of the largest element, against CPU threads in float64. Models that the GPU
//! computes operation by operation are evaluated as the C library does it; their neighbours are found on CPU threads every time, which the
//! times have in them.

use phalanx::data::{Frame, Labels};
use phalanx::engine::Evaluation;
use phalanx::engine::choice::DeviceChoice;
use phalanx::engine::cuda::evaluate::Evaluator;
use phalanx::engine::cuda::{OnGpu, engine_on_gpu, program};
use phalanx::gpu::Numbers;
use phalanx::infer::Predictor;
use phalanx::infer::load::load_model;
use phalanx::model::dp::Dp;
use phalanx::neighbor::Images;
use phalanx::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const SKIN: f64 = 2.0;
/// Repetitions of 192 atoms along each axis.
const SIZES: [[usize; 3]; 6] = [[1, 1, 1], [2, 2, 2], [4, 4, 4], [8, 8, 8], [16, 16, 16], [18, 17, 17]];
/// Above so many atoms CPU threads would take too long.
const MOST_ON_CPU: usize = 13_000;

struct Options {
    model: PathBuf,
    data: PathBuf,
    /// The first size, and the one after the last.
    first: usize,
    sizes: usize,
    numbers: Vec<(&'static str, Numbers)>,
    device: DeviceChoice,
}

impl Options {
    fn read() -> Result<Options> {
        let mut options = Options {
            model: "../shared/trained/water_40k.dp".into(),
            data: "examples/water/data_0".into(),
            first: 0,
            sizes: SIZES.len(),
            numbers: vec![("float64", Numbers::F64), ("float32", Numbers::F32), ("tf32", Numbers::Tf32)],
            device: DeviceChoice::Cuda(None),
        };
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            match word.as_str() {
                "--model" => options.model = value.into(),
                "--data" => options.data = value.into(),
                "--first" => {
                    options.first = value.parse().map_err(|_| Error::new("--first wants a number"))?
                }
                "--sizes" => {
                    options.sizes = value.parse().map_err(|_| Error::new("--sizes wants a number"))?
                }
                "--numbers" => {
                    options.numbers.retain(|(name, _)| value.split(',').any(|wanted| wanted == *name))
                }
                "--device" => options.device = value.parse()?,
                _ => return Err(Error::new(format!("{word} is no option"))),
            }
        }
        Ok(options)
    }
}

/// The first frame of a system, as its files have it.
fn first_frame(data: &Path, type_map: &[String]) -> Result<Frame> {
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap_or_default();
    let names: Vec<String> = read("type_map.raw").split_whitespace().map(String::from).collect();
    let numbers = |name: &str| -> Result<Vec<f64>> {
        let bytes =
            std::fs::read(data.join("set.000").join(name)).map_err(|e| Error::new(format!("{name}: {e}")))?;
        let file = npyz::NpyFile::new(&bytes[..]).map_err(|e| Error::new(format!("{name}: {e}")))?;
        match file.dtype().descr().contains("f4") {
            true => Ok(file
                .into_vec::<f32>()
                .map_err(|e| Error::new(e.to_string()))?
                .iter()
                .map(|&x| x.into())
                .collect()),
            false => file.into_vec::<f64>().map_err(|e| Error::new(e.to_string())),
        }
    };
    let types: Vec<i32> = read("type.raw")
        .split_whitespace()
        .filter_map(|word| word.parse::<usize>().ok())
        .map(|t| {
            names.get(t).and_then(|name| type_map.iter().position(|own| own == name)).unwrap_or(t) as i32
        })
        .collect();
    let coord = numbers("coord.npy")?[..3 * types.len()].to_vec();
    let cell = numbers("box.npy")?;
    Ok(Frame {
        types: types.into(),
        coord,
        cell: Some(std::array::from_fn(|k| cell[k])),
        fparam: vec![],
        aparam: vec![],
        sorted: false,
        labels: Labels::default(),
    })
}

fn repeated(frame: &Frame, times: [usize; 3]) -> Frame {
    let cell = frame.cell.unwrap_or_default();
    let (mut coord, mut types) = (Vec::new(), Vec::new());
    for a in 0..times[0] {
        for b in 0..times[1] {
            for c in 0..times[2] {
                let shift = |k: usize| a as f64 * cell[k] + b as f64 * cell[3 + k] + c as f64 * cell[6 + k];
                coord.extend(frame.coord.chunks_exact(3).flat_map(|x| [0, 1, 2].map(|k| x[k] + shift(k))));
                types.extend_from_slice(&frame.types);
            }
        }
    }
    let cell = std::array::from_fn(|k| cell[k] * times[k / 3] as f64);
    Frame { coord, types: types.into(), cell: Some(cell), ..frame.clone() }
}

fn deviation(got: &[f64], want: &[f64]) -> f64 {
    let scale = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    got.iter().zip(want).fold(0.0f64, |m, (g, w)| m.max((g - w).abs())) / scale
}

fn small_move(step: usize) -> impl Fn(usize) -> [f64; 3] {
    move |i| [0, 1, 2].map(|k| 1e-4 * ((7 * i + 3 * k + step) as f64).sin())
}

/// As [`measure`] for a model that is computed operation by operation.
fn measure_operations(
    predictor: &mut Predictor,
    images: &mut Images,
    n: usize,
    name: &str,
) -> Result<Evaluation> {
    let first = predictor.evaluate_domain(&images.domain(&images.lists()), false, &[], &[], false)?;
    let mut all = Vec::new();
    for step in 0..(60_000 / n).clamp(6, 60) {
        images.displace(small_move(step));
        let lists = images.lists();
        let began = Instant::now();
        predictor.evaluate_domain(&images.domain(&lists), true, &[], &[], false)?;
        all.push(began.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    let [best, median] = [all[0], all[all.len() / 2]].map(|s| 1e3 * s);
    println!(
        "{name:8} {n:8} {:9} {best:9.3} {median:9.3} {:10.0} {:10.0} |",
        images.types.len(),
        n as f64 / best,
        n as f64 / median
    );
    Ok(first)
}

/// One row of the table.
fn measure(evaluator: &mut Evaluator, images: &mut Images, n: usize, name: &str) -> Result<Evaluation> {
    let mut out = Evaluation::default();
    let mut lists_s = f64::INFINITY;
    for _ in 0..2 {
        let lists = images.lists();
        evaluator.evaluate(&mut out, &images.domain(&lists), &[], false, false)?;
        lists_s = lists_s.min(evaluator.times.list);
    }
    let first = out.clone();
    let repeats = (200_000 / n).clamp(8, 300);
    let mut all = Vec::new();
    for step in 0..repeats {
        images.displace(small_move(step));
        let lists = images.lists();
        let domain = images.domain(&lists);
        let began = Instant::now();
        evaluator.evaluate(&mut out, &domain, &[], true, false)?;
        all.push(began.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    evaluator.measures = true;
    let lists = images.lists();
    let mut parts = evaluator.times;
    for k in 0..5 {
        evaluator.evaluate(&mut out, &images.domain(&lists), &[], true, false)?;
        if k == 0 || evaluator.times.kernels < parts.kernels {
            parts = evaluator.times;
        }
    }
    evaluator.measures = false;
    let (best, median) = (all[0], all[all.len() / 2]);
    let ms = |s: f64| 1e3 * s;
    println!(
        "{name:8} {n:8} {:9} {:9.3} {:9.3} {:10.0} {:10.0} | {:8.3} {:8.3} {:8.3} | {:9.3}",
        images.types.len(),
        ms(best),
        ms(median),
        n as f64 / ms(best),
        n as f64 / ms(median),
        ms(parts.upload),
        ms(parts.kernels),
        ms(parts.download),
        ms(lists_s)
    );
    Ok(first)
}

fn main() -> Result<()> {
    let options = Options::read()?;
    let spec = load_model(&options.model)?;
    let min_distance = 0.7 * spec.min_nbor_dist.unwrap_or(0.85);
    let (model, params) = Dp::from_spec(spec.clone())?;
    let model = Arc::new(model);
    let frame = first_frame(&options.data, &model.options.type_map)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::new(e.to_string()))?;
    let env = |name: &str| std::env::var(name).ok();
    let Some(gpu) = options.device.find(0, &env)? else { return Err(Error::new("wanted a GPU")) };
    println!("{}; {} ({} threads)", options.model.display(), gpu.name, threads);
    println!(
        "{:8} {:>8} {:>9} {:>9} {:>9} {:>10} {:>10} | {:>8} {:>8} {:>8} | {:>9}",
        "numbers",
        "atoms",
        "with ghosts",
        "best ms",
        "median",
        "atoms/ms",
        "median",
        "up",
        "kernels",
        "down",
        "new list"
    );
    let mut cpu = Predictor::new(spec.clone(), threads)?;
    for (name, numbers) in &options.numbers {
        let mut on_gpu = match engine_on_gpu(&model)? {
            OnGpu::Fused(form) => {
                let device = program::open(&gpu.cuda, gpu.index, *numbers, form, &env)?;
                let evaluator = Evaluator::new(&device, &model, &params, min_distance)?;
                let evaluator = evaluator.ok_or_else(|| Error::new("the embedding nets have no series"))?;
                OnDevice::Fused(Box::new(evaluator))
            }
            OnGpu::Operations => {
                let predictor = Predictor::new(spec.clone(), threads)?.with_numbers(*numbers);
                OnDevice::Operations(Box::new(predictor.on_gpu(gpu.clone(), options.device)))
            }
        };
        for times in SIZES.into_iter().take(options.sizes).skip(options.first) {
            let large = repeated(&frame, times);
            let n = large.n_atoms();
            let rcut = model.listed.rcut;
            let mut images = pool.install(|| Images::new(&large, rcut + SKIN, model.n_types()))?;
            let mut found = match &mut on_gpu {
                OnDevice::Fused(evaluator) => pool.install(|| measure(evaluator, &mut images, n, name))?,
                OnDevice::Operations(predictor) => measure_operations(predictor, &mut images, n, name)?,
            };
            images.fold(&mut found.force, 3);
            if n <= MOST_ON_CPU {
                let want = cpu.evaluate(&large, false)?;
                println!(
                    "    against the CPU: energy {:.1e} eV an atom, forces {:.1e}, virial {:.1e}",
                    (found.energy - want.energy).abs() / n as f64,
                    deviation(&found.force, &want.force),
                    deviation(&found.virial, &want.virial)
                );
            }
        }
        if let OnDevice::Fused(evaluator) = &on_gpu {
            println!("    {}", evaluator.plan().map_or(String::new(), |plan| plan.to_string()));
        }
    }
    Ok(())
}

/// A model on a GPU, by the engine that has it.
enum OnDevice {
    Fused(Box<Evaluator>),
    Operations(Box<Predictor>),
}
