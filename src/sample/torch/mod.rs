//! The random numbers of PyTorch's CPU generator, as far as a model before its first step depends on them.

mod cephes; // logarithm, sine and cosine of float32 in PyTorch's last digits
mod normal; // tensors of normal numbers

use super::twister::Twister;
use std::collections::HashMap;

/// PyTorch's default generator on the CPU: MT19937, seeded with the low 32 bits of a seed.
#[derive(Clone)]
pub struct Generator {
    twister: Twister,
    /// Short tensors take normal numbers in pairs; here the second of a pair waits.
    waiting_normal: Option<f64>,
}

impl Generator {
    /// As `torch.manual_seed(seed)` leaves it.
    pub fn new(seed: u64) -> Self {
        Generator { twister: Twister::new(Twister::spread(seed as u32)), waiting_normal: None }
    }

    /// The next word.
    pub fn word(&mut self) -> u32 {
        self.twister.word()
    }

    /// 64 bits of two words, the high one first.
    fn two_words(&mut self) -> u64 {
        let high = u64::from(self.word());
        let low = u64::from(self.word());
        (high << 32) | low
    }

    /// What `Tensor.random_()` writes into an int64: 63 bits.
    pub fn int64(&mut self) -> u64 {
        self.two_words() & (u64::MAX >> 1)
    }

    /// The first `k` numbers of `torch.randperm(n)`; all `n` where `k` is more.
    ///
    /// Equal to PyTorch's below 214,748,364, where it changes to another method; beyond that it is a
    /// permutation of the same kind.
    pub fn permutation(&mut self, n: usize, k: usize) -> Vec<usize> {
        // Only the places that a swap has touched are kept: n may be millions, k is a few.
        let mut moved = HashMap::new();
        let mut first = Vec::with_capacity(k.min(n));
        for i in 0..k.min(n) {
            let left = n - i;
            // The last number is the only one left: no word is taken for it.
            let other = if left == 1 { i } else { i + self.word() as usize % left };
            let here = moved.get(&i).copied().unwrap_or(i);
            first.push(moved.insert(other, here).unwrap_or(other));
        }
        first
    }
}

/// One seed from several, as DeePMD-kit mixes places with a seed: the rank with `training.seed`, or a layer and its net
/// with the seed of their section.
pub fn mix_seeds(seeds: &[u64]) -> u64 {
    const INIT: u64 = 0x43b0_d7e5;
    const LEFT: u64 = 0xca01_f9dd;
    const RIGHT: u64 = 0x4973_f715;
    let fold = |x: u64| x ^ (x >> 16);
    let hash = |seed: u64| fold((seed ^ INIT).wrapping_mul(INIT));
    let mix = |x: u64, y: u64| fold(LEFT.wrapping_mul(x).wrapping_sub(RIGHT.wrapping_mul(y)));
    seeds.iter().map(|&seed| hash(seed)).reduce(mix).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Golden numbers of PyTorch 2.11.0 on the CPU. `g = torch.Generator(); g.manual_seed(seed)`, then
    //! - `int(torch.empty((), dtype=torch.int64).random_(generator=g))`
    //! - `torch.randperm(n, generator=g)`
    //!
    //! and of DeePMD-kit 3.2.0: `deepmd.pt.utils.utils.mix_entropy([0, seed])`.
    use super::*;

    #[test]
    fn integers_are_those_of_torch() {
        let golden: [(u64, [u64; 4]); 3] = [
            (0, [900450186894289455, 3969543146641149120, 1895649597198586619, 827948490035658087]),
            (10, [5004982467132365949, 382805850191655439, 2465374726603238769, 4589621550935188636]),
            (
                16008486670409321230, // more than 32 bits
                [3006488349465372878, 8123112203458804866, 4287427450700735340, 6832607397106641803],
            ),
        ];
        for (seed, want) in golden {
            let mut generator = Generator::new(seed);
            assert_eq!([(); 4].map(|_| generator.int64()), want, "seed {seed}");
        }
    }

    #[test]
    fn integers_stay_those_of_torch_when_the_state_is_renewed() {
        let mut generator = Generator::new(10);
        let got: Vec<u64> = (0..700).map(|_| generator.int64()).collect();
        assert_eq!(
            [got[311], got[312], got[699]],
            [3161261525622685152, 5409864216197947490, 474084040946546249]
        );
    }

    #[test]
    fn permutations_are_those_of_torch() {
        let golden: [(u64, [usize; 16]); 3] = [
            (0, [12, 10, 9, 6, 11, 8, 13, 5, 2, 14, 15, 0, 4, 3, 7, 1]),
            (10, [9, 1, 6, 3, 4, 8, 13, 14, 0, 11, 12, 7, 2, 15, 5, 10]),
            (16008486670409321230, [9, 7, 12, 15, 2, 14, 5, 3, 1, 13, 8, 6, 11, 10, 0, 4]),
        ];
        for (seed, want) in golden {
            assert_eq!(Generator::new(seed).permutation(16, 99), want, "seed {seed}");
            assert_eq!(Generator::new(seed).permutation(16, 5), want[..5], "seed {seed}");
        }
        assert_eq!(Generator::new(10).permutation(1000, 8), [937, 859, 548, 487, 148, 190, 199, 632]);
        assert_eq!(
            Generator::new(7).permutation(214_748_363, 4),
            [112993252, 117420445, 128500308, 81485129]
        );
    }

    #[test]
    fn seeds_are_mixed_as_in_deepmd_kit() {
        assert_eq!(mix_seeds(&[0, 0]), 6401250129989743656);
        assert_eq!(mix_seeds(&[0, 10]), 16008486670409321230);
        assert_eq!(mix_seeds(&[0, 4294967295]), 13097245435714028264);
    }
}
