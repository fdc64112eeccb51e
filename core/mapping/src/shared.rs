//! A memory file that other processes open by its path.

use alloc::format;
use alloc::string::String;
use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, nr};
use core::ffi::CStr;
use core::ops::Deref;

use crate::Mapping;

/// A memory file, initially zero, that this process has mapped. Other processes of this user can open it by its path until it
/// is dropped.
pub struct SharedFile {
    memory: Mapping,
    file: File,
    maker: i32,
}

struct File(Fd);

impl Drop for File {
    fn drop(&mut self) {
        os::close(self.0);
    }
}

impl SharedFile {
    /// Creates a file of `length` bytes; `/proc` shows it with `name`.
    ///
    /// # Errors
    /// The errors of `memfd_create`, `ftruncate` and `mmap`.
    pub fn new(name: &CStr, length: usize) -> Result<SharedFile, Errno> {
        let file = File(os::memfd_create(name, nr::MFD_CLOEXEC)?);
        os::grow_memfd(file.0, length as u64)?;
        Ok(SharedFile { memory: Mapping::new(file.0, 0, length)?, file, maker: os::getpid() })
    }

    /// Returns the path by which other processes open the file.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", self.maker, self.file.0)
    }
}

impl Deref for SharedFile {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.memory
    }
}
