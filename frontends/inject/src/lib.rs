//! The image that brings the anyring engine into static programs.
//!
//! A static program has no dynamic linker that would load a library. `anyring` maps this image into
//! it, by `ptrace` and before its first instruction, and lets it begin at `entry`; that installs the
//! trap and goes on with the program. Calls at sites that `anyring` has patched enter the engine (`patched`); those that it has not found
//! are trapped. Nothing is interposed.
//!
//! The image is mapped by hand: it needs no library, has no thread-local storage, and all that must
//! be adapted to where it lies are addresses within it.
#![no_std]

extern crate alloc;

mod arch;
mod frontend;
// No site of a static program is patched on other processors yet: there is nothing to enter by.
#[cfg_attr(not(target_arch = "x86_64"), path = "patched/nowhere.rs")]
mod patched;
mod stack;
mod start;

anyring_runtime::runtime!();
