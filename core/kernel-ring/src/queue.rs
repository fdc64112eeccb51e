//! A program's submission queue, and what is taken out of it.

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

/// The flags that make a chain.
pub const LINKS: u8 = flag(Bit::IOSQE_IO_LINK_BIT) | flag(Bit::IOSQE_IO_HARDLINK_BIT);
const DRAIN: u8 = flag(Bit::IOSQE_IO_DRAIN_BIT);
/// No completion on success.
pub const SKIP: u8 = flag(Bit::IOSQE_CQE_SKIP_SUCCESS_BIT);
/// The file is registered.
pub const FIXED: u8 = flag(Bit::IOSQE_FIXED_FILE_BIT);
const SELECT: u8 = flag(Bit::IOSQE_BUFFER_SELECT_BIT);

/// The entries of a ring of the kernel's that are about to be submitted, not shown to the kernel yet.
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
    /// How many there are, less one.
    pub mask: u32,
    /// How far the kernel has taken entries.
    pub taken: u32,
    /// The position of the first.
    pub head: u32,
    /// The position behind the last.
    pub tail: u32,
}

/// The result of taking entries out of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// As many were taken; to the program they are submitted.
    pub count: u32,
    /// The position behind the last that is left. They stand side by side from the head on.
    pub tail: u32,
    /// Some of what is left bring files for what is to be done: once it is submitted, and before anybody waits,
    /// [`crate::deliver`] is to be called.
    pub brings_files: bool,
}

/// The way in which a chain was dealt with.
enum Given {
    /// The chain is the companion's.
    All,
    /// Something in its place brings it a file.
    BringsFile,
    /// The chain is the kernel's.
    Nothing,
}

/// The kinds of entries that need attention, at a glance.
#[derive(Default)]
pub(crate) struct Wants {
    /// A private operation.
    pub private: bool,
    /// A drain.
    pub drain: bool,
    /// A cancellation.
    pub cancel: bool,
    /// A message, which may stand for a private operation that was not submitted with it before.
    pub message: bool,
    /// A time in an SQE.
    pub time: bool,
}

impl Wants {
    /// True if nothing is of concern to a companion.
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

    /// Moves an entry to a place before it.
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

    /// Moves an entry with what belongs to it: its time may have been laid when it was to be submitted before.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn move_down(&self, ring: &mut Extended, from: u32, to: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.shift(from, to) };
        // SAFETY: as above; nobody else has it.
        let sqe = unsafe { &mut *self.slot(to) };
        if from != to
            && let Some(times) = &mut ring.times
            && times.hold(sqe)
        {
            // What it took out of the queue may have a time at this place.
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

    /// The position behind the entry at `position`.
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

    /// Lays times that stand in entries before `tail` where any kernel reads them.
    ///
    /// # Safety
    /// As for [`crate::take`]; `times` stay as long as the ring.
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

    /// Gives the companion what is its to do, and closes the gaps.
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

    /// The position behind the chain that begins at `at`.
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

    /// Gives a chain to the companion, if it is to have it.
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

    /// Lets the kernel bring the registered file of a private operation, in its place.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn send_for_file(&self, ring: &mut Extended, at: u32) -> Given {
        // SAFETY: the caller's promise.
        let sqe = unsafe { self.sqe(at) };
        // An SQ thread would take it at a time of its own.
        if sqe.file_index != 0 || self.flags & IORING_SETUP_SQPOLL != 0 || ring.companion(self).is_none() {
            return Given::Nothing;
        }
        let Some(receiver) = ring.receiver(self) else { return Given::Nothing };
        let stand_in = receiver.stand_in(sqe);
        // SAFETY: the caller's promise.
        unsafe { *self.slot(at) = stand_in };
        Given::BringsFile
    }

    /// Prepares a request that the kernel is to do, but not without the companion.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn mind(&self, ring: &mut Extended, at: u32, drains: bool, alone: bool) -> Given {
        if drains {
            ring.drains = true;
        }
        let Some(companion) = &mut ring.companion else { return Given::Nothing };
        if drains && !companion.settle() {
            // As after requests of the kernel's that skipped their completions: it refuses to drain.
            // SAFETY: the caller's promise.
            unsafe { (*self.slot(at)).flags |= DRAIN | SKIP };
        }
        // SAFETY: as above.
        let sqe = unsafe { self.sqe(at) };
        if ring.receiver.as_ref().is_some_and(|receiver| receiver.is_stand_in(&sqe)) {
            // The kernel did not take it when it was to be submitted.
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

/// True if a request needs nothing of its ring's, files aside.
fn is_free(sqe: &Sqe) -> bool {
    let op = ops::lookup(sqe.opcode);
    let of_ring = sqe.flags & (SELECT | DRAIN) != 0 || sqe.personality != 0 || sqe.buf_index != 0;
    // Of all commands, that for a name needs nothing.
    op.caps.has(Caps::PRESENT) && !of_ring && (newer::is_name(sqe) || !op.needs_its_ring(sqe))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::abi::{IORING_OP_NOP128, IORING_TIMEOUT_IMMEDIATE_ARG};

    /// The second half of a long entry is none.
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
        // One whose second half would lie at the queue's beginning, or is not submitted with it, has none.
        (queue.head, queue.tail) = (3, 6);
        // SAFETY: as above.
        assert_eq!(unsafe { queue.behind(3) }, 4);
        (queue.head, queue.tail) = (0, 1);
        // SAFETY: as above.
        assert_eq!(unsafe { queue.behind(0) }, 1);
    }
}
