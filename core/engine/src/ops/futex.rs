//! FUTEX_WAIT, FUTEX_WAITV and FUTEX_WAKE.
//!
//! A wait that finds its value unchanged gets a thread, which sleeps on the program's futex and, by
//! `futex_waitv`, on a word of the engine's own that a cancellation changes. Since the thread falls
//! asleep some time after the request was issued, `enter` waits for that before it returns, and later
//! requests of this process wait for those before them (`Waiter::settle`): so waiters queue in order,
//! and a FUTEX_WAKE finds them.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general::{
    __NR_futex, __NR_futex_waitv, FUTEX_BITSET_MATCH_ANY, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE,
    FUTEX_WAIT_BITSET, FUTEX_WAITV_MAX, FUTEX_WAKE_BITSET, FUTEX2_PRIVATE, FUTEX2_SIZE_MASK, FUTEX2_SIZE_U32,
};

use crate::abi::{Errno, Sqe, names};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Timespec, user};
use crate::request::data::OpData;
use crate::request::op::{Caps, Code, Field, Op, Outcome};
use crate::request::shown::{Argument, Kind, When, arg};
use crate::request::structures;
use crate::request::unused::Unused;
use crate::request::{Flags, RequestId};
use crate::ring::Core;
use crate::work::Work;

const WAITS: Caps = Caps::AT_ONCE.with(Caps::LISTED_FUTEX);

const ANYONE: u64 = FUTEX_BITSET_MATCH_ANY as u64;

/// What WAIT and WAKE read off the SQE.
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
pub const FUTEX_WAIT: Op = Op::new(Code::IORING_OP_FUTEX_WAIT, "FUTEX_WAIT", WAITS, prep_wait, issue_wait)
    .arguments(ARGUMENTS)
    .block(wait)
    .finish(finish_wait)
    .disarm(interrupt)
    .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EAGAIN, Errno::ECANCELED]);

/// `IORING_OP_FUTEX_WAITV`.
pub const FUTEX_WAITV: Op =
    Op::new(Code::IORING_OP_FUTEX_WAITV, "FUTEX_WAITV", WAITS, prep_waitv, issue_wait)
        .arguments(&[
            arg(Field::Address, "futexv", Kind::Structures(structures::FUTEX_WAITV, Field::Length)),
            arg(Field::Length, "nr_futex", Kind::Number),
        ])
        .block(wait)
        .finish(finish_wait)
        .disarm(interrupt)
        .available(kernel_waits_on_several)
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
pub const FUTEX_WAKE: Op =
    Op::new(Code::IORING_OP_FUTEX_WAKE, "FUTEX_WAKE", Caps::NONE, prep_wake, issue_wake)
        .arguments(ARGUMENTS)
        .block(wake)
        .unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
        .errors(&[Errno::EINVAL, Errno::EFAULT]);

/// Where the kernel has no `futex_waitv`, or it cannot be used, a waiter looks up so often.
const SLICE_NS: u64 = 20_000_000;
/// A thread that has not fallen asleep by then is not waited for. On a busy machine it may take long until it runs;
/// one that comes too late takes a change of its word for its wake-up.
const SETTLE_NS: u64 = 500_000_000;
/// The same for those that were just submitted, all together.
const SETTLE_SUBMITTED_NS: u64 = 200_000_000;
/// The same for one of which it cannot be told.
const SETTLE_BLINDLY_NS: u64 = 1_000_000;

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Element {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl user::Plain for Element {}

impl Element {
    fn check(&self) -> Result<(), Errno> {
        let known = FUTEX2_SIZE_MASK | FUTEX2_PRIVATE;
        let bad = self.flags & !known != 0
            || self.flags & FUTEX2_SIZE_MASK != FUTEX2_SIZE_U32
            || self.value > u64::from(u32::MAX)
            || self.reserved != 0;
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn is_aligned(&self) -> bool {
        self.address % 4 == 0
    }

    /// Does the program's word still hold the value?
    fn holds(&self) -> Result<bool, Errno> {
        if !self.is_aligned() {
            return Err(Errno::EINVAL);
        }
        Ok(user::read::<u32>(self.address)? == self.value as u32)
    }

    /// `FUTEX_PRIVATE_FLAG` of the older calls.
    fn private(&self) -> u32 {
        if self.flags & FUTEX2_PRIVATE != 0 { FUTEX_PRIVATE_FLAG } else { 0 }
    }
}

/// Nobody has started on it.
const NEW: u32 = 0;
/// Its thread is about to fall asleep.
const ENTERING: u32 = 1;
/// It sleeps.
const ASLEEP: u32 = 2;
/// It has been woken, or never slept.
const AWAKE: u32 = 3;

/// A wait.
#[derive(Debug)]
pub struct Waiter {
    serial: u64,
    id: RequestId,
    elements: Vec<Element>,
    mask: u32,
    /// What [`Waiter::sleep`] sleeps on besides; not 0 once the wait is cancelled.
    kick: AtomicU32,
    stage: AtomicU32,
}

/// All waits of the process, oldest first.
static WAITERS: Mutex<Vec<Weak<Waiter>>> = Mutex::new(Vec::new());

/// The lock of the list of waits, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &WAITERS
}

/// In a child after `fork`: the parent's threads are not here.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { WAITERS.reset() };
    WAITERS.lock().clear();
}

fn waiters() -> Vec<Arc<Waiter>> {
    WAITERS.lock().iter().filter_map(Weak::upgrade).collect()
}

fn prep_wait(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    let element = parse(core, id)?;
    keep(core, id, [element].into())
}

fn prep_wake(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    parse(core, id).map(drop)
}

/// What WAIT and WAKE have in common.
fn parse(core: &Core, id: RequestId) -> Result<Element, Errno> {
    let sqe = &core[id].sqe;
    let element = Element { value: sqe.off, address: sqe.addr, flags: sqe.fd as u32, reserved: 0 };
    element.check()?;
    user::announce(element.address);
    if sqe.addr3 > u64::from(u32::MAX) { Err(Errno::EINVAL) } else { Ok(element) }
}

/// Has the kernel `futex_waitv` (since 5.16)? Without it, a wake-up of any futex but the first would be
/// missed.
fn kernel_waits_on_several() -> bool {
    // SAFETY: names no futex at all.
    let answer = unsafe { os::call(__NR_futex_waitv, [0; 6]) };
    answer == Err(Errno::EINVAL)
}

fn prep_waitv(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    if !kernel_waits_on_several() {
        return Err(Errno::EINVAL);
    }
    let request = &mut core[id];
    let sqe = &mut request.sqe;
    if sqe.len == 0 || sqe.len > FUTEX_WAITV_MAX {
        return Err(Errno::EINVAL);
    }
    sqe.addr3 = u64::from(FUTEX_BITSET_MATCH_ANY);
    let (address, count) = (sqe.addr, sqe.len as usize);
    let elements = user::read_many::<Element>(address, count)?;
    elements.iter().try_for_each(Element::check)?;
    elements.iter().for_each(|element| user::announce(element.address));
    keep(core, id, elements)
}

fn keep(core: &mut Core, id: RequestId, elements: Vec<Element>) -> Result<(), Errno> {
    let serial = core.serial();
    let request = &mut core[id];
    let waiter = Arc::new(Waiter {
        serial,
        id,
        elements,
        mask: request.sqe.addr3 as u32,
        kick: AtomicU32::new(0),
        stage: AtomicU32::new(NEW),
    });
    request.data = OpData::own(waiter);
    Ok(())
}

/// What a wait keeps.
fn waiter(data: &OpData) -> Option<&Arc<Waiter>> {
    data.as_own()
}

fn issue_wait(core: &mut Core, id: RequestId) -> Outcome {
    let Some(waiter) = waiter(&core[id].data) else { return Errno::EINVAL.into() };
    if waiter.mask == 0 {
        return Errno::EINVAL.into();
    }
    for element in &waiter.elements {
        match element.holds() {
            Ok(true) => {}
            Ok(false) => return Errno::EAGAIN.into(),
            Err(errno) => return errno.into(),
        }
    }
    let mut waiters = WAITERS.lock();
    waiters.retain(|waiter| waiter.strong_count() > 0);
    if waiters.try_reserve(1).is_err() {
        return Errno::ENOMEM.into();
    }
    waiters.push(Arc::downgrade(waiter));
    drop(waiters);
    core.unsettle();
    // The kernel goes on with the chain of a wait that was cancelled.
    core[id].flags.set(Flags::NEVER_FAILS);
    Outcome::BlockForLong
}

/// In a thread of its own.
fn wait(work: &mut Work) -> Result<usize, Errno> {
    let Some(waiter) = waiter(&work.data) else { return Err(Errno::EINVAL) };
    for earlier in waiters() {
        if Arc::ptr_eq(&earlier, waiter) {
            break;
        }
        if earlier.elements.iter().any(|element| waiter.waits_at(element.address)) {
            earlier.settle();
        }
    }
    let result = waiter.sleep();
    waiter.stage.store(AWAKE, Ordering::Release);
    result
}

impl Waiter {
    fn waits_at(&self, address: u64) -> bool {
        self.elements.iter().any(|element| element.address == address)
    }

    /// Sleeps until woken: the index of the futex that was. `ECANCELED` where the wait was cancelled.
    fn sleep(&self) -> Result<usize, Errno> {
        self.stage.store(ENTERING, Ordering::Release);
        loop {
            let woken = match self.sleep_on_all() {
                Err(Errno::ENOSYS | Errno::EPERM) => self.sleep_on_first(),
                other => other,
            };
            if self.kick.load(Ordering::Acquire) != 0 {
                if let Ok(index) = woken {
                    self.pass_on(index);
                }
                return Err(Errno::ECANCELED);
            }
            match woken {
                Err(Errno::ETIMEDOUT | Errno::EINTR) => {}
                // It held when the wait began: whoever changed it since is waking, or will be.
                Err(Errno::EAGAIN) => return Ok(self.changed()),
                other => return other,
            }
        }
    }

    /// `futex_waitv` knows no masks, and has room for so many.
    fn can_be_kicked(&self) -> bool {
        self.mask == FUTEX_BITSET_MATCH_ANY && self.elements.len() < FUTEX_WAITV_MAX as usize
    }

    /// The first futex that does not hold its value any more.
    fn changed(&self) -> usize {
        self.elements.iter().position(|element| element.holds() == Ok(false)).unwrap_or(0)
    }

    fn sleep_on_all(&self) -> Result<usize, Errno> {
        if !self.can_be_kicked() {
            return self.sleep_on_first();
        }
        let mut elements = self.elements.clone();
        elements.push(Element {
            value: 0,
            address: self.kick.as_ptr() as u64,
            flags: FUTEX2_SIZE_U32 | FUTEX2_PRIVATE,
            reserved: 0,
        });
        let arguments = [elements.as_ptr() as usize, elements.len(), 0, 0, 0, 0];
        // SAFETY: reads the elements, and the words that they name, of which the kernel checks the
        // program's and this waiter owns the last.
        unsafe { os::call(__NR_futex_waitv, arguments) }
    }

    /// Sleeps for a slice, on the first futex only where there are several.
    fn sleep_on_first(&self) -> Result<usize, Errno> {
        let element = self.elements[0];
        if let [_, others @ ..] = &self.elements[..]
            && let Some(index) = others.iter().position(|other| other.holds() == Ok(false))
        {
            return Ok(index + 1);
        }
        let until = Timespec::from_ns(os::monotonic_ns() + SLICE_NS);
        let operation = FUTEX_WAIT_BITSET | element.private();
        let (value, mask) = (element.value as usize, self.mask as usize);
        let until_at = &raw const until as usize;
        // SAFETY: the kernel checks the program's word; a time of ours.
        unsafe {
            os::call(__NR_futex, [element.address as usize, operation as usize, value, until_at, 0, mask])
        }
        .map(|_| 0)
    }

    /// A wake-up came for a wait that was cancelled: it is somebody else's.
    fn pass_on(&self, index: usize) {
        if let Some(element) = self.elements.get(index) {
            let _ = wake_futex(element, 1, FUTEX_BITSET_MATCH_ANY);
        }
    }

    /// Waits until this waiter sleeps, or does not wait any more, or takes too long.
    fn settle(&self) {
        self.settle_until(os::monotonic_ns() + SETTLE_NS);
    }

    fn settle_until(&self, mut give_up_ns: u64) {
        loop {
            match self.stage.load(Ordering::Acquire) {
                ASLEEP | AWAKE => return,
                ENTERING if self.is_queued() => {
                    let _ =
                        self.stage.compare_exchange(ENTERING, ASLEEP, Ordering::AcqRel, Ordering::Relaxed);
                    return;
                }
                ENTERING if !self.can_be_kicked() => {
                    give_up_ns = give_up_ns.min(os::monotonic_ns() + SETTLE_BLINDLY_NS);
                }
                _ => {}
            }
            if self.kick.load(Ordering::Acquire) != 0 || os::monotonic_ns() > give_up_ns {
                return;
            }
            os::sched_yield();
        }
    }

    /// `futex_waitv` queues on one word after the other, the engine's last. Whoever is queued there
    /// can be moved, from that word to itself: so it is asleep on all.
    fn is_queued(&self) -> bool {
        let word = self.kick.as_ptr() as usize;
        let operation = (FUTEX_REQUEUE | FUTEX_PRIVATE_FLAG) as usize;
        // SAFETY: names a word of this waiter's; wakes none, moves at most one.
        let moved = unsafe { os::call(__NR_futex, [word, operation, 0, 1, word, 0]) };
        moved == Ok(1)
    }
}

/// Waits, without a lock, until the waiters of a ring sleep of whom that can be told: what the program
/// does after it has submitted them, they are not to miss.
pub fn settle(serial: u64) {
    let give_up_ns = os::monotonic_ns() + SETTLE_SUBMITTED_NS;
    for waiter in waiters() {
        if waiter.serial == serial && waiter.can_be_kicked() {
            waiter.settle_until(give_up_ns);
        }
    }
}

/// Stops the thread that waits for a request; false where it was not waiting any more.
fn interrupt(core: &mut Core, id: RequestId) -> bool {
    let serial = core.serial();
    let Some(waiter) = waiters().into_iter().find(|waiter| waiter.serial == serial && waiter.id == id) else {
        return false;
    };
    if waiter.stage.load(Ordering::Acquire) == AWAKE {
        return false;
    }
    // Release pairs with the acquire load after the sleep.
    waiter.kick.store(1, Ordering::Release);
    os::futex_wake(&waiter.kick, 1);
    true
}

fn finish_wait(core: &mut Core, id: RequestId, result: Result<usize, Errno>) -> Outcome {
    let flags = &mut core[id].flags;
    if flags.has(Flags::CANCELED) {
        return Errno::ECANCELED.into();
    }
    flags.clear(Flags::NEVER_FAILS);
    result.into()
}

fn issue_wake(core: &mut Core, id: RequestId) -> Outcome {
    let sqe = &core[id].sqe;
    let settled = |waiter: &Arc<Waiter>| matches!(waiter.stage.load(Ordering::Acquire), ASLEEP | AWAKE);
    if waiters().iter().all(|waiter| settled(waiter) || !waiter.waits_at(sqe.addr)) {
        wake_as_asked(sqe).into()
    } else {
        Outcome::Block
    }
}

fn wake(work: &mut Work) -> Result<usize, Errno> {
    for waiter in waiters() {
        if waiter.waits_at(work.sqe.addr) {
            waiter.settle();
        }
    }
    wake_as_asked(&work.sqe)
}

fn wake_as_asked(sqe: &Sqe) -> Result<usize, Errno> {
    let element = Element { value: 0, address: sqe.addr, flags: sqe.fd as u32, reserved: 0 };
    wake_futex(&element, sqe.off as u32, sqe.addr3 as u32)
}

/// As `futex_wake(2)`: none where none is asked for.
fn wake_futex(element: &Element, count: u32, mask: u32) -> Result<usize, Errno> {
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        // A private futex is known by its address alone.
        let known = element.flags & FUTEX2_PRIVATE != 0 && element.is_aligned();
        return if known {
            user::check_range(element.address, 0).map(|()| 0)
        } else {
            element.holds().map(|_| 0)
        };
    }
    let operation = FUTEX_WAKE_BITSET | element.private();
    let arguments = [element.address as usize, operation as usize, count as usize, 0, 0, mask as usize];
    // SAFETY: names a word of the program's, which the kernel checks.
    unsafe { os::call(__NR_futex, arguments) }
}
