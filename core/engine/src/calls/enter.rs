//! `io_uring_enter2(2)`.

use linux_raw_sys::io_uring::*;

use crate::abi::Errno;
use crate::calls::flag::Support::Partly;
use crate::calls::flag::{self, Flag};
use crate::feature::ring_fds;
use crate::os::host::{self, Caller};
use crate::os::{self, Fd, Timespec, user};
use crate::request::version;
use crate::ring::drive::caller::{self, Goal, is_polled_by_caller};
use crate::ring::drive::reactor;
use crate::ring::drive::timers::now_ns;
use crate::ring::{Core, CoreGuard, lifetime, live, lookup, registry};
use crate::wait::limits::Limits;
use crate::work;

/// The flags of `enter`, and whether the engine has them.
pub static FLAG_TABLE: [Flag; 8] = flag::table![
    IORING_ENTER_GETEVENTS,
    IORING_ENTER_SQ_WAKEUP,
    IORING_ENTER_SQ_WAIT,
    IORING_ENTER_EXT_ARG,
    IORING_ENTER_REGISTERED_RING,
    IORING_ENTER_ABS_TIMER,
    IORING_ENTER_EXT_ARG_REG,
    IORING_ENTER_NO_IOWAIT =
        Partly("accepted, and without effect: no wait of the user engine counts as waiting for I/O"),
];

/// `IORING_ENTER_*` that the engine has.
pub const FLAGS: u32 = flag::mask(&FLAG_TABLE);

/// The number of consecutive calls that may find enough completions without asking epoll.
const UNASKED: u8 = 8;
/// [`UNASKED`] on a ring where only notifications of zero-copy sends are waited for.
const UNASKED_FOR_PAGES: u8 = 64;

/// SIGSYS in a signal mask. The front end's trap needs the signal, so it is never blocked.
const SIGSYS_BIT: u64 = 1 << 30;

/// The arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct Enter {
    /// The maximum number of SQEs to submit.
    pub to_submit: u32,
    /// The number of CQEs to wait for.
    pub min_complete: u32,
    /// `IORING_ENTER_*`.
    pub flags: u32,
    /// The address of a signal mask or of an `io_uring_getevents_arg`.
    pub argument: u64,
    /// The size of the argument in bytes.
    pub argument_size: usize,
}

/// Submits, then waits.
// Inlined into its one caller for calls that are not traced.
#[inline(always)]
pub fn enter(fd: Fd, call: &Enter, caller: &Caller) -> Result<usize, Errno> {
    enter_changed(fd, call, caller, |_| Ok(*call))
}

/// Does [`enter`] with the arguments that `change` returns. `change` runs under the ring's lock, and sees what the submission finds.
///
/// # Errors
/// Errors of `change`, with nothing done.
#[inline(always)]
pub fn enter_changed(
    fd: Fd,
    call: &Enter,
    caller: &Caller,
    change: impl FnOnce(&mut Core) -> Result<Enter, Errno>,
) -> Result<usize, Errno> {
    if call.flags & !version::enter_flags() != 0 {
        return Err(Errno::EINVAL);
    }
    let number = if call.flags & IORING_ENTER_REGISTERED_RING != 0 { ring_fds::resolve(fd)? } else { fd };
    let Some(found) = lookup::find(number) else { return Err(registry::no_ring(number)) };
    let mut guard = found.ring.lock_to_drive();
    if !found.stands() {
        // The descriptor was closed meanwhile, and its number may belong to another ring by now.
        drop(guard);
        return enter_again(fd, call, caller, change);
    }
    let Some(core) = guard.as_mut() else { return Err(Errno::EBADF) };
    if core.is(IORING_SETUP_R_DISABLED) {
        return Err(Errno::EBADFD);
    }
    if core.work().is_lent() && call.to_submit > 0 {
        await_return(&mut guard)?;
    }
    let Some(core) = guard.as_mut() else { return Err(Errno::EBADF) };
    let call = &change(core)?;
    core.life_mut().call();
    if core.shared().has_page() {
        core.begin_call_beside_others();
    }
    core.drive_mut()
        .observers
        .posts_in_submission(call.flags & IORING_ENTER_GETEVENTS != 0 && call.min_complete > 0);
    core.readiness_mut().begin_call(call.flags & IORING_ENTER_GETEVENTS == 0);
    let taken = if core.is(IORING_SETUP_SQPOLL) { 0 } else { take(core, call)? };
    if core.looks_when_it_leaves(call, taken) {
        core.harvest_now();
    }
    if core.finish_without_wait(call, taken) {
        core.keep_submitter();
        guard.end_call();
        return Ok(taken as usize);
    }
    let may_be_another = taken == 0
        && call.to_submit > 0
        && call.flags & IORING_ENTER_REGISTERED_RING == 0
        && !core.is(IORING_SETUP_SQPOLL);
    if may_be_another && !found.is_file(number) {
        return leave_for_another_ring(guard, fd, call, caller);
    }
    stay(guard, call, caller, taken)
}

/// Repeats the call. The ring's descriptor was closed without the engine's knowledge; its number may by now be a duplicate of another
/// ring's descriptor, made without the engine's knowledge, too.
#[cold]
fn leave_for_another_ring(
    guard: CoreGuard<'_>,
    fd: Fd,
    call: &Enter,
    caller: &Caller,
) -> Result<usize, Errno> {
    drop(guard);
    enter(fd, call, caller)
}

#[cold]
fn enter_again(
    fd: Fd,
    call: &Enter,
    caller: &Caller,
    change: impl FnOnce(&mut Core) -> Result<Enter, Errno>,
) -> Result<usize, Errno> {
    enter_changed(fd, call, caller, change)
}

/// Waits until lent work (`core/wait/src/loan.rs`) is back: the kernel serializes the submissions to a ring as well.
#[cold]
fn await_return(guard: &mut CoreGuard<'_>) -> Result<(), Errno> {
    let Some(serial) = guard.as_ref().map(|core| core.serial()) else { return Err(Errno::EBADF) };
    work::await_return(guard, serial);
    live(guard, serial).map(drop).ok_or(Errno::EBADF)
}

/// Finishes a call that has submitted `taken` SQEs. A separate function, because the short way needs fewer registers.
#[inline(never)]
fn stay(mut guard: CoreGuard<'_>, call: &Enter, caller: &Caller, taken: u32) -> Result<usize, Errno> {
    let Some(core) = guard.as_mut() else { return Err(Errno::EBADF) };
    let (serial, polled) = (core.serial(), core.is(IORING_SETUP_SQPOLL));
    core.life_mut().come_in();
    let result = go_on(&mut guard, serial, call, caller, (!polled).then_some(taken));
    lifetime::end_call(guard, serial);
    result
}

/// Submits up to `to_submit` SQEs and issues their requests; returns the number of SQEs.
#[inline(always)]
fn take(core: &mut Core, call: &Enter) -> Result<u32, Errno> {
    if call.to_submit == 0 {
        return Ok(0);
    }
    let thread = host::thread_identity();
    core.admit(thread)?;
    core.requests_mut().set_thread(thread);
    core.time_mut().timeouts.set_unwaited(call.min_complete == 0);
    let taken = core.submit(call.to_submit, true);
    core.time_mut().timeouts.set_unwaited(false);
    core.requests_mut().set_thread(0);
    taken
}

impl Core {
    /// True if a call ends with its submission: enough completions are there, and the call need not look for anything else.
    #[inline(always)]
    fn finish_without_wait(&mut self, call: &Enter, taken: u32) -> bool {
        const PLAIN: u32 = IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING;
        let ordinary = call.flags & !PLAIN == 0
            && call.argument == 0
            && taken == call.to_submit
            && taken > 0
            && !self.is(IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL);
        let fetches = call.flags & IORING_ENTER_GETEVENTS != 0;
        if !ordinary || !self.is_at_rest() {
            return false;
        }
        if !self.order().ready.is_empty() && (!fetches || !self.issues_links(call)) {
            return false;
        }
        if fetches { self.skip_epoll(call) } else { self.zero_copy().is_seen() }
    }

    /// True if a call without GETEVENTS has to ask epoll before it returns. The kernel's calls complete requests that are ready, whether an
    /// earlier event or the call itself made them ready. A single request that began to wait now has just been tried, and a single
    /// cancellation makes nothing ready that the call has not seen before it.
    #[inline(always)]
    fn looks_when_it_leaves(&self, call: &Enter, taken: u32) -> bool {
        call.flags & IORING_ENTER_GETEVENTS == 0
            && self.readiness().waiting() > 0
            && (self.readiness().is_unseen() || taken > 1)
            && !self.is(IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SQPOLL)
    }

    /// Issues the requests that the submission made ready, mostly links. Returns true if nothing else is left to do.
    #[inline(never)]
    fn issues_links(&mut self, call: &Enter) -> bool {
        self.drive_mut().fetched_at_once = self.most_fetched(call.min_complete);
        self.run_ready();
        self.drive_mut().fetched_at_once = u32::MAX;
        self.order().ready.is_empty() && self.is_at_rest()
    }

    /// Returns the maximum number of completions that a call waiting for `wanted` fetches. The next call fetches the rest: a multishot
    /// request that finds the CQ full would end.
    fn most_fetched(&self, wanted: u32) -> u32 {
        let entries = self.queues().memory.layout().cq_entries;
        wanted.min(entries).max(entries / 2).max(1)
    }

    /// True if enough completions are there, and the call may return without asking epoll. Counts such returns.
    #[inline(always)]
    fn skip_epoll(&mut self, call: &Enter) -> bool {
        if self.drive().reactor_gives_way(call.min_complete) || self.queues().cq_ready() < call.min_complete {
            return false;
        }
        if self.readiness().waiting() == 0 && !self.zero_copy().is_waiting() {
            return true;
        }
        let goes_unasked = call.min_complete > 0 && self.readiness().unasked() < self.patience();
        if goes_unasked {
            self.readiness_mut().goes_unasked();
        }
        goes_unasked
    }

    /// Returns how many consecutive calls may find enough completions without asking epoll. More are allowed where only notifications of
    /// zero-copy sends are waited for: further sends look for these, too.
    #[inline]
    fn patience(&self) -> u8 {
        if self.readiness().waiting() > 0 { UNASKED } else { UNASKED_FOR_PAGES }
    }
}

/// Does what is left of a call after its submission: queued work, and the wait.
fn go_on(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    call: &Enter,
    caller: &Caller,
    taken: Option<u32>,
) -> Result<usize, Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    // From here on other threads may reap what this call waits for.
    let head = core.queues().cq_head();
    let submitted = match taken {
        Some(taken) => taken,
        None => enter_sq_thread(guard, serial, call)?,
    };
    if taken.is_some() && call.to_submit > 0 {
        follow_up(guard, serial, call, submitted)?;
        // Most calls have now done all that they queued.
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        if call.flags & IORING_ENTER_GETEVENTS != 0 && core.finish_without_wait(call, submitted) {
            return Ok(submitted as usize);
        }
    }
    let complete = submitted == call.to_submit;
    let waited = if call.flags & IORING_ENTER_GETEVENTS != 0 && (complete || call.to_submit == 0) {
        get_events(guard, serial, call, caller, head)
    } else {
        if let Some(core) = live(guard, serial)
            && call.to_submit == 0
            && !core.defers()
            && !core.order().ready.is_empty()
        {
            core.advance();
        }
        Ok(())
    };
    if submitted > 0 { Ok(submitted as usize) } else { waited.map(|()| 0) }
}

/// Wakes the SQ thread, or waits for room in the SQ, as the flags say. The SQ thread submits, not this call.
fn enter_sq_thread(guard: &mut CoreGuard<'_>, serial: u64, call: &Enter) -> Result<u32, Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.call_sq_thread(call.flags & IORING_ENTER_SQ_WAKEUP != 0)?;
    if call.flags & IORING_ENTER_SQ_WAIT != 0 {
        match caller::wait_for_sq_space(guard, serial) {
            // As in the kernel, a signal ends the wait, and the call succeeds.
            Err(Errno::EINTR) => {}
            waited => waited?,
        }
    }
    Ok(call.to_submit)
}

/// Does queued work after a submission, and issues requests that became ready.
fn follow_up(guard: &mut CoreGuard<'_>, serial: u64, call: &Enter, submitted: u32) -> Result<(), Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    let fetches = call.flags & IORING_ENTER_GETEVENTS != 0 && submitted == call.to_submit;
    let advances = fetches || !core.defers();
    // A call that fetches advances at the beginning of its wait anyway.
    if advances && !core.work().is_empty() {
        // Without timers: a timeout that has expired by now must not stop work that the kernel's threads would have begun.
        core.advance_before_work();
    } else if advances && !fetches {
        core.advance();
    }
    // A loan ends here even if all of its work was withdrawn meanwhile. Work that is left goes to workers when the call ends.
    if !core.work().is_empty() || core.work().is_offered() {
        work::run_by_caller(guard, serial, fetches && call.min_complete > 0);
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        if advances && !fetches {
            core.advance();
        }
    }
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.keep_submitter();
    if fetches {
        return Ok(());
    }
    if !core.order().ready.is_empty() {
        // Requests stay ready here only on a ring that defers.
        core.notify_deferred();
    }
    Ok(())
}

/// Waits as the call asks; `head` is the CQ's head, as this thread found it when the submission had ended.
fn get_events(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    call: &Enter,
    caller: &Caller,
    head: u32,
) -> Result<(), Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.work_mut().note_fetch();
    let argument = wait_argument(call, core);
    if argument.is_err() && call.to_submit > 0 {
        // The call does not wait, but the submitted requests advance.
        core.advance();
    }
    let argument = argument?;
    if core.defers() {
        core.admit(host::thread_identity())?;
        if core.drive_mut().observers.take_deferred_told() {
            // The reactor that drives the ring may sleep without regard to the ring's deadlines.
            reactor::deadline_changed(core);
        }
    }
    let wanted = wanted(core, call.min_complete);
    // Requests that wait for readiness must not starve where each call finds enough completions without waiting.
    core.readiness_mut().goes_unasked();
    if wanted == 0 || core.readiness().unasked() > core.patience() {
        core.harvest_now();
        core.recheck_if_due();
    }
    let limits = match limits(&argument, caller, core) {
        Ok(limits) => limits,
        Err(errno) => {
            // The mask is looked at only if the call has to wait.
            return caller::end_early(core, Goal::new(head, wanted), errno);
        }
    };
    if core.drive().reactor_gives_way(wanted) {
        reactor::release(core);
    }
    core.drive_mut().fetched_at_once = core.most_fetched(wanted);
    let waited = caller::wait(guard, serial, Goal::new(head, wanted), limits);
    if let Some(core) = live(guard, serial) {
        core.notify();
        if !core.order().ready.is_empty() && core.has_fetched_enough() {
            // Requests that are still ready are left to the next call.
            core.notify_deferred();
        }
        core.drive_mut().fetched_at_once = u32::MAX;
    }
    match waited {
        Err(Errno::EINTR) if wanted == 0 => Ok(()),
        // Some completions are there, though fewer than wanted: then the call succeeds, whatever ended the wait.
        Err(Errno::EINTR | Errno::ETIME)
            if live(guard, serial).is_some_and(|core| core.queues().cq_ready() > 0) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Returns how many completions a call waits for that asks for `min_complete`. As in the kernel, a number beyond those of an `int` asks for
/// none; and a ring with IOPOLL polls devices, so its call does not wait if there is a completion, or nothing in flight.
fn wanted(core: &Core, min_complete: u32) -> u32 {
    let waits = match is_polled_by_caller(core) {
        true => core.requests().live() > 0 && core.queues().cq_ready() == 0,
        false => min_complete <= i32::MAX as u32,
    };
    if waits { min_complete.min(core.queues().memory.layout().cq_entries) } else { 0 }
}

/// A call's arguments for its wait.
#[derive(Default)]
struct WaitArgument {
    mask_address: u64,
    mask_size: usize,
    min_wait_usec: u32,
    time: Option<Timespec>,
    /// The time is a point on the ring's clock, not a duration.
    absolute: bool,
}

/// Returns the deadlines and the signal mask of the wait, as the call's argument gives them.
fn limits(argument: &WaitArgument, caller: &Caller, core: &Core) -> Result<Limits, Errno> {
    let mask = mask(argument.mask_address, argument.mask_size)?;
    let mut limits = Limits { signal_mask: mask.or(caller.signal_mask), ..Limits::default() };
    if argument.min_wait_usec == 0 && argument.time.is_none() {
        return Ok(limits);
    }
    let now = os::monotonic_ns();
    if argument.min_wait_usec != 0 {
        limits.enough_ns = Some(now + u64::from(argument.min_wait_usec) * 1000);
    }
    if let Some(time) = argument.time {
        // The engine sleeps on the monotonic clock, whatever clock the program's deadline is on.
        let clock_ns = if argument.absolute { now_ns(core.time().wait_clock) } else { now };
        let time_ns = time.to_ns_wrapping();
        let due_ns = if argument.absolute { time_ns } else { time_ns.wrapping_add(clock_ns as i64) };
        // The kernel's timer does not expire at a time before the clock's beginning.
        if let Ok(due_ns) = u64::try_from(due_ns) {
            limits.deadline_ns = Some(now.saturating_add(due_ns.saturating_sub(clock_ns)));
        }
    }
    Ok(limits)
}

fn wait_argument(call: &Enter, core: &Core) -> Result<WaitArgument, Errno> {
    if is_polled_by_caller(core) {
        return check_argument(call).map(|()| WaitArgument::default());
    }
    if call.flags & IORING_ENTER_EXT_ARG == 0 {
        let (mask_address, mask_size) = (call.argument, call.argument_size);
        return Ok(WaitArgument { mask_address, mask_size, ..WaitArgument::default() });
    }
    if call.flags & IORING_ENTER_EXT_ARG_REG != 0 {
        return registered_wait(call, core);
    }
    if call.argument_size != size_of::<io_uring_getevents_arg>() {
        return Err(Errno::EINVAL);
    }
    let argument: io_uring_getevents_arg = user::read(call.argument)?;
    Ok(WaitArgument {
        mask_address: argument.sigmask,
        mask_size: argument.sigmask_sz as usize,
        min_wait_usec: argument.min_wait_usec,
        absolute: call.flags & IORING_ENTER_ABS_TIMER != 0,
        time: if argument.ts != 0 { Some(user::read(argument.ts)?) } else { None },
    })
}

/// Checks the wait argument of a caller that polls. The argument is read, though neither its time nor its mask is used.
fn check_argument(call: &Enter) -> Result<(), Errno> {
    if call.flags & IORING_ENTER_EXT_ARG == 0 {
        return Ok(());
    }
    if call.flags & IORING_ENTER_EXT_ARG_REG != 0 || call.argument_size != size_of::<io_uring_getevents_arg>()
    {
        return Err(Errno::EINVAL);
    }
    user::read::<io_uring_getevents_arg>(call.argument).map(drop)
}

/// Reads the wait argument from registered memory. `call.argument` is the offset.
fn registered_wait(call: &Enter, core: &Core) -> Result<WaitArgument, Errno> {
    if call.argument_size != size_of::<io_uring_reg_wait>() {
        return Err(Errno::EINVAL);
    }
    let words = core.resources().region.wait(call.argument)?;
    // SAFETY: of that size, and a structure of integers.
    let wait: io_uring_reg_wait = unsafe { core::mem::transmute(words) };
    let has_time = IORING_REG_WAIT_TS as u32;
    if wait.flags & !has_time != 0 {
        return Err(Errno::EINVAL);
    }
    let time = Timespec { seconds: wait.ts.tv_sec, nanoseconds: wait.ts.tv_nsec };
    Ok(WaitArgument {
        mask_address: wait.sigmask,
        mask_size: wait.sigmask_sz as usize,
        min_wait_usec: wait.min_wait_usec,
        absolute: call.flags & IORING_ENTER_ABS_TIMER != 0,
        time: (wait.flags & has_time != 0).then_some(time),
    })
}

fn mask(address: u64, size: usize) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    user::read::<u64>(address).map(|mask| Some(mask & !SIGSYS_BIT))
}
