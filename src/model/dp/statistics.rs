//! The statistics that a model is normalised with: rows of the environment matrix, bias of the output, parameters.

use super::options::{Applied, FittingOptions, ModelOptions};
use super::radial::radial;
use super::spec::DpStatistics;
use crate::data::Frame;
use crate::neighbor::{Blocks, Cut, NeighborList};
use crate::{Result, bail};

/// Smallest deviation of a row. `data_stat_protect` is for frame and atomic parameters only, as in DeePMD-kit's PyTorch.
const SMALLEST_ROW: f64 = 0.01;

/// Sums that give a mean and a standard deviation.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Moments {
    pub count: f64,
    pub sum: f64,
    pub squares: f64,
}

impl Moments {
    fn add(&mut self, x: f64) {
        self.count += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    fn merge(&mut self, other: &Moments) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// Adds the sums of other data, so many times.
    pub fn add_weighted(&mut self, other: &Moments, times: f64) {
        self.count += times * other.count;
        self.sum += times * other.sum;
        self.squares += times * other.squares;
    }

    fn mean(&self) -> f64 {
        if self.count == 0.0 { 0.0 } else { self.sum / self.count }
    }

    /// Never below `smallest`; 0.1 where there is no data.
    fn deviation(&self, smallest: f64) -> f64 {
        if self.count == 0.0 {
            return 0.1;
        }
        let variance = self.squares / self.count - self.mean() * self.mean();
        variance.max(0.0).sqrt().max(smallest)
    }
}

/// Mean and spread of labels of atoms. Unlike [`Moments`] it keeps the digits of numbers that differ little.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Spread {
    count: f64,
    mean: f64,
    /// The sum of squares of what differs from the mean.
    squares: f64,
}

impl Spread {
    fn of(x: f64) -> Self {
        Spread { count: 1.0, mean: x, squares: 0.0 }
    }

    fn merge(&mut self, other: &Spread) {
        let count = self.count + other.count;
        if other.count == 0.0 {
            return;
        }
        let shift = other.mean - self.mean;
        self.mean += shift * other.count / count;
        self.squares += other.squares + shift * shift * self.count * other.count / count;
        self.count = count;
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.count).sqrt()
    }
}

/// Sums over the sampled frames.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sums {
    /// `[descriptors, n_types]` of s, and of the other three components together.
    radial: Vec<Moments>,
    angular: Vec<Moments>,
    fparam: Vec<Moments>,
    aparam: Vec<Moments>,
    /// Atoms of each type in each frame with a label `[n_labels, n_types]`, and the labels `[n_labels, width]`: energies, or what
    /// else the model predicts.
    compositions: Vec<f64>,
    labels: Vec<f64>,
    /// Labels of atoms `[n_types, width]`; empty where no frame has them.
    of_atoms: Vec<Spread>,
}

impl Sums {
    /// The sums of one frame. Empty slots count as rows of zeros.
    pub fn of(options: &ModelOptions, frame: &Frame) -> Result<Self> {
        let mut sums = Sums::of_outputs(options, frame);
        for part in 0..options.descriptors.list.len() {
            sums.add_rows(part, options, frame)?;
        }
        Ok(sums)
    }

    /// The sums of somebody's blocks of a frame, block by block: those of all blocks make the sums of the frame.
    pub fn of_blocks(options: &ModelOptions, frame: &Frame, cut: Cut) -> Result<Vec<Self>> {
        let (n, own) = (cut.n_blocks(frame.n_atoms()), cut.own(frame.n_atoms()));
        if n == 1 {
            return own.map(|_| Sums::of(options, frame)).collect();
        }
        let first = |block| match block {
            0 => Sums::of_outputs(options, frame),
            _ => Sums::empty(options),
        };
        let mut sums: Vec<Sums> = own.clone().map(first).collect();
        for (part, se) in options.descriptors.list.iter().enumerate() {
            let blocks = Blocks::new(frame, se.rcut, n, 0.0)?;
            for (sums, block) in sums.iter_mut().zip(own.clone()) {
                let (n_types, sel) = (options.type_map.len(), Some(se.fixed_sel()));
                let list = NeighborList::of_block(frame, &blocks, block, n_types, sel);
                sums.add_listed(part, options, frame, &list)?;
            }
        }
        Ok(sums)
    }

    /// Adds the rows of one descriptor.
    fn add_rows(&mut self, part: usize, options: &ModelOptions, frame: &Frame) -> Result<()> {
        let (se, n_types) = (&options.descriptors.list[part], options.type_map.len());
        let list = NeighborList::new(frame, se.rcut, n_types, Some(se.fixed_sel()))?;
        self.add_listed(part, options, frame, &list)
    }

    /// Adds the rows of one descriptor around the centres of a list.
    fn add_listed(
        &mut self,
        part: usize,
        options: &ModelOptions,
        frame: &Frame,
        list: &NeighborList,
    ) -> Result<()> {
        let (se, n_types) = (&options.descriptors.list[part], options.type_map.len());
        let sel = se.fixed_sel();
        if se.env_protection == 0.0 {
            list.refuse_overlap()?;
        }
        let n_slots = sel.iter().sum::<usize>() as f64;
        let own = part * n_types..(part + 1) * n_types;
        let (radial_sums, angular_sums) = (&mut self.radial[own.clone()], &mut self.angular[own]);
        for i in (0..frame.n_atoms()).filter(|&i| list.is_center(i)) {
            let Ok(center) = usize::try_from(frame.types[i]) else { continue };
            radial_sums[center].count += n_slots;
            angular_sums[center].count += 3.0 * n_slots;
            // Beside a table of pair energies the network's own statistics know of no hidden pairs, as in DeePMD-kit.
            let hides = |t| options.short_range.is_none() && options.hides(center, t);
            for t in (0..n_types).filter(|&t| !se.excludes(center, t) && !hides(t)) {
                for n in list.of(i, t) {
                    let [s, _, q, _] = radial(se, n.r);
                    radial_sums[center].merge(&Moments { count: 0.0, sum: s, squares: s * s });
                    for d in n.d {
                        let x = q * d;
                        angular_sums[center].merge(&Moments { count: 0.0, sum: x, squares: x * x });
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Sums::of`] without the rows of the environment: what biases and parameters need.
    pub fn of_outputs(options: &ModelOptions, frame: &Frame) -> Self {
        let mut sums = Sums::empty(options);
        let label = match options.fitting.is_energy() {
            true => frame.labels.energy.as_slice(),
            false => frame.labels.output.as_deref().unwrap_or_default(),
        };
        if !label.is_empty() {
            sums.compositions = vec![0.0; options.type_map.len()];
            for &center in frame.types.iter().filter(|&&center| options.has_energy(center)) {
                sums.compositions[center as usize] += 1.0;
            }
            sums.labels.extend_from_slice(label);
        }
        if let Some(of_atoms) = &frame.labels.atom_output {
            sums.add_atoms(options, frame, of_atoms);
        }
        sums.add_parameters(&options.fitting, frame);
        sums
    }

    /// As in DeePMD-kit, those of types that the model leaves out count too.
    fn add_atoms(&mut self, options: &ModelOptions, frame: &Frame, labels: &[f64]) {
        let width = options.fitting.output().width;
        self.of_atoms = vec![Spread::default(); options.type_map.len() * width];
        for (&center, label) in frame.types.iter().zip(labels.chunks_exact(width)) {
            let Ok(center) = usize::try_from(center) else { continue };
            for (spread, &x) in self.of_atoms[center * width..].iter_mut().zip(label) {
                spread.merge(&Spread::of(x));
            }
        }
    }

    fn empty(options: &ModelOptions) -> Self {
        let n_rows = options.descriptors.list.len() * options.type_map.len();
        Sums {
            radial: vec![Moments::default(); n_rows],
            angular: vec![Moments::default(); n_rows],
            fparam: vec![Moments::default(); options.fitting.numb_fparam],
            aparam: vec![Moments::default(); options.fitting.numb_aparam],
            ..Sums::default()
        }
    }

    fn add_parameters(&mut self, fitting: &FittingOptions, frame: &Frame) {
        for (moments, &x) in self.fparam.iter_mut().zip(fitting.fparam_or_default(&frame.fparam)) {
            moments.add(x);
        }
        if fitting.numb_aparam > 0 {
            for atom in frame.aparam.chunks_exact(fitting.numb_aparam) {
                for (moments, &x) in self.aparam.iter_mut().zip(atom) {
                    moments.add(x);
                }
            }
        }
    }

    /// Adds the sums of another frame.
    pub fn merge(mut self, other: Sums) -> Self {
        let lists = [
            (&mut self.radial, &other.radial),
            (&mut self.angular, &other.angular),
            (&mut self.fparam, &other.fparam),
            (&mut self.aparam, &other.aparam),
        ];
        for (mine, theirs) in lists {
            for (a, b) in mine.iter_mut().zip(theirs) {
                a.merge(b);
            }
        }
        self.compositions.extend(other.compositions);
        self.labels.extend(other.labels);
        match self.of_atoms.is_empty() {
            true => self.of_atoms = other.of_atoms,
            false => self.of_atoms.iter_mut().zip(&other.of_atoms).for_each(|(a, b)| a.merge(b)),
        }
        self
    }

    /// Means, deviations and the bias by least squares.
    pub fn finish(&self, options: &ModelOptions) -> Result<DpStatistics> {
        Ok(self.summary(options)?.finish(options))
    }

    /// What is kept of the sums: the bias by least squares in place of all labels.
    pub fn summary(&self, options: &ModelOptions) -> Result<Summary> {
        let n_types = options.type_map.len();
        Ok(Summary {
            rows: Some(self.radial.iter().copied().zip(self.angular.iter().copied()).collect()),
            fparam: Some(self.fparam.clone()),
            aparam: Some(self.aparam.clone()),
            output: Some(self.bias_and_spread(options)?),
            observed: Some((0..n_types).filter(|&t| self.radial[t].count > 0.0).collect()),
        })
    }

    /// The output of each type that explains the labels best, and its spread `[n_types, width]`. Labels of atoms count where there
    /// are any; types without them have what labels of frames say.
    pub fn bias_and_spread(&self, options: &ModelOptions) -> Result<(Vec<f64>, Vec<f64>)> {
        let (n_types, output) = (options.type_map.len(), options.fitting.output());
        let (mut bias, mut spread) = match output.applied {
            Applied::NormalisedAlike if !self.labels.is_empty() => self.alike(options),
            _ => {
                let bias = self.bias(options)?;
                let spread = self.spread(&bias, options);
                (bias, spread.repeat(n_types))
            }
        };
        for (k, atoms) in self.of_atoms.iter().enumerate().filter(|(_, atoms)| atoms.count > 0.0) {
            (bias[k], spread[k]) = (atoms.mean, atoms.deviation());
        }
        if bias.iter().chain(&spread).any(|x| !x.is_finite()) {
            bail!("the {} of the training data give no finite bias: {bias:?}", labels_called(&output.name));
        }
        if output.applied.takes_deviation() && spread.contains(&0.0) {
            bail!(
                "the {} of the frames that the statistics look at are all the same: there is nothing to learn",
                labels_called(&output.name)
            );
        }
        Ok((bias, spread))
    }

    /// Atoms of each type, or where the output is intensive, what part of all atoms they are `[n_labels, n_types]`.
    fn parts(&self, options: &ModelOptions) -> Vec<f64> {
        let mut matrix = self.compositions.clone();
        if options.fitting.output().is_intensive {
            for row in matrix.chunks_exact_mut(options.type_map.len()) {
                let n: f64 = row.iter().sum();
                row.iter_mut().for_each(|x| *x /= n);
            }
        }
        matrix
    }

    /// Mean and deviation of the labels, of an atom where they are extensive: the same for all types.
    fn alike(&self, options: &ModelOptions) -> (Vec<f64>, Vec<f64>) {
        let (n_types, output) = (options.type_map.len(), options.fitting.output());
        let mut columns = vec![Spread::default(); output.width];
        for (row, label) in
            self.compositions.chunks_exact(n_types).zip(self.labels.chunks_exact(output.width))
        {
            let n = if output.is_intensive { 1.0 } else { row.iter().sum::<f64>() };
            columns.iter_mut().zip(label).for_each(|(column, x)| column.merge(&Spread::of(x / n)));
        }
        let mean: Vec<f64> = columns.iter().map(|column| column.mean).collect();
        let deviation: Vec<f64> = columns.iter().map(Spread::deviation).collect();
        (mean.repeat(n_types), deviation.repeat(n_types))
    }

    /// The output of each type that explains the labels best; types with a given bias or `atom_ener` keep it.
    fn bias(&self, options: &ModelOptions) -> Result<Vec<f64>> {
        let (fitting, n_types, width) =
            (&options.fitting, options.type_map.len(), options.fitting.output().width);
        let given = |t: usize| -> Option<&[f64]> {
            let preset = options.preset_out_bias.get(t).and_then(Option::as_deref);
            preset.or(fitting.atom_ener.get(t).map(Option::as_slice).filter(|e| !e.is_empty()))
        };
        let mut bias = vec![0.0; n_types * width];
        if !self.labels.is_empty() {
            let mut matrix = self.parts(options);
            let mut labels = self.labels.clone();
            for (row, label) in matrix.chunks_exact_mut(n_types).zip(labels.chunks_exact_mut(width)) {
                for (t, n) in row.iter_mut().enumerate() {
                    if let Some(given) = given(t) {
                        label.iter_mut().zip(given).for_each(|(x, e)| *x -= *n * e);
                        *n = 0.0;
                    }
                }
            }
            let n_labels = labels.len() / width;
            let rcond = fitting.rcond.unwrap_or(f64::EPSILON * n_labels.max(n_types) as f64);
            bias = least_squares(&matrix, &labels, n_types, rcond);
        }
        for t in 0..n_types {
            if let Some(given) = given(t) {
                bias[t * width..(t + 1) * width].copy_from_slice(given);
            }
        }
        Ok(bias)
    }

    /// Frames that have a label.
    pub fn n_labels(&self, options: &ModelOptions) -> usize {
        self.labels.len() / options.fitting.output().width
    }

    /// What the output of each type must change by to explain the labels of so many frames, from which predictions were taken off,
    /// and its spread.
    pub fn shift_and_spread(&self, options: &ModelOptions, n_frames: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let n = self.n_labels(options);
        if n != n_frames && self.of_atoms.is_empty() {
            let name = options.fitting.output().name;
            bail!("{n} of {n_frames} frames have a label \"{name}\": the bias cannot be fitted");
        }
        // The shift is relative: energies of isolated atoms that the options give are in the model already.
        let mut nothing_given = options.clone();
        (nothing_given.fitting.atom_ener, nothing_given.preset_out_bias) = (Vec::new(), Vec::new());
        self.bias_and_spread(&nothing_given)
    }

    /// Standard deviation of what the bias leaves unexplained `[width]`.
    fn spread(&self, bias: &[f64], options: &ModelOptions) -> Vec<f64> {
        let (n_types, width) = (options.type_map.len(), options.fitting.output().width);
        let mut moments = vec![Moments::default(); width];
        let matrix = self.parts(options);
        for (row, label) in matrix.chunks_exact(n_types).zip(self.labels.chunks_exact(width)) {
            for (k, moments) in moments.iter_mut().enumerate() {
                let explained = row.iter().enumerate().map(|(t, n)| n * bias[t * width + k]).sum::<f64>();
                moments.add(label[k] - explained);
            }
        }
        moments.iter().map(|m| if m.count == 0.0 { 1.0 } else { m.deviation(0.0) }).collect()
    }

    /// Labels, of an atom where they are extensive, that the bias leaves unexplained, root mean square.
    pub fn rmse(&self, options: &ModelOptions, bias: &[f64]) -> f64 {
        let (n_types, output) = (options.type_map.len(), options.fitting.output());
        let (matrix, width) = (self.parts(options), output.width);
        let mut moments = Moments::default();
        for (row, label) in matrix.chunks_exact(n_types).zip(self.labels.chunks_exact(width)) {
            let n: f64 = if output.is_intensive { 1.0 } else { row.iter().sum() };
            for (k, label) in label.iter().enumerate() {
                let explained = row.iter().enumerate().map(|(t, n)| n * bias[t * width + k]).sum::<f64>();
                moments.add((label - explained) / n);
            }
        }
        (moments.squares / moments.count.max(1.0)).sqrt()
    }
}

/// What labels of this output are called.
fn labels_called(name: &str) -> String {
    if name == "energy" { "energies".into() } else { format!("labels \"{name}\"") }
}

/// All that the statistics of a model are made from, group by group; `None` where a group is not known.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// `[n_types]` of s, and of the other three components together.
    pub rows: Option<Vec<(Moments, Moments)>>,
    /// `[numb_fparam]`
    pub fparam: Option<Vec<Moments>>,
    /// `[numb_aparam]`
    pub aparam: Option<Vec<Moments>>,
    /// `[n_types, width]` bias and spread of the output.
    pub output: Option<(Vec<f64>, Vec<f64>)>,
    /// Types that occur. No statistics need them; they are kept for other programs.
    pub observed: Option<Vec<usize>>,
}

impl Summary {
    /// Whether a model can be made of it.
    pub fn is_complete(&self) -> bool {
        self.rows.is_some() && self.fparam.is_some() && self.aparam.is_some() && self.output.is_some()
    }

    /// Each group from here, or from `other` where it is not known.
    pub fn or(self, other: Summary) -> Summary {
        Summary {
            rows: self.rows.or(other.rows),
            fparam: self.fparam.or(other.fparam),
            aparam: self.aparam.or(other.aparam),
            output: self.output.or(other.output),
            observed: self.observed.or(other.observed),
        }
    }

    /// The groups of this one that `known` lacks.
    pub fn beyond(self, known: &Summary) -> Summary {
        Summary {
            rows: self.rows.filter(|_| known.rows.is_none()),
            fparam: self.fparam.filter(|_| known.fparam.is_none()),
            aparam: self.aparam.filter(|_| known.aparam.is_none()),
            output: self.output.filter(|_| known.output.is_none()),
            observed: self.observed.filter(|_| known.observed.is_none()),
        }
    }

    /// The rows of the environment of descriptor `part`, `[n_types]`.
    pub fn rows_of(&mut self, part: usize, n_types: usize) -> &mut [(Moments, Moments)] {
        match &mut self.rows {
            Some(rows) => &mut rows[part * n_types..(part + 1) * n_types],
            None => &mut [],
        }
    }

    /// Means, deviations and bias of a complete summary.
    pub fn finish(self, options: &ModelOptions) -> DpStatistics {
        assert!(self.is_complete(), "statistics were used before all of them were known");
        let protect = options.data_stat_protect;
        let row = |(k, (radial, angular)): (usize, (Moments, Moments))| {
            let se = &options.descriptors.list[k / options.type_map.len()];
            let mean = if se.set_davg_zero { 0.0 } else { radial.mean() };
            let r = radial.deviation(SMALLEST_ROW);
            // Without directions nothing is divided by it.
            let a = if se.form().row() > 1 { angular.deviation(SMALLEST_ROW) } else { 1.0 };
            ([mean, 0.0, 0.0, 0.0], [r, a, a, a])
        };
        let (davg, dstd) = self.rows.into_iter().flatten().enumerate().map(row).unzip();
        let (bias, out_std) = self.output.unwrap_or_default();
        let (fparam, aparam) = (self.fparam.unwrap_or_default(), self.aparam.unwrap_or_default());
        let mean = |m: &[Moments]| m.iter().map(Moments::mean).collect::<Vec<f64>>();
        let inverse = |m: &[Moments]| m.iter().map(|m| 1.0 / m.deviation(protect)).collect::<Vec<f64>>();
        DpStatistics {
            davg,
            dstd,
            bias,
            out_std,
            fparam_avg: mean(&fparam),
            fparam_inv_std: inverse(&fparam),
            aparam_avg: mean(&aparam),
            aparam_inv_std: inverse(&aparam),
            pair_table: None, // no statistics make it
        }
    }
}

/// The shortest x that minimises |A x - b| for a row-major A with `n` columns, and each column of b: both have the same rows, x one
/// for each column of A. Singular values below `rcond` times the largest count as zero. One-sided Jacobi rotations: simple, and accurate to the last bits.
pub fn least_squares(a: &[f64], b: &[f64], n: usize, rcond: f64) -> Vec<f64> {
    let m = a.len() / n;
    let width = b.len() / m;
    // Columns of A, rotated until they are orthogonal: A V = U S.
    let mut u: Vec<Vec<f64>> = (0..n).map(|j| (0..m).map(|i| a[i * n + j]).collect()).collect();
    let mut v: Vec<Vec<f64>> =
        (0..n).map(|j| (0..n).map(|i| f64::from(u8::from(i == j))).collect()).collect();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for _ in 0..60 {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (alpha, beta, gamma) = (dot(&u[p], &u[p]), dot(&u[q], &u[q]), dot(&u[p], &u[q]));
                if gamma.abs() <= 1e-16 * (alpha * beta).sqrt() || gamma == 0.0 {
                    continue;
                }
                turned = true;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let t = if zeta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (1.0 + t * t).sqrt();
                rotate(&mut u, p, q, c, c * t);
                rotate(&mut v, p, q, c, c * t);
            }
        }
        if !turned {
            break;
        }
    }
    let sigma: Vec<f64> = u.iter().map(|u| dot(u, u).sqrt()).collect();
    let smallest = rcond * sigma.iter().fold(0.0f64, |a, &b| a.max(b));
    let mut x = vec![0.0; n * width];
    for k in 0..width {
        let b: Vec<f64> = b.iter().skip(k).step_by(width).copied().collect();
        for j in (0..n).filter(|&j| sigma[j] > smallest) {
            let weight = dot(&u[j], &b) / (sigma[j] * sigma[j]);
            for (x, v) in x.iter_mut().skip(k).step_by(width).zip(&v[j]) {
                *x += weight * v;
            }
        }
    }
    x
}

fn rotate(columns: &mut [Vec<f64>], p: usize, q: usize, c: f64, s: f64) {
    let (head, tail) = columns.split_at_mut(q);
    for (x, y) in head[p].iter_mut().zip(&mut tail[0]) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: &[f64], want: &[f64]) {
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-10 * (1.0 + w.abs()), "{got:?} {want:?}");
        }
    }

    #[test]
    fn a_regular_system_is_solved_exactly() {
        close(&least_squares(&[2.0, 1.0, 1.0, 3.0, 0.0, 2.0], &[4.0, 7.0, 4.0], 2, 1e-14), &[1.0, 2.0]);
    }

    #[test]
    fn one_composition_alone_gives_the_shortest_solution() {
        // 64 O and 128 H in every frame: only one combination is known.
        let a = [64.0, 128.0, 64.0, 128.0];
        let e = 64.0 * 64.0 + 128.0 * 128.0;
        close(&least_squares(&a, &[-100.0, -100.0], 2, 1e-14), &[-6400.0 / e, -12800.0 / e]);
    }

    #[test]
    fn a_type_that_never_occurs_gets_zero() {
        close(&least_squares(&[3.0, 0.0, 5.0, 0.0], &[6.0, 10.0], 2, 1e-14), &[2.0, 0.0]);
    }
}
