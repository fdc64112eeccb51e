//! Registered buffers: memory that the program promises to leave mapped. The kernel pins it. The engine
//! faults it in at registration, and checks the ranges of requests against it. Nothing is locked, so nothing
//! counts against `RLIMIT_MEMLOCK`; a transfer into memory that was unmapped meanwhile fails.

pub mod clone;
pub(crate) mod register;
pub mod ring;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::table::{NodeIndex, Table};
use crate::os::user::IoVector;
use crate::os::{self, pages};

/// The maximal number of buffers of a ring.
pub const MAX_BUFFERS: u32 = 1 << 14;

/// A ring's registered buffers.
#[derive(Default)]
pub struct BufferTable {
    table: Table<IoVector>,
}

impl BufferTable {
    /// Returns the buffer at an index, if there is one.
    pub fn get(&self, index: u16) -> Option<IoVector> {
        self.table.get(usize::from(index)).map(|(_, buffer)| buffer)
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the buffer in each slot.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn all(&self) -> Result<Vec<Option<IoVector>>, Errno> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.table.len()).map_err(|_| Errno::ENOMEM)?;
        all.extend((0..self.table.len()).map(|slot| self.table.get(slot).map(|(_, buffer)| buffer)));
        Ok(all)
    }

    /// Returns the node of the buffer at an index, to be held.
    ///
    /// # Errors
    /// `EFAULT` if the slot is empty.
    pub fn node(&self, index: u16) -> Result<NodeIndex, Errno> {
        self.table.get(usize::from(index)).map(|(node, _)| node).ok_or(Errno::EFAULT)
    }

    /// Returns the node of the buffer at an index, if `address` and `length` lie within the buffer.
    ///
    /// # Errors
    /// `EFAULT` if they do not, if the slot is empty, and if `length` is more than one transfer moves.
    pub fn check(&self, index: u16, address: u64, length: u64) -> Result<NodeIndex, Errno> {
        let (node, buffer) = self.table.get(usize::from(index)).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        // The buffer's end cannot overflow: `validate` has checked it.
        let inside = address >= buffer.base && end <= buffer.base + buffer.length;
        if inside && length <= os::max_transfer_bytes() as u64 { Ok(node) } else { Err(Errno::EFAULT) }
    }

    /// Forgets the parent's holds in a child after `fork`.
    pub fn forked(&mut self) {
        self.table.forked();
    }

    /// Holds a buffer: the buffer lives until [`BufferTable::release`], even if its slot is emptied.
    pub fn hold(&mut self, node: NodeIndex) {
        self.table.hold(node);
    }

    /// Releases a hold; if it was the buffer's last, returns the buffer's tag, else zero.
    pub fn release(&mut self, node: NodeIndex) -> u64 {
        self.table.release(node).map_or(0, |gone| gone.tag)
    }

    /// Makes `count` empty slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn create(&mut self, count: usize) -> Result<(), Errno> {
        self.table.create(count)
    }

    /// Removes all slots; the caller releases the returned nodes.
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        self.table.dissolve()
    }

    /// Clears all tags, so that no buffer posts one: a registration failed half-way.
    pub fn clear_tags(&mut self) {
        self.table.clear_tags();
    }

    /// Makes the table at least `count` slots long, and reserves memory to fill `fills` of them.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub fn grow(&mut self, count: usize, fills: usize) -> Result<(), Errno> {
        self.table.grow(count, fills)
    }

    /// Checks that `count` slots from `first` on exist.
    ///
    /// # Errors
    /// `EOVERFLOW`, `ENXIO` without a table, `EINVAL` for slots beyond it.
    pub fn expect_slots(&self, first: u32, count: u32) -> Result<(), Errno> {
        let end = first.checked_add(count).ok_or(Errno::EOVERFLOW)?;
        if self.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        if end as usize > self.table.len() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Fills an empty slot with a validated buffer.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fill(&mut self, slot: usize, buffer: IoVector, tag: u64) -> Result<(), Errno> {
        self.table.fill(slot, buffer, tag)
    }

    /// Empties a slot; the caller releases the returned node.
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        self.table.empty(slot)
    }
}

/// The maximal length of a buffer, and the error for a longer one.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64, pub Errno);

/// Checks a buffer as the kernel does; `None` for an empty slot.
///
/// # Errors
/// `EINVAL`; `EFAULT`, also if the memory is not mapped; `EOVERFLOW`.
pub fn validate(buffer: IoVector, limit: Limit) -> Result<Option<IoVector>, Errno> {
    if buffer.length > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if buffer.base == 0 {
        return if buffer.length == 0 { Ok(None) } else { Err(Errno::EFAULT) };
    }
    if buffer.length == 0 {
        return Err(Errno::EFAULT);
    }
    if buffer.length > limit.0 {
        return Err(limit.1);
    }
    let end =
        buffer.base.checked_add(buffer.length + pages::page_bytes() as u64 - 1).ok_or(Errno::EOVERFLOW)?;
    let first = buffer.base & !(pages::page_bytes() as u64 - 1);
    pages::take(first, (end & !(pages::page_bytes() as u64 - 1)) - first)?;
    Ok(Some(buffer))
}
