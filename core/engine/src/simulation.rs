//! Functions for a simulation: the engine's state in words, and its end, after which the next schedule finds
//! the engine as a new process does.

use alloc::string::String;
use core::fmt::Write;

use crate::calls::fork;
use crate::feature::futex::waits;
use crate::os;
use crate::process::{identity, threads};
use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::ring::{lifetime, registry};

/// Rings that have not ended.
pub fn rings() -> usize {
    registry::live().len()
}

/// Makes what is made once in a process.
pub fn prepare() {
    fork::notice();
    registry::prepare();
}

/// Ends rings that nothing refers to any more, as every call of `setup` does.
pub fn collect() {
    lifetime::collect_all();
}

/// Threads of the engine, the reactor left out.
pub fn workers() -> usize {
    // The reactor counts as running from a little before it is known until a little after it is not.
    threads::count().saturating_sub(usize::from(reactor::is_running()))
        // One that is about to be gone has said so to the others, and not here yet.
        + usize::from(!waits::are_dismissed())
}

/// Ends the reactor, and lets go of what is kept for the next ring. There must be no ring left, and no worker.
pub fn end() {
    reactor::retire();
    assert!(threads::are_none(), "one that is left would be the next schedule's");
    fork::forked();
}

/// Forgets what is remembered of the last schedule's system, descriptors and rings: what a schedule comes to does not depend on those
/// before it (`--compare`). To be called between two of them.
pub fn forget() {
    identity::reset();
    registry::reset();
    os::own::reset();
    os::forget_system();
}

/// A report of the state of every ring. Nothing else may run meanwhile.
pub fn state() -> String {
    let mut text = String::new();
    for ring in registry::places() {
        // SAFETY: nothing else runs.
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
        core.setup_flags(),
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
