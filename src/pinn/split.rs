//! Subsets of a data set, drawn as PiNN draws them: with Python's generator and shuffle.

use crate::err;
use crate::error::Result;
use crate::sample::twister::{N, Twister};

/// The Mersenne Twister with the seeding of Python's `random`.
#[derive(Debug, Clone)]
pub struct PythonRandom(Twister);

impl PythonRandom {
    /// `random.seed(seed)` of a whole number.
    pub fn new(seed: u64) -> Self {
        let key = if seed >> 32 == 0 { vec![seed as u32] } else { vec![seed as u32, (seed >> 32) as u32] };
        PythonRandom(Twister::new(seeded_by(&key)))
    }

    /// The next 32 random bits.
    pub fn bits(&mut self) -> u32 {
        self.0.word()
    }

    /// A whole number below `n`, by rejection. `n` is at least 1 and at most 2^32.
    fn below(&mut self, n: u64) -> u64 {
        let width = u64::BITS - n.leading_zeros();
        assert!((1..=32).contains(&width), "a draw among {n} numbers");
        loop {
            let r = u64::from(self.bits() >> (32 - width));
            if r < n {
                return r;
            }
        }
    }

    /// `random.shuffle`.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            list.swap(i, j);
        }
    }
}

/// The state that an array of numbers seeds.
fn seeded_by(key: &[u32]) -> [u32; N] {
    let mut state = Twister::spread(19_650_218);
    let (mut i, mut j) = (1, 0);
    for _ in 0..N.max(key.len()) {
        let last = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_664_525);
        state[i] = (state[i] ^ last).wrapping_add(key[j]).wrapping_add(j as u32);
        (i, j) = (i + 1, (j + 1) % key.len());
        if i == N {
            state[0] = state[N - 1];
            i = 1;
        }
    }
    for _ in 0..N - 1 {
        let last = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_566_083_941);
        state[i] = (state[i] ^ last).wrapping_sub(i as u32);
        i += 1;
        if i == N {
            state[0] = state[N - 1];
            i = 1;
        }
    }
    state[0] = 0x8000_0000;
    state
}

/// Splits the indices of `n` structures by ratios: each subset takes its share, rounded up, and the last what is left.
///
/// - ratios   name and weight of each subset, in order
/// - shuffle  the seed of the shuffle, or `None` to keep the order
pub fn split_list(
    n: usize,
    ratios: &[(String, f64)],
    shuffle: Option<u64>,
) -> Result<Vec<(String, Vec<usize>)>> {
    let total: f64 = ratios.iter().map(|(_, ratio)| ratio).sum();
    let wrong = ratios.iter().find(|(_, ratio)| !(ratio.is_finite() && *ratio >= 0.0));
    if let Some((name, ratio)) = wrong {
        return Err(err!("{name}: the ratio {ratio} is not a number of at least 0"));
    }
    if total <= 0.0 {
        return Err(err!("the ratios of all subsets are 0").help("write subsets as train:8,eval:2"));
    }
    let mut indices: Vec<usize> = (0..n).collect();
    if let Some(seed) = shuffle {
        PythonRandom::new(seed).shuffle(&mut indices);
    }
    let mut rest = indices.as_slice();
    let mut subsets = Vec::new();
    for (name, ratio) in ratios {
        let share = (n as f64 * ratio / total).ceil() as usize;
        let (subset, left) = rest.split_at(share.min(rest.len()));
        subsets.push((name.clone(), subset.to_vec()));
        rest = left;
    }
    Ok(subsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests/pinn_data/splits.json")).unwrap()
    }

    fn numbers(value: &Value) -> Vec<usize> {
        value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    }

    #[test]
    fn the_generator_is_that_of_python() {
        let mut random = PythonRandom::new(0);
        let bits: Vec<usize> = (0..8).map(|_| random.bits() as usize).collect();
        assert_eq!(bits, numbers(&vectors()["random_seed0_getrandbits32"]));
        let mut list: Vec<usize> = (0..10).collect();
        PythonRandom::new(0).shuffle(&mut list);
        assert_eq!(list, numbers(&vectors()["random_seed0_shuffle_range10"]));
        // random.seed(2**40 + 5); random.getrandbits(32), of CPython 3.11
        assert_eq!(PythonRandom::new((1 << 40) + 5).bits(), 2_166_296_868);
    }

    #[test]
    fn subsets_are_those_of_pinn() {
        let vectors = vectors();
        let mut checked = 0;
        for (name, want) in vectors.as_object().unwrap() {
            let Some(rest) = name.strip_prefix('n') else { continue };
            let (n, rest) = rest.split_once("_seed").unwrap();
            let shuffle =
                (!rest.ends_with("noshuffle")).then(|| rest.split('_').next().unwrap().parse().unwrap());
            let ratios = if rest.ends_with("8_2") { vec![8.0, 2.0] } else { vec![8.0, 1.0, 1.0] };
            let want = want.as_object().unwrap();
            let ratios: Vec<(String, f64)> = want.keys().cloned().zip(ratios).collect();
            let subsets = split_list(n.parse().unwrap(), &ratios, shuffle).unwrap();
            for (name, subset) in subsets {
                assert_eq!(subset, numbers(&want[&name]), "{name}");
            }
            checked += 1;
        }
        assert_eq!(checked, 7);
    }

    #[test]
    fn wrong_ratios_are_named() {
        let ratio = |r: f64| split_list(3, &[("train".into(), r)], None);
        assert!(ratio(-1.0).unwrap_err().message().contains("train: the ratio -1"));
        assert!(ratio(0.0).is_err() && ratio(f64::NAN).is_err());
        assert_eq!(ratio(0.1).unwrap()[0].1, [0, 1, 2]);
    }
}
