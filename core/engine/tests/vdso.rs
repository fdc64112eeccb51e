//! The clock that is read without a system call says what the system call says.

use anyring_engine::os::{monotonic_ns, vdso};

#[test]
fn both_clocks_are_one() {
    // Before it was looked for, the system call is made.
    let first = vdso::monotonic_ns();
    vdso::begin();
    for _ in 0..1000 {
        let (before, between, after) = (monotonic_ns(), vdso::monotonic_ns(), monotonic_ns());
        assert!(first <= before && before <= between && between <= after, "{before} {between} {after}");
    }
}
