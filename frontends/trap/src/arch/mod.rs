//! Differences between architectures for the trap: the code of the stub page, the registers that a signal interrupted, the return
//! from a signal handler.
//!
//! The stub page has its own system call instruction. Its code is given as bytes, which are copied to an address at which no linker
//! puts code: the filter recognizes the calls that it lets through by their address, which must be the same in every process.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
