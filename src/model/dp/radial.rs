//! How a pair enters the environment matrix, by its distance.
//!
//! With p = env_protection and the switch w(r) = 1 below rcut_smth, x^3(-6x^2+15x-10)+1 with
//! x = (r - rcut_smth) / (rcut - rcut_smth) up to rcut, 0 beyond: `s = w / (r + p)` and `q = w / (r + p)^2`.

use super::options::DescriptorOptions;

/// s, ds/dr, q, dq/dr at distance r.
pub fn radial(options: &DescriptorOptions, r: f64) -> [f64; 4] {
    let (w, w_r) = switch(options, r);
    let rp = r + options.env_protection;
    let (s, q) = (w / rp, w / (rp * rp));
    [s, (w_r - s) / rp, q, w_r / (rp * rp) - 2.0 * q / rp]
}

/// w and dw/dr at distance r.
pub fn switch(options: &DescriptorOptions, r: f64) -> (f64, f64) {
    let (low, high) = (options.rcut_smth, options.rcut);
    if r <= low {
        return (1.0, 0.0);
    }
    if r >= high {
        return (0.0, 0.0);
    }
    let x = (r - low) / (high - low);
    // As factors: the sum would lose all digits close to rcut, where attention divides by what is left.
    let left = (high - r) / (high - low);
    let w = left * left * left * (1.0 + 3.0 * x + 6.0 * x * x);
    let w_x = -30.0 * x * x * left * left;
    (w, w_x / (high - low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::options;

    #[test]
    fn the_switch_keeps_its_digits_close_to_the_cutoff() {
        let mut options = options();
        (options.rcut_smth, options.rcut) = (0.5, 6.0);
        for short in [1e-3, 1e-5, 1e-7] {
            let left = short / 5.5;
            let (w, w_r) = switch(&options, 6.0 - short);
            assert!((w / (10.0 * left.powi(3)) - 1.0).abs() < 2.0 * left + 1e-8);
            assert!((w_r / (-30.0 * left * left / 5.5) - 1.0).abs() < 3.0 * left + 1e-8);
        }
    }

    #[test]
    fn the_row_reaches_zero_smoothly_at_the_cutoff() {
        let options = options();
        let [s, s_r, q, q_r] = radial(&options, options.rcut - 1e-5);
        assert!(s.abs() < 1e-10 && s_r.abs() < 1e-8 && q.abs() < 1e-10 && q_r.abs() < 1e-8);
        assert_eq!(radial(&options, options.rcut), [0.0; 4]);
    }
}
