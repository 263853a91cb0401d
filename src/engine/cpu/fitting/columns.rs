//! What belongs to the columns of a block: bias, time step, and where shortcuts come from.

use super::rows::{Added, COLS, Extent, Shortcuts};
use crate::engine::cpu::elementwise::add;
use crate::engine::cpu::pool::Field;
use crate::engine::cpu::real::Real;
use crate::model::net::{LayerShape, Shortcut};
use std::ops::Range;

/// Bias and time step of the columns of a block; 0 and 1 where a layer has none.
pub struct Columns<T> {
    pub bias: [T; COLS],
    pub scale: [T; COLS],
}

impl<T: Real> Columns<T> {
    pub fn new(shape: &LayerShape, params: &[T], col: usize, cols: usize) -> Self {
        let mut columns = Columns { bias: [T::ZERO; COLS], scale: [T::ONE; COLS] };
        if let Some(b) = shape.b {
            columns.bias[..cols].copy_from_slice(&params[b + col..b + col + cols]);
        }
        if let Some(idt) = shape.idt {
            columns.scale[..cols].copy_from_slice(&params[idt + col..idt + col + cols]);
        }
        columns
    }
}

/// The columns of a block in pieces for which the input's columns that a shortcut adds are contiguous, with the first of
/// those.
pub fn shortcut_pieces(
    shape: &LayerShape,
    col: usize,
    cols: usize,
) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
    // Where the input comes twice, it starts again at n_in.
    let cut = match shape.shortcut {
        Shortcut::Double => shape.n_in.clamp(col, col + cols) - col,
        _ => cols,
    };
    let n_in = shape.n_in;
    let adds = shape.shortcut != Shortcut::None;
    [0..cut, cut..cols]
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .map(move |piece| (piece.clone(), adds.then(|| (col + piece.start) % n_in)))
}

/// What the shortcuts of a layer bring to a block of the adjoint of its input.
pub fn adjoint_shortcuts<T: Real>(shape: &LayerShape, dy: &Field<T>, row: usize, col: usize) -> Shortcuts<T> {
    let copy = |k: usize| {
        Some(Added { from: dy.at(row * shape.n_out + k * shape.n_in + col).cast_const(), ld: shape.n_out })
    };
    match shape.shortcut {
        Shortcut::None => [None, None],
        Shortcut::Same => [copy(0), None],
        Shortcut::Double => [copy(0), copy(1)],
    }
}

/// Adds shortcuts to a block where nothing else follows.
pub fn add_shortcuts<T: Real>(x: *mut T, extent: Extent, shortcuts: Shortcuts<T>) {
    let Extent { rows, cols, ld } = extent;
    for shortcut in shortcuts.into_iter().flatten() {
        for r in 0..rows {
            // SAFETY: rows of the task's own block, and of what earlier stages wrote.
            let (out, from) = unsafe {
                (
                    std::slice::from_raw_parts_mut(x.add(r * ld), cols),
                    std::slice::from_raw_parts(shortcut.from.add(r * shortcut.ld), cols),
                )
            };
            add(out, from);
        }
    }
}
