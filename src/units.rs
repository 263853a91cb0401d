//! Physical constants and conversions, each with its source. Å and eV inside.

/// A bohr in Å, with the digits that PiNN's readers use (CODATA 2010 to ten digits).
pub const BOHR: f64 = 0.5291772109;

/// A nanometre in Å.
pub const NANOMETRE: f64 = 10.0;

/// A Hartree in eV (CODATA 2018).
pub const HARTREE: f64 = 27.211386245988;

/// A Hartree in kJ/mol: 27.211386245988 eV times the Faraday constant 96.48533212331 kJ/(mol eV) (CODATA 2018).
pub const HARTREE_IN_KJ_MOL: f64 = 2625.4996394799;
