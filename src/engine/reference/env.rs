//! One row of the environment matrix, with the switch.
//!
//! `row = ((s, q d) - davg) / dstd` with s and q at r = |d| from [`radial`]; the switch w(r) is the fifth number.

use crate::model::dp::options::DescriptorOptions;
pub use crate::model::dp::radial::radial;
use crate::model::dp::radial::switch;

/// A normalised row and the switch; also what they change by, and derivatives by them.
pub type Row = [f64; 5];

fn norm(d: &[f64; 3]) -> f64 {
    (d[0] * d[0] + d[1] * d[1] + d[2] * d[2]).sqrt()
}

/// The normalised row of a neighbour at `d`.
pub fn row(options: &DescriptorOptions, d: &[f64; 3], davg: &[f64; 4], dstd: &[f64; 4]) -> Row {
    let r = norm(d);
    let [s, _, q, _] = radial(options, r);
    let raw = [s, q * d[0], q * d[1], q * d[2]];
    let [s, x, y, z] = [0, 1, 2, 3].map(|c| (raw[c] - davg[c]) / dstd[c]);
    [s, x, y, z, switch(options, r).0]
}

/// The change of the row when the distance vector moves along `d_dot`.
pub fn tangent(options: &DescriptorOptions, d: &[f64; 3], d_dot: &[f64; 3], dstd: &[f64; 4]) -> Row {
    let r = norm(d);
    let [_, s_r, q, q_r] = radial(options, r);
    let r_dot = (d[0] * d_dot[0] + d[1] * d_dot[1] + d[2] * d_dot[2]) / r;
    let q_dot = q_r * r_dot;
    [
        s_r * r_dot / dstd[0],
        (q * d_dot[0] + q_dot * d[0]) / dstd[1],
        (q * d_dot[1] + q_dot * d[1]) / dstd[2],
        (q * d_dot[2] + q_dot * d[2]) / dstd[3],
        switch(options, r).1 * r_dot,
    ]
}

/// dE/dd from dE/drow: the adjoint of [`tangent`].
pub fn backward(options: &DescriptorOptions, d: &[f64; 3], dstd: &[f64; 4], de_row: &Row) -> [f64; 3] {
    let r = norm(d);
    let [_, s_r, q, q_r] = radial(options, r);
    let de = [0, 1, 2, 3].map(|c| de_row[c] / dstd[c]);
    let de_r =
        de[0] * s_r + q_r * (de[1] * d[0] + de[2] * d[1] + de[3] * d[2]) + de_row[4] * switch(options, r).1;
    [0, 1, 2].map(|k| q * de[k + 1] + de_r * d[k] / r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::options;

    const DAVG: [f64; 4] = [0.3, 0.0, 0.0, 0.0];
    const DSTD: [f64; 4] = [0.2, 0.15, 0.15, 0.15];

    #[test]
    fn tangent_agrees_with_central_differences_up_to_the_cutoff() {
        let options = options();
        let direction = [0.3, -0.8, 0.5];
        for r in [0.3, 0.49, 0.51, 1.7, 3.9, 3.9999] {
            let d = [0.6 * r, 0.64 * r, -0.48 * r];
            let at = |h: f64| row(&options, &[0, 1, 2].map(|k| d[k] + h * direction[k]), &DAVG, &DSTD);
            let got = tangent(&options, &d, &direction, &DSTD);
            let (high, low) = (at(1e-6), at(-1e-6));
            for c in 0..5 {
                let want = (high[c] - low[c]) / 2e-6;
                assert!((got[c] - want).abs() < 1e-6 * (1.0 + want.abs()), "r {r} c {c}: {} {want}", got[c]);
            }
        }
    }

    #[test]
    fn backward_is_the_adjoint_of_the_tangent() {
        let options = options();
        let (d, v, w) = ([0.8, -1.1, 0.6], [0.2, 0.5, -0.9], [0.7, -0.3, 0.4, 1.2, -0.6]);
        let jv = tangent(&options, &d, &v, &DSTD);
        let jw = backward(&options, &d, &DSTD, &w);
        let left: f64 = (0..5).map(|c| w[c] * jv[c]).sum();
        let right: f64 = (0..3).map(|k| jw[k] * v[k]).sum();
        assert!((left - right).abs() < 1e-14 * left.abs().max(1.0), "{left} {right}");
    }
}
