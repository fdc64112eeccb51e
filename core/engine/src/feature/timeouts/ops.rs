//! TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.
//!
//! [`crate::feature::timeouts`] keeps the armed ones.

use linux_raw_sys::io_uring::{
    IORING_LINK_TIMEOUT_UPDATE, IORING_TIMEOUT_ABS, IORING_TIMEOUT_CLOCK_MASK, IORING_TIMEOUT_ETIME_SUCCESS,
    IORING_TIMEOUT_MULTISHOT, IORING_TIMEOUT_UPDATE, IORING_TIMEOUT_UPDATE_MASK,
};

use crate::abi::{Errno, IORING_TIMEOUT_IMMEDIATE_ARG, Sqe, names};
use crate::feature::timeouts::Timeout;
use crate::os::{Timespec, user};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Argument, Kind, When, arg, asks};
use crate::request::{Flags, RequestId, structures};
use crate::ring::row::{Expiry, Outcome, Row, issue_controls};
use crate::ring::{Attempt, Core};

/// True if the SQE contains the time itself.
const IMMEDIATE: When = asks(IORING_TIMEOUT_IMMEDIATE_ARG);
const NOT_IMMEDIATE: When = When::None(Field::OpFlags, IORING_TIMEOUT_IMMEDIATE_ARG as u64);
/// True if the request sets a new time for another timeout.
const UPDATES: When = asks(IORING_TIMEOUT_UPDATE_MASK);
const TIME: Argument =
    arg(Field::Address, "ts", Kind::Structure(structures::TIMESPEC)).when(&[NOT_IMMEDIATE]);
const TIME_NS: Argument = arg(Field::Address, "ns", Kind::Number).when(&[IMMEDIATE]);
const FLAGS: Argument = arg(Field::OpFlags, "timeout_flags", Kind::Flags(names::TIMEOUT_FLAGS));

const TIMES: Caps = Caps::COUNTS.with(Caps::HIDDEN).with(Caps::INHERITED);

/// `IORING_OP_TIMEOUT`.
pub const TIMEOUT: Row = Row::new(op!(IORING_OP_TIMEOUT), TIMES, prep, issue)
    .arguments(&[
        TIME,
        TIME_NS,
        arg(Field::OffsetLow, "count", Kind::Number),
        FLAGS,
        arg(Field::Length, "len", Kind::Number).when(&[When::Not(Field::Length, 1)]),
    ])
    .expire(Expiry::Attempt(expire))
    .disarm(disarm)
    .unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX).with(Unused::ADDR3).with(Unused::PAD))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ETIME, Errno::ECANCELED]);

/// `IORING_OP_LINK_TIMEOUT`.
pub const LINK_TIMEOUT: Row =
    Row::new(op!(IORING_OP_LINK_TIMEOUT), Caps::HIDDEN.with(Caps::WATCHES), prep_link, issue_link)
        .arguments(&[
            TIME,
            TIME_NS,
            arg(Field::OffsetLow, "count", Kind::Number).unless_zero(),
            FLAGS,
            arg(Field::Length, "len", Kind::Number).when(&[When::Not(Field::Length, 1)]),
        ])
        .expire(Expiry::Control(expire_link))
        .unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX).with(Unused::ADDR3).with(Unused::PAD))
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ETIME, Errno::ECANCELED]);

/// `IORING_OP_TIMEOUT_REMOVE`.
pub const TIMEOUT_REMOVE: Row =
    Row::new(op!(IORING_OP_TIMEOUT_REMOVE), Caps::CANCELS, prep_remove, issue_controls)
        .control(issue_remove)
        .arguments(&[
            arg(Field::Address, "user_data", Kind::UserData),
            arg(Field::Offset, "ts", Kind::Structure(structures::TIMESPEC)).when(&[UPDATES, NOT_IMMEDIATE]),
            arg(Field::Offset, "ns", Kind::Number).when(&[UPDATES, IMMEDIATE]),
            FLAGS,
        ])
        .of_its_ring()
        .unused(
            Unused::LEN
                .with(Unused::BUF_INDEX)
                .with(Unused::FILE_INDEX)
                .with(Unused::ADDR3)
                .with(Unused::PAD),
        )
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ENOENT]);

/// Returns `argument` as a time, or the time at that address. As in the kernel, the nanoseconds may exceed a
/// second.
fn read_time(argument: u64, flags: u32) -> Result<u64, Errno> {
    if flags & IORING_TIMEOUT_IMMEDIATE_ARG != 0 {
        return if argument > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(argument) };
    }
    let time: Timespec = user::read(argument)?;
    if time.seconds < 0 || time.nanoseconds < 0 {
        return Err(Errno::EINVAL);
    }
    Ok((time.seconds as u64).saturating_mul(1_000_000_000).saturating_add(time.nanoseconds as u64))
}

fn parse(sqe: &Sqe) -> Result<Timeout, Errno> {
    let flags = sqe.op_flags;
    let known = IORING_TIMEOUT_ABS
        | IORING_TIMEOUT_CLOCK_MASK
        | IORING_TIMEOUT_ETIME_SUCCESS
        | IORING_TIMEOUT_MULTISHOT
        | IORING_TIMEOUT_IMMEDIATE_ARG;
    let bad = sqe.len != 1
        || flags & !known != 0
        || flags & IORING_TIMEOUT_CLOCK_MASK == IORING_TIMEOUT_CLOCK_MASK
        || flags & IORING_TIMEOUT_MULTISHOT != 0 && flags & IORING_TIMEOUT_ABS != 0;
    if bad {
        return Err(Errno::EINVAL);
    }
    Ok(Timeout::new(read_time(sqe.addr, flags)?, flags, sqe.off as u32))
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let timeout = parse(&cx.sqe)?;
    cx.data = OpData::Timeout(timeout);
    Ok(())
}

fn prep_link(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    if sqe.off as u32 != 0 && sqe.len == 1 {
        return Err(Errno::EINVAL);
    }
    let timeout = parse(&sqe)?;
    let before = cx.before_it().ok_or(Errno::EINVAL)?;
    if before.op.caps.has(Caps::WATCHES) {
        return Err(Errno::EINVAL);
    }
    before.flags.set(Flags::ARM_LINK_TIMEOUT);
    let request = cx.request_mut();
    request.flags.set(Flags::NEVER_FAILS);
    request.data = OpData::Timeout(timeout);
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    if cx.ring.is_submitting() && cx.flags.has(Flags::THREADED) {
        // The thread that issues it after the submission arms it, and counts from then on.
        return Outcome::Again;
    }
    let Some(&mut Timeout { flags, count, .. }) = cx.timeout() else { return Errno::EINVAL.into() };
    let counts = count != 0 && flags & IORING_TIMEOUT_MULTISHOT == 0;
    let target = cx.ring.timeout_target(count);
    cx.list_timeout(counts.then_some(target));
    cx.start_timer(flags & IORING_TIMEOUT_ABS != 0);
    Outcome::Armed
}

fn disarm(cx: &mut Attempt<'_>) -> bool {
    cx.unlist_timeout();
    cx.cancel_timer()
}

fn expire(cx: &mut Attempt<'_>) -> Outcome {
    cx.timeout_fires();
    let Some(timeout) = cx.timeout() else { return Outcome::Armed };
    let flags = timeout.flags;
    if !goes_on(cx) || !cx.post_more(Errno::ETIME.negated(), 0) {
        if flags & IORING_TIMEOUT_ETIME_SUCCESS != 0 {
            cx.flags.set(Flags::NEVER_FAILS);
        }
        return Errno::ETIME.into();
    }
    cx.list_timeout(None);
    cx.start_timer(false);
    Outcome::Armed
}

/// Counts a round of a multishot timeout; false if it was the last.
fn goes_on(cx: &mut Attempt<'_>) -> bool {
    let Some(timeout) = cx.timeout() else { return false };
    if timeout.flags & IORING_TIMEOUT_MULTISHOT == 0 {
        return false;
    }
    if timeout.count == 0 {
        return true;
    }
    timeout.count -= 1;
    timeout.count > 0
}

/// Starts the timer, when the request before it in the chain has been issued and has not completed.
fn issue_link(cx: &mut Attempt<'_>) -> Outcome {
    let absolute = cx.timeout().is_some_and(|timeout| timeout.flags & IORING_TIMEOUT_ABS != 0);
    cx.start_timer(absolute);
    Outcome::Armed
}

fn expire_link(core: &mut Core, id: RequestId) {
    let Some(watched) = core[id].partner else {
        return core.complete(id, Errno::ETIME.negated());
    };
    if core.defers() {
        // In the kernel, the timer has fired before the request was continued.
        core[id].partner = None;
        core[watched].partner = None;
    }
    core.issue_if_woken(watched);
    let Some(timeout) = core.requests_mut().get_mut(id) else {
        // The request has completed, and disarmed its timeout.
        return;
    };
    timeout.partner = None;
    let result = match core.requests_mut().get_mut(watched) {
        Some(request) => {
            request.partner = None;
            core.try_cancel(watched)
        }
        None => Err(Errno::ENOENT),
    };
    let result = match result {
        Ok(0) => Errno::ETIME.negated(),
        Ok(counted) => counted as i32,
        // The kernel continues its search in other places, and finds no request there.
        Err(Errno::EALREADY) => Errno::ENOENT.negated(),
        Err(errno) => errno.negated(),
    };
    core.complete(id, result);
}

fn prep_remove(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = request.sqe;
    if request.flags.has(Flags::FIXED_FILE) {
        return Err(Errno::EINVAL);
    }
    let flags = sqe.op_flags;
    if flags & IORING_TIMEOUT_UPDATE_MASK == 0 {
        return if flags == 0 { Ok(()) } else { Err(Errno::EINVAL) };
    }
    if flags & !(IORING_TIMEOUT_UPDATE_MASK | IORING_TIMEOUT_ABS | IORING_TIMEOUT_IMMEDIATE_ARG) != 0 {
        return Err(Errno::EINVAL);
    }
    let time_ns = read_time(sqe.off, flags)?;
    request.data = OpData::Timeout(Timeout::new(time_ns, flags, 0));
    Ok(())
}

fn issue_remove(core: &mut Core, id: RequestId) -> Outcome {
    let sqe = core[id].sqe;
    let new = core[id].timeout().copied();
    let result = match new {
        Some(new) if sqe.op_flags & IORING_TIMEOUT_UPDATE != 0 => {
            if sqe.op_flags & IORING_LINK_TIMEOUT_UPDATE != 0 {
                update_link(core, sqe.addr, new)
            } else {
                update(core, sqe.addr, new)
            }
        }
        _ => remove(core, sqe.addr),
    };
    Outcome::from(result.map(|()| 0))
}

fn find(core: &mut Core, user_data: u64) -> Result<RequestId, Errno> {
    let named = core.requests_mut().named(user_data);
    core.time()
        .timeouts
        .listed(core.requests(), &named)
        .into_iter()
        .find(|&id| !core.is_timer_due(id))
        .ok_or(Errno::ENOENT)
}

fn remove(core: &mut Core, user_data: u64) -> Result<(), Errno> {
    let id = find(core, user_data)?;
    core.try_cancel(id).map(drop)
}

fn update(core: &mut Core, user_data: u64, new: Timeout) -> Result<(), Errno> {
    let id = find(core, user_data)?;
    let Some(timeout) = core[id].timeout() else { return Err(Errno::ENOENT) };
    // Neither completions nor rounds are counted any more.
    timeout.count = 0;
    core.attempt(id).unlist_timeout();
    core.attempt(id).list_timeout(None);
    core.restart_timer(id, new);
    Ok(())
}

fn update_link(core: &mut Core, user_data: u64, new: Timeout) -> Result<(), Errno> {
    let mut named = core.requests_mut().named(user_data).into_iter();
    let armed = |id: &RequestId| {
        let is_one = core[*id].op.caps.has(Caps::WATCHES);
        is_one && core.time().timers.is_armed(*id) && !core.is_timer_due(*id)
    };
    let id = named.find(armed).ok_or(Errno::ENOENT)?;
    core.restart_timer(id, new);
    Ok(())
}
