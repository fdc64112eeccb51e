//! Differences between architectures: the system call instruction, the start of a thread, the memory routines, and
//! where trapping front ends leave their page.

use core::num::NonZeroUsize;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// The thread pointer, which the program's threads have from the C library and ours from [`crate::threads`].
#[inline]
pub fn thread_pointer() -> NonZeroUsize {
    NonZeroUsize::new(anyring_engine::os::thread_pointer()).unwrap_or(NonZeroUsize::MIN)
}
