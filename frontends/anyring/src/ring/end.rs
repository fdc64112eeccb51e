//! The end of a ring.

use super::Ring;
use crate::Error;
use crate::low::op as low_op;
use crate::operation::Id;
use std::time::Duration;

impl Drop for Ring {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The requests, and the memory that they work on, belong to the parent.
            return;
        }
        let ring = Ending(self);
        ring.0.close_chain();
        if !ring.0.requests.is_empty() {
            let _ = ring.0.cancel_all();
        }
    }
}

/// A ring that ends. If requests have not ended, because the wait for them failed or because freed values
/// panicked, the memory that they work on is never freed.
struct Ending<'a>(&'a mut Ring);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let ring = &mut *self.0;
        if !ring.requests.is_empty() {
            ring.requests.forget();
            std::mem::forget(std::mem::take(&mut ring.groups));
            std::mem::forget(ring.pool.take());
        }
        for group in ring.groups.iter().flatten() {
            let _ = ring.low.submitter().unregister_buffer_ring(group.id());
        }
    }
}

impl Ring {
    /// Cancels all requests, and waits until they have ended.
    fn cancel_all(&mut self) -> Result<(), Error> {
        const SECOND: Duration = Duration::from_secs(1);
        // Entries that the engine has not taken yet must not begin.
        for id in self.low.submission().take_back() {
            self.requests.withdraw(Id(id));
        }
        if self.requests.is_empty() {
            return Ok(());
        }
        loop {
            for id in self.requests.ids() {
                while self.low.submission().free() == 0 {
                    self.enter_and_reap(Duration::ZERO)?;
                }
                // SAFETY: the entry names no memory. No request has the user data of its completion.
                let _ = unsafe { self.low.push(low_op::AsyncCancel::new(id.0).build().user_data(u64::MAX)) };
            }
            // Requests that cannot be cancelled end by themselves; those that could not be cancelled at this moment are tried again.
            while self.enter_and_reap(SECOND)? {
                if self.requests.is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for a completion, and drops all completions that are there. Returns false if the time has passed.
    fn enter_and_reap(&mut self, time: Duration) -> Result<bool, Error> {
        let result = self.enter(Some(time));
        self.reap();
        self.ready.clear();
        match result {
            Err(error) if error.errno() == libc::ETIME => Ok(false),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(true),
            result => result.map(|()| true),
        }
    }
}
