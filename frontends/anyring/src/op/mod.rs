//! Operations of a safe ring.
//!
//! A function makes an operation from its required arguments; methods of the operation set the optional ones. An operation owns
//! its buffers and returns them with the result: the output of [`read`], for example, is `(Result<usize, Error>, B)`.

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

/// Implements `Operation` for a type whose output is the result alone, as a number (`number`) or as nothing (`unit`).
macro_rules! plain {
    (unit $type:ty, $name:literal, |$self:ident, $files:ident| $entry:expr) => {
        // SAFETY: the operation owns what the entry names, if it names anything.
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
        // SAFETY: the operation owns what the entry names, if it names anything.
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

// SAFETY: the entry names no memory.
unsafe impl Operation for Cancel {
    /// `Ok` if the request was found and ends now. `ENOENT`: there was no such request; `EALREADY`: the request
    /// has begun work that cannot be interrupted.
    type Output = Result<(), Error>;

    const NAME: &'static str = "ASYNC_CANCEL";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        low::AsyncCancel::new(self.0).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.number().map(drop)
    }
}
