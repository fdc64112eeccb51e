//! The driver, which owns the ring and runs the requests of futures.

use super::shared::{Door, Errand, Request, Shared};
use super::slot::contained;
use crate::error::ErrorContext;
use crate::op::Waker;
use crate::operation::Id;
use crate::{Error, Ring};
use linux_raw_sys::io_uring as abi;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// How many completions are delivered in a row before other tasks get their turn.
const MOST: usize = 1024;

/// Owns the ring of an [`AsyncRing`](crate::AsyncRing): it submits the futures' requests, and wakes the futures.
///
/// [`AsyncRing::new`](crate::AsyncRing::new) runs the driver in a thread. [`AsyncRing::with_driver`](crate::AsyncRing::with_driver)
/// returns a driver that can be a task of an executor, without another thread. The driver's descriptor, an eventfd, is readable when
/// there is work, and [`process`](Driver::process) does the work. In this example the executor is a loop:
///
/// ```
/// use anyring::{AsyncRing, Ring, op};
/// use std::os::fd::AsRawFd;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let (ring, mut driver) = AsyncRing::with_driver(Ring::new(8)?)?;
/// let mut task = pin!(async move { ring.submit(op::open("/proc/self/comm")).await });
/// let mut context = Context::from_waker(Waker::noop());
/// let file = loop {
///     if let Poll::Ready(file) = task.as_mut().poll(&mut context) {
///         break file;
///     }
///     let mut ready = libc::pollfd { fd: driver.as_raw_fd(), events: libc::POLLIN, revents: 0 };
///     // SAFETY: one entry.
///     unsafe { libc::poll(&mut ready, 1, -1) };
///     driver.process()?;
/// };
/// file??;
/// # Ok::<(), anyring::Error>(())
/// ```
///
/// With the feature `tokio`, `tokio::spawn(driver.run_on_tokio())` suffices.
///
/// The thread that calls `process` submits the requests. When a thread ends, the kernel ends the requests that it submitted (unless the
/// ring has [`sq_poll`](crate::Builder::sq_poll)), so call `process` in a thread that stays.
///
/// Dropping a driver ends its ring: requests in flight are cancelled and waited for. Their futures, and futures that are made
/// later, get an error (`ECANCELED`). The buffers are dropped.
#[must_use = "a driver that is dropped ends its ring"]
pub struct Driver {
    /// `None` once the ring has ended.
    ring: Option<Ring>,
    requests: HashMap<Id, Arc<dyn Request>>,
    shared: Arc<Shared>,
}

impl Driver {
    pub(super) fn new(mut ring: Ring) -> Result<(Arc<Door>, Driver), Error> {
        ring.check_process()?;
        let flags = ring.control().setup_flags();
        if flags & abi::IORING_SETUP_IOPOLL != 0 {
            return Err(ring.error(ErrorContext::Use("futures on a ring with io_poll"), libc::EINVAL));
        }
        let waker = Waker::new().map_err(|error| {
            ring.error(ErrorContext::Use("eventfd of a driver"), error.raw_os_error().unwrap_or(libc::EMFILE))
        })?;
        ring.control().register_eventfd(waker.as_fd(), false)?;
        // Completions from before the registration are seen, too.
        waker.wake();
        ring.driven_by(&waker);
        let shared = Arc::new(Shared::new(waker, ring.engine()));
        let door = Door::new(shared.clone());
        Ok((door, Driver { ring: Some(ring), requests: HashMap::new(), shared }))
    }

    /// Submits the futures' requests, takes the completions that are there, and wakes the futures that wait for them. It does not
    /// wait, but the engine may do short work of a request during the call. Returns `false` once the
    /// [`AsyncRing`](crate::AsyncRing), its clones and their futures are gone, and all requests have ended.
    ///
    /// Panics of wakers, of operations, and of buffers that are dropped are caught here.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`. After an error the ring has ended.
    pub fn process(&mut self) -> Result<bool, Error> {
        self.shared.check_process()?;
        // Cleared first, so that anything that comes from here on makes the eventfd readable again.
        self.shared.waker().clear();
        let (errands, deserted) = self.shared.take();
        let mut errands = errands.into_iter();
        let result =
            errands.by_ref().try_for_each(|errand| self.attend(errand)).and_then(|()| self.advance());
        match result {
            Ok(()) => Ok(!deserted || !self.requests.is_empty()),
            Err(error) => Err(self.end(error, errands)),
        }
    }

    /// Calls [`process`](Driver::process) in this thread until it returns `false`, and sleeps while there is nothing to do.
    ///
    /// # Errors
    /// As for `process`.
    pub fn run(mut self) -> Result<(), Error> {
        while self.process()? {
            self.shared.waker().wait();
        }
        Ok(())
    }

    /// Calls [`process`](Driver::process) in a task of tokio until it returns `false`, and sleeps while there is nothing to do.
    ///
    /// ```
    /// use anyring::{AsyncRing, Ring, op};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// runtime.block_on(async {
    ///     let (ring, driver) = AsyncRing::with_driver(Ring::new(8)?)?;
    ///     tokio::spawn(driver.run_on_tokio());
    ///     let file = ring.submit(op::open("/proc/self/comm")).await??;
    ///     let (count, bytes) = ring.submit(op::read(&file, Vec::with_capacity(64))).await?;
    ///     assert_eq!(count?, bytes.len());
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// When a thread ends, the kernel ends the requests that it submitted. So run the task in a thread that stays: in a runtime of one
    /// thread, or in a `LocalSet`. A runtime of several threads may end a worker (after `block_in_place`); requests that the driver
    /// submitted there then end with `ECANCELED`. A ring with [`single_issuer`](crate::Builder::single_issuer) ends if the task moves to
    /// another thread. With such a runtime use [`AsyncRing::new`](crate::AsyncRing::new), which has its own thread.
    ///
    /// # Errors
    /// As for `process`, and an error if tokio cannot watch the descriptor (`EMFILE`, for example).
    ///
    /// # Panics
    /// Outside of a tokio runtime, and in one that was built without I/O.
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub async fn run_on_tokio(self) -> Result<(), Error> {
        use tokio::io::{Interest, unix::AsyncFd};
        let shared = self.shared.clone();
        let failed = |error: std::io::Error| {
            shared.error("watching of a driver by tokio", error.raw_os_error().unwrap_or(libc::EIO))
        };
        // SAFETY: the driver's eventfd never changes, and is open as long as the driver exists.
        let driver = unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) };
        let mut driver = driver.map_err(|error| failed(error.into_parts().1))?;
        while driver.get_mut().process()? {
            driver.readable().await.map_err(failed)?.clear_ready();
        }
        Ok(())
    }

    fn ring(&mut self) -> Result<&mut Ring, Error> {
        let gone = self.shared.error("use of a ring that has ended", libc::ECANCELED);
        self.ring.as_mut().ok_or(gone)
    }

    fn attend(&mut self, errand: Errand) -> Result<(), Error> {
        match errand {
            Errand::Start(request) => {
                let ring = self.ring()?;
                let Some((id, cancelled)) = contained(|| request.start(ring)).flatten() else {
                    return Ok(());
                };
                self.requests.insert(id, request);
                if cancelled { self.cancel(id) } else { Ok(()) }
            }
            Errand::Cancel(id) => self.cancel(id),
            Errand::Call(function) => {
                let ring = self.ring()?;
                contained(|| function(Ok(ring)));
                Ok(())
            }
        }
    }

    /// Asks the engine to cancel a request, unless the request has ended.
    fn cancel(&mut self, id: Id) -> Result<(), Error> {
        if self.requests.contains_key(&id) { self.ring()?.cancel_silently(id) } else { Ok(()) }
    }

    /// Submits what was pushed, and delivers the completions that are there.
    fn advance(&mut self) -> Result<(), Error> {
        loop {
            let failed = match self.ring()?.drive() {
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EBUSY | libc::EAGAIN) => true,
                result => result.map(|()| false)?,
            };
            let count = self.deliver(MOST);
            let more = self.ring()?.needs_driving(count > 0);
            if count == MOST || (more && failed && count == 0) {
                // Continues later: other tasks get their turn first.
                self.shared.waker().wake();
                return Ok(());
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Delivers at most `most` completions to their futures. Returns how many it delivered.
    fn deliver(&mut self, most: usize) -> usize {
        let mut count = 0;
        while count < most
            && let Some(completion) = self.ring.as_mut().and_then(Ring::take)
        {
            count += 1;
            let id = completion.id();
            let request = match completion.more() {
                true => self.requests.get(&id).cloned(),
                false => self.requests.remove(&id),
            };
            contained(move || match request {
                Some(request) => request.complete(completion),
                None => drop(completion),
            });
        }
        count
    }

    /// Ends the ring, its requests and `errands` with `error`, or with the earlier error if the ring has ended before; returns that error.
    fn end(&mut self, error: Error, errands: impl Iterator<Item = Errand>) -> Error {
        let (error, sent) = self.shared.end(error);
        for request in std::mem::take(&mut self.requests).into_values() {
            contained(move || request.fail(error));
        }
        for errand in errands.chain(sent) {
            contained(move || match errand {
                Errand::Start(request) => request.fail(error),
                Errand::Cancel(_) => {}
                Errand::Call(function) => function(Err(error)),
            });
        }
        let ring = self.ring.take();
        contained(|| drop(ring));
        error
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() && self.ring.is_some() {
            // Requests that have ended in time get their results.
            while self.deliver(MOST) == MOST {}
            let error = self.shared.error("use of a ring whose driver has ended", libc::ECANCELED);
            self.end(error, std::iter::empty());
        }
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.waker().as_fd()
    }
}

impl AsRawFd for Driver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("ring", &self.ring).finish_non_exhaustive()
    }
}
