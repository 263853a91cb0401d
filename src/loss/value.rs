//! What a batch cost, and how wrong it was: the same for every loss.

use std::borrow::Cow;

/// One displayed error; NaN where the data has no such label.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// `rmse_e`, `mae_f`, `E_RMSE`, ...
    pub name: Cow<'static, str>,
    pub value: f64,
}

/// What a batch cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossValue {
    pub loss: f64,
    pub terms: Vec<Term>,
}

/// What a batch cost, in the words of a loss.
pub trait Cost {
    fn loss(&self) -> f64;

    /// The errors that are displayed.
    fn into_shown(self) -> LossValue;
}

impl Cost for LossValue {
    fn loss(&self) -> f64 {
        self.loss
    }

    fn into_shown(self) -> LossValue {
        self
    }
}

/// Sums of errors of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ErrorSums {
    pub absolute: f64,
    pub square: f64,
    pub count: f64,
}

impl ErrorSums {
    /// The root of the mean square.
    pub fn rmse(&self) -> f64 {
        (self.square / self.count).sqrt()
    }

    /// The mean absolute value.
    pub fn mae(&self) -> f64 {
        self.absolute / self.count
    }
}
