//! Numbers as C's `printf` writes them.

/// `%.{digits}e`: at least two digits in the exponent, `nan` and `inf` in lower case.
pub fn exp(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = format!("{value:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').expect("Rust's {:e} always writes an e");
    let (sign, magnitude) = match exponent.strip_prefix('-') {
        Some(magnitude) => ('-', magnitude),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{magnitude:0>2}")
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponents_have_a_sign_and_two_digits() {
        let cases: &[(f64, usize, &str)] = &[
            (10.1, 2, "1.01e+01"),
            (0.0, 2, "0.00e+00"),
            (-0.000_123_45, 2, "-1.23e-04"),
            (9.999, 2, "1.00e+01"),
            (1e-3, 1, "1.0e-03"),
            (1.5e-300, 1, "1.5e-300"),
            (f64::NAN, 2, "nan"),
            (f64::INFINITY, 2, "inf"),
            (f64::NEG_INFINITY, 2, "-inf"),
        ];
        for &(value, digits, want) in cases {
            assert_eq!(exp(value, digits), want, "{value} with {digits} digits");
        }
    }
}
