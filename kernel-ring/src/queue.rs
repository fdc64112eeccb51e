//! A program's submission queue, and what is taken out of it.

use crate::Extended;
use crate::cancel::Canceled;
use crate::companion::flag;
use anyring_engine::memory::Sqe;
use anyring_engine::ops;
use anyring_engine::sys::Fd;
use linux_raw_sys::io_uring::{IORING_SETUP_SQE128, io_uring_op, io_uring_sqe_flags_bit as Bit};

const LINKS: u8 = flag(Bit::IOSQE_IO_LINK_BIT) | flag(Bit::IOSQE_IO_HARDLINK_BIT);
const DRAIN: u8 = flag(Bit::IOSQE_IO_DRAIN_BIT);
const SKIP: u8 = flag(Bit::IOSQE_CQE_SKIP_SUCCESS_BIT);
/// What needs the ring's own buffers and files.
const RESOURCES: u8 = flag(Bit::IOSQE_FIXED_FILE_BIT) | flag(Bit::IOSQE_BUFFER_SELECT_BIT);

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
    /// The position of the first.
    pub head: u32,
    /// The position behind the last.
    pub tail: u32,
}

/// What became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// As many were taken; to the program they are submitted.
    pub count: u32,
    /// The position behind the last that is left. They stand side by side from the head on.
    pub tail: u32,
}

/// What the entries hold, at a glance.
#[derive(Default)]
pub(crate) struct Wants {
    /// A private operation.
    pub private: bool,
    /// A drain.
    pub drain: bool,
    /// A cancellation.
    pub cancel: bool,
}

impl Wants {
    /// Nothing of concern here?
    pub fn is_nothing(&self) -> bool {
        !(self.private || self.drain || self.cancel)
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

    /// # Safety
    /// As for [`crate::take`].
    pub(crate) unsafe fn look(&self) -> Wants {
        let mut wants = Wants::default();
        let mut position = self.head;
        while position != self.tail {
            // SAFETY: the caller's promise.
            let sqe = unsafe { &*self.slot(position) };
            wants.private |= sqe.opcode >= ops::FIRST_PRIVATE;
            wants.drain |= sqe.flags & DRAIN != 0;
            wants.cancel |= sqe.opcode == io_uring_op::IORING_OP_ASYNC_CANCEL as u8;
            position = position.wrapping_add(1);
        }
        wants
    }

    /// Gives the companion what is its to do, and closes the gaps.
    ///
    /// # Safety
    /// As for [`crate::take`].
    pub(crate) unsafe fn part(&self, ring: &mut Extended) -> Taken {
        let (mut at, mut kept, mut count) = (self.head, self.head, 0);
        while at != self.tail {
            // SAFETY: the caller's promise.
            let end = unsafe { self.end_of_chain(at) };
            // SAFETY: as above.
            if unsafe { self.give(ring, at, end) } {
                count += end.wrapping_sub(at);
                at = end;
            }
            while at != end {
                // SAFETY: as above; `kept` is never ahead of `at`.
                unsafe { self.shift(at, kept) };
                at = at.wrapping_add(1);
                kept = kept.wrapping_add(1);
            }
        }
        if let Some(companion) = &mut ring.companion {
            companion.submit();
        }
        Taken { count, tail: kept }
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
    unsafe fn give(&self, ring: &mut Extended, at: u32, end: u32) -> bool {
        let length = end.wrapping_sub(at);
        // SAFETY: the caller's promise.
        let chain = || (0..length).map(|index| unsafe { self.sqe(at.wrapping_add(index)) });
        if chain().any(|sqe| sqe.opcode >= ops::FIRST_PRIVATE) {
            if ring.drains || !chain().all(|sqe| is_free(&sqe)) {
                return false;
            }
            let Some(companion) = ring.companion(self) else { return false };
            if companion.room() < length {
                companion.submit();
            }
            chain().for_each(|sqe| companion.push(sqe));
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.mind(ring, at, chain().any(|sqe| sqe.flags & DRAIN != 0), length == 1) }
    }

    /// What the kernel is to do, but not without the companion. Whether it is done already.
    ///
    /// # Safety
    /// As for [`crate::take`].
    unsafe fn mind(&self, ring: &mut Extended, at: u32, drains: bool, alone: bool) -> bool {
        if drains {
            ring.drains = true;
        }
        let Some(companion) = &mut ring.companion else { return false };
        if drains && !companion.settle() {
            // As after requests of the kernel's that skipped their completions: it refuses to drain.
            // SAFETY: the caller's promise.
            unsafe { (*self.slot(at)).flags |= DRAIN | SKIP };
        }
        // SAFETY: as above.
        let sqe = unsafe { self.sqe(at) };
        if sqe.opcode != io_uring_op::IORING_OP_ASYNC_CANCEL as u8 || drains || !alone {
            return false;
        }
        companion.submit();
        match companion.cancel(self.fd, &sqe) {
            Canceled::Nothing => false,
            Canceled::Answer(result) => {
                companion.say(sqe.user_data, result, sqe.flags & SKIP);
                true
            }
        }
    }
}

/// Needs a request nothing of its ring's?
fn is_free(sqe: &Sqe) -> bool {
    let op = ops::lookup(sqe.opcode);
    let of_ring = sqe.flags & (RESOURCES | DRAIN) != 0 || sqe.personality != 0 || sqe.buf_index != 0;
    op.caps.has(ops::Caps::PRESENT) && !of_ring && sqe.file_index == 0 && !op.needs_its_ring(sqe)
}
