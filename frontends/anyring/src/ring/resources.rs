//! Registered files and buffers, and provided buffers.

use super::Ring;
use crate::error::ErrorContext;
use crate::fixed::{FixedSlot, Table};
use crate::op::Waker;
use crate::provided::{Buffers, Group};
use crate::registered::{BufferPool, Memory};
use crate::{Error, Fd};
use std::sync::Arc;

impl Ring {
    /// Makes the ring's table of files, with `count` places.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES2`; `EBUSY` if the ring has a table already.
    pub fn register_files(&mut self, count: u32) -> Result<(), Error> {
        self.check_process()?;
        self.low.submitter().register_files_sparse(count)?;
        let table = Table::new(count);
        if let Some(waker) = &self.driver {
            table.wake_by(waker);
        }
        self.table = Some(table);
        Ok(())
    }

    /// Reserves a place in the table for an operation that opens a file.
    ///
    /// # Errors
    /// `ENXIO` if the ring has no table, `ENFILE` if the table is full.
    pub fn slot(&mut self) -> Result<FixedSlot, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        let no_table =
            self.error(ErrorContext::Use("a place in a table of files that was not registered"), libc::ENXIO);
        let full = self.error(ErrorContext::Use("a place in a full table of files"), libc::ENFILE);
        self.table.as_ref().ok_or(no_table)?.take().ok_or(full)
    }

    /// Puts a file into the table, so that operations need not look up its descriptor.
    ///
    /// ```
    /// use anyring::{Fd, Ring, op};
    ///
    /// let mut ring = Ring::new(8)?;
    /// ring.register_files(4)?;
    /// let file = Fd::from(std::fs::File::open("/dev/zero").unwrap());
    /// let fixed = ring.register_file(&file)?;
    /// drop(file);
    /// let (count, _) = ring.run(op::read(&fixed, Vec::with_capacity(16)))?;
    /// assert_eq!(count?, 16);
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`slot`](Ring::slot), and as `IORING_REGISTER_FILES_UPDATE2`; `EBADF` for a file that has no descriptor.
    #[doc(alias = "register_files_update")]
    pub fn register_file(&mut self, file: &Fd) -> Result<Fd, Error> {
        let no_descriptor = self.error(ErrorContext::Register("FILES_UPDATE2"), libc::EBADF);
        let descriptor = file.descriptor().ok_or(no_descriptor)?;
        let mut slot = self.slot()?;
        self.low.submitter().update_files(slot.index(), &[Some(descriptor)], None)?;
        slot.fill();
        Ok(Fd::fixed(slot))
    }

    /// Notes that a driver that sleeps owns this ring: `waker` wakes the driver when a place is to be emptied.
    pub(crate) fn driven_by(&mut self, waker: &Waker) {
        if let Some(table) = &self.table {
            table.wake_by(waker);
        }
        self.driver = Some(waker.clone());
    }

    /// Empties places to which no [`FixedSlot`] refers any more.
    pub(super) fn clean(&mut self) {
        let Some(table) = &self.table else { return };
        for index in table.abandoned() {
            let _ = self.low.submitter().update_files(index, &[None], None);
            table.give_back(index);
        }
    }

    /// Registers `count` buffers of `size` bytes.
    ///
    /// # Errors
    /// As `IORING_REGISTER_BUFFERS`: `ENOMEM` if so much memory may not be locked, `EBUSY` if the ring has
    /// registered buffers already.
    pub fn register_buffers(&mut self, count: u16, size: usize) -> Result<BufferPool, Error> {
        self.check_process()?;
        let memory = Memory::new(count, size);
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { self.low.submitter().register_buffers(&memory.vectors())? };
        self.pool = Some(memory.clone());
        Ok(BufferPool(memory))
    }

    /// Makes a group of `count` buffers, rounded up to a power of two, of `size` bytes each. The engine takes a buffer from the
    /// group for an operation when data is there.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PBUF_RING`.
    #[doc(alias = "register_buf_ring")]
    pub fn buffers(&mut self, count: u16, size: u32) -> Result<Buffers, Error> {
        self.check_process()?;
        let invalid = self.error(ErrorContext::Register("PBUF_RING"), libc::EINVAL);
        let entries = count.checked_next_power_of_two().filter(|_| count > 0 && size > 0).ok_or(invalid)?;
        let place = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        let number = u16::try_from(place).map_err(|_| invalid)?;
        let group = Group::new(number, entries, size)
            .map_err(|error| self.error(ErrorContext::Map, error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        let (memory, submitter) = (group.memory(), self.low.submitter());
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { submitter.register_buffer_ring(memory, entries.into(), number, 0)? };
        if place == self.groups.len() {
            self.groups.push(None);
        }
        self.groups[place] = Some(group.clone());
        Ok(Buffers(group))
    }

    /// True if the group belongs to this ring.
    pub(super) fn has_group(&self, group: &Arc<Group>) -> bool {
        self.groups.iter().flatten().any(|own| Arc::ptr_eq(own, group))
    }

    /// Unregisters a group of buffers: no operation can use it any more, and its memory is freed when `buffers` is dropped.
    ///
    /// ```
    /// # let mut ring = anyring::Ring::new(8)?;
    /// let buffers = ring.buffers(16, 4096)?;
    /// ring.unregister_group(&buffers)?;
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EXDEV` if the group is not this ring's; `EBUSY` while an operation uses the group, a buffer of it is out, or another
    /// [`Buffers`] of it exists. As `IORING_UNREGISTER_PBUF_RING`.
    #[doc(alias = "unregister_buf_ring")]
    pub fn unregister_group(&mut self, buffers: &Buffers) -> Result<(), Error> {
        self.check_process()?;
        if !self.has_group(&buffers.0) {
            return Err(self.error(ErrorContext::Use("use of another ring's buffers"), libc::EXDEV));
        }
        // One reference is the ring's, one the caller's. A request of the group would later find another group of the same number.
        if Arc::strong_count(&buffers.0) > 2 {
            return Err(
                self.error(ErrorContext::Use("the end of a group of buffers that is in use"), libc::EBUSY)
            );
        }
        self.low.submitter().unregister_buffer_ring(buffers.0.id())?;
        self.groups[usize::from(buffers.0.id())] = None;
        Ok(())
    }

    /// Unregisters the registered buffers: others can be registered, and their memory is freed when `pool` is dropped.
    ///
    /// # Errors
    /// `EXDEV` if the buffers are not this ring's; `EBUSY` while one of them is out, or another [`BufferPool`] of them exists. As
    /// `IORING_UNREGISTER_BUFFERS`.
    pub fn unregister_buffers(&mut self, pool: &BufferPool) -> Result<(), Error> {
        self.check_process()?;
        if !self.pool.as_ref().is_some_and(|own| Arc::ptr_eq(own, &pool.0)) {
            return Err(self.error(ErrorContext::Use("use of another ring's buffers"), libc::EXDEV));
        }
        if Arc::strong_count(&pool.0) > 2 {
            return Err(
                self.error(ErrorContext::Use("the end of registered buffers that are in use"), libc::EBUSY)
            );
        }
        self.low.submitter().unregister_buffers()?;
        self.pool = None;
        Ok(())
    }

    /// Unregisters the table of files: another table can be made.
    ///
    /// # Errors
    /// `ENXIO` if the ring has no table; `EBUSY` while a file or an operation has a place of it. As
    /// `IORING_UNREGISTER_FILES`.
    pub fn unregister_files(&mut self) -> Result<(), Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        let in_use = match &self.table {
            None => {
                return Err(
                    self.error(ErrorContext::Use("the end of a table that was not registered"), libc::ENXIO)
                );
            }
            Some(table) => Arc::strong_count(table) > 1,
        };
        if in_use {
            return Err(
                self.error(ErrorContext::Use("the end of a table of files that is in use"), libc::EBUSY)
            );
        }
        self.low.submitter().unregister_files()?;
        self.table = None;
        Ok(())
    }
}
