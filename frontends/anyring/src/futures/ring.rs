//! The handle of a ring whose operations are futures.

use super::call::call;
use super::driver::Driver;
use super::shared::Door;
use super::submit::Submit;
use super::submit_multi::SubmitMulti;
use crate::error::ErrorContext;
use crate::operation::{Multishot, Operation};
use crate::{BufferPool, Buffers, Engine, Error, Fd, FixedSlot, Ring, engine};
use linux_raw_sys::io_uring::IORING_SETUP_SINGLE_ISSUER;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A ring whose operations are futures, for any executor and any thread.
///
/// Clones refer to the same ring. A [`Driver`] owns the ring; it runs in a thread, or as a task. All requests go through the
/// driver, which submits in one call what has gathered. Threads with many requests should have a ring each.
///
/// ```
/// use anyring::{AsyncRing, op};
///
/// # futures_executor::block_on(async {
/// let ring = AsyncRing::new(8)?;
/// let file = ring.submit(op::open("/proc/self/comm")).await??;
/// let (count, bytes) = ring.submit(op::read(&file, Vec::with_capacity(64))).await?;
/// assert_eq!(count?, bytes.len());
/// # Ok::<(), anyring::Error>(())
/// # }).unwrap();
/// ```
///
/// When the handle, its clones and their futures are gone, the ring ends.
///
/// In a child of `fork`, a ring of the parent is unusable: every future gets an error (`EOWNERDEAD`).
#[derive(Clone)]
pub struct AsyncRing(Arc<Door>);

impl AsyncRing {
    /// Makes a ring with room for `entries` submissions, whose driver runs in a new thread.
    ///
    /// # Errors
    /// As [`Ring::new`] and [`spawn`](AsyncRing::spawn).
    pub fn new(entries: u32) -> Result<AsyncRing, Error> {
        AsyncRing::spawn(Ring::new(entries)?)
    }

    /// Runs the ring's driver in a new thread, named `anyring`, which blocks all signals.
    ///
    /// Requests that are in flight on the ring continue, but their completions are dropped.
    ///
    /// # Errors
    /// As [`with_driver`](AsyncRing::with_driver); `EAGAIN` if no thread can be started. `EINVAL` for a ring with
    /// [`single_issuer`](crate::Builder::single_issuer): build such a ring in a thread that calls [`Driver::run`].
    pub fn spawn(ring: Ring) -> Result<AsyncRing, Error> {
        if ring.control().setup_flags() & IORING_SETUP_SINGLE_ISSUER != 0 {
            let context = ErrorContext::Use("another thread for a ring with single_issuer");
            return Err(ring.error(context, libc::EINVAL));
        }
        let (ring, driver) = AsyncRing::with_driver(ring)?;
        let run = move || {
            // The futures get the error.
            let _ = driver.run();
        };
        engine::spawn_thread("anyring", None, run).map_err(|error| {
            ring.0.error("thread of a ring", error.raw_os_error().unwrap_or(libc::EAGAIN))
        })?;
        Ok(ring)
    }

    /// Returns a handle of the ring and its driver. Run the driver in a task or in a thread: no future becomes ready before.
    ///
    /// Requests that are in flight on the ring continue, but their completions are dropped.
    ///
    /// # Errors
    /// `EINVAL` for a ring with [`io_poll`](crate::Builder::io_poll), whose completions do not signal an eventfd; as
    /// `eventfd(2)` and `IORING_REGISTER_EVENTFD`: `EBUSY` if the ring has an eventfd already.
    pub fn with_driver(ring: Ring) -> Result<(AsyncRing, Driver), Error> {
        let (door, driver) = Driver::new(ring)?;
        Ok((AsyncRing(door), driver))
    }

    /// The ring's engine.
    pub fn engine(&self) -> Engine {
        self.0.engine()
    }

    /// Returns the future of an operation. Its output is the operation's output.
    pub fn submit<O: Operation>(&self, operation: O) -> Submit<O> {
        Submit::new(self.0.clone(), operation, None)
    }

    /// Returns the future of an operation that is cancelled if it has not ended within `timeout` after its submission: its output
    /// then says `ECANCELED`, and has the buffers.
    pub fn submit_with_timeout<O: Operation>(&self, operation: O, timeout: Duration) -> Submit<O> {
        Submit::new(self.0.clone(), operation, Some(timeout))
    }

    /// Returns the stream of an operation with many completions.
    pub fn submit_multi<M: Multishot>(&self, operation: M) -> SubmitMulti<M> {
        SubmitMulti::new(self.0.clone(), operation)
    }

    /// Calls [`Ring::register_files`].
    ///
    /// # Errors
    /// As for that method, and the error with which the ring has ended.
    pub async fn register_files(&self, count: u32) -> Result<(), Error> {
        call(self.0.clone(), move |ring| ring.register_files(count)).await
    }

    /// Calls [`Ring::register_file`].
    ///
    /// # Errors
    /// As for that method, and the error with which the ring has ended.
    pub async fn register_file(&self, file: &Fd) -> Result<Fd, Error> {
        let file = file.clone();
        call(self.0.clone(), move |ring| ring.register_file(&file)).await
    }

    /// Calls [`Ring::slot`].
    ///
    /// # Errors
    /// As for that method, and the error with which the ring has ended.
    pub async fn slot(&self) -> Result<FixedSlot, Error> {
        call(self.0.clone(), Ring::slot).await
    }

    /// Calls [`Ring::register_buffers`].
    ///
    /// # Errors
    /// As for that method, and the error with which the ring has ended.
    pub async fn register_buffers(&self, count: u16, size: usize) -> Result<BufferPool, Error> {
        call(self.0.clone(), move |ring| ring.register_buffers(count, size)).await
    }

    /// Calls [`Ring::buffers`].
    ///
    /// # Errors
    /// As for that method, and the error with which the ring has ended.
    pub async fn buffers(&self, count: u16, size: u32) -> Result<Buffers, Error> {
        call(self.0.clone(), move |ring| ring.buffers(count, size)).await
    }
}

impl fmt::Debug for AsyncRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRing").field("engine", &self.engine()).finish_non_exhaustive()
    }
}
