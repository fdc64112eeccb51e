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

/// Something came of a request.
///
/// It holds what came, and, if it is the last one, the operation with its buffers: whoever holds the request's
/// [`Token`] takes it out by [`take`](Completion::take), whoever has its [`MultiToken`] by [`item`](Completion::item).
/// What is not taken is dropped: buffers are freed or given back, descriptors closed.
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
    /// The operation, unless more is to come.
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

    /// True if the completion is one of this request.
    pub fn is(&self, request: impl Into<Id>) -> bool {
        self.id == request.into()
    }

    /// True if more is to come of this request.
    pub fn more(&self) -> bool {
        self.flags & IORING_CQE_F_MORE != 0
    }

    /// The number that the operation came to: bytes for one that moves bytes, a descriptor for one that opens a file.
    ///
    /// # Errors
    /// Why the operation failed.
    pub fn result(&self) -> Result<u32, Error> {
        Error::check(self.engine, ErrorContext::Operation(self.name), self.result)
    }

    /// `IORING_CQE_F_*`.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The output of the operation of this token.
    ///
    /// # Errors
    /// The completion again, where it is another request's.
    pub fn take<O: Operation>(mut self, token: Token<O>) -> Result<O::Output, Completion> {
        if self.id != token.id() {
            return Err(self);
        }
        match self.operation.take().map(Kept::take::<O>) {
            // SAFETY: this is the completion that ended it.
            Some(Ok(operation)) => Ok(unsafe { operation.output(self.came()) }),
            Some(Err(other)) => {
                self.operation = Some(other);
                Err(self)
            }
            None => Err(self),
        }
    }

    /// The item that this completion of the stream brings. If it is the last one, the stream has ended.
    ///
    /// # Errors
    /// The completion again, where it is another request's.
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
