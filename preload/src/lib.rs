//! Brings the anyring engine into unmodified programs.
//!
//! Loaded by `LD_PRELOAD` (`anyring run` sets it), the library answers `io_uring` calls in two ways:
//! functions of the C library are interposed ([`interpose`]), and system calls that the program makes
//! by itself are trapped by a seccomp filter ([`trap`]); call sites that trapped are patched to jump
//! here ([`patch`]). Where the kernel's own `io_uring` is to be used, none of that is installed.
//!
//! Everything that may run inside the trap's signal handler uses raw system calls, its own memory
//! ([`allocator`]) and no thread-local storage.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod allocator;
pub mod arch;
pub mod config;
pub mod dispatch;
pub mod filter;
pub mod host;
pub mod inside;
#[cfg(not(test))]
pub mod interpose;
pub mod log;
pub mod low;
pub mod next;
#[cfg(target_arch = "x86_64")]
pub mod patch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "patch_none.rs"]
pub mod patch;
pub mod signals;
pub mod start;
pub mod stub;
pub mod sys;
pub mod trap;

pub use start::active;

#[cfg(not(test))]
mod runtime {
    use crate::{allocator::Allocator, log, sys};

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator::new();

    /// A panic is a bug of ours; the process must not go on with half a request done.
    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        log::write(format_args!("bug: {info}"));
        sys::raise(linux_raw_sys::general::SIGABRT as i32);
        sys::exit_group(134)
    }

    // Code of `core` that was compiled for unwinding names this; nothing here unwinds.
    core::arch::global_asm!(
        ".globl rust_eh_personality",
        ".hidden rust_eh_personality",
        "rust_eh_personality:",
    );
}
