//! Which frames the statistics of a model are taken from.

use super::torch::{Generator, NormalTensor, mix_seeds};

/// What DeePMD-kit takes from its generator after seeding it and before it chooses frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnBefore {
    /// One number for each system of the data that was opened last: systems of the validation data where there is
    /// any, of the training data otherwise. The generator is seeded anew for each of the two.
    pub n_loaders: usize,
    /// Initial parameters that the generator gives; see [`crate::model::dp::draws::unseeded_tensors`].
    pub tensors: Vec<NormalTensor>,
}

/// The frames of each system, in the order of its batches: the first `n_batches` of a shuffled epoch, or all.
///
/// We imitate what PyTorch's generator gives DeePMD-kit on the CPU, so that the same input with the same seed has
/// the same davg, dstd and energy bias here and there. Without that, models could be compared only up to the noise
/// of a few sampled frames.
///
/// - n_frames, batch_sizes  `[n_systems]` of the training data
/// - seed  `training.seed`
pub fn frames_for_statistics(
    n_frames: &[usize],
    batch_sizes: &[usize],
    n_batches: usize,
    seed: u64,
    before: &DrawnBefore,
) -> Vec<Vec<usize>> {
    assert!(n_frames.len() == batch_sizes.len(), "one batch size for each system");
    const RANK: u64 = 0; // the statistics are those of the first process
    let mut generator = Generator::new(mix_seeds(&[RANK, seed % (1 << 32)]));
    for _ in 0..before.n_loaders {
        generator.int64();
    }
    for &tensor in &before.tensors {
        generator.skip_normal(tensor);
    }
    let mut choose = |(&n, &batch_size): (&usize, &usize)| {
        generator.int64(); // the seed of loader processes, which do not exist
        let order = generator.int64();
        Generator::new(order).permutation(n, batch_size.saturating_mul(n_batches))
    };
    n_frames.iter().zip(batch_sizes).map(&mut choose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_taken_once_where_batches_suffice() {
        let before = DrawnBefore { n_loaders: 2, tensors: vec![] };
        let mut frames = frames_for_statistics(&[7, 1], &[2, 5], 4, 1, &before);
        frames[0].sort();
        assert_eq!(frames, [vec![0, 1, 2, 3, 4, 5, 6], vec![0]]);
    }

    #[test]
    fn the_choice_depends_on_the_seed_and_on_what_was_drawn_before() {
        let before =
            |n_loaders, len| DrawnBefore { n_loaders, tensors: vec![NormalTensor { len, is_double: true }] };
        let choose = |seed, before| frames_for_statistics(&[1000], &[3], 2, seed, &before);
        let first = choose(1, before(1, 40));
        assert_eq!(first[0].len(), 6);
        assert_eq!(first, choose(1, before(1, 40)));
        assert_eq!(first, choose(1 + (1 << 32), before(1, 40)), "only 32 bits of the seed count");
        assert_ne!(first, choose(2, before(1, 40)));
        assert_ne!(first, choose(1, before(2, 40)));
        assert_ne!(first, choose(1, before(1, 48)));
    }
}
