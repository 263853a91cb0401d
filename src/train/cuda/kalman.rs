//! LKF where covariances and parameters are on a GPU: what `optim/kalman.rs` does on the CPU, with the same checkpoints.
//!
//! The host sees every update go by: it adds up one number of each block over ranks, and gives all ranks everyone's gains.

use crate::Result;
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::comm::vectors::gather_slices;
use crate::engine::cuda::kalman::{Kalman, Observer};
use crate::gpu::{Buffer, Device};
use crate::loss::observation::{Observation, Observed};
use crate::optim::Target;
use crate::optim::kalman::{ATOMS, Filter, KalmanOptions, check_fits};
use std::ops::Range;
use std::sync::Arc;

/// The filter with its covariances on a device.
pub struct FilterOnGpu {
    filter: Filter,
    device: Kalman,
    /// All gains, for ranks to give each other.
    gain: Vec<f64>,
}

impl FilterOnGpu {
    /// A filter that knows nothing yet. Fails where its covariances do not fit on the GPU.
    pub fn new(
        device: &Arc<Device>,
        params: &Buffer<f64>,
        grad: &Buffer<f64>,
        options: KalmanOptions,
        target: &Target,
    ) -> Result<FilterOnGpu> {
        let filter = Filter::new(options, target);
        // Whoever saves has all of them on the host, and those of the last checkpoint, which may still be on its way.
        filter.announce(0)?;
        let blocks: Vec<Range<usize>> = filter.trained().map(|block| block.places.clone()).collect();
        let (free, _) = device.memory()?;
        let wanted = Kalman::bytes(blocks.iter().map(Range::len));
        check_fits("the covariances of LKF", wanted, Some(free as u64), "GPU memory", target.size)?;
        let gain = vec![0.0; if target.size > 1 { filter.layout.order.len() } else { 0 }];
        let device = Kalman::new(device, params, grad, &filter.layout.order, &blocks)?;
        Ok(FilterOnGpu { filter, device, gain })
    }

    pub fn observations(&self, step: u64, num_steps: u64) -> Vec<Observation> {
        self.filter.observations(step, num_steps)
    }

    /// One update of the parameters by `count` times the gradient on the device, and the error of what was observed.
    pub fn assimilate(&mut self, count: f64, error: f64, ranks: &mut dyn Communicator) -> Result<()> {
        let products = self.device.make_gains(count)?;
        let a = self.filter.scale(&products, ranks)?;
        if ranks.size() > 1 {
            self.device.read_gain(&mut self.gain)?;
            gather_slices(ranks, &mut self.gain, self.filter.own_places())?;
            self.device.write_gain(&self.gain)?;
        }
        self.device.update(a, error, self.filter.lambda)?;
        self.filter.forget();
        Ok(())
    }

    pub fn save(&mut self, ranks: &mut dyn Communicator) -> Result<Arrays> {
        let mut all = vec![0.0; self.filter.layout.n_covariance()];
        self.device.read(&mut all[self.filter.own_covariance()])?;
        self.filter.save(all, ranks)
    }

    pub fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        let own = self.filter.restore(arrays)?;
        self.device.write(own)
    }
}

/// Tells the device what is observed of frames, given which of their atoms are real.
pub fn set_observation(observer: &Observer, observation: &Observation, frames: &[Vec<bool>]) -> Result<()> {
    match observation {
        Observation::Energy { prefactor } => observer.set(*prefactor, 0, &[]),
        Observation::Force { prefactor, atoms } => {
            let mut named = Vec::with_capacity(frames.len() * atoms.len());
            for real in frames {
                let real: Vec<u32> = (0..real.len() as u32).filter(|&i| real[i as usize]).collect();
                // A frame of virtual atoms alone says nothing.
                let nth = |place: &f64| {
                    if real.is_empty() { 0 } else { real[Observation::nth(*place, real.len())] }
                };
                named.extend(atoms.iter().map(nth));
            }
            observer.set(*prefactor, atoms.len(), &named)
        }
    }
}

/// Memory for what is observed of batches of so many frames.
pub fn observer(device: &Arc<Device>, frames: usize) -> Result<Observer> {
    Observer::new(device, frames, ATOMS)
}

/// What a batch of so many frames has said.
pub fn observed(observer: &Observer, frames: usize) -> Result<Observed> {
    Ok(Observed { error: observer.error(frames)?, frames: frames as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Array, f64s_of};
    use crate::comm::local_group;
    use crate::engine::cpu::pool::Pool;
    use crate::engine::cuda::program;
    use crate::gpu::{Cuda, Numbers};
    use crate::model::dp::options::Form;
    use crate::model::params::ParamTable;
    use crate::optim::OptimizerOptions;

    fn table() -> ParamTable {
        let mut table = ParamTable::default();
        for (name, shape, trained) in
            [("a", &[1, 70][..], true), ("b", &[7, 40], true), ("c", &[64], false), ("d", &[128, 1], true)]
        {
            table.add(name.into(), shape, trained);
        }
        table
    }

    fn gradient(table: &ParamTable, step: usize) -> Vec<f64> {
        let is_trained = |k: usize| table.trained().iter().any(|range| range.contains(&k));
        (0..table.len()).map(|k| if is_trained(k) { ((k * (step + 2)) as f64).sin() } else { 0.0 }).collect()
    }

    /// Parameters and covariances after some updates on a device, with the state taken out and put back after two of them.
    fn on_device(device: &Arc<Device>, options: KalmanOptions, restarts: bool) -> (Vec<f64>, Arrays) {
        let (table, mut ranks) = (table(), local_group(1).remove(0));
        let target = Target { table: &table, pool: Pool::serial(), single: false, rank: 0, size: 1, seed: 7 };
        let n = table.len();
        let params = Buffer::of(device, &vec![0.5; n], "a test").unwrap();
        let grad = Buffer::<f64>::zeroed(device, n + 1, "a test").unwrap();
        let make = || FilterOnGpu::new(device, &params, &grad, options, &target).unwrap();
        let mut filter = make();
        for step in 0..4 {
            grad.write(0, &gradient(&table, step)).unwrap();
            filter.assimilate(3.0, 0.7, &mut *ranks).unwrap();
            if step == 1 && restarts {
                let state = filter.save(&mut *ranks).unwrap();
                filter = make();
                filter.restore(&state).unwrap();
            }
        }
        let mut found = vec![0.0; n];
        params.read(0, &mut found).unwrap();
        (found, filter.save(&mut *ranks).unwrap())
    }

    fn with_params(params: &[f64], mut state: Arrays) -> Arrays {
        state.push(("params".to_string(), Array::F64(params.to_vec())));
        state
    }

    #[test]
    fn updates_on_the_device_are_those_of_the_cpu_and_go_on_after_a_restart() {
        let env = |name: &str| std::env::var(name).ok();
        let cuda = match Cuda::find(&env) {
            Ok(cuda) => cuda,
            Err(e) => return crate::skip::skip(e.message()),
        };
        let device = program::open(&cuda, 0, Numbers::F32, Form::Directions { axis: 4 }, &env).unwrap();
        for block_size in [50, 150, 1000] {
            let options = KalmanOptions { block_size, energy: [1.0; 2], force: [1.0; 2] };
            let (table, mut ranks) = (table(), local_group(1).remove(0));
            let target =
                Target { table: &table, pool: Pool::serial(), single: false, rank: 0, size: 1, seed: 7 };
            let mut cpu = options.build(&target).unwrap();
            let mut params = vec![0.5; table.len()];
            for step in 0..4 {
                let filter = cpu.by_observations().unwrap();
                let grad = gradient(&table, step);
                filter.assimilate(&mut params, (&grad, 3.0), 0.7, &mut *ranks).unwrap();
            }
            let want = with_params(&params, cpu.save(&mut Vec::new(), &mut *ranks).unwrap());
            let (moved, state) = on_device(&device, options, false);
            let found = with_params(&moved, state.clone());
            for (name, _) in &want {
                let [want, found] = [&want, &found].map(|arrays| f64s_of(arrays, name).unwrap());
                assert_eq!(found.len(), want.len(), "{name}");
                for (k, (a, b)) in found.iter().zip(want).enumerate() {
                    assert!((a - b).abs() <= 1e-12, "{name} {k}: {a} on the device, {b} on the CPU");
                }
            }
            assert_eq!(on_device(&device, options, true), (moved, state), "a restart has the same bits");
        }
    }
}
