//! Which plan describes the embedding nets at the least cost.
//!
//! One series over the whole range for each net while a short one will do, else panels: from the lower end of the range on,
//! each reaches as far as a series of so many terms holds. Every neighbour type has panels of its own, where its nets need
//! them. What is chosen follows from the parameters alone, so all ranks and every restart choose alike.

use super::chebyshev::{LAST, Panel, Plan, Series, groups, n_stacks};
use super::nets::{Nets, Trace};
use super::pool::{Parts, Pool};
use crate::model::dp::Dp;
use crate::model::dp::options::Form;

/// Terms of one series over the whole range that are tried, in this order. Panels are cheaper than longer ones.
const WHOLE: [usize; 11] = [16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96];

/// Terms of a panel that are tried.
const TERMS: [usize; 5] = [16, 24, 32, 40, 48];

/// Steps along the range in which panels end; a net that needs narrower ones does not count as smooth.
const CELLS: usize = 4096;

/// Columns for each neighbour type above which the net itself is as fast.
const MOST_COLUMNS: usize = 1024;

/// Panels are chosen for a tail that is so much smaller than it must be: a net that becomes steeper outgrows them later.
const RESERVE: f64 = 0.05;

/// A plan is given up for a cheaper one where that one's cost is below this part of its own.
const CHEAPER: f64 = 0.85;

/// The least number of terms that a plan has.
pub const FEWEST_TERMS: usize = WHOLE[0];

/// What a user reads when there is no plan.
pub const NOT_SMOOTH: &str = "the embedding net is not smooth enough for a series: evaluating the net itself";

/// A series may miss a net at the ends of its panel, where it has no nodes, by so many times its tail: a step that hides there
/// would be larger.
const MISS: f64 = 20.0;

/// Points at which the size of a net is looked at.
const SAMPLES: usize = 64;

/// What a plan must hold for.
pub struct Wanted<'a> {
    pub model: &'a Dp,
    pub params: &'a [f64],
    /// Of the normalised s.
    pub range: (f64, f64),
    /// The largest tail, relative to the largest coefficient of the same net.
    pub tolerance: f64,
}

impl Wanted<'_> {
    /// The cheapest plan, if there is any. One that follows `outgrown` has longer series than that, or panels.
    pub fn choose(&self, pool: &Pool, outgrown: Option<&Plan>) -> Option<Plan> {
        let whole = self.whole(pool, outgrown.map_or(0, |plan| plan.terms));
        // A short series for each net is cheaper than any panels could be.
        // And panels would come to end at the kinks of a net that has some, which no tail then shows.
        let is_short = whole.as_ref().is_some_and(|plan| plan.terms <= TERMS[0]);
        if is_short || !self.model.descriptor().activation.is_smooth() {
            return whole;
        }
        let panels = self.panels(pool, RESERVE * self.tolerance);
        let found = [whole, panels.or_else(|| self.panels(pool, 0.5 * self.tolerance))];
        found.into_iter().flatten().min_by(|a, b| self.cost(a).total_cmp(&self.cost(b)))
    }

    /// A plan that is so much cheaper than `plan` that changing to it pays.
    pub fn cheaper_than(&self, pool: &Pool, plan: &Plan) -> Option<Plan> {
        self.choose(pool, None).filter(|new| self.cost(new) < CHEAPER * self.cost(plan))
    }

    /// The shortest series of more than so many terms over the whole range.
    fn whole(&self, pool: &Pool, more_than: usize) -> Option<Plan> {
        WHOLE.into_iter().filter(|&terms| terms > more_than).find_map(|terms| {
            let plan = Plan::whole(self.model, terms, self.range);
            let mut series = Series::default();
            series.expand(pool, &plan, self.model, self.params);
            (series.tail < self.tolerance).then_some(plan)
        })
    }

    /// The time that a step takes for a plan, in units of what a column of Q costs an atom: products with its columns, terms of
    /// the pairs, and panels that the pairs are sorted into. What a term of a pair costs is small: on an H200 a young net on one
    /// series of 72 terms is 4% faster than on eight panels of 24, on two cores there is no difference.
    fn cost(&self, plan: &Plan) -> f64 {
        let mut pairs = self.model.n_sel() as f64;
        if self.model.descriptor().form() == Form::Angles {
            // Every two of them once, where half of the slots are filled.
            pairs *= pairs / 8.0;
        }
        plan.columns() as f64 + pairs / 200.0 * plan.terms as f64 + 4.0 * plan.panels().len() as f64
    }

    /// The cheapest panels with tails below `tolerance`.
    fn panels(&self, pool: &Pool, tolerance: f64) -> Option<Plan> {
        let n_types = groups(self.model).len();
        let mut found: Vec<Option<Vec<f64>>> = vec![None; TERMS.len() * n_types];
        let parts = Parts::new(&mut found);
        pool.run(TERMS.len() * n_types, |job| {
            let nets = TypeNets::new(self, job % n_types);
            // SAFETY: one element for each task.
            unsafe { parts.part(job, 1)[0] = nets.edges(TERMS[job / n_types], tolerance) };
        });
        let plan = |(edges, &terms): (&[Option<Vec<f64>>], &usize)| {
            let edges: Option<Vec<Vec<f64>>> = edges.iter().cloned().collect();
            edges.map(|edges| Plan::new(self.model, terms, &edges))
        };
        let plans = found.chunks(n_types).zip(&TERMS).filter_map(plan);
        plans.min_by(|a, b| self.cost(a).total_cmp(&self.cost(b)))
    }
}

/// The nets of one neighbour type.
struct TypeNets<'a> {
    wanted: &'a Wanted<'a>,
    neighbor: usize,
    nets: Nets<'a>,
    /// The largest value that each takes, stack after stack.
    sizes: Vec<f64>,
}

impl<'a> TypeNets<'a> {
    fn new(wanted: &'a Wanted, neighbor: usize) -> Self {
        let (low, high) = wanted.range;
        let at = |k: usize| low + (high - low) * k as f64 / (SAMPLES - 1) as f64;
        let points: Vec<f64> = (0..SAMPLES).map(at).collect();
        let (mut trace, nets) = (Trace::default(), Nets::new(wanted.model, wanted.params));
        let mut size = |stack: usize| {
            let values = nets.values(&mut trace, stack, neighbor, &points);
            values.iter().fold(1e-300, |a: f64, b| a.max(b.abs()))
        };
        let sizes = (0..n_stacks(wanted.model)).map(&mut size).collect();
        TypeNets { wanted, neighbor, nets, sizes }
    }

    /// The edges of panels whose series of `terms` have tails below `tolerance`; `None` where there would be too many.
    fn edges(&self, terms: usize, tolerance: f64) -> Option<Vec<f64>> {
        let (low, high) = self.wanted.range;
        let edge = |cell: usize| match cell {
            CELLS => high,
            _ => low + (high - low) * cell as f64 / CELLS as f64,
        };
        let (mut trace, probe) = (Trace::default(), Probe::new(terms));
        let mut holds = |from: usize, to: usize| {
            let panel = Panel { neighbor: self.neighbor, low: edge(from), high: edge(to) };
            self.error(&mut trace, panel, &probe) < tolerance
        };
        let (mut edges, mut at, mut width) = (vec![low], 0, CELLS / 16);
        while at < CELLS {
            if edges.len() * terms > MOST_COLUMNS {
                return None;
            }
            width = widest(CELLS - at, width, |width| holds(at, at + width))?;
            at += width;
            edges.push(edge(at));
        }
        Some(edges)
    }

    /// The largest of the last coefficients on a panel, or of what its series misses at its ends, over the largest value of the
    /// same net.
    fn error(&self, trace: &mut Trace, panel: Panel, probe: &Probe) -> f64 {
        let m = self.wanted.model.n_embed();
        let points: Vec<f64> = probe.points.iter().map(|x| panel.middle() + panel.half() * x).collect();
        let mut error = 0.0f64;
        for (stack, &size) in self.sizes.iter().enumerate() {
            let values = self.nets.values(trace, stack, self.neighbor, &points);
            for (row, scale) in &probe.rows {
                let mut sums = vec![0.0; m];
                for (weight, values) in row.iter().zip(values.chunks_exact(m)) {
                    sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += weight * x);
                }
                let largest = sums.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                error = error.max(scale * largest / size);
            }
        }
        error
    }
}

/// What is looked at on a panel: sums over the values of a net at some points.
struct Probe {
    /// The nodes and both ends, from -1 to 1.
    points: Vec<f64>,
    /// Weights of the points, and how much the sum counts: each of the last coefficients, and what the series misses at an end.
    rows: Vec<(Vec<f64>, f64)>,
}

impl Probe {
    fn new(terms: usize) -> Self {
        let angle = |n: usize| std::f64::consts::PI * (n as f64 + 0.5) / terms as f64;
        let weight = |k: usize, n: usize| {
            if k == 0 { 1.0 / terms as f64 } else { 2.0 / terms as f64 * (k as f64 * angle(n)).cos() }
        };
        let points: Vec<f64> = (0..terms).map(|n| angle(n).cos()).chain([-1.0, 1.0]).collect();
        let last = (terms - LAST..terms).map(|k| ((0..terms).map(|n| weight(k, n)).collect(), 1.0));
        let ends = [-1.0f64, 1.0].into_iter().enumerate().map(|(end, x)| {
            let series = (0..terms).map(|n| (0..terms).map(|k| weight(k, n) * x.powi(k as i32)).sum());
            let mut row: Vec<f64> = series.collect();
            row.extend([0.0; 2]);
            row[terms + end] = -1.0;
            (row, 1.0 / MISS)
        });
        Probe { points, rows: last.chain(ends).collect() }
    }
}

/// The largest of 1 ..= `most` for which `holds`, looked for from `guess` on; `None` where 1 does not hold.
fn widest(most: usize, guess: usize, mut holds: impl FnMut(usize) -> bool) -> Option<usize> {
    // The largest that is known to hold, and the smallest that is known not to.
    let (mut good, mut bad) = (0, most + 1);
    let mut next = guess.clamp(1, most);
    while good + 1 < bad {
        match holds(next) {
            true => good = next,
            false => bad = next,
        }
        next = match (good, bad) {
            (0, bad) => (bad / 2).max(1),
            (good, bad) if bad > most => (2 * good).min(most),
            (good, bad) => (good + bad) / 2,
        };
    }
    (good > 0).then_some(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::{model, options};
    use crate::model::activation::Activation;
    use crate::model::dp::options::DescriptorOptions;

    #[test]
    fn the_widest_is_found_from_any_guess() {
        for most in [1, 2, 7, 64] {
            for limit in 0..=most + 1 {
                for guess in [0, 1, 5, 63, 900] {
                    let want = limit.min(most);
                    let got = widest(most, guess, |n| n <= limit);
                    assert_eq!(got, (want > 0).then_some(want), "{most} {limit} {guess}");
                }
            }
        }
    }

    fn tail(wanted: &Wanted, plan: &Plan) -> f64 {
        let mut series = Series::default();
        series.expand(&Pool::serial(), plan, wanted.model, wanted.params);
        series.tail
    }

    #[test]
    fn steep_nets_get_panels_that_hold_and_smoother_ones_fewer() {
        for one_side in [true, false] {
            let model = model(DescriptorOptions { type_one_side: one_side, ..options() });
            let young = model.random_params(3);
            let mut columns = 0;
            for steepness in [1.0, 6.0, 30.0] {
                let params: Vec<f64> = young.iter().map(|p| p * steepness).collect();
                for tolerance in [1e-12, 1e-7] {
                    let wanted = Wanted { model: &model, params: &params, range: (-0.5, 9.0), tolerance };
                    let plan = wanted.choose(&Pool::serial(), None).expect("a plan for every smooth net");
                    assert!(tail(&wanted, &plan) < tolerance, "{steepness} {tolerance}");
                    if tolerance == 1e-12 {
                        assert!(plan.columns() > columns, "{steepness}: {} columns", plan.columns());
                        columns = plan.columns();
                    }
                }
            }
        }
    }

    #[test]
    fn steps_that_no_panel_resolves_are_found_out_also_where_a_panel_ends() {
        let model = model(options());
        let params: Vec<f64> = model.random_params(3).iter().map(|p| p * 1e6).collect();
        let wanted = Wanted { model: &model, params: &params, range: (-0.5, 9.0), tolerance: 1e-12 };
        assert_eq!(wanted.choose(&Pool::serial(), None), None);
    }

    #[test]
    fn what_is_outgrown_is_followed_by_something_else_and_what_is_cheaper_pays() {
        let model = model(options());
        let params = model.random_params(3);
        let wanted = Wanted { model: &model, params: &params, range: (-0.5, 9.0), tolerance: 1e-12 };
        let pool = Pool::serial();
        let plan = wanted.choose(&pool, None).expect("a plan");
        let next = wanted.choose(&pool, Some(&plan)).expect("another plan");
        assert_ne!(plan, next);
        let fine: Vec<f64> = (0..=20).map(|k| -0.5 + 9.5 * f64::from(k) / 20.0).collect();
        let fine = Plan::new(&model, 48, &vec![fine; 2]);
        assert_eq!(wanted.cheaper_than(&pool, &fine), Some(plan.clone()));
        assert_eq!(wanted.cheaper_than(&pool, &plan), None);
    }

    #[test]
    fn nets_with_kinks_have_no_plan() {
        let model = model(DescriptorOptions { activation: Activation::Relu, ..options() });
        let params = model.random_params(3);
        let wanted = Wanted { model: &model, params: &params, range: (-0.5, 9.0), tolerance: 1e-7 };
        assert_eq!(wanted.choose(&Pool::serial(), None), None);
    }
}
