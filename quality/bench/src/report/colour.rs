//! The colours of the charts. A side has one colour in all of them, and its family shows by the hue: blue is the
//! kernel's io_uring, orange and its neighbours are anyring, green is epoll, grey are plain calls, purple other tools.
//! All of them can be told from a white and from a black ground.

const KERNEL: [&str; 5] = ["#1c7ed6", "#74c0fc", "#4263eb", "#22b8cf", "#91a7ff"];
const ANYRING: [&str; 7] = ["#e8590c", "#fab005", "#c92a2a", "#ffa94d", "#d6336c", "#ffd43b", "#a9713a"];
const EPOLL: [&str; 3] = ["#2f9e44", "#8ce99a", "#74b816"];
const PLAIN: [&str; 7] = ["#495057", "#5c636a", "#6c757d", "#868e96", "#9aa1a8", "#adb5bd", "#c5cbd1"];
const TOOL: [&str; 3] = ["#9c36b5", "#da77f2", "#7950f2"];

/// Each side with its colour.
const SIDES: &[(&str, &str)] = &[
    ("kernel", KERNEL[0]),
    ("kernel, single-shot", KERNEL[0]),
    ("kernel, SEND", KERNEL[0]),
    ("kernel, registered", KERNEL[1]),
    ("kernel, deferred", KERNEL[1]),
    ("kernel, traced", KERNEL[1]),
    ("kernel, SEND_ZC", KERNEL[1]),
    ("kernel, tuned", KERNEL[2]),
    ("kernel, SEND_ZC fixed", KERNEL[2]),
    ("kernel, multishot", KERNEL[3]),
    ("kernel, multishot, direct", KERNEL[4]),
    ("anyring", ANYRING[0]),
    ("anyring, single-shot", ANYRING[0]),
    ("anyring, SEND", ANYRING[0]),
    ("anyring find", ANYRING[0]),
    ("anyring du", ANYRING[0]),
    ("anyring run", ANYRING[0]),
    ("ring", ANYRING[0]),
    ("anyring, registered", ANYRING[1]),
    ("anyring, deferred", ANYRING[1]),
    ("anyring, traced", ANYRING[1]),
    ("anyring, SEND_ZC", ANYRING[1]),
    ("anyring find, user", ANYRING[1]),
    ("anyring du, user", ANYRING[1]),
    ("anyring run, user", ANYRING[1]),
    ("ring, spinning", ANYRING[1]),
    ("anyring, tuned", ANYRING[2]),
    ("anyring, SEND_ZC fixed", ANYRING[2]),
    ("anyring du, kernel", ANYRING[2]),
    ("ring, epoll", ANYRING[2]),
    ("anyring, multishot", ANYRING[3]),
    ("ring, io_uring", ANYRING[3]),
    ("anyring, multishot, direct", ANYRING[4]),
    ("ring, io_uring, spinning", ANYRING[4]),
    ("anyring, unpatched", ANYRING[5]),
    ("ring, AIO", ANYRING[5]),
    ("engine, called", ANYRING[6]),
    ("ring, thread", ANYRING[6]),
    ("epoll", EPOLL[0]),
    ("epoll, no filter", EPOLL[1]),
    ("epoll, level", EPOLL[1]),
    ("getppid", PLAIN[3]),
    ("psync", PLAIN[3]),
    ("libaio", PLAIN[3]),
    ("plain calls", PLAIN[3]),
    ("bare loop", PLAIN[3]),
    ("program alone", PLAIN[3]),
    ("send", PLAIN[3]),
    ("send, no filter", PLAIN[5]),
    ("MSG_ZEROCOPY", PLAIN[0]),
    ("loop, 1 thread", PLAIN[0]),
    ("loop, 2 threads", PLAIN[1]),
    ("loop, 4 threads", PLAIN[2]),
    ("loop, 8 threads", PLAIN[3]),
    ("loop, 16 threads", PLAIN[4]),
    ("loop, 32 threads", PLAIN[5]),
    ("loop, 64 threads", PLAIN[6]),
    ("find", TOOL[0]),
    ("du", TOOL[0]),
    ("fd", TOOL[1]),
    ("bfs", TOOL[2]),
];

/// The colour of a side.
pub fn of(side: &str) -> &'static str {
    SIDES.iter().find(|(name, _)| *name == side).map_or(PLAIN[0], |(_, colour)| colour)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::SIDES;
    use crate::benchmarks;

    #[test]
    fn every_side_has_a_colour_that_no_other_of_its_benchmark_has() {
        for benchmark in benchmarks::all() {
            let colours: Vec<_> = benchmark
                .sides()
                .iter()
                .map(|side| match SIDES.iter().find(|(name, _)| *name == side.name) {
                    Some((_, colour)) => *colour,
                    None => panic!("no colour for `{}`", side.name),
                })
                .collect();
            let different: BTreeSet<_> = colours.iter().collect();
            assert_eq!(different.len(), colours.len(), "{}", benchmark.about().name);
        }
    }

    #[test]
    fn every_colour_is_some_sides() {
        let sides: BTreeSet<_> =
            benchmarks::all().iter().flat_map(|one| one.sides().iter().map(|side| side.name)).collect();
        let unused: Vec<_> = SIDES.iter().filter(|(name, _)| !sides.contains(name)).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }
}
