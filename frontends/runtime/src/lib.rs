//! The base of front ends that cannot rely on a C library.
//!
//! Threads ([`threads`]) and memory ([`allocator`]) that are independent of the program's C library, system calls that
//! leave `errno` alone ([`sys`]), the user's settings ([`config`]) and the log ([`log`]); the process's engine
//! ([`process`]) and its entry ([`calls`]); the engine's own descriptors ([`descriptors`]); rings of the user engine among the
//! kernel's ([`beside`]); questions that may kill the asking process ([`ask`]); calls during which a thread may end ([`cleanup`]). A
//! library that is loaded into programs gets its allocator, its memory routines and its panic handler from [`runtime!`].
//!
//! Nothing here uses libc or thread-local storage: a static program may have neither. Nothing here depends on the trap,
//! which is built on this crate.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

#[cfg_attr(anyring_sanitizer, path = "sanitizer/allocator.rs")]
pub mod allocator;
pub mod arch;
pub mod ask;
mod attach;
pub mod beside;
pub mod calls;
pub mod chaos;
pub mod cleanup;
pub mod config;
pub mod credentials;
pub mod descriptors;
pub mod log;
pub mod metrics;
pub mod process;
pub mod stats;
pub mod sys;
#[cfg_attr(anyring_sanitizer, path = "sanitizer/threads.rs")]
pub mod threads;
pub mod trace;
pub mod valgrind;

pub use process::active;

/// Defines the base of a library that is loaded into programs.
///
/// These are the allocator, the panic handler, the memory routines, and a symbol that code of `core` refers to.
#[macro_export]
macro_rules! runtime {
    () => {
        #[cfg(not(test))]
        mod runtime {
            #[global_allocator]
            static ALLOCATOR: $crate::allocator::Allocator = $crate::allocator::Allocator::new();

            /// Handles a panic, which is a bug of anyring; the process must not continue with a request half done.
            #[panic_handler]
            fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
                $crate::process::bug(info)
            }

            $crate::memory_routines!();

            // Code of `core` that was compiled for unwinding names this; nothing here unwinds.
            core::arch::global_asm!(
                ".globl rust_eh_personality",
                ".hidden rust_eh_personality",
                "rust_eh_personality:",
            );
        }
    };
}
