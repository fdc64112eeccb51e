//! A table by descriptor number, read without a lock. Entries are allocated on demand and never freed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicPtr, Ordering};
use crate::os::{self, Fd};

/// Number of entries per chunk. A simulated program has a hundred descriptors or so, and resetting the table must stay cheap.
const CHUNK: usize = if cfg!(anyring_simulation) { 32 } else { 1024 };
const CHUNKS: usize = if cfg!(anyring_simulation) { 4 } else { 1024 };

/// Grows a ring's table to have the place `index`, which is that of `fd`.
///
/// # Errors
/// `EBADF` if `fd` is not open: a bad number must not cost memory; `ENOMEM`.
pub fn make_room<T: Clone + Default>(table: &mut Vec<T>, index: usize, fd: Fd) -> Result<(), Errno> {
    os::fcntl(fd, os::nr::F_GETFD, 0)?;
    let room = (index + 1).next_power_of_two();
    table.try_reserve(room - table.len()).map_err(|_| Errno::ENOMEM)?;
    table.resize(room, T::default());
    Ok(())
}

/// Entries of type `T`, by descriptor number, allocated in chunks.
pub struct ByDescriptor<T: 'static> {
    /// Pointers to the chunks; null if a chunk is not allocated.
    chunks: [AtomicPtr<T>; CHUNKS],
}

impl<T: Default + Sync> ByDescriptor<T> {
    /// Makes an empty table.
    pub const fn empty() -> ByDescriptor<T> {
        ByDescriptor { chunks: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS] }
    }

    /// Returns the entry of `fd`, if allocated.
    #[inline]
    pub fn get(&self, fd: Fd) -> Option<&'static T> {
        let number = usize::try_from(fd).ok()?;
        self.chunk(number / CHUNK).map(|chunk| &chunk[number % CHUNK])
    }

    #[inline]
    fn chunk(&self, index: usize) -> Option<&'static [T; CHUNK]> {
        // Acquire pairs with the release in `get_or_make`.
        // SAFETY: chunks are never freed, and have `CHUNK` entries.
        unsafe { self.chunks.get(index)?.load(Ordering::Acquire).cast::<[T; CHUNK]>().as_ref() }
    }

    /// Returns the entry of `fd`, allocated if necessary.
    ///
    /// # Errors
    /// `EBADF` if `fd` is negative, `EMFILE` if it is beyond the table.
    pub fn get_or_make(&self, fd: Fd) -> Result<&'static T, Errno> {
        let number = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let place = self.chunks.get(number / CHUNK).ok_or(Errno::EMFILE)?;
        if place.load(Ordering::Acquire).is_null() {
            // Initialised on the heap, entry by entry: the stack may be the program's, and small.
            let fresh: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
            let fresh = Box::into_raw(fresh);
            // Release publishes the chunk to the acquire load in `chunk`.
            let known = place.compare_exchange(
                core::ptr::null_mut(),
                fresh.cast::<T>(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if known.is_err() {
                // SAFETY: another thread was faster; no thread has seen this chunk.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        self.get(fd).ok_or(Errno::EMFILE)
    }

    /// Iterates over all allocated entries, with their descriptor numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Fd, &'static T)> + '_ {
        (0..CHUNKS)
            .filter_map(|index| self.chunk(index).map(|chunk| (index * CHUNK, chunk)))
            .flat_map(|(first, chunk)| (first as Fd..).zip(chunk))
    }

    /// Allocates all entries for a simulation.
    #[cfg(anyring_simulation)]
    pub fn prepare(&self) {
        for chunk in 0..CHUNKS {
            let made = self.get_or_make((chunk * CHUNK) as Fd);
            debug_assert!(made.is_ok(), "chunks are made");
        }
    }
}
