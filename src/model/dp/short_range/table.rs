//! The table of pair energies: its file, and the cubic splines between its rows, as in DeePMD-kit.

use crate::error::{IoContext, Result};
use crate::{bail, err};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Energies of pairs by distance, with a spline for each pair of types. As JSON it is its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Rows", into = "Rows")]
pub struct PairTable {
    rows: Rows,
    n_types: usize,
    /// A, between two rows.
    spacing: f64,
    /// `[pairs of types, n_rows - 1, 4]` of each piece the coefficients of u^3, u^2, u and 1; u runs from 0 to 1.
    coefficients: Vec<f64>,
}

/// What a table is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Rows {
    /// Columns: the distance, A, and a pair of types each, eV.
    width: usize,
    /// `[n_rows, width]` up to the cutoff.
    values: Vec<f64>,
    /// A, the last distance of the file.
    rmax: f64,
    /// A, the cutoff of the model.
    rcut: f64,
}

impl Rows {
    fn row(&self, k: usize) -> &[f64] {
        &self.values[k * self.width..(k + 1) * self.width]
    }

    fn n(&self) -> usize {
        self.values.len() / self.width
    }

    fn last(&self) -> &[f64] {
        self.row(self.n() - 1)
    }

    fn spacing(&self) -> f64 {
        self.row(1)[0] - self.row(0)[0]
    }

    /// The number of types that have so many pairs.
    fn n_types(&self) -> Result<usize> {
        let pairs = self.width - 1;
        match (1..=pairs).find(|n| n * (n + 1) / 2 >= pairs) {
            Some(n) if n * (n + 1) / 2 == pairs => Ok(n),
            _ => bail!(
                "{} columns, wanted the distance and one for each pair of types: 2, 4, 7, 11, ...",
                self.width
            ),
        }
    }

    fn check(&self) -> Result<()> {
        if self.width < 2
            || self.values.len() < 2 * self.width
            || !self.values.len().is_multiple_of(self.width)
        {
            bail!(
                "{} numbers in rows of {}, wanted at least two rows of a distance and energies",
                self.values.len(),
                self.width
            );
        }
        if self.values.iter().any(|x| !x.is_finite()) {
            bail!("an entry is not a number");
        }
        let (first, spacing) = (self.row(0)[0], self.spacing());
        let is_even = |k: usize| (self.row(k)[0] - first - k as f64 * spacing).abs() < 0.1 * spacing;
        if first < 0.0 || spacing <= 0.0 {
            bail!(
                "the first distances are {first} and {} A, wanted numbers that grow from 0 or above",
                self.row(1)[0]
            );
        }
        if let Some(k) = (0..self.n()).find(|&k| !is_even(k)) {
            bail!(
                "row {}: the distance is {} A, wanted about {} A: rows must have the same spacing",
                k + 1,
                self.row(k)[0],
                first + k as f64 * spacing
            );
        }
        Ok(())
    }

    /// Goes on to the cutoff where the rows end before it: with zeros, or on a curve that reaches zero.
    fn extend(&mut self) {
        let (spacing, rmax, n) = (self.spacing(), self.last()[0], self.n());
        let wanted = (self.rcut / spacing - self.row(0)[0] / spacing).ceil() as usize;
        if self.rcut <= rmax || wanted < n {
            return;
        }
        let more = wanted + 1 - n;
        let (first, last) = (rmax + spacing, rmax + spacing * more as f64);
        let step = (last - first) / (more.max(2) - 1) as f64;
        let distances: Vec<f64> =
            (0..more).map(|k| if k > 0 && k + 1 == more { last } else { k as f64 * step + first }).collect();
        if self.last()[1..].iter().all(|&e| e == 0.0) {
            for r in distances {
                self.values.push(r);
                self.values.resize(self.values.len() + self.width - 1, 0.0);
            }
            return;
        }
        log::warn!(
            "the table of pair energies ends at {rmax} A, and not with zeros: it goes on to the cutoff on a curve"
        );
        // It reaches zero at the last distance below the cutoff where there are two.
        let kept = if last / spacing - rmax / spacing >= 2.0 { more - 1 } else { more };
        let (end, before) = (self.last().to_vec(), self.row(n - 2).to_vec());
        let width = distances[kept - 1] - rmax;
        for r in &distances[..kept] {
            self.values.push(*r);
            let x = r - rmax;
            for (e, before) in end[1..].iter().zip(&before[1..]) {
                // DeePMD-kit takes the difference of two rows for the slope, whatever their spacing.
                let (start, mean) = (e - before, -e / width);
                let t = (start - 2.0 * mean) / width;
                self.values.push(((t / width * x + (mean - start) / width - t) * x + start) * x + e);
            }
        }
    }

    /// The splines of all pairs.
    fn coefficients(&self) -> Vec<f64> {
        let (n, spacing) = (self.n(), self.spacing());
        let distances: Vec<f64> = (0..n).map(|k| self.row(k)[0]).collect();
        let mut out = Vec::with_capacity((self.width - 1) * 4 * (n - 1));
        for column in 1..self.width {
            let v: Vec<f64> = (0..n).map(|k| self.row(k)[column]).collect();
            let slope: Vec<f64> = clamped_slopes(&distances, &v).iter().map(|x| x * spacing).collect();
            for k in 0..n - 1 {
                out.push(2.0 * v[k] - 2.0 * v[k + 1] + slope[k] + slope[k + 1]);
                out.push(-3.0 * v[k] + 3.0 * v[k + 1] - 2.0 * slope[k] - slope[k + 1]);
                out.push(slope[k]);
                out.push(v[k]);
            }
        }
        out
    }
}

/// Derivatives at the knots of the cubic spline through `v` that is level at both ends.
fn clamped_slopes(x: &[f64], v: &[f64]) -> Vec<f64> {
    let n = x.len();
    let dx = |k: usize| x[k + 1] - x[k];
    let rise = |k: usize| (v[k + 1] - v[k]) / dx(k);
    // dx_k s_(k-1) + 2 (dx_(k-1) + dx_k) s_k + dx_(k-1) s_(k+1) = 3 (dx_k rise_(k-1) + dx_(k-1) rise_k), s = 0 at the ends.
    let (mut upper, mut s) = (vec![0.0; n], vec![0.0; n]);
    for k in 1..n - 1 {
        let (before, after) = (dx(k - 1), dx(k));
        let pivot = 2.0 * (before + after) - after * upper[k - 1];
        upper[k] = before / pivot;
        s[k] = (3.0 * (after * rise(k - 1) + before * rise(k)) - after * s[k - 1]) / pivot;
    }
    for k in (1..n - 1).rev() {
        s[k] -= upper[k] * s[k + 1];
    }
    s[n - 1] = 0.0;
    s
}

impl TryFrom<Rows> for PairTable {
    type Error = crate::error::Error;

    fn try_from(rows: Rows) -> Result<Self> {
        rows.check()?;
        Ok(PairTable {
            n_types: rows.n_types()?,
            spacing: rows.spacing(),
            coefficients: rows.coefficients(),
            rows,
        })
    }
}

impl From<PairTable> for Rows {
    fn from(table: PairTable) -> Rows {
        table.rows
    }
}

impl PairTable {
    /// Reads the file of a table for a model with this cutoff, A.
    pub fn read(path: &Path, n_types: usize, rcut: f64) -> Result<PairTable> {
        let text = std::fs::read_to_string(path).io("read", path)?;
        Self::parse(&text, n_types, rcut).map_err(|e| e.at(path.display()))
    }

    fn parse(text: &str, n_types: usize, rcut: f64) -> Result<PairTable> {
        let (mut values, mut width) = (Vec::new(), 0);
        for (k, line) in text.lines().enumerate() {
            let words = line.split('#').next().unwrap_or("").split_whitespace();
            let before = values.len();
            for word in words {
                let number = word.parse::<f64>().ok().filter(|x| x.is_finite());
                values.push(number.ok_or_else(|| err!("line {}: '{word}' is not a number", k + 1))?);
            }
            let found = values.len() - before;
            if width == 0 {
                width = found;
            }
            if found != 0 && found != width {
                bail!("line {}: {found} numbers, wanted {width} as in the first line", k + 1);
            }
        }
        let wanted = 1 + n_types * (n_types + 1) / 2;
        if width != wanted {
            return Err(err!("{width} columns, wanted {wanted}").help(format!(
                "the distance in A, and the energy in eV of each pair of the {n_types} types of type_map"
            )));
        }
        Self::new(width, values, None, rcut)
    }

    /// A table of rows, extended to the cutoff where they do not reach it. `rmax` is where those of the file ended.
    pub fn new(width: usize, values: Vec<f64>, rmax: Option<f64>, rcut: f64) -> Result<PairTable> {
        let mut rows = Rows { width, values, rmax: 0.0, rcut };
        rows.check()?;
        rows.rmax = rmax.unwrap_or(rows.last()[0]);
        if rmax.is_none() {
            rows.extend();
        }
        rows.try_into()
    }

    pub fn n_types(&self) -> usize {
        self.n_types
    }

    /// A, the distance of the first row.
    pub fn rmin(&self) -> f64 {
        self.rows.row(0)[0]
    }

    /// A, the last distance of the file.
    pub fn rmax(&self) -> f64 {
        self.rows.rmax
    }

    /// A, the cutoff of the model.
    pub fn rcut(&self) -> f64 {
        self.rows.rcut
    }

    /// A, between two rows.
    pub fn spacing(&self) -> f64 {
        self.spacing
    }

    /// Pieces of each spline.
    pub fn n_pieces(&self) -> usize {
        self.rows.n() - 1
    }

    /// `[n_rows, 1 + pairs of types]` distances and energies.
    pub fn values(&self) -> &[f64] {
        &self.rows.values
    }

    /// `[n_types, n_types, pieces, 4]` the coefficients of the splines, from the highest power on.
    pub fn all_coefficients(&self) -> Vec<f64> {
        let of = |a: usize, b: usize| &self.coefficients[self.place(a, b)..][..4 * self.n_pieces()];
        let types = 0..self.n_types;
        types.clone().flat_map(|a| types.clone().flat_map(move |b| of(a, b))).copied().collect()
    }

    /// Where the spline of a pair of types begins.
    fn place(&self, a: usize, b: usize) -> usize {
        let (a, b) = (a.min(b), a.max(b));
        (a * self.n_types - a * (a + 1) / 2 + b) * 4 * self.n_pieces()
    }

    /// Energy and its derivative by the distance, eV and eV/A.
    pub fn energy(&self, a: usize, b: usize, r: f64) -> Result<(f64, f64)> {
        let (n, at) = (self.n_pieces(), (r - self.rmin()) * (1.0 / self.spacing));
        if at < 0.0 {
            return Err(err!(
                "two atoms are {r} A apart, and the table of pair energies begins at {} A",
                self.rmin()
            )
            .help("a table for such configurations must begin at a shorter distance"));
        }
        if r >= self.rcut() || r >= self.rmin() + n as f64 * self.spacing {
            return Ok((0.0, 0.0));
        }
        let (piece, u) = ((at as usize).min(n - 1), at.fract());
        let &[a3, a2, a1, a0] = &self.coefficients[self.place(a, b) + 4 * piece..][..4] else {
            unreachable!("four coefficients for each piece");
        };
        Ok((((a3 * u + a2) * u + a1) * u + a0, ((3.0 * a3 * u + 2.0 * a2) * u + a1) / self.spacing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: impl Iterator<Item = [f64; 4]>) -> String {
        rows.map(|row| row.map(|x| x.to_string()).join(" ") + "\n").collect()
    }

    fn table() -> PairTable {
        let row = |k: usize| {
            let r = 0.1 * (k + 1) as f64;
            [r, (-r).exp(), 2.0 * (-2.0 * r).exp(), r.cos()]
        };
        PairTable::parse(&text((0..30).map(row)), 2, 4.0).unwrap()
    }

    #[test]
    fn the_derivative_is_that_of_the_energy_also_beyond_the_file() {
        let table = table();
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for r in [0.13, 0.55, 1.2345, 2.99, 3.2, 3.77] {
                let h = 1e-5;
                let [(low, _), (_, slope), (high, _)] =
                    [r - h, r, r + h].map(|r| table.energy(a, b, r).unwrap());
                assert!((slope - (high - low) / (2.0 * h)).abs() < 1e-7, "{a} {b} {r}");
            }
        }
        assert!((table.energy(0, 1, 1.0).unwrap().0 - 2.0 * (-2.0f64).exp()).abs() < 1e-12);
        assert_eq!(table.energy(1, 0, 0.77).unwrap(), table.energy(0, 1, 0.77).unwrap());
        assert_eq!(table.energy(0, 0, 4.0).unwrap(), (0.0, 0.0));
    }

    #[test]
    fn a_table_that_ends_with_zeros_goes_on_with_zeros() {
        let row = |k: usize| [0.5 * (k + 1) as f64, if k < 4 { 1.0 } else { 0.0 }, 0.0, 0.0];
        let table = PairTable::parse(&text((0..5).map(row)), 2, 4.2).unwrap();
        assert_eq!(table.values().chunks(4).map(|row| row[0]).collect::<Vec<_>>()[5..], [3.0, 3.5, 4.0, 4.5]);
        assert_eq!((table.rmax(), table.n_pieces()), (2.5, 8));
        assert_eq!(table.energy(0, 1, 3.3).unwrap(), (0.0, 0.0));
    }

    #[test]
    fn it_survives_json_bit_by_bit() {
        let table = table();
        let back: PairTable = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
        assert_eq!(back, table);
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_line() {
        let message = |text: &str| PairTable::parse(text, 2, 4.0).unwrap_err().message().to_string();
        assert_eq!(message("0.1 1 2 3\n0.2 x 2 3\n"), "line 2: 'x' is not a number");
        assert_eq!(message("0.1 1 2 3\n0.2 1 2\n"), "line 2: 3 numbers, wanted 4 as in the first line");
        assert_eq!(message("0.1 1 2\n0.2 1 2\n"), "3 columns, wanted 4");
        assert!(message("0.1 1 2 3\n").contains("wanted at least two rows"));
        assert!(message("").contains("0 columns"));
        assert!(
            message("0.1 1 2 3\n0.2 1 2 3\n0.4 1 2 3\n")
                .contains("row 3: the distance is 0.4 A, wanted about 0.3")
        );
        assert!(message("0.2 1 2 3\n0.1 1 2 3\n").contains("wanted numbers that grow"));
        let near = table().energy(0, 0, 0.05).unwrap_err();
        assert!(near.message().contains("0.05 A apart") && near.message().contains("begins at 0.1 A"));
    }
}
