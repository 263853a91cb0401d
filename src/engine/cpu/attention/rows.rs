//! Operations on one row of a matrix, each with its tangent and its adjoints.
//!
//! The adjoint of a value y is `dl_y`, that of its change y_dot is `de_y`. An operation gives `de_x` from `de_y`, and `dl_x` from both:
//! how y_dot depends on x is part of it.

use crate::engine::cpu::elementwise::dot;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;

/// The mean of a row is taken off, or not: rows of mean 0 and variance 1, or of length 1.
#[derive(Clone, Copy)]
pub enum Kind<T> {
    /// `y = x / |x|`
    Unit,
    /// `y = (x - mean) / sqrt(variance + eps)`
    Normal { eps: T },
}

impl<T: Real> Kind<T> {
    /// What squares are added up with.
    fn weight(self, n: usize) -> T {
        match self {
            Kind::Unit => T::ONE,
            Kind::Normal { .. } => T::from_f64(1.0 / n as f64),
        }
    }
}

multiversion! {
    /// Sums of a row in eight lanes: fast, and the same for every instruction set.
    fn sum<T: Real>(x: &[T]) -> T {
        let mut sums = [T::ZERO; 8];
        let chunks = x.chunks_exact(8);
        let rest: T = chunks.remainder().iter().copied().sum();
        for chunk in chunks {
            for l in 0..8 {
                sums[l] += chunk[l];
            }
        }
        sums.into_iter().sum::<T>() + rest
    }
}

fn mean<T: Real>(x: &[T]) -> T {
    sum(x) * T::from_f64(1.0 / x.len() as f64)
}

multiversion! {
    /// `x[k] = scale (x[k] - shift)`
    fn shift_scale<T: Real>(x: &mut [T], shift: T, scale: T) {
        for x in x {
            *x = scale * (*x - shift);
        }
    }
}

/// Overwrites x with y; returns what x was multiplied by.
pub fn scale_row<T: Real>(x: &mut [T], kind: Kind<T>) -> T {
    let (shift, eps) = match kind {
        Kind::Unit => (T::ZERO, T::ZERO),
        Kind::Normal { eps } => (mean(x), eps),
    };
    if let Kind::Normal { .. } = kind {
        shift_scale(x, shift, T::ONE);
    }
    let square = dot(x, x) * kind.weight(x.len()) + eps;
    // As in PyTorch, where a vector of no length stays one.
    let smallest = T::from_f64(1e-24);
    let inverse = T::ONE / (if square > smallest { square } else { smallest }).sqrt();
    shift_scale(x, T::ZERO, inverse);
    inverse
}

multiversion! {
    /// `out[k] = scale (v[k] - shift - y[k] along)`
    fn project<T: Real>(out: &mut [T], v: &[T], y: &[T], shift: T, along: T, scale: T) {
        for ((out, v), y) in out.iter_mut().zip(v).zip(y) {
            *out = scale * (*v - shift - *y * along);
        }
    }
}

/// The change of y with that of x, and the adjoint of that: `de_x` from `de_y`. Both are the same symmetric matrix.
pub fn scale_row_tangent<T: Real>(out: &mut [T], v: &[T], y: &[T], inverse: T, kind: Kind<T>) {
    let shift = if let Kind::Normal { .. } = kind { mean(v) } else { T::ZERO };
    project(out, v, y, shift, dot(y, v) * kind.weight(v.len()), inverse);
}

multiversion! {
    /// `out[k] = v[k] - scale (e[k] a + de[k] b)`
    fn lessen<T: Real>(out: &mut [T], v: &[T], e: &[T], de: &[T], scale: T, a: T, b: T) {
        for (((out, v), e), de) in out.iter_mut().zip(v).zip(e).zip(de) {
            *out = *v - scale * (*e * a + *de * b);
        }
    }
}

multiversion! {
    /// `out[k] -= scale y[k]`
    fn take_off<T: Real>(out: &mut [T], y: &[T], scale: T) {
        for (out, y) in out.iter_mut().zip(y) {
            *out -= scale * *y;
        }
    }
}

/// `dl_x` from `dl_y` and `de_y`, where x moves along `x_dot`. `spare` is as long as a row.
#[allow(clippy::too_many_arguments)]
pub fn scale_row_adjoint<T: Real>(
    dl_x: &mut [T],
    spare: &mut [T],
    dl_y: &[T],
    de_y: &[T],
    y: &[T],
    x_dot: &[T],
    inverse: T,
    kind: Kind<T>,
) {
    // y_dot = inverse (e - y m) with e = x_dot, less its mean, and m = weight y.e
    let weight = kind.weight(y.len());
    let shift = if let Kind::Normal { .. } = kind { mean(x_dot) } else { T::ZERO };
    spare.copy_from_slice(x_dot);
    if let Kind::Normal { .. } = kind {
        shift_scale(spare, shift, T::ONE);
    }
    let (along, across, both) = (weight * dot(y, spare), dot(de_y, y), dot(de_y, spare));
    // By way of y, as it stands in y_dot ...
    let by_inverse = both - along * across;
    lessen(dl_x, dl_y, spare, de_y, inverse, weight * across, along);
    spare.copy_from_slice(dl_x);
    scale_row_tangent(dl_x, spare, y, inverse, kind);
    // ... and of the factor in front, whose derivative by x is -weight inverse^2 y.
    take_off(dl_x, y, by_inverse * weight * inverse * inverse);
}

multiversion! {
    /// `w[k] = exp(w[k] - largest)`, where none is above `largest`.
    fn exponentials<T: Real>(w: &mut [T], largest: T) {
        for w in w {
            *w = (*w - largest).exp();
        }
    }
}

multiversion! {
    /// The largest of some numbers and `first`, in eight lanes.
    fn largest<T: Real>(w: &[T], first: T) -> T {
        let larger = |a: T, b: T| if b > a { b } else { a };
        let mut most = [first; 8];
        let chunks = w.chunks_exact(8);
        let rest = chunks.remainder().iter().fold(first, |a, &b| larger(a, b));
        for chunk in chunks {
            for l in 0..8 {
                most[l] = larger(most[l], chunk[l]);
            }
        }
        most.into_iter().fold(rest, larger)
    }
}

/// Overwrites a row of weights w with `exp(w) / (sum + n_rest exp(rest))`, where `rest` are weights that nobody sees.
pub fn softmax<T: Real>(w: &mut [T], rest: Option<(T, T)>) {
    let Some(&first) = w.first() else { return };
    let largest = largest(w, rest.map_or(first, |(_, rest)| rest));
    exponentials(w, largest);
    let others = rest.map_or(T::ZERO, |(n, rest)| n * (rest - largest).exp());
    let inverse = T::ONE / (sum(w) + others);
    shift_scale(w, T::ZERO, inverse);
}

multiversion! {
    /// `out[k] = p[k] (v[k] - shift)`
    fn weigh<T: Real>(out: &mut [T], v: &[T], p: &[T], shift: T) {
        for ((out, v), p) in out.iter_mut().zip(v).zip(p) {
            *out = *p * (*v - shift);
        }
    }
}

/// The change of the probabilities p with that of the weights, and the adjoint of that: the same symmetric matrix.
pub fn softmax_tangent<T: Real>(out: &mut [T], v: &[T], p: &[T]) {
    weigh(out, v, p, dot(p, v));
}

multiversion! {
    /// `out[k] = dl[k] + de[k] (z_dot[k] - b) - z_dot[k] a`
    fn by_probability<T: Real>(out: &mut [T], dl: &[T], de: &[T], z_dot: &[T], a: T, b: T) {
        for (((out, dl), de), z_dot) in out.iter_mut().zip(dl).zip(de).zip(z_dot) {
            *out = *dl + *de * (*z_dot - b) - *z_dot * a;
        }
    }
}

/// The adjoint of the weights from those of the probabilities and of their change, where the weights move along `z_dot`.
pub fn softmax_adjoint<T: Real>(
    dl_z: &mut [T],
    spare: &mut [T],
    dl_p: &[T],
    de_p: &[T],
    p: &[T],
    z_dot: &[T],
) {
    by_probability(spare, dl_p, de_p, z_dot, dot(p, de_p), dot(p, z_dot));
    softmax_tangent(dl_z, spare, p);
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 11;

    fn noise(salt: f64) -> Vec<f64> {
        (0..N).map(|k| ((k as f64 + salt) * 12.9898).sin()).collect()
    }

    /// y and y_dot of a row.
    type Operation = fn(&[f64], &[f64]) -> (Vec<f64>, Vec<f64>);
    /// dl_x from x, x_dot, dl_y, de_y.
    type Adjoint = fn(&[f64], &[f64], &[f64], &[f64]) -> Vec<f64>;

    fn scaled(x: &[f64], x_dot: &[f64], kind: Kind<f64>) -> (Vec<f64>, Vec<f64>) {
        let (mut y, mut y_dot) = (x.to_vec(), vec![0.0; N]);
        let inverse = scale_row(&mut y, kind);
        scale_row_tangent(&mut y_dot, x_dot, &y, inverse, kind);
        (y, y_dot)
    }

    fn scaled_adjoint(x: &[f64], x_dot: &[f64], dl_y: &[f64], de_y: &[f64], kind: Kind<f64>) -> Vec<f64> {
        let (mut y, mut dl_x, mut spare) = (x.to_vec(), vec![0.0; N], vec![0.0; N]);
        let inverse = scale_row(&mut y, kind);
        scale_row_adjoint(&mut dl_x, &mut spare, dl_y, de_y, &y, x_dot, inverse, kind);
        dl_x
    }

    fn probabilities(z: &[f64], z_dot: &[f64], rest: Option<(f64, f64)>) -> (Vec<f64>, Vec<f64>) {
        let (mut p, mut p_dot) = (z.to_vec(), vec![0.0; N]);
        softmax(&mut p, rest);
        softmax_tangent(&mut p_dot, z_dot, &p);
        (p, p_dot)
    }

    fn probabilities_adjoint(
        z: &[f64],
        z_dot: &[f64],
        dl: &[f64],
        de: &[f64],
        rest: Option<(f64, f64)>,
    ) -> Vec<f64> {
        let (p, _) = probabilities(z, z_dot, rest);
        let (mut dl_z, mut spare) = (vec![0.0; N], vec![0.0; N]);
        softmax_adjoint(&mut dl_z, &mut spare, dl, de, &p, z_dot);
        dl_z
    }

    const NORMAL: Kind<f64> = Kind::Normal { eps: 0.01 };
    const REST: Option<(f64, f64)> = Some((3.0, -0.5));

    const OPERATIONS: &[(&str, Operation, Adjoint)] = &[
        ("unit", |x, v| scaled(x, v, Kind::Unit), |x, v, l, e| scaled_adjoint(x, v, l, e, Kind::Unit)),
        ("normal", |x, v| scaled(x, v, NORMAL), |x, v, l, e| scaled_adjoint(x, v, l, e, NORMAL)),
        ("softmax", |x, v| probabilities(x, v, None), |x, v, l, e| probabilities_adjoint(x, v, l, e, None)),
        (
            "softmax, more",
            |x, v| probabilities(x, v, REST),
            |x, v, l, e| probabilities_adjoint(x, v, l, e, REST),
        ),
    ];

    fn moved(x: &[f64], v: &[f64], h: f64) -> Vec<f64> {
        x.iter().zip(v).map(|(x, v)| x + h * v).collect()
    }

    #[test]
    fn tangents_and_adjoints_agree_with_central_differences() {
        let (x, v, dl, de) = (noise(0.2), noise(0.5), noise(0.7), noise(0.9));
        for (name, operation, adjoint) in OPERATIONS {
            let y_dot = operation(&x, &v).1;
            let (high, low) = (operation(&moved(&x, &v, 1e-6), &v).0, operation(&moved(&x, &v, -1e-6), &v).0);
            for k in 0..N {
                let want = (high[k] - low[k]) / 2e-6;
                assert!((y_dot[k] - want).abs() < 1e-8, "{name} {k}: {} {want}", y_dot[k]);
            }
            let phi = |x: &[f64]| {
                let (y, y_dot) = operation(x, &v);
                dot(&dl, &y) + dot(&de, &y_dot)
            };
            let dl_x = adjoint(&x, &v, &dl, &de);
            for k in 0..N {
                let unit: Vec<f64> = (0..N).map(|l| f64::from(u8::from(l == k))).collect();
                let want = (phi(&moved(&x, &unit, 1e-6)) - phi(&moved(&x, &unit, -1e-6))) / 2e-6;
                assert!((dl_x[k] - want).abs() < 1e-7, "{name} {k}: {} {want}", dl_x[k]);
            }
        }
    }

    #[test]
    fn weights_that_nobody_sees_take_their_part() {
        let mut with = vec![0.3, -0.2, 0.5, -1.0, -1.0, -1.0];
        softmax(&mut with, None);
        let mut without = vec![0.3, -0.2, 0.5];
        softmax(&mut without, Some((3.0, -1.0)));
        assert!(with.iter().zip(&without).all(|(a, b): (&f64, &f64)| (a - b).abs() < 1e-15));
    }
}
