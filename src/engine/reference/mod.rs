//! The reference engine: slow, obviously right, float64, one atom at a time. Every other engine is tested against it.
//!
//! It has no `unsafe`, no SIMD and no threads, and is never improved for speed. Each op stands in a file of its
//! own with its formula, tangent and adjoint.

mod angles;
pub mod atom;
mod attention;
pub mod env;
pub mod layer;
mod outputs;
mod pairs;
pub(crate) mod tape;
mod turned;

use super::blend::Blend;
use super::{Block, BlockPreparer, Engine, Prediction, Preparer, Seeds};
use crate::Result;
use crate::model::dp::Dp;
use crate::model::dp::geometry::{Geometry, lists_of};
use crate::neighbor::{Cut, NeighborList};
use crate::sample::Prepared;
use atom::{AtomView, Entry};
use env::Row;
use std::sync::Arc;

/// Evaluates a Deep Potential atom by atom.
pub struct ReferenceEngine {
    model: Arc<Dp>,
    /// One for each descriptor.
    parts: Vec<Arc<Dp>>,
}

/// The neighbours of a frame as each descriptor sees them.
pub struct Geometries(Vec<Geometry>, Blend);

impl Geometries {
    fn new(parts: &[Arc<Dp>], geometries: Vec<Geometry>) -> Result<Self> {
        let blend = Blend::new(&parts[0], &geometries[0], 0..geometries[0].n_atoms())?;
        Ok(Geometries(geometries, blend))
    }
}

impl Prepared for Geometries {
    fn bytes(&self) -> usize {
        self.0.iter().map(Prepared::bytes).sum::<usize>() + self.1.bytes()
    }
}

impl ReferenceEngine {
    pub fn new(model: Arc<Dp>) -> Self {
        ReferenceEngine { parts: model.parts(), model }
    }

    /// Everything around atom `i`; `None` for a virtual atom.
    fn neighborhood(&self, geometries: &Geometries, i: usize) -> Option<AtomView> {
        let first = &geometries.0[0];
        let center = usize::try_from(first.types[i]).ok()?;
        let rows = |(part, geometry): (&Arc<Dp>, &Geometry)| Self::entries(part, geometry, i, center);
        let n_extra = self.model.n_extra();
        Some(AtomView {
            center,
            entries: self.parts.iter().zip(&geometries.0).map(rows).collect(),
            extra: first.extra[i * n_extra..(i + 1) * n_extra].to_vec(),
        })
    }

    /// The neighbourhood of atom `i` as rows of the environment matrix of one descriptor.
    fn entries(model: &Dp, geometry: &Geometry, i: usize, center: usize) -> Vec<Entry> {
        let (davg, dstd) = (model.stats.davg[center], model.stats.dstd[center]);
        let options = model.descriptor();
        let mut entries = Vec::new();
        for t in 0..model.n_types() {
            let net = if options.is_mixed() { 0 } else { model.embedding_net(center, t) };
            for pair in geometry.pairs(i, t, model.n_types()) {
                let row = env::row(options, &geometry.d[pair], &davg, &dstd);
                entries.push(Entry { neighbor: t, net, row, weight: 1.0, pair: Some(pair) });
            }
            let padding = geometry.padding[i * model.n_types() + t];
            // Where types have slots together, the empty ones have a type of their own.
            let neighbor = if options.is_mixed() { geometry.empty_type } else { t };
            if padding > 0 {
                let row =
                    [-davg[0] / dstd[0], -davg[1] / dstd[1], -davg[2] / dstd[2], -davg[3] / dstd[3], 0.0];
                entries.push(Entry { neighbor, net, row, weight: f64::from(padding), pair: None });
            }
            let left_out = geometry.left_out.get(i * model.n_types() + t).copied().unwrap_or(0);
            if left_out > 0 {
                let (row, weight) = ([0.0; 5], f64::from(left_out));
                entries.push(Entry { neighbor: t, net, row, weight, pair: None });
            }
        }
        entries
    }

    /// Adds the energy gradient by the distance vectors of one atom to force and virial.
    fn scatter(
        force: &mut [f64],
        virial: &mut [f64; 9],
        (model, geometry): (&Dp, &Geometry),
        (i, center): (usize, usize),
        entries: &[Entry],
        de_row: &[Row],
    ) {
        for (entry, de_row) in entries.iter().zip(de_row) {
            let Some(pair) = entry.pair else { continue };
            let d = geometry.d[pair];
            let de_d = env::backward(model.descriptor(), &d, &model.stats.dstd[center], de_row);
            let j = geometry.j[pair] as usize;
            for k in 0..3 {
                force[3 * i + k] += de_d[k];
                force[3 * j + k] -= de_d[k];
                for l in 0..3 {
                    virial[3 * k + l] -= d[k] * de_d[l];
                }
            }
        }
    }
}

impl Engine for ReferenceEngine {
    type Prepared = Geometries;

    fn preparer(&self) -> Preparer<Geometries> {
        let parts = self.parts.clone();
        Arc::new(move |frame| {
            let of_part = |part: &Arc<Dp>| Geometry::new(part, frame);
            Geometries::new(&parts, parts.iter().map(of_part).collect::<Result<_>>()?)
        })
    }

    fn block_preparer(&self, cut: Cut) -> BlockPreparer<Geometries> {
        let parts = self.parts.clone();
        Arc::new(move |frame| {
            let of_list = |list: &NeighborList| {
                let of_part = |part: &Arc<Dp>| {
                    let mut geometry = Geometry::default();
                    geometry.fill_from(part, frame, list).map(|()| geometry)
                };
                let geometries = parts.iter().map(of_part).collect::<Result<_>>()?;
                Ok(Block::of(list, Geometries::new(&parts, geometries)?))
            };
            lists_of(&parts[0], frame, cut)?.iter().map(of_list).collect()
        })
    }

    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&Geometries]) {
        *out = Prediction::default();
        if !self.model.is_energy() {
            return self.outputs(out, params, batch);
        }
        for geometry in batch {
            let n = geometry.0[0].n_atoms();
            let mut force = vec![0.0; 3 * n];
            let mut virial = [0.0; 9];
            let mut energy = 0.0;
            for i in 0..n {
                let Some(view) = self.neighborhood(geometry, i) else {
                    out.atom_energy.push(0.0);
                    continue;
                };
                let mut pass = atom::first_pass(&self.parts, params, &view);
                let share = geometry.1.share(i);
                pass.de_row.iter_mut().flatten().flatten().for_each(|de| *de *= share);
                let e = pass.energy + self.model.stats.bias[view.center];
                out.atom_energy.push(e);
                energy += e;
                for (k, part) in self.parts.iter().enumerate() {
                    let (entries, de_row) = (&view.entries[k], &pass.de_row[k]);
                    let place = (&**part, &geometry.0[k]);
                    Self::scatter(&mut force, &mut virial, place, (i, view.center), entries, de_row);
                }
            }
            let first_atom = out.atom_energy.len() - n;
            out.energy.push(energy);
            out.force.extend(force);
            out.virial.push(virial);
            geometry.1.apply(out, &self.model, out.energy.len() - 1, first_atom);
        }
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&Geometries], seeds: &Seeds) {
        grad.fill(0.0);
        if !self.model.is_energy() {
            return self.outputs_backward(grad, params, batch, seeds);
        }
        let mut first_atom = 0;
        for (f, geometry) in batch.iter().enumerate() {
            let n = geometry.0[0].n_atoms();
            for i in 0..n {
                let Some(view) = self.neighborhood(geometry, i) else { continue };
                let d_dot = |j: usize, d: &[f64; 3]| seeds.direction(f, first_atom, (i, j), *d);
                let row_dot = |model: &Dp, geometry: &Geometry, entry: &Entry| {
                    let Some(pair) = entry.pair else { return [0.0; 5] };
                    let (d, j) = (geometry.d[pair], geometry.j[pair] as usize);
                    env::tangent(model.descriptor(), &d, &d_dot(j, &d), &model.stats.dstd[view.center])
                };
                let row_dot: Vec<Vec<Row>> = (0..self.parts.len())
                    .map(|k| {
                        let of = |entry: &Entry| row_dot(&self.parts[k], &geometry.0[k], entry);
                        view.entries[k].iter().map(of).collect()
                    })
                    .collect();
                let dl_e = seeds.dl_energy[f] + seeds.dl_atom_energy[first_atom + i];
                let dl_e = geometry.1.seed(i, dl_e, |pair| d_dot(pair.j, &pair.d));
                let share = geometry.1.share(i);
                atom::second_pass(grad, &self.parts, params, &view, &row_dot, (&[dl_e], &[share]));
            }
            first_atom += n;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::Frame;
    use crate::data::Labels;
    use crate::model::activation::Activation;
    use crate::model::dp::descriptor::{SeAtten, SeE2R, SeE3};
    use crate::model::dp::fitting::{Dipole, Dos, Polar, Property};
    use crate::model::dp::options::*;
    use crate::model::dp::short_range::{PairTable, ShortRange};
    use crate::model::dp::spec::DpStatistics;

    /// A small descriptor with every feature that changes a formula.
    pub(crate) fn options() -> DescriptorOptions {
        DescriptorOptions {
            kind: DescriptorKind::SeE2A(SeE2A { axis_neuron: 3, linear_end: false }),
            sel: Sel::Fixed(vec![9, 11]),
            rcut: 4.0,
            rcut_smth: 0.5,
            neuron: vec![4, 8],
            activation: Activation::Tanh,
            resnet_dt: true,
            type_one_side: false,
            precision: Precision::Float64,
            trainable: true,
            seed: Some(1),
            exclude_types: vec![],
            set_davg_zero: false,
            env_protection: 0.1,
            embedding: Embedding::Chebyshev,
        }
    }

    /// The same with distances alone, and a pair of types whose slots count without being seen.
    pub(crate) fn distances() -> DescriptorOptions {
        let kind = DescriptorKind::SeE2R(SeE2R);
        DescriptorOptions { kind, type_one_side: true, exclude_types: vec![(0, 1)], ..options() }
    }

    /// Neighbours two by two.
    pub(crate) fn angles() -> DescriptorOptions {
        DescriptorOptions { kind: DescriptorKind::SeE3(SeE3), ..options() }
    }

    /// Attention between the neighbours, of which some have no slot, in several forms.
    pub(crate) fn attention() -> Vec<DescriptorOptions> {
        let one = SeAtten {
            axis_neuron: 3,
            tebd_dim: 4,
            strip: false,
            smooth: true,
            attn: 5,
            attn_layer: 2,
            attn_dotr: true,
            normalize: true,
            temperature: None,
            scaling_factor: 1.3,
            trainable_ln: true,
            ln_eps: 1e-3,
            concat_output_tebd: true,
            use_econf_tebd: false,
            use_tebd_bias: true,
        };
        let bare = SeAtten {
            strip: true,
            smooth: false,
            attn_layer: 1,
            attn_dotr: false,
            normalize: false,
            temperature: Some(0.4),
            concat_output_tebd: false,
            ..one.clone()
        };
        let flat = SeAtten { strip: true, attn_layer: 0, ..one.clone() };
        let with = |own: &SeAtten| DescriptorOptions {
            kind: DescriptorKind::SeAtten(own.clone()),
            sel: Sel::Fixed(vec![17]),
            ..options()
        };
        vec![
            with(&one),
            DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..with(&bare) },
            with(&flat),
            DescriptorOptions {
                type_one_side: true,
                ..with(&SeAtten { strip: true, attn_dotr: false, ..one })
            },
        ]
    }

    /// One of each form.
    fn forms() -> Vec<Descriptors> {
        let mut all: Vec<Descriptors> = vec![options().into(), distances().into(), angles().into(), hybrid()];
        all.extend(attention().into_iter().map(Descriptors::from));
        all
    }

    /// Three of them with cutoffs and slots of their own.
    pub(crate) fn hybrid() -> Descriptors {
        let near = DescriptorOptions { rcut: 2.9, sel: Sel::Fixed(vec![5, 6]), ..distances() };
        let kind = DescriptorKind::SeE2A(SeE2A { axis_neuron: 2, linear_end: false });
        let pairs = DescriptorOptions {
            kind,
            rcut: 3.4,
            neuron: vec![3, 6],
            type_one_side: true,
            exclude_types: vec![(0, 0)],
            ..options()
        };
        Descriptors { list: vec![options(), near, pairs], is_hybrid: true }
    }

    /// A small model of two types with frame and atomic parameters.
    pub(crate) fn model(descriptor: impl Into<Descriptors>) -> Arc<Dp> {
        model_with(descriptor, |_| ())
    }

    /// Parameters of embedding nets as steep as training makes them: their series have several panels.
    pub(crate) fn steep_params(model: &Dp) -> Vec<f64> {
        let mut params = model.random_params(9);
        params[..model.fitting_params().start].iter_mut().for_each(|p| *p *= 5.0);
        params
    }

    /// The same with another fitting net.
    pub(crate) fn model_with(
        descriptor: impl Into<Descriptors>,
        change: impl FnOnce(&mut FittingOptions),
    ) -> Arc<Dp> {
        let mut fitting = FittingOptions {
            kind: FittingKind::Ener(crate::model::dp::fitting::Ener),
            neuron: vec![5, 5, 10],
            activation: Activation::Tanh,
            resnet_dt: true,
            precision: Precision::Float64,
            trainable: vec![true; 4],
            seed: Some(2),
            numb_fparam: 1,
            dim_case_embd: 0,
            default_fparam: None,
            use_aparam_as_mask: false,
            numb_aparam: 1,
            rcond: None,
            atom_ener: vec![],
            sel_type: vec![],
        };
        change(&mut fitting);
        let options = ModelOptions {
            type_map: vec!["A".into(), "B".into()],
            descriptors: descriptor.into(),
            fitting,
            pair_exclude_types: vec![],
            atom_exclude_types: vec![],
            preset_out_bias: vec![],
            short_range: None,
            type_embedding: None,
            data_stat_nbatch: 1,
            data_stat_protect: 0.01,
            script: serde_json::Value::Null,
        };
        let (n_parts, width) = (options.descriptors.list.len(), options.fitting.output().width);
        let row = |x: f64| (0..width).map(move |k| x + 0.1 * k as f64);
        let per_type = |of: [f64; 2]| of.into_iter().flat_map(row).collect::<Vec<f64>>();
        let stats = DpStatistics {
            davg: [[0.11, 0.0, 0.0, 0.0], [0.17, 0.0, 0.0, 0.0]].repeat(n_parts),
            dstd: [[0.2, 0.13, 0.13, 0.13], [0.21, 0.12, 0.12, 0.12]].repeat(n_parts),
            bias: per_type([-1.5, 0.7]),
            out_std: per_type([1.0, 1.3]),
            fparam_avg: vec![0.4],
            fparam_inv_std: vec![1.3],
            aparam_avg: vec![-0.2],
            aparam_inv_std: vec![0.8],
            pair_table: None,
        };
        Arc::new(Dp::new(options, stats))
    }

    /// Models with a table of pair energies, with and without the bias in it.
    pub(crate) fn blended() -> Vec<Arc<Dp>> {
        let row = |k: usize| {
            let r = 0.01 + 0.02 * k as f64;
            [r, 2.0 * (-r).exp() / r, (-1.5 * r).exp() / r, 3.0 * (-0.5 * r).exp()]
        };
        let table = PairTable::new(4, (0..180).flat_map(row).collect(), None, 4.0).unwrap();
        let with = |(descriptor, add_bias): (DescriptorOptions, bool)| {
            let mut model = Dp::clone(&model(descriptor));
            let (smin_alpha, sw_rmin, sw_rmax) = (0.3, 0.5, 2.2);
            model.options.short_range =
                Some(ShortRange { file: "table.txt".into(), smin_alpha, sw_rmin, sw_rmax, add_bias });
            model.stats.pair_table = Some(table.clone());
            Arc::new(model)
        };
        attention().into_iter().step_by(2).zip([true, false]).map(with).collect()
    }

    /// A crowded periodic frame: more neighbours than slots for some atoms, fewer for others, one virtual atom.
    pub(crate) fn frame(n: usize, salt: u64) -> Frame {
        let noise = |k: usize| (((k as u64 * 7 + salt) as f64 * 12.9898).sin() * 43758.5453).fract().abs();
        let types: Vec<i32> = (0..n).map(|i| if i == 3 { -1 } else { (i % 3 == 0) as i32 }).collect();
        Frame {
            types: types.into(),
            coord: (0..3 * n).map(|k| 6.0 * noise(k)).collect(),
            cell: Some([5.2, 0.1, 0.0, 0.7, 5.5, -0.3, 0.2, 0.4, 6.1]),
            fparam: vec![noise(91)],
            aparam: (0..n).map(|i| noise(200 + i)).collect(),
            sorted: false,
            labels: Labels::default(),
        }
    }

    fn energy(engine: &mut ReferenceEngine, params: &[f64], frame: &Frame) -> Prediction {
        let prepared = engine.preparer()(frame).unwrap();
        let mut out = Prediction::default();
        engine.evaluate(&mut out, params, &[&prepared]);
        out
    }

    /// Energies, forces, virials, then the gradient for fixed seeds.
    pub fn run<E: Engine>(engine: &mut E, params: &[f64], frames: &[Frame]) -> (Prediction, Vec<f64>) {
        let prepare = engine.preparer();
        let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
        let batch: Vec<_> = prepared.iter().collect();
        let mut out = Prediction::default();
        engine.evaluate(&mut out, params, &batch);
        let seeds = seeds(&out);
        let mut grad = vec![f64::NAN; params.len()];
        engine.backward(&mut grad, params, &batch, &seeds);
        (out, grad)
    }

    /// Seeds of any kind for a prediction.
    pub fn seeds(out: &Prediction) -> Seeds {
        let coefficient = |k: usize| ((k as f64 + 1.0) * 0.731).sin();
        let (n_frames, n) = (out.energy.len(), out.atom_energy.len());
        Seeds {
            dl_energy: (0..n_frames).map(coefficient).collect(),
            dl_atom_energy: (0..n).map(coefficient).collect(),
            dl_force: (0..3 * n).map(|k| 3.0 * coefficient(k)).collect(),
            dl_virial: (0..n_frames).map(|f| std::array::from_fn(|k| coefficient(40 * f + k))).collect(),
            dl_output: (0..out.output.len()).map(coefficient).collect(),
            dl_atom_output: (0..out.atom_output.len()).map(|k| 2.0 * coefficient(k)).collect(),
        }
    }

    /// Compares what [`run`] gave with what the reference gives; `tell` hears of every deviation.
    pub fn compare_results(
        got: &(Prediction, Vec<f64>),
        want: &(Prediction, Vec<f64>),
        tolerance: f64,
        tell: impl Fn(&str, f64),
    ) {
        let pairs = [
            ("energy", &got.0.energy[..], &want.0.energy[..]),
            ("atom energy", &got.0.atom_energy, &want.0.atom_energy),
            ("force", &got.0.force, &want.0.force),
            ("virial", got.0.virial.as_flattened(), want.0.virial.as_flattened()),
            ("output", &got.0.output, &want.0.output),
            ("outputs of atoms", &got.0.atom_output, &want.0.atom_output),
            ("gradient", &got.1, &want.1),
        ];
        for (name, got, want) in pairs {
            let worst = deviation(got, want);
            tell(name, worst);
            assert!(worst < tolerance, "{name}: worst relative deviation {worst:e}");
        }
    }

    /// The worst deviation relative to the largest value.
    pub fn deviation(got: &[f64], want: &[f64]) -> f64 {
        assert_eq!(got.len(), want.len());
        let scale = want.iter().fold(1e-12f64, |a, b| a.max(b.abs()));
        got.iter()
            .zip(want)
            .fold(0.0f64, |a, (g, w)| if g.is_nan() { f64::NAN } else { a.max((g - w).abs() / scale) })
    }

    #[test]
    fn force_is_minus_the_gradient_of_the_energy() {
        forms().into_iter().map(model).chain(blended()).for_each(check_force);
    }

    fn check_force(model: Arc<Dp>) {
        let params = model.random_params(5);
        let mut engine = ReferenceEngine::new(model);
        let f = frame(11, 1);
        let force = energy(&mut engine, &params, &f).force;
        for k in 0..f.coord.len() {
            let at = |h: f64, engine: &mut ReferenceEngine| {
                let mut moved = f.clone();
                moved.coord[k] += h;
                energy(engine, &params, &moved).energy[0]
            };
            let want = -(at(1e-5, &mut engine) - at(-1e-5, &mut engine)) / 2e-5;
            assert!((force[k] - want).abs() < 1e-7 * (1.0 + want.abs()), "{k}: {} {want}", force[k]);
        }
    }

    #[test]
    fn virial_is_minus_the_strain_derivative_of_the_energy() {
        forms().into_iter().map(model).chain(blended()).for_each(check_virial);
    }

    fn check_virial(model: Arc<Dp>) {
        let params = model.random_params(5);
        let mut engine = ReferenceEngine::new(model);
        let f = frame(11, 1);
        let virial = energy(&mut engine, &params, &f).virial[0];
        for a in 0..3 {
            for b in 0..3 {
                let at = |h: f64, engine: &mut ReferenceEngine| {
                    // x_b += h x_a for atoms and lattice vectors alike.
                    let mut moved = f.clone();
                    for x in moved.coord.chunks_exact_mut(3) {
                        x[b] += h * x[a];
                    }
                    let cell = moved.cell.as_mut().unwrap();
                    for v in cell.chunks_exact_mut(3) {
                        v[b] += h * v[a];
                    }
                    energy(engine, &params, &moved).energy[0]
                };
                let want = -(at(1e-5, &mut engine) - at(-1e-5, &mut engine)) / 2e-5;
                let got = virial[3 * a + b];
                assert!((got - want).abs() < 1e-6 * (1.0 + want.abs()), "{a}{b}: {got} {want}");
            }
        }
    }

    #[test]
    fn gradient_of_a_loss_agrees_with_central_differences() {
        forms().into_iter().map(model).chain(blended()).for_each(check_gradient);
        let descriptors: [Descriptors; 3] = [options().into(), distances().into(), hybrid()];
        for descriptor in descriptors {
            for kind in other_outputs() {
                check_gradient(model_with(descriptor.clone(), |fitting| fitting.kind = kind));
            }
        }
        for (descriptors, kind) in
            with_directions().iter().flat_map(|d| turned_outputs().into_iter().map(move |k| (d, k)))
        {
            check_gradient(model_with(descriptors.clone(), |fitting| fitting.kind = kind));
        }
    }

    /// Descriptors that tell directions: one, two, and two of them of which one has attention.
    pub(crate) fn with_directions() -> [Descriptors; 3] {
        let pairs = hybrid().list.remove(2);
        let attention = attention().remove(0);
        let both = |list| Descriptors { list, is_hybrid: true };
        [options().into(), both(vec![pairs.clone(), options()]), both(vec![attention, pairs])]
    }

    /// Fitting nets that predict no energy.
    pub(crate) fn other_outputs() -> Vec<FittingKind> {
        let property = |is_intensive, distinguish_types| {
            FittingKind::Property(Property {
                name: "gap".into(),
                task_dim: 2,
                is_intensive,
                distinguish_types,
            })
        };
        vec![FittingKind::Dos(Dos { numb_dos: 5 }), property(false, true), property(true, false)]
    }

    /// Those whose outputs turn with the atoms.
    pub(crate) fn turned_outputs() -> Vec<FittingKind> {
        let polar =
            |fit_diag, shift_diag| FittingKind::Polar(Polar { fit_diag, scale: vec![1.5, 0.7], shift_diag });
        vec![FittingKind::Dipole(Dipole), polar(true, true), polar(false, false)]
    }

    fn check_gradient(model: Arc<Dp>) {
        let params = model.random_params(5);
        let mut engine = ReferenceEngine::new(model);
        let frames = [frame(11, 1), frame(9, 4)];
        let prepare = engine.preparer();
        let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
        let batch: Vec<_> = prepared.iter().collect();
        // A loss that is linear in everything predicted, so that the seeds are its coefficients.
        let mut out = Prediction::default();
        engine.evaluate(&mut out, &params, &batch);
        let seeds = seeds(&out);
        let loss = |engine: &mut ReferenceEngine, params: &[f64]| {
            let mut out = Prediction::default();
            engine.evaluate(&mut out, params, &batch);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            dot(&seeds.dl_energy, &out.energy)
                + dot(&seeds.dl_atom_energy, &out.atom_energy)
                + dot(&seeds.dl_force, &out.force)
                + dot(seeds.dl_virial.as_flattened(), out.virial.as_flattened())
                + dot(&seeds.dl_output, &out.output)
                + dot(&seeds.dl_atom_output, &out.atom_output)
        };
        let mut grad = vec![0.0; params.len()];
        engine.backward(&mut grad, &params, &batch, &seeds);
        for k in (0..params.len()).step_by(7) {
            let (mut high, mut low) = (params.clone(), params.clone());
            high[k] += 1e-5;
            low[k] -= 1e-5;
            let want = (loss(&mut engine, &high) - loss(&mut engine, &low)) / 2e-5;
            assert!((grad[k] - want).abs() < 1e-5 * (1.0 + want.abs()), "{k}: {} {want}", grad[k]);
        }
    }
}
