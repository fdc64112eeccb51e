//! io_uring in user space: [`setup`], [`enter`] and [`register`] with the kernel's ABI, done by
//! ordinary system calls of the calling process.
//!
//! The crate is `no_std`, has no thread-local storage and calls no libc, so it can live in any process and
//! inside a signal handler. The *front end* above it (the preload, the C library, the Rust crate, a test)
//! provides threads and more through [`Host`].
//!
//! Results are those of the raw system calls: a non-negative value or a negative errno.
#![no_std]

extern crate alloc;

pub mod assets;
mod calls;
pub mod feature;
pub mod frontend;
pub mod observe;
pub mod ops;
pub(crate) mod process;
pub mod queue;
pub mod request;
pub mod ring;
#[cfg(anyring_simulation)]
pub mod simulation;
pub mod work;

pub use anyring_abi as abi;
pub use anyring_os as os;
pub use anyring_wait as wait;
pub use calls::{probe, support};
pub use frontend::credentials;
pub use linux_raw_sys::io_uring::io_uring_params;
pub use observe::trace::calls::tell_registration;
pub use os::host::{Caller, Host, Outlet, install};
pub use os::pauses;

use observe::trace;
use ring::row::Table;

fn raw(result: Result<usize, abi::Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => errno.negated() as isize,
    }
}

/// `io_uring_setup(2)`: creates a ring and returns its file descriptor.
///
/// # Errors
/// Negative errno as the kernel's: `-EINVAL` (unknown flag, bad sizes), `-EFAULT`, `-ENOMEM`,
/// `-EMFILE`, ...
///
/// # Safety
/// As for the system call: memory that `params` designates (with `IORING_SETUP_NO_MMAP`) must be the caller's
/// to give.
pub unsafe fn setup(entries: u32, params: *mut io_uring_params, caller: &Caller) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { setup_with(&ops::TABLE, entries, params, caller) }
}

/// Creates a ring as [`setup`] does, with the operations in `table`: those of [`ops::ROWS`], and others. Probes and queries
/// report those of [`ops::ROWS`] only.
///
/// # Errors
/// As [`setup`].
///
/// # Safety
/// As [`setup`].
pub unsafe fn setup_with(
    table: &'static Table,
    entries: u32,
    params: *mut io_uring_params,
    caller: &Caller,
) -> isize {
    calls::fork::notice();
    let setup = if trace::is_on() { observe::trace::calls::setup } else { calls::setup::setup };
    raw(setup(entries, params as u64, table, caller).map(|fd| fd as usize))
}

/// `io_uring_enter2(2)`: submits up to `to_submit` SQEs and, with `IORING_ENTER_GETEVENTS`, waits
/// for `min_complete` CQEs. `arg` is a signal mask or, with `IORING_ENTER_EXT_ARG`, an
/// `io_uring_getevents_arg`; `arg_size` its size in bytes.
///
/// # Errors
/// Negative errno as the kernel's; `-EOPNOTSUPP` if `fd` is no ring of this engine, `-EBADF` if it is not
/// open.
///
/// # Safety
/// As for the system call: the SQEs name memory that the requests will read and write.
pub unsafe fn enter(
    fd: i32,
    to_submit: u32,
    min_complete: u32,
    flags: u32,
    arg: usize,
    arg_size: usize,
    caller: &Caller,
) -> isize {
    let call =
        calls::enter::Enter { to_submit, min_complete, flags, argument: arg as u64, argument_size: arg_size };
    calls::fork::notice();
    if trace::is_on() {
        return raw(observe::trace::calls::enter(fd, &call, caller));
    }
    raw(calls::enter::enter(fd, &call, caller))
}

/// `io_uring_register(2)`.
///
/// # Errors
/// Negative errno as the kernel's.
///
/// # Safety
/// As for the system call: registered memory must stay the caller's to give.
pub unsafe fn register(fd: i32, opcode: u32, arg: usize, nr_args: u32) -> isize {
    let call = calls::register::call::Register { opcode, argument: arg as u64, count: nr_args };
    calls::fork::notice();
    let register = if trace::is_on() { observe::trace::calls::register } else { calls::register::register };
    raw(register(fd, &call))
}
