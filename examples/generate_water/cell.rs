//! The periodic cell: any parallelepiped, so that tests can shear it.

/// A vector in space, or a row of a matrix.
pub type Vec3 = [f64; 3];

/// A periodic cell. Rows are the lattice vectors.
#[derive(Debug, Clone)]
pub struct Cell {
    rows: [Vec3; 3],
    inverse: [Vec3; 3],
}

impl Cell {
    pub fn new(rows: [Vec3; 3]) -> Self {
        let [a, b, c] = rows;
        let volume = dot(a, cross(b, c));
        assert!(volume > 0.0, "the lattice vectors {rows:?} are not right-handed");
        // Columns of the inverse are the reciprocal vectors.
        let reciprocal = [cross(b, c), cross(c, a), cross(a, b)];
        let inverse = std::array::from_fn(|i| std::array::from_fn(|j| reciprocal[j][i] / volume));
        Cell { rows, inverse }
    }

    pub fn cubic(length: f64) -> Self {
        Cell::new([[length, 0.0, 0.0], [0.0, length, 0.0], [0.0, 0.0, length]])
    }

    /// Row-major, as `box.npy` wants it.
    pub fn rows(&self) -> [Vec3; 3] {
        self.rows
    }

    /// Coordinates in units of the lattice vectors, in [0, 1).
    pub fn wrapped_fraction(&self, r: Vec3) -> Vec3 {
        multiply(r, &self.inverse).map(|s| s - s.floor())
    }

    /// The same atom, inside the cell.
    pub fn wrap(&self, r: Vec3) -> Vec3 {
        multiply(self.wrapped_fraction(r), &self.rows)
    }

    /// Vector from `from` to the nearest image of `to`, both wrapped fractions.
    ///
    /// It is the nearest image for all distances below half the smallest height of the cell.
    #[inline]
    pub fn nearest_image(&self, from: Vec3, to: Vec3) -> Vec3 {
        let step = |k: usize| {
            let s = to[k] - from[k];
            // Selects, not `round`: that is a function call on the baseline of x86-64.
            s - if s > 0.5 { 1.0 } else { 0.0 } + if s < -0.5 { 1.0 } else { 0.0 }
        };
        multiply([step(0), step(1), step(2)], &self.rows)
    }

    /// Half the smallest height: the largest cutoff that one image of each atom suffices for.
    pub fn half_height(&self) -> f64 {
        let column = |j: usize| [self.inverse[0][j], self.inverse[1][j], self.inverse[2][j]];
        let longest = (0..3).map(|j| dot(column(j), column(j)).sqrt()).fold(0.0, f64::max);
        0.5 / longest
    }
}

#[inline]
pub fn dot(a: Vec3, b: Vec3) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn cross(a: Vec3, b: Vec3) -> Vec3 {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

/// Row vector times matrix.
#[inline]
pub fn multiply(v: Vec3, m: &[Vec3; 3]) -> Vec3 {
    std::array::from_fn(|j| v[0] * m[0][j] + v[1] * m[1][j] + v[2] * m[2][j])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_image_is_the_shortest_of_all_neighbouring_images() {
        let cell = Cell::new([[10.0, 0.3, 0.0], [-0.2, 11.0, 0.5], [0.4, 0.1, 9.0]]);
        let mut inside = 0;
        for k in 0..200 {
            let x = k as f64;
            let a = [17.0 * (x * 0.7).sin(), 9.0 * (x * 1.3).cos(), x * 0.37];
            let b = [5.0 * (x * 2.1).cos(), x * 0.11, 21.0 * (x * 0.9).sin()];
            let d = cell.nearest_image(cell.wrapped_fraction(a), cell.wrapped_fraction(b));
            let got = dot(d, d).sqrt();
            let want = shortest(&cell, cell.wrap(a), cell.wrap(b));
            if want < cell.half_height() {
                inside += 1;
                assert!((got - want).abs() < 1e-12, "pair {k}: {got}, the shortest image is at {want}");
            }
        }
        assert!(inside > 50, "only {inside} pairs were near enough to test anything");
    }

    fn shortest(cell: &Cell, a: Vec3, b: Vec3) -> f64 {
        let steps = [-1.0, 0.0, 1.0];
        let mut best = f64::INFINITY;
        for i in steps {
            for j in steps {
                for k in steps {
                    let shift = multiply([i, j, k], &cell.rows());
                    let d: Vec3 = std::array::from_fn(|c| b[c] + shift[c] - a[c]);
                    best = best.min(dot(d, d).sqrt());
                }
            }
        }
        best
    }
}
