//! A ring's memory, mapped.

use crate::error::What;
use crate::{Engine, Error};
use std::ptr::{self, NonNull};

/// A mapping, unmapped when it is dropped.
pub(super) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory of the process; who accesses it when is its owner's concern.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps what `fd` has at an offset.
    pub(super) fn new(engine: Engine, fd: i32, bytes: usize, offset: u32) -> Result<Mapping, Error> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: new memory, wherever the kernel likes.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, libc::off_t::from(offset)) };
        if address == libc::MAP_FAILED {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return Err(Error::new(engine, What::Map, errno));
        }
        let address = NonNull::new(address.cast()).ok_or(Error::new(engine, What::Map, libc::ENOMEM))?;
        Ok(Mapping { address, bytes })
    }

    /// Keeps it from children.
    pub(super) fn dont_fork(&self) {
        // SAFETY: advice on memory of ours.
        unsafe { libc::madvise(self.address.as_ptr().cast(), self.bytes, libc::MADV_DONTFORK) };
    }

    /// What lies at an offset.
    ///
    /// # Safety
    /// `offset` must be within it.
    pub(super) unsafe fn at<T>(&self, offset: u32) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.address.as_ptr().add(offset as usize).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it without its owner.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
