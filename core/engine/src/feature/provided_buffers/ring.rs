//! How operations use provided buffers (`IOSQE_BUFFER_SELECT`; the group's number is in the SQE's `buf_index`):
//!
//! - [`Attempt::select_buffer`] selects the next buffer for one attempt made under the ring's lock. Before the lock is
//!   released, one of these must follow:
//!   - [`Attempt::use_buffers`]: some bytes of the buffer were used; returns the `IORING_CQE_F_*` that say so, for
//!     [`Attempt::post_more`] or to be added to the request's `cqe_flags`,
//!   - [`Attempt::keep_buffers`]: the request continues with the buffer (a transfer retried for its rest),
//!   - [`Attempt::lend_buffer`]: the attempt is made without the lock after all; meanwhile no other request gets the
//!     buffer,
//!   - [`Attempt::return_buffer`]: the buffer was not used, the next request gets it.
//! - [`Attempt::select_buffers`] selects all available buffers, for a bundle; [`Attempt::use_buffers`] follows.
//! - For an attempt without the lock (a worker's), or on a file that cannot be polled, the buffer is kept before the
//!   attempt: the request owns the buffer immediately, as in the kernel, whatever its result.
//! - [`Attempt::settle_buffer`] runs at every completion and handles a buffer that is still held, by the result: a positive
//!   one uses the buffer, any other returns it; a kept buffer is reported in any case. An operation that needs another
//!   handling (a read at the end of a file reports its buffer) calls [`Attempt::use_buffers`] itself first.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::feature::provided_buffers::{Buffer, Selected, Span};
use crate::os::user::IoVector;
use crate::request::Flags;
use crate::ring::Attempt;

impl Attempt<'_> {
    /// Selects the next buffer of the request's group for an attempt under the lock, limited to `wanted`
    /// bytes if `wanted` is not 0.
    ///
    /// # Errors
    /// `ENOBUFS` if there is none, `EFAULT` if the program's ring is not mapped.
    pub fn select_buffer(&mut self, wanted: usize) -> Result<Span, Errno> {
        debug_assert!(self.buffer.is_none(), "one buffer at a time");
        let (request, groups) = self.with_groups();
        let (selected, span) = groups.select(request.sqe.buf_index, wanted)?;
        self.hold(selected, &[IoVector { base: span.address, length: span.length as u64 }]);
        Ok(span)
    }

    fn hold(&mut self, selected: Selected, memory: &[IoVector]) {
        self.buffer = Some(selected);
        if self.flags.has(Flags::TRACED) {
            self.trace_buffer(memory.first().map_or(0, |first| first.base));
        }
        if self.flags.has(Flags::CHAOS) {
            self.fills_selected(memory);
        }
    }

    /// Holds the result of [`next_of_ring`](crate::feature::provided_buffers::BufferGroups::next_of_ring) as if selected.
    pub fn hold_next(&mut self, buffer: &Buffer) {
        let memory = IoVector { base: buffer.address, length: buffer.length.into() };
        self.hold(Selected::next(self.sqe.buf_index, buffer), &[memory]);
    }

    /// Selects all available buffers of the request's group, limited to `wanted` bytes in all if `wanted` is
    /// not 0. A list gives one buffer.
    ///
    /// # Errors
    /// As [`Attempt::select_buffer`].
    pub fn select_buffers(&mut self, wanted: usize) -> Result<Vec<IoVector>, Errno> {
        let (request, groups) = self.with_groups();
        let (selected, vectors) = groups.select_many(request.sqe.buf_index, wanted)?;
        self.hold(selected, &vectors);
        Ok(vectors)
    }

    /// Notes that the request used `used` bytes of its `count` buffers; returns the CQE flags for that, 0 if it holds no buffer.
    pub fn use_buffers(&mut self, used: usize, count: u16) -> u32 {
        let Some(selected) = self.buffer.take() else { return 0 };
        self.ring.groups_mut().report(&selected, used, count)
    }

    /// Keeps the request's `count` buffers, of which `used` bytes are used, for the request to continue with.
    pub fn keep_buffers(&mut self, used: usize, count: u16) {
        let (request, groups) = self.with_groups();
        if let Some(selected) = &mut request.buffer {
            groups.keep(selected, used, count);
        }
    }

    /// Lends the buffer before the lock is released: no other request gets it. It can still be used in part, or returned.
    pub fn lend_buffer(&mut self) {
        let (request, groups) = self.with_groups();
        if let Some(selected) = &mut request.buffer {
            groups.lend(selected);
        }
    }

    /// True if the request holds a buffer. Drops a buffer whose ring was unregistered meanwhile.
    pub fn holds_buffer(&mut self) -> bool {
        let held = self.buffer.filter(|selected| self.ring.groups().has(selected));
        self.buffer = held;
        held.is_some()
    }

    /// Puts an unused buffer back, to be selected next. A kept buffer stays with the request, and so does a lent
    /// buffer if later ones were given away meanwhile.
    pub fn return_buffer(&mut self) {
        if let Some(selected) = self.buffer
            && self.ring.groups_mut().put_back(&selected)
        {
            self.buffer = None;
        }
    }

    /// Handles the buffer of a request that completes: reports the buffer in the CQE if it was used, returns
    /// it if not.
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
