//! `--early-stop "E_RMSE:10000,F_RMSE:10000"`: no improvement over so many steps ends training.

/// The metrics that are watched. All of them must have stood still for long enough.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EarlyStop {
    watched: Vec<Watched>,
}

#[derive(Debug, Clone, PartialEq)]
struct Watched {
    metric: String,
    steps: u64,
    /// The lowest value so far, and when it was seen.
    best: Option<(f64, u64)>,
}

impl EarlyStop {
    /// Watches metrics, each for its number of steps.
    pub fn new(list: &[(String, u64)]) -> Self {
        let watched = |(metric, steps): &(String, u64)| {
            let metric = metric.trim_start_matches("METRICS/").to_string();
            Watched { metric, steps: *steps, best: None }
        };
        EarlyStop { watched: list.iter().map(watched).collect() }
    }

    /// Takes the errors of an evaluation into account. True: none of the watched has improved for long enough.
    pub fn enough(&mut self, step: u64, errors: &[(&str, f64)]) -> bool {
        for watched in &mut self.watched {
            let Some((_, value)) = errors.iter().find(|(name, _)| *name == watched.metric) else { continue };
            if watched.best.is_none_or(|(best, _)| *value < best) {
                watched.best = Some((*value, step));
            }
        }
        let stood_still = |w: &Watched| w.best.is_some_and(|(_, at)| step - at >= w.steps);
        !self.watched.is_empty() && self.watched.iter().all(stood_still)
    }

    /// Metrics that are watched, for a check against those that exist.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.watched.iter().map(|w| w.metric.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_watched_errors_must_stand_still_for_long_enough() {
        let mut stop = EarlyStop::new(&[("METRICS/E_RMSE".into(), 20), ("F_RMSE".into(), 10)]);
        assert!(!stop.enough(10, &[("E_RMSE", 1.0), ("F_RMSE", 2.0)]));
        assert!(!stop.enough(20, &[("E_RMSE", 0.5), ("F_RMSE", 2.5)]));
        assert!(!stop.enough(30, &[("E_RMSE", 0.6), ("F_RMSE", 2.5)]));
        assert!(stop.enough(40, &[("E_RMSE", 0.7), ("F_RMSE", 2.0)]));
        assert!(!EarlyStop::default().enough(1_000_000, &[("E_RMSE", 1.0)]));
    }
}
