//! The colours of the charts. The hue shows a side's family: blue is the kernel's io_uring, orange and its neighbours are anyring,
//! green is epoll, purple other tools, grey are plain calls. All colours are visible on white and on black.

/// Prefixes of the names of a family's sides, and the family's colours.
const FAMILIES: [(&[&str], &[&str]); 5] = [
    (&["kernel"], &["#1c7ed6", "#74c0fc", "#4263eb", "#22b8cf", "#91a7ff"]),
    (
        &["anyring", "ring", "engine"],
        &["#e8590c", "#fab005", "#c92a2a", "#ffa94d", "#d6336c", "#ffd43b", "#a9713a"],
    ),
    (&["epoll"], &["#2f9e44", "#8ce99a", "#74b816"]),
    (&["find", "du", "fd", "bfs"], &["#9c36b5", "#da77f2", "#7950f2"]),
    (&[""], &["#868e96", "#495057", "#adb5bd", "#5c636a", "#9aa1a8", "#6c757d", "#c5cbd1"]),
];

/// Returns the colour of a side among those of its benchmark: the next one of its family.
pub fn of(side: &str, sides: &[&str]) -> &'static str {
    let family = |name: &str| {
        let named = |(names, _): &(&[&str], _)| names.iter().any(|start| name.starts_with(start));
        FAMILIES.iter().position(named).expect("every name begins with nothing")
    };
    let own = family(side);
    let before = sides.iter().take_while(|&&other| other != side).filter(|&other| family(other) == own);
    FAMILIES[own].1[before.count() % FAMILIES[own].1.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::benchmarks;

    #[test]
    fn every_side_has_a_colour_that_no_other_of_its_benchmark_has() {
        for benchmark in benchmarks::all() {
            let sides: Vec<_> = benchmark.sides().iter().map(|side| side.name).collect();
            let colours: BTreeSet<_> = sides.iter().map(|side| super::of(side, &sides)).collect();
            assert_eq!(colours.len(), sides.len(), "{}", benchmark.about().name);
        }
    }
}
