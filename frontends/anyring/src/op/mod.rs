//! Operations of a safe ring.
//!
//! A function makes an operation of what it cannot do without; methods of what it makes set the rest. Buffers are
//! handed over, and come back with the result: the output of [`read`], for one, is `(Result<usize, Error>, B)`.

mod directory;
mod file;
mod net;
mod path;
mod time;
mod wake;

pub use directory::*;
pub use file::*;
pub use net::*;
pub use path::*;
pub use time::*;
pub use wake::*;

use crate::low::{Sqe, op as low};
use crate::operation::{CqeResult, Files, Operation};
use crate::{Error, Id};

/// Says that what an operation came to is its result alone, as a number or not at all.
macro_rules! plain {
    (unit $type:ty, $name:literal, |$self:ident, $files:ident| $entry:expr) => {
        // SAFETY: what the entry names is the operation's own, or nothing.
        unsafe impl crate::operation::Operation for $type {
            type Output = Result<(), crate::Error>;

            const NAME: &'static str = $name;

            #[inline]
            fn entry(&mut self, $files: crate::operation::Files<'_>) -> crate::low::Sqe {
                let $self = self;
                $entry
            }

            #[inline]
            unsafe fn output(self, came: crate::operation::CqeResult) -> Self::Output {
                came.number().map(drop)
            }
        }
    };
    (number $type:ty, $name:literal, |$self:ident, $files:ident| $entry:expr) => {
        // SAFETY: what the entry names is the operation's own, or nothing.
        unsafe impl crate::operation::Operation for $type {
            type Output = Result<u32, crate::Error>;

            const NAME: &'static str = $name;

            #[inline]
            fn entry(&mut self, $files: crate::operation::Files<'_>) -> crate::low::Sqe {
                let $self = self;
                $entry
            }

            #[inline]
            unsafe fn output(self, came: crate::operation::CqeResult) -> Self::Output {
                came.number()
            }
        }
    };
}
use plain;

/// See [`nop`].
#[derive(Debug)]
pub struct Nop(());

/// Does nothing.
#[inline]
pub fn nop() -> Nop {
    Nop(())
}

plain!(unit Nop, "NOP", |_nop, _files| low::Nop::new().build());

/// See [`Ring::cancel`](crate::Ring::cancel).
#[derive(Debug)]
pub struct Cancel(u64);

impl Cancel {
    pub(crate) fn of(Id(number): Id) -> Cancel {
        Cancel(number)
    }
}

/// Cancels a request of the same ring: [`Ring::cancel`](crate::Ring::cancel), for chains and
/// [`Ring::run`](crate::Ring::run).
pub fn cancel(request: impl Into<Id>) -> Cancel {
    Cancel::of(request.into())
}

// SAFETY: names no memory.
unsafe impl Operation for Cancel {
    /// Whether there was such a request, which ends now: `ENOENT` says that there was none, `EALREADY` that it has
    /// begun what cannot be interrupted.
    type Output = Result<(), Error>;

    const NAME: &'static str = "ASYNC_CANCEL";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        low::AsyncCancel::new(self.0).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.number().map(drop)
    }
}
