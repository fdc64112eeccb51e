//! A range of memory that program and engine share: mapped by the engine, or pages of the program.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

use crate::{Fd, pages, user};
use anyring_abi::Errno;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Mapped by the engine; valid until it is unmapped on drop.
    Engine,
    /// Pages that only the program has mapped. The kernel would pin them; here the program may unmap them at any
    /// time, so every access is a guarded copy.
    Program,
}

/// A range of shared memory.
pub struct Region {
    start: *mut u8,
    length: usize,
    owner: Owner,
}

// SAFETY: the mapping belongs to the process, and every access is atomic, volatile or a copy.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a part of a memfd.
    pub fn map(memfd: Fd, offset: u64, length: usize) -> Result<Region, Errno> {
        Ok(Region { start: crate::map_shared(memfd, offset, length)?, length, owner: Owner::Engine })
    }

    /// Takes pages of the program. Pages of anonymous shared memory are mapped a second time, and so stay valid like pages that
    /// the kernel pins; `memfd` is any memfd of the engine.
    ///
    /// # Errors
    /// As the kernel: `EFAULT` if the pages are not writable, `EINVAL` if the range is not
    /// page-aligned, `EOVERFLOW`.
    pub fn of_program(address: u64, length: u64, memfd: Fd) -> Result<Region, Errno> {
        if address == 0 {
            return Err(Errno::EFAULT);
        }
        if (address | length) % pages::page_bytes() as u64 != 0 {
            return Err(Errno::EINVAL);
        }
        address.checked_add(length).ok_or(Errno::EOVERFLOW)?;
        pages::take(address, length)?;
        let (start, owner) = match pages::map_again(address, length, memfd) {
            Some(again) => (again, Owner::Engine),
            None => (address as *mut u8, Owner::Program),
        };
        Ok(Region { start, length: length as usize, owner })
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.length && offset % 4 == 0);
        // SAFETY: callers pass an aligned offset within the mapping; the engine's mapping lives as
        // long as `self`, and the program's is not accessed here.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    /// Loads the word at `offset` with acquire ordering. Returns `otherwise` if the program has unmapped the memory.
    #[inline]
    pub fn load(&self, offset: usize, otherwise: u32) -> u32 {
        if self.owner == Owner::Engine {
            return self.word(offset).load(Ordering::Acquire);
        }
        let value = self.copy(offset).unwrap_or(otherwise);
        fence(Ordering::Acquire);
        value
    }

    /// Copies a value at `offset` out of the program's pages.
    #[cold]
    #[inline(never)]
    fn copy<T: user::Plain>(&self, offset: usize) -> Option<T> {
        user::read(self.start as u64 + offset as u64).ok()
    }

    /// Copies `value` to `offset` of the program's pages.
    #[cold]
    #[inline(never)]
    fn copy_back<T: user::Plain>(&self, offset: usize, value: T) {
        // If the memory is gone, there is no reader.
        let _ = user::write(self.start as u64 + offset as u64, &value);
    }

    /// Stores the word at `offset` with release ordering.
    #[inline]
    pub fn store(&self, offset: usize, value: u32) {
        if self.owner == Owner::Engine {
            return self.word(offset).store(value, Ordering::Release);
        }
        fence(Ordering::Release);
        self.copy_back(offset, value);
    }

    /// Copies a value of whole words at `offset`. Returns `otherwise` if the program has unmapped the memory.
    #[inline(always)]
    pub fn value<T: user::Plain>(&self, offset: usize, otherwise: fn() -> T) -> T {
        debug_assert!(offset + size_of::<T>() <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program {
            self.copy(offset).unwrap_or_else(otherwise)
        } else {
            self.own(offset)
        }
    }

    /// Copies a value as [`Region::value`]; `None` if the program has unmapped the memory.
    pub fn try_value<T: user::Plain>(&self, offset: usize) -> Option<T> {
        debug_assert!(offset + size_of::<T>() <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program { self.copy(offset) } else { Some(self.own(offset)) }
    }

    #[inline(always)]
    fn own<T: user::Plain>(&self, offset: usize) -> T {
        // SAFETY: callers pass an offset within the mapping; a volatile copy of memory that the program
        // may be changing, of a type for which every bit pattern is valid.
        unsafe { self.start.add(offset).cast::<T>().read_volatile() }
    }

    /// Stores words at `offset`. A program that reads them at the same time may see some old and some new words.
    #[inline(always)]
    pub fn store_words<const N: usize>(&self, offset: usize, words: [u64; N])
    where
        [u64; N]: user::Plain,
    {
        debug_assert!(offset + size_of_val(&words) <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program {
            return self.copy_back(offset, words);
        }
        // SAFETY: callers pass an offset within the mapping.
        let place = unsafe { self.start.add(offset) }.cast::<u64>();
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { place.add(index).write_volatile(word) };
        }
    }

    /// Fills the first `length` bytes with zeros.
    pub fn clear(&self, length: usize) {
        for offset in (0..length).step_by(8) {
            self.store_words(offset, [0]);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owner == Owner::Engine {
            // SAFETY: mapped with this length by a constructor; no pointer of the engine into it remains.
            unsafe { crate::unmap(self.start, self.length) };
        }
    }
}
