//! The matrices of a step, all in one block of memory that is kept between steps.
//!
//! A matrix has one row for each atom or each pair of the batch. Tasks write the rows of their own block and read
//! those of others only after the pass that wrote them is over; that is what makes the shared access sound.
//!
//! Of a matrix of pairs the value is kept, of most dE as well. Changes live no longer than a pass: a thread has one region
//! for those of the structures that it has in hand, which stays in the caches of its core. dL, and dE that is made from
//! little, live in memory of the thread, for one block at a time.

use crate::engine::cpu::real::Real;
use std::marker::PhantomData;
use std::ops::Range;

/// What the rows of a matrix belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    Atom,
    Pair,
}

/// A matrix by its number in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buf(pub usize);

/// What is kept of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    Value,
    /// The change along the direction of the second pass.
    Dot,
    /// dE/dvalue
    De,
    /// dL/dvalue
    Dl,
    /// act' and act'' of activations whose derivatives do not follow from their value.
    Slope,
    Curve,
    /// act'' times the change of its argument
    Bend,
}

/// The shape of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub rows: Rows,
    pub width: usize,
    /// Whether `Slope`, `Curve` and `Bend` are kept.
    pub jets: bool,
    /// Matrices of pairs: whether other blocks read changes and adjoints, which are kept for all pairs then.
    pub shared: bool,
    /// Matrices of pairs: whether dE is kept for the last pass.
    pub keeps_de: bool,
}

impl Shape {
    /// Whether a plane lives in memory of the thread.
    fn is_local(&self, plane: Plane) -> bool {
        let passing = match plane {
            Plane::Dl => true,
            Plane::De => !self.keeps_de,
            Plane::Value | Plane::Dot | Plane::Slope | Plane::Curve | Plane::Bend => false,
        };
        self.rows == Rows::Pair && !self.shared && passing
    }

    /// Whether a plane lives in the region of the thread.
    fn is_passing(&self, plane: Plane) -> bool {
        self.rows == Rows::Pair && !self.shared && matches!(plane, Plane::Dot | Plane::Bend)
    }

    fn has(&self, plane: Plane) -> bool {
        self.jets || !matches!(plane, Plane::Slope | Plane::Curve | Plane::Bend)
    }
}

/// All planes, in their order.
const ALL: [Plane; PLANES] =
    [Plane::Value, Plane::Dot, Plane::De, Plane::Dl, Plane::Slope, Plane::Curve, Plane::Bend];

/// Numbers that one cache line of either type holds; matrices start at multiples of it.
const ALIGN: usize = 16;
const PLANES: usize = 7;

/// The block of memory.
#[derive(Default)]
pub struct Memory<T> {
    data: Vec<T>,
    at: Vec<[usize; PLANES]>,
    /// Memory of a thread.
    local: usize,
    /// Numbers for each pair of a region.
    passing: usize,
}

impl<T: Real> Memory<T> {
    /// Room for these matrices; `most`: pairs of the largest block.
    pub fn resize(&mut self, shapes: &[Shape], n_atoms: usize, n_pairs: usize, most: usize) {
        let mut end = 0;
        let mut place = |n: usize| {
            let start = end;
            end += n.next_multiple_of(ALIGN);
            start
        };
        self.at.clear();
        self.at.resize(shapes.len(), [0; PLANES]);
        let size = |shape: &Shape| shape.width * if shape.rows == Rows::Atom { n_atoms } else { n_pairs };
        self.local = 0;
        self.passing = 0;
        for (at, shape) in self.at.iter_mut().zip(shapes) {
            for plane in ALL.into_iter().filter(|&plane| shape.has(plane)) {
                if shape.is_local(plane) {
                    at[plane as usize] = self.local;
                    self.local += (shape.width * most).next_multiple_of(ALIGN);
                } else if shape.is_passing(plane) {
                    at[plane as usize] = self.passing;
                    self.passing += shape.width;
                } else {
                    at[plane as usize] = place(size(shape));
                }
            }
        }
        // Room to spare, so that batches of about the same size do not move it.
        if self.data.len() < end {
            self.data.clear();
            self.data.resize(end + end / 8, T::ZERO);
        }
    }

    /// Length of the memory of a thread.
    pub fn local_len(&self) -> usize {
        self.local
    }

    /// Numbers for each pair of a region.
    pub fn passing_width(&self) -> usize {
        self.passing
    }

    /// Access for tasks.
    pub fn share<'a>(&'a mut self, shapes: &'a [Shape]) -> Shared<'a, T> {
        Shared {
            base: self.data.as_mut_ptr(),
            len: self.data.len(),
            at: &self.at,
            shapes,
            memory: PhantomData,
        }
    }
}

/// The matrices as tasks see them.
pub struct Shared<'a, T> {
    base: *mut T,
    len: usize,
    at: &'a [[usize; PLANES]],
    shapes: &'a [Shape],
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks touch disjoint rows, see `rows_mut`.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Real> Shared<'a, T> {
    pub fn width(&self, buf: Buf) -> usize {
        self.shapes[buf.0].width
    }

    pub fn shape(&self, buf: Buf) -> Shape {
        self.shapes[buf.0]
    }

    /// Numbers of a region for each pair that lie before a plane, and its width; `None` for what is elsewhere.
    pub fn passing(&self, buf: Buf, plane: Plane) -> Option<(usize, usize)> {
        let shape = &self.shapes[buf.0];
        shape.is_passing(plane).then(|| (self.at[buf.0][plane as usize], shape.width))
    }

    /// Where the rows of a block lie in the memory of its thread; `None` for what all threads share.
    pub fn local(&self, buf: Buf, plane: Plane, rows: usize) -> Option<(usize, usize)> {
        let shape = &self.shapes[buf.0];
        shape.is_local(plane).then(|| (self.at[buf.0][plane as usize], rows * shape.width))
    }

    /// Sets a plane of all matrices of atoms to zero for some atoms: sums start there.
    ///
    /// # Safety
    /// As [`Shared::rows_mut`].
    pub unsafe fn clear(&self, plane: Plane, atoms: Range<usize>) {
        for (k, _) in self.shapes.iter().enumerate().filter(|(_, shape)| shape.rows == Rows::Atom) {
            // SAFETY: by the caller's promise.
            unsafe { self.rows_mut(Buf(k), plane, atoms.clone()) }.fill(T::ZERO);
        }
    }

    fn span(&self, buf: Buf, plane: Plane, rows: &Range<usize>) -> (usize, usize) {
        let shape = &self.shapes[buf.0];
        assert!(!shape.is_local(plane) && !shape.is_passing(plane), "rows that all threads share");
        let width = self.shapes[buf.0].width;
        let start = self.at[buf.0][plane as usize] + rows.start * width;
        let len = rows.len() * width;
        assert!(start + len <= self.len, "the rows lie within the memory");
        (start, len)
    }

    /// Rows that nobody writes meanwhile: the caller's own, or those of an earlier pass.
    pub fn rows(&self, buf: Buf, plane: Plane, rows: Range<usize>) -> &'a [T] {
        let (start, len) = self.span(buf, plane, &rows);
        // SAFETY: within the memory; the plan lets nobody write them at this time.
        unsafe { std::slice::from_raw_parts(self.base.add(start), len) }
    }

    /// Rows of the caller's own block.
    ///
    /// # Safety
    /// No one else may hold these rows of this matrix and plane.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn rows_mut(&self, buf: Buf, plane: Plane, rows: Range<usize>) -> &'a mut [T] {
        let (start, len) = self.span(buf, plane, &rows);
        // SAFETY: within the memory; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}
