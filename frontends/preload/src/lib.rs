//! Brings the anyring engine into unmodified programs.
//!
//! `LD_PRELOAD`, which `anyring run` sets, loads the library. The library answers `io_uring` calls in two ways:
//! functions of the C library are interposed ([`interpose`]), and system calls that the program makes by its own
//! instructions are trapped by a seccomp filter ([`anyring_trap`]); call sites that trapped are patched to jump to this
//! library ([`patch`]). If the kernel's own `io_uring` is to be used, none of this is installed.
//!
//! Everything that may run inside the trap's signal handler uses raw system calls, its own memory
//! ([`anyring_runtime::allocator`]) and no thread-local storage.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

#[cfg(not(test))]
pub mod answer;
pub mod arch;
pub mod cancel;
pub mod dispatch;
pub mod file_actions;
pub mod frontend;
pub mod inside;
#[cfg(not(test))]
pub mod interpose;
pub mod patch;
#[cfg(not(test))]
pub mod probe;
pub mod start;
pub mod threads;

anyring_runtime::runtime!();
