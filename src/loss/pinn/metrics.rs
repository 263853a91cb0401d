//! Errors summed over batches: what PiNN shows as `E_MAE`, `F_RMSE`, `S_LOSS`, ...

use super::PinnLossValue;
use crate::loss::{Cost, ErrorSums, LossValue, Term};

/// Sums of one kind of error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// `E`, `E_PER_ATOM`, `F`, `S`, `Q`, `D`, `D_PER_ATOM`, `L2`.
    pub tag: &'static str,
    pub errors: ErrorSums,
    /// The term of the loss, summed over batches.
    pub loss: f64,
    pub batches: f64,
    /// Whether `tag_LOSS` exists.
    pub has_loss: bool,
    /// Whether `tag_MAE` and `tag_RMSE` exist.
    pub logged: bool,
}

/// Errors over any number of batches: means over all elements, and losses as means over batches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinnMetrics {
    pub rows: Vec<Row>,
    loss: f64,
    batches: f64,
}

/// Numbers of a row that are sums.
const SUMS: usize = 5;

impl PinnMetrics {
    /// Adds a batch.
    pub fn add(&mut self, value: &PinnLossValue) {
        if self.rows.is_empty() {
            self.rows = value.rows.iter().map(|row| Row { batches: 0.0, ..empty(row) }).collect();
        }
        assert_eq!(self.rows.len(), value.rows.len(), "every batch has the same kinds of error");
        for (sum, row) in self.rows.iter_mut().zip(&value.rows) {
            sum.errors.absolute += row.errors.absolute;
            sum.errors.square += row.errors.square;
            sum.errors.count += row.errors.count;
            sum.loss += row.loss;
            sum.batches += row.batches;
        }
        self.loss += value.loss;
        self.batches += 1.0;
    }

    /// Every sum as one vector, which may be added up over ranks and given to [`PinnMetrics::set_sums`].
    pub fn sums(&self) -> Vec<f64> {
        let mut all = vec![self.loss, self.batches];
        for row in &self.rows {
            let ErrorSums { absolute, square, count } = row.errors;
            all.extend([absolute, square, count, row.loss, row.batches]);
        }
        all
    }

    /// Replaces the sums.
    pub fn set_sums(&mut self, sums: &[f64]) {
        assert_eq!(sums.len(), 2 + SUMS * self.rows.len(), "sums of the same kinds of error");
        [self.loss, self.batches] = [sums[0], sums[1]];
        for (row, s) in self.rows.iter_mut().zip(sums[2..].chunks_exact(SUMS)) {
            row.errors = ErrorSums { absolute: s[0], square: s[1], count: s[2] };
            [row.loss, row.batches] = [s[3], s[4]];
        }
    }

    /// The loss, mean over batches.
    pub fn loss(&self) -> f64 {
        self.loss / self.batches
    }

    /// Names and values: `E_MAE`, `E_RMSE`, `E_LOSS`, ...
    pub fn report(&self) -> Vec<(String, f64)> {
        let mut all = Vec::new();
        for row in &self.rows {
            if row.logged {
                all.push((format!("{}_MAE", row.tag), row.errors.mae()));
                all.push((format!("{}_RMSE", row.tag), row.errors.rmse()));
            }
            if row.has_loss {
                all.push((format!("{}_LOSS", row.tag), row.loss / row.batches));
            }
        }
        all
    }
}

impl Cost for PinnLossValue {
    fn loss(&self) -> f64 {
        self.loss
    }

    /// `E_RMSE`, `F_RMSE`, ...
    fn into_shown(self) -> LossValue {
        let mut batch = PinnMetrics::default();
        batch.add(&self);
        let terms = batch.report().into_iter().map(|(name, value)| Term { name: name.into(), value });
        LossValue { loss: self.loss, terms: terms.collect() }
    }
}

/// The same kind of error with nothing in it.
fn empty(row: &Row) -> Row {
    Row { tag: row.tag, has_loss: row.has_loss, logged: row.logged, ..Row::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(errors: &[f64], loss: f64) -> PinnLossValue {
        let row = Row {
            tag: "E",
            errors: ErrorSums {
                absolute: errors.iter().map(|e| e.abs()).sum(),
                square: errors.iter().map(|e| e * e).sum(),
                count: errors.len() as f64,
            },
            loss,
            batches: 1.0,
            has_loss: true,
            logged: true,
        };
        PinnLossValue { loss, rows: vec![row] }
    }

    #[test]
    fn errors_are_means_over_elements_and_losses_means_over_batches() {
        let mut metrics = PinnMetrics::default();
        metrics.add(&batch(&[3.0, -3.0, 3.0], 9.0));
        metrics.add(&batch(&[1.0], 1.0));
        let want = [("E_MAE", 2.5), ("E_RMSE", 7f64.sqrt()), ("E_LOSS", 5.0)];
        assert_eq!(metrics.report(), want.map(|(name, value)| (name.to_string(), value)));
        assert_eq!(metrics.loss(), 5.0);
    }

    #[test]
    fn sums_over_ranks_give_the_metrics_of_all_batches() {
        let (mut all, mut a, mut b) =
            (PinnMetrics::default(), PinnMetrics::default(), PinnMetrics::default());
        let batches = [batch(&[1.0, 2.0], 3.0), batch(&[-4.0], 7.0)];
        batches.iter().for_each(|value| all.add(value));
        a.add(&batches[0]);
        b.add(&batches[1]);
        let sums: Vec<f64> = a.sums().iter().zip(b.sums()).map(|(a, b)| a + b).collect();
        a.set_sums(&sums);
        assert_eq!(a, all);
    }
}
