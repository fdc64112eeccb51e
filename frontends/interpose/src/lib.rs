//! Functions that stand in front of the C library's: those that make the three calls by number, that close and
//! duplicate descriptors, that wait for them, and that change credentials.
//!
//! They are plain functions here. A front end exports them under the C library's names with [`export!`]: the preloaded
//! library, in front of everything in the process, and a program that says `anyring::everywhere!()`, in which the
//! linker prefers them to those of the C library.
#![no_std]

extern crate alloc;

mod arch;
pub mod calls;
pub mod credentials;
pub mod descriptors;
mod export;
pub mod next;
pub mod sockets;
pub mod wait;

/// What differs between the front ends that export these functions.
pub trait Frontend {
    /// A thread's stay in the engine, during which no signal handler of the program runs in it; it ends with the
    /// value.
    type Stay;

    /// The calling thread enters the engine.
    fn enter() -> Self::Stay;

    /// Whether this one of the three calls is the kernel's to answer.
    #[inline]
    fn hands_through(_number: usize) -> bool {
        false
    }

    /// One of the three calls; `None` leaves it to the kernel.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn call(number: usize, arguments: [usize; 6]) -> Option<isize>;

    /// A call by its number that is none of the three, but that the front end may answer, too; `None` leaves it to the kernel.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn other_call(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}
