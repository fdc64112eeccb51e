//! A range of memory that program and engine share: mapped by the engine, or the program's own.

use crate::os::sync::atomic::{AtomicU32, Ordering, fence};

use crate::abi::Errno;
use crate::os::{self, Fd, pages, user};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Mapped by the engine, and there until it unmaps it.
    Engine,
    /// Pages that only the program has mapped. The kernel would pin them; here they may be gone at any time, so every
    /// access is a guarded copy.
    Program,
}

/// A range of shared memory.
pub struct Region {
    start: *mut u8,
    length: usize,
    owner: Owner,
}

// SAFETY: the mapping belongs to the process, and every access through it is atomic or a copy.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a part of a memfd.
    pub fn map(memfd: Fd, offset: u64, length: usize) -> Result<Region, Errno> {
        Ok(Region { start: os::map_shared(memfd, offset, length)?, length, owner: Owner::Engine })
    }

    /// Takes pages that the program gives. Those that it shares anonymously are mapped once more, and are the engine's as the
    /// kernel's are that it pins; `memfd` is any file in memory.
    ///
    /// # Errors
    /// As the kernel's: `EFAULT` where there are none that can be written, `EINVAL` where they do not
    /// begin or end at a page, `EOVERFLOW`.
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

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.length && offset % 4 == 0);
        // SAFETY: within the mapping and aligned, as the callers see to; the engine's lives as long as
        // `self`, and the program's is only reached through copies.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    /// The word at `offset`, with acquire ordering; `otherwise` where the program took its memory away.
    #[inline]
    pub fn load(&self, offset: usize, otherwise: u32) -> u32 {
        if self.owner == Owner::Engine {
            return self.word(offset).load(Ordering::Acquire);
        }
        let value = self.copy(offset).unwrap_or(otherwise);
        fence(Ordering::Acquire);
        value
    }

    /// A copy of what lies at `offset` of the program's memory.
    #[cold]
    #[inline(never)]
    fn copy<T: user::Plain>(&self, offset: usize) -> Option<T> {
        user::read(self.start as u64 + offset as u64).ok()
    }

    /// Stores `value` at `offset` of the program's memory.
    #[cold]
    #[inline(never)]
    fn copy_back<T: user::Plain>(&self, offset: usize, value: T) {
        // Memory that is gone needs no word.
        let _ = user::write(self.start as u64 + offset as u64, &value);
    }

    /// Stores the word at `offset`, with release ordering.
    #[inline]
    pub fn store(&self, offset: usize, value: u32) {
        if self.owner == Owner::Engine {
            return self.word(offset).store(value, Ordering::Release);
        }
        fence(Ordering::Release);
        self.copy_back(offset, value);
    }

    /// A copy of what lies at `offset`, of whole words; `otherwise` where the program took its memory away.
    #[inline(always)]
    pub fn value<T: user::Plain>(&self, offset: usize, otherwise: fn() -> T) -> T {
        debug_assert!(offset + size_of::<T>() <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program {
            self.copy(offset).unwrap_or_else(otherwise)
        } else {
            self.own(offset)
        }
    }

    /// As [`Region::value`]; `None` where the program took its memory away.
    pub fn try_value<T: user::Plain>(&self, offset: usize) -> Option<T> {
        debug_assert!(offset + size_of::<T>() <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program { self.copy(offset) } else { Some(self.own(offset)) }
    }

    #[inline(always)]
    fn own<T: user::Plain>(&self, offset: usize) -> T {
        // SAFETY: within the mapping, as the callers see to; a volatile copy of memory that the program
        // may be changing, of a type that any bytes make a value of.
        unsafe { self.start.add(offset).cast::<T>().read_volatile() }
    }

    /// Stores words at `offset`. A program that reads them meanwhile reads halves of plain integers.
    #[inline(always)]
    pub fn store_words<const N: usize>(&self, offset: usize, words: [u64; N])
    where
        [u64; N]: user::Plain,
    {
        debug_assert!(offset + size_of_val(&words) <= self.length && offset % 8 == 0);
        if self.owner == Owner::Program {
            return self.copy_back(offset, words);
        }
        // SAFETY: within the mapping, as the callers see to.
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
            // SAFETY: mapped with this length by one of the constructors; nothing else of the engine points into it.
            unsafe { os::unmap(self.start, self.length) };
        }
    }
}
