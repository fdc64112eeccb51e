//! A request, between its future and the driver.
//!
//! Foreign code (wakers, operations, buffers that are dropped) runs while no lock is held: it may come back here.

use super::shared::{Errand, Request, Shared, lock};
use crate::operation::{Id, Multishot, Operation};
use crate::{Completion, Error, ErrorContext, Ring};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Calls foreign code. Where that panics, which the panic's hook has told, only what it was called for is lost: the ring has
/// other users.
pub(super) fn contained<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    // What was thrown may panic in its turn where it is dropped.
    catch_unwind(AssertUnwindSafe(foreign)).map_err(std::mem::forget).ok()
}

/// An operation, with what makes a request of it.
pub(super) trait Push: Send + 'static {
    fn push(self, ring: &mut Ring) -> Result<Id, Error>;
}

/// One with one completion, and how long it may take.
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

/// One with many.
pub(super) struct Many<M>(pub(super) M);

impl<M: Multishot> Push for Many<M> {
    fn push(self, ring: &mut Ring) -> Result<Id, Error> {
        ring.push_multi(self.0).map(|token| token.id())
    }
}

/// How far a request is.
enum Stage<P> {
    /// The driver has not come to it.
    Queued(P),
    /// The driver is pushing it.
    Starting,
    InFlight(Id),
    /// No completion is to come; with an error where the ring did not take it, or has ended.
    Ended(Option<Error>),
}

/// Completions that were not asked for yet. The first has a place without an allocation.
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
    /// Nobody asks for completions any more.
    abandoned: bool,
    arrived: Arrived,
    waker: Option<Waker>,
}

pub(super) struct Slot<P>(Mutex<State<P>>);

/// The next thing that there is for a future.
pub(super) enum Next {
    Completion(Completion),
    /// There is no more; with the error by which the ring has ended.
    End(Option<Error>),
}

impl<P> Slot<P> {
    /// A request that is to be started.
    pub(super) fn new(push: P, waker: Waker, cancelled: bool) -> Slot<P> {
        Slot(Mutex::new(State {
            stage: Stage::Queued(push),
            cancelled,
            abandoned: false,
            arrived: Arrived::default(),
            waker: Some(waker),
        }))
    }

    /// The next completion, or the task is woken when there is something.
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
        // What has come meanwhile woke the waker from before.
        let next = state.next();
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        next.map_or(Poll::Pending, Poll::Ready)
    }

    /// Asks for the request's end.
    pub(super) fn cancel(&self, shared: &Shared) {
        self.end(shared, false);
    }

    /// Its future is gone: asks for the request's end, and lets go of what has come.
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
            // It need not begin.
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
            // A ring that has ended has cancelled it.
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

    /// One that never comes to a ring.
    struct Nothing;

    impl Push for Nothing {
        fn push(self, ring: &mut Ring) -> Result<Id, Error> {
            Err(ring.error(ErrorContext::Use("nothing"), libc::EINVAL))
        }
    }

    /// Its cancellation may take a while, or fail: nothing is to gather meanwhile.
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
