//! Assembly of this crate: a sleep that a signal can prevent until it begins, a word of thread-local storage, call sites that
//! are [patched](crate::patch), and functions that cannot be written in Rust. The sleep has a `syscall` instruction of its own, because a
//! signal handler must know each instruction between the test of the note and the call.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
