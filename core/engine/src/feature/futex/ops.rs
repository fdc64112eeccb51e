//! FUTEX_WAIT, FUTEX_WAITV and FUTEX_WAKE.
//!
//! A wait whose word has the expected value gets a thread of [`crate::feature::futex::waits`], and is queued on the word when
//! it is issued: a later FUTEX_WAKE or `futex(2)` wakes it, and waits for one word are woken in their order.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    __NR_futex, FUTEX_BITSET_MATCH_ANY, FUTEX_WAITV_MAX, FUTEX_WAKE_BITSET, FUTEX2_SIZE_MASK,
};

use crate::abi::{Errno, Sqe, names};
use crate::feature::futex::waits::{Element, Placed, Recall, Request, Wait, private_flag};
use crate::os::{self, user};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Argument, Kind, When, arg};
use crate::request::{Flags, Phase, structures};
use crate::ring::row::{Outcome, Row};
use crate::ring::{Attempt, live};

const WAITS: Caps = Caps::AT_ONCE.with(Caps::LISTED_FUTEX);

const ANYONE: u64 = FUTEX_BITSET_MATCH_ANY as u64;

/// Arguments of WAIT and WAKE.
const ARGUMENTS: &[Argument] = &[
    arg(Field::Address, "futex", Kind::Address),
    arg(Field::Offset, "val", Kind::Number),
    arg(Field::Address3, "mask", Kind::Choice(names::FUTEX_MASKS)).when(&[When::Is(Field::Address3, ANYONE)]),
    arg(Field::Address3, "mask", Kind::Hex).when(&[When::Not(Field::Address3, ANYONE)]),
    arg(
        Field::Fd,
        "futex_flags",
        Kind::ChoiceAndFlags(FUTEX2_SIZE_MASK, names::FUTEX_SIZES, names::FUTEX_FLAGS),
    ),
];

/// `IORING_OP_FUTEX_WAIT`.
pub const FUTEX_WAIT: Row = Row::new(op!(IORING_OP_FUTEX_WAIT), WAITS, prep_wait, issue_wait)
    .arguments(ARGUMENTS)
    .disarm(recall)
    .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EAGAIN, Errno::ECANCELED]);

/// `IORING_OP_FUTEX_WAITV`.
pub const FUTEX_WAITV: Row = Row::new(op!(IORING_OP_FUTEX_WAITV), WAITS, prep_waitv, issue_wait)
    .arguments(&[
        arg(Field::Address, "futexv", Kind::Structures(structures::FUTEX_WAITV, Field::Length)),
        arg(Field::Length, "nr_futex", Kind::Number),
    ])
    .disarm(recall)
    .unused(
        Unused::FD
            .with(Unused::OFF)
            .with(Unused::OP_FLAGS)
            .with(Unused::BUF_INDEX)
            .with(Unused::FILE_INDEX)
            .with(Unused::ADDR3),
    )
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EAGAIN, Errno::ECANCELED]);

/// `IORING_OP_FUTEX_WAKE`.
pub const FUTEX_WAKE: Row = Row::new(op!(IORING_OP_FUTEX_WAKE), Caps::NONE, prep_wake, issue_wake)
    .arguments(ARGUMENTS)
    .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT]);

/// The words of a wait that is not issued yet, and the bit mask that wake-ups must match.
struct Prepared {
    elements: Vec<Element>,
    mask: u32,
}

fn prep_wait(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let element = parse(cx)?;
    keep(cx, [element].into())
}

fn prep_wake(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    parse(cx).map(drop)
}

/// Parses the fields that WAIT and WAKE have in common.
fn parse(cx: &Attempt<'_>) -> Result<Element, Errno> {
    let sqe = &cx.sqe;
    let element = Element { value: sqe.off, address: sqe.addr, flags: sqe.fd as u32, reserved: 0 };
    element.check()?;
    user::announce(element.address);
    if sqe.addr3 > u64::from(u32::MAX) { Err(Errno::EINVAL) } else { Ok(element) }
}

fn prep_waitv(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &mut request.sqe;
    if sqe.len == 0 || sqe.len > FUTEX_WAITV_MAX {
        return Err(Errno::EINVAL);
    }
    sqe.addr3 = u64::from(FUTEX_BITSET_MATCH_ANY);
    let (address, count) = (sqe.addr, sqe.len as usize);
    let elements = user::read_many::<Element>(address, count)?;
    elements.iter().try_for_each(Element::check)?;
    elements.iter().for_each(|element| user::announce(element.address));
    keep(cx, elements)
}

fn keep(cx: &mut Attempt<'_>, elements: Vec<Element>) -> Result<(), Errno> {
    let request = cx.request_mut();
    request.data = OpData::own(Prepared { elements, mask: request.sqe.addr3 as u32 });
    Ok(())
}

/// Returns the wait that a request has begun.
fn placed<'a>(cx: &'a Attempt<'_>) -> Option<&'a Placed> {
    cx.data.as_own()
}

fn issue_wait(cx: &mut Attempt<'_>) -> Outcome {
    if let Some(placed) = placed(cx) {
        let result = placed.result();
        return finish_wait(cx, result.unwrap_or(Errno::ECANCELED.negated()));
    }
    let (ring, serial) = (cx.ring.ring(), cx.ring.serial());
    let Some(prepared) = cx.data.as_own_mut::<Prepared>() else { return Errno::EINVAL.into() };
    let mask = prepared.mask;
    if mask == 0 {
        return Errno::EINVAL.into();
    }
    for element in &prepared.elements {
        match element.holds() {
            Ok(true) => {}
            Ok(false) => return Errno::EAGAIN.into(),
            Err(errno) => return errno.into(),
        }
    }
    let elements = core::mem::take(&mut prepared.elements);
    let placed = match Placed::place(Request { ring, serial, id: cx.id(), report }, elements, mask) {
        Ok(placed) => placed,
        Err(errno) => return errno.into(),
    };
    // A thread that changed the word before the wait was queued may have sent its wake-up before, too.
    if placed.is_over() {
        match placed.recall(Errno::EAGAIN) {
            Recall::Done => return Errno::EAGAIN.into(),
            Recall::TooLate => return Outcome::Complete(placed.result().unwrap_or(Errno::EAGAIN.negated())),
            Recall::Unknown => {}
        }
    }
    cx.data = OpData::own(placed);
    // The kernel continues the chain of a wait that was cancelled.
    cx.flags.set(Flags::NEVER_FAILS);
    Outcome::Armed
}

fn finish_wait(cx: &mut Attempt<'_>, result: i32) -> Outcome {
    if result < 0 && result != Errno::ECANCELED.negated() {
        cx.flags.clear(Flags::NEVER_FAILS);
    }
    Outcome::Complete(result)
}

/// Cancels a wait; false if the wait was woken before, or its threads have not answered yet.
fn recall(cx: &mut Attempt<'_>) -> bool {
    let Some(placed) = placed(cx) else { return false };
    // A cancellation of several waits has interrupted all their threads before (`call_off_waits`).
    match placed.recall(Errno::ECANCELED) {
        Recall::Done => true,
        Recall::TooLate => {
            wake_request(cx);
            false
        }
        Recall::Unknown => false,
    }
}

/// Makes a wait's request ready, because the wait has its result.
fn wake_request(cx: &mut Attempt<'_>) {
    cx.flags.set(Flags::WOKEN);
    cx.make_ready();
}

/// Reports from the waiting thread, without the ring's lock, that a wait has its result: locks the ring and calls [`wake_request`].
fn report(wait: &Arc<Wait>) {
    let (serial, id) = (wait.serial(), wait.id());
    let mut guard = wait.ring().lock_to_drive();
    // For the requests that this thread may issue here.
    user::take_tags();
    let Some(core) = live(&mut guard, serial) else { return };
    let waits = |request: &crate::request::Request| {
        request.phase == Phase::Armed && request.data.as_own::<Placed>().is_some_and(|placed| placed.is(wait))
    };
    if !core.requests().get(id).is_some_and(waits) {
        return;
    }
    core.drive_mut().observers.posts_later();
    wake_request(&mut core.attempt(id));
    if core.defers() {
        core.notify_deferred();
    } else {
        core.advance();
    }
    core.drive_mut().wake_observers();
}

fn issue_wake(cx: &mut Attempt<'_>) -> Outcome {
    wake_as_asked(&cx.sqe).into()
}

fn wake_as_asked(sqe: &Sqe) -> Result<usize, Errno> {
    let element = Element { value: 0, address: sqe.addr, flags: sqe.fd as u32, reserved: 0 };
    wake_futex(&element, sqe.off as u32, sqe.addr3 as u32)
}

/// Wakes as `futex_wake(2)` does, and wakes none if `count` is 0.
fn wake_futex(element: &Element, count: u32, mask: u32) -> Result<usize, Errno> {
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        // A private futex is identified by its address alone.
        let known = element.is_private() && element.is_aligned();
        return if known {
            user::check_range(element.address, 0).map(|()| 0)
        } else {
            element.holds().map(|_| 0)
        };
    }
    let operation = FUTEX_WAKE_BITSET | private_flag(element.is_private());
    let arguments = [element.address as usize, operation as usize, count as usize, 0, 0, mask as usize];
    // SAFETY: names a word of the program, which the kernel checks.
    unsafe { os::call(__NR_futex, arguments) }
}
