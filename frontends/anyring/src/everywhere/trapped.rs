//! The calls that the program makes by instructions: they trap.

use anyring_linked::thread_enters;
use anyring_runtime::log;
use anyring_trap::arch::Context;
use anyring_trap::{Frontend, low, trap};
use std::ops::Range;

/// The front end that the trap asks: no signal is kept out of the engine here, signals are blocked.
struct Linked;

impl Frontend for Linked {
    fn is_inside(&self) -> bool {
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

/// Makes the three calls trap, too, that the program's own `text` makes by instructions. Anyring's engine must be in
/// place.
pub fn trap_within(text: &Range<usize>) {
    static LINKED: &dyn Frontend = &Linked;
    // Programs at a fixed address would have one another's text.
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
