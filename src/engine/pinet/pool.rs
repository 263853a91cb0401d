//! How the outputs of atoms become one output of a structure.

use crate::model::pinet::options::Pool;

/// The output of a structure, and what each atom's output counts in it.
///
/// - share  out  `[n_atoms]`  dE/dout
pub fn pool(share: &mut [f64], out: &[f64], how: Option<Pool>) -> f64 {
    let n = out.len() as f64;
    match how {
        None | Some(Pool::Sum) => {
            share.fill(1.0);
            out.iter().sum()
        }
        Some(Pool::Avg) => {
            share.fill(1.0 / n);
            out.iter().sum::<f64>() / n.max(1.0)
        }
        Some(Pool::Max) => extreme(share, out, f64::max),
        Some(Pool::Min) => extreme(share, out, f64::min),
    }
}

/// The largest or smallest output; atoms that share it share its derivative.
fn extreme(share: &mut [f64], out: &[f64], better: fn(f64, f64) -> f64) -> f64 {
    let Some(best) = out.iter().copied().reduce(better) else { return 0.0 };
    let ties = out.iter().filter(|&&x| x == best).count() as f64;
    share.iter_mut().zip(out).for_each(|(share, &x)| *share = if x == best { 1.0 / ties } else { 0.0 });
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_derivatives_of_the_pool() {
        let out = [0.5, -1.0, 2.0, 2.0];
        let of = |how| {
            let mut share = vec![0.0; 4];
            let e = pool(&mut share, &out, how);
            (e, share)
        };
        assert_eq!(of(None), (3.5, vec![1.0; 4]));
        assert_eq!(of(Some(Pool::Sum)), (3.5, vec![1.0; 4]));
        assert_eq!(of(Some(Pool::Avg)), (0.875, vec![0.25; 4]));
        assert_eq!(of(Some(Pool::Max)), (2.0, vec![0.0, 0.0, 0.5, 0.5]));
        assert_eq!(of(Some(Pool::Min)), (-1.0, vec![0.0, 1.0, 0.0, 0.0]));
        assert_eq!(pool(&mut [], &[], Some(Pool::Max)), 0.0);
    }
}
