//! Completions of a safe ring.

use crate::error::ErrorContext;
use crate::kept::Kept;
use crate::operation::{CqeResult, Id, MultiToken, Multishot, Operation, Token};
use crate::provided::ProvidedBuffer;
use crate::{Engine, Error};
use linux_raw_sys::io_uring::IORING_CQE_F_MORE;
use std::any::TypeId;
use std::fmt;
use std::os::fd::OwnedFd;

/// A completion of a request.
///
/// A completion holds the result, and, if it is the request's last completion, the operation with its buffers. Take the output with
/// the request's [`Token`] by [`take`](Completion::take), or with its [`MultiToken`] by [`item`](Completion::item).
/// A completion whose output is not taken drops the output: buffers are freed or given back, descriptors closed.
#[must_use]
pub struct Completion {
    pub(crate) id: Id,
    pub(crate) result: i32,
    pub(crate) flags: u32,
    pub(crate) engine: Engine,
    /// The name of the operation.
    pub(crate) name: &'static str,
    /// The type of the operation.
    pub(crate) of: TypeId,
    pub(crate) buffer: Option<ProvidedBuffer>,
    pub(crate) file: Option<OwnedFd>,
    /// The operation, if this is the request's last completion.
    pub(crate) operation: Option<Kept>,
}

impl Completion {
    pub(crate) fn came(self) -> CqeResult {
        CqeResult { result: self.result(), flags: self.flags, buffer: self.buffer, file: self.file }
    }

    /// The request's number.
    pub fn id(&self) -> Id {
        self.id
    }

    /// True if this is a completion of `request`.
    pub fn is(&self, request: impl Into<Id>) -> bool {
        self.id == request.into()
    }

    /// True if more completions of the request follow.
    pub fn more(&self) -> bool {
        self.flags & IORING_CQE_F_MORE != 0
    }

    /// The operation's result: a number of bytes if it moves bytes, a descriptor if it opens a file.
    ///
    /// # Errors
    /// The error with which the operation failed.
    pub fn result(&self) -> Result<u32, Error> {
        Error::check(self.engine, ErrorContext::Operation(self.name), self.result)
    }

    /// The completion's `IORING_CQE_F_*` flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Takes the output of the operation that `token` identifies.
    ///
    /// # Errors
    /// This completion, if it belongs to another request.
    pub fn take<O: Operation>(mut self, token: Token<O>) -> Result<O::Output, Completion> {
        if self.id != token.id() {
            return Err(self);
        }
        match self.operation.take().map(Kept::take::<O>) {
            // SAFETY: this completion ended the operation.
            Some(Ok(operation)) => Ok(unsafe { operation.output(self.came()) }),
            Some(Err(other)) => {
                self.operation = Some(other);
                Err(self)
            }
            None => Err(self),
        }
    }

    /// Takes the item that this completion of the stream brings. If this is the last completion, the stream has ended.
    ///
    /// # Errors
    /// This completion, if it belongs to another request.
    pub fn item<M: Multishot>(self, stream: &mut MultiToken<M>) -> Result<M::Item, Completion> {
        if self.id != stream.id() || self.of != TypeId::of::<M>() {
            return Err(self);
        }
        stream.ended |= !self.more();
        Ok(M::item(self.came()))
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Completion");
        out.field("id", &self.id.0).field("result", &self.result()).field("flags", &self.flags);
        out.finish_non_exhaustive()
    }
}
