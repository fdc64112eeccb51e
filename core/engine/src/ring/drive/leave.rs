//! Whoever went on with requests leaves the ring, and passes the role of its driver on.

use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::wait::Driver;

/// Whoever went on with requests goes away: what is queued is for workers, and what was posted is told.
#[inline]
pub fn leave(core: &mut Core) {
    if !core.work.is_empty() {
        core.hand_over();
    }
    core.leave_in_flight();
    core.rouse_from_transfers();
    core.notify();
    core.mark_task_work();
}

/// Leaves the ring to a thread that drives it from now on, or looks at it by and by, where that is needed.
#[inline]
pub fn pass_role_on(core: &mut Core) {
    core.put_right();
    match core.drive.token.driver() {
        Driver::Nobody if !core.pass_on() => {
            if core.needs_driver() {
                reactor::attend(core);
            } else if core.aio.is_idle() && !core.work.is_under_way() {
                // Somebody has to end the context, with which the process would be long in ending.
                reactor::attend_stale(core);
            }
        }
        // Whoever sleeps for the ring does so since before there was something that needs ticks, perhaps.
        Driver::Reactor | Driver::Caller => reactor::attend_stale(core),
        _ => {}
    }
}

/// A call ends, or another thread's step: no call waits for what is posted from now on. The program takes completions that the ring's
/// descriptor goes on to show, so somebody has to look whether they are gone.
#[inline]
pub fn end_call(core: &mut Core) {
    leave(core);
    pass_role_on(core);
    core.drive.observers.posts_later();
    if core.drive.observers.may_be_stale() {
        reactor::attend_stale(core);
    }
}
