//! Functions that replace those of the C library: functions that make the three calls by number, that close or duplicate
//! descriptors, directly or with a stream, that wait for descriptors, and that change credentials.
//!
//! This crate defines them as ordinary functions. A front end exports them under the C library's names with [`export!`]: the
//! preloaded library, which comes before all other libraries of the process, and a program with `anyring::everywhere!()`, whose
//! functions the linker prefers to those of the C library.
#![no_std]

extern crate alloc;

mod arch;
pub mod calls;
pub mod credentials;
pub mod descriptors;
mod export;
pub mod next;
pub mod sockets;
pub mod streams;
pub mod thread_sanitizer;
pub mod wait;

/// Calls that a function of a front end answers when `syscall(3)` makes them by number.
pub struct Row {
    /// The numbers.
    pub numbers: &'static [u32],
    /// Makes a call with one of these numbers.
    ///
    /// # Safety
    /// As for the call.
    pub call: unsafe fn(usize, [usize; 6]) -> isize,
    /// True if the calls pass descriptors to or from other processes, or duplicate them: the engine must know of each of them.
    pub hands_over: bool,
}

impl Row {
    /// Makes the call if a row has `number`, and returns its result.
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

/// Returns the rows of all calls that a front end answers by number, except the three calls and those of [`Frontend::other_call`].
pub fn rows<F: Frontend>() -> impl Iterator<Item = &'static Row> {
    descriptors::Calls::<F>::ROWS.iter().chain(sockets::Calls::<F>::ROWS).chain(F::ROWS)
}

/// A front end that exports these functions.
pub trait Frontend {
    /// A thread's stay in the engine, during which no signal handler of the program runs in the thread. The stay ends when the
    /// value is dropped.
    type Stay;

    /// Notes that the calling thread enters the engine.
    fn enter() -> Self::Stay;

    /// True if the kernel is to answer this call, which is one of the three calls.
    #[inline]
    fn hands_through(_number: usize) -> bool {
        false
    }

    /// Answers one of the three calls; `None` leaves the call to the kernel.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn call(number: usize, arguments: [usize; 6]) -> Option<isize>;

    /// Calls that the front end answers by number, in addition to those of this crate.
    const ROWS: &[Row] = &[];

    /// Answers a call that is in none of the rows, if the front end can; `None` leaves the call to the kernel.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn other_call(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}
