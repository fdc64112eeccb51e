//! The three calls of a process under chaos: faults change them or make them fail.

use anyring_chaos_plan::{Fault, Faults};
use linux_raw_sys::io_uring::{
    IORING_ENTER_GETEVENTS, IORING_ENTER_REGISTERED_RING, IORING_SETUP_SQPOLL, io_uring_register_op as Code,
};

use crate::abi::Errno;
use crate::calls::enter::Enter;
use crate::calls::register::TABLE;
use crate::calls::register::call::Register;
use crate::observe::chaos::{self, Call};
use crate::os::Fd;
use crate::os::host::Caller;
use crate::ring::Core;
use crate::ring::drive::caller::is_polled_by_caller;
use crate::ring::registry::look;
use crate::ring::row::Table;

/// The errors of registrations by fault.
const REGISTER_ERRORS: [(Fault, Errno); 2] =
    [(Fault::RegisterNoMemory, Errno::ENOMEM), (Fault::RegisterBusy, Errno::EBUSY)];

/// Makes a call of `setup`.
pub fn setup(entries: u32, params_address: u64, table: &'static Table, caller: &Caller) -> Result<Fd, Errno> {
    if chaos::begin_setup().is_some_and(|met| met.meets(Fault::SetupNoMemory, 0).is_some()) {
        return Err(Errno::ENOMEM);
    }
    crate::calls::setup::setup(entries, params_address, table, caller)
}

/// Makes a call of `enter`.
pub fn enter(fd: Fd, call: &Enter, caller: &Caller) -> Result<usize, Errno> {
    let registered = call.flags & IORING_ENTER_REGISTERED_RING != 0;
    let Some(met) = look(fd, registered, Core::begin_call).flatten() else {
        return crate::calls::enter::enter(fd, call, caller);
    };
    met.pause(Fault::PauseBefore);
    let result = enter_meeting(met, fd, call, caller);
    met.pause(Fault::PauseAfter);
    result
}

fn enter_meeting(met: Call, fd: Fd, call: &Enter, caller: &Caller) -> Result<usize, Errno> {
    let mut interrupted = false;
    // The shortened count is decided under the same lock as the submission, because other threads submit, too.
    let done = crate::calls::enter::enter_changed(fd, call, caller, |core| {
        let change = change(core, met, call);
        if !matches!(change, Change::Fail(_) | Change::Interrupt) {
            core.pay_what_is_kept();
        }
        match change {
            Change::None => Ok(*call),
            Change::Fail(errno) => Err(errno),
            Change::Take(to_submit) => {
                Ok(Enter { to_submit, flags: call.flags & !IORING_ENTER_GETEVENTS, ..*call })
            }
            Change::Return => Ok(Enter { min_complete: 0, ..*call }),
            Change::Interrupt => {
                interrupted = true;
                Ok(Enter { min_complete: 0, ..*call })
            }
        }
    })?;
    let registered = call.flags & IORING_ENTER_REGISTERED_RING != 0;
    if interrupted && done == 0 && look(fd, registered, |core| core.queues().cq_ready()).unwrap_or(0) == 0 {
        return Err(Errno::EINTR);
    }
    Ok(done)
}

/// A change that chaos makes to a call of `enter`.
enum Change {
    None,
    /// The call fails without doing anything.
    Fail(Errno),
    /// The call submits this many SQEs, and does not wait.
    Take(u32),
    /// The call does not wait.
    Return,
    /// The call's wait fails as if a signal came.
    Interrupt,
}

fn change(core: &mut Core, met: Call, call: &Enter) -> Change {
    if !core.is(IORING_SETUP_SQPOLL) {
        core.called_now();
    }
    core.scrub_reaped(met);
    core.spoil_in_flight();
    core.waits_for(if call.flags & IORING_ENTER_GETEVENTS != 0 { call.min_complete } else { 0 });
    let meets = |fault| met.meets(fault, 0);
    let ready = core.queues().cq_ready();
    let submits = call.to_submit > 0 && core.queues().sq_pending() > 0 && !core.is(IORING_SETUP_SQPOLL);
    // A program that is told to wait for completions must have some that will come. Requests that wait for a file do not count: they may
    // wait for what is to be submitted.
    let may_refuse = submits && (ready > 0 || core.owes_a_completion());
    if may_refuse && meets(Fault::EnterBusy).is_some() {
        // A program that is told to reap completions must find one.
        if ready == 0 {
            core.pay_a_completion();
        }
        return Change::Fail(Errno::EBUSY);
    }
    if may_refuse && meets(Fault::EnterAgain).is_some() {
        return Change::Fail(Errno::EAGAIN);
    }
    for fault in [Fault::ShortSubmission, Fault::TornChain].into_iter().filter(|_| submits) {
        let counts = core.shorter_submissions(call.to_submit, fault);
        if !counts.is_empty()
            && let Some(value) = meets(fault)
        {
            return Change::Take(counts[(value % counts.len() as u64) as usize]);
        }
    }
    let polls = is_polled_by_caller(core);
    // On a polled ring, a call waits only for requests in flight.
    let has_to_wait = !polls || submits || core.requests().live() > 0;
    let waits = call.flags & IORING_ENTER_GETEVENTS != 0 && call.min_complete > ready && has_to_wait;
    if waits && meets(Fault::EnterInterrupted).is_some() {
        return Change::Interrupt;
    }
    if waits && polls && meets(Fault::EnterNothing).is_some() {
        return Change::Return;
    }
    Change::None
}

/// Makes a call of `register`.
pub fn register(fd: Fd, call: &Register) -> Result<usize, Errno> {
    const REGISTERED: u32 = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;
    let opcode = call.opcode & !REGISTERED;
    let faults = TABLE.get(opcode as usize).map_or(Faults::NONE, |row| row.faults);
    let met = look(fd, call.opcode & REGISTERED != 0, Core::begin_call).flatten();
    let error = met.and_then(|met| {
        let meets = |fault| faults.has(fault) && met.meets(fault, opcode as u16).is_some();
        REGISTER_ERRORS.into_iter().find(|&(fault, _)| meets(fault))
    });
    match error {
        Some((_, errno)) => Err(errno),
        None => crate::calls::register::register(fd, call),
    }
}
