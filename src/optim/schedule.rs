//! The learning rate of every step.

use super::options::{LearningRateOptions, Schedule, WsdDecay};

impl LearningRateOptions {
    /// The learning rate of `step` (from 0) of a run of `num_steps`.
    pub fn at(&self, step: u64, num_steps: u64) -> f64 {
        if step < self.warmup_steps {
            let from = self.warmup_start_factor * self.start_lr;
            return from + (self.start_lr - from) * step as f64 / self.warmup_steps as f64;
        }
        let step = step - self.warmup_steps;
        let total = num_steps.saturating_sub(self.warmup_steps);
        match self.schedule {
            Schedule::Exp { decay_steps, decay_rate, smooth, min_lr } => {
                let exponent =
                    if smooth { step as f64 / decay_steps as f64 } else { (step / decay_steps) as f64 };
                (self.start_lr * decay_rate.powf(exponent)).max(min_lr)
            }
            Schedule::Cosine { stop_lr } => self.cosine(stop_lr, step, total),
            Schedule::Wsd { stop_lr, decay_phase_ratio, decay } => {
                let longest = total.max(1);
                let phase = ((decay_phase_ratio * num_steps as f64) as u64).clamp(1, longest);
                self.stable_then_decay(stop_lr, step, total, phase, decay)
            }
        }
    }

    fn cosine(&self, stop_lr: f64, step: u64, total: u64) -> f64 {
        if total == 0 {
            return self.start_lr;
        }
        if step >= total {
            return stop_lr;
        }
        let floor = stop_lr / self.start_lr;
        let angle = std::f64::consts::PI * (step as f64 / total as f64);
        self.start_lr * (floor + 0.5 * (1.0 - floor) * (1.0 + angle.cos()))
    }

    fn stable_then_decay(&self, stop_lr: f64, step: u64, total: u64, phase: u64, decay: WsdDecay) -> f64 {
        let stable = total.saturating_sub(phase);
        if step >= total {
            return stop_lr;
        }
        if step < stable {
            return self.start_lr;
        }
        let tau = ((step - stable) as f64 / phase as f64).clamp(0.0, 1.0);
        match decay {
            WsdDecay::InverseLinear => 1.0 / (tau / stop_lr + (1.0 - tau) / self.start_lr),
            WsdDecay::Cosine => {
                let wave = 0.5 * (1.0 + (std::f64::consts::PI * tau).cos());
                stop_lr + (self.start_lr - stop_lr) * wave
            }
            WsdDecay::Linear => self.start_lr + (stop_lr - self.start_lr) * tau,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(schedule: Schedule, warmup_steps: u64) -> LearningRateOptions {
        LearningRateOptions {
            start_lr: 1e-3,
            schedule,
            warmup_steps,
            warmup_start_factor: 0.1,
            scale_by_worker: None,
        }
    }

    #[test]
    fn exp_falls_in_stairs_and_stops_at_the_minimum() {
        let lr = options(Schedule::Exp { decay_steps: 10, decay_rate: 0.5, smooth: false, min_lr: 1e-4 }, 0);
        assert_eq!([lr.at(0, 100), lr.at(9, 100), lr.at(10, 100), lr.at(99, 100)], [1e-3, 1e-3, 5e-4, 1e-4]);
    }

    #[test]
    fn smooth_exp_falls_at_every_step() {
        let lr = options(Schedule::Exp { decay_steps: 10, decay_rate: 0.5, smooth: true, min_lr: 0.0 }, 0);
        assert!((lr.at(5, 100) - 1e-3 * 0.5f64.sqrt()).abs() < 1e-18);
    }

    #[test]
    fn warm_up_rises_linearly_and_then_the_schedule_starts() {
        let lr = options(Schedule::Cosine { stop_lr: 1e-5 }, 10);
        assert!((lr.at(0, 110) - 1e-4).abs() < 1e-18);
        assert!((lr.at(5, 110) - 5.5e-4).abs() < 1e-18);
        assert!((lr.at(10, 110) - 1e-3).abs() < 1e-18);
        assert!((lr.at(60, 110) - 5.05e-4).abs() < 1e-17);
        assert_eq!(lr.at(110, 110), 1e-5);
    }

    #[test]
    fn wsd_is_stable_and_decays_in_the_last_phase() {
        for decay in [WsdDecay::InverseLinear, WsdDecay::Cosine, WsdDecay::Linear] {
            let lr = options(Schedule::Wsd { stop_lr: 1e-5, decay_phase_ratio: 0.1, decay }, 0);
            assert_eq!(lr.at(899, 1000), 1e-3);
            assert_eq!(lr.at(900, 1000), 1e-3);
            let middle = lr.at(950, 1000);
            assert!(middle < 1e-3 && middle > 1e-5, "{decay:?}: {middle}");
            assert_eq!(lr.at(1000, 1000), 1e-5);
        }
    }
}
