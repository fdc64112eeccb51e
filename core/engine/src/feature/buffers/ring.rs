//! The registered buffers of a ring: filling and emptying slots, and posting a buffer's tag when its last
//! request has released it.

use linux_raw_sys::io_uring::io_uring_rsrc_update2;

use crate::abi::Errno;
use crate::assets::table::NodeIndex;
use crate::feature::buffers::{Limit, MAX_BUFFERS, validate};
use crate::os::user::{self, IoVector};
use crate::request::RequestId;
use crate::request::version;
use crate::ring::Core;

impl Core {
    /// `IORING_REGISTER_BUFFERS(2)`: `vectors` and `tags` are addresses of the program, or 0.
    pub(in crate::feature::buffers) fn register_buffers(
        &mut self,
        vectors: u64,
        count: u32,
        tags: u64,
    ) -> Result<usize, Errno> {
        if !self.resources().buffers.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 || count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        self.resources_mut().buffers.create(count as usize)?;
        for slot in 0..count as usize {
            if let Err(errno) = self.register_buffer(slot, slot, vectors, tags) {
                self.resources_mut().buffers.clear_tags();
                self.dissolve_buffers();
                return Err(errno);
            }
        }
        Ok(0)
    }

    /// Registers the element `index` of the array at `vectors` in a slot.
    fn register_buffer(&mut self, slot: usize, index: usize, vectors: u64, tags: u64) -> Result<(), Errno> {
        let vector: IoVector = user::element(vectors, index)?.unwrap_or_default();
        let tag: u64 = user::element(tags, index)?.unwrap_or(0);
        let buffer = validate(vector, limit())?;
        if buffer.is_none() && tag != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(node) = self.resources_mut().buffers.empty(slot) {
            self.release_buffer(node);
        }
        buffer.map_or(Ok(()), |buffer| self.resources_mut().buffers.fill(slot, buffer, tag))
    }

    /// `IORING_UNREGISTER_BUFFERS`.
    pub fn unregister_buffers(&mut self) -> Result<usize, Errno> {
        if self.resources().buffers.is_empty() {
            return Err(Errno::ENXIO);
        }
        self.dissolve_buffers();
        Ok(0)
    }

    fn dissolve_buffers(&mut self) {
        for node in self.resources_mut().buffers.dissolve().into_iter().rev() {
            self.release_buffer(node);
        }
    }

    /// `IORING_REGISTER_BUFFERS_UPDATE`; returns how many slots were updated.
    pub(in crate::feature::buffers) fn update_buffers(
        &mut self,
        update: &io_uring_rsrc_update2,
        count: u32,
    ) -> Result<usize, Errno> {
        self.resources().buffers.expect_slots(update.offset, count)?;
        if update.data == 0 {
            return Err(Errno::EFAULT);
        }
        for done in 0..count as usize {
            let slot = update.offset as usize + done;
            if let Err(errno) = self.register_buffer(slot, done, update.data, update.tags) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    /// Replaces the buffers in the slots from `first` on by these validated buffers, and extends the table if
    /// necessary. Other slots keep their buffers.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub(in crate::feature::buffers) fn replace_buffers(
        &mut self,
        first: usize,
        buffers: &[Option<IoVector>],
    ) -> Result<(), Errno> {
        let slots = first..first + buffers.len();
        self.resources_mut().buffers.grow(slots.end, buffers.len())?;
        for slot in slots.clone().rev() {
            if let Some(node) = self.resources_mut().buffers.empty(slot) {
                self.release_buffer(node);
            }
        }
        for (slot, buffer) in slots.zip(buffers) {
            if let Some(buffer) = *buffer {
                self.resources_mut().buffers.fill(slot, buffer, 0)?;
            }
        }
        Ok(())
    }

    /// Holds a registered buffer for a request: the buffer lives until the request releases it, even if its slot is emptied.
    pub fn hold_buffer(&mut self, id: RequestId, node: NodeIndex) {
        debug_assert!(self[id].registered_buffer.is_none(), "one buffer for a request");
        self.resources_mut().buffers.hold(node);
        self[id].registered_buffer = Some(node);
    }

    /// Releases a hold of a registered buffer.
    pub fn release_buffer(&mut self, node: NodeIndex) {
        let tag = self.resources_mut().buffers.release(node);
        self.post_tag(tag);
    }
}

/// Returns the maximal length of a buffer in the kernel version that this process emulates.
fn limit() -> Limit {
    let is_short = version::current() < version::LONG_BUFFERS;
    if is_short { Limit(1 << 30, Errno::EFAULT) } else { Limit(1 << 40, Errno::EINVAL) }
}
