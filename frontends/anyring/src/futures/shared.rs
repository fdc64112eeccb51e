//! State that futures and the driver of their ring share.

use crate::error::ErrorContext;
use crate::op::Waker;
use crate::operation::Id;
use crate::{Engine, Error, Ring, engine};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A lock that a panic does not poison: what it guards is whole whenever foreign code runs.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function to be called with the ring, or with the error by which that has ended.
pub(super) type Call = Box<dyn FnOnce(Result<&mut Ring, Error>) + Send>;

/// A task for the driver.
pub(super) enum Errand {
    /// To submit a request.
    Start(Arc<dyn Request>),
    /// To cancel one that was submitted.
    Cancel(Id),
    /// To call this.
    Call(Call),
}

/// A request as the driver knows it, whatever its operation is.
pub(super) trait Request: Send + Sync {
    /// Pushes it. Its number, and whether it is to be cancelled at once; nothing where it has ended already.
    fn start(&self, ring: &mut Ring) -> Option<(Id, bool)>;

    /// Takes a completion of it.
    fn complete(&self, completion: crate::Completion);

    /// Ends it, for the ring has ended.
    fn fail(&self, error: Error);
}

/// The tasks on their way from futures to the driver.
#[derive(Default)]
struct Inbox {
    errands: Vec<Errand>,
    /// The driver was woken since it last looked here.
    woken: bool,
    /// No handle and no future is left.
    deserted: bool,
    /// Why the ring has ended.
    end: Option<Error>,
}

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Wakes the driver, as completions do.
    waker: Waker,
    engine: Engine,
    /// Of the process that it was made in.
    generation: u32,
}

impl Shared {
    pub(super) fn new(waker: Waker, engine: Engine) -> Shared {
        Shared { inbox: Mutex::default(), waker, engine, generation: engine::generation() }
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(super) fn error(&self, context: &'static str, errno: i32) -> Error {
        Error::new(self.engine, ErrorContext::Use(context), errno)
    }

    /// Refuses what a child of `fork` does with its parent's ring. Its locks may have been held by threads that the
    /// child does not have: none is taken before this.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if self.generation == engine::generation() {
            Ok(())
        } else {
            Err(self.error("use of a ring of the parent process", libc::EOWNERDEAD))
        }
    }

    /// Gives the driver something to do.
    ///
    /// # Errors
    /// Where the ring has ended, with the errand.
    pub(super) fn send(&self, errand: Errand) -> Result<(), (Error, Errand)> {
        if let Err(error) = self.check_process() {
            return Err((error, errand));
        }
        let mut inbox = lock(&self.inbox);
        if let Some(end) = inbox.end {
            return Err((end, errand));
        }
        inbox.errands.push(errand);
        self.wake(inbox);
        Ok(())
    }

    /// Wakes the driver, unless it was woken and has not come yet.
    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if !std::mem::replace(&mut inbox.woken, true) {
            drop(inbox);
            self.waker.wake();
        }
    }

    /// Nobody but the driver is left.
    fn desert(&self) {
        if self.check_process().is_ok() {
            let mut inbox = lock(&self.inbox);
            inbox.deserted = true;
            self.wake(inbox);
        }
    }

    /// The driver's tasks; whether nobody else is left.
    pub(super) fn take(&self) -> (Vec<Errand>, bool) {
        let mut inbox = lock(&self.inbox);
        inbox.woken = false;
        (std::mem::take(&mut inbox.errands), inbox.deserted)
    }

    /// Nothing can be sent from now on, for this reason unless there is one already; what was sent before.
    pub(super) fn end(&self, error: Error) -> (Error, Vec<Errand>) {
        let mut inbox = lock(&self.inbox);
        let end = *inbox.end.get_or_insert(error);
        (end, std::mem::take(&mut inbox.errands))
    }
}

/// The reference that handles and futures have to [`Shared`]. When all of them are gone, the driver hears of it.
pub(super) struct Door(Arc<Shared>);

impl Door {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Door> {
        Arc::new(Door(shared))
    }
}

impl std::ops::Deref for Door {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.desert();
    }
}
