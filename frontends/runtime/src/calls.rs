//! The entry to the engine, for the trap, for interposed functions and for patched call sites.

use crate::config::Level;
use crate::{beside, log, metrics, process};
use anyring_engine::{self as engine, Caller, frontend};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use linux_raw_sys::errno::{EFBIG, EINVAL};
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::io_uring_register_op;

const REGISTER_RING_FDS: u32 = io_uring_register_op::IORING_REGISTER_RING_FDS as u32;

/// True if a ring was ever created in this process, by the engine, or by the kernel while the kernel's rings are traced. If false,
/// no descriptor needs to be looked up.
pub static RINGS: AtomicBool = AtomicBool::new(false);

/// The number of the three calls that trapped.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);
/// The number of other calls that trapped.
pub static OTHER_TRAPS: AtomicU64 = AtomicU64::new(0);
/// The number of call sites that no longer trap.
pub static PATCHED_SITES: AtomicU64 = AtomicU64::new(0);

/// True if `number` is one of the three calls.
#[inline]
pub fn is_ring_call(number: usize) -> bool {
    number.wrapping_sub(raw::__NR_io_uring_setup as usize) < 3
}

/// True if there may be rings.
#[inline]
pub fn rings_exist() -> bool {
    RINGS.load(Ordering::Relaxed)
}

/// True if `fd` is a ring: two loads if there are no rings.
#[inline]
pub fn is_ring(fd: i32) -> bool {
    rings_exist() && frontend::is_ring(fd)
}

/// Makes one of the three calls on the user engine.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn call(number: usize, a: [usize; 6], caller: &Caller) -> isize {
    let fd = a[0] as i32;
    // The kernel reads the low halves of registers that hold 32-bit arguments.
    match number as u32 {
        // SAFETY: the caller's promise.
        raw::__NR_io_uring_enter => unsafe {
            metrics::enters();
            engine::enter(fd, a[1] as u32, a[2] as u32, a[3] as u32, a[4], a[5], caller)
        },
        // Each engine has a table of its own, and later calls do not say which of the two an index is in.
        raw::__NR_io_uring_register if beside::is_shared() && a[1] as u32 == REGISTER_RING_FDS => {
            -(EINVAL as isize)
        }
        // SAFETY: the caller's promise.
        raw::__NR_io_uring_register => unsafe { engine::register(fd, a[1] as u32, a[2], a[3] as u32) },
        // SAFETY: the caller's promise.
        _ => unsafe { setup(a[0] as u32, a[1] as *mut engine::io_uring_params, caller) },
    }
}

/// Makes one of the three calls in a traced process whose calls the kernel answers ([`crate::process::watches_kernel`]); `kernel`
/// makes the call. No signal handler of the program may run in the calling thread here, except inside `kernel`.
pub fn watched(number: usize, a: [usize; 6], kernel: impl FnOnce() -> isize) -> isize {
    let result = anyring_kernel_trace::call(number, a, kernel);
    if number == raw::__NR_io_uring_setup as usize {
        process::asks_for_ring();
        if result >= 0 {
            RINGS.store(true, Ordering::Relaxed);
        }
    }
    result
}

/// Logs the cause if no ring can be made because of a low file size limit, which the errno does not show. The engine returns `EFBIG` for
/// no other cause.
pub fn explain(number: usize, result: isize) {
    if result == -(EFBIG as isize) && number != raw::__NR_io_uring_enter as usize {
        let what = if number == raw::__NR_io_uring_setup as usize { "setup" } else { "register" };
        log::line(Level::Info, format_args!("io_uring_{what} fails with EFBIG: {SMALL_FILES}"));
    }
}

/// The reason that [`explain`] logs.
pub const SMALL_FILES: &str = "the limit on the size of files (RLIMIT_FSIZE, ulimit -f, LimitFSIZE=) is below 256 MiB (3 GiB for buffer rings) \
     and cannot be set higher: raise its hard limit, or use IORING_SETUP_NO_MMAP";

/// # Safety
/// As for [`engine::setup`].
unsafe fn setup(entries: u32, params: *mut engine::io_uring_params, caller: &Caller) -> isize {
    process::asks_for_ring();
    // SAFETY: the caller's promise.
    let result = unsafe { engine::setup(entries, params, caller) };
    if result >= 0 {
        RINGS.store(true, Ordering::Relaxed);
        metrics::begin();
        // SAFETY: the engine has just read and written it.
        let flags = unsafe { (*params).flags };
        log::debug!("io_uring_setup({entries}, flags {flags:#x}) = {result}");
    } else {
        log::debug!("io_uring_setup({entries}) = {result}");
    }
    result
}
