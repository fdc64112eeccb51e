//! Waiting in `enter`: the caller does queued work, drives the ring, or sleeps while another thread drives.

use linux_raw_sys::io_uring::{IORING_SETUP_IOPOLL, IORING_SETUP_SQPOLL};

use crate::abi::Errno;
use crate::os::{self, EpollEvent, host};
use crate::ring::drive::leave::{leave, pass_role_on};
use crate::ring::drive::names::BATCH;
use crate::ring::drive::reactor;
use crate::ring::{Core, CoreGuard, Ring, lifetime, live};
use crate::wait::Driver;
use crate::wait::limits::Limits;
use crate::wait::token::{Sleep, has_reached};
use crate::work::{self, in_flight};

/// The time between two checks for room, while a caller waits and CQEs are kept. The kernel does not sleep then.
const ROOM_NS: u64 = 1_000_000;

/// The end of a wait for completions.
#[derive(Clone, Copy)]
pub struct Goal {
    /// The number of completions to wait for. Zero for a caller that only looks.
    wanted: u32,
    /// The position of the CQ's tail at which so many were posted, since the wait began or unreaped by then. Another thread may have reaped
    /// them.
    until: u32,
}

impl Goal {
    /// Makes the goal of a wait for `wanted` completions, of a caller that found the CQ's head at `head`.
    pub fn new(head: u32, wanted: u32) -> Goal {
        Goal { wanted, until: head.wrapping_add(wanted) }
    }

    /// Returns the number of completions that are still to be posted.
    fn missing(self, core: &Core) -> u32 {
        if self.is_reached(core) { 0 } else { self.until.wrapping_sub(core.queues.cq.tail()) }
    }

    fn is_reached(self, core: &Core) -> bool {
        core.queues.cq_ready() >= self.wanted || has_reached(core.queues.cq.tail(), self.until)
    }
}

/// True if the waiting thread polls for completions itself (IOPOLL without an SQ thread).
pub fn is_polled_by_caller(core: &Core) -> bool {
    core.is(IORING_SETUP_IOPOLL) && !core.is(IORING_SETUP_SQPOLL)
}

/// Waits until enough completions were posted. The guard is unlocked while the caller sleeps.
///
/// # Errors
/// `ETIME` when the time is over, `EINTR` when a signal came, `EBADF` if the ring was closed.
pub fn wait(guard: &mut CoreGuard<'_>, serial: u64, mut goal: Goal, mut limits: Limits) -> Result<(), Errno> {
    let (mut fired_before, mut tail_before) = (None, None);
    loop {
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        core.fire_timers();
        core.advance_before_work();
        if goal.wanted == 0 {
            core.look_at_in_flight();
        }
        core.flush_overflow();
        if core.queues.cq.take_dropped() {
            return Err(Errno::EBADR);
        }
        // A TIMEOUT that fires ends the wait, however few completions there are. So does the end of the last request that a caller can poll for.
        let fired = core.time.timeouts.fired();
        let polls_nothing = is_polled_by_caller(core) && core.requests.live() == 0;
        let tail = *tail_before.get_or_insert(core.queues.cq.tail());
        if goal.is_reached(core) || *fired_before.get_or_insert(fired) != fired || polls_nothing {
            // Nobody would do this work, which blocks, before the program's next call.
            if !core.work.is_empty() && work::run_by_caller(guard, serial, false) {
                continue;
            }
            return Ok(());
        }
        // Only a caller that needs a notification looks for it: one look then finds the notifications of many sends.
        if core.look_for_prompt_pages() || in_flight::work_while_waiting(guard, serial, &limits) {
            continue;
        }
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        if goal.is_reached(core) {
            return Ok(());
        }
        let timeout_ns = match time_left(&mut limits)? {
            // What has come meanwhile ends the wait, even if another thread has reaped it.
            Time::FirstPartOver if core.queues.cq.tail() != tail => return Err(Errno::ETIME),
            Time::FirstPartOver => {
                goal = Goal::new(core.queues.cq_head(), 1);
                continue;
            }
            Time::Left(ns) => ns,
        };
        debug_assert!(core.work.is_empty(), "no caller sleeps beside work that is queued for it");
        if !core.drive.token.is_free() {
            sleep(guard, serial, goal, timeout_ns, limits.signal_mask)?;
        } else if !core.recheck_if_due() && !core.guess() {
            drive(guard, serial, goal, timeout_ns, limits.signal_mask)?;
        }
    }
}

enum Time {
    /// The first part of the wait is over: from now on one completion is enough.
    FirstPartOver,
    /// Nanoseconds left, `None` without a limit.
    Left(Option<u64>),
}

/// Returns how long to sleep. In the first part of the wait (`enough_ns`) only all wanted completions end the wait, even if the deadline is
/// earlier; without a deadline, the end of this part is the deadline.
fn time_left(limits: &mut Limits) -> Result<Time, Errno> {
    if limits.deadline_ns.is_none() && limits.enough_ns.is_none() {
        return Ok(Time::Left(None));
    }
    let now = os::monotonic_ns();
    if let Some(enough) = limits.enough_ns {
        if now < enough {
            return Ok(Time::Left(Some(enough - now)));
        }
        limits.enough_ns = None;
        limits.deadline_ns.get_or_insert(enough);
        return Ok(Time::FirstPartOver);
    }
    match limits.deadline_ns {
        Some(deadline) if deadline <= now => Err(Errno::ETIME),
        deadline => Ok(Time::Left(deadline.map(|deadline| deadline - now))),
    }
}

/// Takes the driver's role for one sleep.
fn drive(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    goal: Goal,
    timeout_ns: Option<u64>,
    signal_mask: Option<u64>,
) -> Result<(), Errno> {
    debug_assert!(guard.passes_role_on(), "nobody keeps the role who neither drives nor passes it on");
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    if core.drive.token.driver() == Driver::Reactor {
        reactor::release(core);
    }
    reactor::attend_stale(core);
    let epoll = core.epoll()?;
    // Another thread may make room by reaping, without a call.
    let room_ns = (core.queues.cq.kept() > 0).then_some(ROOM_NS);
    let bounds =
        [timeout_ns, core.next_timer_ns(), core.next_recheck_ns(), room_ns, core.shared.next_look_ns()];
    let mut timeout_ns = bounds.into_iter().flatten().min();
    let context = core.transfers_to_await(goal.missing(core));
    if context.is_none() {
        timeout_ns = [timeout_ns, core.aio.lengthen_look_ns()].into_iter().flatten().min();
    }
    core.drive.token.drive(goal.until);
    core.drive.observers.caller_sleeps();
    core.watch_pages();
    let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
    core.shared.sleeps(1, core.queues.cq.tail());
    core.drive.sleepers.falls_asleep(None);
    core.readiness.falls_asleep();
    let (ring, first) = (core.identity.ring, events.as_mut_ptr());
    let ended = || {
        // The kernel may have reported events though the call did not return. An event without a bit ends them.
        // SAFETY: the events live until the call returns; nobody else has them.
        let reported = (0..BATCH).map(|index| unsafe { first.add(index).read_volatile() });
        let mut taken = [EpollEvent { events: 0, data: 0 }; BATCH];
        let reported = reported.take_while(|event| { event.events } != 0);
        let count = taken.iter_mut().zip(reported).map(|(place, event)| *place = event).count();
        ended(ring, serial, None, &taken[..count]);
    };
    // SAFETY: the array has so many events, which nobody else touches during the call.
    let buffer = unsafe { core::slice::from_raw_parts_mut(first, BATCH) };
    let sleep = || match context {
        Some(context) => context.wait(timeout_ns, signal_mask).map(|()| 0),
        None => os::epoll_wait(epoll, buffer, timeout_ns, signal_mask),
    };
    let woken = guard.unlocked(|| host::sleep(sleep, ended));
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.drive.sleepers.note_return(None);
    core.readiness.wakes();
    core.shared.sleeps(-1, core.queues.cq.tail());
    debug_assert!(core.zero_copy.is_all_watched(), "nothing came back unheard");
    core.drive.token.give_up();
    if context.is_some() {
        core.aio.end_wait_for_transfers(woken.map(drop));
    }
    match woken {
        Err(errno) if context.is_some() && errno != Errno::EINTR => Ok(()),
        Ok(count) => {
            core.take_events_of_sleep(&events[..count]);
            Ok(())
        }
        Err(Errno::EBADF | Errno::EINVAL) if core.renews_epoll() => Ok(()),
        Err(errno) => end_early(core, goal, errno),
    }
}

/// Sleeps while another thread drives, until enough is posted or the role is passed to this thread.
fn sleep(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    goal: Goal,
    timeout_ns: Option<u64>,
    signal_mask: Option<u64>,
) -> Result<(), Errno> {
    debug_assert!(guard.passes_role_on(), "nobody keeps the role who neither drives nor passes it on");
    let woken = sleep_as(guard, serial, Sleep::Driver(goal.until), timeout_ns, signal_mask);
    match live(guard, serial) {
        Some(core) => woken.or_else(|errno| end_early(core, goal, errno)),
        None => woken,
    }
}

/// Sleeps beside the driver, until something is posted or work ends. The role is never passed to this thread.
///
/// # Errors
/// `EBADF` if the ring was closed, `EINTR` when a signal came, `EMFILE` if no eventfd to sleep on can be had.
pub fn observe(guard: &mut CoreGuard<'_>, serial: u64, timeout_ns: Option<u64>) -> Result<(), Errno> {
    if let Some(core) = live(guard, serial) {
        leave(core);
        pass_role_on(core);
    }
    sleep_as(guard, serial, Sleep::Observer, timeout_ns, None)
}

fn sleep_as(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    sleep: Sleep,
    timeout_ns: Option<u64>,
    signal_mask: Option<u64>,
) -> Result<(), Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    let place = core.drive.token.sleep(sleep);
    let event = core.drive.sleepers.at(place).inspect_err(|_| core.drive.token.awake(place))?;
    core.rouse_from_transfers();
    core.shared.sleeps(1, core.queues.cq.tail());
    core.drive.sleepers.falls_asleep(Some(place));
    let timeout_ns = [timeout_ns, core.shared.next_look_ns()].into_iter().flatten().min();
    let ring = core.identity.ring;
    let ended = || ended(ring, serial, Some(place), &[]);
    let woken = guard.unlocked(|| host::sleep(|| os::poll_readable(event, timeout_ns, signal_mask), ended));
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.drive.sleepers.note_return(Some(place));
    core.shared.sleeps(-1, core.queues.cq.tail());
    // Under the lock, under which every signal is sent, too: no signal for the next sleeper is lost.
    os::eventfd_drain(event);
    core.drive.token.awake(place);
    woken.map(drop)
}

/// Does what the calling thread would have done after its sleep, if the thread is cancelled in it. The thread slept at `place`, or as the
/// driver, to which epoll reported `events`.
fn ended(ring: &'static Ring, serial: u64, place: Option<usize>, events: &[EpollEvent]) {
    let mut guard = ring.lock();
    let Some(core) = live(&mut guard, serial) else { return };
    core.drive.sleepers.note_return(place);
    core.shared.sleeps(-1, core.queues.cq.tail());
    // No call is in progress that would see what is posted.
    core.drive.observers.posts_later();
    if let Some(place) = place {
        core.drive.sleepers.drain(place);
        core.drive.token.awake(place);
    } else {
        core.drive.token.give_up();
        core.aio.end_wait_for_transfers(Ok(()));
        core.readiness.wakes();
        core.take_events_of_sleep(events);
        if !core.defers() {
            core.advance();
        }
    }
    lifetime::end_call(guard, serial);
}

/// Ends a wait, or a call that cannot wait, by `errno`, unless the completions are there by now.
///
/// # Errors
/// `errno`.
pub fn end_early(core: &mut Core, goal: Goal, errno: Errno) -> Result<(), Errno> {
    core.advance();
    core.flush_overflow();
    if goal.is_reached(core) { Ok(()) } else { Err(errno) }
}

/// Waits until the SQ thread has made room (`IORING_ENTER_SQ_WAIT`).
///
/// # Errors
/// `EBADF` if the ring was closed; `EINTR` when a signal came.
pub fn wait_for_sq_space(guard: &mut CoreGuard<'_>, serial: u64) -> Result<(), Errno> {
    loop {
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        if core.queues.sq_pending() < core.queues.memory.layout().sq_entries {
            return Ok(());
        }
        core.call_sq_thread(true)?;
        // The SQ thread ends the sleep when it has made room. No number of completions does: this one is not reached before.
        let goal = Goal::new(core.queues.cq.tail(), i32::MAX as u32);
        if core.drive.token.is_free() {
            drive(guard, serial, goal, None, None)?;
        } else {
            sleep(guard, serial, goal, None, None)?;
        }
    }
}
