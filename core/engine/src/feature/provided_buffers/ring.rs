//! How operations use provided buffers (`IOSQE_BUFFER_SELECT`; the group's number is in the SQE's `buf_index`):
//!
//! - [`Attempt::select_buffer`] names the next buffer for one attempt made under the ring's lock. It
//!   must be followed, before the lock is given up, by one of
//!   - [`Attempt::use_buffers`]: so many bytes of it were used; returns the `IORING_CQE_F_*` that say so,
//!     for [`Attempt::post_more`] or to be added to the request's `cqe_flags`,
//!   - [`Attempt::keep_buffers`]: the request goes on with it (a transfer retried for its rest),
//!   - [`Attempt::lend_buffer`]: the attempt is made without the lock after all, and nobody else gets the buffer meanwhile,
//!   - [`Attempt::return_buffer`]: nothing came of it, the next request gets it.
//! - [`Attempt::select_buffers`] names as many as there are, for a bundle; [`Attempt::use_buffers`] follows.
//! - For an attempt made without the lock (a worker's), or on a file that cannot be polled, it is kept before the attempt:
//!   the buffer is the request's own at once, as in the kernel, whatever comes.
//! - [`Attempt::settle_buffer`] runs at every completion and does for a buffer still held what its
//!   result suggests: a positive count uses it, anything else returns it; one that was taken or kept
//!   is reported in any case. An operation that wants otherwise (a read that reached the
//!   end of a file reports its buffer) calls [`Attempt::use_buffers`] itself first.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::feature::provided_buffers::{Buffer, Selected, Span};
use crate::os::user::IoVector;
use crate::request::Flags;
use crate::ring::Attempt;

impl Attempt<'_> {
    /// Names the next buffer of the request's group for an attempt under the lock; of `wanted` bytes
    /// at most, where that is not 0.
    ///
    /// # Errors
    /// `ENOBUFS` where there is none, `EFAULT` where the program's ring is gone.
    pub fn select_buffer(&mut self, wanted: usize) -> Result<Span, Errno> {
        debug_assert!(self.buffer.is_none(), "one buffer at a time");
        let (request, groups) = self.with_groups();
        let (selected, span) = groups.select(request.sqe.buf_index, wanted)?;
        self.hold(selected, span.address);
        Ok(span)
    }

    fn hold(&mut self, selected: Selected, address: u64) {
        self.buffer = Some(selected);
        if self.flags.has(Flags::TRACED) {
            self.trace_buffer(address);
        }
    }

    /// The request holds a buffer that [`next_of_ring`](crate::feature::provided_buffers::BufferGroups::next_of_ring) named, as if [`Attempt::select_buffer`] had.
    pub fn hold_next(&mut self, buffer: &Buffer) {
        self.hold(Selected::next(self.sqe.buf_index, buffer), buffer.address);
    }

    /// Names the next buffers of the request's group, as many as there are, of `wanted` bytes in all
    /// at most, where that is not 0. A list gives one.
    ///
    /// # Errors
    /// As [`Attempt::select_buffer`].
    pub fn select_buffers(&mut self, wanted: usize) -> Result<Vec<IoVector>, Errno> {
        let (request, groups) = self.with_groups();
        let (selected, vectors) = groups.select_many(request.sqe.buf_index, wanted)?;
        self.hold(selected, vectors.first().map_or(0, |first| first.base));
        Ok(vectors)
    }

    /// The request has used `used` bytes of the `count` buffers it holds: how its CQE says so. 0 where it holds none.
    pub fn use_buffers(&mut self, used: usize, count: u16) -> u32 {
        let Some(selected) = self.buffer.take() else { return 0 };
        self.ring.groups_mut().report(&selected, used, count)
    }

    /// The request goes on with the `count` buffers it holds, of which `used` bytes are spoken for.
    pub fn keep_buffers(&mut self, used: usize, count: u16) {
        let (request, groups) = self.with_groups();
        if let Some(selected) = &mut request.buffer {
            groups.keep(selected, used, count);
        }
    }

    /// The lock is about to be given up: nobody else may get the buffer meanwhile. It can still be used in part, or returned.
    pub fn lend_buffer(&mut self) {
        let (request, groups) = self.with_groups();
        if let Some(selected) = &mut request.buffer {
            groups.lend(selected);
        }
    }

    /// True if the request holds a buffer. It lets go of one whose ring was unregistered meanwhile.
    pub fn holds_buffer(&mut self) -> bool {
        let held = self.buffer.filter(|selected| self.ring.groups().has(selected));
        self.buffer = held;
        held.is_some()
    }

    /// Puts a buffer back, for nothing came of the attempt: it is the next one to be had again. One that was taken or
    /// kept cannot be put back, nor one that was lent if later ones were used up meanwhile; it stays with the request.
    pub fn return_buffer(&mut self) {
        if let Some(selected) = self.buffer
            && self.ring.groups_mut().put_back(&selected)
        {
            self.buffer = None;
        }
    }

    /// A request with a provided buffer ends: report the buffer in its CQE if it was used, give it
    /// back if not.
    pub fn settle_buffer(&mut self, result: i32) {
        if self.buffer.is_none() {
            return;
        }
        if result <= 0 {
            self.return_buffer();
        }
        let flags = self.use_buffers(result.max(0) as usize, 1);
        self.cqe_flags |= flags;
    }
}
