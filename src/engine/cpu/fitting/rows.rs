//! What is done with a block of a product before the next one: activations, adjoints, sums over atoms.
//!
//! A block is some rows (atoms) and some columns (units) of matrices with the same rows of `ld` numbers; other tasks
//! write the other columns, so a row is made a slice only within the block. Of tanh only the value is kept: its
//! derivatives follow from it.

use crate::engine::cpu::elementwise::{activate, add};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::{multiversion, prefetch, prefetch_to_write};
use crate::model::activation::Activation;

/// The most columns of a block.
pub const COLS: usize = 48;

/// Rows, columns, and from one row to the next.
#[derive(Clone, Copy)]
pub struct Extent {
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
}

/// act, and act', act'' where they are kept, of a block.
#[derive(Clone, Copy)]
pub struct Jets<T> {
    pub f: *mut T,
    /// Null for tanh.
    pub d: *mut T,
    pub dd: *mut T,
}

/// Something added to the rows of a block: a shortcut.
#[derive(Clone, Copy)]
pub struct Added<T> {
    pub from: *const T,
    pub ld: usize,
}

/// What the copies of an input bring to its adjoint: none, one or two.
pub type Shortcuts<T> = [Option<Added<T>>; 2];

/// # Safety
/// The row must be valid, and nobody may write it meanwhile.
#[inline(always)]
unsafe fn row<'a, T>(p: *const T, at: usize, n: usize) -> &'a [T] {
    unsafe { std::slice::from_raw_parts(p.add(at), n) }
}

/// # Safety
/// The row must be valid, and nobody else may use it meanwhile.
#[inline(always)]
unsafe fn row_mut<'a, T>(p: *mut T, at: usize, n: usize) -> &'a mut [T] {
    unsafe { std::slice::from_raw_parts_mut(p.add(at), n) }
}

/// Rows that are asked for ahead: they lie too far apart for the hardware to look ahead.
const AHEAD: usize = 8;

/// Asks for a row that will be read soon.
#[inline(always)]
fn ask_row<T>(p: *const T, at: usize, n: usize) {
    for o in (0..n).step_by(64 / size_of::<T>()) {
        prefetch(p.wrapping_add(at + o));
    }
}

/// Asks for a row that will be written soon.
#[inline(always)]
fn ask_row_to_write<T>(p: *const T, at: usize, n: usize) {
    for o in (0..n).step_by(64 / size_of::<T>()) {
        prefetch_to_write(p.wrapping_add(at + o));
    }
}

/// Asks for the rows of shortcuts.
#[inline(always)]
fn ask_shortcuts<T: Copy>(shortcuts: impl IntoIterator<Item = Option<Added<T>>>, r: usize, n: usize) {
    for shortcut in shortcuts.into_iter().flatten() {
        ask_row(shortcut.from, r * shortcut.ld, n);
    }
}

/// Calls `body(o, act, act', act'')` for every column of a row.
///
/// # Safety
/// The row must be valid.
#[inline(always)]
unsafe fn each_jet<T: Real>(jets: Jets<T>, at: usize, n: usize, mut body: impl FnMut(usize, T, T, T)) {
    let f = unsafe { row(jets.f, at, n) };
    if jets.d.is_null() {
        for o in 0..n {
            let slope = T::ONE - f[o] * f[o];
            body(o, f[o], slope, -(f[o] + f[o]) * slope);
        }
    } else {
        let (d, dd) = unsafe { (row(jets.d, at, n), row(jets.dd, at, n)) };
        for o in 0..n {
            body(o, f[o], d[o], dd[o]);
        }
    }
}

/// Pre-activations, which stand in `jets.f`, become jets, and y = scale act (+ shortcut).
///
/// # Safety
/// All rows of the block must be valid and this task's alone.
pub unsafe fn forward<T: Real>(
    extent: Extent,
    activation: Activation,
    jets: Jets<T>,
    y: *mut T,
    bias: &[T],
    scale: &[T],
    shortcut: Option<Added<T>>,
) {
    if activation == Activation::Tanh {
        return forward_tanh(extent, jets.f, y, bias, scale, shortcut);
    }
    let Extent { rows, cols, ld } = extent;
    for r in 0..rows {
        // SAFETY: rows of the block.
        let [f, d, dd, y] = [jets.f, jets.d, jets.dd, y].map(|p| unsafe { row_mut(p, r * ld, cols) });
        add(f, bias);
        activate(f, d, dd, activation);
        for o in 0..cols {
            y[o] = scale[o] * f[o];
        }
        if let Some(shortcut) = shortcut {
            // SAFETY: as above.
            add(y, unsafe { row(shortcut.from, r * shortcut.ld, cols) });
        }
    }
}

multiversion! {
    fn forward_tanh<T: Real>(extent: Extent, f: *mut T, y: *mut T, bias: &[T], scale: &[T], shortcut: Option<Added<T>>) {
        let Extent { rows, cols, ld } = extent;
        let (bias, scale) = (&bias[..cols], &scale[..cols]);
        for r in 0..rows {
            ask_shortcuts([shortcut], r + AHEAD, cols);
            ask_row_to_write(y, (r + AHEAD) * ld, cols);
            // SAFETY: rows of the block, by the promise to `forward`.
            let [f, y] = [f, y].map(|p| unsafe { row_mut(p, r * ld, cols) });
            for o in 0..cols {
                f[o] = (f[o] + bias[o]).tanh();
            }
            match shortcut {
                Some(shortcut) => {
                    // SAFETY: as above.
                    let x = unsafe { row(shortcut.from, r * shortcut.ld, cols) };
                    for o in 0..cols {
                        y[o] = scale[o].fma(f[o], x[o]);
                    }
                }
                None => {
                    for o in 0..cols {
                        y[o] = scale[o] * f[o];
                    }
                }
            }
        }
    }
}

multiversion! {
    /// de_y = w, de_z = w act' scale: the last hidden layer, whose outputs meet the weights `w`.
    pub fn energy_seeds<T: Real>(extent: Extent, jets: Jets<T>, de_y: *mut T, de_z: *mut T, w: &[T], scale: &[T]) {
        let Extent { rows, cols, ld } = extent;
        let (w, scale) = (&w[..cols], &scale[..cols]);
        for r in 0..rows {
            ask_row_to_write(de_y, (r + AHEAD) * ld, cols);
            ask_row_to_write(de_z, (r + AHEAD) * ld, cols);
            // SAFETY: rows of the block.
            let [de_y, de_z] = [de_y, de_z].map(|p| unsafe { row_mut(p, r * ld, cols) });
            // SAFETY: as above.
            unsafe { each_jet(jets, r * ld, cols, |o, _, d, _| {
                de_y[o] = w[o];
                de_z[o] = w[o] * d * scale[o];
            }) };
        }
    }
}

multiversion! {
    /// Multiplies each row of a block by its number.
    pub fn times_shares<T: Real>(extent: Extent, block: *mut T, shares: &[T]) {
        for (r, &share) in shares[..extent.rows].iter().enumerate() {
            // SAFETY: rows of the block.
            let row = unsafe { row_mut(block, r * extent.ld, extent.cols) };
            row.iter_mut().for_each(|x| *x = *x * share);
        }
    }
}

multiversion! {
    /// de_y += shortcuts, de_z = de_y act' scale.
    pub fn energy_adjoint<T: Real>(extent: Extent, jets: Jets<T>, de_y: *mut T, de_z: *mut T, scale: &[T], shortcuts: Shortcuts<T>) {
        let Extent { rows, cols, ld } = extent;
        let scale = &scale[..cols];
        for r in 0..rows {
            ask_row_to_write(de_z, (r + AHEAD) * ld, cols);
            // SAFETY: rows of the block.
            let [de_y, de_z] = [de_y, de_z].map(|p| unsafe { row_mut(p, r * ld, cols) });
            ask_row(jets.f, (r + AHEAD) * ld, cols);
            ask_shortcuts(shortcuts, r + AHEAD, cols);
            for shortcut in shortcuts.into_iter().flatten() {
                // SAFETY: as above.
                let x = unsafe { row(shortcut.from, r * shortcut.ld, cols) };
                for o in 0..cols {
                    de_y[o] += x[o];
                }
            }
            // SAFETY: as above.
            unsafe { each_jet(jets, r * ld, cols, |o, _, d, _| de_z[o] = de_y[o] * d * scale[o]) };
        }
    }
}

multiversion! {
    /// y_dot = z_dot act' scale (+ shortcut).
    pub fn tangent<T: Real>(extent: Extent, jets: Jets<T>, z_dot: *const T, y_dot: *mut T, scale: &[T], shortcut: Option<Added<T>>) {
        let Extent { rows, cols, ld } = extent;
        let scale = &scale[..cols];
        for r in 0..rows {
            ask_row_to_write(y_dot, (r + AHEAD) * ld, cols);
            // SAFETY: rows of the block.
            let (z_dot, y_dot) = unsafe { (row(z_dot, r * ld, cols), row_mut(y_dot, r * ld, cols)) };
            ask_row(jets.f, (r + AHEAD) * ld, cols);
            ask_shortcuts([shortcut], r + AHEAD, cols);
            // SAFETY: as above.
            unsafe { each_jet(jets, r * ld, cols, |o, _, d, _| y_dot[o] = z_dot[o] * d * scale[o]) };
            if let Some(shortcut) = shortcut {
                // SAFETY: as above.
                let x = unsafe { row(shortcut.from, r * shortcut.ld, cols) };
                for o in 0..cols {
                    y_dot[o] += x[o];
                }
            }
        }
    }
}

/// What the reverse pass over (value, tangent) reads and writes in a block.
#[derive(Clone, Copy)]
pub struct Reverse<T> {
    pub jets: Jets<T>,
    pub z_dot: *const T,
    pub de_y: *const T,
    pub dl_y: *mut T,
    pub dl_z: *mut T,
}

/// Sums over the atoms of a block: gradients of time step and bias.
pub struct Sums<T> {
    pub idt: [T; COLS],
    pub bias: [T; COLS],
}

impl<T: Real> Default for Sums<T> {
    fn default() -> Self {
        Sums { idt: [T::ZERO; COLS], bias: [T::ZERO; COLS] }
    }
}

multiversion! {
    /// dl_y = dl_e w, then as [`loss_adjoint`]: the last hidden layer. `dl_e` holds a number for each row.
    pub fn loss_seeds<T: Real>(extent: Extent, reverse: Reverse<T>, dl_e: &[T], w: &[T], scale: &[T], sums: &mut Sums<T>) {
        let Extent { rows, cols, ld } = extent;
        let w = &w[..cols];
        for r in 0..rows {
            // SAFETY: rows of the block.
            let dl_y = unsafe { row_mut(reverse.dl_y, r * ld, cols) };
            for o in 0..cols {
                dl_y[o] = dl_e[r] * w[o];
            }
            ask_row(reverse.de_y, (r + AHEAD) * ld, cols);
            ask_row_to_write(reverse.dl_z, (r + AHEAD) * ld, cols);
            ask_row_to_write(reverse.dl_y, (r + AHEAD) * ld, cols);
            adjoint_row(reverse, r * ld, cols, scale, sums);
        }
    }
}

multiversion! {
    /// dl_y += shortcuts, dl_z = scale (dl_y act' + de_y act'' z_dot), and the sums over rows.
    pub fn loss_adjoint<T: Real>(extent: Extent, reverse: Reverse<T>, scale: &[T], shortcuts: Shortcuts<T>, sums: &mut Sums<T>) {
        let Extent { rows, cols, ld } = extent;
        for r in 0..rows {
            for p in [reverse.jets.f.cast_const(), reverse.z_dot, reverse.de_y] {
                ask_row(p, (r + AHEAD) * ld, cols);
            }
            ask_row_to_write(reverse.dl_z, (r + AHEAD) * ld, cols);
            ask_shortcuts(shortcuts, r + AHEAD, cols);
            for shortcut in shortcuts.into_iter().flatten() {
                // SAFETY: rows of the block.
                let (dl_y, x) =
                    unsafe { (row_mut(reverse.dl_y, r * ld, cols), row(shortcut.from, r * shortcut.ld, cols)) };
                for o in 0..cols {
                    dl_y[o] += x[o];
                }
            }
            adjoint_row(reverse, r * ld, cols, scale, sums);
        }
    }
}

#[inline(always)]
fn adjoint_row<T: Real>(reverse: Reverse<T>, at: usize, cols: usize, scale: &[T], sums: &mut Sums<T>) {
    // SAFETY: a row of the block, by the promise to the caller.
    let (z_dot, de_y, dl_y, dl_z) = unsafe {
        let Reverse { z_dot, de_y, dl_y, dl_z, .. } = reverse;
        (row(z_dot, at, cols), row(de_y, at, cols), row(dl_y, at, cols), row_mut(dl_z, at, cols))
    };
    let (scale, idt, bias) = (&scale[..cols], &mut sums.idt[..cols], &mut sums.bias[..cols]);
    // SAFETY: as above.
    unsafe {
        each_jet(reverse.jets, at, cols, |o, f, d, dd| {
            idt[o] += dl_y[o] * f + de_y[o] * d * z_dot[o];
            dl_z[o] = scale[o] * (dl_y[o] * d + de_y[o] * dd * z_dot[o]);
            bias[o] += dl_z[o];
        });
    }
}
