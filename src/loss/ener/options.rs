//! The `loss` section of type `ener`: its keys, and the options as meant.

use crate::config::Section;
use crate::config::table::{Key, Kind};
use crate::err;
use crate::error::Result;

/// How an error enters the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossFunction {
    /// The mean of squares.
    Mse,
    /// The mean of absolute values.
    Mae,
    /// The mean of x^2/2 where |x| <= delta, of delta * (|x| - delta/2) beyond.
    Huber(HuberDeltas),
}

/// Where the Huber loss turns from quadratic to linear.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HuberDeltas {
    /// For the error of the energy divided by the number of atoms, and of atom energies.
    pub energy: f64,
    /// For components of force errors, or their norms with `f_use_norm`.
    pub force: f64,
    /// For components of virial errors divided by the number of atoms.
    pub virial: f64,
}

/// Names of the displayed errors: squares and absolute values.
pub(super) const NAMES: [[&str; 2]; 6] = [
    ["rmse_e", "mae_e"],
    ["rmse_f", "mae_f"],
    ["rmse_v", "mae_v"],
    ["rmse_ae", "mae_ae"],
    ["rmse_pf", "mae_pf"],
    ["rmse_gf", "rmse_gf"],
];

/// A prefactor that goes from `start` to `limit` as the learning rate decays:
/// `limit + (start - limit) * lr / start_lr`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefactor {
    pub start: f64,
    pub limit: f64,
}

impl Prefactor {
    /// The prefactor at this ratio of the learning rate to that at the start.
    pub fn at(&self, ratio: f64) -> f64 {
        self.limit + (self.start - self.limit) * ratio
    }

    /// Whether the term is there at all. As in DeePMD-kit it is left out where either end is zero.
    pub fn is_used(&self) -> bool {
        self.start != 0.0 && self.limit != 0.0
    }
}

/// `loss` of type `ener`.
///
/// The loss is the sum of these terms, each times its prefactor, over the frames of a batch with N atoms each:
/// - energy: Mse mean(dE^2) / N, or / N^2 with `intensive_ener_virial`; Mae mean(|dE|) / N; Huber of dE / N.
/// - force: Mse mean(dF^2), Mae mean(|dF|), Huber of dF over components; with `f_use_norm` Mae and Huber take |dF|
///   of an atom in place of its three components, and the mean over atoms.
/// - virial: as the energy, over nine components.
/// - atom_energy: Mse, Mae or Huber (delta of the energy) over atoms, not divided by N.
/// - atom_pref_force: Mse mean(p dF^2), Mae mean(p |dF|) over components, p from `atom_pref`; no Huber.
/// - generalized_force: mean(dG^2) over generalised coordinates q whatever the function is, dG = sum_i dF_i . dr_i/dq with
///   derivatives from `drdq`; no Huber.
#[derive(Debug, Clone, PartialEq)]
pub struct EnerLossOptions {
    pub energy: Prefactor,
    pub force: Prefactor,
    pub virial: Prefactor,
    pub atom_energy: Prefactor,
    pub atom_pref_force: Prefactor,
    pub generalized_force: Prefactor,
    /// Generalised coordinates.
    pub numb_generalized_coord: usize,
    /// Force errors of an atom are divided by |F| + relative_f of its label, where given; in both force terms.
    pub relative_f: Option<f64>,
    pub function: LossFunction,
    /// Force errors enter by their norm for each atom.
    pub f_use_norm: bool,
    /// The predicted energy is sum_i c_i E_i, c from `atom_ener_coeff` or 1, in the energy term.
    pub enable_atom_ener_coeff: bool,
    /// Systems without `atom_pref` have 1 everywhere; otherwise they have no such term.
    pub use_default_pf: bool,
    /// The squared errors of energy and virial are divided by N^2 instead of N.
    pub intensive_ener_virial: bool,
}

const fn pref(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key::new(name, Kind::NOT_NEGATIVE).default(default).doc(doc)
}

/// The keys of `loss` of type `ener`.
pub const KEYS: &[Key] = &[
    pref(
        "start_pref_e",
        "0.02",
        "Prefactor of the energy term at the start. It goes to limit_pref_e as the learning rate goes to zero: \
         limit + (start - limit) * lr / start_lr. A term with a zero at either end is left out.",
    ),
    pref("limit_pref_e", "1.0", "Prefactor of the energy term in the limit."),
    pref("start_pref_f", "1000", "Prefactor of the force term at the start."),
    pref("limit_pref_f", "1.0", "Prefactor of the force term in the limit."),
    pref("start_pref_v", "0.0", "Prefactor of the virial term at the start."),
    pref("limit_pref_v", "0.0", "Prefactor of the virial term in the limit."),
    pref("start_pref_h", "0.0", "Prefactor of the Hessian term at the start.").not_yet(""),
    pref("limit_pref_h", "0.0", "Prefactor of the Hessian term in the limit.").not_yet(""),
    pref("start_pref_ae", "0.0", "Prefactor at the start of the term of atom energies (atom_ener.npy)."),
    pref("limit_pref_ae", "0.0", "Prefactor of that term in the limit."),
    pref(
        "start_pref_pf",
        "0.0",
        "Prefactor at the start of the force term with a weight per atom (atom_pref.npy).",
    ),
    pref("limit_pref_pf", "0.0", "Prefactor of that term in the limit."),
    Key::new("use_default_pf", Kind::Bool)
        .default("false")
        .doc("Whether systems without atom_pref.npy have the weight 1 everywhere, instead of no such term."),
    Key::new("relative_f", Kind::OneOf(&[Kind::NOT_NEGATIVE, Kind::Null]))
        .optional()
        .unit("eV/A")
        .doc("Where given, force errors of an atom are divided by the norm of its labelled force plus this."),
    Key::new("enable_atom_ener_coeff", Kind::Bool)
        .default("false")
        .doc("Whether the energy is the sum of atom energies times the coefficients of atom_ener_coeff.npy."),
    pref(
        "start_pref_gf",
        "0.0",
        "Prefactor at the start of the term of generalised forces: forces times the derivatives of positions (drdq.npy).",
    ),
    pref("limit_pref_gf", "0.0", "Prefactor of that term in the limit."),
    Key::new("numb_generalized_coord", Kind::Int(0, 100_000))
        .default("0")
        .doc("Number of generalised coordinates, each with 3 derivatives for each atom in drdq.npy."),
    Key::new("use_huber", Kind::Bool)
        .default("false")
        .doc("Whether errors enter as x^2/2 up to huber_delta and as delta * (|x| - delta/2) beyond it."),
    Key::new("loss_func", Kind::choice(&["mse", "mae"]))
        .default("\"mse\"")
        .doc("Whether errors enter by their squares (mse) or their absolute values (mae)."),
    Key::new("f_use_norm", Kind::Bool)
        .default("false")
        .doc("Whether force errors enter by their norm for each atom; only with mae or use_huber."),
    Key::new("huber_delta", Kind::OneOf(&[Kind::POSITIVE, Kind::List(&Kind::POSITIVE)]))
        .default("0.01")
        .doc("Where the Huber loss turns linear: one number, or three for energy, force and virial."),
    Key::new("intensive_ener_virial", Kind::Bool).default("false").doc(
        "Whether squared errors of energy and virial are divided by the squared number of atoms, not by it.",
    ),
];

impl EnerLossOptions {
    /// The prefactors of all terms.
    pub fn prefactors(&self) -> [Prefactor; 6] {
        [self.energy, self.force, self.virial, self.atom_energy, self.atom_pref_force, self.generalized_force]
    }

    /// The name of the displayed error of a term.
    pub(super) fn name(&self, term: usize) -> &'static str {
        NAMES[term][usize::from(self.function == LossFunction::Mae)]
    }

    /// Names of the displayed errors, in the order of the terms.
    pub fn names(&self) -> Vec<&'static str> {
        let used = self.prefactors();
        (0..used.len()).filter(|&k| used[k].is_used()).map(|k| self.name(k)).collect()
    }

    /// Resolves the checked `loss` section.
    pub fn resolve(section: &Section) -> Result<EnerLossOptions> {
        let options = EnerLossOptions {
            energy: prefactor(section, "e"),
            force: prefactor(section, "f"),
            virial: prefactor(section, "v"),
            atom_energy: prefactor(section, "ae"),
            atom_pref_force: prefactor(section, "pf"),
            generalized_force: prefactor(section, "gf"),
            numb_generalized_coord: section.int("numb_generalized_coord"),
            relative_f: section.optional_float("relative_f"),
            function: function(section)?,
            f_use_norm: section.bool("f_use_norm"),
            enable_atom_ener_coeff: section.bool("enable_atom_ener_coeff"),
            use_default_pf: section.bool("use_default_pf"),
            intensive_ener_virial: section.bool("intensive_ener_virial"),
        };
        options.check(section)?;
        Ok(options)
    }

    /// Contradictions, as DeePMD-kit sees them.
    fn check(&self, section: &Section) -> Result<()> {
        if !self.prefactors().iter().any(Prefactor::is_used) {
            return Err(err!(
                "every term has a prefactor of zero at the start or in the limit, so nothing is trained"
            )
            .help("give one of e, f, v, ae, pf, gf a start_pref and a limit_pref above zero")
            .at("loss"));
        }
        if self.f_use_norm && self.function == LossFunction::Mse {
            return Err(section
                .error("f_use_norm", err!("has no meaning with loss_func \"mse\" and without use_huber"))
                .help("set loss_func to \"mae\" or use_huber to true"));
        }
        let not_huber = self.atom_pref_force.is_used() || self.generalized_force.is_used();
        if section.bool("use_huber") && (not_huber || self.relative_f.is_some()) {
            let error = err!("the Huber loss is not defined for start_pref_pf, start_pref_gf and relative_f");
            return Err(section.error("use_huber", error).help("leave one of them out"));
        }
        if self.generalized_force.is_used() && self.numb_generalized_coord == 0 {
            let error = err!("0 found, at least 1 wanted for start_pref_gf");
            return Err(section
                .error("numb_generalized_coord", error)
                .help("say by how many coordinates drdq.npy has derivatives"));
        }
        if section.bool("use_huber") && self.function == LossFunction::Mae {
            log::warn!("{}: has no effect with loss_func \"mae\"", section.path_of("use_huber"));
        }
        Ok(())
    }
}

/// The two ends of a prefactor. One end at zero drops the term, which is worth a line in the log.
pub fn prefactor(section: &Section, name: &str) -> Prefactor {
    let key = format!("start_pref_{name}");
    let prefactor =
        Prefactor { start: section.float(&key), limit: section.float(&format!("limit_pref_{name}")) };
    if !prefactor.is_used() && (prefactor.start != 0.0 || prefactor.limit != 0.0) {
        let (path, Prefactor { start, limit }) = (section.path_of(&key), prefactor);
        log::warn!("{path}: goes from {start} to {limit}; a term with a zero at either end is left out");
    }
    prefactor
}

fn function(section: &Section) -> Result<LossFunction> {
    let deltas = match section.optional_list("huber_delta") {
        None => vec![section.float("huber_delta"); 3],
        Some(list) => list.iter().filter_map(serde_json::Value::as_f64).collect(),
    };
    let [energy, force, virial] = deltas[..] else {
        let error = err!("found {} numbers, wanted one, or three for energy, force and virial", deltas.len());
        return Err(section.error("huber_delta", error));
    };
    Ok(match (section.text("loss_func"), section.bool("use_huber")) {
        ("mae", _) => LossFunction::Mae,
        (_, true) => LossFunction::Huber(HuberDeltas { energy, force, virial }),
        (_, false) => LossFunction::Mse,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::LossChoice;

    fn loss(function: LossFunction) -> EnerLossOptions {
        let on = Prefactor { start: 1.0, limit: 1.0 };
        let off = Prefactor { start: 0.0, limit: 0.0 };
        EnerLossOptions {
            energy: on,
            force: on,
            virial: Prefactor { start: 0.0, limit: 1.0 },
            atom_energy: off,
            atom_pref_force: on,
            generalized_force: off,
            numb_generalized_coord: 0,
            relative_f: None,
            function,
            f_use_norm: false,
            enable_atom_ener_coeff: false,
            use_default_pf: false,
            intensive_ener_virial: false,
        }
    }

    #[test]
    fn columns_follow_the_terms_of_the_loss() {
        let model = crate::engine::reference::tests::model(crate::engine::reference::tests::options());
        let columns = |function| LossChoice::new(loss(function)).columns(&model.options.fitting);
        assert_eq!(columns(LossFunction::Mse), ["rmse", "rmse_e", "rmse_f", "rmse_pf"]);
        assert_eq!(columns(LossFunction::Mae), ["rmse", "mae_e", "mae_f", "mae_pf"]);
    }
}
