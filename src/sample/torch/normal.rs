//! Normal numbers as `Tensor.normal_(mean, deviation)` draws them on a processor with AVX2 or AVX-512.

use super::{Generator, cephes};
use std::f64::consts::TAU;

/// Tensors of this length or more are made in blocks of this length.
const BLOCK: usize = 16;

impl Generator {
    /// Fills a float64 tensor.
    pub fn normal_f64(&mut self, out: &mut [f64], mean: f64, deviation: f64) {
        if out.len() < BLOCK {
            out.fill_with(|| self.one_normal(mean, deviation));
        } else {
            self.fill_blocks(out, Self::uniform_f64, |u, v| {
                let radius = (-2.0 * (1.0 - u).ln()).sqrt();
                let (sin, cos) = (TAU * v).sin_cos();
                ((radius * cos).mul_add(deviation, mean), (radius * sin).mul_add(deviation, mean))
            });
        }
    }

    /// Fills a float32 tensor.
    pub fn normal_f32(&mut self, out: &mut [f32], mean: f64, deviation: f64) {
        if out.len() < BLOCK {
            out.fill_with(|| self.one_normal(mean, deviation) as f32);
        } else {
            let (mean, deviation) = (mean as f32, deviation as f32);
            self.fill_blocks(out, Self::uniform_f32, |u, v| {
                let radius = (-2.0 * cephes::ln(1.0 - u)).sqrt();
                let (sin, cos) = cephes::sin_cos(TAU as f32 * v);
                ((radius * cos).mul_add(deviation, mean), (radius * sin).mul_add(deviation, mean))
            });
        }
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    fn uniform_f64(&mut self) -> f64 {
        const BITS: u32 = 53;
        (self.two_words() & ((1 << BITS) - 1)) as f64 / (1u64 << BITS) as f64
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    fn uniform_f32(&mut self) -> f32 {
        const BITS: u32 = 24;
        (self.word() & ((1 << BITS) - 1)) as f32 / (1u32 << BITS) as f32
    }

    /// One number of a short tensor. Pairs go on over the ends of tensors, whatever their precision.
    fn one_normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let unit = self.waiting_normal.take().unwrap_or_else(|| {
            let turn = self.uniform_f64();
            let radius = (-2.0 * (-self.uniform_f64()).ln_1p()).sqrt();
            let (sin, cos) = (TAU * turn).sin_cos();
            self.waiting_normal = Some(radius * sin);
            radius * cos
        });
        unit.mul_add(deviation, mean)
    }

    /// Draws all uniform numbers, then turns pairs half a block apart into normal ones. Where the length is no multiple of
    /// a block, the last whole block is drawn again.
    fn fill_blocks<T: Copy>(
        &mut self,
        out: &mut [T],
        uniform: impl Fn(&mut Self) -> T,
        transform: impl Fn(T, T) -> (T, T),
    ) {
        let transform_block = |block: &mut [T]| {
            let (first, second) = block.split_at_mut(BLOCK / 2);
            for (u, v) in first.iter_mut().zip(second) {
                (*u, *v) = transform(*u, *v);
            }
        };
        out.fill_with(|| uniform(self));
        out.chunks_exact_mut(BLOCK).for_each(transform_block);
        if !out.len().is_multiple_of(BLOCK) {
            let start = out.len() - BLOCK;
            let last = &mut out[start..];
            last.fill_with(|| uniform(self));
            transform_block(last);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Golden numbers of PyTorch 2.11.0 on a CPU with AVX-512 (AVX2 gives the same):
    //! `g = torch.Generator(); g.manual_seed(10)`, `torch.empty(len, dtype=...).normal_(0.1, 0.5, generator=g)`, then
    //! `int(torch.empty((), dtype=torch.int64).random_(generator=g))`.
    use super::*;

    #[test]
    fn float64_tensors_are_those_of_torch() {
        // Length; the first number, that at len / 2 and the last; the integer that follows.
        let golden: [(usize, [f64; 3], u64); 6] = [
            (1, [-0.20069639549843274, -0.20069639549843274, -0.20069639549843274], 2465374726603238769),
            (5, [-0.20069639549843274, -0.051134631921780416, 0.5599141273213142], 3653614955314194426),
            (15, [-0.20069639549843274, -0.3790856230164791, 0.107831890616406], 4090663505159216996),
            (16, [-0.292081318844703, 0.7265805466937045, 0.2867005839063818], 4090663505159216996),
            (17, [-0.292081318844703, 0.9697019594291127, -0.4298295929494351], 5888866461229063561),
            (40, [-0.292081318844703, 0.36387537116866775, -0.2492005621666102], 8995102386392611001),
        ];
        for (len, want, next) in golden {
            let mut generator = Generator::new(10);
            let mut out = vec![0.0; len];
            generator.normal_f64(&mut out, 0.1, 0.5);
            for (got, want) in [out[0], out[len / 2], out[len - 1]].into_iter().zip(want) {
                // The logarithm and the sine of another system may differ in the last digit.
                assert!((got - want).abs() < 1e-15, "length {len}: {got} {want}");
            }
            assert_eq!(generator.int64(), next, "after length {len}");
        }
    }

    #[test]
    fn float32_tensors_are_those_of_torch_to_the_last_bit() {
        let golden: [(usize, [f32; 3], u64); 6] = [
            (1, [-0.2006964, -0.2006964, -0.2006964], 2465374726603238769),
            (5, [-0.2006964, -0.05113463, 0.5599141], 3653614955314194426),
            (15, [-0.2006964, -0.37908563, 0.10783189], 4090663505159216996),
            (16, [-0.308667, -0.2732479, -0.024793431], 3119544287062882794),
            (17, [-0.308667, 0.10892294, 0.02700869], 6965766133013570510),
            (40, [-0.308667, 0.6381419, -0.7177123], 2774338394291118173),
        ];
        for (len, want, next) in golden {
            let mut generator = Generator::new(10);
            let mut out = vec![0.0; len];
            generator.normal_f32(&mut out, 0.1, 0.5);
            assert_eq!([out[0], out[len / 2], out[len - 1]], want, "length {len}");
            assert_eq!(generator.int64(), next, "after length {len}");
        }
    }

    #[test]
    fn the_second_of_a_pair_waits_for_the_next_short_tensor() {
        let mut generator = Generator::new(10);
        let (mut first, mut long, mut last) = ([0.0; 3], [0.0; 33], [0.0; 2]);
        generator.normal_f64(&mut first, 0.0, 1.0);
        generator.normal_f32(&mut long, 0.0, 1.0);
        generator.normal_f32(&mut last, 0.0, 1.0);
        assert!((first[2] - -0.30226926384356084).abs() < 1e-15);
        assert_eq!(long[32], -0.0050771814);
        assert_eq!(last, [-1.2276864, -1.1901379]);
        assert_eq!(generator.int64(), 217450820592642808);
    }
}
