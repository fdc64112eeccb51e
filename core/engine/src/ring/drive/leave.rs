//! The end of a thread's steps in a ring: queued work and the driver's role are passed on.

use linux_raw_sys::io_uring::IORING_SETUP_TASKRUN_FLAG;

use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::wait::Driver;

/// Ends a thread's steps in a ring: queued work is handed to workers, and posted CQEs are reported to sleepers and observers.
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

/// Passes the driver's role to a sleeper. Without one, lists the ring with the reactor, if the ring needs a driver or ticks.
#[inline]
pub fn pass_role_on(core: &mut Core) {
    core.put_right();
    match core.drive.token.driver() {
        Driver::Nobody if !core.drive.pass_on() => {
            if core.needs_driver() {
                reactor::attend(core);
            } else if core.aio.is_idle() && !core.work.is_under_way() {
                // A tick has to end the AIO context, with which the process would take long to end.
                reactor::attend_stale(core);
            }
        }
        // The driver may have fallen asleep before there was anything that needs ticks.
        Driver::Reactor | Driver::Caller => reactor::attend_stale(core),
        _ => {}
    }
}

/// True if [`end_call`] has nobody to tell of anything, and nothing to pass on.
#[inline(always)]
pub fn owes_nothing(core: &Core) -> bool {
    !core.needs_driver()
        && !core.aio.is_idle()
        && core.drive.token.is_unused()
        && !core.drive.observers.are_any()
        && !core.shared.has_page()
        && !core.is(IORING_SETUP_TASKRUN_FLAG)
}

/// Ends a call that [owes nothing](owes_nothing).
#[inline(always)]
pub fn end_quietly(core: &mut Core) {
    core.resources.files.settle();
    core.count_news();
    core.drive.observers.posts_later();
}

/// Ends a call, or another thread's step: no call waits for what is posted from now on. The stand-in in place of the ring's descriptor may
/// show completions after the program has taken them, so the reactor's ticks have to check.
#[inline]
pub fn end_call(core: &mut Core) {
    leave(core);
    pass_role_on(core);
    core.drive.observers.posts_later();
    if core.drive.observers.may_be_stale() {
        reactor::attend_stale(core);
    }
}
