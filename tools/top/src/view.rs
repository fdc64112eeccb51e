//! A read-only mapping of another process's ring, for the duration of one look.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Mapped memory, of which the first [`View::limit`] bytes are known to exist.
pub struct View {
    address: NonNull<u8>,
    length: usize,
    limit: usize,
}

impl View {
    /// Maps `length` bytes of `fd` at `offset`. A byte may be read only after [`View::reaches`] has found that it exists.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<View> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever there is room.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                flags,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match NonNull::new(address.cast::<u8>()) {
            Some(address) if !std::ptr::eq(address.as_ptr().cast(), libc::MAP_FAILED) => {
                Ok(View { address, length, limit: 0 })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// True if the mapping has `bytes` bytes that can be read. They stay readable: the kernel maps all pages of a ring at
    /// once, and never removes them from a mapping; a memory file is sealed against becoming shorter.
    pub fn reaches(&mut self, bytes: usize) -> bool {
        if bytes > self.limit
            && bytes <= self.length
            && is_there(self.address.as_ptr().wrapping_add(bytes - 1))
        {
            self.limit = bytes;
        }
        bytes <= self.limit
    }

    /// Reads the word at an offset. Everything that its writer wrote before it is visible after this read; everything
    /// that this thread has read before was read before the word.
    pub fn word(&self, offset: usize) -> u32 {
        assert!(offset + size_of::<u32>() <= self.limit && offset % size_of::<u32>() == 0);
        // Keeps reads of entries before the read of the word that says whether the entries were intact.
        fence(Ordering::Acquire);
        // SAFETY: within the mapping, aligned, and loaded only, which memory that cannot be written allows.
        unsafe { AtomicU32::from_ptr(self.address.as_ptr().add(offset).cast()) }.load(Ordering::Acquire)
    }

    /// Reads `N` 64-bit words at an offset; another process may be writing them.
    pub fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        assert!(offset + size_of::<[u64; N]>() <= self.limit && offset % size_of::<u64>() == 0);
        // SAFETY: within the mapping, and aligned.
        std::array::from_fn(|place| unsafe {
            self.address.as_ptr().add(offset).cast::<u64>().add(place).read_volatile()
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped when this value was created, and is used only through it.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// True if a byte can be read: the kernel tries to copy it, which fails where the processor would fault.
fn is_there(address: *const u8) -> bool {
    static COPIES: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let copies = COPIES.get_or_init(|| {
        // SAFETY: a new file in memory.
        let fd = unsafe { libc::memfd_create(c"anyring-top".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a fresh descriptor, which nobody else has.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    });
    // SAFETY: reads a byte, or fails with EFAULT.
    copies
        .as_ref()
        .is_some_and(|copies| unsafe { libc::pwrite(copies.as_raw_fd(), address.cast(), 1, 0) } == 1)
}
