//! The options of PiNet networks and of the models around them, as meant.
//!
//! Reading them from params.yml is not done here. Defaults stand here, so that tests and tools can start from them.

use crate::err;
use crate::error::Result;
use std::collections::BTreeMap;

/// Which of the two PiNets is meant. They differ in the wiring of a block, in the output layers and in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// PiNN 1 and 2: `network: {name: PiNet}`.
    Master,
    /// PiNN 0.3 and its data-parallel fork: `network: pinet`.
    Fork,
}

/// Which network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkKind {
    PiNet,
    /// With vector (rank 3) and tensor (rank 5) properties of atoms. Always of [`Wiring::Master`].
    PiNet2,
}

/// How a pair vanishes at the cutoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutoffType {
    /// (cos(pi r / rc) + 1) / 2.
    F1,
    /// (tanh(1 - r / rc) / tanh 1)^3.
    F2,
    /// cos^2(pi r / (2 rc)): mathematically the same as `F1`.
    Hip,
}

/// The radial functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BasisType {
    /// Powers of the cutoff function.
    Polynomial,
    /// exp(-gamma (r - center)^2) times the cutoff function.
    Gaussian,
}

/// How many radial functions, or which powers.
#[derive(Debug, Clone, PartialEq)]
pub enum Basis {
    /// Powers 1, 2, ..., n; or n centers from 0 to rc.
    Count(usize),
    /// These powers of the cutoff function.
    Exponents(Vec<f64>),
}

impl Basis {
    /// The number of radial functions.
    pub fn len(&self) -> usize {
        match self {
            Basis::Count(n) => *n,
            Basis::Exponents(list) => list.len(),
        }
    }

    /// True where there is none, which no checked input has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The powers of a polynomial basis.
    pub fn exponents(&self) -> Vec<f64> {
        match self {
            Basis::Count(n) => (1..=*n).map(|p| p as f64).collect(),
            Basis::Exponents(list) => list.clone(),
        }
    }
}

/// The width of Gaussians, 1/A^2.
#[derive(Debug, Clone, PartialEq)]
pub enum Gamma {
    /// One for all.
    Same(f64),
    /// One for each radial function.
    Each(Vec<f64>),
}

/// How atomic outputs become one output of a structure inside the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    Sum,
    Max,
    Min,
    Avg,
}

/// An activation function by its Keras name. `gelu` is the exact form with the error function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Tanh,
    Relu,
    Softplus,
    Sigmoid,
    Elu,
    Selu,
    /// x (1 + erf(x / sqrt 2)) / 2.
    Gelu,
    /// x sigmoid(x); also called `silu`.
    Swish,
    Softsign,
    Exponential,
    /// x tanh(softplus(x)).
    Mish,
    /// x / 5 + 1 / 2 within 0 and 1.
    HardSigmoid,
    Linear,
}

/// Every activation with its name.
const ACTS: &[(&str, Act)] = &[
    ("tanh", Act::Tanh),
    ("relu", Act::Relu),
    ("softplus", Act::Softplus),
    ("sigmoid", Act::Sigmoid),
    ("elu", Act::Elu),
    ("selu", Act::Selu),
    ("gelu", Act::Gelu),
    ("swish", Act::Swish),
    ("silu", Act::Swish),
    ("softsign", Act::Softsign),
    ("exponential", Act::Exponential),
    ("mish", Act::Mish),
    ("hard_sigmoid", Act::HardSigmoid),
    ("linear", Act::Linear),
];

impl Act {
    /// Reads a Keras name. Case matters in Keras; here it does not.
    pub fn parse(name: &str) -> Result<Act> {
        let lower = name.trim().to_ascii_lowercase();
        if let Some((_, act)) = ACTS.iter().find(|(known, _)| *known == lower) {
            return Ok(*act);
        }
        if lower == "softmax" {
            return Err(err!("\"{name}\" mixes the outputs of a layer, which Phalanx does not support")
                .help("take an activation function that acts on each number, such as tanh"));
        }
        let known: Vec<&str> = ACTS.iter().map(|(known, _)| *known).collect();
        let near = crate::config::check::did_you_mean(&lower, known.iter().copied());
        Err(err!("\"{name}\" is not an activation function")
            .help(format!("{near}known: {}", known.join(", "))))
    }

    /// The Keras name.
    pub fn name(self) -> &'static str {
        ACTS.iter().find(|(_, act)| *act == self).expect("every activation has a name").0
    }
}

/// The options of a PiNet or PiNet2 network.
#[derive(Debug, Clone, PartialEq)]
pub struct PinetOptions {
    pub version: Wiring,
    pub kind: NetworkKind,
    /// Atomic numbers, in the order of the one-hot columns. Other elements have a row of zeros.
    pub atom_types: Vec<i32>,
    /// A.
    pub rc: f64,
    pub cutoff_type: CutoffType,
    pub basis_type: BasisType,
    pub n_basis: Basis,
    pub gamma: Gamma,
    /// Centers of the Gaussians, A; `None`: evenly from 0 to rc.
    pub center: Option<Vec<f64>>,
    pub pp_nodes: Vec<usize>,
    pub pi_nodes: Vec<usize>,
    pub ii_nodes: Vec<usize>,
    /// Hidden layers of the output; `en_nodes` of the fork.
    pub out_nodes: Vec<usize>,
    pub out_units: usize,
    pub out_pool: Option<Pool>,
    /// Number of blocks.
    pub depth: usize,
    pub act: Act,
    /// PiNet2: 1, 3 or 5.
    pub rank: usize,
    /// PiNet2: whether the tensors of both atoms of a pair are mixed by trained weights.
    pub weighted: bool,
    /// PiNet2: further outputs, by the tensor they are made of and their width.
    pub out_extra: BTreeMap<String, usize>,
}

impl PinetOptions {
    /// The defaults of a network.
    pub fn new(version: Wiring, kind: NetworkKind) -> Self {
        PinetOptions {
            version,
            kind,
            atom_types: vec![1, 6, 7, 8],
            rc: 4.0,
            cutoff_type: CutoffType::F1,
            basis_type: BasisType::Polynomial,
            n_basis: Basis::Count(4),
            gamma: Gamma::Same(3.0),
            center: None,
            pp_nodes: vec![16, 16],
            pi_nodes: vec![16, 16],
            ii_nodes: vec![16, 16],
            out_nodes: vec![16, 16],
            out_units: 1,
            out_pool: None,
            depth: 4,
            act: Act::Tanh,
            rank: 3,
            weighted: false,
            out_extra: BTreeMap::new(),
        }
    }
}

/// What the network's output means.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelOptions {
    Potential(PotentialOptions),
    Dipole(DipoleOptions),
}

/// The options of `potential_model`. Where the two versions differ, `version` says which loss is meant.
#[derive(Debug, Clone, PartialEq)]
pub struct PotentialOptions {
    pub version: Wiring,
    /// Energy of an atom by atomic number, taken off the labels, in the unit of the data.
    pub e_dress: BTreeMap<i32, f64>,
    /// The network learns energies times this.
    pub e_scale: f64,
    /// Predictions are multiplied by this.
    pub e_unit: f64,
    /// Structures whose |energy| in training space is above this do not count.
    pub max_energy: Option<f64>,
    pub use_e_per_atom: bool,
    /// Fork: together with `use_e_per_atom`, errors are divided by the root of the number of atoms instead.
    pub use_e_per_sqrt: bool,
    pub log_e_per_atom: bool,
    pub use_e_weight: bool,
    pub use_force: bool,
    /// Force components that are larger in training space do not count (`max_force_comp`, fork: `max_force`).
    pub max_force: Option<f64>,
    /// Master: a random subset of this many force components is used.
    pub no_force_comp: Option<usize>,
    pub use_f_weights: bool,
    /// Master only.
    pub use_stress: bool,
    pub use_l2: bool,
    pub e_loss_multiplier: f64,
    pub f_loss_multiplier: f64,
    /// Master only.
    pub s_loss_multiplier: f64,
    pub l2_loss_multiplier: f64,
    /// Master: each step uses one term of the loss, drawn at random.
    pub separate_errors: bool,
}

impl PotentialOptions {
    /// The defaults.
    pub fn new(version: Wiring) -> Self {
        PotentialOptions {
            version,
            e_dress: BTreeMap::new(),
            e_scale: 1.0,
            e_unit: 1.0,
            max_energy: None,
            use_e_per_atom: false,
            use_e_per_sqrt: false,
            log_e_per_atom: false,
            use_e_weight: false,
            use_force: false,
            max_force: None,
            no_force_comp: None,
            use_f_weights: false,
            use_stress: false,
            use_l2: false,
            e_loss_multiplier: 1.0,
            f_loss_multiplier: 1.0,
            s_loss_multiplier: 1.0,
            l2_loss_multiplier: 1.0,
            separate_errors: false,
        }
    }
}

/// The options of `dipole_model`.
#[derive(Debug, Clone, PartialEq)]
pub struct DipoleOptions {
    pub version: Wiring,
    /// The network learns dipoles times this.
    pub d_scale: f64,
    /// Predictions are multiplied by this.
    pub d_unit: f64,
    /// Structures whose dipole in training space is above this do not count.
    pub max_dipole: Option<f64>,
    pub use_d_per_atom: bool,
    /// Fork: together with `use_d_per_atom`, errors are divided by the root of the number of atoms instead.
    pub use_d_per_sqrt: bool,
    pub log_d_per_atom: bool,
    pub use_d_weight: bool,
    pub use_l2: bool,
    pub d_loss_multiplier: f64,
    pub l2_loss_multiplier: f64,
}

impl DipoleOptions {
    /// The defaults.
    pub fn new(version: Wiring) -> Self {
        DipoleOptions {
            version,
            d_scale: 1.0,
            d_unit: 1.0,
            max_dipole: None,
            use_d_per_atom: false,
            use_d_per_sqrt: false,
            log_d_per_atom: false,
            use_d_weight: false,
            use_l2: false,
            d_loss_multiplier: 1.0,
            l2_loss_multiplier: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_read_by_their_keras_names() {
        for (name, act) in ACTS {
            assert_eq!(Act::parse(name).unwrap(), *act);
        }
        assert_eq!(Act::parse("silu").unwrap().name(), "swish");
        let error = Act::parse("tahn").unwrap_err();
        assert!(error.advice().unwrap().starts_with("did you mean `tanh`?"), "{error}");
        assert!(Act::parse("softmax").unwrap_err().message().contains("does not support"));
    }

    #[test]
    fn a_counted_basis_starts_at_the_first_power() {
        assert_eq!(Basis::Count(3).exponents(), [1.0, 2.0, 3.0]);
        assert_eq!(Basis::Exponents(vec![2.0, 4.0]).len(), 2);
    }
}
