//! Requests on rings of the kernel's `io_uring`, reported as events of [`anyring_trace`].
//!
//! A front end that intercepts the three calls makes them by [`call`]. Before a call, the SQEs that it will submit are copied;
//! after it, the SQEs that the kernel took are reported, and each new CQE. Between calls, a thread (`watch`) looks at the rings
//! periodically, because no call shows which SQEs an SQ thread took, and which CQEs the program reaped without a call. SQEs and
//! CQEs that are missed all the same are counted ([`anyring_trace::event::Unseen`]).
//!
//! A request whose success has no CQE (`IOSQE_CQE_SKIP_SUCCESS`) is reported when it is submitted, and again only if it fails.
//!
//! This crate maps the memory of each ring to see it. As long as the mapping exists, the ring does not end, so the thread also
//! checks whether the program has closed the ring. A ring that is known only by a number in a thread
//! (`IORING_REGISTER_RING_FDS`) is kept as long as the number is registered and the thread runs.
//!
//! One lock guards all state. It is not held during a call of the kernel. The front end lets no signal handler of the program
//! run in a thread that is inside this crate, except during the call of the kernel.
#![no_std]

extern crate alloc;

mod buffers;
mod files;
mod memory;
pub mod requests;
mod ring;
mod rings;
mod watch;

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering};

use anyring_engine::observe::trace::{self, Moment, Samples, comes_in, tell_of, tell_ring};
use anyring_engine::os::sync::{AcrossFork, Mutex};
use anyring_engine::os::{self, Fd, nr, user};
use anyring_engine::tell_registration;
use anyring_trace::event::{ENGINE_KERNEL, Entered, Kind, Registered};
use linux_raw_sys::io_uring::{
    IORING_ENTER_REGISTERED_RING, IORING_SETUP_REGISTERED_FD_ONLY, io_uring_params,
    io_uring_register_op as Code, io_uring_rsrc_update,
};
use ring::When;
use rings::{Named, Rings};

static RINGS: Mutex<Rings> = Mutex::new(Rings::new());
/// True while a thread is between [`before_fork`] and [`after_fork`].
static FORKS: AtomicBool = AtomicBool::new(false);

/// Makes one of the three calls by `kernel`, and reports it. Signal handlers of the program may run in `kernel`, and
/// jump out of it.
pub fn call(number: usize, arguments: [usize; 6], kernel: impl FnOnce() -> isize) -> isize {
    let _in_call = comes_in();
    match number as u32 {
        nr::__NR_io_uring_setup => setup(arguments, kernel),
        nr::__NR_io_uring_enter => enter(arguments, kernel),
        nr::__NR_io_uring_register => register(arguments, kernel),
        _ => kernel(),
    }
}

fn setup([entries, address, ..]: [usize; 6], kernel: impl FnOnce() -> isize) -> isize {
    let asked: Option<io_uring_params> = user::read(address as u64).ok();
    let result = kernel();
    let given: Option<io_uring_params> = user::read(address as u64).ok().filter(|_| result >= 0);
    let mut rings = RINGS.lock();
    let by_number = asked.is_some_and(|asked| asked.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0);
    let named = if by_number { Named::Registered(result as u32) } else { Named::Descriptor(result as Fd) };
    let ring = given.as_ref().map_or(0, |given| rings.made(named, given));
    tell_ring(ring, ENGINE_KERNEL, entries as u32, asked.as_ref(), given.as_ref(), result as i32);
    if ring != 0 {
        watch::start_thread(&mut rings);
    }
    result
}

/// Returns how the first argument of a call names a ring.
fn named(first: usize, is_registered: bool) -> Named {
    if is_registered { Named::Registered(first as u32) } else { Named::Descriptor(first as Fd) }
}

fn enter([first, to_submit, least, flags, ..]: [usize; 6], kernel: impl FnOnce() -> isize) -> isize {
    let (to_submit, flags) = (to_submit as u32, flags as u32);
    let named = named(first, flags & IORING_ENTER_REGISTERED_RING != 0);
    let mut rings = RINGS.lock();
    // In most cases the ring's queues show after the call which ring it was for, which saves asking the kernel now.
    let supposed = rings.supposed(named, to_submit);
    let mut number = supposed.map_or_else(|| rings.number(named), |(number, _)| number);
    let (mut sq_ready, mut began, mut promised) = (0, None, to_submit);
    if let Some(ring) = rings.get(number) {
        ring.look(When::Later);
        sq_ready = ring.sq_ready();
        began = Some(ring.call_begins(to_submit));
        watch::start_thread(&mut rings);
    }
    drop(rings);
    let began = began.unwrap_or_else(Moment::now);
    let result = kernel();
    let ended = Moment::now();
    let mut rings = RINGS.lock();
    if let Some((supposed, before)) = supposed
        && let Some(came_to) = rings.came_elsewhere(named, supposed, before, began, result)
    {
        // The descriptor's number belongs to another file now, and the change was not seen.
        if let Some(ring) = rings.get(supposed) {
            ring.call_ends(to_submit, 0, ended);
        }
        (number, promised) = (came_to, 0);
        if let Some(ring) = rings.get(number) {
            ring.was_called();
        }
    }
    let mut cq_ready = 0;
    if let Some(ring) = rings.get(number) {
        ring.call_ends(promised, result, ended);
        cq_ready = ring.cq_ready();
    }
    let body = Entered {
        to_submit,
        min_complete: least as u32,
        flags,
        result: result as i32,
        duration_ns: ended.since(began),
        sq_ready,
        cq_ready,
    };
    tell_of(ended, number, Kind::Entered, &body, &Samples::NONE);
    result
}

fn register([first, opcode, argument, count, ..]: [usize; 6], kernel: impl FnOnce() -> isize) -> isize {
    let (opcode, count) = (opcode as u32, count as u32);
    let by_number = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;
    let mut rings = RINGS.lock();
    let number = rings.number(named(first, opcode & by_number != 0));
    if let Some(ring) = rings.get(number) {
        ring.look(When::Later);
    }
    drop(rings);
    let began_ns = os::monotonic_ns();
    let result = kernel();
    let duration_ns = os::monotonic_ns() - began_ns;
    let mut rings = RINGS.lock();
    if result >= 0 {
        let opcode = opcode & !by_number;
        registered(&mut rings, number, opcode, argument as u64, result as usize);
        if let Some(ring) = rings.get(number) {
            ring.registered(opcode, argument as u64, count);
        }
    }
    let argument = argument as u64;
    let body = Registered { opcode, count, argument, result: result as i32, reserved: 0, duration_ns };
    tell_registration(number, &body);
    result
}

/// Notes the effect of a successful registration on how rings are found.
fn registered(rings: &mut Rings, number: u32, opcode: u32, argument: u64, count: usize) {
    const NUMBERS: u32 = Code::IORING_REGISTER_RING_FDS as u32;
    const NO_NUMBERS: u32 = Code::IORING_UNREGISTER_RING_FDS as u32;
    const SIZES: u32 = Code::IORING_REGISTER_RESIZE_RINGS as u32;
    match opcode {
        NUMBERS | NO_NUMBERS => {
            for place in 0..count {
                let Ok(Some(update)) = user::element::<io_uring_rsrc_update>(argument, place) else { break };
                let ring =
                    if opcode == NUMBERS { rings.number(Named::Descriptor(update.data as Fd)) } else { 0 };
                rings.set_registered(update.offset, ring);
            }
        }
        SIZES => {
            if let (Some(ring), Ok(params)) = (rings.get(number), user::read(argument)) {
                ring.resized(&params);
            }
        }
        _ => {}
    }
}

/// Notes that the program is about to close these descriptors.
pub fn closing(descriptors: RangeInclusive<Fd>) {
    RINGS.lock().closing(&descriptors);
}

/// Reports everything new on all rings, because the process is about to execute another program.
pub fn looks() {
    RINGS.lock().look();
}

/// Reports the end of the process.
pub fn ends() {
    let mut rings = RINGS.lock();
    if rings.ends() {
        trace::ends();
    }
}

/// Prepares a fork: from here to [`after_fork`], the calling thread holds the lock.
pub fn before_fork() {
    RINGS.hold();
    FORKS.store(true, Ordering::Relaxed);
}

/// Notes in the parent that the process has forked, or could not.
pub fn after_fork() {
    FORKS.store(false, Ordering::Relaxed);
    // SAFETY: held by `before_fork` in this thread.
    unsafe { RINGS.release() };
    RINGS.lock().forked(false);
}

/// Notes in the child that the process has forked. The child has no other thread. The fork may not have been announced.
pub fn forked() {
    let was_announced = FORKS.swap(false, Ordering::Relaxed);
    let is_whole = was_announced || RINGS.try_lock().is_some();
    // SAFETY: this thread is the only one.
    unsafe { RINGS.reset() };
    let mut rings = RINGS.lock();
    if !is_whole {
        // Another thread of the parent was changing the state during the fork, so the state may be inconsistent: it is
        // leaked.
        core::mem::forget(core::mem::replace(&mut *rings, Rings::new()));
    }
    rings.forked(true);
}
