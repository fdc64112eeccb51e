//! The verdict on a goal: the worst measured figure, beside the bound.

use super::{Outcome, Ratio, SideResult};

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
}

/// A figure to which a goal applies.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The value, a median over the rounds.
    pub value: f64,
    /// The lowest and the highest value of a round, if they are known.
    pub spread: Option<(f64, f64)>,
    /// The case and the side.
    pub place: String,
}

impl Figure {
    /// Creates a figure without a spread.
    pub fn of(value: f64, place: impl Into<String>) -> Self {
        Self { value, spread: None, place: place.into() }
    }

    /// Creates a figure from a ratio to the baseline.
    fn ratio(ratio: Ratio, case: &str, side: &str) -> Self {
        Self { value: ratio.median, spread: ratio.spread(), place: format!("{case}: {side}") }
    }

    /// Rounds the value to two digits, as the tables show it. The bound applies to the rounded value.
    fn rounded(&self) -> f64 {
        (self.value * 100.0).round() / 100.0
    }
}

/// A requirement of a goal, and its result.
#[derive(Clone, Debug)]
pub struct Check {
    /// The requirement, without the bound.
    what: String,
    bound: Bound,
    unit: &'static str,
    /// The figure farthest on the wrong side, if any was measured.
    worst: Option<Figure>,
}

impl Check {
    /// Creates the requirement that `what` keeps `bound` in all of `figures`.
    pub fn new(what: &str, bound: Bound, figures: impl IntoIterator<Item = Figure>) -> Self {
        let worse = |a: &Figure, b: &Figure| match bound {
            Bound::AtLeast(_) => a.value.total_cmp(&b.value),
            Bound::AtMost(_) => b.value.total_cmp(&a.value),
        };
        Self { what: what.to_owned(), bound, unit: "", worst: figures.into_iter().min_by(worse) }
    }

    /// Sets the unit; without it, the figures are ratios.
    pub fn in_unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// Returns the requirement with its bound.
    pub fn goal(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("{}: at least {}", self.what, self.figure(bound)),
            Bound::AtMost(bound) => format!("{}: at most {}", self.what, self.figure(bound)),
        }
    }

    /// Returns the worst measured figure, with its case and side.
    pub fn result(&self) -> String {
        self.worst
            .as_ref()
            .map_or_else(|| "-".to_owned(), |worst| format!("{} ({})", self.figure(worst.value), worst.place))
    }

    /// Returns whether the bound is met, or by how much it is missed.
    pub fn verdict(&self) -> String {
        let Some(worst) = &self.worst else { return "not measured".to_owned() };
        let value = worst.rounded();
        let (met, by, spread_reaches) = match self.bound {
            Bound::AtLeast(bound) => {
                (value >= bound, 1.0 - value / bound, worst.spread.is_some_and(|(_, high)| high >= bound))
            }
            Bound::AtMost(bound) => {
                (value <= bound, value / bound - 1.0, worst.spread.is_some_and(|(low, _)| low <= bound))
            }
        };
        match (met, spread_reaches) {
            (true, _) => "met".to_owned(),
            (false, true) => format!("**missed by {:.0}%**, within the spread", by * 100.0),
            (false, false) => format!("**missed by {:.0}%**", by * 100.0),
        }
    }

    fn figure(&self, value: f64) -> String {
        if self.unit.is_empty() { format!("{value:.2}") } else { format!("{value:.0} {}", self.unit) }
    }
}

/// Returns the speeds, over the baseline, of all sides that `wanted` selects by case and side.
pub fn speeds(outcome: &Outcome, wanted: impl Fn(&str, &str) -> bool) -> Vec<Figure> {
    ratios(outcome, wanted, |side| side.speed)
}

/// Returns the CPU times, over the baseline, of all sides that `wanted` selects by case and side.
pub fn cpu(outcome: &Outcome, wanted: impl Fn(&str, &str) -> bool) -> Vec<Figure> {
    ratios(outcome, wanted, |side| side.cpu)
}

fn ratios(
    outcome: &Outcome,
    wanted: impl Fn(&str, &str) -> bool,
    of: fn(&SideResult) -> Option<Ratio>,
) -> Vec<Figure> {
    let mut figures = Vec::new();
    for case in &outcome.cases {
        for side in case.sides.iter().filter(|side| wanted(&case.name, &side.side)) {
            figures.extend(of(side).map(|ratio| Figure::ratio(ratio, &case.name, &side.side)));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::{Bound, Check, Figure};

    fn figures() -> [Figure; 2] {
        let spread = Figure { value: 0.9, spread: Some((0.8, 1.02)), place: "b".into() };
        [Figure::of(1.3, "a"), spread]
    }

    #[test]
    fn the_worst_figure_decides() {
        let check = Check::new("speed", Bound::AtLeast(1.0), figures());
        assert_eq!(check.goal(), "speed: at least 1.00");
        assert_eq!(check.result(), "0.90 (b)");
        assert_eq!(check.verdict(), "**missed by 10%**, within the spread");
        let check = Check::new("CPU", Bound::AtMost(1.2), figures());
        assert_eq!((check.result(), check.verdict()), ("1.30 (a)".into(), "**missed by 8%**".into()));
        assert_eq!(Check::new("CPU", Bound::AtMost(1.3), figures()).verdict(), "met");
    }

    #[test]
    fn figures_are_compared_as_they_are_shown() {
        assert_eq!(Check::new("speed", Bound::AtLeast(1.0), [Figure::of(0.996, "a")]).verdict(), "met");
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        assert_eq!(Check::new("speed", Bound::AtLeast(1.0), []).verdict(), "not measured");
    }
}
