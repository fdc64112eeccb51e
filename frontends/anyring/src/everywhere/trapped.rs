//! Traps calls that the program makes by instructions of its own.

use anyring_linked::thread_enters;
use anyring_runtime::log;
use anyring_trap::arch::Context;
use anyring_trap::{Frontend, low, trap};
use std::ops::Range;

/// The front end for the trap. It defers no signals, because signals are blocked inside the engine.
struct Linked;

impl Frontend for Linked {
    fn is_inside(&self, _interrupted: &Context) -> bool {
        false
    }

    fn kept_out(&self, _signal: u64, _interrupted: &mut Context) {}

    fn take_kept_out(&self) -> u64 {
        0
    }

    fn trapped_at(&self, _next: usize) {
        thread_enters();
    }
}

/// Traps the three calls that the program's own `text` makes by instructions, in addition to calls of functions. The user engine must
/// have been started.
pub fn trap_within(text: &Range<usize>) {
    static LINKED: &dyn Frontend = &Linked;
    // `exec` keeps the filter, which would also trap calls of the next program at a fixed address.
    let result = if low::is_low(text.start) {
        Err(trap::Failure::Refused("the program lies at a fixed address", 0))
    } else {
        trap::install_within(text, &LINKED)
    };
    if let Err(why) = result {
        log::write(format_args!(
            "cannot install the trap ({why}): only calls through the C library are answered"
        ));
    }
}
