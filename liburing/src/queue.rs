//! Submitting and waiting.

use crate::call;
use crate::ring::{self, OWN_TIMEOUT};
use crate::types::{Cqe, Ring, Sqe, Timespec};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::errno::{EAGAIN, EINVAL, ETIME};
use linux_raw_sys::io_uring::{
    IORING_ENTER_EXT_ARG, IORING_ENTER_EXT_ARG_REG, IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAIT,
    IORING_FEAT_EXT_ARG, IORING_FEAT_MIN_TIMEOUT, io_uring_getevents_arg, io_uring_op, io_uring_reg_wait,
};

/// Length of the kernel's signal set in bytes.
const SIGNAL_SET_BYTES: usize = 8;

/// What a caller wants of one visit.
struct Visit {
    submit: c_uint,
    least: c_uint,
    /// Beside `IORING_ENTER_GETEVENTS`, where it waits.
    flags: c_uint,
    argument: *const c_void,
    argument_bytes: usize,
    /// Its wait ends by itself; then there is no second one.
    limited: bool,
    /// What it says if that happened.
    expired: c_int,
}

impl Visit {
    fn plain(submit: c_uint, least: c_uint, mask: *const c_void) -> Visit {
        Visit {
            submit,
            least,
            flags: 0,
            argument: mask,
            argument_bytes: SIGNAL_SET_BYTES,
            limited: false,
            expired: 0,
        }
    }

    /// With a time limit, by an argument that stays alive.
    fn extended(submit: c_uint, least: c_uint, argument: &io_uring_getevents_arg) -> Visit {
        let limited = argument.ts != 0;
        Visit {
            flags: IORING_ENTER_EXT_ARG,
            argument_bytes: size_of::<io_uring_getevents_arg>(),
            limited,
            expired: if limited { -(ETIME as c_int) } else { 0 },
            ..Visit::plain(submit, least, ptr::from_ref(argument).cast())
        }
    }
}

fn limits(time: *const Timespec, mask: *const c_void, min_wait_us: c_uint) -> io_uring_getevents_arg {
    io_uring_getevents_arg {
        sigmask: mask.addr() as u64,
        sigmask_sz: SIGNAL_SET_BYTES as u32,
        min_wait_usec: min_wait_us,
        ts: time.addr() as u64,
    }
}

/// Submits, and waits until enough completions are there; the first of them goes to `out`. Zero or what the
/// first `enter` has submitted, or a negative errno.
///
/// # Safety
/// `ring` must be set up, and the visit's argument one of its kind.
#[inline(always)]
unsafe fn visit(ring: &Ring, out: *mut *mut Cqe, mut visit: Visit) -> c_int {
    let (mut result, mut entered) = (0, false);
    let or = |result: c_int, other: c_int| if result != 0 { result } else { other };
    let (cqe, result) = loop {
        let (first, ready) = ring.peek();
        let cqe = match first {
            Ok(cqe) => cqe,
            Err(error) => break (ptr::null_mut(), or(result, error)),
        };
        let mut flags = ring.enter_flags();
        let looks = cqe.is_null() && visit.least == 0 && visit.submit == 0;
        if looks && (entered || !ring.completes_by_entering()) {
            ring.found_nothing();
            break (cqe, or(result, -(EAGAIN as c_int)));
        }
        let fetches = looks || visit.least > ready;
        if fetches {
            flags |= IORING_ENTER_GETEVENTS | visit.flags;
        }
        if !ring.submits_by_entering(visit.submit, &mut flags) && !fetches {
            break (cqe, result);
        }
        if entered && visit.limited {
            break (cqe, if cqe.is_null() { or(result, visit.expired) } else { result });
        }
        // SAFETY: the caller's promise.
        let did = unsafe {
            call::enter(
                ring.enter_ring_fd,
                visit.submit,
                visit.least,
                flags,
                visit.argument,
                visit.argument_bytes,
            )
        };
        if did < 0 {
            break (cqe, or(result, did));
        }
        visit.submit -= did as c_uint;
        if !cqe.is_null() {
            break (cqe, result);
        }
        if !entered {
            (entered, result) = (true, did);
        }
    };
    // SAFETY: the program's.
    unsafe { *out = cqe };
    result
}

/// Puts a timeout of the library's own into the queue, for kernels that know no limits of waits.
///
/// # Safety
/// As for `io_uring_wait_cqes`.
#[cold]
unsafe fn queue_timeout(ring: &mut Ring, least: c_uint, time: *const Timespec) -> Result<c_uint, c_int> {
    let mut sqe = ring.next_sqe();
    if sqe.is_null() {
        // SAFETY: the caller's promise.
        let submitted = unsafe { io_uring_submit(ring) };
        if submitted < 0 {
            return Err(submitted);
        }
        sqe = ring.next_sqe();
    }
    // SAFETY: null or an entry of the ring.
    let sqe = unsafe { sqe.as_mut() }.ok_or(-(EAGAIN as c_int))?;
    sqe.opcode = io_uring_op::IORING_OP_TIMEOUT as u8;
    sqe.fd = -1;
    sqe.addr = time.addr() as u64;
    sqe.len = 1;
    sqe.off = least.into();
    sqe.user_data = OWN_TIMEOUT;
    Ok(ring.flush())
}

impl Ring {
    /// The next SQE that is free, cleared as far as programs expect it; null where none is.
    #[inline(always)]
    pub fn next_sqe(&mut self) -> *mut Sqe {
        let tail = self.sq.sqe_tail;
        if tail.wrapping_sub(self.taken()) >= self.sq.ring_entries {
            return ptr::null_mut();
        }
        self.sq.sqe_tail = tail.wrapping_add(1);
        let place = ((tail & self.sq.ring_mask) as usize) << ring::sqe_shift(self.flags);
        // SAFETY: a place of the queue.
        let sqe = unsafe { self.sq.sqes.add(place) };
        // SAFETY: nobody reads it until it is submitted.
        clear(unsafe { &mut *sqe });
        sqe
    }
}

/// Clears what a preparation does not set; the rest is overwritten by each.
#[inline(always)]
pub fn clear(sqe: &mut Sqe) {
    sqe.flags = 0;
    sqe.ioprio = 0;
    sqe.op_flags = 0;
    sqe.buf_index = 0;
    sqe.personality = 0;
    sqe.file_index = 0;
    sqe.addr3 = 0;
    sqe.pad = 0;
}

/// `io_uring_get_sqe(3)`, for programs built before it was an inline function.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_sqe(ring: &mut Ring) -> *mut Sqe {
    ring.next_sqe()
}

/// What the inline functions that wait are made of.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_get_cqe(
    ring: &Ring,
    out: *mut *mut Cqe,
    submit: c_uint,
    least: c_uint,
    mask: *const c_void,
) -> c_int {
    if submit == 0
        && let (Ok(cqe), ready) = ring.peek()
        && !cqe.is_null()
        && ready >= least
    {
        // SAFETY: the program's.
        unsafe { *out = cqe };
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { visit_plain(ring, out, submit, least, mask) }
}

/// Apart, so that what is there already costs little.
///
/// # Safety
/// As for [`__io_uring_get_cqe`].
#[inline(never)]
unsafe extern "C" fn visit_plain(
    ring: &Ring,
    out: *mut *mut Cqe,
    submit: c_uint,
    least: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { visit(ring, out, Visit::plain(submit, least, mask)) }
}

/// `io_uring_get_events(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_events(ring: &Ring) -> c_int {
    let flags = IORING_ENTER_GETEVENTS | ring.enter_flags();
    // SAFETY: the caller's promise.
    unsafe { call::enter(ring.enter_ring_fd, 0, 0, flags, ptr::null(), SIGNAL_SET_BYTES) }
}

/// Fills `list` with up to `count` CQEs that are there.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
unsafe fn take_ready(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    let ready = ring.ready();
    // SAFETY: the ring is mapped; only the program writes the head.
    let head = unsafe { *ring.cq.khead };
    if ring.flags & anyring_engine::abi::IORING_SETUP_CQE_MIXED == 0 {
        let count = ready.min(count);
        for index in 0..count {
            // SAFETY: the caller's promise.
            unsafe { *list.add(index as usize) = ring.cqe(head.wrapping_add(index)) };
        }
        return count;
    }
    // SAFETY: the caller's promise.
    unsafe { take_mixed(ring, list, count, ready) }
}

/// The same where CQEs of both sizes are in the queue.
///
/// # Safety
/// As for [`take_ready`].
#[cold]
#[inline(never)]
unsafe extern "C" fn take_mixed(ring: &Ring, list: *mut *mut Cqe, count: c_uint, ready: c_uint) -> c_uint {
    // SAFETY: the ring is mapped; only the program writes the head.
    let head = unsafe { *ring.cq.khead };
    let (mut at, mut taken) = (0, 0);
    while at < ready && taken < count {
        let cqe = ring.cqe(head.wrapping_add(at));
        // SAFETY: it was posted.
        let posted = unsafe { &*cqe };
        if posted.flags & anyring_engine::abi::IORING_CQE_F_SKIP != 0 {
            // It can be stepped over at the head only; the program advances by what it was given.
            if taken > 0 {
                break;
            }
            ring.advance(1);
            return match count {
                0 => 0,
                // SAFETY: the caller's promise.
                count => unsafe { take_ready(ring, list, count) },
            };
        }
        at += ring::cqe_places(posted);
        // SAFETY: the caller's promise.
        unsafe { *list.add(taken as usize) = cqe };
        taken += 1;
    }
    taken
}

/// `io_uring_peek_batch_cqe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_peek_batch_cqe(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    // SAFETY: the caller's promise.
    let taken = unsafe { take_ready(ring, list, count) };
    if taken > 0 || !ring.must_flush() {
        return taken;
    }
    // SAFETY: the caller's promise.
    unsafe { flush_and_take(ring, list, count) }
}

/// What waits for somebody to come in, first.
///
/// # Safety
/// As for [`take_ready`].
#[cold]
#[inline(never)]
unsafe extern "C" fn flush_and_take(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    // SAFETY: the caller's promise.
    unsafe {
        io_uring_get_events(ring);
        let taken = take_ready(ring, list, count);
        if taken == 0 {
            ring.found_nothing();
        }
        taken
    }
}

/// `io_uring_wait_cqes(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_wait_cqes(
    ring: *mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    // A thread that submits may use the other half of the ring at the same time.
    // SAFETY: the caller's promise.
    let shared = unsafe { &*ring };
    let mut submit = 0;
    if !time.is_null() {
        if shared.features & IORING_FEAT_EXT_ARG != 0 {
            let limits = limits(time, mask, 0);
            // SAFETY: the caller's promise.
            return unsafe { visit(shared, out, Visit::extended(0, least, &limits)) };
        }
        // SAFETY: the caller's promise; on such kernels it may do so from one thread only.
        match unsafe { queue_timeout(&mut *ring, least, time) } {
            Ok(queued) => submit = queued,
            Err(error) => return error,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { visit(shared, out, Visit::plain(submit, least, mask)) }
}

/// `io_uring_wait_cqes_min_timeout(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_wait_cqes_min_timeout(
    ring: &Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    min_wait_us: c_uint,
    mask: *const c_void,
) -> c_int {
    if ring.features & IORING_FEAT_MIN_TIMEOUT == 0 {
        return -(EINVAL as c_int);
    }
    let limits = limits(time, mask, min_wait_us);
    // SAFETY: the caller's promise.
    unsafe { visit(ring, out, Visit::extended(0, least, &limits)) }
}

/// `io_uring_wait_cqe_timeout(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_wait_cqe_timeout(
    ring: *mut Ring,
    out: *mut *mut Cqe,
    time: *const Timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { io_uring_wait_cqes(ring, out, 1, time, ptr::null()) }
}

/// Submits what is filled, and waits for some time.
///
/// # Safety
/// As for the functions that call it.
unsafe fn submit_and_wait_limited(
    ring: &mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    min_wait_us: c_uint,
    mask: *const c_void,
) -> c_int {
    let submit = if time.is_null() {
        ring.flush()
    } else if ring.features & IORING_FEAT_EXT_ARG != 0 {
        let limits = limits(time, mask, min_wait_us);
        let submit = ring.flush();
        // SAFETY: the caller's promise.
        return unsafe { visit(ring, out, Visit::extended(submit, least, &limits)) };
    } else {
        // SAFETY: the caller's promise.
        match unsafe { queue_timeout(ring, least, time) } {
            Ok(queued) => queued,
            Err(error) => return error,
        }
    };
    // SAFETY: the caller's promise.
    unsafe { visit(ring, out, Visit::plain(submit, least, mask)) }
}

/// `io_uring_submit_and_wait_timeout(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_wait_timeout(
    ring: &mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit_and_wait_limited(ring, out, least, time, 0, mask) }
}

/// `io_uring_submit_and_wait_min_timeout(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_wait_min_timeout(
    ring: &mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    min_wait_us: c_uint,
    mask: *const c_void,
) -> c_int {
    if ring.features & IORING_FEAT_MIN_TIMEOUT == 0 {
        return -(EINVAL as c_int);
    }
    // SAFETY: the caller's promise.
    unsafe { submit_and_wait_limited(ring, out, least, time, min_wait_us, mask) }
}

/// `io_uring_submit_and_wait_reg(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_wait_reg(
    ring: &mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    index: c_int,
) -> c_int {
    if ring.features & IORING_FEAT_EXT_ARG == 0 {
        return -(EINVAL as c_int);
    }
    let bytes = size_of::<io_uring_reg_wait>();
    let visited = Visit {
        flags: IORING_ENTER_EXT_ARG | IORING_ENTER_EXT_ARG_REG,
        argument: ptr::without_provenance((index as isize as usize).wrapping_mul(bytes)),
        argument_bytes: bytes,
        limited: true,
        expired: -(ETIME as c_int),
        ..Visit::plain(ring.flush(), least, ptr::null())
    };
    // SAFETY: the caller's promise.
    unsafe { visit(ring, out, visited) }
}

/// Submits what is filled, and fetches or waits for completions; how many entries were taken.
///
/// # Safety
/// The ring must be set up.
#[inline(always)]
unsafe fn submit(ring: &mut Ring, least: c_uint, fetch: bool) -> c_int {
    let filled = ring.flush();
    let fetch = fetch || least > 0 || ring.completes_by_entering();
    let mut flags = ring.enter_flags();
    if !ring.submits_by_entering(filled, &mut flags) && !fetch {
        return filled as c_int;
    }
    if fetch {
        flags |= IORING_ENTER_GETEVENTS;
    }
    // SAFETY: the caller's promise.
    unsafe { call::enter(ring.enter_ring_fd, filled, least, flags, ptr::null(), SIGNAL_SET_BYTES) }
}

/// `io_uring_submit(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit(ring: &mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, 0, false) }
}

/// `io_uring_submit_and_wait(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_wait(ring: &mut Ring, least: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, least, false) }
}

/// `io_uring_submit_and_get_events(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_get_events(ring: &mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, 0, true) }
}

/// What the inline `io_uring_sqring_wait(3)` is made of.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_sqring_wait(ring: &Ring) -> c_int {
    let flags = IORING_ENTER_SQ_WAIT | ring.enter_flags();
    // SAFETY: the caller's promise.
    unsafe { call::enter(ring.enter_ring_fd, 0, 0, flags, ptr::null(), SIGNAL_SET_BYTES) }
}
