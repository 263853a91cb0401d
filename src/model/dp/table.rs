//! Tables in place of embedding nets, as DeePMD-kit's `dp compress` makes them.
//!
//! A table cuts the argument s of a net into two ranges of equal steps, fine ones from `lower` to `upper` and coarse ones from there
//! to `end`. On each step every output of the net is a polynomial of fifth degree of the distance from the step's beginning; beyond
//! both ends it goes on as a straight line.

use crate::{Result, bail};

/// Coefficients of one output on one step.
const TERMS: usize = 6;

/// The table of one embedding net. A table without steps stands for a net that no pair of atoms uses.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingTable {
    lower: f64,
    upper: f64,
    end: f64,
    steps: [f64; 2],
    /// How often DeePMD-kit looks for arguments beyond the table. Kept for the file; nothing is looked for here.
    check_frequency: f64,
    /// Outputs of the net.
    width: usize,
    /// `[rows, width, 6]`
    coefficients: Vec<f64>,
    /// Steps of the first range.
    n_fine: f64,
}

impl EmbeddingTable {
    /// - coefficients  `[rows, width, 6]`, or nothing
    /// - info          lower and upper end of the first range, end of the second, both steps, check frequency; or nothing
    pub fn new(coefficients: Vec<f64>, info: &[f64], width: usize) -> Result<Self> {
        if coefficients.is_empty() && info.is_empty() {
            let steps = [1.0; 2];
            return Ok(EmbeddingTable {
                lower: 0.0,
                upper: 0.0,
                end: 0.0,
                steps,
                check_frequency: -1.0,
                width,
                coefficients,
                n_fine: 0.0,
            });
        }
        let &[lower, upper, end, fine, coarse, check_frequency] = info else {
            bail!("found {} numbers about a table, wanted 6", info.len());
        };
        let finite = info.iter().chain(&coefficients).all(|x| x.is_finite());
        if !(finite && lower < upper && upper <= end && fine > 0.0 && coarse > 0.0) {
            bail!("a table from {lower} to {upper} and {end} in steps of {fine} and {coarse} makes no sense");
        }
        let row = width * TERMS;
        if coefficients.is_empty() || row == 0 || !coefficients.len().is_multiple_of(row) {
            bail!(
                "found {} coefficients of a table, wanted rows of {width} times {TERMS}",
                coefficients.len()
            );
        }
        let n_fine = ((upper - lower) / fine).floor();
        Ok(EmbeddingTable {
            lower,
            upper,
            end,
            steps: [fine, coarse],
            check_frequency,
            width,
            coefficients,
            n_fine,
        })
    }

    /// The numbers about this table, as [`EmbeddingTable::new`] takes them.
    pub fn info(&self) -> Vec<f64> {
        if self.coefficients.is_empty() {
            return Vec::new();
        }
        vec![self.lower, self.upper, self.end, self.steps[0], self.steps[1], self.check_frequency]
    }

    /// `[rows, width, 6]`
    pub fn coefficients(&self) -> &[f64] {
        &self.coefficients
    }

    /// Steps of both ranges.
    pub fn n_rows(&self) -> usize {
        self.coefficients.len() / (self.width * TERMS).max(1)
    }

    /// Where the argument lies: row, distance from its beginning, and distance beyond the end of the table.
    fn place(&self, s: f64) -> (usize, f64, f64) {
        let last = (self.n_rows() - 1) as f64;
        let [fine, coarse] = self.steps;
        if s < self.lower {
            return (0, 0.0, s - self.lower);
        }
        if s >= self.end {
            return (last as usize, self.end - (self.upper + (last - self.n_fine) * coarse), s - self.end);
        }
        if s < self.upper {
            // Rounding may put the last argument of the first range a row too far.
            let row = ((s - self.lower) / fine).floor().min(last);
            return (row as usize, s - (self.lower + row * fine), 0.0);
        }
        let row = (self.n_fine + ((s - self.upper) / coarse).floor()).min(last);
        (row as usize, s - (self.upper + (row - self.n_fine) * coarse), 0.0)
    }

    /// G and G' at s, `[width]`.
    pub fn evaluate(&self, g: &mut [f64], slope: &mut [f64], s: f64) {
        if self.coefficients.is_empty() {
            g.fill(0.0);
            slope.fill(0.0);
            return;
        }
        let (row, x, beyond) = self.place(s);
        let row = &self.coefficients[row * self.width * TERMS..(row + 1) * self.width * TERMS];
        for ((g, slope), c) in g.iter_mut().zip(slope).zip(row.chunks_exact(TERMS)) {
            *slope = c[1] + (2.0 * c[2] + (3.0 * c[3] + (4.0 * c[4] + 5.0 * c[5] * x) * x) * x) * x;
            *g = c[0] + (c[1] + (c[2] + (c[3] + (c[4] + c[5] * x) * x) * x) * x) * x + *slope * beyond;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One output that is x^2 on [0, 1] in steps of 0.5, and on [1, 3] in steps of 2.
    fn square() -> EmbeddingTable {
        let row = |start: f64| vec![start * start, 2.0 * start, 1.0, 0.0, 0.0, 0.0];
        let coefficients = [0.0, 0.5, 1.0].map(row).concat();
        EmbeddingTable::new(coefficients, &[0.0, 1.0, 3.0, 0.5, 2.0, -1.0], 1).unwrap()
    }

    #[test]
    fn a_table_is_its_polynomials_inside_and_straight_outside() {
        let at = |s: f64| {
            let (mut g, mut slope) = ([0.0], [0.0]);
            square().evaluate(&mut g, &mut slope, s);
            (g[0], slope[0])
        };
        for s in [0.0, 0.2, 0.5, 0.75, 1.0, 2.5] {
            assert_eq!(at(s), (s * s, 2.0 * s), "{s}");
        }
        assert_eq!(at(-1.0), (0.0, 0.0));
        assert_eq!(at(3.0), (9.0, 6.0));
        assert_eq!(at(4.0), (15.0, 6.0));
    }

    #[test]
    fn tables_that_make_no_sense_are_refused() {
        let info = [0.0, 1.0, 3.0, 0.5, 2.0, -1.0];
        for (coefficients, info) in [
            (vec![0.0; 7], &info[..]),
            (vec![], &info[..]),
            (vec![0.0; 6], &info[..5]),
            (vec![f64::NAN; 6], &info[..]),
            (vec![0.0; 6], &[1.0, 1.0, 3.0, 0.5, 2.0, -1.0][..]),
            (vec![0.0; 6], &[0.0, 1.0, 3.0, 0.0, 2.0, -1.0][..]),
        ] {
            assert!(EmbeddingTable::new(coefficients, info, 1).is_err(), "{info:?}");
        }
        let unused = EmbeddingTable::new(vec![], &[], 1).unwrap();
        let (mut g, mut slope) = ([1.0], [1.0]);
        unused.evaluate(&mut g, &mut slope, 0.3);
        assert_eq!((g, slope), ([0.0], [0.0]));
    }
}
