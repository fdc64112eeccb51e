//! Functions that wait for completions and take them.

use super::Ring;
use crate::Error;
use crate::completion::Completion;
use crate::error::ErrorContext;
use crate::low::Wait;
use crate::operation::{CqeResult, Id, MultiToken, Multishot, Operation, Token};
use linux_raw_sys::io_uring as abi;
use std::time::{Duration, Instant};

impl Ring {
    /// Submits what was pushed. Returns how many entries the engine took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn submit(&mut self) -> Result<usize, Error> {
        self.begin()?;
        self.low.submit()
    }

    /// Submits what was pushed, and waits for a completion.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`: `EINTR` if a signal handler ran, for example. `EDEADLK` if nothing is in flight.
    pub fn wait(&mut self) -> Result<Completion, Error> {
        let completion = self.wait_until(None)?;
        completion.ok_or_else(|| self.error(ErrorContext::Use("wait without end"), libc::ETIME))
    }

    /// Works as [`wait`](Ring::wait), but waits for at most `time`. Returns `None` if no completion came in this time.
    ///
    /// # Errors
    /// As for [`wait`](Ring::wait).
    pub fn wait_timeout(&mut self, time: Duration) -> Result<Option<Completion>, Error> {
        self.wait_until(Instant::now().checked_add(time))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Completion>, Error> {
        self.begin()?;
        loop {
            if let Some(completion) = self.take() {
                return Ok(Some(completion));
            }
            if self.requests.waited_for() == 0 {
                return Err(self.error(ErrorContext::Use("wait for nothing in flight"), libc::EDEADLK));
            }
            match self.enter(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))) {
                Err(error) if error.errno() == libc::ETIME => return Ok(self.take()),
                // The completion queue is full: it is reaped now.
                Err(error) if matches!(error.errno(), libc::EBUSY | libc::EAGAIN) => {}
                Err(error) => return Err(error),
                Ok(()) => {}
            }
        }
    }

    /// Submits and waits for one completion.
    pub(super) fn enter(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let result = match timeout {
            Some(time) => self.low.submit_with(1, &Wait::new().timeout(time)),
            None => self.low.submit_and_wait(1),
        };
        result.map(drop)
    }

    /// Submits what was pushed, and returns a completion if one is there.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        self.begin()?;
        if let Some(completion) = self.take() {
            return Ok(Some(completion));
        }
        self.low.submit_and_flush()?;
        Ok(self.take())
    }

    /// Pushes an operation and waits for its end; other completions that come meanwhile are kept.
    ///
    /// # Errors
    /// As for [`push`](Ring::push) and [`wait`](Ring::wait); interrupted waits are resumed.
    #[inline]
    pub fn run<O: Operation>(&mut self, operation: O) -> Result<O::Output, Error> {
        let token = self.push(operation)?;
        self.finish(token)
    }

    /// Waits for the end of a request; other completions that come meanwhile are kept.
    ///
    /// # Errors
    /// As for [`wait`](Ring::wait); interrupted waits are resumed. `ENOENT` if the request's completion was
    /// taken already.
    #[inline]
    pub fn finish<O: Operation>(&mut self, token: Token<O>) -> Result<O::Output, Error> {
        self.begin()?;
        let id = token.id();
        if self.ready.is_empty() && self.requests.is_plain::<O>(id) {
            let mut next = self.low.peek();
            if next.is_none() {
                self.submit_and_wait_for_one()?;
                next = self.low.peek();
            }
            if let Some(cqe) = next
                && cqe.user_data() == id.0
                && !cqe.more()
            {
                self.low.pass();
                // SAFETY: the request is plain, and this completion ends it.
                let (operation, file) = unsafe { self.requests.take_plain::<O>(id, cqe.result()) };
                let result = Error::check(self.low.engine(), ErrorContext::Operation(O::NAME), cqe.result());
                let came = CqeResult { result, flags: cqe.flags(), buffer: None, file };
                // SAFETY: the operation has ended with this outcome.
                return Ok(unsafe { operation.output(came) });
            }
        }
        self.finish_any(token)
    }

    /// Works as [`finish`](Ring::finish), but keeps any number of other completions that come before that of the
    /// request.
    #[cold]
    fn finish_any<O: Operation>(&mut self, token: Token<O>) -> Result<O::Output, Error> {
        let completion = self.wait_for(token.id())?;
        let gone = self.error(ErrorContext::Use("a token of another ring"), libc::ENOENT);
        completion.ok_or(gone)?.take(token).map_err(|other| self.keep(other, gone))
    }

    /// Keeps a completion that is not the one that the caller waits for.
    #[cold]
    fn keep(&mut self, other: Completion, gone: Error) -> Error {
        self.ready.push(other);
        gone
    }

    /// Waits for the next item of a stream. Returns `None` once the stream has ended. Other completions are kept.
    ///
    /// # Errors
    /// As for [`wait`](Ring::wait); interrupted waits are resumed. `ENOENT` if the stream is another ring's.
    pub fn next<M: Multishot>(&mut self, stream: &mut MultiToken<M>) -> Result<Option<M::Item>, Error> {
        if stream.ended {
            return Ok(None);
        }
        match self.wait_for(stream.id())? {
            Some(completion) => {
                let gone = self.error(ErrorContext::Use("a stream of another ring"), libc::ENOENT);
                completion.item(stream).map(Some).map_err(|other| self.keep(other, gone))
            }
            None => {
                stream.ended = true;
                Ok(None)
            }
        }
    }

    /// Waits for the next completion of a request. Returns `None` if no completion is to come.
    fn wait_for(&mut self, id: Id) -> Result<Option<Completion>, Error> {
        self.begin()?;
        if let Some(completion) = self.ready.pop_of(id) {
            return Ok(Some(completion));
        }
        loop {
            while let Some(completion) = self.take_new() {
                if completion.id() == id {
                    return Ok(Some(completion));
                }
                self.ready.push(completion);
            }
            if !self.requests.contains(id) {
                return Ok(None);
            }
            self.submit_and_wait_for_one()?;
        }
    }

    /// Submits what was pushed, and waits for a completion. Returns early after a signal, or if the CQ is full.
    #[inline]
    fn submit_and_wait_for_one(&mut self) -> Result<(), Error> {
        match self.low.submit_and_wait(1) {
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Submits what was pushed, and lets the engine post what is done, if that takes a call: for a driver, to which an
    /// eventfd signals completions.
    pub(crate) fn drive(&mut self) -> Result<(), Error> {
        self.begin()?;
        if self.defers() {
            return self.low.submit_and_flush().map(drop);
        }
        let queue = self.low.submission();
        if queue.is_empty() && !queue.cq_overflow() && !queue.taskrun() {
            return Ok(());
        }
        drop(queue);
        self.low.submit().map(drop)
    }

    /// True if [`drive`](Ring::drive) has more to do, after all completions were taken; `some` says whether there were any.
    pub(crate) fn needs_driving(&mut self, some: bool) -> bool {
        // A ring that defers posts a limited number of CQEs per call.
        let deferred = some && self.defers();
        let polled = self.low.submitter().setup_flags() & abi::IORING_SETUP_SQPOLL != 0;
        let queue = self.low.submission();
        deferred || queue.cq_overflow() || !(polled || queue.is_empty())
    }

    fn defers(&self) -> bool {
        self.low.submitter().setup_flags() & abi::IORING_SETUP_DEFER_TASKRUN != 0
    }

    /// Takes the next completion that is there.
    pub(crate) fn take(&mut self) -> Option<Completion> {
        if self.ready.is_empty() { self.take_new() } else { self.ready.pop() }
    }

    /// Takes the next completion from the CQ. The others stay there: the engine keeps those for which the CQ has no room.
    fn take_new(&mut self) -> Option<Completion> {
        let engine = self.low.engine();
        self.low.completion().find_map(|cqe| self.requests.complete(engine, cqe))
    }

    /// Moves all completions from the CQ to `ready`.
    pub(super) fn reap(&mut self) {
        while let Some(completion) = self.take_new() {
            self.ready.push(completion);
        }
    }
}
