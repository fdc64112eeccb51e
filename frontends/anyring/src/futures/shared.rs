//! State that futures and the driver of their ring share.

use crate::error::ErrorContext;
use crate::op::Waker;
use crate::operation::Id;
use crate::{Engine, Error, Ring, engine};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks a mutex without regard to poison: the data is consistent whenever foreign code, which may panic, runs.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function to be called with the ring, or with the error with which the ring has ended.
pub(super) type Call = Box<dyn FnOnce(Result<&mut Ring, Error>) + Send>;

/// A task for the driver.
pub(super) enum Errand {
    /// Submits a request.
    Start(Arc<dyn Request>),
    /// Cancels a request that was submitted.
    Cancel(Id),
    /// Calls the function.
    Call(Call),
}

/// A request as the driver sees it, independent of its operation.
pub(super) trait Request: Send + Sync {
    /// Pushes the request. Returns its number, and whether to cancel it immediately; `None` if it has ended already.
    fn start(&self, ring: &mut Ring) -> Option<(Id, bool)>;

    /// Stores a completion of the request.
    fn complete(&self, completion: crate::Completion);

    /// Ends the request with the error with which the ring has ended.
    fn fail(&self, error: Error);
}

/// Tasks on their way from futures to the driver.
#[derive(Default)]
struct Inbox {
    errands: Vec<Errand>,
    /// The driver was woken, and has not emptied the inbox since.
    woken: bool,
    /// No handle and no future exists any more.
    deserted: bool,
    /// The error with which the ring has ended.
    end: Option<Error>,
}

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Wakes the driver; completions signal the same eventfd.
    waker: Waker,
    engine: Engine,
    /// The generation of the process that made the ring.
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

    /// Refuses a child of `fork` the use of its parent's ring. The ring's locks may be held by threads that the
    /// child does not have, so call this before locking any.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if self.generation == engine::generation() {
            Ok(())
        } else {
            Err(self.error("use of a ring of the parent process", libc::EOWNERDEAD))
        }
    }

    /// Adds a task for the driver, and wakes the driver.
    ///
    /// # Errors
    /// The error with which the ring has ended, with the errand.
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

    /// Wakes the driver, unless it was woken already and has not emptied the inbox since.
    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if !std::mem::replace(&mut inbox.woken, true) {
            drop(inbox);
            self.waker.wake();
        }
    }

    /// Notes that only the driver is left, and wakes it.
    fn desert(&self) {
        if self.check_process().is_ok() {
            let mut inbox = lock(&self.inbox);
            inbox.deserted = true;
            self.wake(inbox);
        }
    }

    /// Takes the driver's tasks. Returns them, and whether only the driver is left.
    pub(super) fn take(&self) -> (Vec<Errand>, bool) {
        let mut inbox = lock(&self.inbox);
        inbox.woken = false;
        (std::mem::take(&mut inbox.errands), inbox.deserted)
    }

    /// Makes the ring refuse further tasks, with `error` or with an earlier error. Returns that error, and the tasks sent before.
    pub(super) fn end(&self, error: Error) -> (Error, Vec<Errand>) {
        let mut inbox = lock(&self.inbox);
        let end = *inbox.end.get_or_insert(error);
        (end, std::mem::take(&mut inbox.errands))
    }
}

/// The reference that handles and futures have to [`Shared`]. Dropping the last reference notifies the driver.
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
