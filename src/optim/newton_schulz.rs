//! Matrices with all singular values near 1, by products alone: the iteration of Newton and Schulz.
//!
//! A polynomial in X X^T times X changes the singular values of X and nothing else; a few of them in a row bring every value that
//! is not tiny close to 1. All is done on the matrix as a tall one, T = X or X^T, where the polynomial stands on the right.

use crate::engine::cpu::dense::{Accumulate, Strided, product_into};
use crate::engine::cpu::pool::{Parts, Pool};

/// Rows of a product that are one task.
const STRIP: usize = 48;

/// Coefficients of X, of (X X^T) X and of (X X^T)^2 X.
pub type Polynomial = [f64; 3];

/// Grows small singular values fast, and leaves all between 0.7 and 1.2.
pub const FAST: Polynomial = [3.4445, -4.775, 2.0315];
/// Newton's own step: brings what is near 1 to 1.
pub const POLISH: Polynomial = [2.0, -1.5, 0.5];

/// Polynomials that are best one after the other ("Polar Express"), as published.
const POLAR_EXPRESS: [Polynomial; 5] = [
    [8.28721201814563, -23.595886519098837, 17.300387312530933],
    [4.107059111542203, -2.9478499167379106, 0.5448431082926601],
    [3.9486908534822946, -2.908902115962949, 0.5518191394370137],
    [3.3184196573706015, -2.488488024314874, 0.51004894012372],
    [2.300652019954817, -1.6689039845747493, 0.4188073119525673],
];
/// They are made for singular values up to 1; this much above is safe as well.
const SAFETY: f64 = 1.05;
/// Here the small matrices are made anew from the large one, since their rounding errors have grown.
const RESTART: usize = 2;

/// How singular values are brought to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recipe {
    /// So many fast steps, then so many polishing ones; matrices of a smaller norm than `least` stay smaller.
    Steps { fast: usize, polish: usize, least: f64 },
    /// On X X^T alone, which is small where X is long: the large matrix is multiplied twice. The norm is `least` larger.
    Gram { least: f64 },
}

impl Recipe {
    /// The polynomials, one after the other.
    pub fn polynomials(&self) -> Vec<Polynomial> {
        match *self {
            Recipe::Steps { fast, polish, .. } => [vec![FAST; fast], vec![POLISH; polish]].concat(),
            Recipe::Gram { .. } => POLAR_EXPRESS.map(safely).to_vec(),
        }
    }

    /// What keeps the norm that a matrix is divided by from being 0, and whether it is added to it.
    pub fn least(&self) -> (f64, bool) {
        match *self {
            Recipe::Steps { least, .. } => (least, false),
            Recipe::Gram { least } => (least, true),
        }
    }
}

/// A polynomial of [`POLAR_EXPRESS`] for singular values a little above 1.
fn safely([a, b, c]: Polynomial) -> Polynomial {
    [a / SAFETY, b / SAFETY.powi(3), c / SAFETY.powi(5)]
}

/// Memory for the iteration, and the threads that do it.
pub struct Orthogonalizer {
    pool: Pool,
    tall: Vec<f64>,
    next: Vec<f64>,
    /// X X^T, the polynomial, and products of them.
    gram: Vec<f64>,
    poly: Vec<f64>,
    all: Vec<f64>,
    spare: Vec<f64>,
}

impl Orthogonalizer {
    /// For matrices of these shapes.
    pub fn new(shapes: impl Iterator<Item = [usize; 2]>, pool: Pool) -> Self {
        let (mut large, mut small) = (0, 0);
        for [rows, cols] in shapes {
            large = large.max(rows * cols);
            small = small.max(rows.min(cols));
        }
        let square = || vec![0.0; small * small];
        Orthogonalizer {
            pool,
            tall: vec![0.0; large],
            next: vec![0.0; large],
            gram: square(),
            poly: square(),
            all: square(),
            spare: square(),
        }
    }

    /// Replaces a matrix `[rows, cols]`.
    pub fn run(&mut self, x: &mut [f64], [rows, cols]: [usize; 2], recipe: Recipe) {
        let (long, short) = (rows.max(cols), rows.min(cols));
        let (tall, square) = (long * short, short * short);
        let mut work = Work {
            pool: &self.pool,
            tall: &mut self.tall[..tall],
            next: &mut self.next[..tall],
            gram: &mut self.gram[..square],
            poly: &mut self.poly[..square],
            all: &mut self.all[..square],
            spare: &mut self.spare[..square],
            long,
            short,
        };
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = match recipe {
            Recipe::Steps { least, .. } => 1.0 / norm.max(least),
            Recipe::Gram { least } => 1.0 / (norm + least),
        };
        if rows >= cols {
            work.tall.iter_mut().zip(&*x).for_each(|(t, x)| *t = x * scale);
        } else {
            turn(work.tall, x, rows, cols);
            work.tall.iter_mut().for_each(|t| *t *= scale);
        }
        match recipe {
            Recipe::Steps { fast, polish, .. } => {
                (0..fast).for_each(|_| work.step(FAST));
                (0..polish).for_each(|_| work.step(POLISH));
            }
            Recipe::Gram { .. } => work.by_gram(),
        }
        if rows >= cols {
            x.copy_from_slice(work.tall);
        } else {
            turn(x, work.tall, cols, rows);
        }
    }
}

/// Writes a matrix `[rows, cols]` with rows as columns.
pub(super) fn turn(out: &mut [f64], x: &[f64], rows: usize, cols: usize) {
    for (i, row) in x.chunks_exact(cols).enumerate() {
        row.iter().enumerate().for_each(|(k, &x)| out[k * rows + i] = x);
    }
}

/// One matrix under way.
struct Work<'a> {
    pool: &'a Pool,
    tall: &'a mut [f64],
    next: &'a mut [f64],
    gram: &'a mut [f64],
    poly: &'a mut [f64],
    all: &'a mut [f64],
    spare: &'a mut [f64],
    long: usize,
    short: usize,
}

impl Work<'_> {
    /// gram = T^T T
    fn make_gram(&mut self) {
        let n = self.short;
        let columns = Strided { data: &*self.tall, row: 1, col: n };
        product_by_strips(self.pool, self.gram, columns, self.tall, [n, n, self.long]);
    }

    /// poly = a I + b gram + c gram^2
    fn make_polynomial(&mut self, [a, b, c]: Polynomial) {
        let n = self.short;
        times(self.pool, self.poly, self.gram, self.gram, n, n);
        self.poly.iter_mut().zip(&*self.gram).for_each(|(p, g)| *p = b * g + c * *p);
        self.poly.iter_mut().step_by(n + 1).for_each(|p| *p += a);
    }

    /// T = T (a I + b G + c G^2) with G = T^T T
    fn step(&mut self, polynomial: Polynomial) {
        self.make_gram();
        self.make_polynomial(polynomial);
        times(self.pool, self.next, self.tall, self.poly, self.long, self.short);
        self.tall.copy_from_slice(self.next);
    }

    /// All polynomials as products of small matrices: `all` collects them, and G follows without T, since it becomes P G P.
    fn by_gram(&mut self) {
        let n = self.short;
        self.make_gram();
        for (k, polynomial) in POLAR_EXPRESS.into_iter().enumerate() {
            if k == RESTART {
                self.apply_all();
                self.make_gram();
            }
            self.make_polynomial(safely(polynomial));
            if k == 0 || k == RESTART {
                self.all.copy_from_slice(self.poly);
            } else {
                times(self.pool, self.spare, self.all, self.poly, n, n);
                self.all.copy_from_slice(self.spare);
            }
            if k + 1 < POLAR_EXPRESS.len() && k + 1 != RESTART {
                times(self.pool, self.spare, self.gram, self.poly, n, n);
                times(self.pool, self.gram, self.poly, self.spare, n, n);
            }
        }
        self.apply_all();
    }

    /// T = T Q, with all polynomials collected so far in Q, which is symmetric.
    fn apply_all(&mut self) {
        times(self.pool, self.next, self.tall, self.all, self.long, self.short);
        self.tall.copy_from_slice(self.next);
    }
}

/// C `[m, n]` = A `[m, n]` B `[n, n]`
fn times(pool: &Pool, c: &mut [f64], a: &[f64], b: &[f64], m: usize, n: usize) {
    product_by_strips(pool, c, Strided { data: a, row: n, col: 1 }, b, [m, n, n]);
}

/// C `[m, n]` = A `[m, k]` B `[k, n]`, a strip of rows for each task.
pub(super) fn product_by_strips(
    pool: &Pool,
    c: &mut [f64],
    a: Strided<f64>,
    b: &[f64],
    [m, n, k]: [usize; 3],
) {
    let out = Parts::new(c);
    pool.run(m.div_ceil(STRIP), |strip| {
        let (first, rows) = (strip * STRIP, STRIP.min(m - strip * STRIP));
        let a = Strided { data: &a.data[first * a.row..], ..a };
        // SAFETY: one strip of rows for each task.
        let out = unsafe { out.part(first * n, rows * n) }.as_mut_ptr();
        unsafe { product_into(out, n, Accumulate::Overwrite, a, b, n, rows, n, k) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, cols: usize) -> Vec<f64> {
        (0..rows * cols).map(|k| (k as f64 * 0.7).sin() + 0.3 * (k as f64 * k as f64 * 0.11).cos()).collect()
    }

    /// The largest difference from orthogonal rows or columns, whichever are fewer.
    fn distance(x: &[f64], [rows, cols]: [usize; 2]) -> f64 {
        let at = |i: usize, k: usize| if rows <= cols { x[i * cols + k] } else { x[k * cols + i] };
        let (short, long) = (rows.min(cols), rows.max(cols));
        let mut worst = 0.0f64;
        for i in 0..short {
            for j in 0..short {
                let dot: f64 = (0..long).map(|k| at(i, k) * at(j, k)).sum();
                worst = worst.max((dot - if i == j { 1.0 } else { 0.0 }).abs());
            }
        }
        worst
    }

    #[test]
    fn singular_values_come_close_to_one_and_the_numbers_do_not_depend_on_threads() {
        let steps = Recipe::Steps { fast: 8, polish: 2, least: 1e-7 };
        for (shape, recipe, most) in [
            ([7, 7], steps, 1e-3),
            ([130, 60], steps, 1e-3),
            ([60, 130], Recipe::Gram { least: 1e-7 }, 0.15),
            ([130, 60], Recipe::Gram { least: 1e-7 }, 0.15),
        ] {
            let run = |threads| {
                let mut x = matrix(shape[0], shape[1]);
                let pool = Pool::new(threads).unwrap();
                Orthogonalizer::new([shape, [9, 200]].into_iter(), pool).run(&mut x, shape, recipe);
                x
            };
            let x = run(1);
            assert_eq!(x, run(3), "{shape:?}");
            let found = distance(&x, shape);
            assert!(found < most, "{shape:?} {recipe:?}: {found}");
        }
    }

    #[test]
    fn nothing_becomes_of_nothing() {
        for recipe in [Recipe::Steps { fast: 5, polish: 0, least: 1e-8 }, Recipe::Gram { least: 1e-7 }] {
            let mut x = vec![0.0; 12];
            Orthogonalizer::new([[3, 4]].into_iter(), Pool::serial()).run(&mut x, [3, 4], recipe);
            assert_eq!(x, [0.0; 12]);
        }
    }
}
