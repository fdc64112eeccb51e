//! Functions that push requests.

use super::{Chain, Ring};
use crate::Error;
use crate::error::ErrorContext;
use crate::kept::{Kept, Memory};
use crate::low::{Sqe, op as low_op};
use crate::op::{Cancel, LinkTimeout};
use crate::operation::{CqeResult, Files, Id, MultiToken, Multishot, Operation, Source, Token};
use crate::requests::{Request, Vacancy};
use anyring_engine::request::field::FIRST_PRIVATE;
use linux_raw_sys::io_uring as abi;
use std::time::Duration;

impl Ring {
    /// Pushes an operation.
    ///
    /// # Errors
    /// If the queue is full and the engine takes nothing from it; the operation is dropped then.
    #[inline(always)]
    pub fn push<O: Operation>(&mut self, operation: O) -> Result<Token<O>, Error> {
        self.make_room(1)?;
        let (id, sqe) = self.enlist(operation, false);
        self.place(sqe);
        Ok(Token::new(id))
    }

    /// Pushes an operation with many completions.
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    pub fn push_multi<M: Multishot>(&mut self, operation: M) -> Result<MultiToken<M>, Error> {
        self.make_room(1)?;
        let source = operation.buffers().map(|buffers| buffers.0.clone());
        if source.as_ref().is_some_and(|source| !self.has_group(source)) {
            return Err(self.error(ErrorContext::Use("use of another ring's buffers"), libc::EXDEV));
        }
        let (id, sqe) = self.enlist_multi(operation, source);
        self.place(sqe);
        Ok(MultiToken::new(id))
    }

    /// Pushes an operation that is cancelled if it has not ended within `timeout`.
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    pub fn push_with_timeout<O: Operation>(
        &mut self,
        operation: O,
        timeout: Duration,
    ) -> Result<Token<O>, Error> {
        self.make_room(2)?;
        let id = self.link(operation, false);
        self.link(LinkTimeout::new(timeout), true);
        self.close_chain();
        Ok(Token::new(id))
    }

    /// Begins a chain of `length` operations, each of which begins when the one before has succeeded; if one fails,
    /// the following ones are cancelled.
    ///
    /// # Errors
    /// If the chain is longer than the queue, and as for [`push`](Ring::push).
    pub fn chain(&mut self, length: usize) -> Result<Chain<'_>, Error> {
        self.make_room(length)?;
        Ok(Chain::new(self, length))
    }

    /// Cancels a request, if it has not ended. The request's own completion says whether it was cancelled (`ECANCELED`); the
    /// completion of the cancellation says whether there was such a request.
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    pub fn cancel(&mut self, request: impl Into<Id>) -> Result<Token<Cancel>, Error> {
        self.push(Cancel::of(request.into()))
    }

    /// Cancels a request as [`cancel`](Ring::cancel) does; the program does not see the completion of the cancellation.
    pub(crate) fn cancel_silently(&mut self, id: Id) -> Result<(), Error> {
        self.make_room(1)?;
        let (_, sqe) = self.enlist(Cancel::of(id), true);
        self.place(sqe);
        Ok(())
    }

    /// Submits an entry of the low-level interface. The ring keeps `kept` until the entry has ended; its completion returns `kept`.
    ///
    /// ```
    /// use anyring::{Ring, low};
    ///
    /// let mut ring = Ring::new(4)?;
    /// let mut kept = Box::new([0_u8; 8]);
    /// let file = std::fs::File::open("/dev/zero").unwrap();
    /// let entry = low::op::Read::new(&file, kept.as_mut_ptr(), 8).build();
    /// // SAFETY: the buffer is kept, the file is open until the request has ended.
    /// let token = unsafe { ring.push_raw(entry, kept) }?;
    /// let (result, kept) = ring.finish(token)?;
    /// assert_eq!((result?, *kept), (8, [0; 8]));
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    ///
    /// # Safety
    /// As for [`SubmissionQueue::push`](crate::low::SubmissionQueue::push); the entry must have exactly one completion. Its
    /// user data is replaced. It must not be linked.
    pub unsafe fn push_raw<T: Send + 'static>(
        &mut self,
        entry: Sqe,
        kept: T,
    ) -> Result<Token<Raw<T>>, Error> {
        self.push(Raw { entry, kept })
    }

    /// Adds an operation to the list of requests. Returns its number, and its entry with this number as user data.
    #[inline(always)]
    fn enlist<O: Operation>(&mut self, operation: O, silent: bool) -> (Id, Sqe) {
        let (opens, notifies) = (operation.opens_descriptor(), operation.notifies());
        let Vacancy { index, room } = self.requests.vacancy();
        let mut kept = Kept::single(Memory::new(room), operation);
        // SAFETY: the operation has the type `O`, and nothing else refers to it.
        let sqe = unsafe { kept.get_mut::<O>() }.entry(Files(self.table.as_ref()));
        self.serve(&sqe);
        let request = Request { opens, notifies, silent, plain: !notifies && !silent, ..Request::new(kept) };
        let id = self.requests.insert(index, request, None);
        (id, sqe.user_data(id.0))
    }

    /// Works as [`enlist`](Ring::enlist), for an operation with many completions.
    fn enlist_multi<M: Multishot>(&mut self, operation: M, source: Source) -> (Id, Sqe) {
        let opens = operation.opens_descriptors();
        let Vacancy { index, room } = self.requests.vacancy();
        let mut kept = Kept::multi(Memory::new(room), operation);
        // SAFETY: as above.
        let sqe = unsafe { kept.get_mut::<M>() }.entry(Files(self.table.as_ref()));
        self.serve(&sqe);
        let id = self.requests.insert(index, Request { opens, ..Request::new(kept) }, source);
        (id, sqe.user_data(id.0))
    }

    /// Makes the ring support private operations if this entry is one.
    #[inline(always)]
    fn serve(&mut self, sqe: &Sqe) {
        if sqe.opcode() >= FIRST_PRIVATE {
            self.low.serve_private_operations();
        }
    }

    /// Puts an entry into the queue, which has room.
    #[inline(always)]
    fn place(&mut self, sqe: Sqe) {
        // SAFETY: the queue has room. All that the entry names belongs to the operation, which stays in place until it has
        // ended; a ring that is dropped waits for that.
        unsafe { self.low.push_into_room(sqe) };
    }

    /// Adds an operation to the chain that is being made, for which the queue has room.
    pub(super) fn link<O: Operation>(&mut self, operation: O, silent: bool) -> Id {
        let (id, sqe) = self.enlist(operation, silent);
        self.chain.push(sqe.link());
        id
    }

    /// Puts the whole chain into the queue with one update of the tail: a thread that polls the queue must not
    /// see a part of the chain.
    #[inline]
    pub(super) fn close_chain(&mut self) {
        if !self.chain.is_empty() {
            self.push_chain();
        }
    }

    #[cold]
    fn push_chain(&mut self) {
        if let Some(last) = self.chain.last_mut() {
            *last = last.unlink();
            // SAFETY: as for `place`.
            let result = unsafe { self.low.submission().push_all(&self.chain) };
            debug_assert!(result.is_ok(), "room was made for it");
            self.chain.clear();
        }
    }

    /// Makes room for `count` entries in the queue.
    #[inline(always)]
    fn make_room(&mut self, count: usize) -> Result<(), Error> {
        self.check_process()?;
        self.close_chain();
        if self.low.has_room(count) { Ok(()) } else { self.wait_for_room(count) }
    }

    #[cold]
    fn wait_for_room(&mut self, count: usize) -> Result<(), Error> {
        if count > self.low.submission().capacity() {
            return Err(
                self.error(ErrorContext::Use("a chain longer than the submission queue"), libc::E2BIG)
            );
        }
        loop {
            match self.low.submit() {
                // The completion queue is full, too: it is reaped below.
                Err(error) if matches!(error.errno(), libc::EBUSY | libc::EINTR | libc::EAGAIN) => {}
                result => drop(result?),
            }
            if self.low.submission().free() >= count {
                return Ok(());
            }
            self.reap();
            if self.low.submitter().setup_flags() & abi::IORING_SETUP_SQPOLL != 0 {
                match self.low.submitter().wait_for_room() {
                    Err(error) if error.errno() == libc::EINTR => {}
                    result => drop(result?),
                }
            }
        }
    }
}

/// An entry of the low-level interface, and the value that the ring keeps for it: see [`Ring::push_raw`].
pub struct Raw<T> {
    entry: Sqe,
    kept: T,
}

// SAFETY: the caller of `push_raw` has promised it.
unsafe impl<T: Send + 'static> Operation for Raw<T> {
    type Output = (Result<u32, Error>, T);

    const NAME: &'static str = "of the layer below";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        self.entry
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        let what = ErrorContext::Operation(low_op::name(self.entry.opcode()));
        (came.result.map_err(|error| Error::new(error.engine(), what, error.errno())), self.kept)
    }
}
