//! The statistics that a model is normalised with: rows of the environment matrix, energy bias, parameters.

use super::options::{FittingOptions, ModelOptions};
use super::radial::radial;
use super::spec::DpStatistics;
use crate::data::Frame;
use crate::neighbor::NeighborList;
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

/// Sums over the sampled frames.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sums {
    /// `[descriptors, n_types]` of s, and of the other three components together.
    radial: Vec<Moments>,
    angular: Vec<Moments>,
    fparam: Vec<Moments>,
    aparam: Vec<Moments>,
    /// Atoms of each type in each frame with an energy `[n_energies, n_types]`, and the energies.
    compositions: Vec<f64>,
    energies: Vec<f64>,
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

    /// Adds the rows of one descriptor.
    fn add_rows(&mut self, part: usize, options: &ModelOptions, frame: &Frame) -> Result<()> {
        let (se, n_types) = (&options.descriptors.list[part], options.type_map.len());
        let sel = se.fixed_sel();
        let list = NeighborList::new(frame, se.rcut, n_types, Some(sel))?;
        if se.env_protection == 0.0 {
            list.refuse_overlap()?;
        }
        let n_slots = sel.iter().sum::<usize>() as f64;
        let own = part * n_types..(part + 1) * n_types;
        let (radial_sums, angular_sums) = (&mut self.radial[own.clone()], &mut self.angular[own]);
        for i in 0..frame.n_atoms() {
            let Ok(center) = usize::try_from(frame.types[i]) else { continue };
            radial_sums[center].count += n_slots;
            angular_sums[center].count += 3.0 * n_slots;
            for t in (0..n_types).filter(|&t| !se.excludes(center, t) && !options.hides(center, t)) {
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
        if let Some(energy) = frame.labels.energy {
            sums.compositions = vec![0.0; options.type_map.len()];
            for &center in frame.types.iter().filter(|&&center| options.has_energy(center)) {
                sums.compositions[center as usize] += 1.0;
            }
            sums.energies.push(energy);
        }
        sums.add_parameters(&options.fitting, frame);
        sums
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
        self.energies.extend(other.energies);
        self
    }

    /// Means, deviations and the energy bias by least squares.
    pub fn finish(&self, options: &ModelOptions) -> Result<DpStatistics> {
        Ok(self.summary(options)?.finish(options))
    }

    /// What is kept of the sums: the energy bias by least squares in place of all energies.
    pub fn summary(&self, options: &ModelOptions) -> Result<Summary> {
        let n_types = options.type_map.len();
        let bias = self.bias(options)?;
        let spread = vec![self.spread(&bias, n_types); n_types];
        Ok(Summary {
            rows: Some(self.radial.iter().copied().zip(self.angular.iter().copied()).collect()),
            fparam: Some(self.fparam.clone()),
            aparam: Some(self.aparam.clone()),
            output: Some((bias, spread)),
            observed: Some((0..n_types).filter(|&t| self.radial[t].count > 0.0).collect()),
        })
    }

    /// The energy of each type that explains the energies best; types with a given bias or `atom_ener` keep it.
    fn bias(&self, options: &ModelOptions) -> Result<Vec<f64>> {
        let (fitting, n_types) = (&options.fitting, options.type_map.len());
        let of = |list: &[Option<f64>], t: usize| list.get(t).copied().flatten();
        let given = |t: usize| of(&options.preset_out_bias, t).or(of(&fitting.atom_ener, t));
        if self.energies.is_empty() {
            return Ok((0..n_types).map(|t| given(t).unwrap_or(0.0)).collect());
        }
        let mut matrix = self.compositions.clone();
        let mut energies = self.energies.clone();
        for (row, energy) in matrix.chunks_exact_mut(n_types).zip(&mut energies) {
            for (t, n) in row.iter_mut().enumerate() {
                if let Some(e) = given(t) {
                    *energy -= *n * e;
                    *n = 0.0;
                }
            }
        }
        let rcond = fitting.rcond.unwrap_or(f64::EPSILON * energies.len().max(n_types) as f64);
        let mut bias = least_squares(&matrix, &energies, n_types, rcond);
        for (t, bias) in bias.iter_mut().enumerate() {
            if let Some(e) = given(t) {
                *bias = e;
            }
        }
        if bias.iter().any(|x| !x.is_finite()) {
            bail!("the energies of the training data give no finite bias: {bias:?}");
        }
        Ok(bias)
    }

    /// What the energies of each type must change by to explain the energies beyond `predicted`, frame by frame.
    pub fn bias_shift(&self, options: &ModelOptions, predicted: &[f64]) -> Result<Vec<f64>> {
        Ok(self.bias_shift_and_spread(options, predicted)?.0)
    }

    /// The same, and the standard deviation of what it leaves unexplained.
    pub fn bias_shift_and_spread(
        &self,
        options: &ModelOptions,
        predicted: &[f64],
    ) -> Result<(Vec<f64>, f64)> {
        if predicted.len() != self.energies.len() {
            bail!(
                "{} of {} frames have an energy: the bias cannot be fitted",
                self.energies.len(),
                predicted.len()
            );
        }
        let energies = self.energies.iter().zip(predicted).map(|(label, e)| label - e).collect();
        let rest = Sums { energies, ..self.clone() };
        // The shift is relative: energies of isolated atoms that the options give are in the model already.
        let mut nothing_given = options.clone();
        (nothing_given.fitting.atom_ener, nothing_given.preset_out_bias) = (Vec::new(), Vec::new());
        let shift = rest.bias(&nothing_given)?;
        let spread = rest.spread(&shift, options.type_map.len());
        Ok((shift, spread))
    }

    /// Standard deviation of what the bias leaves unexplained.
    fn spread(&self, bias: &[f64], n_types: usize) -> f64 {
        let mut moments = Moments::default();
        for (row, energy) in self.compositions.chunks_exact(n_types).zip(&self.energies) {
            moments.add(energy - row.iter().zip(bias).map(|(n, b)| n * b).sum::<f64>());
        }
        if moments.count == 0.0 { 1.0 } else { moments.deviation(0.0) }
    }

    /// Energies per atom that the bias leaves unexplained, root mean square.
    pub fn energy_rmse_per_atom(&self, bias: &[f64]) -> f64 {
        let mut moments = Moments::default();
        for (row, energy) in self.compositions.chunks_exact(bias.len()).zip(&self.energies) {
            let n: f64 = row.iter().sum();
            moments.add((energy - row.iter().zip(bias).map(|(n, b)| n * b).sum::<f64>()) / n);
        }
        (moments.squares / moments.count.max(1.0)).sqrt()
    }
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
    /// `[n_types]` energy bias and spread, eV.
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
        }
    }
}

/// The shortest x that minimises |A x - b| for a row-major A with `n` columns; singular values below
/// `rcond` times the largest count as zero. One-sided Jacobi rotations: simple, and accurate to the last bits.
pub fn least_squares(a: &[f64], b: &[f64], n: usize, rcond: f64) -> Vec<f64> {
    let m = b.len();
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
    let mut x = vec![0.0; n];
    for j in (0..n).filter(|&j| sigma[j] > smallest) {
        let weight = dot(&u[j], b) / (sigma[j] * sigma[j]);
        for (x, v) in x.iter_mut().zip(&v[j]) {
            *x += weight * v;
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
