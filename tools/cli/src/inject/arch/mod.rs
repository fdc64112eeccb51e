//! Differences between architectures for the tracer: the instruction for system calls, and the registers that the kernel uses
//! for them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
// The search is the same wherever it runs, and is tested everywhere.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[path = "aarch64/sites/mod.rs"]
#[allow(dead_code, reason = "its tests use a part")]
mod sites_of_aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
