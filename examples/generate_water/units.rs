//! Physical constants and conversions. Inside: Å, eV, fs, e, amu, K.

/// Elementary charge, C. Exact in the SI of 2019.
const ELEMENTARY_CHARGE_C: f64 = 1.602176634e-19;
/// Avogadro constant, 1/mol. Exact in the SI of 2019.
const AVOGADRO_PER_MOL: f64 = 6.02214076e23;
/// Boltzmann constant, J/K. Exact in the SI of 2019.
const BOLTZMANN_J_PER_K: f64 = 1.380649e-23;
/// Atomic mass constant, kg. CODATA 2018.
const ATOMIC_MASS_KG: f64 = 1.66053906660e-27;
/// Vacuum permittivity, F/m. CODATA 2018.
const VACUUM_PERMITTIVITY_F_PER_M: f64 = 8.8541878128e-12;

/// Boltzmann constant, eV/K.
pub const BOLTZMANN: f64 = BOLTZMANN_J_PER_K / ELEMENTARY_CHARGE_C;
/// One kcal/mol in eV; the thermochemical calorie is 4.184 J.
pub const KCAL_PER_MOL: f64 = 4184.0 / (AVOGADRO_PER_MOL * ELEMENTARY_CHARGE_C);
/// Coulomb constant e^2 / (4 pi eps0), eV Å.
pub const COULOMB: f64 =
    ELEMENTARY_CHARGE_C / (4.0 * std::f64::consts::PI * VACUUM_PERMITTIVITY_F_PER_M) * 1e10;
/// One amu Å^2/fs^2 in eV: (1 Å/fs)^2 is 1e10 m^2/s^2.
pub const AMU_A2_PER_FS2: f64 = ATOMIC_MASS_KG * 1e10 / ELEMENTARY_CHARGE_C;
/// One g/cm^3 in amu/Å^3.
pub const GRAM_PER_CM3: f64 = 1e-3 / ATOMIC_MASS_KG * 1e-24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_with_the_tables() {
        for (name, got, want) in [
            ("Boltzmann constant", BOLTZMANN, 8.617333262e-5),
            ("kcal/mol", KCAL_PER_MOL, 0.0433641043),
            ("Coulomb constant", COULOMB, 14.3996454),
            ("amu A^2/fs^2", AMU_A2_PER_FS2, 103.642697),
            ("g/cm^3", GRAM_PER_CM3, 0.602214076),
        ] {
            assert!((got / want - 1.0).abs() < 1e-8, "{name}: {got}, the tables say {want}");
        }
    }
}
