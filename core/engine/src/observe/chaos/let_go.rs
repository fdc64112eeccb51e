//! Lets go of requests that chaos holds back, where nobody would make their first attempts later.

use crate::observe::chaos::plan;
use crate::os;
use crate::ring::{CoreGuard, live, registry};
use crate::work::run_by_caller;

/// How often, and after how long each time, a process that ends tries to lock a ring.
const MOST_TRIES: u32 = 20;
const TRY_NS: u64 = 1_000_000;

/// Makes the first attempts of all requests that are held back, in all rings: the process is about to end, or to execute a program.
pub fn in_all_rings() {
    if plan().is_some() {
        registry::for_each_live(|ring| {
            // A thread that chaos pauses may have the lock.
            let guard = (0..MOST_TRIES).find_map(|_| {
                let guard = ring.try_lock();
                if guard.is_none() {
                    os::pause(TRY_NS);
                }
                guard
            });
            let Some(mut guard) = guard else { return };
            if let Some(serial) = guard.as_ref().map(|core| core.serial()) {
                in_ring(&mut guard, serial);
            }
        });
    }
}

/// Makes the first attempts of all requests of a ring that are held back: the kernel made them when they were submitted.
pub fn in_ring(guard: &mut CoreGuard<'_>, serial: u64) {
    if let Some(core) = live(guard, serial).filter(|core| !core.instruments().chaos.held.is_empty()) {
        core.end_holds();
        run_by_caller(guard, serial, true);
        if let Some(core) = live(guard, serial) {
            // A sync that was left to its caller goes to a worker, because this thread does not wait.
            core.leave_in_flight();
        }
    }
}
