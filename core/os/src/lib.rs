//! Raw system calls. All of them go through one stub, so that a seccomp filter can tell the
//! engine's calls from the program's by address.
#![no_std]

extern crate alloc;

mod arch;
mod basic;
mod calls;
pub mod host;
pub mod limits;
pub mod own;
pub mod pages;
pub mod pauses;
mod proc;
pub mod region;
mod same_file;
mod signals;
mod sockets;
pub mod sync;
pub mod user;
#[cfg(not(anyring_simulation))]
pub mod vdso;

#[cfg(anyring_simulation)]
pub mod vdso {
    //! The simulated clock.

    /// Does nothing: the simulated clock needs no function of the kernel.
    pub fn find_clock() {}

    /// Returns the simulated monotonic clock in nanoseconds.
    pub fn monotonic_ns() -> u64 {
        super::clock_ns(super::nr::CLOCK_MONOTONIC)
    }
}

pub use arch::guarded_copy;
#[cfg(anyring_simulation)]
pub use arch::{System, install_system, point};
pub use arch::{
    interruption_address, prefetch, resume_address, stack_pointer, stub, thread_pointer, ticks, ticks_per_us,
};
pub use basic::*;
pub use calls::*;
pub use linux_raw_sys::general as nr;
pub use pages::{max_transfer_bytes, page_bytes};
pub use proc::{
    fd_path, fd_path_of, is_in_proc, mappings, mounts, number_in_proc, own_descriptors, own_threads,
    target_of, thread_status,
};
pub use same_file::{order_of_files, same_file};
pub use signals::*;
pub use sockets::{
    linger_seconds, set_socket_option, socket_cookie, socket_option, socket_option_at, unread, unsent,
};
pub use vdso::monotonic_ns;

use sync::atomic::AtomicU32;

use anyring_abi::Errno;

fn check(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(Errno::from_raw(result)) } else { Ok(result as usize) }
}

/// Makes a system call of up to six arguments.
///
/// # Safety
/// As for the system call itself: memory that it writes must be the caller's.
pub unsafe fn call(number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on to the caller.
    check(unsafe { arch::syscall6(number as usize, a, b, c, d, e, f) })
}

/// Makes a system call that a signal ends even if it arrives just before the call: if `stopped` is not zero, the
/// call is not made and fails with `EINTR` (see [`interruption_address`]).
///
/// # Safety
/// As for the system call itself.
pub unsafe fn call_interruptibly(
    number: u32,
    arguments: [usize; 6],
    stopped: &AtomicU32,
) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller; the word lives as long as the call.
    check(unsafe { arch::interruptible_syscall6(number as usize, arguments, stopped.as_ptr()) })
}
