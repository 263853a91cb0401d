//! Directions of a pair: the unit vector and the traceless tensor of it, with tangent and adjoint.

/// d / |d|
pub fn unit(d: &[f64; 3]) -> [f64; 3] {
    let r = norm(d);
    d.map(|x| x / r)
}

/// The change of the unit vector `n` of a vector of length `r` that moves along `d_dot`: (d_dot - n (n . d_dot)) / r.
/// It is its own adjoint.
pub fn unit_tangent(n: &[f64; 3], r: f64, d_dot: &[f64; 3]) -> [f64; 3] {
    let along = dot(n, d_dot);
    [0, 1, 2].map(|k| (d_dot[k] - n[k] * along) / r)
}

/// (2/3 x^2 - 1/3 y^2 - 1/3 z^2, 2/3 y^2 - 1/3 x^2 - 1/3 z^2, x y, x z, y z) of a unit vector.
pub fn tensor(n: &[f64; 3]) -> [f64; 5] {
    let [x, y, z] = *n;
    [(2.0 * x * x - y * y - z * z) / 3.0, (2.0 * y * y - x * x - z * z) / 3.0, x * y, x * z, y * z]
}

/// The change of [`tensor`] along `n_dot`.
pub fn tensor_tangent(n: &[f64; 3], n_dot: &[f64; 3]) -> [f64; 5] {
    let ([x, y, z], [u, v, w]) = (*n, *n_dot);
    [
        2.0 * (2.0 * x * u - y * v - z * w) / 3.0,
        2.0 * (2.0 * y * v - x * u - z * w) / 3.0,
        u * y + x * v,
        u * z + x * w,
        v * z + y * w,
    ]
}

/// dE/dn from dE/dtensor: the adjoint of [`tensor_tangent`].
pub fn tensor_backward(n: &[f64; 3], de: &[f64; 5]) -> [f64; 3] {
    let [x, y, z] = *n;
    [
        2.0 * x * (2.0 * de[0] - de[1]) / 3.0 + de[2] * y + de[3] * z,
        2.0 * y * (2.0 * de[1] - de[0]) / 3.0 + de[2] * x + de[4] * z,
        -2.0 * z * (de[0] + de[1]) / 3.0 + de[3] * x + de[4] * y,
    ]
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn norm(d: &[f64; 3]) -> f64 {
    dot(d, d).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: [f64; 3] = [0.9, -1.4, 0.6];
    const V: [f64; 3] = [-0.3, 0.8, 1.1];

    fn along(h: f64) -> [f64; 3] {
        [0, 1, 2].map(|k| D[k] + h * V[k])
    }

    #[test]
    fn tangents_agree_with_central_differences() {
        let n = unit(&D);
        let n_dot = unit_tangent(&n, norm(&D), &V);
        let t_dot = tensor_tangent(&n, &n_dot);
        let (low, high) = (unit(&along(-1e-5)), unit(&along(1e-5)));
        for k in 0..3 {
            assert!((n_dot[k] - (high[k] - low[k]) / 2e-5).abs() < 1e-9);
        }
        let (low, high) = (tensor(&low), tensor(&high));
        for k in 0..5 {
            assert!((t_dot[k] - (high[k] - low[k]) / 2e-5).abs() < 1e-9);
        }
    }

    #[test]
    fn backward_is_the_adjoint_of_the_tangent() {
        let n = unit(&D);
        let w = [0.4, -1.0, 0.7, 0.2, -0.6];
        let back = tensor_backward(&n, &w);
        let forward: f64 = tensor_tangent(&n, &V).iter().zip(&w).map(|(a, b)| a * b).sum();
        assert!((forward - dot(&back, &V)).abs() < 1e-14);
        let u = [1.3, 0.1, -0.5];
        let (left, right) = (dot(&u, &unit_tangent(&n, 1.7, &V)), dot(&unit_tangent(&n, 1.7, &u), &V));
        assert!((left - right).abs() < 1e-14);
    }
}
