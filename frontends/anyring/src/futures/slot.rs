//! The state of a request, shared by its future and the driver.
//!
//! Foreign code (wakers, operations, buffers that are dropped) runs while no lock is held, because it may call this code again.

use super::shared::{Errand, Request, Shared, lock};
use crate::operation::{Id, Multishot, Operation};
use crate::{Completion, Error, ErrorContext, Ring};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Calls foreign code. If it panics (the panic hook has reported that), only this call's result is lost, because the ring has
/// other users.
pub(super) fn contained<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    // Dropping the panic's payload may panic, too, so the payload is leaked.
    catch_unwind(AssertUnwindSafe(foreign)).map_err(std::mem::forget).ok()
}

/// An operation that can be pushed to a ring.
pub(super) trait Push: Send + 'static {
    fn push(self, ring: &mut Ring) -> Result<Id, Error>;
}

/// An operation with one completion, and its timeout.
pub(super) struct One<O>(pub(super) O, pub(super) Option<Duration>);

impl<O: Operation> Push for One<O> {
    fn push(self, ring: &mut Ring) -> Result<Id, Error> {
        let One(operation, timeout) = self;
        let token = match timeout {
            None => ring.push(operation)?,
            Some(timeout) => ring.push_with_timeout(operation, timeout)?,
        };
        Ok(token.id())
    }
}

/// An operation with many completions.
pub(super) struct Many<M>(pub(super) M);

impl<M: Multishot> Push for Many<M> {
    fn push(self, ring: &mut Ring) -> Result<Id, Error> {
        ring.push_multi(self.0).map(|token| token.id())
    }
}

/// The stage of a request.
enum Stage<P> {
    /// The driver has not taken the errand yet.
    Queued(P),
    /// The driver is pushing it.
    Starting,
    InFlight(Id),
    /// No further completion comes. An error is here if the ring refused the request, or has ended.
    Ended(Option<Error>),
}

/// Completions that the future has not taken yet. The first one is stored without an allocation.
#[derive(Default)]
struct Arrived {
    first: Option<Completion>,
    rest: VecDeque<Completion>,
}

impl Arrived {
    fn push(&mut self, completion: Completion) {
        match self.first {
            None => self.first = Some(completion),
            Some(_) => self.rest.push_back(completion),
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        let first = self.first.take();
        self.first = self.rest.pop_front();
        first
    }
}

struct State<P> {
    stage: Stage<P>,
    /// The request is to be cancelled.
    cancelled: bool,
    /// The future is gone: completions are dropped.
    abandoned: bool,
    arrived: Arrived,
    waker: Option<Waker>,
}

pub(super) struct Slot<P>(Mutex<State<P>>);

/// The next result of a request for its future.
pub(super) enum Next {
    Completion(Completion),
    /// No further completion comes; with the error with which the ring has ended, if any.
    End(Option<Error>),
}

impl<P> Slot<P> {
    /// Returns the state of a request that is to be started.
    pub(super) fn new(push: P, waker: Waker, cancelled: bool) -> Slot<P> {
        Slot(Mutex::new(State {
            stage: Stage::Queued(push),
            cancelled,
            abandoned: false,
            arrived: Arrived::default(),
            waker: Some(waker),
        }))
    }

    /// Returns the next completion, or registers the task to be woken by it.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Next> {
        let mut state = lock(&self.0);
        if let Some(next) = state.next() {
            return Poll::Ready(next);
        }
        if state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        drop(state);
        let waker = context.waker().clone();
        let mut state = lock(&self.0);
        // A completion that has come meanwhile woke the previous waker.
        let next = state.next();
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        next.map_or(Poll::Pending, Poll::Ready)
    }

    /// Asks for the request's cancellation.
    pub(super) fn cancel(&self, shared: &Shared) {
        self.end(shared, false);
    }

    /// Asks for the cancellation of a request whose future is gone, and drops its completions.
    pub(super) fn abandon(&self, shared: &Shared) {
        self.end(shared, true);
    }

    fn end(&self, shared: &Shared, abandon: bool) {
        if shared.check_process().is_err() {
            return;
        }
        let mut state = lock(&self.0);
        let mut left = None;
        if abandon {
            state.abandoned = true;
            left = Some((state.waker.take(), std::mem::take(&mut state.arrived)));
        }
        let queued = match &state.stage {
            // The request need not be submitted.
            Stage::Queued(_) if abandon => Some(std::mem::replace(&mut state.stage, Stage::Ended(None))),
            _ => None,
        };
        let cancels = !std::mem::replace(&mut state.cancelled, true);
        let id = match state.stage {
            Stage::InFlight(id) if cancels => Some(id),
            _ => None,
        };
        drop(state);
        if let Some(id) = id {
            // If the ring has ended, it has cancelled the request.
            let _ = shared.send(Errand::Cancel(id));
        }
        drop((left, queued));
    }
}

impl<P> State<P> {
    fn next(&mut self) -> Option<Next> {
        match (self.arrived.pop(), &self.stage) {
            (Some(completion), _) => Some(Next::Completion(completion)),
            (None, Stage::Ended(error)) => Some(Next::End(*error)),
            (None, _) => None,
        }
    }
}

impl<P: Push> Request for Slot<P> {
    fn start(&self, ring: &mut Ring) -> Option<(Id, bool)> {
        let push = {
            let mut state = lock(&self.0);
            match std::mem::replace(&mut state.stage, Stage::Starting) {
                Stage::Queued(push) => push,
                stage => {
                    state.stage = stage;
                    return None;
                }
            }
        };
        let panicked = ring.error(ErrorContext::Use("an operation that panicked"), libc::ECANCELED);
        match contained(|| push.push(ring)).unwrap_or(Err(panicked)) {
            Ok(id) => {
                let mut state = lock(&self.0);
                state.stage = Stage::InFlight(id);
                Some((id, state.cancelled))
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn complete(&self, completion: Completion) {
        let mut state = lock(&self.0);
        if !completion.more() {
            state.stage = Stage::Ended(None);
        }
        if state.abandoned {
            drop(state);
            drop(completion);
            return;
        }
        state.arrived.push(completion);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn fail(&self, error: Error) {
        let mut state = lock(&self.0);
        let before = std::mem::replace(&mut state.stage, Stage::Ended(Some(error)));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, op};
    use std::any::TypeId;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// An operation that is never pushed to a ring.
    struct Nothing;

    impl Push for Nothing {
        fn push(self, ring: &mut Ring) -> Result<Id, Error> {
            Err(ring.error(ErrorContext::Use("nothing"), libc::EINVAL))
        }
    }

    /// The cancellation may take a while, or fail: completions must not gather meanwhile.
    #[test]
    fn what_comes_to_an_abandoned_request_is_dropped_at_once() {
        let shared = Shared::new(op::Waker::new().unwrap(), Engine::User);
        let slot = Slot::new(Nothing, Waker::noop().clone(), false);
        lock(&slot.0).stage = Stage::InFlight(Id(1));
        slot.abandon(&shared);
        let (mut reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        slot.complete(Completion {
            id: Id(1),
            result: 3,
            flags: linux_raw_sys::io_uring::IORING_CQE_F_MORE,
            engine: Engine::User,
            name: "ACCEPT",
            of: TypeId::of::<Nothing>(),
            buffer: None,
            file: Some(writer.into()),
            operation: None,
        });
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the descriptor is closed");
        assert!(matches!(shared.take(), (errands, false) if matches!(errands[..], [Errand::Cancel(Id(1))])));
    }
}
