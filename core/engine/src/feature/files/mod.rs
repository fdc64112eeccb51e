//! Registered files.
//!
//! Each is a duplicate of the engine's own: so the program may close its descriptor, and the duplicate's
//! number is not reused behind the engine's back.
//!
//! A registered file uses none of the program's low numbers. But the system opens files at the lowest number, and to move one costs more
//! calls than to open it. So a file that is opened for a slot is *fresh* at first, and stays where it was opened as long as the call that
//! opened it goes on, and nothing but a CLOSE names its slot. Then the CLOSE, which often is linked behind it, finds it there. Before any
//! other request uses it, and before the ring is unlocked for anything but work of that call, it is *settled*: moved, with the flags that
//! the program has asked for. No thread but that of the call uses the number meanwhile, and front ends know it as the engine's own.

pub(crate) mod register;

use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::io_uring::IORING_FILE_INDEX_ALLOC;

use crate::abi::Errno;
use crate::assets::table::{Gone, NodeIndex, Table};
use crate::assets::{kinds, lingering, notes};
use crate::os::{self, Fd, nr};

/// The `file_index` that asks for any empty slot.
pub const ALLOCATE: u32 = IORING_FILE_INDEX_ALLOC as u32;

/// A ring's registered files.
#[derive(Default)]
pub struct FileTable {
    table: Table<Fd>,
    /// The slots that may be allocated.
    range: Range<usize>,
    /// Where the search for an empty slot begins.
    hint: usize,
    /// Files that no request has used, and that are to be settled.
    fresh: Vec<Fresh>,
}

impl FileTable {
    /// Forgets the parent's holds in a child after `fork`. A call of another thread that has opened files is the parent's.
    pub fn forked(&mut self) {
        self.settle();
        self.table.forked();
    }

    /// Holds the file in a slot until [`FileTable::release`].
    ///
    /// # Errors
    /// `EBADF` if the slot is empty.
    #[inline]
    pub fn hold(&mut self, slot: u32) -> Result<(NodeIndex, Fd), Errno> {
        self.settle();
        let (node, fd) = self.table.get(slot as usize).ok_or(Errno::EBADF)?;
        self.table.hold(node);
        Ok((node, fd))
    }

    /// Holds a file that is in no slot, as [`FileTable::hold`] does.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn keep(&mut self, fd: Fd) -> Result<NodeIndex, Errno> {
        self.table.keep(fd, 0)
    }

    /// Adds a hold of a file.
    pub fn share(&mut self, node: NodeIndex) {
        self.table.hold(node);
    }

    /// Returns the file in a slot, to be used under the ring's lock.
    #[inline]
    pub fn get(&mut self, slot: u32) -> Option<Fd> {
        self.settle();
        self.named(slot)
    }

    /// Returns the file in a slot, which is only looked at.
    pub fn named(&self, slot: u32) -> Option<Fd> {
        self.table.get(slot as usize).map(|(_, fd)| fd)
    }

    /// Releases a hold; if it was the last, returns the file, which the caller closes.
    #[inline]
    pub fn release(&mut self, node: NodeIndex) -> Option<Gone<Fd>> {
        let gone = self.table.release(node)?;
        if !self.fresh.is_empty() {
            self.fresh.retain(|fresh| fresh.node != node);
        }
        Some(gone)
    }

    /// Closes every file; the ring ends.
    pub fn close_all(&mut self) {
        self.fresh.clear();
        self.table.drain().for_each(lingering::close);
    }

    /// Removes all slots; the caller releases the returned nodes.
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        self.set_range(0..0);
        self.table.dissolve()
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

    /// Lets any slot be allocated. In a new table, none can be before this or [`Self::allocate_from`].
    pub fn allocate_anywhere(&mut self) {
        self.set_range(0..self.table.len());
    }

    /// Lets slots be allocated from this range only.
    ///
    /// # Errors
    /// `EINVAL` if the range ends beyond the table.
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

    /// Fills some empty slot, and returns its number.
    ///
    /// # Errors
    /// `ENFILE` if no slot is empty, `ENOMEM`.
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

    /// Empties a slot, which is the next to be allocated; the caller releases the returned node.
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        let node = self.table.empty(slot)?;
        self.hint = slot;
        Some(node)
    }

    /// Fills a slot whether or not it is empty. The caller releases the returned node of the former file.
    pub fn replace(&mut self, slot: usize, fd: Fd) -> (Option<NodeIndex>, Result<(), Errno>) {
        let before = self.table.empty(slot);
        let hint = self.hint;
        let filled = self.fill(slot, fd, 0);
        if before.is_some() {
            // The set of empty slots is unchanged.
            self.hint = hint;
        }
        (before, filled)
    }
}

/// The number of no file.
const NONE: Fd = -1;

/// A file that is to be settled.
struct Fresh {
    node: NodeIndex,
    /// The status flags that the program has asked for, if the file was opened with `O_NONBLOCK` beside them.
    status: Option<u32>,
}

impl FileTable {
    /// Notes that the file in a slot is fresh. `status`: the status flags that it is to have, if it has `O_NONBLOCK` beside them.
    fn note_fresh(&mut self, slot: usize, status: Option<u32>) {
        if let Some((node, _)) = self.table.get(slot) {
            self.fresh.push(Fresh { node, status });
        }
    }

    /// Settles all fresh files: nothing uses them yet, so their numbers may change.
    #[inline]
    pub fn settle(&mut self) {
        if !self.fresh.is_empty() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        let mut fresh = core::mem::take(&mut self.fresh);
        let mut lows = Vec::with_capacity(fresh.len());
        for Fresh { node, status } in fresh.drain(..) {
            let low = self.table.value(node);
            let settled = raised(low, status);
            if settled != Ok(low) {
                lows.push(low);
            }
            // A file that somebody has closed unseen is no file any more: the number must not name the next one.
            self.table.replace(node, settled.unwrap_or(NONE));
        }
        self.fresh = fresh;
        close_lows(lows);
    }
}

/// Gives a file its status flags, and duplicates it to a high number. If there is none, it keeps its own.
fn raised(low: Fd, status: Option<u32>) -> Result<Fd, Errno> {
    if let Some(status) = status {
        os::fcntl(low, nr::F_SETFL, status as usize)?;
    }
    match os::duplicate(low) {
        Ok(high) => {
            notes::renew(high);
            kinds::add(high, kinds::noted(low));
            Ok(high)
        }
        Err(Errno::EMFILE) => Ok(low),
        Err(errno) => Err(errno),
    }
}

/// Closes low numbers, as many together as follow one another.
fn close_lows(mut lows: Vec<Fd>) {
    lows.sort_unstable();
    lows.iter().for_each(|&low| notes::closes(low));
    for run in lows.chunk_by(|low, next| low + 1 == *next) {
        os::close_all(run[0]..=run[run.len() - 1]);
    }
}
