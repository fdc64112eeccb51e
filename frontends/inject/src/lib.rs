//! The image that brings the anyring engine into static programs.
//!
//! A static program has no dynamic linker that could load a library. The command `anyring` maps this image into the program by
//! `ptrace`, before the program's first instruction, and starts the process at the image's entry (`arch`), which installs the trap
//! and then jumps to the program. Calls at sites that `anyring` has patched enter the engine (`patched`); calls at other sites
//! trap. No function is interposed.
//!
//! The image is mapped without a dynamic linker: it needs no library, has no thread-local storage, and its only relocations are
//! addresses within the image.
#![no_std]

extern crate alloc;

mod arch;
mod frontend;
mod patched;
mod stack;
mod start;

anyring_runtime::runtime!();
