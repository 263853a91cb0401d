//! Which frames the statistics of a model are taken from.

use super::torch::{Generator, mix_seeds};

/// DeePMD-kit's global generator as it stands before a model is made.
///
/// The initial parameters ([`crate::model::dp::Dp::initial_params`]) come from it first, then the frames of the
/// statistics ([`frames_for_statistics`]).
///
/// - seed  `training.seed`
/// - n_loaders  systems of the data that was opened last: of the validation data where there is any, of the training
///   data otherwise. The generator is seeded anew for each of the two, and each system takes one number.
pub fn global_generator(seed: u64, n_loaders: usize) -> Generator {
    const RANK: u64 = 0; // model and statistics are those of the first process
    let mut generator = Generator::new(mix_seeds(&[RANK, seed % (1 << 32)]));
    for _ in 0..n_loaders {
        generator.int64();
    }
    generator
}

/// The frames of each system, in the order of its batches: the first `n_batches` of a shuffled epoch, or all.
///
/// We imitate what PyTorch's generator gives DeePMD-kit on the CPU, so that the same input with the same seed has
/// the same davg, dstd and energy bias here and there. Without that, models could be compared only up to the noise
/// of a few sampled frames.
///
/// - generator  as the initial parameters have left it
/// - n_frames, batch_sizes  `[n_systems]` of the training data
pub fn frames_for_statistics(
    generator: &mut Generator,
    n_frames: &[usize],
    batch_sizes: &[usize],
    n_batches: usize,
) -> Vec<Vec<usize>> {
    assert!(n_frames.len() == batch_sizes.len(), "one batch size for each system");
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
        let mut frames = frames_for_statistics(&mut global_generator(1, 2), &[7, 1], &[2, 5], 4);
        frames[0].sort();
        assert_eq!(frames, [vec![0, 1, 2, 3, 4, 5, 6], vec![0]]);
    }

    #[test]
    fn the_choice_depends_on_the_seed_and_on_what_was_drawn_before() {
        let choose = |seed, n_loaders, n_params| {
            let mut generator = global_generator(seed, n_loaders);
            generator.normal_f64(&mut vec![0.0; n_params], 0.0, 1.0);
            frames_for_statistics(&mut generator, &[1000], &[3], 2)
        };
        let first = choose(1, 1, 40);
        assert_eq!(first[0].len(), 6);
        assert_eq!(first, choose(1, 1, 40));
        assert_eq!(first, choose(1 + (1 << 32), 1, 40), "only 32 bits of the seed count");
        assert_ne!(first, choose(2, 1, 40));
        assert_ne!(first, choose(1, 2, 40));
        assert_ne!(first, choose(1, 1, 48));
    }
}
