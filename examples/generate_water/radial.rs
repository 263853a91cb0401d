//! Functions of one distance: damped Coulomb and Lennard-Jones, made to end smoothly at the cutoff.
//!
//! Shifted force: f(r) becomes f(r) - f(rc) - f'(rc) (r - rc), so that both the energy and the force are zero
//! at the cutoff. For the damped Coulomb term this is the DSF method of C. J. Fennell and J. D. Gezelter,
//! J. Chem. Phys. 124, 234104 (2006).

use std::f64::consts::FRAC_2_SQRT_PI;

/// A function of the distance and its slope.
#[derive(Debug, Clone, Copy)]
pub struct Radial {
    pub value: f64,
    pub slope: f64,
}

/// What the shifted-force method takes away: a straight line through the cutoff.
#[derive(Debug, Clone)]
pub struct ShiftedForce {
    rc: f64,
    at_rc: Radial,
}

impl ShiftedForce {
    pub fn new(rc: f64, at_rc: Radial) -> Self {
        ShiftedForce { rc, at_rc }
    }

    #[inline]
    pub fn apply(&self, r: f64, bare: Radial) -> Radial {
        let slope = self.at_rc.slope;
        Radial { value: bare.value - self.at_rc.value - slope * (r - self.rc), slope: bare.slope - slope }
    }
}

/// erfc(alpha r) / r. `alpha` in 1/Å, at most [`ERF_X_MAX`] / r.
#[inline]
pub fn damped_coulomb(alpha: f64, r: f64) -> Radial {
    let c = FRAC_2_SQRT_PI * alpha;
    let x2 = alpha * alpha * r * r;
    let inverse = 1.0 / r;
    let value = inverse - c * erf_series(x2);
    Radial { value, slope: -inverse * (value + c * (-x2).exp()) }
}

/// 4 eps ((sigma/r)^12 - (sigma/r)^6).
#[inline]
pub fn lennard_jones(epsilon: f64, sigma: f64, r: f64) -> Radial {
    let s2 = (sigma / r) * (sigma / r);
    let s6 = s2 * s2 * s2;
    Radial { value: 4.0 * epsilon * s6 * (s6 - 1.0), slope: -24.0 * epsilon * s6 * (2.0 * s6 - 1.0) / r }
}

/// The series of [`erf_series`] is good to rounding up to here.
pub const ERF_X_MAX: f64 = 1.3;

const ERF_TERMS: usize = 23;

/// (-1)^n / (n! (2n + 1)), the Maclaurin series of erf(x) sqrt(pi) / (2 x) in x^2.
const ERF_COEFFICIENTS: [f64; ERF_TERMS] = {
    let mut coefficients = [0.0; ERF_TERMS];
    let mut sign_over_factorial = 1.0;
    let mut n = 0;
    while n < ERF_TERMS {
        coefficients[n] = sign_over_factorial / (2 * n + 1) as f64;
        n += 1;
        sign_over_factorial /= -(n as f64);
    }
    coefficients
};

/// erf(x) sqrt(pi) / (2 x) for x^2 = `x2`. The signs alternate, but no term exceeds 1 up to [`ERF_X_MAX`],
/// so nothing is lost in the sum.
#[inline]
fn erf_series(x2: f64) -> f64 {
    ERF_COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * x2 + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALPHA: f64 = 0.2;
    const RC: f64 = 6.0;

    #[test]
    fn the_error_function_agrees_with_its_tables() {
        // Abramowitz and Stegun, table 7.1.
        for (x, erf) in [
            (0.1, 0.1124629160),
            (0.5, 0.5204998778),
            (1.0, 0.8427007929),
            (1.2, 0.9103139782),
            (1.3, 0.9340079449),
        ] {
            let got = FRAC_2_SQRT_PI * x * erf_series(x * x);
            assert!((got - erf).abs() < 6e-11, "erf({x}) = {got}, the table says {erf}");
        }
        let dropped = ERF_X_MAX.powi(2 * ERF_TERMS as i32) * ERF_COEFFICIENTS[ERF_TERMS - 1].abs();
        assert!(dropped < 1e-15, "the first term left out is {dropped:.1e}");
    }

    #[test]
    fn slopes_are_the_derivatives_of_the_values() {
        let functions: [(&str, &dyn Fn(f64) -> Radial); 2] = [
            ("damped Coulomb", &|r| damped_coulomb(ALPHA, r)),
            ("Lennard-Jones", &|r| lennard_jones(0.0067, 3.165, r)),
        ];
        let h = 1e-5;
        for (name, f) in functions {
            for r in [1.5, 2.2, 2.9, 3.5527, 4.4, 5.9] {
                let want = (f(r + h).value - f(r - h).value) / (2.0 * h);
                let got = f(r).slope;
                assert!((got - want).abs() < 1e-9 + 1e-7 * want.abs(), "{name} at {r}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn shifted_functions_reach_zero_smoothly_at_the_cutoff() {
        let functions: [(&str, &dyn Fn(f64) -> Radial); 2] = [
            ("damped Coulomb", &|r| damped_coulomb(ALPHA, r)),
            ("Lennard-Jones", &|r| lennard_jones(0.0067, 3.165, r)),
        ];
        for (name, f) in functions {
            let shift = ShiftedForce::new(RC, f(RC));
            assert_eq!(shift.apply(RC, f(RC)).value, 0.0, "{name}");
            assert_eq!(shift.apply(RC, f(RC)).slope, 0.0, "{name}");
            // Near the cutoff the value falls with the square of the distance to it, the slope linearly.
            let [near, far] = [1e-3, 2e-3].map(|d| shift.apply(RC - d, f(RC - d)));
            assert!((far.value / near.value - 4.0).abs() < 0.01, "{name}: {}", far.value / near.value);
            assert!((far.slope / near.slope - 2.0).abs() < 0.01, "{name}: {}", far.slope / near.slope);
        }
    }

    #[test]
    fn lennard_jones_has_its_minimum_where_the_textbook_says() {
        let (epsilon, sigma) = (0.3, 3.0);
        let bottom = lennard_jones(epsilon, sigma, sigma * 2f64.powf(1.0 / 6.0));
        assert!((bottom.value + epsilon).abs() < 1e-15 && bottom.slope.abs() < 1e-14, "{bottom:?}");
    }
}
