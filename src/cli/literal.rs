//! Values as literals of Python, which is the form that scripts read in the log lines of `dp`.

use serde_json::Value;

/// Names in brackets and quotes.
pub(super) fn list(names: &[String]) -> String {
    literal(&Value::from(names.to_vec()))
}

/// A JSON value as a literal of Python, which is the form that scripts read here.
pub(super) fn literal(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => float(x),
            _ => n.to_string(),
        },
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(literal).collect())),
        Value::Object(map) => format!(
            "{{{}}}",
            joined(map.iter().map(|(k, v)| format!("{}: {}", quoted(k), literal(v))).collect())
        ),
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t");
    if text.contains('\'') && !text.contains('"') {
        format!("\"{escaped}\"")
    } else {
        format!("'{}'", escaped.replace('\'', "\\'"))
    }
}

/// Shortest digits that read back; an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{x:e}");
        let (mantissa, exponent) = text.split_once('e').expect("Rust's {:e} always writes an e");
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{x:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_reads_them() {
        let value = serde_json::json!({
            "type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "trainable": true, "seed": null, "e": 1e-6, "big": 1e16
        });
        let want = "{'type': 'se_e2_a', 'sel': [46, 92], 'rcut': 6.0, 'trainable': True, 'seed': None, \
                    'e': 1e-06, 'big': 1e+16}";
        assert_eq!(literal(&value), want);
        assert_eq!(
            literal(&serde_json::json!(["it's", "a\\b", -0.00012, 0.0])),
            r#"["it's", 'a\\b', -0.00012, 0.0]"#
        );
    }
}
