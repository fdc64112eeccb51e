//! The image that brings the anyring engine into static programs.
//!
//! A static program has no dynamic linker that would load a library. `anyring` maps this image into
//! it, by `ptrace` and before its first instruction, and lets it begin at `entry`; that installs the
//! trap and goes on with the program. Every call that the program makes by itself is trapped; nothing
//! is interposed and nothing patched.
//!
//! The image is mapped by hand: it needs no library, has no thread-local storage, and all that must
//! be adapted to where it lies are addresses within it.
#![no_std]

extern crate alloc;

mod arch;
mod frontend;
mod stack;
mod start;

anyring_runtime::runtime!();
