//! The table of `pinn log`, which is also the form of eval.log.

use crate::error::Result;
use crate::report::events::Point;
use crate::{bail, err};
use std::collections::{BTreeMap, BTreeSet};

/// Scalars by step and tag.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogTable {
    /// Tags without `METRICS/`, sorted by their full names.
    tags: Vec<String>,
    rows: BTreeMap<u64, Vec<f64>>,
}

impl LogTable {
    /// The scalars whose tag contains `tag`. Where a step has a scalar twice, the later one holds.
    pub fn new(points: &[Point], tag: &str) -> LogTable {
        let wanted: Vec<&Point> = points.iter().filter(|point| point.tag.contains(tag)).collect();
        let names: Vec<&str> =
            wanted.iter().map(|p| p.tag.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
        let mut rows: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for point in wanted {
            let column = names.iter().position(|name| *name == point.tag).expect("the name was collected");
            rows.entry(point.step).or_insert_with(|| vec![f64::NAN; names.len()])[column] =
                point.value.into();
        }
        LogTable { tags: names.iter().map(|name| name.replace("METRICS/", "")).collect(), rows }
    }

    /// True where no tag was found.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// `# Step  E_RMSE  F_RMSE`.
    pub fn header(&self) -> String {
        let names: Vec<&str> = std::iter::once("Step").chain(self.tags.iter().map(String::as_str)).collect();
        format!("# {}\n", names.join("  "))
    }

    /// Header and rows; `number` formats each value.
    pub fn render(&self, number: &NumberFormat) -> String {
        let mut text = self.header();
        for (step, values) in &self.rows {
            text += &row(*step, values, number);
        }
        text
    }
}

/// One row: the step in nine columns, then the values.
pub fn row(step: u64, values: &[f64], number: &NumberFormat) -> String {
    let values: String = values.iter().map(|x| number.format(*x)).collect();
    format!("{step:<9} {values}\n")
}

/// A format of C for one number, such as `%14.6e `, with text around it.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberFormat {
    before: String,
    after: String,
    left: bool,
    zeros: bool,
    sign: Option<char>,
    width: usize,
    precision: usize,
    conversion: char,
}

/// Wider fields and more digits than these are slips of the keyboard.
const WIDEST: usize = 300;

impl Default for NumberFormat {
    fn default() -> Self {
        NumberFormat::parse("%14.6e ").expect("the default is a format")
    }
}

impl NumberFormat {
    /// Reads a format with one conversion: e, E, f, F, g, G or d.
    pub fn parse(text: &str) -> Result<NumberFormat> {
        let wrong =
            |why: &str| err!("\"{text}\" is not the format of a number: {why}").help("write it as %14.6e");
        let (before, rest) = text.split_once('%').ok_or_else(|| wrong("there is no %"))?;
        let flags: String = rest.chars().take_while(|c| "-+ 0".contains(*c)).collect();
        let rest = &rest[flags.len()..];
        let (width, rest) = digits(rest);
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (digits, rest) = digits(rest);
                (Some(digits.unwrap_or(0)), rest)
            }
            None => (None, rest),
        };
        let conversion = rest.chars().next().filter(|c| "eEfFgGd".contains(*c));
        let conversion = conversion.ok_or_else(|| wrong("wanted e, f, g or d behind the %"))?;
        let after = &rest[1..];
        if after.contains('%') {
            return Err(wrong("there are two %"));
        }
        let (width, precision) = (width.unwrap_or(0), precision.unwrap_or(6));
        if width > WIDEST || precision > WIDEST {
            return Err(wrong("the field is too wide"));
        }
        let sign = if flags.contains('+') { Some('+') } else { flags.contains(' ').then_some(' ') };
        Ok(NumberFormat {
            before: before.into(),
            after: after.into(),
            left: flags.contains('-'),
            zeros: flags.contains('0') && !flags.contains('-'),
            sign,
            width,
            precision,
            conversion,
        })
    }

    /// A number in this format.
    pub fn format(&self, x: f64) -> String {
        let magnitude = match self.conversion.to_ascii_lowercase() {
            _ if !x.is_finite() => {
                if x.is_nan() {
                    "nan".into()
                } else {
                    "inf".into()
                }
            }
            'e' => exponential(x.abs(), self.precision),
            'f' => format!("{:.*}", self.precision, x.abs()),
            'd' => format!("{:.0}", x.abs().trunc()),
            _ => general(x.abs(), self.precision),
        };
        let magnitude =
            if self.conversion.is_ascii_uppercase() { magnitude.to_uppercase() } else { magnitude };
        let sign = if x.is_sign_negative() && !x.is_nan() {
            "-".into()
        } else {
            self.sign.map_or(String::new(), String::from)
        };
        let missing = self.width.saturating_sub(sign.len() + magnitude.len());
        let number = match () {
            () if self.left => format!("{sign}{magnitude}{:missing$}", ""),
            () if self.zeros && x.is_finite() => format!("{sign}{}{magnitude}", "0".repeat(missing)),
            () => format!("{:missing$}{sign}{magnitude}", ""),
        };
        format!("{}{number}{}", self.before, self.after)
    }
}

fn digits(text: &str) -> (Option<usize>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = (end > 0).then(|| text[..end].parse().unwrap_or(usize::MAX));
    (number, &text[end..])
}

/// C's %e of a number that is not negative.
fn exponential(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').expect("the format has an exponent");
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// C's %g of a number that is not negative.
fn general(x: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let text = exponential(x, precision - 1);
    let (mantissa, exponent) = text.split_once('e').expect("the format has an exponent");
    let power: i64 = exponent.parse().expect("the exponent is a number");
    let trimmed = |text: &str| -> String {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text.into() }
    };
    if power < -4 || power >= precision as i64 {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let decimals = (precision as i64 - 1 - power) as usize;
    trimmed(&format!("{x:.decimals$}"))
}

/// The last row of a table, by column, as eval.log holds it.
pub fn last_row(text: &str) -> Result<Vec<(String, f64)>> {
    let header = text.lines().next().unwrap_or_default();
    let mut words = header.split_whitespace();
    if words.next() != Some("#") {
        return Err(err!("line 1: wanted a header such as `# Step  E_MAE  F_MAE`"));
    }
    let fields: Vec<&str> = words.collect();
    let rows = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let Some((number, row)) = rows.last() else { bail!("found no rows") };
    let values: Vec<&str> = row.split_whitespace().collect();
    if values.len() != fields.len() {
        bail!("line {}: {} columns, but the header names {}", number + 1, values.len(), fields.len());
    }
    let value = |(field, text): (&&str, &&str)| match text.parse::<f64>() {
        Ok(x) => Ok((field.to_string(), x)),
        Err(_) => Err(err!("line {}: {field}: found \"{text}\", wanted a number", number + 1)),
    };
    fields.iter().zip(&values).filter(|(field, _)| **field != "checkpoint_path").map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_c_does() {
        let format = |text: &str, x: f64| NumberFormat::parse(text).unwrap().format(x);
        // Checked against printf of the C library.
        let cases = [
            ("%14.6e ", 0.5, "  5.000000e-01 "),
            ("%14.6e ", -1.25e100, "-1.250000e+100 "),
            ("%14.6e ", f64::NAN, "           nan "),
            ("%e", f64::NEG_INFINITY, "-inf"),
            ("%8.3f|", 1.23456, "   1.235|"),
            ("%-8.2f|", 1.23456, "1.23    |"),
            ("%+08.2f", 1.23456, "+0001.23"),
            ("% g", 100000.0, " 100000"),
            ("%g", 1000000.0, "1e+06"),
            ("%g", 0.0001, "0.0001"),
            ("%g", 0.00001234, "1.234e-05"),
            ("%.3G", 1.5e-10, "1.5E-10"),
            ("%g", 0.0, "0"),
            ("%d", 41.9, "41"),
            ("a%.0fb", 2.0, "a2b"),
        ];
        for (text, x, want) in cases {
            assert_eq!(format(text, x), want, "{text} of {x}");
        }
        for text in ["", "%", "%s", "%14.6e %e", "%999999999999999999999e", "14.6e"] {
            assert!(NumberFormat::parse(text).is_err(), "{text}");
        }
    }

    fn point(step: u64, tag: &str, value: f32) -> Point {
        Point { step, tag: tag.into(), value }
    }

    #[test]
    fn scalars_stand_in_sorted_columns_and_rows() {
        let points = [
            point(20, "METRICS/F_RMSE", 2.0),
            point(10, "METRICS/E_RMSE", 0.5),
            point(10, "METRICS/F_RMSE", 4.0),
            point(10, "METRICS/E_MAE", 9.0),
            point(10, "METRICS/F_RMSE", 8.0),
        ];
        let table = LogTable::new(&points, "RMSE");
        let want = "# Step  E_RMSE  F_RMSE\n10          5.000000e-01   8.000000e+00 \n\
                    20                   nan   2.000000e+00 \n";
        assert_eq!(table.render(&NumberFormat::default()), want);
        assert!(LogTable::new(&points, "loss").is_empty());
    }

    #[test]
    fn the_last_row_comes_by_column() {
        let row = last_row("# Step  E_MAE  checkpoint_path\n10 0.5 0\n20 0.25 0\n\n").unwrap();
        assert_eq!(row, [("Step".to_string(), 20.0), ("E_MAE".to_string(), 0.25)]);
        assert!(last_row("# Step  E_MAE\n").unwrap_err().message().contains("found no rows"));
        assert!(last_row("# Step  E_MAE\n1 2 3\n").unwrap_err().message().contains("line 2: 3 columns"));
        assert!(last_row("").is_err() && last_row("# Step\nx\n").is_err());
    }
}
