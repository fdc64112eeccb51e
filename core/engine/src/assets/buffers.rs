//! Registered buffers: memory that the program promises to leave mapped. The kernel pins it; here it
//! is faulted in when it is registered, and checked against what requests name. Nothing is locked, so
//! nothing counts against `RLIMIT_MEMLOCK`; and a transfer into memory that was unmapped meanwhile fails.

use alloc::vec::Vec;

use linux_raw_sys::io_uring::io_uring_rsrc_update2;

use crate::abi::Errno;
use crate::assets::table::{NodeIndex, Table};
use crate::os::pages::{self, PAGE};
use crate::os::user::{self, IoVector};
use crate::request::RequestId;
use crate::ring::Core;

/// How many a ring may have.
pub const MAX_BUFFERS: u32 = 1 << 14;
const MAX_LENGTH: u64 = 1 << 30;

/// A ring's registered buffers.
#[derive(Default)]
pub struct BufferTable {
    table: Table<IoVector>,
}

impl BufferTable {
    /// The buffer at an index, if there is one.
    pub fn get(&self, index: u16) -> Option<IoVector> {
        self.table.get(usize::from(index)).map(|(_, buffer)| buffer)
    }

    /// Is nothing registered?
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What is in each slot.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn all(&self) -> Result<Vec<Option<IoVector>>, Errno> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.table.len()).map_err(|_| Errno::ENOMEM)?;
        all.extend((0..self.table.len()).map(|slot| self.table.get(slot).map(|(_, buffer)| buffer)));
        Ok(all)
    }

    /// As [`BufferTable::get`], to be held.
    ///
    /// # Errors
    /// `EFAULT` where there is none.
    pub fn node(&self, index: u16) -> Result<NodeIndex, Errno> {
        self.table.get(usize::from(index)).map(|(node, _)| node).ok_or(Errno::EFAULT)
    }

    /// The buffer at an index, where `address` and `length` lie within it.
    ///
    /// # Errors
    /// `EFAULT` where they do not, or where there is none.
    pub fn check(&self, index: u16, address: u64, length: u64) -> Result<NodeIndex, Errno> {
        let (node, buffer) = self.table.get(usize::from(index)).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        // The buffer's end cannot overflow: its registration saw to it.
        let inside = address >= buffer.base && end <= buffer.base + buffer.length;
        if inside { Ok(node) } else { Err(Errno::EFAULT) }
    }

    /// In a child after `fork`.
    pub fn forked(&mut self) {
        self.table.forked();
    }

    /// It stays until [`Core::release_buffer`], whatever happens to the table.
    pub fn hold(&mut self, node: NodeIndex) {
        self.table.hold(node);
    }
}

/// Checks a buffer as the kernel does; `None` for an empty place.
fn validate(buffer: IoVector) -> Result<Option<IoVector>, Errno> {
    if buffer.length > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if buffer.base == 0 {
        return if buffer.length == 0 { Ok(None) } else { Err(Errno::EFAULT) };
    }
    if buffer.length == 0 || buffer.length > MAX_LENGTH {
        return Err(Errno::EFAULT);
    }
    let end = buffer.base.checked_add(buffer.length + PAGE - 1).ok_or(Errno::EOVERFLOW)?;
    let first = buffer.base & !(PAGE - 1);
    pages::take(first, (end & !(PAGE - 1)) - first)?;
    Ok(Some(buffer))
}

impl Core {
    /// `IORING_REGISTER_BUFFERS(2)`: `vectors` and `tags` are addresses of the program, or 0.
    pub fn register_buffers(&mut self, vectors: u64, count: u32, tags: u64) -> Result<usize, Errno> {
        if !self.buffers.table.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 || count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        self.buffers.table.create(count as usize)?;
        for slot in 0..count as usize {
            if let Err(errno) = self.register_buffer(slot, slot, vectors, tags) {
                self.buffers.table.clear_tags();
                self.dissolve_buffers();
                return Err(errno);
            }
        }
        Ok(0)
    }

    /// Puts the buffer that an array has at `index` into a slot.
    fn register_buffer(&mut self, slot: usize, index: usize, vectors: u64, tags: u64) -> Result<(), Errno> {
        let vector: IoVector = user::element(vectors, index)?.unwrap_or_default();
        let tag: u64 = user::element(tags, index)?.unwrap_or(0);
        let buffer = validate(vector)?;
        if buffer.is_none() && tag != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(node) = self.buffers.table.empty(slot) {
            self.release_buffer(node);
        }
        buffer.map_or(Ok(()), |buffer| self.buffers.table.fill(slot, buffer, tag))
    }

    /// `IORING_UNREGISTER_BUFFERS`.
    pub fn unregister_buffers(&mut self) -> Result<usize, Errno> {
        if self.buffers.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        self.dissolve_buffers();
        Ok(0)
    }

    fn dissolve_buffers(&mut self) {
        for node in self.buffers.table.dissolve().into_iter().rev() {
            self.release_buffer(node);
        }
    }

    /// `IORING_REGISTER_BUFFERS_UPDATE`; returns how many slots were done.
    pub fn update_buffers(&mut self, update: &io_uring_rsrc_update2, count: u32) -> Result<usize, Errno> {
        let end = update.offset.checked_add(count).ok_or(Errno::EOVERFLOW)?;
        if self.buffers.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        if end as usize > self.buffers.table.len() {
            return Err(Errno::EINVAL);
        }
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

    /// Puts these buffers, which are valid, into the slots from `first` on, and makes the table longer
    /// where it has to be. What else is in it stays.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub fn replace_buffers(&mut self, first: usize, buffers: &[Option<IoVector>]) -> Result<(), Errno> {
        let slots = first..first + buffers.len();
        self.buffers.table.grow(slots.end, buffers.len())?;
        for slot in slots.clone().rev() {
            if let Some(node) = self.buffers.table.empty(slot) {
                self.release_buffer(node);
            }
        }
        for (slot, buffer) in slots.zip(buffers) {
            if let Some(buffer) = *buffer {
                self.buffers.table.fill(slot, buffer, 0)?;
            }
        }
        Ok(())
    }

    /// A request goes on that uses a registered buffer: it keeps it, whatever happens to the table.
    pub fn hold_buffer(&mut self, id: RequestId, node: NodeIndex) {
        debug_assert!(self.requests[id].registered_buffer.is_none(), "one buffer for a request");
        self.buffers.hold(node);
        self.requests[id].registered_buffer = Some(node);
    }

    /// Gives back a hold on a registered buffer.
    pub fn release_buffer(&mut self, node: NodeIndex) {
        if let Some(gone) = self.buffers.table.release(node) {
            self.post_tag(gone.tag);
        }
    }
}
