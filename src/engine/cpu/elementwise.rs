//! Loops over vectors that every part of the engine needs.

use super::real::Real;
use super::simd::multiversion;
use crate::engine::activation::jet;
use crate::model::activation::Activation;

multiversion! {
    /// Replaces pre-activations by act, and writes act' and act''.
    pub fn activate<T: Real>(f: &mut [T], d: &mut [T], dd: &mut [T], activation: Activation) {
        let n = f.len();
        let (d, dd) = (&mut d[..n], &mut dd[..n]);
        if activation == Activation::Tanh {
            for o in 0..n {
                let t = f[o].tanh();
                let slope = T::ONE - t * t;
                f[o] = t;
                d[o] = slope;
                dd[o] = -(t + t) * slope;
            }
        } else {
            for o in 0..n {
                [f[o], d[o], dd[o]] = jet(activation, f[o].to_f64()).map(T::from_f64);
            }
        }
    }
}

multiversion! {
    /// out = a b scale
    pub fn scaled_product<T: Real>(out: &mut [T], a: &[T], b: &[T], scale: Option<&[T]>) {
        let n = out.len();
        let (a, b) = (&a[..n], &b[..n]);
        match scale {
            Some(scale) => {
                let scale = &scale[..n];
                for o in 0..n {
                    out[o] = a[o] * b[o] * scale[o];
                }
            }
            None => {
                for o in 0..n {
                    out[o] = a[o] * b[o];
                }
            }
        }
    }
}

multiversion! {
    /// out = a b
    pub fn multiply<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = *a * *b;
        }
    }
}

multiversion! {
    /// out = a + b
    pub fn add_two<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = *a + *b;
        }
    }
}

multiversion! {
    /// out += a
    pub fn add<T: Real>(out: &mut [T], a: &[T]) {
        for (out, a) in out.iter_mut().zip(a) {
            *out += *a;
        }
    }
}

multiversion! {
    /// out += scale a
    pub fn axpy<T: Real>(out: &mut [T], scale: T, a: &[T]) {
        for (out, a) in out.iter_mut().zip(a) {
            *out = scale.fma(*a, *out);
        }
    }
}

multiversion! {
    /// A dot product in eight interleaved sums.
    pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
        let mut sums = [T::ZERO; 8];
        for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
            for l in 0..8 {
                sums[l] = a[l].fma(b[l], sums[l]);
            }
        }
        let rest = a.len() / 8 * 8;
        let tail: T = a[rest..].iter().zip(&b[rest..]).map(|(a, b)| *a * *b).sum();
        sums.into_iter().sum::<T>() + tail
    }
}
