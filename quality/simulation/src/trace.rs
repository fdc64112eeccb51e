//! The report of what happens in a schedule, line by line, for whoever looks for the cause of a fault.

use std::cell::Cell;

use crate::world::world;

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether there is to be such a report.
pub fn set(tells: bool) {
    TELLS.set(tells);
}

/// Tells of something that the running thread did.
pub fn tell(what: impl FnOnce() -> String) {
    if TELLS.get() {
        let (now, thread) = world(|world| (world.now_ns(), world.current()));
        eprintln!("{now:>12} {thread:>2}: {}", what());
    }
}
