//! A ring's work: queued, out of the queue, or finished.
//!
//! Work leaves the queue for code that runs without the ring's lock only as a [`Piece`](crate::work::Piece) or a [`Batch`]: with its file,
//! or lent.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::os::Fd;
use crate::process::credentials::Credentials;
use crate::request::{RequestId, Slab};
use crate::wait::loan::{Loan, Posted};
use crate::work::backlog::take;
use crate::work::closing::Closing;
use crate::work::in_flight::InFlight;
use crate::work::on_files::OnFiles;
use crate::work::{Batch, VERY_SLOW_US, Work, own_file};

/// The number of pieces that a caller does between two looks at the ring.
const PIECES: usize = 16;

/// The work of one ring.
#[derive(Default)]
pub struct WorkQueue {
    /// Work for the caller to do, or to hand to workers.
    queued: VecDeque<Work>,
    /// The number of queued O_DIRECT transfers.
    direct: usize,
    /// Some of the queued work may be on a descriptor of the program. That is so only while the lock is held, or if the work is lent.
    exposed: bool,
    /// The loan of queued work to the call that submits, which does it on the program's descriptors.
    loan: Loan,
    /// Descriptors of the program whose CLOSE is queued or in progress.
    pub(in crate::work) closing: Closing,
    /// The memory of a batch, unless a caller has it.
    batch: Vec<Work>,
    /// The number of pieces that workers or the kernel have, or a caller does.
    out: usize,
    /// Work that is done, and whose request has not ended yet.
    finished: VecDeque<Work>,
    /// The amount of work in all these states, by descriptor.
    on_files: OnFiles,
    /// The amount of that work that a worker has, or had, by descriptor.
    handed_over: OnFiles,
    /// Reads in flight at the device.
    pub(super) in_flight: InFlight,
    /// How long writes into the page cache have taken of late, in any thread, in microseconds.
    write_takes_us: u64,
}

impl WorkQueue {
    /// Notes how long a write into the page cache has taken.
    #[inline]
    pub(super) fn note_write(&mut self, took_us: u64) {
        self.write_takes_us = (3 * self.write_takes_us + took_us) / 4;
    }

    /// True if writes into the page cache wait for the device. The system blocks a writer that writes more than the device takes, for up to
    /// 200 ms at a time.
    #[inline]
    pub(super) fn writes_are_slow(&self) -> bool {
        self.write_takes_us > VERY_SLOW_US
    }

    /// True if nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Returns the queued work, in order.
    pub fn queued(&self) -> impl ExactSizeIterator<Item = &Work> {
        self.queued.iter()
    }

    /// True if nothing is queued and nothing finished.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.queued.is_empty() && self.finished.is_empty()
    }

    /// Counts blocking work on the file that the program names by `fd`.
    #[inline]
    pub(super) fn begins(&mut self, fd: Fd) {
        self.on_files.add(fd);
    }

    /// Counts work that goes to a worker.
    pub(super) fn hands_over(&mut self, work: &mut Work) {
        if !core::mem::replace(&mut work.handed_over, true) {
            self.handed_over.add(work.named);
        }
    }

    /// Removes work from the counts, because it is done or was taken back.
    #[inline]
    pub(super) fn ends(&mut self, work: &Work) {
        self.on_files.remove(work.named);
        if work.handed_over {
            self.handed_over.remove(work.named);
        }
    }

    /// Returns whether there is work on `fd`; with `handed_over`, work that a worker has or had. `None` if that is not known.
    pub(super) fn has_on(&self, fd: Fd, handed_over: bool) -> Option<bool> {
        if handed_over { self.handed_over.has(fd) } else { self.on_files.has(fd) }
    }

    /// Queues work. `at` is the position of the submission that queues it: the SQ head, and the posts so far.
    #[inline(always)]
    pub fn push(&mut self, work: Work, at: (u32, Posted)) {
        if self.loan.is_open() {
            let (sq_head, posted) = at;
            self.loan.queue(sq_head, posted, work.is_exposed() && work.lendable);
        }
        self.exposed |= work.is_exposed();
        self.direct += usize::from(work.direct.is_some());
        self.queued.push_back(work);
    }

    /// Queues work again, before all other work.
    pub(super) fn put_back(&mut self, work: Work) {
        self.exposed |= work.is_exposed();
        self.direct += usize::from(work.direct.is_some());
        self.queued.push_front(work);
    }

    /// Takes the next piece of queued work, which is no transfer for the kernel any more.
    pub(super) fn pop(&mut self) -> Option<Work> {
        let mut work = self.queued.pop_front()?;
        self.direct -= usize::from(work.direct.take().is_some());
        Some(work)
    }

    /// Returns the number of queued transfers for the kernel.
    pub(super) fn direct(&self) -> usize {
        self.direct
    }

    /// Takes the next transfer for the kernel.
    pub(super) fn pop_direct(&mut self) -> Option<Work> {
        let work = take(&mut self.queued, |work| work.direct.is_some())?;
        self.direct -= 1;
        Some(work)
    }

    /// Takes the queued work of a request.
    pub(super) fn withdraw(&mut self, id: RequestId) -> Option<Work> {
        let work = take(&mut self.queued, |work| work.id == id)?;
        self.direct -= usize::from(work.direct.is_some());
        Some(work)
    }

    /// True if some queued work may be on a descriptor of the program.
    #[inline]
    pub fn is_exposed(&self) -> bool {
        self.exposed
    }

    /// Has all queued work hold its file from now on. Work whose file cannot be held fails.
    #[cold]
    pub fn hold(&mut self, requests: &mut Slab) {
        if core::mem::take(&mut self.exposed) {
            self.hold_those(requests, |_| true);
        }
    }

    /// Has queued work on `fd` hold its file.
    pub fn hold_on(&mut self, requests: &mut Slab, fd: Fd) {
        self.hold_those(requests, |work| work.fd == fd);
    }

    fn hold_those(&mut self, requests: &mut Slab, which: impl Fn(&Work) -> bool) {
        for work in self.queued.iter_mut().filter(|work| work.is_exposed() && which(work)) {
            if let Err(errno) = own_file(&mut requests[work.id], work) {
                work.refuse(errno);
            }
        }
    }

    /// True if all queued work holds its file, or is lent.
    pub fn keeps_files(&self) -> bool {
        self.loan.is_offered() || self.queued.iter().all(|work| !work.is_exposed())
    }

    /// Forgets all work in a child after `fork`: it is the parent's.
    pub fn forked(&mut self) {
        *self = WorkQueue::default();
    }
}

/// Reads in flight at the device.
impl WorkQueue {
    /// Returns all reads that the device has.
    #[inline]
    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Notes that a call fetches completions.
    #[inline]
    pub fn note_fetch(&mut self) {
        self.in_flight.note_fetch();
    }

    /// Notes that a thread polls the ring's descriptor, and fetches what has ended when it wakes.
    pub fn note_poll(&mut self) {
        self.in_flight.note_fetch();
        self.in_flight.note_presence();
    }
}

/// Work that is lent to the call that submits it; see [`crate::wait::loan`].
impl WorkQueue {
    /// Begins a submission. With `lends`, it may lend the work that it queues.
    pub fn begin_submission(&mut self, lends: bool) {
        self.loan.open(lends && self.queued.is_empty());
    }

    /// Ends the submission. Returns true if the work that it has queued is lent.
    #[inline]
    pub fn end_submission(&mut self, sq_head: u32, posted: Posted) -> bool {
        self.loan.close(sq_head, posted)
    }

    /// True if the current submission may lend the work that it queues.
    #[inline]
    pub fn lends(&self) -> bool {
        self.loan.is_open()
    }

    /// True if work is lent.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.loan.is_out()
    }

    /// True if work is lent, and no thread has taken it yet.
    #[inline]
    pub fn is_offered(&self) -> bool {
        self.loan.is_offered()
    }

    /// Notes that another thread waits to submit until lent work comes back.
    pub(super) fn await_loan(&mut self) {
        self.loan.refuse();
    }

    /// Ends the loan of work that is done, or holds its file. Returns whether a thread waits for that.
    pub(super) fn end_loan(&mut self) -> bool {
        self.loan.end()
    }

    /// Takes all queued work for the calling thread, which does it on the program's descriptors. `None` if the work is not offered any
    /// more.
    pub(super) fn take_lent(&mut self) -> Option<Batch> {
        if !self.loan.take() {
            return None;
        }
        self.exposed = false;
        let all = self.take_first(self.queued.len());
        Some(Batch::lent(all, &self.loan))
    }
}

/// Work that is out of the queue, and finished work.
impl WorkQueue {
    /// Returns the number of pieces that are out of the queue and not finished.
    #[inline]
    pub fn out(&self) -> usize {
        self.out
    }

    /// Counts pieces that leave the queue.
    pub(super) fn goes_out(&mut self, count: usize) {
        self.out += count;
    }

    /// Counts pieces that are back, or will not come back.
    pub fn comes_back(&mut self, count: usize) {
        self.out -= count;
    }

    /// Takes the light pieces at the front that a thread with the credentials `own` can do, as many as a caller does at once. `None` if there
    /// are none.
    pub(super) fn take_light(&mut self, own: Credentials) -> Option<Batch> {
        let (first, _) = self.queued.as_slices();
        let count = first.iter().take(PIECES).take_while(|work| work.is_light_for(own)).count();
        (count > 0).then(|| Batch::held(self.take_first(count)))
    }

    /// Takes the first `count` pieces out of the queue.
    fn take_first(&mut self, count: usize) -> Vec<Work> {
        self.out += count;
        let mut batch = core::mem::take(&mut self.batch);
        if count == self.queued.len() {
            // As a rule. Then nothing is copied.
            return core::mem::replace(&mut self.queued, batch.into()).into();
        }
        batch.extend(self.queued.drain(..count));
        batch
    }

    /// Makes a batch of one piece that was taken out of the queue.
    pub(super) fn take_alone(&mut self, work: Work) -> Batch {
        self.out += 1;
        self.alone(work)
    }

    /// Makes a batch of one piece that is counted as out already.
    pub(super) fn alone(&mut self, work: Work) -> Batch {
        assert!(!work.is_exposed(), "work is done without the lock only with its file");
        let mut batch = core::mem::take(&mut self.batch);
        batch.push(work);
        Batch::held(batch)
    }

    /// Keeps the memory of a batch.
    pub(super) fn keep_batch(&mut self, batch: Vec<Work>) {
        debug_assert!(batch.is_empty(), "all of it is done or queued again");
        self.batch = batch;
    }

    /// Adds finished work, whose request ends later.
    pub(super) fn finish(&mut self, work: Work) {
        self.out -= 1;
        self.finished.push_back(work);
    }

    /// Takes the first finished work.
    #[inline]
    pub(super) fn next_finished(&mut self) -> Option<Work> {
        self.finished.pop_front()
    }

    /// Returns the number of finished pieces whose requests have not ended yet.
    #[inline]
    pub fn finished(&self) -> usize {
        self.finished.len()
    }

    /// True if the work of this request is finished.
    pub fn has_finished(&self, id: RequestId) -> bool {
        self.finished.iter().any(|work| work.id == id)
    }

    /// True if any work is out of the queue, or finished and its request has not ended.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.out > 0 || !self.finished.is_empty()
    }
}

/// Descriptors whose CLOSE is under way.
impl WorkQueue {
    /// True if a CLOSE of any descriptor is under way.
    #[inline]
    pub fn closes_any(&self) -> bool {
        self.closing.is_any()
    }

    /// True if a CLOSE of `fd` is under way. For requests that are submitted after it, `fd` is no descriptor any more.
    #[inline]
    pub fn closes(&self, fd: Fd) -> bool {
        self.closing.has(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::{VERY_SLOW_US, WorkQueue};

    #[test]
    fn writes_are_slow_for_as_long_as_they_take_long() {
        let mut work = WorkQueue::default();
        work.note_write(VERY_SLOW_US);
        work.note_write(3);
        assert!(!work.writes_are_slow(), "a single one may have been preempted");
        // A write that the system blocked.
        work.note_write(100_000);
        assert!(work.writes_are_slow());
        let again = (0..100).position(|_| {
            work.note_write(3);
            !work.writes_are_slow()
        });
        assert!(again.is_some_and(|writes| writes < 20), "{again:?}");
    }
}
