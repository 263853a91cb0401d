//! Random initial parameters, a function of the seed and the place alone.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of normally distributed numbers for one block of parameters.
pub struct Normal {
    rng: ChaCha8Rng,
    spare: Option<f64>,
}

impl Normal {
    /// The stream of block `place` under `seed`; different places never share numbers.
    pub fn new(seed: u64, place: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(place);
        Normal { rng, spare: None }
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// The next number of mean 0 and deviation 1 (Box and Muller).
    pub fn draw(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_mean_zero_and_deviation_one() {
        let mut normal = Normal::new(7, 3);
        let x: Vec<f64> = (0..100_000).map(|_| normal.draw()).collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let var = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((var - 1.0).abs() < 0.02, "variance {var}");
    }

    #[test]
    fn streams_depend_on_seed_and_place() {
        assert_eq!(Normal::new(1, 2).draw(), Normal::new(1, 2).draw());
        assert_ne!(Normal::new(1, 2).draw(), Normal::new(1, 3).draw());
        assert_ne!(Normal::new(1, 2).draw(), Normal::new(2, 2).draw());
    }
}
