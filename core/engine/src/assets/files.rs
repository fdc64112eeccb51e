//! Registered files.
//!
//! Each is a duplicate of the engine's own: the program may close its descriptor, and a number of
//! ours cannot be reused behind our back.

use linux_raw_sys::general::RLIMIT_NOFILE;
use linux_raw_sys::io_uring::{
    IORING_FILE_INDEX_ALLOC, IORING_REGISTER_FILES_SKIP, io_uring_file_index_range, io_uring_rsrc_update2,
};

use crate::abi::Errno;
use crate::assets::table::{NodeIndex, Table};
use crate::os::{self, Fd, user};
use crate::request::FileHold;
use crate::ring::{Core, registry};

const MAX_FILES: u32 = 1 << 20;

/// `file_index` that asks for any empty slot.
pub const ALLOCATE: u32 = IORING_FILE_INDEX_ALLOC as u32;

/// A ring's registered files.
#[derive(Default)]
pub struct FileTable {
    table: Table<Fd>,
    /// Where slots are allocated.
    range: core::ops::Range<usize>,
    /// Where to look first.
    hint: usize,
}

impl FileTable {
    /// In a child after `fork`.
    pub fn forked(&mut self) {
        self.table.forked();
    }

    /// A hold on the file in a slot.
    ///
    /// # Errors
    /// `EBADF` where there is none.
    pub fn hold(&mut self, slot: u32) -> Result<FileHold, Errno> {
        let (node, fd) = self.table.get(slot as usize).ok_or(Errno::EBADF)?;
        self.table.hold(node);
        Ok(FileHold::Fixed(node, fd))
    }

    /// The file in a slot.
    pub fn get(&self, slot: u32) -> Option<Fd> {
        self.table.get(slot as usize).map(|(_, fd)| fd)
    }

    /// Closes every file; the ring is going.
    pub fn close_all(&mut self) {
        self.table.drain().for_each(os::close);
    }

    fn set_range(&mut self, start: usize, length: usize) {
        self.range = start..start + length;
        self.hint = start;
    }

    fn allocate(&mut self) -> Result<usize, Errno> {
        if !self.range.contains(&self.hint) {
            self.hint = self.range.start;
        }
        let behind = self.table.first_empty(self.hint..self.range.end);
        behind.or_else(|| self.table.first_empty(self.range.start..self.hint)).ok_or(Errno::ENFILE)
    }

    fn fill(&mut self, slot: usize, fd: Fd, tag: u64) -> Result<(), Errno> {
        self.table.fill(slot, fd, tag)?;
        self.hint = slot + 1;
        Ok(())
    }
}

/// A duplicate of a descriptor of the program, for the table.
fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    if registry::is_ring(fd) { Err(Errno::EBADF) } else { os::duplicate(fd) }
}

fn open_files_limit() -> u64 {
    os::limit(RLIMIT_NOFILE, None).map_or(u64::MAX, |limit| limit.rlim_cur)
}

impl Core {
    /// Gives back a hold; the last one closes the file.
    pub fn release_node(&mut self, node: NodeIndex) {
        if let Some(gone) = self.files.table.release(node) {
            self.close_own(gone.value);
            self.post_tag(gone.tag);
        }
    }

    /// Announces the end of a registered thing, if it has a tag.
    pub(crate) fn post_tag(&mut self, tag: u64) {
        if tag != 0 {
            self.post(crate::queue::Cqe { user_data: tag, ..Default::default() });
        }
    }

    /// `IORING_REGISTER_FILES(2)`: `fds` and `tags` are addresses of the program, or 0.
    pub fn register_files(&mut self, fds: u64, count: u32, tags: u64) -> Result<usize, Errno> {
        if !self.files.table.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if count > MAX_FILES || u64::from(count) > open_files_limit() {
            return Err(Errno::EMFILE);
        }
        self.files.table.create(count as usize)?;
        for slot in 0..count as usize {
            if let Err(errno) = self.register_file(slot, fds, tags) {
                self.files.table.clear_tags();
                self.dissolve_files();
                return Err(errno);
            }
        }
        self.files.set_range(0, count as usize);
        Ok(0)
    }

    fn register_file(&mut self, slot: usize, fds: u64, tags: u64) -> Result<(), Errno> {
        let tag: u64 = user::element(tags, slot)?.unwrap_or(0);
        let fd: Fd = user::element(fds, slot)?.unwrap_or(-1);
        if fd == -1 {
            return if tag == 0 { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let own = duplicate(fd)?;
        self.files.fill(slot, own, tag).inspect_err(|_| os::close(own))
    }

    /// `IORING_UNREGISTER_FILES`.
    pub fn unregister_files(&mut self) -> Result<usize, Errno> {
        if self.files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        self.dissolve_files();
        Ok(0)
    }

    fn dissolve_files(&mut self) {
        for node in self.files.table.dissolve().into_iter().rev() {
            self.release_node(node);
        }
        self.files.set_range(0, 0);
    }

    /// `IORING_REGISTER_FILES_UPDATE(2)` and `IORING_OP_FILES_UPDATE`; returns how many slots were
    /// done.
    pub fn update_files(&mut self, update: &io_uring_rsrc_update2, count: u32) -> Result<usize, Errno> {
        let end = update.offset.checked_add(count).ok_or(Errno::EOVERFLOW)?;
        if self.files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        if end as usize > self.files.table.len() {
            return Err(Errno::EINVAL);
        }
        for done in 0..count as usize {
            if let Err(errno) = self.update_file(update, done) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    fn update_file(&mut self, update: &io_uring_rsrc_update2, index: usize) -> Result<(), Errno> {
        let tag: u64 = user::element(update.tags, index)?.unwrap_or(0);
        let fd: Fd = user::read(update.data.wrapping_add(index as u64 * 4))?;
        if tag != 0 && (fd == -1 || fd == IORING_REGISTER_FILES_SKIP) {
            return Err(Errno::EINVAL);
        }
        if fd == IORING_REGISTER_FILES_SKIP {
            return Ok(());
        }
        let slot = update.offset as usize + index;
        self.empty_slot(slot);
        if fd == -1 {
            return Ok(());
        }
        let own = duplicate(fd)?;
        self.files.fill(slot, own, tag).inspect_err(|_| os::close(own))
    }

    fn empty_slot(&mut self, slot: usize) -> bool {
        let Some(node) = self.files.table.empty(slot) else { return false };
        self.files.hint = slot;
        self.release_node(node);
        true
    }

    /// Puts a descriptor of the engine's own into a slot: `file_index` is one more than the slot's
    /// number, or [`ALLOCATE`]. Returns the slot where it was allocated, 0 where it was named. The
    /// descriptor is the table's from then on, or closed.
    ///
    /// # Errors
    /// `ENXIO` without a table, `EINVAL` for a slot beyond it, `ENFILE` where it is full.
    pub fn install_file(&mut self, own: Fd, file_index: u32) -> Result<usize, Errno> {
        self.install_file_at(own, file_index).inspect_err(|_| self.close_own(own))
    }

    fn install_file_at(&mut self, own: Fd, file_index: u32) -> Result<usize, Errno> {
        if file_index == ALLOCATE {
            let slot = self.files.allocate()?;
            return self.files.fill(slot, own, 0).map(|()| slot);
        }
        if self.files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        let slot = file_index.wrapping_sub(1) as usize;
        if slot >= self.files.table.len() {
            return Err(Errno::EINVAL);
        }
        let hint = self.files.hint;
        let replaced = self.empty_slot(slot);
        self.files.fill(slot, own, 0)?;
        if replaced {
            self.files.hint = hint;
        }
        Ok(0)
    }

    /// Empties a slot of the file table.
    ///
    /// # Errors
    /// `ENXIO` without a table, `EINVAL` for a slot beyond it, `EBADF` where it is empty.
    pub fn remove_file(&mut self, slot: u32) -> Result<usize, Errno> {
        if self.files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        if slot as usize >= self.files.table.len() {
            return Err(Errno::EINVAL);
        }
        if self.empty_slot(slot as usize) { Ok(0) } else { Err(Errno::EBADF) }
    }

    /// `IORING_REGISTER_FILE_ALLOC_RANGE`.
    pub fn set_file_alloc_range(&mut self, address: u64) -> Result<usize, Errno> {
        let range: io_uring_file_index_range = user::read(address)?;
        let end = range.off.checked_add(range.len).ok_or(Errno::EOVERFLOW)?;
        if range.resv != 0 || end as usize > self.files.table.len() {
            return Err(Errno::EINVAL);
        }
        self.files.set_range(range.off as usize, range.len as usize);
        Ok(0)
    }

    /// `IORING_OP_FILES_UPDATE` with `IORING_FILE_INDEX_ALLOC`: every descriptor of the array at
    /// `fds` goes into some empty slot, whose number takes its place there.
    pub fn allocate_files(&mut self, fds: u64, count: u32) -> Result<usize, Errno> {
        if self.files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        for done in 0..count as usize {
            if let Err(errno) = self.allocate_file(fds.wrapping_add(done as u64 * 4)) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    fn allocate_file(&mut self, address: u64) -> Result<(), Errno> {
        let own = duplicate(user::read(address)?)?;
        let slot = self.install_file(own, ALLOCATE)? as u32;
        user::write(address, &slot).inspect_err(|_| _ = self.remove_file(slot))
    }
}
