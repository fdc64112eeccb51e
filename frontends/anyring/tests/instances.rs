//! Limited resources of a user that a ring could take. A separate program, because rings of other tests take some.

mod common;

use anyring::Ring;
use common::*;

/// The crate notices closes of its rings without inotify.
#[both]
fn no_inotify_instance_is_taken(_ring: Ring) {
    for one in std::fs::read_dir("/proc/self/fd").unwrap() {
        let target = std::fs::read_link(one.unwrap().path());
        assert!(!target.is_ok_and(|target| target.ends_with("anon_inode:inotify")));
    }
}
