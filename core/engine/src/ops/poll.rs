//! POLL_ADD and POLL_REMOVE.
//!
//! A single poll checks once and then waits for the ring's epoll instance. A multishot poll posts a CQE per
//! edge: if its descriptor is ready already, epoll reports the first edge when the descriptor is registered,
//! so that no edge is posted twice.
//!
//! A ring's descriptor is a memfd, which is always ready: its stand-in ([`stand_in`]) is polled instead.
//! Finding the stand-in takes the other ring's lock. If another thread has that lock, blocking work does it, without this ring's lock.

use anyring_chaos_plan::Fault;
use linux_raw_sys::general::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLERR, EPOLLHUP, EPOLLONESHOT, EPOLLRDHUP, POLLNVAL,
};
use linux_raw_sys::io_uring::{
    IORING_POLL_ADD_MULTI, IORING_POLL_UPDATE_EVENTS, IORING_POLL_UPDATE_USER_DATA,
};

use crate::abi::{Errno, names};
use crate::assets::notes;
use crate::feature::eventfd;
use crate::os::{self, Fd, OwnedFd};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, When, arg};
use crate::request::{FileHold, Flags, Phase, Request, RequestId};
use crate::ring::drive::observers::stand_in;
use crate::ring::row::{Outcome, Row, issue_controls};
use crate::ring::{Attempt, Core, Lent, Ring, live, registry};
use crate::work::Work;

/// `IORING_OP_POLL_ADD`.
pub const POLL_ADD: Row = Row::new(op!(IORING_OP_POLL_ADD), Caps::FILE.with(Caps::POLLS), prep, issue)
    .arguments(&[
        shown::FD,
        arg(Field::OpFlags, "poll_mask", Kind::Flags(names::POLL_EVENTS)),
        arg(Field::Length, "flags", Kind::Flags(names::POLL_FLAGS)).unless_zero(),
    ])
    .control(issue_for_ring)
    .block(find_stand_in)
    .finish(poll_stand_in)
    .faults(&[Fault::MultishotEnds])
    .unused(Unused::OFF.with(Unused::ADDR).with(Unused::BUF_INDEX))
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ECANCELED]);

/// `IORING_OP_POLL_REMOVE`.
pub const POLL_REMOVE: Row = Row::new(op!(IORING_OP_POLL_REMOVE), Caps::CANCELS, prep_remove, issue_controls)
    .control(issue_remove)
    .arguments(&[
        arg(Field::Address, "old_user_data", Kind::UserData),
        arg(Field::Offset, "new_user_data", Kind::UserData)
            .when(&[When::Some(Field::Length, IORING_POLL_UPDATE_USER_DATA as u64)]),
        arg(Field::OpFlags, "poll_mask", Kind::Flags(names::POLL_EVENTS))
            .when(&[When::Some(Field::Length, IORING_POLL_UPDATE_EVENTS as u64)]),
        arg(Field::Length, "flags", Kind::Flags(names::POLL_FLAGS)).unless_zero(),
    ])
    .of_its_ring()
    .unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::ENOENT]);

/// The bits of conditions, as opposed to flags.
const CONDITIONS: u32 = 0xffff;
/// Conditions that are always reported.
const ALWAYS: u32 = EPOLLERR | EPOLLHUP | EPOLLRDHUP;

/// Returns the events of an SQE, with the flag for a single poll.
fn parse_events(events: u32, flags: u32) -> u32 {
    let events = events & (CONDITIONS | EPOLLONESHOT);
    if flags & IORING_POLL_ADD_MULTI == 0 { events | EPOLLONESHOT } else { events }
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &mut request.sqe;
    let multishot = sqe.len & IORING_POLL_ADD_MULTI != 0;
    if sqe.len & !IORING_POLL_ADD_MULTI != 0 || multishot && request.flags.has(Flags::CQE_SKIP) {
        return Err(Errno::EINVAL);
    }
    sqe.op_flags = parse_events(sqe.op_flags, sqe.len);
    Ok(())
}

impl Request {
    /// Returns the conditions that a poll reports.
    fn polled(&self) -> u32 {
        self.sqe.op_flags & CONDITIONS | ALWAYS
    }

    fn polls_once(&self) -> bool {
        self.sqe.op_flags & EPOLLONESHOT != 0
    }
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request_mut();
    if request.flags.has(Flags::WOKEN) {
        request.flags.clear(Flags::WOKEN);
        let early = request.flags.has(Flags::WOKEN_EARLY);
        request.flags.clear(Flags::WOKEN_EARLY);
        let fd = request.file.fd();
        if early {
            // The driver took the event out of epoll before it had the lock, perhaps before this poll began.
            cx.events = ready_now(cx).unwrap_or(0);
        }
        if cx.ring.readiness_mut().take_missed(fd) {
            // Events since the wake-up are reported now, too.
            cx.events |= ready_now(cx).unwrap_or(0);
        }
        let events = cx.events & cx.polled();
        return if events == 0 { wait(cx, false) } else { report(cx, events) };
    }
    match request.file {
        FileHold::Plain(fd) if registry::is_ring(fd) => Outcome::Control,
        _ => begin(cx),
    }
}

/// Returns the events that the descriptor is ready for, without notices of pages.
fn ready_now(cx: &mut Attempt<'_>) -> Result<u32, Errno> {
    let fd = cx.file.fd();
    let now = os::poll_now(fd, cx.polled())?;
    Ok(if now & EPOLLERR != 0 { cx.ring.without_notices(fd, now) } else { now })
}

/// Begins a poll: checks the descriptor, and waits or completes.
fn begin(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    let now = match ready_now(cx) {
        Ok(now) if now & POLLNVAL != 0 => return Errno::EBADF.into(),
        Ok(now) => now & cx.polled(),
        Err(errno) => return errno.into(),
    };
    let own = !cx.polls_once() && cx.ring.is_own_eventfd(fd);
    if own {
        cx.ring.observers_mut().clear_rung();
    }
    if now == 0 {
        let outcome = wait(cx, true);
        if own && matches!(outcome, Outcome::Armed) {
            cx.ring.glimpse(fd, cx.polled());
        }
        return outcome;
    }
    if cx.polls_once() {
        return Outcome::Complete(now as i32);
    }
    match cx.arm_poll(cx.polled(), true) {
        // epoll reports this readiness as the first edge.
        Ok(true) => Outcome::Armed,
        // Other requests wait for the same descriptor, and must not get this edge again.
        Ok(false) if cx.post_more(now as i32, 0) => Outcome::Armed,
        Ok(false) => {
            cx.disarm();
            Outcome::Complete(now as i32)
        }
        Err(Errno::EPERM) => Outcome::Complete(now as i32),
        Err(errno) => errno.into(),
    }
}

fn wait(cx: &mut Attempt<'_>, renew: bool) -> Outcome {
    match cx.arm_poll(cx.polled(), renew) {
        Ok(_) => Outcome::Armed,
        // Such a file never changes its readiness.
        Err(Errno::EPERM) => Errno::EINVAL.into(),
        Err(errno) => errno.into(),
    }
}

fn report(cx: &mut Attempt<'_>, events: u32) -> Outcome {
    let fd = cx.file.fd();
    if cx.polls_once() || cx.ring.stands_in(fd) {
        return Outcome::Complete(events as i32);
    }
    // Each completion would signal a registered eventfd, and so cause another event.
    let registered = eventfd::is_registered(fd);
    let own = registered && cx.ring.is_own_eventfd(fd);
    let last = if own { cx.ring.observers().has_rung() } else { registered };
    if last || !cx.post_more(events as i32, 0) || own && cx.ring.is_about_to_signal() {
        return Outcome::Complete(events as i32);
    }
    wait(cx, false)
}

impl Lent {
    /// True if `fd` is an epoll instance that contains this ring. Each CQE would make it ready again. The
    /// kernel ends a multishot poll of it if a ring woke it; here it is unknown which file did.
    fn stands_in(&self, fd: Fd) -> bool {
        let Some(stand_in) = self.observers().stand_in() else { return false };
        let added = os::epoll_ctl(fd, EPOLL_CTL_ADD, stand_in, 0, 0);
        if added.is_ok() {
            let _ = os::epoll_ctl(fd, EPOLL_CTL_DEL, stand_in, 0, 0);
        }
        added == Err(Errno::EEXIST)
    }
}

/// Begins a poll of a ring, unless another thread has that ring's lock: no thread waits for two rings' locks.
fn issue_for_ring(core: &mut Core, id: RequestId) -> Outcome {
    let fd = core[id].sqe.fd;
    let Some(polled) = registry::get(fd) else { return registry::no_ring(fd).into() };
    let (ring, serial) = (polled.ring(), polled.serial());
    let found = if core::ptr::eq(ring, core.ring()) {
        stand_in::for_request(core).map(|stand_in| (stand_in, None))
    } else {
        let Some(mut guard) = ring.try_lock() else { return Outcome::Block };
        lend_stand_in(live(&mut guard, serial), core.ring(), core.serial())
    };
    match found {
        Ok((stand_in, of_polled)) => {
            core[id].data = OpData::Polled { ring: serial, stand_in: of_polled };
            poll_stand_in(&mut core.attempt(id), Ok(stand_in as usize))
        }
        Err(errno) => errno.into(),
    }
}

/// Finds the stand-in of the ring to be polled. No lock may be held.
fn find_stand_in(work: &mut Work) -> Result<usize, Errno> {
    let fd = work.sqe.fd;
    let polled = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let (ring, serial) = (polled.ring(), polled.serial());
    let mut guard = ring.lock();
    let target = live(&mut guard, serial);
    let (stand_in, of_polled) = if core::ptr::eq(ring, work.ring()) {
        (stand_in::for_request(target.ok_or(Errno::EBADF)?)?, None)
    } else {
        lend_stand_in(target, work.ring(), work.serial)?
    };
    work.data = OpData::Polled { ring: serial, stand_in: of_polled };
    Ok(stand_in as usize)
}

/// Finds the stand-in of a ring that a request of another ring polls, and duplicates it: the program may close the polled ring first.
fn lend_stand_in(
    polled: Option<&mut Core>,
    by: &'static Ring,
    serial: u64,
) -> Result<(Fd, Option<OwnedFd>), Errno> {
    let polled = polled.ok_or(Errno::EBADF)?;
    let stand_in = stand_in::for_request(polled)?;
    let of_polled = OwnedFd::new(notes::duplicate(stand_in)?);
    polled.drive_mut().observers.polled_by(by, serial);
    Ok((stand_in, Some(of_polled)))
}

fn poll_stand_in(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    let is_canceled = cx.flags.has(Flags::CANCELED);
    let of_polled = match &mut cx.data {
        OpData::Polled { stand_in, .. } => stand_in.take(),
        _ => None,
    };
    let hold = match of_polled {
        Some(of_other) if !is_canceled => FileHold::Owned(of_other.into_fd()),
        // The stand-in lives as long as the request's own ring.
        _ => FileHold::Plain(result.unwrap_or(0) as Fd),
    };
    match result {
        // A request that was cancelled meanwhile does not begin to wait, but ends.
        Ok(_) if is_canceled => Outcome::Wait(0),
        Ok(_) => {
            cx.release_file();
            let request = cx.request_mut();
            request.file = hold;
            // The CQE for one edge would cause the next edge, so the poll is a single one.
            request.sqe.op_flags |= EPOLLONESHOT;
            begin(cx)
        }
        Err(errno) => errno.into(),
    }
}

fn prep_remove(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    let known = IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA | IORING_POLL_ADD_MULTI;
    let bad = sqe.len & !known != 0
        || sqe.len == IORING_POLL_ADD_MULTI
        || sqe.len & IORING_POLL_UPDATE_USER_DATA == 0 && sqe.off != 0
        || sqe.len & IORING_POLL_UPDATE_EVENTS == 0 && sqe.op_flags != 0;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue_remove(core: &mut Core, id: RequestId) -> Outcome {
    let sqe = core[id].sqe;
    let poll = match take(core, sqe.addr) {
        Ok(poll) => poll,
        Err(errno) => return errno.into(),
    };
    if sqe.len & (IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA) == 0 {
        core[poll].flags.set(Flags::CANCELED);
        core.attempt(poll).make_ready();
        return Outcome::Complete(0);
    }
    let target = &mut core[poll].sqe;
    if sqe.len & IORING_POLL_UPDATE_EVENTS != 0 {
        target.op_flags = target.op_flags & !CONDITIONS | sqe.op_flags & CONDITIONS;
    }
    if sqe.len & IORING_POLL_UPDATE_USER_DATA != 0 {
        core.requests_mut().rename(poll, sqe.off);
    }
    match begin(&mut core.attempt(poll)) {
        Outcome::Complete(events) if events > 0 => {
            core[poll].events = events as u32;
            core[poll].flags.set(Flags::WOKEN);
            core.attempt(poll).make_ready();
        }
        Outcome::Armed => {}
        _ => {
            core[poll].flags.set(Flags::CANCELED);
            core.attempt(poll).make_ready();
        }
    }
    Outcome::Complete(0)
}

/// Ends the wait of the poll with this user data.
fn take(core: &mut Core, user_data: u64) -> Result<RequestId, Errno> {
    let named = core.requests_mut().named(user_data);
    let is_poll = |id: &RequestId| {
        let request = &core[*id];
        request.op.caps.has(Caps::POLLS)
            && (request.phase == Phase::Waiting
                || request.phase == Phase::Ready && request.flags.has(Flags::WOKEN))
    };
    let id = named.into_iter().find(is_poll).ok_or(Errno::ENOENT)?;
    if core.attempt(id).disarm() {
        core[id].phase = Phase::Prepared;
        Ok(id)
    } else {
        Err(Errno::EALREADY)
    }
}
