//! The order of frames within an epoch: a permutation that is computed, not stored.
//!
//! Which frame stands at a position of an epoch is a function of (seed, system, epoch, position). Nothing is kept
//! between calls, so 20,000 systems cost no memory here, and a restart needs no state.
//!
//! - Up to [`SHUFFLE_LIMIT`] frames: a Fisher-Yates shuffle, made anew for each batch. Every order is equally likely.
//! - Above: a Feistel network over the next power of four, walked until it lands inside (on average less than four
//!   steps). Its eight round keys come from the same generator. It is a bijection whatever the keys are, so every
//!   frame appears exactly once.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Below this a real shuffle costs less than a microsecond or two; a Feistel network would be poor for so few.
pub const SHUFFLE_LIMIT: usize = 256;

const ROUNDS: usize = 8;

/// Words of 32 bits that one permutation takes from the generator at most: two for each swap.
pub const WORDS: u128 = 2 * SHUFFLE_LIMIT as u128;

/// The order of the `n` frames of one epoch.
#[allow(clippy::large_enum_variant)] // It lives on the stack for the length of one batch.
pub enum Permutation {
    Shuffle { order: [u16; SHUFFLE_LIMIT], n: usize },
    Feistel { keys: [u64; ROUNDS], half_bits: u32, n: u64 },
}

impl Permutation {
    /// Takes its keys from `rng`, which stands at the place of this system and epoch.
    pub fn new(rng: &mut ChaCha8Rng, n: usize) -> Self {
        assert!(n > 0, "a system without frames has no order");
        if n <= SHUFFLE_LIMIT {
            return Self::shuffle(rng, n);
        }
        let bits = u64::BITS - (n as u64 - 1).leading_zeros();
        let keys = std::array::from_fn(|_| rng.next_u64());
        Permutation::Feistel { keys, half_bits: bits.div_ceil(2), n: n as u64 }
    }

    fn shuffle(rng: &mut ChaCha8Rng, n: usize) -> Self {
        let mut order: [u16; SHUFFLE_LIMIT] = std::array::from_fn(|i| i as u16);
        for i in (1..n).rev() {
            // The bias of scaling 64 bits down to at most 256 values is below 1e-16.
            let j = ((u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64) as usize;
            order.swap(i, j);
        }
        Permutation::Shuffle { order, n }
    }

    /// The frame at `position`.
    pub fn frame(&self, position: usize) -> usize {
        match self {
            Permutation::Shuffle { order, n } => {
                assert!(position < *n, "position {position} of {n}");
                usize::from(order[position])
            }
            Permutation::Feistel { keys, half_bits, n } => {
                assert!((position as u64) < *n, "position {position} of {n}");
                let mut x = position as u64;
                loop {
                    x = feistel(x, keys, *half_bits);
                    if x < *n {
                        return x as usize;
                    }
                }
            }
        }
    }
}

/// One bijection of the numbers of `2 * half_bits` bits.
fn feistel(x: u64, keys: &[u64; ROUNDS], half_bits: u32) -> u64 {
    let mask = (1u64 << half_bits) - 1;
    let (mut left, mut right) = (x >> half_bits, x & mask);
    for key in keys {
        (left, right) = (right, left ^ (mix(right ^ key) & mask));
    }
    left << half_bits | right
}

/// The finaliser of SplitMix64: every bit of the input changes half of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn order(seed: u64, n: usize) -> Vec<usize> {
        let permutation = Permutation::new(&mut ChaCha8Rng::seed_from_u64(seed), n);
        (0..n).map(|i| permutation.frame(i)).collect()
    }

    #[test]
    fn every_frame_appears_once_for_every_size() {
        for n in (1..=300).chain([511, 512, 513, 1023, 1024, 1025, 4097, 65_537]) {
            let mut found = order(n as u64, n);
            found.sort_unstable();
            assert!(found.into_iter().eq(0..n), "not a permutation of {n}");
        }
    }

    #[test]
    fn another_key_gives_another_order() {
        for n in [200, 300, 5000] {
            assert_ne!(order(1, n), order(2, n));
            assert_eq!(order(1, n), order(1, n));
        }
    }

    #[test]
    fn every_frame_is_equally_likely_at_every_position() {
        let trials = 20_000;
        for (n, position) in [(3, 0), (3, 2), (7, 3)] {
            let mut count = vec![0u32; n];
            for seed in 0..trials {
                count[order(seed, n)[position]] += 1;
            }
            check_even(&count, trials as f64 / n as f64);
        }
        // Large orders, in sixteen bins.
        let (n, mut count) = (5000, vec![0u32; 16]);
        for seed in 0..trials {
            let permutation = Permutation::new(&mut ChaCha8Rng::seed_from_u64(seed), n);
            count[permutation.frame(17) * 16 / n] += 1;
        }
        check_even(&count, trials as f64 / 16.0);
    }

    /// Five standard deviations.
    fn check_even(count: &[u32], mean: f64) {
        for (bin, &found) in count.iter().enumerate() {
            let off = (f64::from(found) - mean).abs();
            assert!(off < 5.0 * mean.sqrt(), "bin {bin} holds {found}, wanted about {mean}: {count:?}");
        }
    }

    #[test]
    fn neighbours_of_one_epoch_are_not_neighbours_in_the_next() {
        let (a, b) = (order(10, 5000), order(11, 5000));
        let place: Vec<usize> = {
            let mut place = vec![0; 5000];
            b.iter().enumerate().for_each(|(i, &frame)| place[frame] = i);
            place
        };
        let close = a.windows(2).filter(|w| place[w[0]].abs_diff(place[w[1]]) == 1).count();
        assert!(close < 15, "{close} pairs stayed together, about 2 are chance");
    }
}
