//! Medians, which are robust on a noisy machine.

use crate::report::Ratio;

/// Returns the median, or 0 if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// Returns the ratio of values that were measured in the same round: drift of the machine from round to round
/// does not affect it.
pub fn paired_ratio(over: impl IntoIterator<Item = f64>, under: impl IntoIterator<Item = f64>) -> Ratio {
    let pairs = over.into_iter().zip(under).filter(|&(_, under)| under > 0.0);
    let ratios: Vec<f64> = pairs.map(|(over, under)| over / under).collect();
    Ratio {
        median: median(ratios.iter().copied()),
        lowest: ratios.iter().copied().reduce(f64::min),
        highest: ratios.iter().copied().reduce(f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::{median, paired_ratio};

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn a_paired_ratio_ignores_drift_between_rounds() {
        let ratio = paired_ratio([2.0, 20.0, 300.0], [1.0, 10.0, 100.0]);
        assert_eq!((ratio.lowest, ratio.median, ratio.highest), (Some(2.0), 2.0, Some(3.0)));
    }
}
