//! The safe ring.

use crate::completion::Completion;
use crate::error::What;
use crate::fixed::{FixedSlot, Table};
use crate::low::{self, Probe, Sqe, Submitter, Wait, op as low_op};
use crate::op::{Cancel, LinkTimeout};
use crate::operation::{Id, Multishot, Named, Operation, Stream, Token};
use crate::provided::{Buffers, Group};
use crate::registered::{BufferPool, Memory};
use crate::requests::{Kept, Kind, Request, Requests};
use crate::{Builder, Engine, Error, Fd, engine};
use anyring_engine::ops::FIRST_PRIVATE;
use linux_raw_sys::io_uring as abi;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A ring whose requests are safe.
///
/// [`push`](Ring::push) hands an operation over and answers with a token; [`wait`](Ring::wait) answers with the next
/// completion, whose [`take`](Completion::take) gives back, for the token, what came of the operation and the
/// buffers that it was given. [`run`](Ring::run) does both for one operation.
///
/// What is pushed goes to the engine with the next [`submit`](Ring::submit), [`wait`](Ring::wait) or
/// [`poll`](Ring::poll), or when the queue is full.
///
/// A ring that is dropped cancels what is in flight and waits until it has ended: no memory is freed that the engine
/// may still use. Where it cannot wait, because another thread than its own drops a ring with
/// [`single_issuer`](Builder::single_issuer), that memory is never freed.
///
/// In a child of `fork` a ring of the parent is of no use: every call fails, and dropping it does nothing to the
/// parent's.
///
/// ```
/// use anyring::{Ring, op};
/// use std::time::Duration;
///
/// let mut ring = Ring::new(8)?;
/// let nop = ring.push(op::nop())?;
/// let timeout = ring.push(op::timeout(Duration::from_millis(1)))?;
/// while ring.in_flight() > 0 {
///     let completion = ring.wait()?;
///     if completion.is(&nop) {
///         completion.take(nop).expect("it is that one")?;
///     } else if completion.is(&timeout) {
///         completion.take(timeout).expect("it is that one")?;
///     }
/// }
/// # Ok::<(), anyring::Error>(())
/// ```
pub struct Ring {
    low: low::Ring,
    requests: Requests,
    /// Completions that nobody has asked for yet.
    ready: VecDeque<Completion>,
    /// Of the process that it was made in.
    generation: u32,
    table: Option<Arc<Table>>,
    groups: Vec<Arc<Group>>,
    pool: Option<Arc<Memory>>,
    /// The entries of a chain that is being made.
    chain: Vec<Sqe>,
}

impl Ring {
    /// A ring with room for `entries` submissions, and everything else as [`Builder`] has it.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(entries: u32) -> Result<Ring, Error> {
        Ring::builder(entries).build()
    }

    /// How a ring with room for `entries` submissions is to be.
    pub fn builder(entries: u32) -> Builder {
        Builder::new(entries)
    }

    pub(crate) fn over(low: low::Ring) -> Ring {
        Ring {
            low,
            requests: Requests::default(),
            ready: VecDeque::new(),
            generation: engine::generation(),
            table: None,
            groups: Vec::new(),
            pool: None,
            chain: Vec::new(),
        }
    }

    /// The engine that it has.
    pub fn engine(&self) -> Engine {
        self.low.engine()
    }

    /// Registrations that concern no memory, and what the engine can do.
    pub fn submitter(&self) -> &Submitter {
        self.low.submitter()
    }

    /// Which operations the engine has.
    ///
    /// # Errors
    /// Where it cannot tell (Linux 5.5 and older).
    pub fn probe(&mut self) -> Result<Probe, Error> {
        self.low.serve_private_operations();
        self.low.probe()
    }

    /// How many requests have completions to come.
    pub fn in_flight(&self) -> usize {
        self.requests.waited_for() + self.ready.iter().filter(|completion| !completion.more()).count()
    }

    fn error(&self, what: What, errno: i32) -> Error {
        Error::new(self.engine(), what, errno)
    }

    /// Refuses what a child of `fork` does with its parent's ring.
    fn check_process(&self) -> Result<(), Error> {
        if self.generation == engine::generation() {
            return Ok(());
        }
        Err(self.error(What::Use("use of a ring of the parent process"), libc::EOWNERDEAD))
    }
}

/// Requests.
impl Ring {
    /// Hands an operation over.
    ///
    /// # Errors
    /// Where the queue is full and the engine takes nothing from it; the operation is dropped then.
    pub fn push<O: Operation>(&mut self, operation: O) -> Result<Token<O>, Error> {
        self.make_room(1)?;
        let (request, sqe) = single(operation);
        self.place(request, sqe).map(Token::new)
    }

    /// Hands an operation with many completions over.
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    pub fn push_multi<M: Multishot>(&mut self, operation: M) -> Result<Stream<M>, Error> {
        self.make_room(1)?;
        let source = operation.buffers().map(|buffers| buffers.0.clone());
        if source.as_ref().is_some_and(|source| !self.groups.iter().any(|group| Arc::ptr_eq(group, source))) {
            return Err(self.error(What::Use("use of another ring's buffers"), libc::EXDEV));
        }
        let (request, sqe) = multishot(operation);
        self.place(Request { source, ..request }, sqe).map(Stream::new)
    }

    /// Hands an operation over that is cancelled if it has not ended in time.
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

    /// Begins a chain of `length` operations, each of which begins when the one before has ended well; if one fails,
    /// those behind it are cancelled.
    ///
    /// # Errors
    /// Where it is longer than the queue, and as for [`push`](Ring::push).
    pub fn chain(&mut self, length: usize) -> Result<Chain<'_>, Error> {
        self.make_room(length)?;
        Ok(Chain { ring: self, left: length })
    }

    /// Cancels a request, if it has not ended: the request's own completion says whether it was (`ECANCELED`); that
    /// of the cancellation says whether there was such a request.
    ///
    /// # Errors
    /// As for [`push`](Ring::push).
    pub fn cancel(&mut self, request: &impl Named) -> Result<Token<Cancel>, Error> {
        self.push(Cancel::of(request.id().0))
    }

    /// Submits an entry of the layer below, keeping `kept` until it has ended, which its completion gives back.
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
    /// As for [`SubmissionQueue::push`](low::SubmissionQueue::push); the entry must have one completion. Its user
    /// data is replaced, links are not allowed.
    pub unsafe fn push_raw<T: Send + 'static>(
        &mut self,
        entry: Sqe,
        kept: T,
    ) -> Result<Token<Raw<T>>, Error> {
        self.push(Raw { entry, kept })
    }

    /// Puts a request into the queue, which has room.
    fn place(&mut self, request: Request, sqe: Sqe) -> Result<Id, Error> {
        let id = self.enter_into_list(request, &sqe);
        // SAFETY: what the entry names belongs to the operation, which stays where it is until it has ended; a ring
        // that is dropped waits for that.
        if unsafe { self.low.push(sqe.user_data(id.0)) }.is_err() {
            self.requests.remove(id);
            return Err(self.error(What::Use("push to a full queue"), libc::EBUSY));
        }
        Ok(id)
    }

    fn enter_into_list(&mut self, request: Request, sqe: &Sqe) -> Id {
        if sqe.opcode() >= FIRST_PRIVATE {
            self.low.serve_private_operations();
        }
        self.requests.insert(request)
    }

    /// Adds to the chain that is being made, for which the queue has room.
    fn link<O: Operation>(&mut self, operation: O, silent: bool) -> Id {
        let (request, sqe) = single(operation);
        let id = self.enter_into_list(Request { silent, ..request }, &sqe);
        self.chain.push(sqe.user_data(id.0).link());
        id
    }

    /// Puts the chain into the queue. The engine sees it as a whole: a thread that polls the queue must not take it
    /// for several.
    fn close_chain(&mut self) {
        if let Some(last) = self.chain.last_mut() {
            *last = last.unlink();
            // SAFETY: as for `place`.
            let result = unsafe { self.low.submission().push_all(&self.chain) };
            debug_assert!(result.is_ok(), "room was made for it");
            self.chain.clear();
        }
    }

    /// Sees that so many entries have room.
    fn make_room(&mut self, count: usize) -> Result<(), Error> {
        self.check_process()?;
        self.close_chain();
        if self.low.submission().free() >= count {
            return Ok(());
        }
        if count > self.low.submission().capacity() {
            return Err(self.error(What::Use("a chain longer than the submission queue"), libc::E2BIG));
        }
        loop {
            match self.low.submit() {
                // The completion queue is full, too.
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

/// The request for an operation, and its entry.
fn single<O: Operation>(operation: O) -> (Request, Sqe) {
    let kind = const {
        &Kind {
            name: O::NAME,
            settle: |operation, result| {
                if let Some(operation) = operation.downcast_mut::<O>() {
                    operation.settle(result);
                }
            },
        }
    };
    let (opens, notifies) = (operation.opens_descriptor(), operation.notifies());
    let (operation, sqe) = Kept::new(operation, O::entry);
    (Request { opens, notifies, ..Request::new(operation, kind) }, sqe)
}

fn multishot<M: Multishot>(operation: M) -> (Request, Sqe) {
    let kind = const { &Kind { name: M::NAME, settle: |_, _| {} } };
    let opens = operation.opens_descriptors();
    let (operation, sqe) = Kept::new(operation, M::entry);
    (Request { opens, ..Request::new(operation, kind) }, sqe)
}

/// Completions.
impl Ring {
    /// Gives the engine what was pushed. How many entries it took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn submit(&mut self) -> Result<usize, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        self.low.submit()
    }

    /// Gives the engine what was pushed, and waits for a completion.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`: `EINTR` where a signal handler ran, for one. `EDEADLK` where nothing is in flight.
    pub fn wait(&mut self) -> Result<Completion, Error> {
        let completion = self.wait_until(None)?;
        completion.ok_or_else(|| self.error(What::Use("wait without end"), libc::ETIME))
    }

    /// [`wait`](Ring::wait) for so long at most.
    ///
    /// # Errors
    /// As there.
    pub fn wait_timeout(&mut self, time: Duration) -> Result<Option<Completion>, Error> {
        self.wait_until(Instant::now().checked_add(time))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<Completion>, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        loop {
            if let Some(completion) = self.take() {
                return Ok(Some(completion));
            }
            if self.requests.waited_for() == 0 {
                return Err(self.error(What::Use("wait for nothing in flight"), libc::EDEADLK));
            }
            match self.enter(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))) {
                Err(error) if error.errno() == libc::ETIME => return Ok(self.take()),
                // Completions found no room in their queue: they are taken now.
                Err(error) if matches!(error.errno(), libc::EBUSY | libc::EAGAIN) => {}
                Err(error) => return Err(error),
                Ok(()) => {}
            }
        }
    }

    /// Submits and waits for one completion.
    fn enter(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let result = match timeout {
            Some(time) => self.low.submit_with(1, &Wait::new().timeout(time)),
            None => self.low.submit_and_wait(1),
        };
        result.map(drop)
    }

    /// Gives the engine what was pushed, and answers with a completion if one is there.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        if let Some(completion) = self.take() {
            return Ok(Some(completion));
        }
        self.low.submit_and_flush()?;
        Ok(self.take())
    }

    /// Hands an operation over and waits for its end; other completions that come meanwhile are kept.
    ///
    /// # Errors
    /// As for [`push`](Ring::push) and [`wait`](Ring::wait); interrupted waits are taken up again.
    pub fn run<O: Operation>(&mut self, operation: O) -> Result<O::Output, Error> {
        let token = self.push(operation)?;
        self.finish(token)
    }

    /// Waits for the end of a request; other completions that come meanwhile are kept.
    ///
    /// # Errors
    /// As for [`wait`](Ring::wait); interrupted waits are taken up again. `ENOENT` where the request's completion was
    /// taken already.
    pub fn finish<O: Operation>(&mut self, token: Token<O>) -> Result<O::Output, Error> {
        let completion = self.wait_for(token.id())?;
        let gone = self.error(What::Use("a token of another ring"), libc::ENOENT);
        match completion.ok_or(gone)?.take(token) {
            Ok(output) => Ok(output),
            Err(other) => {
                self.ready.push_back(other);
                Err(gone)
            }
        }
    }

    /// The next item of a stream, waited for; nothing once it has ended. Other completions are kept.
    ///
    /// # Errors
    /// As for [`wait`](Ring::wait); interrupted waits are taken up again.
    pub fn next<M: Multishot>(&mut self, stream: &mut Stream<M>) -> Result<Option<M::Item>, Error> {
        if stream.ended {
            return Ok(None);
        }
        match self.wait_for(stream.id())? {
            Some(completion) => Ok(completion.item(stream).ok()),
            None => {
                stream.ended = true;
                Ok(None)
            }
        }
    }

    /// The next completion of a request; nothing where none is to come.
    fn wait_for(&mut self, id: Id) -> Result<Option<Completion>, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        let kept = self.ready.iter().position(|completion| completion.id() == id);
        if let Some(completion) = kept.and_then(|position| self.ready.remove(position)) {
            return Ok(Some(completion));
        }
        loop {
            while let Some(completion) = self.take_new() {
                if completion.id() == id {
                    return Ok(Some(completion));
                }
                self.ready.push_back(completion);
            }
            if !self.requests.contains(id) {
                return Ok(None);
            }
            match self.low.submit_and_wait(1) {
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                result => drop(result?),
            }
        }
    }

    /// The next completion that is there.
    fn take(&mut self) -> Option<Completion> {
        if self.ready.is_empty() { self.take_new() } else { self.ready.pop_front() }
    }

    /// The next completion in the queue. The others stay there: what finds no room is kept by the engine.
    fn take_new(&mut self) -> Option<Completion> {
        let engine = self.low.engine();
        self.low.completion().find_map(|cqe| self.requests.complete(engine, cqe))
    }

    /// Takes all that is in the completion queue.
    fn reap(&mut self) {
        while let Some(completion) = self.take_new() {
            self.ready.push_back(completion);
        }
    }
}

/// Files and buffers.
impl Ring {
    /// Makes the ring's table of files, with `count` places.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES2`; `EBUSY` where the ring has one.
    pub fn register_files(&mut self, count: u32) -> Result<(), Error> {
        self.check_process()?;
        self.low.submitter().register_files_sparse(count)?;
        self.table = Some(Table::new(count));
        Ok(())
    }

    /// A place in the table for an operation that opens a file.
    ///
    /// # Errors
    /// `ENXIO` where the ring has no table, `ENFILE` where it is full.
    pub fn slot(&mut self) -> Result<FixedSlot, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        let no_table =
            self.error(What::Use("a place in a table of files that was not registered"), libc::ENXIO);
        let full = self.error(What::Use("a place in a full table of files"), libc::ENFILE);
        self.table.as_ref().ok_or(no_table)?.take().ok_or(full)
    }

    /// Puts a file into the table: operations need not look its descriptor up.
    ///
    /// ```
    /// use anyring::{Fd, Ring, op};
    ///
    /// let mut ring = Ring::new(8)?;
    /// ring.register_files(4)?;
    /// let file = Fd::from(std::fs::File::open("/dev/zero").unwrap());
    /// let fixed = ring.fix(&file)?;
    /// drop(file);
    /// let (count, _) = ring.run(op::read(&fixed, Vec::with_capacity(16)))?;
    /// assert_eq!(count?, 16);
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`slot`](Ring::slot), and as `IORING_REGISTER_FILES_UPDATE2`.
    pub fn fix(&mut self, file: &Fd) -> Result<Fd, Error> {
        let mut slot = self.slot()?;
        self.low.submitter().update_files(slot.index(), &[file.raw()], None)?;
        slot.fill();
        Ok(Fd::fixed(slot))
    }

    /// Empties places whose files nobody names any more.
    fn clean(&mut self) {
        let Some(table) = &self.table else { return };
        for index in table.abandoned() {
            let _ = self.low.submitter().update_files(index, &[-1], None);
            table.give_back(index);
        }
    }

    /// Registers `count` buffers of `size` bytes.
    ///
    /// # Errors
    /// As `IORING_REGISTER_BUFFERS`: `ENOMEM` where so much memory may not be locked, `EBUSY` where the ring has
    /// registered buffers.
    pub fn register_buffers(&mut self, count: u16, size: usize) -> Result<BufferPool, Error> {
        self.check_process()?;
        let memory = Memory::new(count, size);
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { self.low.submitter().register_buffers(&memory.vectors())? };
        self.pool = Some(memory.clone());
        Ok(BufferPool(memory))
    }

    /// Makes a group of `count` buffers, rounded up to a power of two, of `size` bytes, for operations that take one
    /// when there is something for it.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PBUF_RING`.
    pub fn buffers(&mut self, count: u16, size: u32) -> Result<Buffers, Error> {
        self.check_process()?;
        let invalid = self.error(What::Register("PBUF_RING"), libc::EINVAL);
        let entries = count.checked_next_power_of_two().filter(|_| count > 0 && size > 0).ok_or(invalid)?;
        let number = u16::try_from(self.groups.len()).map_err(|_| invalid)?;
        let group = Group::new(number, entries, size)
            .map_err(|error| self.error(What::Map, error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        let (memory, submitter) = (group.memory(), self.low.submitter());
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { submitter.register_buffer_ring(memory, entries.into(), number, 0)? };
        self.groups.push(group.clone());
        Ok(Buffers(group))
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.low.as_raw_fd()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.low.as_fd()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Ring");
        out.field("engine", &self.engine()).field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The requests are the parent's, and so is the memory that they work on.
            return;
        }
        self.close_chain();
        if !self.requests.is_empty() && self.cancel_all().is_err() {
            self.requests.forget();
            std::mem::forget(std::mem::take(&mut self.groups));
            std::mem::forget(self.pool.take());
        }
        for group in &self.groups {
            let _ = self.low.submitter().unregister_buffer_ring(group.id());
        }
    }
}

impl Ring {
    /// Cancels all requests, and waits until they have ended.
    fn cancel_all(&mut self) -> Result<(), Error> {
        const SECOND: Duration = Duration::from_secs(1);
        // What the engine has not taken yet is not to begin.
        self.low.submission().neutralize();
        loop {
            for id in self.requests.ids() {
                while self.low.submission().free() == 0 {
                    self.enter_and_reap(Duration::ZERO)?;
                }
                // SAFETY: names no memory. Its own completion is nobody's.
                let _ = unsafe { self.low.push(low_op::AsyncCancel::new(id.0).build().user_data(u64::MAX)) };
            }
            // What cannot be cancelled ends by itself; what could not be in this moment is tried again.
            while self.enter_and_reap(SECOND)? {
                if self.requests.is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for something, and takes what is there; false where the time is over.
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

/// Operations that begin one after the other, made by [`Ring::chain`].
///
/// ```
/// use anyring::{Ring, op};
/// use std::time::Duration;
///
/// let mut ring = Ring::new(8)?;
/// let mut chain = ring.chain(2)?;
/// let first = chain.push(op::timeout(Duration::from_millis(1)).success())?;
/// let second = chain.push(op::nop())?;
/// drop(chain);
/// assert!(ring.wait()?.is(&first));
/// assert!(ring.wait()?.is(&second));
/// # Ok::<(), anyring::Error>(())
/// ```
pub struct Chain<'a> {
    ring: &'a mut Ring,
    left: usize,
}

impl Chain<'_> {
    /// Adds an operation. The chain is handed over as a whole when this is dropped.
    ///
    /// # Errors
    /// Where it has as many as were said.
    pub fn push<O: Operation>(&mut self, operation: O) -> Result<Token<O>, Error> {
        if self.left == 0 {
            return Err(self
                .ring
                .error(What::Use("more operations than the chain was to have"), libc::E2BIG));
        }
        self.left -= 1;
        Ok(Token::new(self.ring.link(operation, false)))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.ring.close_chain();
    }
}

/// An entry of the layer below, and what is kept for it: see [`Ring::push_raw`].
pub struct Raw<T> {
    entry: Sqe,
    kept: T,
}

// SAFETY: the promise of who pushed it.
unsafe impl<T: Send + 'static> Operation for Raw<T> {
    type Output = (Result<u32, Error>, T);

    const NAME: &'static str = "of the layer below";

    fn entry(&mut self) -> Sqe {
        self.entry
    }

    fn output(self, came: crate::operation::Yield) -> Self::Output {
        let what = What::Operation(low_op::name(self.entry.opcode()));
        (came.result.map_err(|error| Error::new(error.engine(), what, error.errno())), self.kept)
    }
}
