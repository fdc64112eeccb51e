//! Registered files.
//!
//! Each is a duplicate of the engine's own: the program may close its descriptor, and a number of
//! ours cannot be reused behind our back.

pub(crate) mod register;
pub mod ring;

use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::io_uring::IORING_FILE_INDEX_ALLOC;

use crate::abi::Errno;
use crate::assets::table::{Gone, NodeIndex, Table};
use crate::os::{self, Fd};

/// `file_index` that asks for any empty slot.
pub const ALLOCATE: u32 = IORING_FILE_INDEX_ALLOC as u32;

/// A ring's registered files.
#[derive(Default)]
pub struct FileTable {
    table: Table<Fd>,
    /// Where slots are allocated.
    range: Range<usize>,
    /// Where to look first.
    hint: usize,
}

impl FileTable {
    /// In a child after `fork`.
    pub fn forked(&mut self) {
        self.table.forked();
    }

    /// A hold on the file in a slot, to be given back by [`FileTable::release`].
    ///
    /// # Errors
    /// `EBADF` where there is none.
    #[inline]
    pub fn hold(&mut self, slot: u32) -> Result<(NodeIndex, Fd), Errno> {
        let (node, fd) = self.table.get(slot as usize).ok_or(Errno::EBADF)?;
        self.table.hold(node);
        Ok((node, fd))
    }

    /// A hold on a file in no slot, as [`FileTable::hold`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn keep(&mut self, fd: Fd) -> Result<NodeIndex, Errno> {
        self.table.keep(fd, 0)
    }

    /// Adds one more hold of a file.
    pub fn share(&mut self, node: NodeIndex) {
        self.table.hold(node);
    }

    /// The file in a slot.
    pub fn get(&self, slot: u32) -> Option<Fd> {
        self.table.get(slot as usize).map(|(_, fd)| fd)
    }

    /// Gives a hold back; the file whose last one that was is the caller's to close.
    #[inline]
    pub fn release(&mut self, node: NodeIndex) -> Option<Gone<Fd>> {
        self.table.release(node)
    }

    /// Closes every file; the ring is going.
    pub fn close_all(&mut self) {
        self.table.drain().for_each(os::close);
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Makes `count` empty slots, of which none is allocated before [`FileTable::allocate_anywhere`] or
    /// [`FileTable::allocate_from`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn create(&mut self, count: usize) -> Result<(), Errno> {
        self.table.create(count)
    }

    /// Takes all slots away; what was in them is the caller's to release.
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        self.set_range(0..0);
        self.table.dissolve()
    }

    /// No file announces its end any more: a registration failed half-way.
    pub fn clear_tags(&mut self) {
        self.table.clear_tags();
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

    /// Checks that this slot exists.
    ///
    /// # Errors
    /// `ENXIO` without a table, `EINVAL` for a slot beyond it.
    pub fn expect_slot(&self, slot: u32) -> Result<(), Errno> {
        if self.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        if slot as usize >= self.table.len() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Any slot may be allocated.
    pub fn allocate_anywhere(&mut self) {
        self.set_range(0..self.table.len());
    }

    /// Slots are allocated from this range.
    ///
    /// # Errors
    /// `EINVAL` where it goes beyond the table.
    pub fn allocate_from(&mut self, range: Range<usize>) -> Result<(), Errno> {
        if range.end > self.table.len() {
            return Err(Errno::EINVAL);
        }
        self.set_range(range);
        Ok(())
    }

    fn set_range(&mut self, range: Range<usize>) {
        self.hint = range.start;
        self.range = range;
    }

    /// Fills an empty slot.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fill(&mut self, slot: usize, fd: Fd, tag: u64) -> Result<(), Errno> {
        self.table.fill(slot, fd, tag)?;
        self.hint = slot + 1;
        Ok(())
    }

    /// Fills some empty slot, and returns which.
    ///
    /// # Errors
    /// `ENFILE` where none is empty, `ENOMEM`.
    pub fn fill_any(&mut self, fd: Fd) -> Result<usize, Errno> {
        let slot = self.allocate()?;
        self.fill(slot, fd, 0).map(|()| slot)
    }

    fn allocate(&mut self) -> Result<usize, Errno> {
        if !self.range.contains(&self.hint) {
            self.hint = self.range.start;
        }
        let behind = self.table.first_empty(self.hint..self.range.end);
        behind.or_else(|| self.table.first_empty(self.range.start..self.hint)).ok_or(Errno::ENFILE)
    }

    /// Empties a slot, which is the next to be allocated; what was in it is the caller's to release.
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        let node = self.table.empty(slot)?;
        self.hint = slot;
        Some(node)
    }

    /// Fills a slot whether or not it is empty. What was in it is the caller's to release.
    pub fn replace(&mut self, slot: usize, fd: Fd) -> (Option<NodeIndex>, Result<(), Errno>) {
        let before = self.table.empty(slot);
        let hint = self.hint;
        let filled = self.fill(slot, fd, 0);
        if before.is_some() {
            // No other slot is taken or free than was.
            self.hint = hint;
        }
        (before, filled)
    }
}
