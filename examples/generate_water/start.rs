//! Where a trajectory begins: molecules on a lattice, each turned at random.

use crate::cell::{Vec3, multiply};
use crate::random::Random;
use crate::spcfw::{MASS, TYPES, molecule_at_rest};
use crate::units::GRAM_PER_CM3;

/// Molecules along each edge of the box.
const PER_EDGE: usize = 4;
/// Molecules in the box.
pub const N_MOLECULES: usize = PER_EDGE * PER_EDGE * PER_EDGE;
/// Density, amu/Å^3: that of water at room temperature, 1 g/cm^3. All temperatures share it.
const DENSITY: f64 = 1.0 * GRAM_PER_CM3;

/// Edge of the cubic box, Å. A float32, so that `box.npy` holds exactly what was simulated.
pub fn box_length() -> f64 {
    let mass: f64 = TYPES.iter().map(|&t| MASS[t]).sum();
    f64::from((N_MOLECULES as f64 * mass / DENSITY).cbrt() as f32)
}

/// `[3 * N_MOLECULES]` Å: O, H, H of each molecule.
pub fn lattice_of_molecules(random: &mut Random) -> Vec<Vec3> {
    let spacing = box_length() / PER_EDGE as f64;
    let mut coord = Vec::with_capacity(3 * N_MOLECULES);
    for site in 0..N_MOLECULES {
        let index = [site / (PER_EDGE * PER_EDGE), site / PER_EDGE % PER_EDGE, site % PER_EDGE];
        let centre = index.map(|k| (k as f64 + 0.5) * spacing);
        let turn = random.rotation();
        for atom in molecule_at_rest() {
            let arm = multiply(atom, &turn);
            coord.push(std::array::from_fn(|a| centre[a] + arm[a]));
        }
    }
    coord
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_box_holds_64_molecules_at_the_density_of_water() {
        assert_eq!(N_MOLECULES, 64);
        assert!((box_length() - 12.417).abs() < 1e-3, "{}", box_length());
    }
}
