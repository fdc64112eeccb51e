//! A program's submission queue, and taking entries out of it.

use crate::Extended;
use crate::cancel::Canceled;
use crate::companion::flag;
use crate::files::{self, Use};
use crate::newer::{self, Times};
use anyring_engine::abi::{IORING_SETUP_SQE_MIXED, Sqe};
use anyring_engine::ops;
use anyring_engine::os::Fd;
use anyring_engine::request::field::FIRST_PRIVATE;
use anyring_engine::request::op::Caps;
use linux_raw_sys::io_uring::{
    IORING_SETUP_SQE128, IORING_SETUP_SQPOLL, io_uring_op, io_uring_sqe_flags_bit as Bit,
};

/// The flags that link SQEs into a chain.
pub const LINKS: u8 = flag(Bit::IOSQE_IO_LINK_BIT) | flag(Bit::IOSQE_IO_HARDLINK_BIT);
const DRAIN: u8 = flag(Bit::IOSQE_IO_DRAIN_BIT);
/// Post no CQE on success.
pub const SKIP: u8 = flag(Bit::IOSQE_CQE_SKIP_SUCCESS_BIT);
/// The file is registered.
pub const FIXED: u8 = flag(Bit::IOSQE_FIXED_FILE_BIT);
const SELECT: u8 = flag(Bit::IOSQE_BUFFER_SELECT_BIT);

/// The entries of a kernel ring that are about to be submitted, and not published to the kernel yet.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The ring's descriptor.
    pub fd: Fd,
    /// `IORING_SETUP_*`.
    pub flags: u32,
    /// `IORING_FEAT_*`.
    pub features: u32,
    /// The entries' memory.
    pub sqes: *mut Sqe,
    /// The number of entries, less one.
    pub mask: u32,
    /// The position up to which the kernel has consumed entries.
    pub taken: u32,
    /// The position of the first entry.
    pub head: u32,
    /// The position behind the last entry.
    pub tail: u32,
}

/// The result of taking entries out of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The number of entries taken; for the program they are submitted.
    pub count: u32,
    /// The position behind the last entry that is left. These entries are contiguous from the head on.
    pub tail: u32,
    /// Some of the entries that are left bring files for requests of the companion: after submitting them, and
    /// before waiting, call [`crate::deliver`].
    pub brings_files: bool,
}

/// The handling of a chain.
enum Given {
    /// The companion does the chain.
    All,
    /// A message replaces the operation, and brings its file to the companion.
    BringsFile,
    /// The kernel does the chain.
    Nothing,
}

/// The kinds of entries in a queue that need attention.
#[derive(Default)]
pub(crate) struct Wants {
    /// A private operation.
    pub private: bool,
    /// A drain.
    pub drain: bool,
    /// A cancellation.
    pub cancel: bool,
    /// A message, which may have replaced a private operation in an earlier submission that did not consume it.
    pub message: bool,
    /// A time in an SQE.
    pub time: bool,
}

impl Wants {
    /// True if no entry concerns a companion.
    pub fn is_nothing(&self) -> bool {
        !(self.private || self.drain || self.cancel || self.message)
    }
}

impl Queue {
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn slot(&self, position: u32) -> *mut Sqe {
        let shift = u32::from(self.flags & IORING_SETUP_SQE128 != 0);
        // SAFETY: the caller's promise.
        unsafe { self.sqes.add(((position & self.mask) as usize) << shift) }
    }

    /// # Safety
    /// As for [`crate::take`].
    unsafe fn sqe(&self, position: u32) -> Sqe {
        // SAFETY: the caller's promise.
        unsafe { *self.slot(position) }
    }

    /// Moves an entry to an earlier place.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn shift(&self, from: u32, to: u32) {
        if from != to {
            let entries = if self.flags & IORING_SETUP_SQE128 != 0 { 2 } else { 1 };
            // SAFETY: two different places of the queue.
            unsafe {
                self.slot(from).copy_to_nonoverlapping(self.slot(to), entries);
            }
        }
    }

    /// Moves an entry together with its time, which may have been stored in an earlier attempt to submit it.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn move_down(&self, ring: &mut Extended, from: u32, to: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.shift(from, to) };
        // SAFETY: as above; no other reference exists.
        let sqe = unsafe { &mut *self.slot(to) };
        if from != to
            && let Some(times) = &mut ring.times
            && times.hold(sqe)
        {
            // Entries taken out of the queue may have times at this place, so they are submitted first.
            if let Some(companion) = &mut ring.companion {
                companion.submit();
            }
            times.follow(from & self.mask, to & self.mask, sqe);
        }
    }

    /// # Safety
    /// As for [`crate::take`].
    pub(crate) unsafe fn look(&self) -> Wants {
        let mut wants = Wants::default();
        let mut position = self.head;
        while position != self.tail {
            // SAFETY: the caller's promise.
            let sqe = unsafe { &*self.slot(position) };
            wants.private |= sqe.opcode >= FIRST_PRIVATE || newer::is_name(sqe);
            wants.drain |= sqe.flags & DRAIN != 0;
            wants.cancel |= sqe.opcode == io_uring_op::IORING_OP_ASYNC_CANCEL as u8;
            wants.message |= sqe.opcode == io_uring_op::IORING_OP_MSG_RING as u8;
            wants.time |= newer::has_time(sqe);
            // SAFETY: the caller's promise.
            position = unsafe { self.behind(position) };
        }
        wants
    }

    /// Returns the position behind the entry at `position`.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn behind(&self, position: u32) -> u32 {
        let mixed = self.flags & IORING_SETUP_SQE_MIXED != 0;
        let has_second = position.wrapping_add(1) != self.tail && position & self.mask != self.mask;
        // SAFETY: the caller's promise.
        let opcode = unsafe { &*self.slot(position) }.opcode;
        position.wrapping_add(ops::lookup(opcode).places(mixed, has_second))
    }

    /// Stores the times of entries before `tail` where any kernel reads them.
    ///
    /// # Safety
    /// As for [`crate::take`]; `times` must live as long as the ring.
    pub(crate) unsafe fn lay_times(&self, tail: u32, times: &mut Times) {
        if !times.fit(self.mask + 1) {
            // SAFETY: the caller's promise.
            let held = |position: u32| times.hold(&unsafe { self.sqe(position) });
            let waits = self.taken != self.head
                || (0..tail.wrapping_sub(self.head)).any(|at| held(self.head.wrapping_add(at)));
            times.resize(self.mask + 1, waits);
        }
        let mut position = self.head;
        while position != tail {
            // SAFETY: the caller's promise.
            let sqe = unsafe { &mut *self.slot(position) };
            if newer::has_time(sqe) {
                times.lay(position & self.mask, sqe);
            }
            // SAFETY: the caller's promise.
            position = unsafe { self.behind(position) };
        }
    }

    /// Moves the companion's chains to the companion, and closes the gaps.
    ///
    /// # Safety
    /// As for [`crate::take`].
    pub(crate) unsafe fn part(&self, ring: &mut Extended) -> Taken {
        let (mut at, mut kept, mut count) = (self.head, self.head, 0);
        let mut brings_files = false;
        if let Some(companion) = &mut ring.companion {
            companion.return_files(self.fd);
        }
        while at != self.tail {
            // SAFETY: the caller's promise.
            let end = unsafe { self.end_of_chain(at) };
            // SAFETY: as above.
            match unsafe { self.give(ring, at, end) } {
                Given::All => {
                    count += end.wrapping_sub(at);
                    at = end;
                }
                Given::BringsFile => brings_files = true,
                Given::Nothing => {}
            }
            while at != end {
                // SAFETY: as above; `kept` is never ahead of `at`.
                unsafe { self.move_down(ring, at, kept) };
                at = at.wrapping_add(1);
                kept = kept.wrapping_add(1);
            }
        }
        if let Some(companion) = &mut ring.companion {
            companion.submit();
        }
        Taken { count, tail: kept, brings_files }
    }

    /// Returns the position behind the chain that begins at `at`.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn end_of_chain(&self, mut at: u32) -> u32 {
        loop {
            // SAFETY: the caller's promise.
            let flags = unsafe { self.sqe(at) }.flags;
            at = at.wrapping_add(1);
            if flags & LINKS == 0 || at == self.tail {
                return at;
            }
        }
    }

    /// Queues a chain at the companion, if the kernel cannot do it.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn give(&self, ring: &mut Extended, at: u32, end: u32) -> Given {
        let length = end.wrapping_sub(at);
        // SAFETY: the caller's promise.
        let chain = || (0..length).map(|index| unsafe { self.sqe(at.wrapping_add(index)) });
        if !chain().any(|sqe| sqe.opcode >= FIRST_PRIVATE || newer::lacks_name(&sqe)) {
            let drains = chain().any(|sqe| sqe.flags & DRAIN != 0);
            // SAFETY: the caller's promise.
            return unsafe { self.mind(ring, at, drains, length == 1) };
        }
        if ring.drains || !chain().all(|sqe| is_free(&sqe)) {
            return Given::Nothing;
        }
        let uses = files::uses(chain());
        if length == 1 && matches!(uses, Use::Foreign) {
            // SAFETY: the caller's promise.
            return unsafe { self.send_for_file(ring, at) };
        }
        let Some(companion) = ring.companion(self) else { return Given::Nothing };
        if companion.room() <= length {
            companion.submit();
        }
        match uses {
            Use::None => chain().for_each(|sqe| companion.push(sqe)),
            Use::Own(slot) if companion.push_with_file(self.fd, slot, chain()) => {}
            _ => return Given::Nothing,
        }
        Given::All
    }

    /// Replaces a private operation by a message that brings its registered file.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn send_for_file(&self, ring: &mut Extended, at: u32) -> Given {
        // SAFETY: the caller's promise.
        let sqe = unsafe { self.sqe(at) };
        // An SQ thread would consume the message at an unknown time.
        if sqe.file_index != 0 || self.flags & IORING_SETUP_SQPOLL != 0 || ring.companion(self).is_none() {
            return Given::Nothing;
        }
        let Some(receiver) = ring.receiver(self) else { return Given::Nothing };
        let stand_in = receiver.stand_in(sqe);
        // SAFETY: the caller's promise.
        unsafe { *self.slot(at) = stand_in };
        Given::BringsFile
    }

    /// Prepares a request of the kernel that also concerns the companion.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn mind(&self, ring: &mut Extended, at: u32, drains: bool, alone: bool) -> Given {
        if drains {
            ring.drains = true;
        }
        let Some(companion) = &mut ring.companion else { return Given::Nothing };
        if drains && !companion.settle() {
            // The kernel refuses to drain after its own requests skipped completions; these flags make it refuse here, too.
            // SAFETY: the caller's promise.
            unsafe { (*self.slot(at)).flags |= DRAIN | SKIP };
        }
        // SAFETY: as above.
        let sqe = unsafe { self.sqe(at) };
        if ring.receiver.as_ref().is_some_and(|receiver| receiver.is_stand_in(&sqe)) {
            // The kernel did not consume the message in an earlier submission.
            return Given::BringsFile;
        }
        if sqe.opcode != io_uring_op::IORING_OP_ASYNC_CANCEL as u8 || drains || !alone {
            return Given::Nothing;
        }
        companion.submit();
        match companion.cancel(self.fd, &sqe) {
            Canceled::Nothing => Given::Nothing,
            Canceled::Answer(result) => {
                companion.say(sqe.user_data, result, sqe.flags & SKIP);
                Given::All
            }
        }
    }
}

/// True if a request needs nothing of its ring, except files.
fn is_free(sqe: &Sqe) -> bool {
    let op = ops::lookup(sqe.opcode);
    let of_ring = sqe.flags & (SELECT | DRAIN) != 0 || sqe.personality != 0 || sqe.buf_index != 0;
    // Of all commands, only that for a name needs nothing of the ring.
    op.caps.has(Caps::PRESENT) && !of_ring && (newer::is_name(sqe) || !op.needs_its_ring(sqe))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::abi::{IORING_OP_NOP128, IORING_TIMEOUT_IMMEDIATE_ARG};

    /// The second half of a long entry must not be taken for an entry.
    #[test]
    fn halves_are_stepped_over() {
        let private = Sqe { opcode: FIRST_PRIVATE, ..Sqe::default() };
        let long = Sqe { opcode: IORING_OP_NOP128, ..Sqe::default() };
        let timeout = Sqe {
            opcode: io_uring_op::IORING_OP_TIMEOUT as u8,
            op_flags: IORING_TIMEOUT_IMMEDIATE_ARG,
            addr: 1,
            ..Sqe::default()
        };
        let mut sqes = [long, private, timeout, long];
        let mut queue = Queue {
            fd: -1,
            flags: IORING_SETUP_SQE_MIXED,
            features: 0,
            sqes: sqes.as_mut_ptr(),
            mask: 3,
            taken: 0,
            head: 0,
            tail: 4,
        };
        // SAFETY: the queue is the array.
        let wants = unsafe { queue.look() };
        assert!(!wants.private && wants.time);
        let mut times = Times::new(4);
        // SAFETY: as above.
        unsafe { queue.lay_times(4, &mut times) };
        // SAFETY: as above.
        assert_eq!(unsafe { queue.sqe(2) }.op_flags, 0);
        // A long entry at the end of the queue, or of the submission, has no second half.
        (queue.head, queue.tail) = (3, 6);
        // SAFETY: as above.
        assert_eq!(unsafe { queue.behind(3) }, 4);
        (queue.head, queue.tail) = (0, 1);
        // SAFETY: as above.
        assert_eq!(unsafe { queue.behind(0) }, 1);
    }
}
