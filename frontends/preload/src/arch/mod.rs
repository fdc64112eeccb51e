//! Assembly of this crate: a sleep that a signal can still keep from beginning, a word of thread-local storage, call sites that
//! are [patched](crate::patch), and functions that no compiler makes. That sleep has a `syscall` of its own, for a signal handler
//! must know each of the instructions between the look at the note and the call.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
