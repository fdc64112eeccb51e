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

/// Calls by their numbers, as `syscall(3)` makes them, that functions of a front end stand in front of.
pub struct Row {
    /// The numbers.
    pub numbers: &'static [u32],
    /// Makes such a call.
    ///
    /// # Safety
    /// As for the call.
    pub call: unsafe fn(usize, [usize; 6]) -> isize,
    /// Whether descriptors come to other processes by it, or from them, or are duplicated: the engine has to know of each such call.
    pub hands_over: bool,
}

impl Row {
    /// The answer of the row that has `number`, if one has.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn answer(
        mut rows: impl Iterator<Item = &'static Row>,
        number: usize,
        a: [usize; 6],
    ) -> Option<isize> {
        let row = rows.find(|row| row.numbers.contains(&(number as u32)))?;
        // SAFETY: the caller's promise.
        Some(unsafe { (row.call)(number, a) })
    }
}

/// All calls that a front end answers by their numbers, beside the three and those of [`Frontend::other_call`].
pub fn rows<F: Frontend>() -> impl Iterator<Item = &'static Row> {
    descriptors::Calls::<F>::ROWS.iter().chain(sockets::Calls::<F>::ROWS).chain(F::ROWS)
}

/// A front end that exports these functions.
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

    /// Calls that the front end answers by their numbers, beside those of this crate.
    const ROWS: &[Row] = &[];

    /// A call by its number that is none of them, but that the front end may answer, too; `None` leaves it to the kernel.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn other_call(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}
