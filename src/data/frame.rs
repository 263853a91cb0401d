//! One configuration of atoms with its labels.

use std::sync::Arc;

/// One configuration of atoms. Lengths in Å, energies in eV.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// `[n_atoms]` index into the model's `type_map`; -1 marks a virtual atom, which interacts with nothing.
    pub types: Arc<[i32]>,
    /// `[n_atoms, 3]`
    pub coord: Vec<f64>,
    /// Rows are the lattice vectors; `None` means open boundaries.
    pub cell: Option<[f64; 9]>,
    /// `[numb_fparam]`, empty where the model has none, or the file where the model has a default.
    pub fparam: Vec<f64>,
    /// `[n_atoms, numb_aparam]`, empty where the model has none.
    pub aparam: Vec<f64>,
    /// Whether DeePMD-kit, which trains on atoms sorted by type, would have another atom first. It makes a difference where empty slots
    /// have the type of the first atom: `se_atten` with a mean that is not zero.
    pub sorted: bool,
    pub labels: Labels,
}

/// What quantum mechanics said. `None`: the data set does not have it, or the loss does not want it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Labels {
    /// Total energy.
    pub energy: Option<f64>,
    /// `[n_atoms, 3]`
    pub force: Option<Vec<f64>>,
    /// Row-major 3x3, sum of r (x) F; eV.
    pub virial: Option<[f64; 9]>,
    /// `[n_atoms]`
    pub atom_energy: Option<Vec<f64>>,
    /// `[n_atoms, 3]` weight of each force component in the prefactored-force loss.
    pub atom_pref: Option<Vec<f64>>,
    /// `[n_atoms]` c of the energy sum_i c_i E_i that is compared with the label; 1 where absent.
    pub atom_ener_coeff: Option<Vec<f64>>,
    /// `[n_atoms, 3, numb_generalized_coord]` derivatives of the positions by generalised coordinates.
    pub drdq: Option<Vec<f64>>,
    /// `[width]` what a model predicts that predicts no energy, and that of each atom `[n_atoms, width]`.
    pub output: Option<Vec<f64>>,
    pub atom_output: Option<Vec<f64>>,
}

impl Frame {
    pub fn n_atoms(&self) -> usize {
        self.types.len()
    }

    /// Memory that its arrays hold.
    pub fn bytes(&self) -> usize {
        let labels = &self.labels;
        let optional = [
            &labels.force,
            &labels.atom_energy,
            &labels.atom_pref,
            &labels.atom_ener_coeff,
            &labels.drdq,
            &labels.output,
            &labels.atom_output,
        ];
        let labels: usize = optional.into_iter().flatten().map(Vec::len).sum();
        8 * (self.coord.len() + self.fparam.len() + self.aparam.len() + labels) + 4 * self.types.len()
    }
}
