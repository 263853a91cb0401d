//! SPC/Fw, a flexible point-charge model of water, with interactions that end at a cutoff.
//!
//! Y. Wu, H. L. Tepper and G. A. Voth, "Flexible simple point-charge water model with improved liquid-state
//! properties", J. Chem. Phys. 124, 024503 (2006), <https://doi.org/10.1063/1.2136877>:
//!
//! ```text
//! E = sum over bonds of                            1/2 k_b (r - r0)^2
//!   + sum over molecules of                        1/2 k_a (theta - theta0)^2
//!   + sum over atom pairs of different molecules   q_i q_j e^2 / (4 pi eps0 r)
//!   + sum over oxygen pairs                        4 eps ((sigma/r)^12 - (sigma/r)^6)
//! ```
//!
//! The paper sums the Coulomb term over all images (Ewald). Here it is damped and shifted to end at the cutoff
//! (see `radial`), so that a network with the same cutoff can learn all of it.

use crate::cell::{Cell, Vec3, dot};
use crate::radial::{ERF_X_MAX, Radial, ShiftedForce, damped_coulomb, lennard_jones};
use crate::units::{COULOMB, KCAL_PER_MOL};

/// Bond constant k_b, eV/Å^2; the paper: 1059.162 kcal/mol/Å^2, in 1/2 k (r - r0)^2.
const BOND_K: f64 = 1059.162 * KCAL_PER_MOL;
/// Bond length r0, Å.
const BOND_R0: f64 = 1.012;
/// Angle constant k_a, eV/rad^2; the paper: 75.90 kcal/mol/rad^2, in 1/2 k (theta - theta0)^2.
const ANGLE_K: f64 = 75.90 * KCAL_PER_MOL;
/// Angle theta0, rad; the paper: 113.24 degrees.
const ANGLE_THETA0: f64 = 113.24 * std::f64::consts::PI / 180.0;
/// Charges of O and H, e.
const CHARGE: [f64; 2] = [-0.82, 0.41];
/// Depth of the Lennard-Jones well between oxygens, eV; the paper: 0.1554253 kcal/mol.
const LJ_EPSILON: f64 = 0.1554253 * KCAL_PER_MOL;
/// Lennard-Jones diameter of oxygen, Å.
const LJ_SIGMA: f64 = 3.165492;

/// Cutoff of all interactions between molecules, Å. Below half of the 12.4 Å box, and the `rcut` of the input.
pub const CUTOFF: f64 = 6.0;
/// Damping of the Coulomb term, 1/Å; Fennell and Gezelter advise about 0.2.
const DAMPING: f64 = 0.2;

/// Atoms of a molecule, in this order: O, H, H.
pub const ATOMS_PER_MOLECULE: usize = 3;
/// Index into [`TYPE_MAP`] of each atom of a molecule.
pub const TYPES: [usize; ATOMS_PER_MOLECULE] = [0, 1, 1];
/// Names of the types.
pub const TYPE_MAP: [&str; 2] = ["O", "H"];
/// Masses of O and H, amu: standard atomic weights, IUPAC 2021, abridged.
pub const MASS: [f64; 2] = [15.999, 1.008];

/// Type of atom `i`, as an index into [`TYPE_MAP`].
#[inline]
pub fn type_of(i: usize) -> usize {
    TYPES[i % ATOMS_PER_MOLECULE]
}

/// A molecule at rest, oxygen at the origin: bond lengths and angle of zero energy.
pub fn molecule_at_rest() -> [Vec3; ATOMS_PER_MOLECULE] {
    let (sin, cos) = (0.5 * ANGLE_THETA0).sin_cos();
    [[0.0; 3], [BOND_R0 * sin, BOND_R0 * cos, 0.0], [-BOND_R0 * sin, BOND_R0 * cos, 0.0]]
}

/// The result of one evaluation.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    /// Potential energy, eV. Zero: molecules at rest, infinitely far apart.
    pub energy: f64,
    /// `[n_atoms]` eV/Å
    pub force: Vec<Vec3>,
    /// Sum over interactions of r (x) F, eV: minus the derivative of the energy by the strain. Its trace is
    /// positive where atoms repel each other.
    pub virial: [Vec3; 3],
}

impl Evaluation {
    fn clear(&mut self, n_atoms: usize) {
        self.energy = 0.0;
        self.virial = [[0.0; 3]; 3];
        self.force.clear();
        self.force.resize(n_atoms, [0.0; 3]);
    }

    /// Adds a force `f` on atom `j` and its reaction on atom `i`, with `d` the vector from `i` to `j`.
    #[inline]
    fn add_pair_force(&mut self, i: usize, j: usize, d: Vec3, f: Vec3) {
        for a in 0..3 {
            self.force[j][a] += f[a];
            self.force[i][a] -= f[a];
            (0..3).for_each(|b| self.virial[a][b] += d[a] * f[b]);
        }
    }
}

/// The model, ready to evaluate. Owns its scratch space.
#[derive(Debug, Clone)]
pub struct SpcFw {
    coulomb: ShiftedForce,
    lennard_jones: ShiftedForce,
    fraction: Vec<Vec3>,
}

impl SpcFw {
    pub fn new() -> Self {
        const { assert!(DAMPING * CUTOFF < ERF_X_MAX, "the error function is not accurate up to the cutoff") };
        SpcFw {
            coulomb: ShiftedForce::new(CUTOFF, damped_coulomb(DAMPING, CUTOFF)),
            lennard_jones: ShiftedForce::new(CUTOFF, lennard_jones(LJ_EPSILON, LJ_SIGMA, CUTOFF)),
            fraction: Vec::new(),
        }
    }

    /// - `out`    overwritten
    /// - `coord`  `[n_atoms]` Å, molecule after molecule as O, H, H; wrapped or not
    pub fn evaluate(&mut self, out: &mut Evaluation, coord: &[Vec3], cell: &Cell) {
        assert!(coord.len().is_multiple_of(ATOMS_PER_MOLECULE), "{} atoms are no molecules", coord.len());
        assert!(CUTOFF <= cell.half_height(), "the cell {cell:?} is too small for one image of each atom");
        out.clear(coord.len());
        self.fraction.clear();
        self.fraction.extend(coord.iter().map(|&r| cell.wrapped_fraction(r)));
        self.add_between_molecules(out, cell);
        for oxygen in (0..coord.len()).step_by(ATOMS_PER_MOLECULE) {
            add_within_molecule(out, oxygen, [1, 2].map(|h| self.vector(cell, oxygen, oxygen + h)));
        }
    }

    #[inline]
    fn vector(&self, cell: &Cell, i: usize, j: usize) -> Vec3 {
        cell.nearest_image(self.fraction[i], self.fraction[j])
    }

    fn add_between_molecules(&self, out: &mut Evaluation, cell: &Cell) {
        let n_atoms = self.fraction.len();
        for i in 0..n_atoms {
            let next_molecule = (i / ATOMS_PER_MOLECULE + 1) * ATOMS_PER_MOLECULE;
            for j in next_molecule..n_atoms {
                let d = self.vector(cell, i, j);
                let r2 = dot(d, d);
                if r2 < CUTOFF * CUTOFF {
                    let r = r2.sqrt();
                    let pair = self.pair(type_of(i), type_of(j), r);
                    out.energy += pair.value;
                    out.add_pair_force(i, j, d, d.map(|x| -pair.slope / r * x));
                }
            }
        }
    }

    /// Energy of two atoms of different molecules.
    #[inline]
    fn pair(&self, type_i: usize, type_j: usize, r: f64) -> Radial {
        let qq = COULOMB * CHARGE[type_i] * CHARGE[type_j];
        let coulomb = self.coulomb.apply(r, damped_coulomb(DAMPING, r));
        let mut sum = Radial { value: qq * coulomb.value, slope: qq * coulomb.slope };
        if type_i == 0 && type_j == 0 {
            let lj = self.lennard_jones.apply(r, lennard_jones(LJ_EPSILON, LJ_SIGMA, r));
            sum.value += lj.value;
            sum.slope += lj.slope;
        }
        sum
    }
}

/// Bonds and angle of the molecule whose oxygen is atom `oxygen`; `bonds` are the vectors to its hydrogens.
fn add_within_molecule(out: &mut Evaluation, oxygen: usize, bonds: [Vec3; 2]) {
    let length = bonds.map(|d| dot(d, d).sqrt());
    let unit: [Vec3; 2] = std::array::from_fn(|h| bonds[h].map(|x| x / length[h]));
    let cos = dot(unit[0], unit[1]).clamp(-1.0, 1.0);
    let sin = (1.0 - cos * cos).sqrt();
    assert!(sin > 1e-3, "molecule at atom {oxygen} is straight or folded: the dynamics blew up");
    let bend = cos.acos() - ANGLE_THETA0;
    out.energy += 0.5 * ANGLE_K * bend * bend;
    for h in 0..2 {
        let stretch = length[h] - BOND_R0;
        out.energy += 0.5 * BOND_K * stretch * stretch;
        // Along the bond, and across it: d cos / d bond = (other unit - cos unit) / length.
        let across = ANGLE_K * bend / (sin * length[h]);
        let force: Vec3 = std::array::from_fn(|a| {
            -BOND_K * stretch * unit[h][a] + across * (unit[1 - h][a] - cos * unit[h][a])
        });
        out.add_pair_force(oxygen, oxygen + 1 + h, bonds[h], force);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::multiply;
    use crate::random::Random;
    use crate::start::{box_length, lattice_of_molecules};

    /// Molecules on a lattice, all atoms shaken so that every term is strained.
    fn shaken_liquid() -> (Vec<Vec3>, Cell) {
        let mut random = Random::new(7, 0);
        let coord = lattice_of_molecules(&mut random);
        let coord = coord.into_iter().map(|r| r.map(|x| x + 0.05 * random.gaussian())).collect();
        (coord, Cell::cubic(box_length()))
    }

    fn evaluate(coord: &[Vec3], cell: &Cell) -> Evaluation {
        let mut out = Evaluation::default();
        SpcFw::new().evaluate(&mut out, coord, cell);
        out
    }

    #[test]
    fn forces_are_the_negative_derivative_of_the_energy() {
        let (coord, cell) = shaken_liquid();
        let force = evaluate(&coord, &cell).force;
        let h = 1e-4;
        for i in (0..coord.len()).step_by(5) {
            for a in 0..3 {
                let energy = |by: f64| {
                    let mut moved = coord.clone();
                    moved[i][a] += by;
                    evaluate(&moved, &cell).energy
                };
                let want =
                    -(8.0 * (energy(h) - energy(-h)) - (energy(2.0 * h) - energy(-2.0 * h))) / (12.0 * h);
                let got = force[i][a];
                assert!(
                    (got - want).abs() < 1e-8 + 1e-8 * want.abs(),
                    "atom {i} axis {a}: {got}, not {want}"
                );
            }
        }
    }

    #[test]
    fn the_virial_is_the_negative_derivative_of_the_energy_by_the_strain() {
        let (coord, cell) = shaken_liquid();
        let virial = evaluate(&coord, &cell).virial;
        let h = 1e-5;
        for a in 0..3 {
            for b in 0..3 {
                let energy = |by: f64| {
                    let mut strain = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
                    strain[a][b] += by;
                    let coord: Vec<Vec3> = coord.iter().map(|&r| multiply(r, &strain)).collect();
                    evaluate(&coord, &Cell::new(cell.rows().map(|row| multiply(row, &strain)))).energy
                };
                let want = -(energy(h) - energy(-h)) / (2.0 * h);
                let got = virial[a][b];
                assert!((got - want).abs() < 1e-5 + 1e-6 * want.abs(), "component {a}{b}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn the_trace_of_the_virial_is_positive_where_atoms_repel() {
        let cell = Cell::cubic(box_length());
        let stretched = molecule_at_rest().map(|r| r.map(|x| 1.02 * x));
        let squeezed = molecule_at_rest().map(|r| r.map(|x| 0.98 * x));
        let trace = |coord: &[Vec3]| {
            let v = evaluate(coord, &cell).virial;
            v[0][0] + v[1][1] + v[2][2]
        };
        assert!(trace(&squeezed) > 0.1 && trace(&stretched) < -0.1);
    }

    #[test]
    fn there_is_no_net_force_and_no_net_torque() {
        let (coord, cell) = shaken_liquid();
        let out = evaluate(&coord, &cell);
        for a in 0..3 {
            let net: f64 = out.force.iter().map(|f| f[a]).sum();
            assert!(net.abs() < 1e-11, "net force {net:.1e} along axis {a}");
            for b in 0..a {
                let twist = out.virial[a][b] - out.virial[b][a];
                assert!(twist.abs() < 1e-10, "the virial is not symmetric: {twist:.1e} in {a}{b}");
            }
        }
    }

    #[test]
    fn whole_lattice_vectors_change_nothing() {
        let (coord, cell) = shaken_liquid();
        let shifted: Vec<Vec3> = (0..)
            .zip(&coord)
            .map(|(i, r)| {
                let steps =
                    multiply([(i % 3) as f64 - 1.0, (i % 5) as f64 - 2.0, (i % 2) as f64], &cell.rows());
                std::array::from_fn(|a| r[a] + steps[a])
            })
            .collect();
        let (plain, shifted) = (evaluate(&coord, &cell), evaluate(&shifted, &cell));
        assert!((plain.energy - shifted.energy).abs() < 1e-10);
        for (i, (f, g)) in plain.force.iter().zip(&shifted.force).enumerate() {
            assert!((0..3).all(|a| (f[a] - g[a]).abs() < 1e-10), "atom {i}: {f:?} and {g:?}");
        }
    }

    #[test]
    fn a_molecule_at_rest_has_no_energy_and_no_force() {
        let out = evaluate(&molecule_at_rest(), &Cell::cubic(box_length()));
        assert!(out.energy.abs() < 1e-28, "{}", out.energy);
        assert!(out.force.iter().flatten().all(|f| f.abs() < 1e-13), "{:?}", out.force);
    }

    #[test]
    fn two_molecules_have_the_energy_of_their_nine_pairs() {
        // Some of the nine pairs are within the cutoff, some beyond it.
        let cell = Cell::cubic(box_length());
        let first = molecule_at_rest();
        let second = molecule_at_rest().map(|r| [r[0] + 0.3, r[1] + 5.0, r[2] - 0.4]);
        let coord: Vec<Vec3> = first.iter().chain(&second).copied().collect();
        let mut want = 0.0;
        for (a, &ra) in first.iter().enumerate() {
            for (b, &rb) in second.iter().enumerate() {
                let d: Vec3 = std::array::from_fn(|k| rb[k] - ra[k]);
                let r = dot(d, d).sqrt();
                if r < CUTOFF {
                    want += by_hand(r, CHARGE[TYPES[a]] * CHARGE[TYPES[b]], a == 0 && b == 0);
                }
            }
        }
        let got = evaluate(&coord, &cell).energy;
        assert!(want.abs() > 1e-3, "the molecules hardly feel each other: {want}");
        // The Coulomb constant by hand has ten digits.
        assert!((got - want).abs() < 1e-9 * want.abs(), "{got}, by hand {want}");
    }

    /// Shifted-force energy of one pair with the slopes at the cutoff taken numerically.
    fn by_hand(r: f64, qq: f64, oxygens: bool) -> f64 {
        let bare = |r: f64| {
            let s6 = (LJ_SIGMA / r).powi(6);
            let lj = if oxygens { 4.0 * LJ_EPSILON * (s6 * s6 - s6) } else { 0.0 };
            14.399645478 * qq * erfc_by_simpson(DAMPING * r) / r + lj
        };
        let h = 1e-3;
        let slope = (8.0 * (bare(CUTOFF + h) - bare(CUTOFF - h))
            - (bare(CUTOFF + 2.0 * h) - bare(CUTOFF - 2.0 * h)))
            / (12.0 * h);
        bare(r) - bare(CUTOFF) - slope * (r - CUTOFF)
    }

    /// 1 - 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.
    fn erfc_by_simpson(x: f64) -> f64 {
        let n = 400;
        let h = x / n as f64;
        let f = |k: usize| (-(k as f64 * h).powi(2)).exp();
        let inner: f64 = (1..n).map(|k| if k % 2 == 1 { 4.0 * f(k) } else { 2.0 * f(k) }).sum();
        1.0 - std::f64::consts::FRAC_2_SQRT_PI * h / 3.0 * (f(0) + inner + f(n))
    }
}
