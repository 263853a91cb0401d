//! Outputs that turn with the atoms, from the numbers x of the net and the rows of directions of A.
//!
//! With `r_m = A[m][1..4]`, A of all descriptors one after another: the vector `sum_m x_m r_m`, or the tensor `sum_mn S_mn r_m (x) r_n` where S is the symmetric part of x, or
//! has x on its diagonal. x is multiplied by the scale of the type before.

use crate::model::dp::options::Made;

/// What turns numbers of an atom's net into its outputs.
pub struct Turned<'a> {
    pub made: Made,
    pub scale: f64,
    /// A of the atom, of all descriptors.
    pub a: Vec<[f64; 4]>,
    /// The numbers of the net.
    pub x: &'a [f64],
}

impl Turned<'_> {
    /// S; for a vector x on its diagonal.
    fn symmetric(&self) -> Vec<Vec<f64>> {
        let n = self.a.len();
        let entry = |m: usize, k: usize| match self.made {
            Made::Matrix => self.scale * (self.x[m * n + k] + self.x[k * n + m]) / 2.0,
            _ if m == k => self.scale * self.x[m],
            _ => 0.0,
        };
        (0..n).map(|m| (0..n).map(|k| entry(m, k)).collect()).collect()
    }

    /// The outputs of the atom.
    pub fn forward(&self) -> Vec<f64> {
        let (n, s, a) = (self.a.len(), self.symmetric(), &self.a);
        if self.made == Made::Vector {
            return (1..4).map(|c| (0..n).map(|m| s[m][m] * a[m][c]).sum()).collect();
        }
        let mut tensor = vec![0.0; 9];
        for (m, k) in (0..n).flat_map(|m| (0..n).map(move |k| (m, k))) {
            for c in 0..9 {
                tensor[c] += s[m][k] * a[m][1 + c / 3] * a[k][1 + c % 3];
            }
        }
        tensor
    }

    /// dL/dx and dL/dA from dL/doutput.
    pub fn backward(&self, dl_out: &[f64]) -> (Vec<f64>, Vec<[f64; 4]>) {
        let (n, s, a) = (self.a.len(), self.symmetric(), &self.a);
        let (mut dl_s, mut dl_a) = (vec![vec![0.0; n]; n], vec![[0.0; 4]; n]);
        if self.made == Made::Vector {
            for m in 0..n {
                for c in 0..3 {
                    dl_s[m][m] += dl_out[c] * a[m][1 + c];
                    dl_a[m][1 + c] += dl_out[c] * s[m][m];
                }
            }
        } else {
            for (m, k) in (0..n).flat_map(|m| (0..n).map(move |k| (m, k))) {
                for c in 0..9 {
                    let (i, j) = (1 + c / 3, 1 + c % 3);
                    dl_s[m][k] += dl_out[c] * a[m][i] * a[k][j];
                    dl_a[m][i] += dl_out[c] * s[m][k] * a[k][j];
                    dl_a[k][j] += dl_out[c] * s[m][k] * a[m][i];
                }
            }
        }
        let of_pair = |m: usize, k: usize| self.scale * (dl_s[m][k] + dl_s[k][m]) / 2.0;
        let dl_x = match self.made {
            Made::Matrix => (0..n * n).map(|p| of_pair(p / n, p % n)).collect(),
            _ => (0..n).map(|m| of_pair(m, m)).collect(),
        };
        (dl_x, dl_a)
    }
}
