//! The base of front ends that may not count on a C library.
//!
//! Threads ([`threads`]) and memory ([`allocator`]) that the program's C library knows nothing of, system calls that
//! leave `errno` alone ([`sys`]), the settings of the user ([`config`]) and lines for him ([`log`]); which engine the
//! process has ([`process`]) and the way into it ([`calls`]); its own descriptors ([`descriptors`]); rings of ours among the kernel's ([`beside`]); questions that may kill ([`ask`]);
//! calls in which a thread may end ([`cleanup`]). A library that is loaded into programs takes its allocator,
//! its memory routines and its answer to a panic by [`runtime!`].
//!
//! Nothing here uses libc or thread-local storage: a static program may have neither. Nothing here knows of the trap,
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
pub mod process;
pub mod stats;
pub mod sys;
#[cfg_attr(anyring_sanitizer, path = "sanitizer/threads.rs")]
pub mod threads;
pub mod trace;

pub use process::active;

/// Defines what a library that is loaded into programs is built on.
///
/// Their allocator, their answer to a panic, their memory routines, and a name that code of `core` refers to.
#[macro_export]
macro_rules! runtime {
    () => {
        #[cfg(not(test))]
        mod runtime {
            #[global_allocator]
            static ALLOCATOR: $crate::allocator::Allocator = $crate::allocator::Allocator::new();

            /// A panic is a bug of ours; the process must not go on with half a request done.
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
