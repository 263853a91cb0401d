//! Axes: from a value to a place between 0 and 1, and where ticks stand.

/// A linear or logarithmic axis that covers its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    /// Covers all finite values, with a margin. A logarithmic one leaves out what is not positive; None where nothing is left.
    pub fn covering(values: impl Iterator<Item = f64>, is_log: bool) -> Option<Self> {
        let kept = values.filter(|x| x.is_finite() && (!is_log || *x > 0.0));
        let (mut low, mut high) = kept.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
        if low > high {
            return None;
        }
        if is_log {
            (low, high) = (low.log10(), high.log10());
        }
        // One value, or values that differ by rounding alone.
        let least = if is_log { 0.2 } else { 1e-9 * low.abs().max(high.abs()).max(1e-300) };
        if high - low < least {
            let half = if is_log { 0.5 } else { (0.1 * low.abs()).max(1e-12) };
            (low, high) = (low - half, high + half);
        }
        let margin = 0.04 * (high - low);
        Some(Scale { low: low - margin, high: high + margin, is_log })
    }

    /// From zero, for counts.
    pub fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let high = values.fold(0.0, f64::max);
        Scale { low: 0.0, high: if high > 0.0 { 1.06 * high } else { 1.0 }, is_log: false }
    }

    /// Without a margin.
    pub fn between(low: f64, high: f64) -> Self {
        Scale { low, high, is_log: false }
    }

    /// 0 at the low end, 1 at the high one; None for what the axis cannot show.
    pub fn place(&self, x: f64) -> Option<f64> {
        let x = if self.is_log { if x > 0.0 { x.log10() } else { f64::NAN } } else { x };
        x.is_finite().then(|| (x - self.low) / (self.high - self.low))
    }

    /// The ends of a linear axis.
    pub fn ends(&self) -> [f64; 2] {
        [self.low, self.high]
    }

    /// Places and labels, about `n` of them.
    pub fn ticks(&self, n: usize) -> Vec<(f64, String)> {
        let ticks = if self.is_log { self.log_ticks(n) } else { self.linear_ticks(n) };
        let at = |(x, label)| Some((self.place(x)?, label));
        ticks.into_iter().filter_map(at).filter(|(place, _)| (-1e-9..=1.0 + 1e-9).contains(place)).collect()
    }

    fn linear_ticks(&self, n: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / n.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        let largest = self.low.abs().max(self.high.abs());
        (first..=last).map(|k| (k as f64 * step, linear_label(k as f64 * step, step, largest))).collect()
    }

    /// Decades, thinned out where there are many; with 2 and 5 where there are few.
    fn log_ticks(&self, n: usize) -> Vec<(f64, String)> {
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        let decades = self.high - self.low;
        let every = ((decades / n.max(1) as f64).ceil() as i32).max(1);
        let within: &[u32] = if decades < 1.0 {
            &[1, 2, 3, 5, 7]
        } else if decades < 2.0 {
            &[1, 2, 5]
        } else {
            &[1]
        };
        let mut ticks = Vec::new();
        for power in (first..=last).filter(|p| p.rem_euclid(every) == 0) {
            for m in within {
                let x = f64::from(*m) * 10f64.powi(power);
                let label = match (m, power) {
                    (1, _) => ten_to(power),
                    (_, 0 | 1) => x.to_string(),
                    _ => format!("{m}×{}", ten_to(power)),
                };
                ticks.push((x, label));
            }
        }
        ticks
    }
}

/// As many digits as the step needs; with a power of ten where numbers are very large or small.
fn linear_label(x: f64, step: f64, largest: f64) -> String {
    if x.abs() < 1e-9 * step {
        return "0".into();
    }
    if !(1e-3..1e5).contains(&largest) {
        let power = largest.log10().floor() as i32;
        let digits = (power - step.log10().floor() as i32).clamp(0, 9) as usize;
        return format!("{:.digits$}×{}", x / 10f64.powi(power), ten_to(power)).replace('-', "−");
    }
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{x:.digits$}").replace('-', "−")
}

/// `10⁻³`.
pub fn ten_to(power: i32) -> String {
    let raised = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32(0x2070 + digit.to_digit(10).unwrap_or(0)).unwrap_or(digit),
    };
    match power {
        0 => "1".into(),
        1 => "10".into(),
        _ => format!("10{}", power.to_string().chars().map(raised).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, n: usize) -> Vec<String> {
        scale.ticks(n).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(labels(Scale::between(-0.13, 0.52), 5), ["0", "0.2", "0.4"]);
        assert_eq!(labels(Scale::between(0.0, 1_000_000.0), 4), ["0", "0.5×10⁶", "1.0×10⁶"]);
        let errors = Scale::covering([2e-4, 0.5].into_iter(), true).unwrap();
        assert_eq!(labels(errors, 5), ["10⁻³", "10⁻²", "10⁻¹"]);
        let few = Scale::covering([4.2, 33.0].into_iter(), true).unwrap();
        assert_eq!(labels(few, 5), ["5", "7", "10", "20", "30"]);
        for (place, _) in errors.ticks(5) {
            assert!((0.0..=1.0).contains(&place));
        }
    }

    #[test]
    fn one_value_has_an_axis_and_none_has_not() {
        let one = Scale::covering([3.0, f64::NAN].into_iter(), false).unwrap();
        assert!((one.place(3.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(Scale::covering([f64::NAN].into_iter(), false), None);
        assert_eq!(Scale::covering([-1.0, 0.0].into_iter(), true), None);
        assert_eq!(Scale::covering([1.0, 10.0].into_iter(), true).unwrap().place(-1.0), None);
    }
}
