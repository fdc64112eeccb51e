//! The future of an operation.

use super::shared::{Door, Errand};
use super::slot::{Next, One, Push, Slot};
use crate::Error;
use crate::operation::{Operation, Token};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A request, from before its submission until after its end.
pub(super) struct Sending<P: Push>(Stage<P>);

enum Stage<P: Push> {
    /// Not polled yet.
    New {
        door: Arc<Door>,
        push: P,
        cancelled: bool,
    },
    Sent {
        door: Arc<Door>,
        slot: Arc<Slot<P>>,
    },
    Done,
}

impl<P: Push> Sending<P> {
    pub(super) fn new(door: Arc<Door>, push: P) -> Sending<P> {
        Sending(Stage::New { door, push, cancelled: false })
    }

    /// Returns the next completion. The first call submits the request.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let (door, slot) = match &self.0 {
            Stage::New { .. } => return self.send(context),
            Stage::Sent { door, slot } => (door, slot),
            Stage::Done => return Poll::Ready(Next::End(None)),
        };
        match door.check_process() {
            Ok(()) => slot.poll(context),
            Err(error) => Poll::Ready(Next::End(Some(error))),
        }
    }

    fn send(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let waker = context.waker().clone();
        let Stage::New { door, push, cancelled } = std::mem::replace(&mut self.0, Stage::Done) else {
            return Poll::Ready(Next::End(None));
        };
        let slot = Arc::new(Slot::new(push, waker, cancelled));
        match door.send(Errand::Start(slot.clone())) {
            Ok(()) => {
                self.0 = Stage::Sent { door, slot };
                Poll::Pending
            }
            Err((error, _)) => Poll::Ready(Next::End(Some(error))),
        }
    }

    pub(super) fn cancel(&mut self) {
        match &mut self.0 {
            Stage::New { cancelled, .. } => *cancelled = true,
            Stage::Sent { door, slot } => slot.cancel(door),
            Stage::Done => {}
        }
    }

    /// Notes that no further completion will be taken.
    pub(super) fn finish(&mut self) {
        self.0 = Stage::Done;
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.0, Stage::Done)
    }
}

impl<P: Push> Drop for Sending<P> {
    fn drop(&mut self) {
        if let Stage::Sent { door, slot } = &self.0 {
            slot.abandon(door);
        }
    }
}

/// An operation as a future, made by [`AsyncRing::submit`](crate::AsyncRing::submit).
///
/// Its output is the operation's output, or the error with which the ring has ended. The first poll submits the operation, so
/// nothing happens before the future is awaited.
///
/// Dropping the future cancels its request. The ring keeps the request's buffers and files until the request has
/// ended, and then drops them; a file that it has opened nevertheless is closed, and received data is lost. To get the
/// buffers back, or to lose nothing if a future is given up (`select`), call [`cancel`](Submit::cancel), and await
/// the future.
#[must_use = "futures do nothing unless polled"]
pub struct Submit<O: Operation>(Sending<One<O>>);

// Nothing in the future is pinned: the operation moves to the ring with the first poll.
impl<O: Operation> Unpin for Submit<O> {}

impl<O: Operation> Submit<O> {
    pub(super) fn new(door: Arc<Door>, operation: O, timeout: Option<Duration>) -> Submit<O> {
        Submit(Sending::new(door, One(operation, timeout)))
    }

    /// Asks for the cancellation of the request. Await the future afterwards as before: its output has the buffers, and says
    /// `ECANCELED` unless the operation ended earlier, or could not be cancelled any more.
    pub fn cancel(&mut self) {
        self.0.cancel();
    }
}

impl<O: Operation> Future for Submit<O> {
    type Output = Result<O::Output, Error>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let sending = &mut self.get_mut().0;
        assert!(!sending.is_done(), "polled after it was ready");
        let next = std::task::ready!(sending.poll(context));
        sending.finish();
        Poll::Ready(match next {
            Next::Completion(completion) => {
                let token = Token::<O>::new(completion.id());
                Ok(completion.take(token).expect("the completion of this operation"))
            }
            Next::End(error) => Err(error.expect("a request ends with a completion or an error")),
        })
    }
}

impl<O: Operation> fmt::Debug for Submit<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Submit").field(&O::NAME).finish()
    }
}
