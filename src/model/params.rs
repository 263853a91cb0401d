//! The parameters of a model: one flat vector with a table of named views.
//!
//! One all-reduce, one broadcast, one optimiser pass, one blob in a checkpoint.

use std::ops::Range;

/// A named block of the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamView {
    /// DeePMD-kit's own path of names, without the model's prefix.
    pub name: String,
    pub offset: usize,
    pub shape: Vec<usize>,
    /// The optimiser leaves it alone where false.
    pub trainable: bool,
}

impl ParamView {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies in the flat vector.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// The table of all views, in the order of the flat vector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamTable {
    views: Vec<ParamView>,
    len: usize,
}

impl ParamTable {
    /// Adds a block at the end and returns its offset.
    pub fn add(&mut self, name: String, shape: &[usize], trainable: bool) -> usize {
        let view = ParamView { name, offset: self.len, shape: shape.to_vec(), trainable };
        let offset = view.offset;
        self.len += view.len();
        self.views.push(view);
        offset
    }

    /// Length of the flat vector.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn views(&self) -> &[ParamView] {
        &self.views
    }

    /// Where the parameters lie that are trained.
    pub fn trained(&self) -> Vec<Range<usize>> {
        self.views.iter().filter(|view| view.trainable).map(ParamView::range).collect()
    }
}
