//! Waiting for completions, with and without time limits.

use crate::queue::{SIGNAL_SET_BYTES, io_uring_submit};
use crate::ring::OWN_TIMEOUT;
use crate::types::{Cqe, Ring, Timespec};
use crate::{call, extended};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::errno::{EAGAIN, EINVAL, ETIME};
use linux_raw_sys::io_uring::{
    IORING_ENTER_EXT_ARG, IORING_ENTER_EXT_ARG_REG, IORING_ENTER_GETEVENTS, IORING_FEAT_EXT_ARG,
    IORING_FEAT_MIN_TIMEOUT, io_uring_getevents_arg, io_uring_op, io_uring_reg_wait,
};

/// The parameters of a call that submits and waits.
struct Visit {
    submit: c_uint,
    least: c_uint,
    /// Flags in addition to `IORING_ENTER_GETEVENTS`, which is added for a wait.
    flags: c_uint,
    argument: *const c_void,
    argument_bytes: usize,
    /// True if the wait has a time limit; then `enter` is called only once.
    limited: bool,
    /// The result if the time limit has passed.
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

    /// Returns the parameters for a wait with a time limit, by an argument that stays alive.
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

/// Submits, and waits until enough completions are there; `out` gets the first of them. Returns zero or the number of entries
/// that the first `enter` has submitted, or a negative errno.
///
/// # Safety
/// `ring` must be set up, and the visit's argument must be valid for its flags.
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
    // SAFETY: the pointer is the program's.
    unsafe { *out = cqe };
    result
}

/// Queues a timeout of the library's own, for kernels on which waits have no time limits.
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
    // SAFETY: the pointer is null or points to an entry of the ring.
    let sqe = unsafe { sqe.as_mut() }.ok_or(-(EAGAIN as c_int))?;
    sqe.opcode = io_uring_op::IORING_OP_TIMEOUT as u8;
    sqe.fd = -1;
    sqe.addr = time.addr() as u64;
    sqe.len = 1;
    sqe.off = least.into();
    sqe.user_data = OWN_TIMEOUT;
    Ok(ring.flush())
}

/// The common part of the inline functions that wait.
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
        // SAFETY: the pointer is the program's.
        unsafe { *out = cqe };
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { visit_plain(ring, out, submit, least, mask) }
}

/// Calls [`visit`]. A separate function, so that a completion that is already there costs little.
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
    // Only shared access: a thread that submits may use the other half of the ring at the same time.
    // SAFETY: the caller's promise.
    let shared = unsafe { &*ring };
    let mut submit = 0;
    if !time.is_null() {
        if shared.features & IORING_FEAT_EXT_ARG != 0 {
            let limits = limits(time, mask, 0);
            // SAFETY: the caller's promise.
            return unsafe { visit(shared, out, Visit::extended(0, least, &limits)) };
        }
        // SAFETY: the caller's promise; on such kernels the program must use the ring in one thread only.
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

/// Submits the filled entries, and waits with a time limit.
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
    if call::is_extended() {
        // SAFETY: the caller's promise.
        return unsafe { submit_extended(ring, out, least, time, min_wait_us, mask) };
    }
    // SAFETY: as above.
    unsafe { submit_plainly(ring, out, least, time, min_wait_us, mask) }
}

/// Submits and waits on a ring whose entries may include operations that the kernel lacks.
///
/// # Safety
/// As for the functions that call it.
#[cold]
#[inline(never)]
unsafe extern "C" fn submit_extended(
    ring: &mut Ring,
    out: *mut *mut Cqe,
    least: c_uint,
    time: *const Timespec,
    min_wait_us: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { extended::with(ring, |ring| submit_plainly(ring, out, least, time, min_wait_us, mask)) }
}

/// # Safety
/// As for the functions that call it.
#[inline(always)]
unsafe fn submit_plainly(
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
    // SAFETY: the caller's promise.
    unsafe { extended::with(ring, |ring| submit_and_wait_by(ring, out, least, index)) }
}

/// # Safety
/// As for `io_uring_submit_and_wait_reg`.
unsafe fn submit_and_wait_by(ring: &mut Ring, out: *mut *mut Cqe, least: c_uint, index: c_int) -> c_int {
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
