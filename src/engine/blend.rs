//! What a table of pair energies brings to a frame. It knows no parameters, so it is made once, with the neighbours. The fitting nets take
//! the share of each atom in place of 1 as dE/denergy.
//!
//! With the energy e of the net, the weight w and the energy t of the table:
//! - `E = (1 - w) e + w t`
//! - `dE/dd = (1 - w) de/dd + (t - e) dw/dd + w dt/dd`
//! - a loss with dL/dE and a direction d_dot of its forces sees the net through `(1 - w) dL/dE - w_dot` and, where forces enter,
//!   through `1 - w`.

use super::Prediction;
use crate::Result;
use crate::model::dp::Dp;
use crate::model::dp::geometry::Geometry;
use crate::model::dp::short_range::ShortRange;
use std::ops::Range;

/// Below this the sum of weights counts as this, as in DeePMD-kit: atoms far from all others have the table's weight for a distance
/// that is not theirs, and an energy of nearly zero from it.
const SMALLEST_SUM: f64 = 1e-20;

/// The atoms of a frame that are not the net's alone.
#[derive(Debug, Default)]
pub struct Blend {
    /// In the order of the file.
    atoms: Vec<Blended>,
    pairs: Vec<BlendedPair>,
}

/// An atom with a share of the table.
#[derive(Debug)]
struct Blended {
    atom: usize,
    center: usize,
    /// w, from 0 to 1.
    weight: f64,
    /// eV, without bias.
    energy: f64,
    pairs: Range<usize>,
}

/// A neighbour of such an atom.
#[derive(Debug)]
pub struct BlendedPair {
    pub j: usize,
    /// x_j - x_i, A.
    pub d: [f64; 3],
    /// dw/dd, 1/A.
    pub weight_d: [f64; 3],
    /// Derivative of the table's energy by d, eV/A.
    pub energy_d: [f64; 3],
}

impl Blend {
    /// For some atoms of a frame. Nothing where the model has no table.
    pub fn new(model: &Dp, geometry: &Geometry, centers: Range<usize>) -> Result<Blend> {
        let mut blend = Blend::default();
        if let Some(options) = &model.options.short_range {
            for i in centers {
                if let Ok(center) = usize::try_from(geometry.types[i]) {
                    blend.add_atom(model, options, geometry, (i, center))?;
                }
            }
        }
        Ok(blend)
    }

    fn add_atom(
        &mut self,
        model: &Dp,
        options: &ShortRange,
        geometry: &Geometry,
        (atom, center): (usize, usize),
    ) -> Result<()> {
        let (n_types, alpha) = (model.n_types(), options.smin_alpha);
        let table = model.stats.pair_table.as_ref().expect("a model with use_srtab has its table");
        let all = geometry.pairs(atom, 0, n_types).start..geometry.pairs(atom, n_types - 1, n_types).end;
        let r = &geometry.r[all.clone()];
        let (mut above, mut below) = (0.0, 0.0);
        for &r in r {
            let e = (-r / alpha).exp();
            above += r * e;
            below += e;
        }
        let sigma = above / f64::max(below, SMALLEST_SUM);
        let (weight, weight_sigma) = options.weight(sigma);
        if sigma == 0.0 || weight == 0.0 {
            return Ok(());
        }
        let (first, mut energy) = (self.pairs.len(), 0.0);
        for t in 0..n_types {
            for pair in geometry.pairs(atom, t, n_types) {
                let (d, r) = (geometry.d[pair], geometry.r[pair]);
                let (e, e_r) = table.energy(center, t, r).map_err(|e| e.at(format!("atom {atom}")))?;
                energy += 0.5 * e;
                let near = (-r / alpha).exp();
                let sigma_r = match below < SMALLEST_SUM {
                    true => near * (1.0 - r / alpha) / SMALLEST_SUM,
                    false => near * (1.0 + (sigma - r) / alpha) / below,
                };
                self.pairs.push(BlendedPair {
                    j: geometry.j[pair] as usize,
                    d,
                    weight_d: d.map(|x| weight_sigma * sigma_r * x / r),
                    energy_d: d.map(|x| 0.5 * e_r * x / r),
                });
            }
        }
        let pairs = first..self.pairs.len();
        self.atoms.push(Blended { atom, center, weight, energy, pairs });
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.atoms.len() * size_of::<Blended>() + self.pairs.len() * size_of::<BlendedPair>()
    }

    fn of(&self, atom: usize) -> Option<&Blended> {
        self.atoms.binary_search_by_key(&atom, |own| own.atom).ok().map(|k| &self.atoms[k])
    }

    /// For each atom that is not the net's alone: its number, the table's weight and energy, and its neighbours.
    pub fn atoms<'a>(
        &'a self,
        model: &'a Dp,
    ) -> impl Iterator<Item = (usize, f64, f64, &'a [BlendedPair])> + 'a {
        let of = |own: &'a Blended| {
            (own.atom, own.weight, table_energy(model, own), &self.pairs[own.pairs.clone()])
        };
        self.atoms.iter().map(of)
    }

    /// Gives every atom another number, which keeps their order or is asked for by [`Blend::atoms`] alone.
    pub fn number_anew(&mut self, mut anew: impl FnMut(&mut usize)) {
        self.atoms.iter_mut().for_each(|own| anew(&mut own.atom));
        self.pairs.iter_mut().for_each(|pair| anew(&mut pair.j));
    }

    /// What the forces of the net of this atom are multiplied by, `1 - w`.
    pub fn share(&self, atom: usize) -> f64 {
        self.of(atom).map_or(1.0, |own| 1.0 - own.weight)
    }

    /// The derivative of the loss by the energy of the net, from that by the energy of the atom; `d_dot` is the direction of the
    /// forces for a pair of this atom.
    pub fn seed(&self, atom: usize, dl_energy: f64, d_dot: impl Fn(&BlendedPair) -> [f64; 3]) -> f64 {
        let Some(own) = self.of(atom) else { return dl_energy };
        let of_pair = |pair: &BlendedPair| dot(&pair.weight_d, &d_dot(pair));
        (1.0 - own.weight) * dl_energy - self.pairs[own.pairs.clone()].iter().map(of_pair).sum::<f64>()
    }

    /// Blends the energies of the net, bias included, in frame `f` whose atoms begin with number `first_atom`; its forces and virial,
    /// in which the shares are already, get what the table adds.
    pub fn apply(&self, out: &mut Prediction, model: &Dp, f: usize, first_atom: usize) {
        let Prediction { energy, atom_energy, force, virial, .. } = out;
        let (atom_energy, force) = (&mut atom_energy[first_atom..], &mut force[3 * first_atom..]);
        self.each_pair(model, atom_energy, |i, pair, de_d| {
            for k in 0..3 {
                force[3 * i + k] += de_d[k];
                force[3 * pair.j + k] -= de_d[k];
                for l in 0..3 {
                    virial[f][3 * k + l] -= pair.d[k] * de_d[l];
                }
            }
        });
        for own in &self.atoms {
            let e = &mut atom_energy[own.atom];
            let blended = (1.0 - own.weight) * *e + own.weight * table_energy(model, own);
            energy[f] += blended - *e;
            *e = blended;
        }
    }

    /// dE/dd of each pair beside what the net's share gives, with the centre; `net` has the energies of the net for each atom.
    fn each_pair(&self, model: &Dp, net: &[f64], mut visit: impl FnMut(usize, &BlendedPair, [f64; 3])) {
        for own in &self.atoms {
            let beyond = table_energy(model, own) - net[own.atom];
            for pair in &self.pairs[own.pairs.clone()] {
                let de_d = [0, 1, 2].map(|k| beyond * pair.weight_d[k] + own.weight * pair.energy_d[k]);
                visit(own.atom, pair, de_d);
            }
        }
    }

    /// Adds -dE/dd (x) d of every pair to its neighbour `[n_atoms, 9]`; `net` has the energies of atoms from before [`Blend::apply`].
    pub fn atom_virial_add(&self, virial: &mut [f64], model: &Dp, net: &[f64]) {
        self.each_pair(model, net, |_, pair, de_d| {
            for k in 0..3 {
                for l in 0..3 {
                    virial[9 * pair.j + 3 * k + l] -= de_d[k] * pair.d[l];
                }
            }
        });
    }
}

/// The energy that the table alone gives an atom.
fn table_energy(model: &Dp, own: &Blended) -> f64 {
    let adds_bias = model.options.short_range.as_ref().is_some_and(|options| options.add_bias);
    own.energy + if adds_bias { model.stats.bias[own.center] } else { 0.0 }
}

fn dot(x: &[f64; 3], y: &[f64; 3]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
