//! The transitions between queues: from SQEs to requests, from requests to work or to the ready queue, from results to CQEs.

use linux_raw_sys::io_uring::{IORING_SETUP_IOPOLL, IORING_SQ_CQ_OVERFLOW};

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::directories::Description;
use crate::os::Fd;
use crate::queue::Cqe;
use crate::request::{FileHold, Flags, Phase, RequestId};
use crate::ring::drive::reactor;
use crate::ring::parts::Submitter;
use crate::ring::row::Row;
use crate::ring::{Attempt, Core, Lent};
use crate::work::Work;

impl Core {
    /// Makes a request for the SQE at `index`, behind the notifications of sends that were made before. It is not prepared yet. `row` is that of its
    /// opcode, if the caller knows it.
    ///
    /// # Errors
    /// `EAGAIN` if there cannot be another request.
    #[inline(always)]
    pub fn insert_request(&mut self, index: u32, row: Option<&'static Row>) -> Result<RequestId, Errno> {
        self.list_announced();
        let (memory, table) = (&self.queues.memory, self.identity.table);
        self.requests.insert(|| memory.sqe(index), |opcode| row.unwrap_or_else(|| table.lookup(opcode)))
    }

    /// Publishes the SQ head. The program reads it without a lock, and may close the descriptors of consumed SQEs: queued work holds its
    /// files from now on.
    #[inline]
    pub fn publish_sq_head(&mut self) {
        self.hold_queue();
        self.queues.publish_sq_head();
    }

    /// Queues work.
    #[inline(always)]
    pub fn queue_work(&mut self, work: Work) {
        let at = (self.queues.sq.head(), self.queues.posted());
        self.work.push(work, at);
    }

    /// Has queued work hold its files, before the lock is released or a CQE is posted: the program may close its descriptors as soon as it
    /// sees that their SQEs were consumed.
    #[inline(always)]
    pub fn hold_queue(&mut self) {
        if self.work.is_exposed() {
            self.work.hold(&mut self.requests);
        }
    }

    /// Keeps the file of `fd`, which the program is about to close, for queued work and for reads at the device.
    pub(super) fn keep_files_of_work(&mut self, fd: Fd) {
        if self.work.is_exposed() {
            self.work.hold_on(&mut self.requests, fd);
        }
        if !self.work.in_flight().is_empty() || self.aio.in_flight() > 0 {
            self.keep_files_at_device(fd);
        }
    }

    /// Keeps the file of `fd`, which the program is about to close, for reads and transfers that the device has by that descriptor:
    /// something may still have to be done for them.
    fn keep_files_at_device(&mut self, fd: Fd) {
        let is_by = |&id: &RequestId| {
            self.requests.get(id).is_some_and(|request| request.file == FileHold::Plain(fd))
        };
        let by_descriptor: Vec<RequestId> =
            self.work.in_flight().ids().chain(self.aio.ids()).filter(is_by).collect();
        for id in by_descriptor {
            let Some(request) = self.requests.get_mut(id) else { continue };
            match request.hold_file() {
                Ok(()) => {}
                Err(errno) if request.phase == Phase::InFlight => self.complete(id, errno.negated()),
                // Data that is read now is not used.
                Err(_) => request.file = FileHold::None,
            }
        }
    }

    /// Returns the number of the ring's place if the ring defers: then ready requests wait for the program's call.
    pub(super) fn deferred_in(&self) -> Option<u32> {
        self.defers().then(|| self.ring().number())
    }

    /// True if messages wait until the ring's thread fetches: if it defers, unless that thread polls a device, as in the kernel.
    pub(in crate::ring) fn holds_messages_back(&self) -> bool {
        self.defers() && !self.is(IORING_SETUP_IOPOLL)
    }

    /// Receives a completion from another ring or process.
    ///
    /// # Errors
    /// `EOVERFLOW` if there is no room for a message that has to wait, or finds the CQ full.
    pub fn receive(&mut self, cqe: Cqe) -> Result<(), Errno> {
        if self.holds_messages_back() {
            if !self.queues.cq.hold_back(cqe) {
                return Err(Errno::EOVERFLOW);
            }
            self.notify_deferred();
            self.shared.tell_others();
        } else {
            if !self.queues.may_post() {
                return Err(Errno::EOVERFLOW);
            }
            self.beside_batch(|core| core.post_unrequested(cqe));
        }
        Ok(())
    }

    /// Posts the completions that were held back, if the thread that fetches them may be one of this process.
    pub(in crate::ring) fn post_messages(&mut self) {
        if self.drive.submitter == Submitter::Elsewhere {
            return;
        }
        while let Some(cqe) = self.queues.cq.next_message() {
            self.post_unrequested(cqe);
        }
    }

    /// Posts a CQE, or keeps it if the CQ is full or earlier CQEs are kept.
    #[inline(always)]
    pub fn post(&mut self, cqe: Cqe) {
        self.hold_queue();
        self.queues.post(&cqe);
    }

    /// Moves kept CQEs into the ring, as far as there is room.
    pub(in crate::ring) fn flush_overflow(&mut self) {
        if self.queues.cq.kept() == 0 {
            // A process that was killed before it kept its CQE, or after it moved the last one, has left the flag.
            if self.shared.has_page() {
                self.queues.memory.change_sq_flags(0, IORING_SQ_CQ_OVERFLOW);
            }
            return;
        }
        self.hold_queue();
        if self.queues.flush_kept() {
            self.queues.memory.change_sq_flags(0, IORING_SQ_CQ_OVERFLOW);
        }
    }
}

impl Attempt<'_> {
    /// Marks the request to be issued by [`Core::run_ready`].
    pub fn make_ready(&mut self) {
        let (core, id) = self.core_mut();
        let deferred_in = core.deferred_in();
        let request = &mut core.requests[id];
        request.phase = Phase::Ready;
        core.order.ready.push(id, request, deferred_in);
    }

    /// Marks the request to be issued once more. It comes before requests that the current submission made ready, mostly links of completed
    /// ones: the kernel starts links when the submission ends.
    pub fn make_ready_again(&mut self) {
        let (core, id) = self.core_mut();
        let deferred_in = core.deferred_in();
        let request = &mut core.requests[id];
        request.flags.set(Flags::WOKEN);
        request.phase = Phase::Ready;
        if core.time.timeouts.in_batch() {
            core.order.ready.push_before_links(id, request, deferred_in);
        } else {
            core.order.ready.push(id, request, deferred_in);
        }
    }
}

impl Lent {
    /// Keeps a file description of the directory `number` for the next request that reads the directory.
    pub fn keep_directory(&mut self, number: Fd, description: Description) {
        let core = self.core_mut();
        if core.life.is_closing() {
            return;
        }
        let place = core.identity.ring.number();
        core.resources.directories.keep(number, place, description);
        if !core.resources.directories.is_empty() {
            reactor::attend_stale(core);
        }
    }
}
