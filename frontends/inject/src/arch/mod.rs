//! Where the image begins, and where it hands over to the program; where patched call sites come in.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{VFORK, front, learn, site, thread_pointer};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{VFORK, front, learn, site, thread_pointer};
