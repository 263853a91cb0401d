//! Langevin dynamics by the BAOAB splitting of B. Leimkuhler and C. Matthews, J. Chem. Phys. 138, 174102 (2013).
//!
//! Its positions sample the canonical distribution with a very small error of the time step, which is what
//! a data set wants. Without friction it is velocity Verlet.

use crate::cell::{Cell, Vec3, dot};
use crate::random::Random;
use crate::spcfw::{Evaluation, MASS, SpcFw, type_of};
use crate::units::{AMU_A2_PER_FS2, BOLTZMANN};

/// What drives the atoms.
#[derive(Debug, Clone, Copy)]
pub struct Thermostat {
    /// Temperature, K.
    pub kelvin: f64,
    /// Friction, 1/fs; 0 keeps the energy.
    pub friction: f64,
}

/// A liquid in motion.
pub struct Liquid {
    pub coord: Vec<Vec3>,
    /// Å/fs
    pub velocity: Vec<Vec3>,
    pub now: Evaluation,
    cell: Cell,
    model: SpcFw,
}

impl Liquid {
    /// At rest at `coord`.
    pub fn new(coord: Vec<Vec3>, cell: Cell) -> Self {
        let mut model = SpcFw::new();
        let mut now = Evaluation::default();
        model.evaluate(&mut now, &coord, &cell);
        Liquid { velocity: vec![[0.0; 3]; coord.len()], coord, now, cell, model }
    }

    /// One step of `dt` fs.
    pub fn step(&mut self, dt: f64, thermostat: Thermostat, random: &mut Random) {
        self.kick(0.5 * dt);
        self.drift(0.5 * dt);
        self.thermalise(dt, thermostat, random);
        self.drift(0.5 * dt);
        self.model.evaluate(&mut self.now, &self.coord, &self.cell);
        self.kick(0.5 * dt);
    }

    /// Kinetic energy, eV.
    pub fn kinetic_energy(&self) -> f64 {
        let twice: f64 = self.velocity.iter().enumerate().map(|(i, &v)| inertia(i) * dot(v, v)).sum();
        0.5 * twice
    }

    /// Temperature of the motion, K.
    pub fn temperature(&self) -> f64 {
        2.0 * self.kinetic_energy() / (3 * self.coord.len()) as f64 / BOLTZMANN
    }

    fn kick(&mut self, dt: f64) {
        for (i, (v, f)) in self.velocity.iter_mut().zip(&self.now.force).enumerate() {
            let scale = dt / inertia(i);
            (0..3).for_each(|a| v[a] += scale * f[a]);
        }
    }

    fn drift(&mut self, dt: f64) {
        for (r, v) in self.coord.iter_mut().zip(&self.velocity) {
            (0..3).for_each(|a| r[a] += dt * v[a]);
        }
    }

    fn thermalise(&mut self, dt: f64, thermostat: Thermostat, random: &mut Random) {
        if thermostat.friction == 0.0 {
            return;
        }
        let keep = (-thermostat.friction * dt).exp();
        for (i, v) in self.velocity.iter_mut().enumerate() {
            let noise = ((1.0 - keep * keep) * BOLTZMANN * thermostat.kelvin / inertia(i)).sqrt();
            (0..3).for_each(|a| v[a] = keep * v[a] + noise * random.gaussian());
        }
    }
}

/// Mass of atom `i` in eV fs^2/Å^2, so that force over inertia is an acceleration in Å/fs^2.
fn inertia(i: usize) -> f64 {
    MASS[type_of(i)] * AMU_A2_PER_FS2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{box_length, lattice_of_molecules};

    fn warm_liquid(random: &mut Random) -> Liquid {
        let mut liquid = Liquid::new(lattice_of_molecules(random), Cell::cubic(box_length()));
        for _ in 0..1500 {
            liquid.step(0.5, Thermostat { kelvin: 300.0, friction: 0.05 }, random);
        }
        liquid
    }

    /// Root mean square of the total energy about its mean, and how far it drifted, over `femtoseconds`.
    fn energy_errors(mut liquid: Liquid, dt: f64, femtoseconds: f64, random: &mut Random) -> [f64; 2] {
        let n = (femtoseconds / dt) as usize;
        let free = Thermostat { kelvin: 0.0, friction: 0.0 };
        let energy: Vec<f64> = (0..n)
            .map(|_| {
                liquid.step(dt, free, random);
                liquid.now.energy + liquid.kinetic_energy()
            })
            .collect();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let centre = mean(&energy);
        let spread = energy.iter().map(|e| (e - centre).powi(2)).sum::<f64>() / n as f64;
        [spread.sqrt(), mean(&energy[n / 2..]) - mean(&energy[..n / 2])]
    }

    #[test]
    fn without_friction_the_energy_is_kept_to_second_order_in_the_step() {
        let random = &mut Random::new(11, 0);
        let start = warm_liquid(random);
        let kinetic = start.kinetic_energy();
        let again = || Liquid {
            coord: start.coord.clone(),
            velocity: start.velocity.clone(),
            now: start.now.clone(),
            cell: start.cell.clone(),
            model: start.model.clone(),
        };
        let [spread, drift] = energy_errors(again(), 0.5, 500.0, random);
        let [finer, _] = energy_errors(again(), 0.25, 500.0, random);
        assert!(spread < 3e-3 * kinetic, "energy wanders by {spread} eV, kinetic energy is {kinetic}");
        assert!(drift.abs() < 1e-3 * kinetic, "energy drifts by {drift} eV in 0.25 ps");
        let ratio = spread / finer;
        assert!((3.0..5.0).contains(&ratio), "half the step should make a quarter of the error: {ratio}");
    }

    #[test]
    fn friction_brings_the_liquid_to_its_temperature() {
        let random = &mut Random::new(12, 0);
        let mut liquid = warm_liquid(random);
        let (mut sum, n) = (0.0, 1500);
        for _ in 0..n {
            liquid.step(0.5, Thermostat { kelvin: 400.0, friction: 0.05 }, random);
        }
        for _ in 0..n {
            liquid.step(0.5, Thermostat { kelvin: 400.0, friction: 0.05 }, random);
            sum += liquid.temperature() / n as f64;
        }
        assert!((sum - 400.0).abs() < 20.0, "mean temperature {sum} K at 400 K");
    }
}
