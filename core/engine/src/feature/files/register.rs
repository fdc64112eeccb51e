//! Registration of files, and what a ring does with its file table.

use linux_raw_sys::general::RLIMIT_NOFILE;
use linux_raw_sys::io_uring::{IORING_REGISTER_FILES_SKIP, io_uring_file_index_range, io_uring_rsrc_update2};

use crate::abi::Errno;
use crate::assets::notes;
use crate::assets::table::NodeIndex;
use crate::calls::register::call::{Register, given, short_update, tagged, update};
use crate::feature::files::ALLOCATE;
use crate::os::{self, Fd, user};
use crate::queue::Cqe;
use crate::request::FileHold;
use crate::ring::drive::reactor;
use crate::ring::{Core, Lent, registry};

/// `IORING_REGISTER_FILES`.
pub fn register_files(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    given(call)?;
    core.register_files(call.argument, call.count, 0)
}

/// `IORING_REGISTER_FILES2`.
pub fn register_files2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let given = tagged(call)?;
    core.register_files(given.data, given.nr, given.tags)
}

/// `IORING_UNREGISTER_FILES`.
///
/// # Errors
/// `ENXIO` without a table.
pub fn unregister_files(core: &mut Core, _: &Register) -> Result<usize, Errno> {
    if core.resources().files.table.is_empty() {
        return Err(Errno::ENXIO);
    }
    core.dissolve_files();
    Ok(0)
}

/// `IORING_REGISTER_FILES_UPDATE`.
pub fn update_files(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    core.update_files(&short_update(call)?, call.count)
}

/// `IORING_REGISTER_FILES_UPDATE2`.
pub fn update_files2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let update = update(call)?;
    core.update_files(&update, update.nr)
}

/// `IORING_REGISTER_FILE_ALLOC_RANGE`.
pub fn set_file_alloc_range(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let range: io_uring_file_index_range = user::read(call.argument)?;
    let end = range.off.checked_add(range.len).ok_or(Errno::EOVERFLOW)?;
    if range.resv != 0 {
        return Err(Errno::EINVAL);
    }
    core.resources_mut().files.allocate_from(range.off as usize..end as usize).map(|()| 0)
}

const MAX_FILES: u32 = 1 << 20;

/// Duplicates a descriptor of the program for the table.
fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    if registry::is_ring(fd) {
        return Err(Errno::EBADF);
    }
    let own = notes::duplicate(fd)?;
    if os::is_open(own) {
        return Ok(own);
    }
    // Opened with `O_PATH`.
    os::close(own);
    Err(Errno::EBADF)
}

fn open_files_limit() -> u64 {
    os::limit(RLIMIT_NOFILE, None).map_or(u64::MAX, |limit| limit.rlim_cur)
}

impl Core {
    /// Releases a hold of a file; the last release closes the file.
    fn release_node(&mut self, node: NodeIndex) {
        if let Some(gone) = self.resources_mut().files.release(node) {
            self.close_own(gone.value);
            if gone.tag != 0 {
                self.post_unrequested(Cqe { user_data: gone.tag, ..Cqe::default() });
            }
        }
    }

    /// `IORING_REGISTER_FILES(2)`: `fds` and `tags` are addresses of the program, or 0.
    pub(in crate::feature::files) fn register_files(
        &mut self,
        fds: u64,
        count: u32,
        tags: u64,
    ) -> Result<usize, Errno> {
        if !self.resources().files.table.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if count > MAX_FILES || u64::from(count) > open_files_limit() {
            return Err(Errno::EMFILE);
        }
        self.resources_mut().files.table.create(count as usize)?;
        for slot in 0..count as usize {
            if let Err(errno) = self.register_file(slot, fds, tags) {
                self.resources_mut().files.table.clear_tags();
                self.dissolve_files();
                return Err(errno);
            }
        }
        self.resources_mut().files.allocate_anywhere();
        reactor::hear_of_close(self);
        Ok(0)
    }

    fn register_file(&mut self, slot: usize, fds: u64, tags: u64) -> Result<(), Errno> {
        let tag: u64 = user::element(tags, slot)?.unwrap_or(0);
        let fd: Fd = user::element(fds, slot)?.unwrap_or(-1);
        if fd == -1 {
            return if tag == 0 { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let own = duplicate(fd)?;
        self.resources_mut().files.fill(slot, own, tag).inspect_err(|_| os::close(own))
    }

    fn dissolve_files(&mut self) {
        for node in self.resources_mut().files.dissolve().into_iter().rev() {
            self.release_node(node);
        }
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
        self.resources_mut().files.fill(slot, own, tag).inspect_err(|_| os::close(own))
    }

    fn empty_slot(&mut self, slot: usize) -> bool {
        let Some(node) = self.resources_mut().files.empty(slot) else { return false };
        self.release_node(node);
        true
    }

    fn allocate_file(&mut self, address: u64) -> Result<(), Errno> {
        let own = duplicate(user::read(address)?)?;
        let slot = self.install_file(own, ALLOCATE)? as u32;
        user::write(address, &slot).inspect_err(|_| _ = self.remove_file(slot))
    }
}

impl Lent {
    /// Lets go of a request's file; the last hold of a file closes it.
    #[inline]
    pub fn let_go(&mut self, file: FileHold) {
        match file {
            FileHold::None | FileHold::Plain(_) => {}
            FileHold::Owned(fd) => self.close_own(fd),
            FileHold::Kept(node, _) | FileHold::Fixed(node, _) => self.core_mut().release_node(node),
        }
    }

    /// Puts a descriptor of the engine's own into a slot: `file_index` is one more than the slot's number, or
    /// [`ALLOCATE`]. Returns the slot's number if it was allocated, 0 if the slot was named. The table owns
    /// the descriptor from then on; if this fails, the descriptor is closed.
    ///
    /// # Errors
    /// `ENXIO` without a table, `EINVAL` for a slot beyond it, `ENFILE` if the table is full.
    pub fn install_file(&mut self, own: Fd, file_index: u32) -> Result<usize, Errno> {
        let core = self.core_mut();
        let slot = file_index.wrapping_sub(1);
        let installed = if file_index == ALLOCATE {
            core.resources_mut().files.fill_any(own)
        } else if let Err(errno) = core.resources().files.expect_slot(slot) {
            Err(errno)
        } else {
            let (replaced, filled) = core.resources_mut().files.replace(slot as usize, own);
            replaced.into_iter().for_each(|node| core.release_node(node));
            filled.map(|()| 0)
        };
        installed.inspect_err(|_| core.close_own(own))
    }

    /// `IORING_REGISTER_FILES_UPDATE(2)` and `IORING_OP_FILES_UPDATE`; returns how many slots were updated.
    pub fn update_files(&mut self, update: &io_uring_rsrc_update2, count: u32) -> Result<usize, Errno> {
        let core = self.core_mut();
        core.resources().files.table.expect_slots(update.offset, count)?;
        for done in 0..count as usize {
            if let Err(errno) = core.update_file(update, done) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    /// `IORING_OP_FILES_UPDATE` with `IORING_FILE_INDEX_ALLOC`: puts every descriptor of the array at `fds`
    /// into some empty slot, and overwrites the descriptor in the array with the slot's number.
    pub fn allocate_files(&mut self, fds: u64, count: u32) -> Result<usize, Errno> {
        let core = self.core_mut();
        if core.resources().files.table.is_empty() {
            return Err(Errno::ENXIO);
        }
        for done in 0..count as usize {
            if let Err(errno) = core.allocate_file(fds.wrapping_add(done as u64 * 4)) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    /// Empties a slot of the file table.
    ///
    /// # Errors
    /// `ENXIO` without a table, `EINVAL` for a slot beyond it, `EBADF` if the slot is empty.
    pub fn remove_file(&mut self, slot: u32) -> Result<usize, Errno> {
        let core = self.core_mut();
        core.resources().files.expect_slot(slot)?;
        if core.empty_slot(slot as usize) { Ok(0) } else { Err(Errno::EBADF) }
    }

    /// Puts a file that was just opened at `low` into a slot, as [`Lent::install_file`] does. The file is fresh. `status`: the status flags
    /// that it is to have, if it has `O_NONBLOCK` beside them.
    ///
    /// # Errors
    /// The errors of [`Lent::install_file`].
    pub fn install_fresh(&mut self, low: Fd, status: Option<u32>, file_index: u32) -> Result<usize, Errno> {
        let core = self.core_mut();
        os::keep_low(low);
        notes::renew(low);
        let result = core.install_file(low, file_index)?;
        let slot = if file_index == ALLOCATE { result } else { file_index as usize - 1 };
        core.resources_mut().files.note_fresh(slot, status);
        Ok(result)
    }
}
