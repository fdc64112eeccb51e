//! Functions for a simulation: a report of the engine's state, and the engine's end, after which the next
//! schedule finds the engine as in a new process.

use alloc::string::String;
use core::fmt::Write;

use crate::assets::unseen;
use crate::calls::fork;
use crate::feature::futex::waits;
use crate::os;
use crate::process::{identity, threads};
use crate::ring::drive::reactor;
use crate::ring::{Core, lifetime, registry};

/// Returns the number of rings that have not ended.
pub fn rings() -> usize {
    registry::live().len()
}

/// Initializes state that is initialized once per process.
pub fn prepare() {
    fork::notice();
    registry::prepare();
}

/// Ends rings without references, as every call of `setup` does.
pub fn collect() {
    lifetime::collect_all();
}

/// Returns the number of the engine's threads without the reactor.
pub fn workers() -> usize {
    // The reactor counts as a running thread from a little before it is registered until a little after it is not.
    threads::count().saturating_sub(usize::from(reactor::is_running()))
        // A dismissed futex thread may have left the count of threads, but not yet that of leaving ones.
        + usize::from(!waits::are_dismissed())
}

/// Ends the reactor, and frees what is kept for the next ring. No ring and no worker may be left.
pub fn end() {
    reactor::retire();
    assert!(threads::are_none(), "one that is left would be the next schedule's");
    fork::forked();
}

/// Resets all that is remembered of the system, descriptors and rings, so that the next schedule does not depend on earlier ones
/// (`--compare`). Call it between two schedules.
pub fn forget() {
    identity::reset();
    registry::reset();
    os::own::reset();
    unseen::forget();
    os::forget_system();
}

/// Reports the state of every ring. No other thread may run meanwhile.
pub fn state() -> String {
    let mut text = String::new();
    for ring in registry::places() {
        // SAFETY: no other thread runs.
        match unsafe { ring.peek() } {
            Some(core) => describe(core, &mut text),
            None => continue,
        }
    }
    text
}

fn describe(core: &Core, text: &mut String) {
    let layout = core.queues().memory.layout();
    let _ = writeln!(
        text,
        "  ring {}: flags {:#x}, CQ {} of {} with {} kept, driver {:?} with {} asleep, inside {}, attended {}{}",
        core.serial(),
        core.identity().setup_flags,
        core.queues().cq_ready(),
        layout.cq_entries,
        core.queues().cq.kept(),
        core.drive().token.driver(),
        core.drive().token.asleep(),
        core.life().inside(),
        core.drive().attendance.is_listed(),
        if core.life().is_closing() { ", closing" } else { "" },
    );
    let _ = writeln!(
        text,
        "    {} waiting, {} queued, {} worked on, {} finished, {} messages, ready {}",
        core.readiness().waiting(),
        core.work().queued().len(),
        core.work().out(),
        core.work().finished(),
        core.queues().cq.messages(),
        !core.order().ready.is_empty(),
    );
    for id in core.requests().ids() {
        let request = &core[id];
        let _ = writeln!(
            text,
            "    request {:#x}: {} on {} ({:?}), {:?}",
            request.sqe.user_data, request.op.name, request.sqe.fd, request.file, request.phase
        );
    }
}
