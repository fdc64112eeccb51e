//! The report of a schedule, line by line, for those who look for the cause of a fault.

use std::cell::Cell;

use crate::world::world;

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// Switches the report on or off.
pub fn set(tells: bool) {
    TELLS.set(tells);
}

/// Reports an action of the running thread.
pub fn tell(what: impl FnOnce() -> String) {
    if TELLS.get() {
        let (now, thread) = world(|world| (world.now_ns(), world.current()));
        eprintln!("{now:>12} {thread:>2}: {}", what());
    }
}
