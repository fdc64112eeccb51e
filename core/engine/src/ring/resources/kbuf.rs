//! How operations use provided buffers (`IOSQE_BUFFER_SELECT`; the group's number is in the SQE's `buf_index`):
//!
//! - [`Core::select_buffer`] names the next buffer for one attempt made under the ring's lock. It
//!   must be followed, before the lock is given up, by one of
//!   - [`Core::use_buffer`]: so many bytes of it were used; returns the `IORING_CQE_F_*` that say so,
//!     for [`Core::post_more`] or to be added to the request's `cqe_flags`,
//!   - [`Core::keep_buffer`]: the request goes on with it (a transfer retried for its rest),
//!   - [`Core::lend_buffer`]: the attempt is made without the lock after all, and nobody else gets the buffer meanwhile,
//!   - [`Core::return_buffer`]: nothing came of it, the next request gets it.
//! - [`Core::select_buffers`] names as many as there are, for a bundle; [`Core::use_buffers`] follows.
//! - [`Core::take_buffer`] is for an attempt made without the lock (a worker's), or on a file that
//!   cannot be polled: the buffer is the request's own at once, as in the kernel, whatever comes.
//! - [`Core::settle_buffer`] runs at every completion and does for a buffer still held what its
//!   result suggests: a positive count uses it, anything else returns it; one that was taken or kept
//!   is reported in any case. An operation that wants otherwise (a read that reached the
//!   end of a file reports its buffer) calls [`Core::use_buffer`] itself first.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::kbuf::{Buffer, Provision, Selected, Span};
use crate::os::user::IoVector;
use crate::request::{Flags, RequestId};
use crate::ring::Core;

impl Core {
    /// Names the next buffer of the request's group for an attempt under the lock; of `wanted` bytes
    /// at most, where that is not 0.
    ///
    /// # Errors
    /// `ENOBUFS` where there is none, `EFAULT` where the program's ring is gone.
    pub fn select_buffer(&mut self, id: RequestId, wanted: usize) -> Result<Span, Errno> {
        debug_assert!(self.requests[id].buffer.is_none(), "one buffer at a time");
        let (selected, span) = self.resources.groups.select(self.requests[id].sqe.buf_index, wanted)?;
        self.hold(id, selected, span.address);
        Ok(span)
    }

    fn hold(&mut self, id: RequestId, selected: Selected, address: u64) {
        let request = &mut self.requests[id];
        request.buffer = Some(selected);
        if request.flags.has(Flags::TRACED) {
            self.trace_buffer(id, address);
        }
    }

    /// The next buffer of a group, where that is a ring whose buffers are used as a whole. [`Core::use_next`] or
    /// [`Core::hold_next`] follows, or nothing was done.
    #[inline]
    pub fn next_of_ring(&mut self, group: u16) -> Option<Buffer> {
        self.resources.groups.next_of_ring(group)
    }

    /// Such a buffer was used, by an attempt of a request that holds none: how its CQE says so.
    #[inline]
    pub fn use_next(&mut self, group: u16, buffer: &Buffer) -> u32 {
        self.resources.groups.report(&Selected::next(group, buffer), 0, 1)
    }

    /// A request holds such a buffer, as if [`Core::select_buffer`] had named it.
    pub fn hold_next(&mut self, id: RequestId, buffer: &Buffer) {
        let group = self.requests[id].sqe.buf_index;
        self.hold(id, Selected::next(group, buffer), buffer.address);
    }

    /// Takes the next buffer of the request's group for good, for an attempt without the lock.
    ///
    /// # Errors
    /// As [`Core::select_buffer`].
    pub fn take_buffer(&mut self, id: RequestId, wanted: usize) -> Result<Span, Errno> {
        let span = self.select_buffer(id, wanted)?;
        self.keep_buffer(id, span.length);
        Ok(span)
    }

    /// Names the next buffers of the request's group, as many as there are, of `wanted` bytes in all
    /// at most, where that is not 0. A list gives one.
    ///
    /// # Errors
    /// As [`Core::select_buffer`].
    pub fn select_buffers(&mut self, id: RequestId, wanted: usize) -> Result<Vec<IoVector>, Errno> {
        let (selected, vectors) =
            self.resources.groups.select_many(self.requests[id].sqe.buf_index, wanted)?;
        self.hold(id, selected, vectors.first().map_or(0, |first| first.base));
        Ok(vectors)
    }

    /// True if the request's group has given all that it had when it was last looked at.
    pub fn is_group_empty(&self, id: RequestId) -> bool {
        self.resources.groups.is_empty(self.requests[id].sqe.buf_index)
    }

    /// Checks that there is a buffer in the request's group.
    ///
    /// # Errors
    /// `ENOBUFS` where there is none, `EFAULT` where the program's ring is gone.
    pub fn expect_buffer(&mut self, id: RequestId) -> Result<(), Errno> {
        self.resources.groups.expect(self.requests[id].sqe.buf_index)
    }

    /// True if the request's group exists.
    pub fn has_buffer_group(&self, id: RequestId) -> bool {
        self.resources.groups.contains(self.requests[id].sqe.buf_index)
    }

    /// True if the request's group is a list.
    pub fn has_buffer_list(&self, id: RequestId) -> bool {
        self.resources.groups.is_list(self.requests[id].sqe.buf_index)
    }

    /// True if the buffers of the request's group are used up bit by bit.
    pub fn uses_buffers_up(&self, id: RequestId) -> bool {
        self.resources.groups.is_incremental(self.requests[id].sqe.buf_index)
    }

    /// The request has used `used` bytes of the buffer it holds: how its CQE says so. 0 where it
    /// holds none.
    pub fn use_buffer(&mut self, id: RequestId, used: usize) -> u32 {
        self.use_buffers(id, used, 1)
    }

    /// As [`Core::use_buffer`], of `count` buffers named by [`Core::select_buffers`].
    pub fn use_buffers(&mut self, id: RequestId, used: usize, count: u16) -> u32 {
        let Some(selected) = self.requests[id].buffer.take() else { return 0 };
        self.resources.groups.report(&selected, used, count)
    }

    /// The request goes on with the buffer it holds, of which `used` bytes are spoken for.
    pub fn keep_buffer(&mut self, id: RequestId, used: usize) {
        self.keep_buffers(id, used, 1);
    }

    /// As [`Core::keep_buffer`], of `count` buffers.
    pub fn keep_buffers(&mut self, id: RequestId, used: usize, count: u16) {
        if let Some(selected) = &mut self.requests[id].buffer {
            self.resources.groups.keep(selected, used, count);
        }
    }

    /// The lock is about to be given up: nobody else may get the buffer meanwhile. It can still be used in part, or returned.
    pub fn lend_buffer(&mut self, id: RequestId) {
        if let Some(selected) = &mut self.requests[id].buffer {
            self.resources.groups.lend(selected);
        }
    }

    /// True if the request holds a buffer. It lets go of one whose ring was unregistered meanwhile.
    pub fn holds_buffer(&mut self, id: RequestId) -> bool {
        let held = self.requests[id].buffer.filter(|selected| self.resources.groups.has(selected));
        self.requests[id].buffer = held;
        held.is_some()
    }

    /// Puts a buffer back, for nothing came of the attempt: it is the next one to be had again. One that was taken or
    /// kept cannot be put back, nor one that was lent if later ones were used up meanwhile; it stays with the request.
    pub fn return_buffer(&mut self, id: RequestId) {
        if let Some(selected) = self.requests[id].buffer
            && self.resources.groups.put_back(&selected)
        {
            self.requests[id].buffer = None;
        }
    }

    /// A request with a provided buffer ends: report the buffer in its CQE if it was used, give it
    /// back if not.
    pub fn settle_buffer(&mut self, id: RequestId, result: i32) {
        if self.requests[id].buffer.is_none() {
            return;
        }
        if result <= 0 {
            self.return_buffer(id);
        }
        let flags = self.use_buffer(id, result.max(0) as usize);
        self.requests[id].cqe_flags |= flags;
    }

    /// Adds buffers to a list.
    ///
    /// # Errors
    /// `EINVAL` where the group is a ring, `EOVERFLOW` where the list is full.
    pub fn provide_buffers(&mut self, provision: &Provision) -> Result<usize, Errno> {
        self.resources.groups.provide(provision).map(|()| 0)
    }

    /// Takes up to `count` buffers out of a list; returns how many.
    ///
    /// # Errors
    /// `ENOENT` where there is no such group, `EINVAL` where it is a ring.
    pub fn remove_buffers(&mut self, group: u16, count: u32) -> Result<usize, Errno> {
        self.resources.groups.remove(group, count)
    }
}
