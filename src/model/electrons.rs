//! The elements: symbols, and where the electrons of an atom are.

use crate::Result;
use crate::err;

/// Symbols in the order of atomic numbers, hydrogen first.
pub const SYMBOLS: [&str; 118] = [
    "H", "He", "Li", "Be", "B", "C", "N", "O", "F", "Ne", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "Ar", "K",
    "Ca", "Sc", "Ti", "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga", "Ge", "As", "Se", "Br", "Kr",
    "Rb", "Sr", "Y", "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn", "Sb", "Te", "I", "Xe",
    "Cs", "Ba", "La", "Ce", "Pr", "Nd", "Pm", "Sm", "Eu", "Gd", "Tb", "Dy", "Ho", "Er", "Tm", "Yb", "Lu",
    "Hf", "Ta", "W", "Re", "Os", "Ir", "Pt", "Au", "Hg", "Tl", "Pb", "Bi", "Po", "At", "Rn", "Fr", "Ra",
    "Ac", "Th", "Pa", "U", "Np", "Pu", "Am", "Cm", "Bk", "Cf", "Es", "Fm", "Md", "No", "Lr", "Rf", "Db",
    "Sg", "Bh", "Hs", "Mt", "Ds", "Rg", "Cn", "Nh", "Fl", "Mc", "Lv", "Ts", "Og",
];

/// Numbers of [`occupation`].
pub const SPIN_ORBITALS: usize = 118;

/// Refuses types that are no elements, of which no electrons are known.
pub fn check_elements(type_map: &[String]) -> Result<()> {
    match type_map.iter().find(|name| !SYMBOLS.contains(&name.as_str())) {
        Some(name) => Err(err!("the type \"{name}\" is not the symbol of an element")
            .help("electrons are known of elements only")),
        None => Ok(()),
    }
}

/// `[n_types, n]` what an embedding of types is given: electron configurations, or a 1 in the place of the type.
pub fn type_inputs(type_map: &[String], by_electrons: bool) -> Vec<f64> {
    if by_electrons {
        let electrons = |name: &String| occupation(name).unwrap_or([0.0; SPIN_ORBITALS]);
        return type_map.iter().flat_map(electrons).collect();
    }
    let n = type_map.len();
    (0..n * n).map(|k| if k / n == k % n { 1.0 } else { 0.0 }).collect()
}

/// Principal quantum number and angular momentum.
type Subshell = (usize, usize);

/// Subshells in the order in which they are filled.
const FILLED: [Subshell; 19] = [
    (1, 0),
    (2, 0),
    (2, 1),
    (3, 0),
    (3, 1),
    (4, 0),
    (3, 2),
    (4, 1),
    (5, 0),
    (4, 2),
    (5, 1),
    (6, 0),
    (4, 3),
    (5, 2),
    (6, 1),
    (7, 0),
    (5, 3),
    (6, 2),
    (7, 1),
];

/// Elements whose ground state is another: electrons that moved, from one subshell to another.
#[rustfmt::skip]
const EXCEPTIONS: &[(&str, usize, Subshell, Subshell)] = &[
    ("Cr", 1, (4, 0), (3, 2)), ("Cu", 1, (4, 0), (3, 2)), ("Nb", 1, (5, 0), (4, 2)), ("Mo", 1, (5, 0), (4, 2)),
    ("Ru", 1, (5, 0), (4, 2)), ("Rh", 1, (5, 0), (4, 2)), ("Pd", 2, (5, 0), (4, 2)), ("Ag", 1, (5, 0), (4, 2)),
    ("La", 1, (4, 3), (5, 2)), ("Ce", 1, (4, 3), (5, 2)), ("Gd", 1, (4, 3), (5, 2)), ("Pt", 1, (6, 0), (5, 2)),
    ("Au", 1, (6, 0), (5, 2)), ("Ac", 1, (5, 3), (6, 2)), ("Th", 2, (5, 3), (6, 2)), ("Pa", 1, (5, 3), (6, 2)),
    ("U", 1, (5, 3), (6, 2)), ("Np", 1, (5, 3), (6, 2)), ("Cm", 1, (5, 3), (6, 2)), ("Ds", 1, (7, 0), (6, 2)),
    ("Rg", 1, (7, 0), (6, 2)),
];

/// Which spin orbitals of the ground state of an element are occupied: 1, others -1, all divided by the square root of their number, as
/// DeePMD-kit embeds types by `use_econf_tebd`. `None` where the symbol is that of no element.
///
/// Subshells stand in the order of n and l; in an orbital spin down comes first and is filled last, and electrons of a subshell go into
/// orbitals of their own as long as there are any.
pub fn occupation(symbol: &str) -> Option<[f64; SPIN_ORBITALS]> {
    let z = SYMBOLS.iter().position(|known| *known == symbol)? + 1;
    let mut electrons = [0usize; FILLED.len()];
    let mut left = z;
    for (n, (_, l)) in electrons.iter_mut().zip(FILLED) {
        *n = left.min(2 * (2 * l + 1));
        left -= *n;
    }
    let shell = |wanted: Subshell| FILLED.iter().position(|&shell| shell == wanted);
    if let Some(&(_, moved, from, to)) = EXCEPTIONS.iter().find(|exception| exception.0 == symbol) {
        let (from, to) = (shell(from)?, shell(to)?);
        electrons[from] -= moved;
        electrons[to] += moved;
    }
    let mut order: Vec<usize> = (0..FILLED.len()).collect();
    order.sort_by_key(|&k| FILLED[k]);
    let one = 1.0 / (SPIN_ORBITALS as f64).sqrt();
    let (mut occupied, mut first) = ([-one; SPIN_ORBITALS], 0);
    for k in order {
        let orbitals = 2 * FILLED[k].1 + 1;
        for e in 0..electrons[k] {
            let (orbital, spin) = (e % orbitals, if e < orbitals { 1 } else { 0 });
            occupied[first + 2 * orbital + spin] = one;
        }
        first += 2 * orbitals;
    }
    Some(occupied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(symbol: &str) -> Vec<i32> {
        occupation(symbol).unwrap().iter().map(|x| x.signum() as i32).collect()
    }

    #[test]
    fn every_element_has_as_many_electrons_as_its_number() {
        for (k, symbol) in SYMBOLS.iter().enumerate() {
            assert_eq!(signs(symbol).iter().filter(|&&x| x == 1).count(), k + 1, "{symbol}");
        }
        assert!(occupation("X").is_none());
    }

    /// Golden: `deepmd.utils.econf_embd.electronic_configuration_embedding` of DeePMD-kit 3.2.0.
    #[test]
    fn electrons_are_where_deepmd_kit_has_them() {
        assert_eq!(signs("H")[..3], [-1, 1, -1]);
        assert_eq!(signs("O")[..11], [1, 1, 1, 1, 1, 1, -1, 1, -1, 1, -1]);
        let iron = [1, 1, -1, 1, -1, 1, -1, 1, -1, 1, 1, 1, -1];
        assert_eq!(signs("Fe")[18..31], iron);
        assert_eq!(signs("Cu")[18..31], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, 1, -1]);
        let square: f64 = occupation("U").unwrap().iter().map(|x| x * x).sum();
        assert!((square - 1.0).abs() < 1e-14);
    }
}
