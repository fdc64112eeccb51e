//! Files and buffers that the engine knows.

use super::Ring;
use crate::error::ErrorContext;
use crate::fixed::{FixedSlot, Table};
use crate::op::Waker;
use crate::provided::{Buffers, Group};
use crate::registered::{BufferPool, Memory};
use crate::{Error, Fd};

impl Ring {
    /// Makes the ring's table of files, with `count` places.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES2`; `EBUSY` where the ring has one.
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

    /// A place in the table for an operation that opens a file.
    ///
    /// # Errors
    /// `ENXIO` where the ring has no table, `ENFILE` where it is full.
    pub fn slot(&mut self) -> Result<FixedSlot, Error> {
        self.check_process()?;
        self.close_chain();
        self.clean();
        let no_table =
            self.error(ErrorContext::Use("a place in a table of files that was not registered"), libc::ENXIO);
        let full = self.error(ErrorContext::Use("a place in a full table of files"), libc::ENFILE);
        self.table.as_ref().ok_or(no_table)?.take().ok_or(full)
    }

    /// Puts a file into the table: operations need not look its descriptor up.
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

    /// A driver that sleeps has this ring: `waker` wakes the driver where a place is to be emptied.
    pub(crate) fn driven_by(&mut self, waker: &Waker) {
        if let Some(table) = &self.table {
            table.wake_by(waker);
        }
        self.driver = Some(waker.clone());
    }

    /// Empties places whose files nobody names any more.
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
    /// As `IORING_REGISTER_BUFFERS`: `ENOMEM` where so much memory may not be locked, `EBUSY` where the ring has
    /// registered buffers.
    pub fn register_buffers(&mut self, count: u16, size: usize) -> Result<BufferPool, Error> {
        self.check_process()?;
        let memory = Memory::new(count, size);
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { self.low.submitter().register_buffers(&memory.vectors())? };
        self.pool = Some(memory.clone());
        Ok(BufferPool(memory))
    }

    /// Makes a group of `count` buffers, rounded up to a power of two, of `size` bytes, for operations that take one
    /// when there is something for it.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PBUF_RING`.
    #[doc(alias = "register_buf_ring")]
    pub fn buffers(&mut self, count: u16, size: u32) -> Result<Buffers, Error> {
        self.check_process()?;
        let invalid = self.error(ErrorContext::Register("PBUF_RING"), libc::EINVAL);
        let entries = count.checked_next_power_of_two().filter(|_| count > 0 && size > 0).ok_or(invalid)?;
        let number = u16::try_from(self.groups.len()).map_err(|_| invalid)?;
        let group = Group::new(number, entries, size)
            .map_err(|error| self.error(ErrorContext::Map, error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        let (memory, submitter) = (group.memory(), self.low.submitter());
        // SAFETY: the ring keeps the memory until it is closed.
        unsafe { submitter.register_buffer_ring(memory, entries.into(), number, 0)? };
        self.groups.push(group.clone());
        Ok(Buffers(group))
    }
}
