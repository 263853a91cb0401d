//! What the geometry multiplies the attention of two neighbours by: value, tangent and adjoint. All of it is the same for (j, k) and (k, j).

use super::geometry::zeros;
use super::step::Step;
use crate::engine::cpu::elementwise::{add, axpy, dot, multiply};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;

/// Factors of pairs of neighbours, `[n, n]`, and their changes.
#[derive(Default)]
pub struct Factors<T> {
    /// The product of two switches; empty where weights are not switched off.
    pub smooth: Vec<T>,
    pub smooth_dot: Vec<T>,
    /// What probabilities are multiplied by; empty where that is 1.
    pub factor: Vec<T>,
    pub factor_dot: Vec<T>,
    /// dE by both.
    pub de_smooth: Vec<T>,
    pub de_factor: Vec<T>,
    /// `[n]` products of a unit vector with the others, and their change.
    angle: Vec<T>,
    angle_dot: Vec<T>,
}

multiversion! {
    /// out = a scale
    fn scaled<T: Real>(out: &mut [T], a: &[T], scale: T) {
        for (out, a) in out.iter_mut().zip(a) {
            *out = scale * *a;
        }
    }
}

multiversion! {
    /// `out[k] += u v[k]` for the three components of vectors.
    fn angles_add<T: Real>(out: &mut [T], u: [T; 3], x: &[T], y: &[T], z: &[T]) {
        for (((out, x), y), z) in out.iter_mut().zip(x).zip(y).zip(z) {
            *out = u[0].fma(*x, u[1].fma(*y, u[2].fma(*z, *out)));
        }
    }
}

multiversion! {
    /// out = a b + c d
    fn two_products<T: Real>(out: &mut [T], a: &[T], b: &[T], c: &[T], d: &[T]) {
        for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *out = a.fma(*b, *c * *d);
        }
    }
}

/// Vector `j`.
fn vector<T: Real>(u: &[Vec<T>; 3], j: usize) -> [T; 3] {
    [u[0][j], u[1][j], u[2][j]]
}

impl<T: Real> Factors<T> {
    /// The factors of neighbours with these switches `[n]` and unit vectors.
    pub fn fill(&mut self, step: &Step<T>, switch: &[T], unit: &[Vec<T>; 3]) {
        let n = unit[0].len();
        let pairs = |wanted: bool| if wanted { n * n } else { 0 };
        zeros(&mut self.smooth, pairs(step.smooth));
        zeros(&mut self.factor, pairs(step.smooth || step.dotr));
        for j in 0..n {
            let own = j * n..(j + 1) * n;
            if step.smooth {
                scaled(&mut self.smooth[own.clone()], switch, switch[j]);
            }
            if step.dotr {
                self.turn(unit, j);
            }
            match (step.smooth, step.dotr) {
                (true, true) => multiply(&mut self.factor[own.clone()], &self.smooth[own], &self.angle),
                (true, false) => self.factor[own.clone()].copy_from_slice(&self.smooth[own]),
                (false, true) => self.factor[own].copy_from_slice(&self.angle),
                (false, false) => {}
            }
        }
    }

    /// The products of unit vector `j` with the others.
    fn turn(&mut self, unit: &[Vec<T>; 3], j: usize) {
        let [x, y, z] = unit;
        zeros(&mut self.angle, x.len());
        angles_add(&mut self.angle, vector(unit, j), x, y, z);
    }

    /// How they change.
    pub fn fill_tangent(
        &mut self,
        step: &Step<T>,
        (s, s_dot): (&[T], &[T]),
        (u, u_dot): (&[Vec<T>; 3], &[Vec<T>; 3]),
    ) {
        let n = u[0].len();
        zeros(&mut self.smooth_dot, self.smooth.len());
        zeros(&mut self.factor_dot, self.factor.len());
        for j in 0..n {
            let own = j * n..(j + 1) * n;
            if step.smooth {
                let moved = &mut self.smooth_dot[own.clone()];
                scaled(moved, s_dot, s[j]);
                axpy(moved, s_dot[j], s);
            }
            if step.dotr {
                self.turn(u, j);
                zeros(&mut self.angle_dot, n);
                angles_add(&mut self.angle_dot, vector(u_dot, j), &u[0], &u[1], &u[2]);
                angles_add(&mut self.angle_dot, vector(u, j), &u_dot[0], &u_dot[1], &u_dot[2]);
            }
            match (step.smooth, step.dotr) {
                (true, true) => two_products(
                    &mut self.factor_dot[own.clone()],
                    &self.smooth_dot[own.clone()],
                    &self.angle,
                    &self.smooth[own],
                    &self.angle_dot,
                ),
                (true, false) => self.factor_dot[own.clone()].copy_from_slice(&self.smooth_dot[own]),
                (false, true) => self.factor_dot[own].copy_from_slice(&self.angle_dot),
                (false, false) => {}
            }
        }
    }

    /// Nothing moves.
    pub fn stay(&mut self) {
        zeros(&mut self.smooth_dot, self.smooth.len());
        zeros(&mut self.factor_dot, self.factor.len());
    }

    /// Begins with dE by the factors at zero.
    pub fn start_energy(&mut self) {
        zeros(&mut self.de_smooth, self.smooth.len());
        zeros(&mut self.de_factor, self.factor.len());
    }

    /// Adds dE by switches and unit vectors. What it starts from is used up.
    pub fn energy_add(
        &mut self,
        de_switch: &mut [T],
        de_unit: &mut [Vec<T>; 3],
        step: &Step<T>,
        s: &[T],
        u: &[Vec<T>; 3],
    ) {
        let n = u[0].len();
        for j in 0..n {
            let own = j * n..(j + 1) * n;
            if step.dotr {
                self.turn(u, j);
            }
            if step.smooth {
                let (de_smooth, de_factor) = (&mut self.de_smooth[own.clone()], &self.de_factor[own.clone()]);
                match step.dotr {
                    true => times_add(de_smooth, de_factor, &self.angle),
                    false => add(de_smooth, de_factor),
                }
                de_switch[j] += dot(de_smooth, s);
                axpy(&mut de_switch[..n], s[j], de_smooth);
            }
            if step.dotr {
                if step.smooth {
                    let de_factor = &self.de_factor[own.clone()];
                    multiply(&mut self.angle, de_factor, &self.smooth[own]);
                } else {
                    self.angle.copy_from_slice(&self.de_factor[own]);
                }
                for (de, u) in de_unit.iter_mut().zip(u) {
                    de[j] += dot(&self.angle, u);
                    axpy(de, u[j], &self.angle);
                }
            }
        }
    }
}

multiversion! {
    /// out += a b
    pub fn times_add<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a.fma(*b, *out);
        }
    }
}
