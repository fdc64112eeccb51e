//! Functions that replace those of the C library, in addition to those of [`anyring_interpose`].

use crate::{dispatch, inside};
use anyring_engine::frontend;
use anyring_interpose::{Row, rows};
use anyring_runtime::{arch, beside};
use linux_raw_sys::general as raw;

#[cfg(not(test))]
mod aliases;
pub mod exec;
pub mod handovers;
mod load;
#[cfg(not(test))]
pub mod map;
pub mod process;
pub mod signal;
pub mod spawn;
#[cfg(not(test))]
mod storage;
mod thread;

/// The front end for which the functions of [`anyring_interpose`] are exported.
pub struct Interposed;

impl anyring_interpose::Frontend for Interposed {
    type Stay = inside::Inside;

    #[inline]
    fn enter() -> inside::Inside {
        inside::enter()
    }

    #[inline]
    unsafe fn call(number: usize, arguments: [usize; 6]) -> Option<isize> {
        if number == raw::__NR_io_uring_enter as usize && frontend::wants_callers() {
            frontend::called_from(arch::pointers());
        }
        let is_ours = anyring_runtime::process::sees_calls() || beside::is_offered();
        // SAFETY: the caller's promise.
        is_ours.then(|| unsafe { dispatch::called(number, arguments, true) })
    }

    #[inline]
    fn hands_through(number: usize) -> bool {
        number != raw::__NR_io_uring_setup as usize && beside::is_offered() && !beside::is_shared()
    }

    const ROWS: &[Row] = handovers::ROWS;

    unsafe fn other_call(number: usize, arguments: [usize; 6]) -> Option<isize> {
        load::by_number(number, arguments);
        // SAFETY: the caller's promise.
        unsafe { signal::by_number(number, arguments) }
    }
}

/// True if the call passes descriptors to or from other processes, or duplicates them.
pub fn hands_over(number: u32) -> bool {
    rows::<Interposed>().any(|row| row.hands_over && row.numbers.contains(&number))
}

anyring_interpose::export!(Interposed);
