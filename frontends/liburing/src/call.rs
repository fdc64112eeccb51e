//! The three calls, made on the engine of this process, and system calls of the library in addition to
//! [`anyring_runtime::sys`]. None of them changes `errno`.

use crate::types::Sqe;
use crate::user;
use anyring_runtime::{arch, sys};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::io_uring_params;

/// No ring was made yet.
const UNDECIDED: u8 = 0;
/// The kernel engine serves this process.
const KERNEL: u8 = 1;
/// The user engine serves this process.
const USER: u8 = 2;
/// The kernel engine serves this process, and the user engine adds what it lacks: operations, or whole rings.
const BOTH: u8 = 3;

/// The engine that serves this process. Until a ring is made, the kernel answers calls.
static ENGINE: AtomicU8 = AtomicU8::new(UNDECIDED);

/// True if the user engine serves all rings of this process.
#[inline(always)]
pub fn is_user() -> bool {
    // Acquire pairs with the release in `choose`: the engine was started.
    ENGINE.load(Ordering::Acquire) == USER
}

/// True if the user engine is there beside the kernel engine.
#[inline(always)]
fn is_both() -> bool {
    // Acquire pairs with the release in `stand_beside`: the engine was started.
    ENGINE.load(Ordering::Acquire) == BOTH
}

/// True if `fd` is a ring of the user engine.
pub fn serves(fd: c_int) -> bool {
    is_user() || is_both() && user::has(fd)
}

/// True if the user engine answers this call.
#[inline(always)]
fn answers(number: u32, arguments: [usize; 6]) -> bool {
    !is_plain() && (is_user() || is_both() && user::answers(number as usize, arguments))
}

/// True if the kernel engine alone serves this process, so far.
#[inline(always)]
pub fn is_plain() -> bool {
    ENGINE.load(Ordering::Relaxed) <= KERNEL
}

/// True if the user engine does operations that the kernel lacks.
#[inline(always)]
pub fn is_extended() -> bool {
    is_both() && EXTENDS.load(Ordering::Relaxed)
}

/// Notes that the program is going to submit operations that the kernel lacks.
pub fn extend() {
    if !EXTENDS.load(Ordering::Relaxed) || !is_decided() {
        EXTENDS.store(true, Ordering::Relaxed);
        // Pairs with the fence in `choose`: either `choose` sees the store above, or the choice is seen here.
        fence(Ordering::SeqCst);
    }
    if ENGINE.load(Ordering::Relaxed) == KERNEL && !user::others_answer() {
        stand_beside();
    }
}

/// Starts the user engine beside the kernel engine.
fn stand_beside() {
    user::begin_beside_kernel();
    ENGINE.store(BOTH, Ordering::Release);
}

/// True if the program has made a ring, or tried to.
pub fn is_decided() -> bool {
    ENGINE.load(Ordering::Relaxed) != UNDECIDED
}

/// True if the program has said that it uses operations that the kernel lacks.
static EXTENDS: AtomicBool = AtomicBool::new(false);

#[cold]
fn choose() {
    let engine = if user::is_wanted() { USER } else { KERNEL };
    // Another thread may have chosen meanwhile; its choice stays. Release pairs with the acquire in `is_user`.
    let _ = ENGINE.compare_exchange(UNDECIDED, engine, Ordering::Release, Ordering::Relaxed);
    // Pairs with the fence in `extend`.
    fence(Ordering::SeqCst);
    if EXTENDS.load(Ordering::Relaxed) {
        extend();
    }
}

/// Makes `io_uring_setup(2)`; returns a descriptor, or a negative errno.
///
/// # Safety
/// As for the call.
pub unsafe fn setup(entries: c_uint, params: *mut io_uring_params) -> c_int {
    if ENGINE.load(Ordering::Relaxed) == UNDECIDED {
        choose();
    }
    let arguments = [entries as usize, params.addr(), 0, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe {
        if is_user() {
            return user::call(raw::__NR_io_uring_setup as usize, arguments);
        }
        let fd = user::set_up(arguments, stand_beside);
        if is_both() {
            // The descriptor's number may have belonged to another ring that was closed unseen.
            anyring_kernel_ring::close(fd);
        }
        fd
    }
}

/// Makes `io_uring_enter2(2)`.
///
/// # Safety
/// As for the call.
#[inline(always)]
pub unsafe fn enter(
    fd: c_int,
    submit: c_uint,
    least: c_uint,
    flags: c_uint,
    argument: *const c_void,
    argument_bytes: usize,
) -> c_int {
    let arguments =
        [fd as usize, submit as usize, least as usize, flags as usize, argument.addr(), argument_bytes];
    // SAFETY: the caller's promise.
    unsafe {
        if answers(raw::__NR_io_uring_enter, arguments) {
            return user_enter(fd, submit, least, flags, argument, argument_bytes);
        }
        kernel_enter(fd, submit, least, flags, argument, argument_bytes)
    }
}

/// Makes `io_uring_enter2(2)` on the kernel.
///
/// # Safety
/// As for the call.
#[inline(always)]
pub unsafe fn kernel_enter(
    fd: c_int,
    submit: c_uint,
    least: c_uint,
    flags: c_uint,
    argument: *const c_void,
    argument_bytes: usize,
) -> c_int {
    let arguments =
        [fd as usize, submit as usize, least as usize, flags as usize, argument.addr(), argument_bytes];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_io_uring_enter as usize, arguments) as c_int }
}

/// Makes `io_uring_enter2(2)` on the user engine. A separate function, so that the path to the kernel saves few registers.
///
/// # Safety
/// As for [`enter`].
#[cold]
#[inline(never)]
unsafe extern "C" fn user_enter(
    fd: c_int,
    submit: c_uint,
    least: c_uint,
    flags: c_uint,
    argument: *const c_void,
    argument_bytes: usize,
) -> c_int {
    let arguments =
        [fd as usize, submit as usize, least as usize, flags as usize, argument.addr(), argument_bytes];
    // SAFETY: the caller's promise.
    unsafe { user::call(raw::__NR_io_uring_enter as usize, arguments) }
}

/// Makes `io_uring_register(2)`.
///
/// # Safety
/// As for the call.
pub unsafe fn register(fd: c_int, opcode: c_uint, argument: *const c_void, count: c_uint) -> c_int {
    let arguments = [fd as usize, opcode as usize, argument.addr(), count as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe {
        // Some registrations need no ring, and may be a program's first call.
        if fd == -1 && ENGINE.load(Ordering::Relaxed) == UNDECIDED {
            choose();
        }
        if answers(raw::__NR_io_uring_register, arguments) {
            user::call(raw::__NR_io_uring_register as usize, arguments)
        } else {
            arch::syscall(raw::__NR_io_uring_register as usize, arguments) as c_int
        }
    }
}

/// Makes `mmap(2)` of a file or of new memory, readable and writable.
///
/// # Errors
/// The negative errno.
pub fn map(bytes: usize, flags: c_uint, fd: c_int, offset: u64) -> Result<*mut c_void, c_int> {
    let protection = (raw::PROT_READ | raw::PROT_WRITE) as usize;
    let arguments = [0, bytes, protection, flags as usize, fd as isize as usize, offset as usize];
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let result = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
    if (-4095..0).contains(&result) {
        return Err(result as c_int);
    }
    Ok(core::ptr::with_exposed_provenance_mut(result as usize))
}

/// Makes `munmap(2)`.
///
/// # Safety
/// The memory must not be in use any more.
pub unsafe fn unmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { sys::unmap(address.addr(), bytes) as c_int }
}

/// Leaves memory out of children of `fork`.
///
/// # Safety
/// The program must have asked for it.
pub unsafe fn dont_fork(address: *mut c_void, bytes: usize) -> c_int {
    let arguments = [address.addr(), bytes, raw::MADV_DONTFORK as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_madvise as usize, arguments) as c_int }
}

/// Closes a ring's descriptor.
pub fn close(fd: c_int) {
    if serves(fd) {
        user::closing(fd);
    } else if is_both() {
        anyring_kernel_ring::close(fd);
    }
    close_own(fd);
}

/// Closes the descriptor of a ring that continues without it; `sqes` is the address of the ring's SQEs.
pub fn close_descriptor(fd: c_int, sqes: *const Sqe) {
    if is_both() && !serves(fd) {
        anyring_kernel_ring::close_descriptor(fd, sqes);
    }
    close(fd);
}

/// Notes the end of a ring without a descriptor; `sqes` is the address of its SQEs.
pub fn close_memory(sqes: *const Sqe) {
    if is_both() {
        anyring_kernel_ring::close_memory(sqes);
    }
}

/// Notes that the SQEs of a ring without a descriptor have moved.
pub fn move_memory(from: *const Sqe, to: *const Sqe) {
    if is_both() {
        anyring_kernel_ring::move_memory(from, to);
    }
}

/// Closes a descriptor that only the library uses.
pub fn close_own(fd: c_int) {
    sys::close(fd);
}

/// Returns a duplicate for the library itself, above the low numbers if there is room; a negative errno on
/// failure.
pub fn duplicate(fd: c_int) -> c_int {
    const HIGH: usize = 512;
    let command = raw::F_DUPFD_CLOEXEC as usize;
    // SAFETY: touches no memory.
    let from = |least| unsafe {
        arch::syscall(raw::__NR_fcntl as usize, [fd as usize, command, least, 0, 0, 0]) as c_int
    };
    let high = from(HIGH);
    if high < 0 { from(3) } else { high }
}

/// Makes `target` a duplicate of `fd`.
pub fn replace(fd: c_int, target: c_int) {
    let arguments = [fd as usize, target as usize, raw::O_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: touches no memory; both descriptors belong to the ring.
    unsafe { arch::syscall(raw::__NR_dup3 as usize, arguments) };
}

/// Raises the soft limit of descriptors by `more` if it is less than `more`.
///
/// # Errors
/// The negative errno of a limit that cannot be read.
pub fn raise_descriptor_limit(more: u64) -> Result<(), c_int> {
    const NOFILE: usize = raw::RLIMIT_NOFILE as usize;
    let mut limit = [0_u64; 2];
    let limits = |new: *const u64, old: *mut u64| {
        let arguments = [0, NOFILE, new.addr(), old.addr(), 0, 0];
        // SAFETY: each pointer is null or points to two words.
        unsafe { arch::syscall(raw::__NR_prlimit64 as usize, arguments) as c_int }
    };
    let result = limits(core::ptr::null(), limit.as_mut_ptr());
    if result < 0 {
        return Err(result);
    }
    if limit[0] < more {
        limit[0] += more;
        limits(limit.as_ptr(), core::ptr::null_mut());
    }
    Ok(())
}

/// Returns the size of a page in bytes.
pub fn page_bytes() -> usize {
    unsafe extern "C" {
        fn getauxval(name: usize) -> usize;
    }
    const PAGE_SIZE: usize = 6;
    // SAFETY: only reads a value.
    match unsafe { getauxval(PAGE_SIZE) } {
        0 => 4096,
        bytes => bytes,
    }
}
