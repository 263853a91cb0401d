//! The cutoff function and the radial functions of a pair, with their derivatives by the distance.

use crate::model::pinet::options::{BasisType, CutoffType, Gamma, PinetOptions};
use std::f64::consts::PI;

/// The radial functions of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Radial {
    rc: f64,
    cutoff: CutoffType,
    functions: Functions,
}

#[derive(Debug, Clone, PartialEq)]
enum Functions {
    /// fc^p
    Powers(Vec<f64>),
    /// exp(-gamma (r - center)^2) fc
    Gaussians { gamma: Vec<f64>, center: Vec<f64> },
}

impl Radial {
    pub fn new(options: &PinetOptions) -> Self {
        let functions = match options.basis_type {
            BasisType::Polynomial => Functions::Powers(options.n_basis.exponents()),
            BasisType::Gaussian => {
                let center =
                    options.center.clone().unwrap_or_else(|| even(options.n_basis.len(), options.rc));
                let gamma = match &options.gamma {
                    Gamma::Same(gamma) => vec![*gamma; center.len()],
                    Gamma::Each(gamma) => gamma.clone(),
                };
                assert_eq!(gamma.len(), center.len(), "one width for each center");
                Functions::Gaussians { gamma, center }
            }
        };
        Radial { rc: options.rc, cutoff: options.cutoff_type, functions }
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        match &self.functions {
            Functions::Powers(powers) => powers.len(),
            Functions::Gaussians { center, .. } => center.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// fc(r) and fc'(r) for r below the cutoff.
    pub fn cutoff(&self, r: f64) -> [f64; 2] {
        let x = r / self.rc;
        match self.cutoff {
            CutoffType::F1 => [0.5 * ((PI * x).cos() + 1.0), -0.5 * PI / self.rc * (PI * x).sin()],
            CutoffType::F2 => {
                let (t, t1) = ((1.0 - x).tanh(), 1f64.tanh());
                let f = t / t1;
                [f * f * f, -3.0 * f * f * (1.0 - t * t) / (t1 * self.rc)]
            }
            CutoffType::Hip => {
                let c = (0.5 * PI * x).cos();
                [c * c, -c * (0.5 * PI * x).sin() * PI / self.rc]
            }
        }
    }

    /// Appends e(r) to `value` and e'(r) to `slope`.
    pub fn evaluate(&self, value: &mut Vec<f64>, slope: &mut Vec<f64>, r: f64) {
        let [fc, dfc] = self.cutoff(r);
        match &self.functions {
            Functions::Powers(powers) => {
                for &p in powers {
                    value.push(power(fc, p));
                    slope.push(if p == 0.0 { 0.0 } else { p * power(fc, p - 1.0) * dfc });
                }
            }
            Functions::Gaussians { gamma, center } => {
                for (&gamma, &center) in gamma.iter().zip(center) {
                    let x = r - center;
                    let g = (-gamma * x * x).exp();
                    value.push(g * fc);
                    slope.push(g * (dfc - 2.0 * gamma * x * fc));
                }
            }
        }
    }
}

/// x^p; whole powers by multiplication.
fn power(x: f64, p: f64) -> f64 {
    if p.fract() == 0.0 && p.abs() < 64.0 { x.powi(p as i32) } else { x.powf(p) }
}

/// n centers from 0 to rc, both included.
fn even(n: usize, rc: f64) -> Vec<f64> {
    (0..n).map(|k| if k == 0 { 0.0 } else { rc * k as f64 / (n - 1) as f64 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pinet::options::{Basis, NetworkKind, Wiring};

    fn all() -> Vec<Radial> {
        let mut found = Vec::new();
        for cutoff_type in [CutoffType::F1, CutoffType::F2, CutoffType::Hip] {
            for n_basis in [Basis::Count(4), Basis::Exponents(vec![1.0, 2.5, 6.0])] {
                let o = PinetOptions {
                    cutoff_type,
                    n_basis,
                    ..PinetOptions::new(Wiring::Master, NetworkKind::PiNet)
                };
                found.push(Radial::new(&o));
            }
            let mut o = PinetOptions {
                cutoff_type,
                basis_type: BasisType::Gaussian,
                ..PinetOptions::new(Wiring::Master, NetworkKind::PiNet)
            };
            found.push(Radial::new(&o));
            o.center = Some(vec![0.5, 2.0, 3.5]);
            o.gamma = Gamma::Each(vec![1.0, 2.0, 0.5]);
            found.push(Radial::new(&o));
        }
        found
    }

    fn at(radial: &Radial, r: f64) -> (Vec<f64>, Vec<f64>) {
        let (mut value, mut slope) = (vec![], vec![]);
        radial.evaluate(&mut value, &mut slope, r);
        (value, slope)
    }

    #[test]
    fn slopes_agree_with_central_differences() {
        for radial in all() {
            for r in [0.3, 1.1, 2.7, 3.9] {
                let (low, high) = (at(&radial, r - 1e-5).0, at(&radial, r + 1e-5).0);
                let slope = at(&radial, r).1;
                assert_eq!(slope.len(), radial.len());
                for b in 0..radial.len() {
                    let want = (high[b] - low[b]) / 2e-5;
                    assert!(
                        (slope[b] - want).abs() < 1e-8,
                        "{radial:?} e_{b}'({r}) = {}, not {want}",
                        slope[b]
                    );
                }
            }
        }
    }

    #[test]
    fn everything_vanishes_at_the_cutoff_and_hip_is_f1() {
        let every = all();
        for radial in &every {
            assert!(at(radial, 4.0 - 1e-9).0.iter().all(|e| e.abs() < 1e-8));
            assert!(at(radial, 4.0 - 1e-9).1.iter().all(|e| e.is_finite()));
        }
        let (f1, hip) = (at(&every[0], 1.7).0, at(&every[8], 1.7).0);
        assert!(f1.iter().zip(&hip).all(|(a, b)| (a - b).abs() < 1e-15));
    }

    #[test]
    fn centers_reach_from_zero_to_the_cutoff() {
        assert_eq!(even(5, 4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(even(1, 4.0), [0.0]);
    }
}
