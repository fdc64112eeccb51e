//! The stream of an operation with many completions.

use super::shared::Door;
use super::slot::{Many, Next};
use super::submit::Sending;
use crate::Error;
use crate::operation::Multishot;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A multishot operation as a stream, made by [`AsyncRing::submit_multi`](crate::AsyncRing::submit_multi).
///
/// [`next`](SubmitMulti::next) returns its items; with the feature `stream` it is a `Stream` of the crate `futures-core`, too.
/// The first poll submits the operation. The stream ends when the engine ends the operation: after an error, or when a group has no
/// buffer left (`ENOBUFS`); the operation can be submitted again then. Items that are not taken are kept, however many come.
///
/// Dropping the stream cancels the request and drops the items that were not taken: descriptors are closed, buffers return
/// to their group.
#[must_use = "streams do nothing unless polled"]
pub struct SubmitMulti<M: Multishot>(Sending<Many<M>>);

// Nothing in the stream is pinned, as in `Submit`.
impl<M: Multishot> Unpin for SubmitMulti<M> {}

impl<M: Multishot> SubmitMulti<M> {
    pub(super) fn new(door: Arc<Door>, operation: M) -> SubmitMulti<M> {
        SubmitMulti(Sending::new(door, Many(operation)))
    }

    /// Returns the next item, or `None` once the operation has ended.
    ///
    /// # Errors
    /// The error with which the ring has ended, once; `None` follows. Errors of the operation are items.
    pub async fn next(&mut self) -> Option<Result<M::Item, Error>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the item that [`next`](SubmitMulti::next) returns.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<M::Item, Error>>> {
        Poll::Ready(match ready!(self.0.poll(context)) {
            Next::Completion(completion) => Some(Ok(M::item(completion.came()))),
            Next::End(error) => {
                self.0.finish();
                error.map(Err)
            }
        })
    }

    /// Asks for the cancellation of the request. Items that have come can still be taken; the last one says `ECANCELED`.
    pub fn cancel(&mut self) {
        self.0.cancel();
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<M: Multishot> futures_core::Stream for SubmitMulti<M> {
    type Item = Result<M::Item, Error>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next(context)
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<M: Multishot> futures_core::FusedStream for SubmitMulti<M> {
    fn is_terminated(&self) -> bool {
        self.0.is_done()
    }
}

impl<M: Multishot> fmt::Debug for SubmitMulti<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubmitMulti").field(&M::NAME).finish()
    }
}
