//! Differences between architectures: the system call instruction, the start of a thread, the memory routines, and
//! the address of the page of trapping front ends.

use core::num::NonZeroUsize;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Returns the thread pointer, which the C library sets in the program's threads and [`crate::threads`] in the engine's.
#[inline]
pub fn thread_pointer() -> NonZeroUsize {
    NonZeroUsize::new(anyring_engine::os::thread_pointer()).unwrap_or(NonZeroUsize::MIN)
}
