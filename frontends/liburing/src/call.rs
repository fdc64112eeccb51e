//! The three calls, by the engine of this process, and the other system calls that the library makes beside those of
//! [`anyring_runtime::sys`]. None touches `errno`.

use crate::types::Sqe;
use crate::user;
use anyring_runtime::{arch, sys};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::io_uring_params;

/// No ring was made yet.
const UNDECIDED: u8 = 0;
/// The kernel's `io_uring` serves this process.
const KERNEL: u8 = 1;
/// Anyring's does.
const USER: u8 = 2;
/// The kernel's does, and anyring's what that lacks: operations, or whole rings.
const BOTH: u8 = 3;

/// Which engine serves this process. Until a ring is made the kernel answers, who knows of none.
static ENGINE: AtomicU8 = AtomicU8::new(UNDECIDED);

/// Whether anyring's engine serves all rings of this process.
#[inline(always)]
pub fn is_user() -> bool {
    // Acquire pairs with the release in `choose`: the engine is in place.
    ENGINE.load(Ordering::Acquire) == USER
}

/// Whether anyring's engine is there beside the kernel's.
#[inline(always)]
fn is_both() -> bool {
    // Acquire pairs with the release in `stand_beside`: the engine is in place.
    ENGINE.load(Ordering::Acquire) == BOTH
}

/// Whether `fd` is a ring of anyring's engine.
pub fn serves(fd: c_int) -> bool {
    is_user() || is_both() && user::has(fd)
}

/// Whether anyring's engine answers this call.
#[inline(always)]
fn answers(number: u32, arguments: [usize; 6]) -> bool {
    !is_plain() && (is_user() || is_both() && user::answers(number as usize, arguments))
}

/// Whether nothing but the kernel's `io_uring` is there for the program.
#[inline(always)]
pub fn is_plain() -> bool {
    ENGINE.load(Ordering::Relaxed) <= KERNEL
}

/// Whether anyring's engine does operations that the kernel lacks.
#[inline(always)]
pub fn is_extended() -> bool {
    is_both() && EXTENDS.load(Ordering::Relaxed)
}

/// The program is going to submit operations that the kernel lacks.
pub fn extend() {
    if !EXTENDS.load(Ordering::Relaxed) || !is_decided() {
        EXTENDS.store(true, Ordering::Relaxed);
        // Pairs with `choose`: either that sees what the program has said, or the choice is seen here.
        fence(Ordering::SeqCst);
    }
    if ENGINE.load(Ordering::Relaxed) == KERNEL && !user::others_answer() {
        stand_beside();
    }
}

/// Puts anyring's engine in place beside the kernel's.
fn stand_beside() {
    user::begin_beside_kernel();
    ENGINE.store(BOTH, Ordering::Release);
}

/// Whether the program has made a ring, or tried to.
pub fn is_decided() -> bool {
    ENGINE.load(Ordering::Relaxed) != UNDECIDED
}

/// Whether the program has said that it uses operations that the kernel lacks.
static EXTENDS: AtomicBool = AtomicBool::new(false);

#[cold]
fn choose() {
    let engine = if user::is_wanted() { USER } else { KERNEL };
    // Another thread may have chosen meanwhile, and gone on. Release pairs with `is_user`.
    let _ = ENGINE.compare_exchange(UNDECIDED, engine, Ordering::Release, Ordering::Relaxed);
    // Pairs with `extend`.
    fence(Ordering::SeqCst);
    if EXTENDS.load(Ordering::Relaxed) {
        extend();
    }
}

/// `io_uring_setup(2)`: a descriptor, or a negative errno.
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
            // The number may have been another ring's, which was closed unseen.
            anyring_kernel_ring::close(fd);
        }
        fd
    }
}

/// `io_uring_enter2(2)`.
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

/// `io_uring_enter2(2)`, where the kernel answers.
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

/// Apart, so that the way to the kernel keeps its few registers.
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

/// `io_uring_register(2)`.
///
/// # Safety
/// As for the call.
pub unsafe fn register(fd: c_int, opcode: c_uint, argument: *const c_void, count: c_uint) -> c_int {
    let arguments = [fd as usize, opcode as usize, argument.addr(), count as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe {
        // Some calls need no ring, and may be the first ones.
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

/// `mmap(2)`: the address or a negative errno.
///
/// # Errors
/// The negative errno.
pub fn map(bytes: usize, flags: c_uint, fd: c_int, offset: u64) -> Result<*mut c_void, c_int> {
    let protection = (raw::PROT_READ | raw::PROT_WRITE) as usize;
    let arguments = [0, bytes, protection, flags as usize, fd as isize as usize, offset as usize];
    // SAFETY: new memory, wherever the kernel likes.
    let result = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
    if (-4095..0).contains(&result) {
        return Err(result as c_int);
    }
    Ok(core::ptr::with_exposed_provenance_mut(result as usize))
}

/// `munmap(2)`.
///
/// # Safety
/// Nobody may use the memory any more.
pub unsafe fn unmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { sys::unmap(address.addr(), bytes) as c_int }
}

/// Keeps memory from children.
///
/// # Safety
/// The program asked for it.
pub unsafe fn dont_fork(address: *mut c_void, bytes: usize) -> c_int {
    let arguments = [address.addr(), bytes, raw::MADV_DONTFORK as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_madvise as usize, arguments) as c_int }
}

/// `close(2)` of a ring's descriptor.
pub fn close(fd: c_int) {
    if serves(fd) {
        user::closing(fd);
    } else if is_both() {
        anyring_kernel_ring::close(fd);
    }
    close_own(fd);
}

/// `close(2)` of the descriptor of a ring whose SQEs lie there, and which goes on without.
pub fn close_descriptor(fd: c_int, sqes: *const Sqe) {
    if is_both() && !serves(fd) {
        anyring_kernel_ring::close_descriptor(fd, sqes);
    }
    close(fd);
}

/// A ring without a descriptor ends, whose SQEs lie there.
pub fn close_memory(sqes: *const Sqe) {
    if is_both() {
        anyring_kernel_ring::close_memory(sqes);
    }
}

/// The SQEs of a ring without a descriptor lie elsewhere from now on.
pub fn move_memory(from: *const Sqe, to: *const Sqe) {
    if is_both() {
        anyring_kernel_ring::move_memory(from, to);
    }
}

/// Closes a descriptor that nobody but the library uses any more.
pub fn close_own(fd: c_int) {
    sys::close(fd);
}

/// A duplicate for the library itself, out of the way of low numbers where there is room; a negative errno on
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

/// Lets `target` be what `fd` is.
pub fn replace(fd: c_int, target: c_int) {
    let arguments = [fd as usize, target as usize, raw::O_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: touches no memory; both are the ring's own.
    unsafe { arch::syscall(raw::__NR_dup3 as usize, arguments) };
}

/// Raises the soft limit of descriptors by `more` if it is below that.
///
/// # Errors
/// The negative errno with which it could not be asked for.
pub fn raise_descriptor_limit(more: u64) -> Result<(), c_int> {
    const NOFILE: usize = raw::RLIMIT_NOFILE as usize;
    let mut limit = [0_u64; 2];
    let limits = |new: *const u64, old: *mut u64| {
        let arguments = [0, NOFILE, new.addr(), old.addr(), 0, 0];
        // SAFETY: null or two words each.
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

/// The size of a page.
pub fn page_bytes() -> usize {
    unsafe extern "C" {
        fn getauxval(name: usize) -> usize;
    }
    const PAGE_SIZE: usize = 6;
    // SAFETY: asks only.
    match unsafe { getauxval(PAGE_SIZE) } {
        0 => 4096,
        bytes => bytes,
    }
}
