//! Registered buffers: memory that the program promises to leave mapped. The kernel pins it; here it
//! is faulted in when it is registered, and checked against what requests name. Nothing is locked, so
//! nothing counts against `RLIMIT_MEMLOCK`; and a transfer into memory that was unmapped meanwhile fails.

pub mod clone;
pub(crate) mod register;
pub mod ring;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::table::{NodeIndex, Table};
use crate::os::user::IoVector;
use crate::os::{self, pages};

/// How many a ring may have.
pub const MAX_BUFFERS: u32 = 1 << 14;

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

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The buffer in each slot.
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
    /// `EFAULT` where they do not, where there is none, and where that is more than one transfer moves.
    pub fn check(&self, index: u16, address: u64, length: u64) -> Result<NodeIndex, Errno> {
        let (node, buffer) = self.table.get(usize::from(index)).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        // The buffer's end cannot overflow: its registration saw to it.
        let inside = address >= buffer.base && end <= buffer.base + buffer.length;
        if inside && length <= os::max_transfer_bytes() as u64 { Ok(node) } else { Err(Errno::EFAULT) }
    }

    /// In a child after `fork`.
    pub fn forked(&mut self) {
        self.table.forked();
    }

    /// Holds a buffer: it stays until [`BufferTable::release`], whatever happens to the table.
    pub fn hold(&mut self, node: NodeIndex) {
        self.table.hold(node);
    }

    /// Gives a hold back; returns the tag of a buffer whose last one that was, or zero.
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

    /// Takes all slots away; what was in them is the caller's to release.
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        self.table.dissolve()
    }

    /// No buffer announces its end any more: a registration failed half-way.
    pub fn clear_tags(&mut self) {
        self.table.clear_tags();
    }

    /// Sees to it that there are `count` slots, and room for filling some of them.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub fn grow(&mut self, count: usize, fills: usize) -> Result<(), Errno> {
        self.table.grow(count, fills)
    }

    /// Checks that these slots exist.
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

    /// Fills an empty slot with a buffer that is valid.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fill(&mut self, slot: usize, buffer: IoVector, tag: u64) -> Result<(), Errno> {
        self.table.fill(slot, buffer, tag)
    }

    /// Empties a slot; what was in it is the caller's to release.
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        self.table.empty(slot)
    }
}

/// How long a buffer may be, and what is answered to a longer one.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64, pub Errno);

/// Checks a buffer as the kernel does; `None` for an empty place.
///
/// # Errors
/// `EINVAL`, `EFAULT` also where the memory is not there, `EOVERFLOW`.
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
