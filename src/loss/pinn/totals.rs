//! Errors of a number that each structure has, energies or dipoles, and of the same numbers per atom.

use super::{Errors, Term, View, rounded};

/// What is compared, and how errors are weighted.
pub(super) struct Totals<'a> {
    /// Names of the errors, and of those per atom.
    pub tags: [&'static str; 2],
    pub label: Vec<f64>,
    pub predicted: &'a [f64],
    /// Larger labels do not count.
    pub largest: Option<f64>,
    pub multiplier: f64,
    /// Weights of structures, where they are used.
    pub weights: Option<Vec<f64>>,
    /// The errors per atom are those that count.
    pub per_atom: bool,
    /// The fork's errors per root of the number of atoms, which are errors per atom with another weight.
    pub per_sqrt: bool,
    /// The errors per atom are logged where they do not count, too.
    pub log_per_atom: bool,
    pub is_fork: bool,
}

impl Totals<'_> {
    /// The errors, and the errors per atom: with each whether it is per atom. One of them counts.
    pub fn terms(&self, view: View) -> Vec<(Term, bool)> {
        let mut terms = vec![(self.term(view, false), false)];
        if self.per_atom || self.log_per_atom {
            terms.push((self.term(view, true), true));
        }
        terms
    }

    fn term(&self, view: View, per_atom: bool) -> Term {
        let atoms = |s: usize| view.frames[s].n_atoms() as f64;
        let divided = |x: &[f64]| -> Vec<f64> {
            x.iter().enumerate().map(|(s, x)| if per_atom { x / atoms(s) } else { *x }).collect()
        };
        let root = |s: usize| if self.is_fork && self.per_sqrt { atoms(s) } else { 1.0 };
        let mask = self.largest.map(|max| self.label.iter().map(|x| x.abs() <= max).collect());
        Errors {
            tag: self.tags[usize::from(per_atom)],
            label: divided(&self.label),
            predicted: divided(self.predicted),
            weight: Box::new(|s| if per_atom { self.weight(s) * root(s) } else { self.weight(s) }),
            mask,
            divide_by_all: self.is_fork,
            counts: self.per_atom == per_atom,
            logged: true,
        }
        .term()
    }

    fn weight(&self, s: usize) -> f64 {
        let given = self.weights.as_ref().map(|weights| weights[s]);
        match (self.is_fork, given) {
            (false, Some(given)) => self.multiplier * given,
            (false, None) => rounded(self.multiplier),
            (true, Some(given)) => self.multiplier * given * given,
            (true, None) => self.multiplier,
        }
    }
}
