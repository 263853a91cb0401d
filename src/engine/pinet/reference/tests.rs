//! Derivatives of whole networks against central differences.

use super::*;
use crate::model::pinet::options::*;

/// The largest difference over the largest wanted number.
pub fn deviation(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-12f64, |a, b| a.max(b.abs()));
    got.iter()
        .zip(want)
        .fold(0.0, |a: f64, (g, w)| if (g - w).is_nan() { f64::NAN } else { a.max((g - w).abs()) })
        / scale
}

/// Batches of every kind: cells, clusters, one atom, no pairs, many atoms.
pub fn batches(model: &PinetModel) -> Vec<Vec<PinetFrame>> {
    let far = PinetFrame::new(model, &[1, 8], &[0.0, 0.0, 0.0, 50.0, 0.0, 0.0], None).unwrap();
    vec![
        vec![frame(model, 9, 1, true)],
        vec![frame(model, 7, 2, false), frame(model, 1, 3, false), frame(model, 8, 4, true)],
        vec![frame(model, 1, 5, false), far],
        vec![frame(model, 1, 6, true)],
        vec![frame(model, 40, 7, true), frame(model, 6, 8, false)],
        // Enough structures for groups of whole ones; one atom alone among them.
        (0..19).map(|k| frame(model, [7, 1, 12, 5][k % 4], 9 + k as u64, k % 3 > 0)).collect(),
    ]
}

/// What an engine says of a batch.
#[derive(Debug, PartialEq)]
pub struct Results {
    pub out: PinetPrediction,
    pub grad: Vec<f64>,
}

pub fn results(engine: &mut dyn PinetEngine, params: &[f64], batch: &[&PinetFrame]) -> Results {
    let mut out = PinetPrediction::default();
    engine.evaluate(&mut out, params, batch);
    let mut grad = vec![1.0; params.len()];
    engine.backward(&mut grad, params, batch, &seeds(&out));
    Results { out, grad }
}

/// What differs from the reference by more than the tolerance, in all networks, batches and kinds of passes. `check` looks at the
/// results of an engine as well.
pub fn compare_all<E: PinetEngine>(
    tolerance: f64,
    make: impl Fn(&Arc<PinetModel>, bool) -> E,
    check: impl Fn(&mut E, &[f64], &[&PinetFrame], Results),
) {
    let mut failures = Vec::new();
    for (name, model) in networks() {
        let params = params(&model);
        for forces in [true, false] {
            // One engine for all batches: what one leaves behind must not show in the next.
            let mut engine = make(&model, forces);
            let mut reference = PinetReference::new(model.clone(), forces);
            for (k, frames) in batches(&model).iter().enumerate() {
                let batch: Vec<&PinetFrame> = frames.iter().collect();
                let want = results(&mut reference, &params, &batch);
                let got = results(&mut engine, &params, &batch);
                let all = [
                    ("energy", deviation(&got.out.energy, &want.out.energy)),
                    ("outputs", deviation(&got.out.atomic, &want.out.atomic)),
                    ("force", deviation(&got.out.force, &want.out.force)),
                    ("stress", deviation(got.out.stress.as_flattened(), want.out.stress.as_flattened())),
                    ("gradient", deviation(&got.grad, &want.grad)),
                ];
                let far = all.into_iter().filter(|(_, off)| off.is_nan() || *off > tolerance);
                let told = |(what, off)| format!("{name}, batch {k}, forces {forces}: {what} off by {off:e}");
                failures.extend(far.map(told));
                check(&mut engine, &params, &batch, got);
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Small networks of every kind.
pub(crate) fn networks() -> Vec<(&'static str, Arc<PinetModel>)> {
    let small = |version, kind| PinetOptions {
        atom_types: vec![1, 8],
        n_basis: Basis::Count(3),
        pp_nodes: vec![5, 4],
        pi_nodes: vec![6, 3],
        ii_nodes: vec![5, 4],
        out_nodes: vec![4, 3],
        depth: 2,
        rank: 1,
        ..PinetOptions::new(version, kind)
    };
    let master = small(Wiring::Master, NetworkKind::PiNet);
    let pinet2 = small(Wiring::Master, NetworkKind::PiNet2);
    let all = [
        ("pinet", master.clone()),
        (
            "pinet with other widths",
            PinetOptions { ii_nodes: vec![7], act: Act::Swish, depth: 3, ..master.clone() },
        ),
        (
            "pinet of single layers",
            PinetOptions { pi_nodes: vec![3], out_nodes: vec![], pp_nodes: vec![], ..master.clone() },
        ),
        (
            "pinet with deep pairs",
            PinetOptions { pi_nodes: vec![4, 5, 3], ii_nodes: vec![], ..master.clone() },
        ),
        ("pinet pooled by the largest", PinetOptions { out_pool: Some(Pool::Max), ..master.clone() }),
        (
            "pinet with gaussians",
            PinetOptions {
                basis_type: BasisType::Gaussian,
                cutoff_type: CutoffType::F2,
                act: Act::Gelu,
                ..master
            },
        ),
        ("fork", small(Wiring::Fork, NetworkKind::PiNet)),
        (
            "fork with other widths",
            PinetOptions { ii_nodes: vec![6], act: Act::Softplus, ..small(Wiring::Fork, NetworkKind::PiNet) },
        ),
        ("pinet2 of rank 1", pinet2.clone()),
        ("pinet2 of rank 3", PinetOptions { rank: 3, ..pinet2.clone() }),
        ("pinet2 of rank 5", PinetOptions { rank: 5, act: Act::Mish, ..pinet2.clone() }),
        ("pinet2 of rank 5, weighted", PinetOptions { rank: 5, weighted: true, ..pinet2 }),
    ];
    all.into_iter().map(|(name, o)| (name, Arc::new(PinetModel::new(o).unwrap()))).collect()
}

/// Parameters with biases that are not zero.
pub(crate) fn params(model: &PinetModel) -> Vec<f64> {
    let mut params = model.init(7);
    for (k, x) in params.iter_mut().enumerate() {
        *x += 0.1 * (k as f64 * 0.77).sin();
    }
    params
}

/// A structure of `n` atoms in a cell smaller than twice the cutoff, or in a cluster.
pub(crate) fn structure(n: usize, salt: u64, periodic: bool) -> (Vec<i32>, Vec<f64>, Option<[f64; 9]>) {
    let noise = |k: usize| (((k as u64 * 7 + salt) as f64 * 12.9898).sin() * 43758.5453).fract().abs();
    let elems = (0..n).map(|i| if i % 7 == 5 { 6 } else { [1, 8][i % 2] }).collect();
    let coord = (0..3 * n).map(|k| 7.0 * noise(k) - 1.0).collect();
    (elems, coord, periodic.then_some([5.2, 0.1, 0.0, 0.7, 5.5, -0.3, 0.2, 0.4, 6.1]))
}

pub(crate) fn frame(model: &PinetModel, n: usize, salt: u64, periodic: bool) -> PinetFrame {
    let (elems, coord, cell) = structure(n, salt, periodic);
    PinetFrame::new(model, &elems, &coord, cell).unwrap()
}

/// Seeds that are not zero, in the shape of a prediction.
pub(crate) fn seeds(out: &PinetPrediction) -> PinetSeeds {
    let coefficient = |k: usize| ((k as f64 + 1.0) * 0.731).sin();
    PinetSeeds {
        dl_energy: (0..out.energy.len()).map(coefficient).collect(),
        dl_atomic: (0..out.atomic.len()).map(|k| coefficient(k + 3)).collect(),
        dl_force: (0..out.force.len()).map(|k| 3.0 * coefficient(k + 5)).collect(),
        dl_stress: (0..out.stress.len())
            .map(|s| std::array::from_fn(|k| 0.3 * coefficient(40 * s + k)))
            .collect(),
    }
}

fn energy_at(
    model: &Arc<PinetModel>,
    params: &[f64],
    coord: &[f64],
    cell: Option<[f64; 9]>,
    n: usize,
) -> f64 {
    let elems = structure(n, 1, true).0;
    let frame = PinetFrame::new(model, &elems, coord, cell).unwrap();
    let mut out = PinetPrediction::default();
    PinetReference::new(model.clone(), false).evaluate(&mut out, params, &[&frame]);
    out.energy[0]
}

#[test]
fn force_is_minus_the_gradient_of_the_energy() {
    for (name, model) in networks() {
        let params = params(&model);
        let (elems, coord, cell) = structure(6, 1, true);
        let frame = PinetFrame::new(&model, &elems, &coord, cell).unwrap();
        let mut out = PinetPrediction::default();
        PinetReference::new(model.clone(), true).evaluate(&mut out, &params, &[&frame]);
        for k in (0..coord.len()).step_by(4) {
            let at = |h: f64| {
                let mut moved = coord.clone();
                moved[k] += h;
                energy_at(&model, &params, &moved, cell, 6)
            };
            let want = -(at(1e-5) - at(-1e-5)) / 2e-5;
            assert!(
                (out.force[k] - want).abs() < 1e-7 * (1.0 + want.abs()),
                "{name} {k}: {} {want}",
                out.force[k]
            );
        }
    }
}

#[test]
fn stress_is_the_strain_derivative_of_the_energy() {
    for (name, model) in networks() {
        let params = params(&model);
        let (elems, coord, cell) = structure(6, 1, true);
        let frame = PinetFrame::new(&model, &elems, &coord, cell).unwrap();
        let mut out = PinetPrediction::default();
        PinetReference::new(model.clone(), true).evaluate(&mut out, &params, &[&frame]);
        for (a, b) in [(0, 0), (0, 2), (2, 1)] {
            let at = |h: f64| {
                // x_b += h x_a for atoms and lattice vectors alike.
                let strain = |x: &mut [f64]| x.chunks_exact_mut(3).for_each(|v| v[b] += h * v[a]);
                let (mut coord, mut cell) = (coord.clone(), cell.unwrap());
                strain(&mut coord);
                strain(&mut cell);
                energy_at(&model, &params, &coord, Some(cell), 6)
            };
            let want = (at(1e-5) - at(-1e-5)) / 2e-5;
            let got = out.stress[0][3 * a + b];
            assert!((got - want).abs() < 1e-6 * (1.0 + want.abs()), "{name} {a}{b}: {got} {want}");
        }
    }
}

#[test]
fn gradient_of_a_loss_agrees_with_central_differences() {
    for (name, model) in networks() {
        for forces in [true, false] {
            let params = params(&model);
            let frames = [frame(&model, 6, 1, true), frame(&model, 5, 4, false)];
            let batch: Vec<&PinetFrame> = frames.iter().collect();
            let mut engine = PinetReference::new(model.clone(), forces);
            let mut out = PinetPrediction::default();
            engine.evaluate(&mut out, &params, &batch);
            let seeds = seeds(&out);
            let mut grad = vec![0.0; params.len()];
            engine.backward(&mut grad, &params, &batch, &seeds);
            let mut loss = |params: &[f64]| {
                let mut out = PinetPrediction::default();
                engine.evaluate(&mut out, params, &batch);
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                dot(&seeds.dl_energy, &out.energy)
                    + dot(&seeds.dl_atomic, &out.atomic)
                    + dot(&seeds.dl_force, &out.force)
                    + dot(seeds.dl_stress.as_flattened(), out.stress.as_flattened())
            };
            for k in (0..params.len()).step_by(23) {
                let (mut high, mut low) = (params.clone(), params.clone());
                high[k] += 1e-5;
                low[k] -= 1e-5;
                let want = (loss(&high) - loss(&low)) / 2e-5;
                assert!((grad[k] - want).abs() < 1e-5 * (1.0 + want.abs()), "{name} {k}: {} {want}", grad[k]);
            }
        }
    }
}
