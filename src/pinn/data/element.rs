//! Symbols and atomic numbers.

use crate::bail;
use crate::error::Result;
use crate::model::electrons::SYMBOLS;

/// The atomic number of a symbol in any case, or of an atomic number in digits.
pub fn atomic_number(text: &str) -> Result<i32> {
    let text = text.trim();
    if let Some(i) = SYMBOLS.iter().position(|symbol| symbol.eq_ignore_ascii_case(text)) {
        return Ok(i as i32 + 1);
    }
    match text.parse::<i32>() {
        Ok(z) if (1..=118).contains(&z) => Ok(z),
        _ => bail!("\"{}\" is not the symbol of an element", text.chars().take(40).collect::<String>()),
    }
}

/// The symbol of an atomic number, or `X` for what is none.
pub fn symbol(z: i32) -> &'static str {
    usize::try_from(z - 1).ok().and_then(|i| SYMBOLS.get(i)).copied().unwrap_or("X")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_symbol() {
        assert_eq!([1, 8, 118, 0, -3, 119].map(symbol), ["H", "O", "Og", "X", "X", "X"]);
    }

    #[test]
    fn symbols_and_numbers_are_understood() {
        for (text, z) in [("H", 1), ("o", 8), ("CL", 17), ("Og", 118), ("26", 26), (" Fe ", 26)] {
            assert_eq!(atomic_number(text).unwrap(), z);
        }
        for text in ["", "X", "0", "119", "OW"] {
            assert!(atomic_number(text).is_err(), "{text}");
        }
    }
}
