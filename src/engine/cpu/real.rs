//! The two number types of the CPU engine.

use super::dense::{self, Raw, Transpose};
use super::evaluate::{self, Evaluate};
use super::pool::{Parts, Pool};
use super::walk::{self, Walk};
use crate::engine::Piece;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// float32 or float64.
pub trait Real:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + std::fmt::Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + Sum
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    /// a * self + b, fused where the instruction set has it (kernels are compiled for those that do).
    fn fma(self, a: Self, b: Self) -> Self;
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent to the last few bits, written so that the compiler vectorises it.
    fn tanh(self) -> Self;
    /// The exponential of a number that is not large, to the last few bits, written so that the compiler vectorises it. What is smaller
    /// than the smallest that it knows becomes that.
    fn exp(self) -> Self;
    /// The largest tail of an embedding series, relative to its largest coefficient.
    const SERIES_TOLERANCE: f64;
    /// Casts parameters into the buffer, where they are needed in this type.
    fn copy(params: &[f64], buffer: &mut Vec<Self>, pool: &Pool);
    /// Parameters as this type: themselves, or their copy.
    fn viewed<'a>(params: &'a [f64], copy: &'a [Self]) -> &'a [Self];
    /// Whether these are the parameters cast.
    fn is_copy(params: &[f64], copy: &[Self]) -> bool {
        params.iter().zip(copy).all(|(p, copy)| Self::from_f64(*p) == *copy || p.is_nan())
    }
    /// Where a gradient is computed: in place, or in the buffer.
    fn target<'a>(grad: &'a mut [f64], buffer: &'a mut Vec<Self>) -> &'a mut [Self];
    /// Brings a gradient, from parameter `first` on, from the buffer to its place.
    fn deliver(grad: &mut [f64], buffer: &[Self], first: usize, pool: &Pool);
    /// A piece of a gradient from parameter `first` on, with the copy of these parameters where there is one.
    ///
    /// # Safety
    /// No two pieces that live at the same time may overlap.
    unsafe fn piece<'a>(grad: &'a [Self], copy: &'a Parts<Self>, first: usize) -> Piece<'a>;
    /// Runs the matrix kernel.
    ///
    /// # Safety
    /// `raw` must come from [`dense::product`].
    unsafe fn product_kernel(raw: Raw<Self>);
    /// Runs the kernel of [`dense::transpose_into`].
    ///
    /// # Safety
    /// `transpose` must come from there.
    unsafe fn transpose_kernel(transpose: Transpose<Self>);
    /// Runs the kernel of [`walk`].
    ///
    /// # Safety
    /// `raw` must come from there.
    unsafe fn walk_kernel(raw: Walk<Self>);
    /// Runs the kernel of [`evaluate`].
    ///
    /// # Safety
    /// `raw` must come from there.
    unsafe fn evaluate_kernel(raw: Evaluate<Self>);
}

/// `(t, p)` with `exp(y) = t (1 + p)`: t is the power of two, p a polynomial on `|r| <= ln2 / 2`.
#[inline(always)]
fn exponential_f64(y: f64) -> (f64, f64) {
    const C: [f64; 12] = [
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5040.0,
        1.0 / 40320.0,
        1.0 / 362880.0,
        1.0 / 3628800.0,
        1.0 / 39916800.0,
        1.0 / 479001600.0,
        1.0 / 6227020800.0,
    ];
    // Adding and subtracting 1.5 * 2^52 rounds to the nearest integer.
    const ROUND: f64 = 6755399441055744.0;
    let shifted = y * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = n.fma(-6.931_471_803_691_238e-1, y);
    let r = n.fma(-1.908_214_929_270_587_7e-10, r);
    let mut q = C[11];
    for c in C[..11].iter().rev() {
        q = q.fma(r, *c);
    }
    let p = (q * r).fma(r, r);
    (f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52)), p)
}

/// As [`exponential_f64`].
#[inline(always)]
fn exponential_f32(y: f32) -> (f32, f32) {
    const ROUND: f32 = 12582912.0;
    let shifted = y * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = n.fma(-0.693_359_4, y);
    let r = n.fma(2.121_944_4e-4, r);
    let mut q: f32 = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        q = q.fma(r, c);
    }
    let p = (q * r).fma(r, r);
    (f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23)), p)
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn fma(self, a: f64, b: f64) -> f64 {
        if cfg!(target_arch = "x86_64") { self.mul_add(a, b) } else { self * a + b }
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
    #[inline(always)]
    fn tanh(self) -> f64 {
        // expm1(2|x|), then e / (e + 2). Not `min`, which would turn NaN into a number.
        let a = if self.abs() > 20.0 { 20.0 } else { self.abs() };
        let (t, p) = exponential_f64(a + a);
        let e = t.fma(p, t - 1.0);
        (e / (e + 2.0)).copysign(self)
    }
    #[inline(always)]
    fn exp(self) -> f64 {
        // Not `max`, which would turn NaN into a number.
        let x = if self < -700.0 { -700.0 } else { self };
        let (t, p) = exponential_f64(x);
        t.fma(p, t)
    }
    const SERIES_TOLERANCE: f64 = 1e-12;
    fn copy(_: &[f64], _: &mut Vec<f64>, _: &Pool) {}
    fn viewed<'a>(params: &'a [f64], _: &'a [f64]) -> &'a [f64] {
        params
    }
    fn target<'a>(grad: &'a mut [f64], _: &'a mut Vec<f64>) -> &'a mut [f64] {
        grad
    }
    fn deliver(_: &mut [f64], _: &[f64], _: usize, _: &Pool) {}
    unsafe fn piece<'a>(grad: &'a [f64], _: &'a Parts<f64>, _: usize) -> Piece<'a> {
        Piece::Double(grad)
    }
    unsafe fn product_kernel(raw: Raw<f64>) {
        unsafe { dense::dispatch_f64(raw) }
    }
    unsafe fn transpose_kernel(transpose: Transpose<f64>) {
        unsafe { dense::transpose_f64(transpose) }
    }
    unsafe fn walk_kernel(raw: Walk<f64>) {
        unsafe { walk::dispatch_f64(raw) }
    }
    unsafe fn evaluate_kernel(raw: Evaluate<f64>) {
        unsafe { evaluate::dispatch_f64(raw) }
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn fma(self, a: f32, b: f32) -> f32 {
        if cfg!(target_arch = "x86_64") { self.mul_add(a, b) } else { self * a + b }
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
    #[inline(always)]
    fn tanh(self) -> f32 {
        let a = if self.abs() > 10.0 { 10.0 } else { self.abs() };
        let (t, p) = exponential_f32(a + a);
        let e = t.fma(p, t - 1.0);
        (e / (e + 2.0)).copysign(self)
    }
    #[inline(always)]
    fn exp(self) -> f32 {
        let x = if self < -87.0 { -87.0 } else { self };
        let (t, p) = exponential_f32(x);
        t.fma(p, t)
    }
    const SERIES_TOLERANCE: f64 = 1e-7;
    fn copy(params: &[f64], buffer: &mut Vec<f32>, pool: &Pool) {
        buffer.resize(params.len(), 0.0);
        cast(buffer, params, pool);
    }
    fn viewed<'a>(_: &'a [f64], buffer: &'a [f32]) -> &'a [f32] {
        buffer
    }
    fn target<'a>(grad: &'a mut [f64], buffer: &'a mut Vec<f32>) -> &'a mut [f32] {
        buffer.resize(grad.len(), 0.0);
        buffer
    }
    fn deliver(grad: &mut [f64], buffer: &[f32], first: usize, pool: &Pool) {
        cast(&mut grad[first..], &buffer[first..], pool);
    }
    unsafe fn piece<'a>(grad: &'a [f32], copy: &'a Parts<f32>, first: usize) -> Piece<'a> {
        // SAFETY: the caller's promise.
        Piece::Single { grad, copy: unsafe { copy.part(first, grad.len()) } }
    }
    unsafe fn product_kernel(raw: Raw<f32>) {
        unsafe { dense::dispatch_f32(raw) }
    }
    unsafe fn transpose_kernel(transpose: Transpose<f32>) {
        unsafe { dense::transpose_f32(transpose) }
    }
    unsafe fn walk_kernel(raw: Walk<f32>) {
        unsafe { walk::dispatch_f32(raw) }
    }
    unsafe fn evaluate_kernel(raw: Evaluate<f32>) {
        unsafe { evaluate::dispatch_f32(raw) }
    }
}

/// Casts a vector on all threads.
fn cast<A: Real, B: Real>(out: &mut [A], x: &[B], pool: &Pool) {
    const CHUNK: usize = 1 << 14;
    let n = x.len();
    assert!(out.len() >= n, "room for what is cast");
    let out = Parts::new(out);
    pool.run(n.div_ceil(CHUNK), |k| {
        let range = k * CHUNK..n.min((k + 1) * CHUNK);
        // SAFETY: tasks are disjoint ranges.
        let out = unsafe { out.part(range.start, range.len()) };
        cast_part(out, &x[range]);
    });
}

/// Casts a vector.
fn cast_part<A: Real, B: Real>(out: &mut [A], x: &[B]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = A::from_f64(x.to_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_and_exp_are_right_to_the_last_bits() {
        for k in -4000..4000 {
            let x = k as f64 * 0.0061 + 1e-4;
            let want = f64::tanh(x);
            let got = <f64 as Real>::tanh(x);
            assert!((got - want).abs() <= 4.0 * f64::EPSILON * want.abs(), "tanh({x}) = {got}, not {want}");
            let got = <f32 as Real>::tanh(x as f32) as f64;
            let want = f64::tanh(f64::from(x as f32));
            assert!(
                (got - want).abs() <= 4.0 * f32::EPSILON as f64 * want.abs(),
                "f32 tanh({x}) = {got}, not {want}"
            );
        }
        for k in 0..7000 {
            let x = -0.1 * f64::from(k) / 1.01;
            let (got, want) = (<f64 as Real>::exp(x), f64::exp(x));
            assert!((got - want).abs() <= 4.0 * f64::EPSILON * want, "exp({x}) = {got}, not {want}");
            let x = (x / 8.1) as f32;
            let (got, want) = (f64::from(<f32 as Real>::exp(x)), f64::exp(f64::from(x)));
            assert!(
                (got - want).abs() <= 4.0 * f64::from(f32::EPSILON) * want,
                "exp({x}) = {got}, not {want}"
            );
        }
        assert_eq!(<f64 as Real>::exp(0.0), 1.0);
        assert!(<f64 as Real>::exp(-1e300) < 1e-300);
        assert!(<f64 as Real>::exp(f64::NAN).is_nan());
        assert_eq!(<f64 as Real>::tanh(0.0), 0.0);
        assert_eq!(<f64 as Real>::tanh(1e300), 1.0);
        assert!(<f64 as Real>::tanh(f64::NAN).is_nan());
    }
}
