//! The thread that looks at rings between calls.

use core::ffi::c_void;

use anyring_engine::os;
use anyring_engine::os::host;

use crate::RINGS;
use crate::rings::Rings;

/// The period of the thread: the end of a ring that the program has closed is delayed by at most this time.
const PERIOD_NS: u64 = 3_000_000;

/// Starts the thread if it is not running and there is a ring to look at.
pub fn start_thread(rings: &mut Rings) {
    if !rings.is_watched && rings.holds_any() {
        let started = host::get().map(|host| host.spawn(c"anyring-trace", run, core::ptr::null_mut()));
        rings.is_watched = started == Some(Ok(()));
    }
}

extern "C" fn run(_: *mut c_void) {
    loop {
        os::pause(PERIOD_NS);
        let mut rings = RINGS.lock();
        rings.look();
        if !rings.holds_any() {
            rings.is_watched = false;
            return;
        }
    }
}
