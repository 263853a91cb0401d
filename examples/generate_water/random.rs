//! Random numbers: ChaCha8, one stream for each trajectory, so that none depends on the order they run in.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
pub struct Random {
    source: ChaCha8Rng,
    spare: Option<f64>,
}

impl Random {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut source = ChaCha8Rng::seed_from_u64(seed);
        source.set_stream(stream);
        Random { source, spare: None }
    }

    /// Uniform in (0, 1], from the upper 53 bits.
    fn uniform(&mut self) -> f64 {
        ((self.source.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and variance 1, by Box and Muller; they come in pairs.
    pub fn gaussian(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }

    /// A rotation matrix, uniform over all rotations: from a quaternion uniform on its sphere.
    pub fn rotation(&mut self) -> [[f64; 3]; 3] {
        let q: [f64; 4] = std::array::from_fn(|_| self.gaussian());
        let norm = q.iter().map(|x| x * x).sum::<f64>().sqrt();
        let [w, x, y, z] = q.map(|c| c / norm);
        [
            [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
            [2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)],
            [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaussians_have_the_moments_of_the_normal_distribution() {
        let mut random = Random::new(1, 2);
        let n = 200_000;
        let mut moments = [0.0; 4];
        for _ in 0..n {
            let x = random.gaussian();
            (0..4).for_each(|k| moments[k] += x.powi(k as i32 + 1) / n as f64);
        }
        for (k, (got, want)) in moments.iter().zip([0.0, 1.0, 0.0, 3.0]).enumerate() {
            assert!((got - want).abs() < 0.05, "moment {}: {got}, not {want}", k + 1);
        }
    }

    #[test]
    fn the_same_stream_gives_the_same_numbers_and_another_stream_others() {
        let draw = |stream| {
            let mut random = Random::new(3, stream);
            [random.gaussian(), random.gaussian(), random.gaussian()]
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn rotations_keep_lengths_and_handedness() {
        let m = Random::new(5, 0).rotation();
        for a in 0..3 {
            for b in 0..3 {
                let dot: f64 = (0..3).map(|k| m[a][k] * m[b][k]).sum();
                assert!((dot - f64::from(a == b)).abs() < 1e-14, "rows {a} and {b}: {dot}");
            }
        }
        let det = m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
            - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
        assert!((det - 1.0).abs() < 1e-14, "{det}");
    }
}
