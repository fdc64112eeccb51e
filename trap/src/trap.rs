//! The SIGSYS trap: system calls of `io_uring` that no function of ours sees.
//!
//! The handler runs the engine right there, on the program's stack (or its alternate one), at a
//! system call instruction, with every signal blocked that may be; it puts the result into the saved
//! register and returns. Nothing here touches `errno`, the C library or thread-local storage.

use crate::arch::Context;
use crate::config::Choice;
use crate::filter::{self, Reach};
use crate::{arch, calls, low, signals, stub};
use anyring_engine::{Caller, door};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use linux_raw_sys::errno::{EFAULT, ENOSYS};
use linux_raw_sys::general as raw;

/// Calls that came through the trap.
pub static TRAPS: AtomicU64 = AtomicU64::new(0);
/// The next trap is a question of [`calls_trap`].
static ASKING: AtomicBool = AtomicBool::new(false);
/// Whether trapped calls go on to the kernel.
static PASS_ON: AtomicBool = AtomicBool::new(false);

/// What a question is answered with; no errno.
const ANSWER: isize = -4095;
/// `si_code` of a trap.
const SYS_SECCOMP: c_int = 1;

/// The part of `siginfo_t` that a trap fills in.
#[repr(C)]
struct TrapInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    /// The union is aligned to 8 bytes.
    padding: c_int,
    address: usize,
    number: c_int,
    architecture: u32,
}

/// Whether the kernel's `io_uring` may be used: with parameters that cannot be read, the kernel
/// says `EFAULT` only when it would have gone on.
pub fn kernel_allows() -> bool {
    let number = raw::__NR_io_uring_setup as usize;
    // SAFETY: creates nothing, reads nothing.
    unsafe { stub::syscall(number, [1, 0, 0, 0, 0, 0]) == -(EFAULT as isize) }
}

/// Takes the three signals and makes the three calls trap.
///
/// # Errors
/// What failed, and the negative errno.
pub fn install(choice: Choice, reach: Reach) -> Result<(), (&'static str, isize)> {
    PASS_ON.store(choice == Choice::Kernel, Ordering::Relaxed);
    signals::install(handler).map_err(|error| ("sigaction", error))?;
    if choice == Choice::Kernel {
        return Ok(());
    }
    if calls_trap(reach) {
        return Ok(());
    }
    filter::install(reach).map_err(|error| ("seccomp", error))?;
    if calls_trap(reach) { Ok(()) } else { Err(("seccomp: calls do not trap", 0)) }
}

/// Whether calls trap already, because an ancestor installed the filter before `exec`.
fn calls_trap(reach: Reach) -> bool {
    let call = |from: fn() -> isize| {
        ASKING.store(true, Ordering::Relaxed);
        let trapped = from() == ANSWER;
        ASKING.store(false, Ordering::Relaxed);
        trapped
    };
    let high = call(|| {
        let number = raw::__NR_io_uring_setup as usize;
        // SAFETY: creates nothing, reads nothing.
        unsafe { arch::syscall(number, [0; 6]) }
    });
    high && (reach == Reach::High || call(low::ring_call))
}

/// The handler.
///
/// # Safety
/// Called by the kernel.
unsafe extern "C" fn handler(signal: c_int, info: *mut c_void, context: *mut Context) {
    // SAFETY: the kernel's.
    let (trap, interrupted) = unsafe { (&*info.cast::<TrapInfo>(), &mut *context) };
    let number = trap.number as usize;
    let ours = calls::is_ring_call(number) || number == raw::__NR_mmap as usize;
    if trap.code != SYS_SECCOMP || trap.architecture != arch::AUDIT_ARCH || !ours {
        // SAFETY: arguments as the kernel gave them.
        unsafe { signals::obey(signal, info, interrupted) };
        return;
    }
    if ASKING.load(Ordering::Relaxed) {
        interrupted.set_result(ANSWER);
        return;
    }
    TRAPS.fetch_add(1, Ordering::Relaxed);
    let arguments = interrupted.arguments();
    // SAFETY: the program made the call.
    let result = unsafe { perform(number, arguments, interrupted.signal_mask()) };
    interrupted.set_result(result);
    signals::let_in(interrupted.signal_mask());
    if number != raw::__NR_mmap as usize
        && let Some(door) = crate::door()
    {
        door.trapped_at(interrupted.instruction_pointer());
    }
}

/// Does what the trapped call asked for.
///
/// # Safety
/// As for the call.
unsafe fn perform(number: usize, mut arguments: [usize; 6], mask: u64) -> isize {
    if number == raw::__NR_mmap as usize {
        // A ring of ours has both rings at offset 0.
        if calls::is_ring(arguments[4] as i32) {
            arguments[5] = 0;
        }
        // SAFETY: the program's own call.
        return unsafe { stub::syscall(number, arguments) };
    }
    if PASS_ON.load(Ordering::Relaxed) {
        // SAFETY: the program's own call.
        return unsafe { stub::syscall(number, arguments) };
    }
    if !crate::active() {
        return -(ENOSYS as isize);
    }
    // SAFETY: the program's own call.
    unsafe { calls::call(number, arguments, &Caller { signal_mask: Some(mask) }) }
}

/// Whether anything that the engine does here could be seen: for the line at the end.
pub fn used() -> bool {
    TRAPS.load(Ordering::Relaxed) != 0 || door::counters().rings != 0
}
