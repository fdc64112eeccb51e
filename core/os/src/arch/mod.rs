//! Code that differs between processors: the system call stub, the guarded copy, the cheap clock, the size
//! of the address space, address tags. A simulation replaces the processor's part.

#[cfg(all(target_arch = "aarch64", not(anyring_simulation)))]
mod aarch64;
#[cfg(anyring_simulation)]
mod simulated;
#[cfg(not(anyring_simulation))]
mod stub;
#[cfg(all(target_arch = "x86_64", not(anyring_simulation)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(anyring_simulation)))]
pub use aarch64::*;
#[cfg(anyring_simulation)]
pub use simulated::*;
#[cfg(not(anyring_simulation))]
pub use stub::*;
#[cfg(all(target_arch = "x86_64", not(anyring_simulation)))]
pub use x86_64::*;
