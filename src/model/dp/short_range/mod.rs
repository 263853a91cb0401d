//! A table of pair energies that takes over where atoms come close (`use_srtab`): the ZBL potential, as a rule.
//!
//! With the softened distance to the nearest neighbour, `sigma = sum r exp(-r / alpha) / sum exp(-r / alpha)`, the energy of an atom is
//! `(1 - w(sigma)) e_net + w(sigma) e_table`; w falls from 1 at sw_rmin to 0 at sw_rmax, and `e_table` is half the sum over
//! neighbours. The bias of the type goes to both, or to the net alone (`srtab_add_bias`).

mod table;

pub use table::PairTable;

use super::options::{Descriptors, FittingOptions};
use crate::config::Section;
use crate::err;
use crate::error::Result;

/// How the table and the net are blended. The table itself is in the statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortRange {
    /// The file of the table, as the input names it.
    pub file: String,
    /// A, the decay of the weights that make the softened distance.
    pub smin_alpha: f64,
    /// A, the table alone up to here.
    pub sw_rmin: f64,
    /// A, the net alone from here on.
    pub sw_rmax: f64,
    /// Whether the bias of a type is added to the table's energy too.
    pub add_bias: bool,
}

/// DeePMD-kit's default of smin_alpha, A.
const SMIN_ALPHA: f64 = 0.1;

impl ShortRange {
    /// Resolves the keys; `None` where no table is asked for.
    pub fn resolve(
        section: &Section,
        descriptors: &Descriptors,
        fitting: &FittingOptions,
    ) -> Result<Option<ShortRange>> {
        let key = "use_srtab";
        let Some(file) = section.optional_text(key) else { return Ok(None) };
        let number = |key: &str| {
            let missing = || section.error(key, err!("missing; wanted a distance in A"));
            section.optional_float(key).ok_or_else(|| {
                missing().help("use_srtab blends a table and the network between sw_rmin and sw_rmax, such as 0.8 and 1.0")
            })
        };
        let (sw_rmin, sw_rmax) = (number("sw_rmin")?, number("sw_rmax")?);
        if !(0.0 <= sw_rmin && sw_rmin < sw_rmax) {
            let error = err!("{sw_rmin} A with sw_rmax = {sw_rmax} A, wanted 0 <= sw_rmin < sw_rmax");
            return Err(section.error("sw_rmin", error));
        }
        let [descriptor] = &descriptors.list[..] else {
            return Err(section.error(key, err!("a table beside a hybrid descriptor is not there yet")));
        };
        if !descriptor.is_mixed() {
            let error = err!("a table beside such a descriptor is not there yet");
            return Err(section.error(key, error).help(
                "it goes with se_atten and se_atten_v2, as in the PyTorch back end of DeePMD-kit; se_atten_v2 with attn_layer = 0 is fast",
            ));
        }
        let unlike_energies = [
            ("fitting_net", !fitting.is_energy(), "a fitting net that predicts no energy"),
            ("fitting_net", fitting.atom_ener.iter().any(Option::is_some), "atom_ener of the fitting net"),
            ("preset_out_bias", section.get("preset_out_bias").is_some(), "preset_out_bias"),
        ];
        if let Some((key, _, what)) = unlike_energies.iter().find(|(_, is_there, _)| *is_there) {
            return Err(section.error(key, err!("{what} beside use_srtab is not there yet")));
        }
        if !descriptor.exclude_types.is_empty() {
            let error = err!("a table beside exclude_types of the descriptor is not there yet");
            return Err(section.error(key, error).help("model.pair_exclude_types goes with it"));
        }
        Ok(Some(ShortRange {
            file: file.to_string(),
            smin_alpha: section.optional_float("smin_alpha").unwrap_or(SMIN_ALPHA),
            sw_rmin,
            sw_rmax,
            add_bias: section.bool("srtab_add_bias"),
        }))
    }

    /// w and dw/dsigma.
    pub fn weight(&self, sigma: f64) -> (f64, f64) {
        if sigma < self.sw_rmin {
            return (1.0, 0.0);
        }
        if sigma >= self.sw_rmax {
            return (0.0, 0.0);
        }
        let width = self.sw_rmax - self.sw_rmin;
        let u = (sigma - self.sw_rmin) / width;
        let w = -6.0 * u.powi(5) + 15.0 * u.powi(4) - 10.0 * u.powi(3) + 1.0;
        (w, -30.0 * (u * (1.0 - u)).powi(2) / width)
    }
}
