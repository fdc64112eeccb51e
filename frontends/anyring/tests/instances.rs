//! Resources that a ring takes and that a user has few of. A program of its own: other tests' rings take some.

mod common;

use anyring::Ring;
use common::*;

/// The crate sees the ends of its rings without inotify.
#[both]
fn no_inotify_instance_is_taken(_ring: Ring) {
    for one in std::fs::read_dir("/proc/self/fd").unwrap() {
        let target = std::fs::read_link(one.unwrap().path());
        assert!(!target.is_ok_and(|target| target.ends_with("anon_inode:inotify")));
    }
}
