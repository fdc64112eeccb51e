//! The ways from queue to queue: SQEs become requests, requests work or something to be issued, results CQEs.

use linux_raw_sys::io_uring::{IORING_SETUP_SQE128, IORING_SQ_CQ_OVERFLOW};

use crate::abi::{Errno, IORING_SETUP_SQE_MIXED};
use crate::os::Fd;
use crate::queue::{Cqe, RingMemory};
use crate::request::{Phase, RequestId};
use crate::ring::Core;
use crate::ring::parts::Queues;
use crate::wait::loan::Posted;
use crate::work::Work;

impl Queues {
    /// Takes other memory, with what is in the rings.
    ///
    /// # Errors
    /// `EOVERFLOW` where that would not fit.
    pub fn move_to(&mut self, memory: RingMemory) -> Result<(), Errno> {
        self.memory.move_to(memory, &self.sq, &self.cq)
    }

    /// SQEs that the program has published and the engine has not taken, as far as they can be.
    #[inline]
    pub fn sq_pending(&self) -> u32 {
        self.sq.pending(&self.memory)
    }

    /// CQEs that wait to be reaped, in units of the ring's entries.
    #[inline]
    pub fn cq_ready(&self) -> u32 {
        self.cq.ready(&self.memory)
    }

    /// Takes the next SQE of the submission under way: where it lies.
    #[inline]
    pub fn take_sqe(&mut self) -> Option<u32> {
        self.sq.take(&self.memory)
    }

    /// True if a CQE would be seen at once. Only said where all are of the ordinary size.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.cq.is_plain() && self.has_room_for(1)
    }

    /// True if so many CQEs of the ordinary size would be seen at once.
    #[inline]
    pub fn has_room_for(&self, count: u32) -> bool {
        self.cq.has_room_for(&self.memory, count)
    }

    /// The number of big CQEs that would be seen at once.
    pub fn room_for_big(&self) -> u32 {
        self.cq.room_for_big(&self.memory)
    }
}

impl Core {
    /// A submission of `count` SQEs begins. A caller that `does_work` may be lent what it queues.
    #[inline]
    pub fn begin_submission(&mut self, count: u32, does_work: bool) {
        self.time.timeouts.begin_batch(self.queues.cq.tail());
        self.work.begin_submission(does_work && self.shared.is_none());
        self.queues.sq.begin(count);
    }

    /// Ends a submission of which not even the first SQE could be taken.
    #[cold]
    pub fn abandon_submission(&mut self) {
        self.queues.sq.end();
        self.time.timeouts.end_batch();
        self.work.begin_submission(false);
    }

    /// Takes the second half of the SQE that was taken last, which lies at `index`.
    ///
    /// # Errors
    /// `EINVAL` where there is none: the ring does not mix them, or ends there, or the submission does.
    pub fn take_second_half(&mut self, index: u32) -> Result<(), Errno> {
        if self.is(IORING_SETUP_SQE128) {
            Ok(())
        } else if self.is(IORING_SETUP_SQE_MIXED) {
            self.queues.sq.take_second_half(&self.queues.memory, index)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// A request for the SQE that lies there, not prepared yet.
    ///
    /// # Errors
    /// `EAGAIN` where there cannot be another.
    #[inline(always)]
    pub fn insert_request(&mut self, index: u32) -> Result<RequestId, Errno> {
        let memory = &self.queues.memory;
        self.requests.insert(|| memory.sqe(index))
    }

    /// The submission under way is over: the program hears of what was consumed, unless work is lent.
    #[inline]
    pub fn end_submission(&mut self) {
        self.submit_direct();
        if !self.work.end_submission(self.queues.sq.head(), self.posted()) {
            // Whoever reads the SQ head needs no lock for it, and may close what the SQEs name.
            self.hold_queue();
            self.publish_sq_head();
        }
    }

    /// Lets the program know what was consumed.
    #[inline]
    pub fn publish_sq_head(&mut self) {
        debug_assert!(self.work.keeps_files(), "what the program knows of may be closed");
        self.queues.sq.publish(&self.queues.memory);
    }

    /// The posts so far: the end of the CQ, and how many CQEs are kept.
    #[inline]
    fn posted(&self) -> Posted {
        (self.queues.cq.tail(), self.queues.cq.kept())
    }

    /// Queues work.
    #[inline(always)]
    pub fn queue_work(&mut self, work: Work) {
        let at = (self.queues.sq.head(), self.posted());
        self.work.push(work, at);
    }

    /// The lock is about to be given up: queued work holds its files, for the program may close its descriptors as soon
    /// as it knows of their use.
    #[inline(always)]
    pub fn hold_queue(&mut self) {
        if self.work.is_exposed() {
            self.work.hold(&mut self.requests);
        }
    }

    /// The program is about to close `fd`: what is queued on it, and what the device has of it, keeps the file.
    pub(crate) fn keep_files_of_work(&mut self, fd: Fd) {
        if self.work.is_exposed() {
            self.work.hold_on(&mut self.requests, fd);
        }
        self.keep_files_at_device(fd);
    }

    /// The number of the ring's place, where requests that are ready wait for the program to come.
    pub(crate) fn deferred_in(&self) -> Option<u32> {
        self.defers().then(|| self.ring().number())
    }

    /// Marks a request to be issued by [`Core::run_ready`].
    pub fn make_ready(&mut self, id: RequestId) {
        let deferred_in = self.deferred_in();
        let request = &mut self.requests[id];
        request.phase = Phase::Ready;
        self.order.ready.push(id, request, deferred_in);
    }

    /// Marks a request to be issued once more. What a submission itself made ready, as a rule the links of
    /// what it completed, comes later: the kernel starts links when the submission ends.
    pub fn make_ready_again(&mut self, id: RequestId) {
        let deferred_in = self.deferred_in();
        let request = &mut self.requests[id];
        request.phase = Phase::Ready;
        if self.time.timeouts.in_batch() {
            self.order.ready.push_before_links(id, request, deferred_in);
        } else {
            self.order.ready.push(id, request, deferred_in);
        }
    }

    /// A completion from outside. A ring that defers sees it when its thread comes for it.
    pub fn receive(&mut self, cqe: Cqe) {
        if self.defers() {
            if !self.forward(&cqe) {
                self.queues.cq.hold_back(cqe);
            }
            self.notify_deferred();
        } else {
            self.beside_batch(|core| core.post_unrequested(cqe));
        }
    }

    /// Posts what was held back.
    pub(in crate::ring) fn post_messages(&mut self) {
        while let Some(cqe) = self.queues.cq.next_message() {
            self.post_unrequested(cqe);
        }
    }

    /// A CQE is about to be posted. It may tell the program that what was submitted before was consumed.
    #[inline(always)]
    fn before_posting(&mut self) {
        self.hold_queue();
    }

    /// Posts a CQE, or keeps it where the ring is full or others are kept already.
    #[inline(always)]
    pub fn post(&mut self, cqe: Cqe) {
        self.before_posting();
        self.queues.cq.post(&self.queues.memory, &cqe);
    }

    /// Keeps a CQE as if there were no room.
    pub fn keep(&mut self, cqe: Cqe) {
        self.before_posting();
        self.queues.cq.keep(&self.queues.memory, cqe);
    }

    /// Posts a CQE if it can be seen in the ring at once, behind all before it.
    #[inline]
    pub fn post_at_once(&mut self, cqe: &Cqe) -> bool {
        self.before_posting();
        self.queues.cq.post_at_once(&self.queues.memory, cqe)
    }

    /// Moves kept CQEs into the ring, as far as there is room.
    pub fn flush_overflow(&mut self) {
        if self.queues.cq.kept() == 0 {
            return;
        }
        self.before_posting();
        if self.queues.cq.flush(&self.queues.memory) {
            self.overflow_may_be_over();
        }
    }

    /// Takes the flag away by which the program knows of kept CQEs, where nobody keeps any.
    pub(crate) fn overflow_may_be_over(&self) {
        if self.queues.cq.kept() == 0 && !self.overflows_elsewhere() && !self.kept_in_mail() {
            self.queues.memory.change_sq_flags(0, IORING_SQ_CQ_OVERFLOW);
        }
    }
}
