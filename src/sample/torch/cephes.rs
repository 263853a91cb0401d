//! The float32 functions behind PyTorch's normal numbers on processors with AVX2 or AVX-512.
//!
//! They are the polynomials of S. Moshier's Cephes library, each product fused with the sum that follows it. The
//! functions of the system are as good, but differ in the last digit; these give PyTorch's very bits.

// The digits are those of the source: shorter ones round to other numbers.
#![allow(clippy::excessive_precision)]

/// Coefficients of a polynomial by Horner's rule, the highest power first.
fn horner(x: f32, coefficients: &[f32]) -> f32 {
    coefficients.iter().copied().reduce(|sum, c| sum.mul_add(x, c)).unwrap_or(0.0)
}

/// Natural logarithm of a normal number in (0, 1].
pub fn ln(x: f32) -> f32 {
    const P: [f32; 9] = [
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ];
    // ln 2 in two parts; the first has few bits, so that its products with an exponent are exact.
    const LN_2_HIGH: f32 = 0.693359375;
    const LN_2_LOW: f32 = -2.12194440e-4;
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits();
    let mut e = (bits >> 23) as f32 - 126.0;
    let mut m = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    if m < std::f32::consts::FRAC_1_SQRT_2 {
        m += m;
        e -= 1.0;
    }
    let t = m - 1.0;
    let square = t * t;
    let tail = (horner(t, &P) * t).mul_add(square, e * LN_2_LOW);
    let tail = square.mul_add(-0.5, tail);
    e.mul_add(LN_2_HIGH, t + tail)
}

/// Sine and cosine of an angle in [0, 2 pi].
pub fn sin_cos(angle: f32) -> (f32, f32) {
    const SIN: [f32; 3] = [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1];
    const COS: [f32; 3] = [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2];
    // pi / 4 in three parts.
    const QUARTERS: [f32; 3] = [-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8];
    // The nearest even number of eighths of a turn leaves an angle in [-pi/4, pi/4].
    let eighths = ((angle * (4.0 / std::f64::consts::PI) as f32) as u32 + 1) & !1;
    let x = QUARTERS.iter().fold(angle, |x, &part| (eighths as f32).mul_add(part, x));
    let square = x * x;
    let cos = (horner(square, &COS) * square).mul_add(square, -0.5 * square) + 1.0;
    let sin = (horner(square, &SIN) * square).mul_add(x, x);
    match (eighths / 2) % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}
