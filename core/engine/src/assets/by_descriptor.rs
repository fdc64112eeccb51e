//! A table by descriptor number, read without a lock. Its entries are made as they are needed and never freed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicPtr, Ordering};
use crate::os::{self, Fd};

/// A simulated program has some hundred descriptors: a walk through the table is not to be longer than what it is about.
const CHUNK: usize = if cfg!(anyring_simulation) { 32 } else { 1024 };
const CHUNKS: usize = if cfg!(anyring_simulation) { 4 } else { 1024 };

/// Makes room in the table of a ring for the place `index`, which is that of `fd`.
///
/// # Errors
/// `EBADF` where that is no descriptor, which must not cost memory; `ENOMEM`.
pub fn make_room<T: Clone + Default>(table: &mut Vec<T>, index: usize, fd: Fd) -> Result<(), Errno> {
    os::fcntl(fd, os::nr::F_GETFD, 0)?;
    let room = (index + 1).next_power_of_two();
    table.try_reserve(room - table.len()).map_err(|_| Errno::ENOMEM)?;
    table.resize(room, T::default());
    Ok(())
}

/// Entries of type `T`, of which there is one for each number once it was asked for.
pub struct ByDescriptor<T: 'static> {
    /// The first entries of the chunks.
    chunks: [AtomicPtr<T>; CHUNKS],
}

impl<T: Default + Sync> ByDescriptor<T> {
    /// An empty table.
    pub const fn empty() -> ByDescriptor<T> {
        ByDescriptor { chunks: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS] }
    }

    /// The entry of `fd`, if it has been made.
    #[inline]
    pub fn get(&self, fd: Fd) -> Option<&'static T> {
        let number = usize::try_from(fd).ok()?;
        self.chunk(number / CHUNK).map(|chunk| &chunk[number % CHUNK])
    }

    #[inline]
    fn chunk(&self, index: usize) -> Option<&'static [T; CHUNK]> {
        // Acquire pairs with the release in `get_or_make`.
        // SAFETY: chunks are leaked, and as long as that.
        unsafe { self.chunks.get(index)?.load(Ordering::Acquire).cast::<[T; CHUNK]>().as_ref() }
    }

    /// The entry of `fd`.
    ///
    /// # Errors
    /// `EBADF` where it is no descriptor, `EMFILE` where the table ends before it.
    pub fn get_or_make(&self, fd: Fd) -> Result<&'static T, Errno> {
        let number = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let place = self.chunks.get(number / CHUNK).ok_or(Errno::EMFILE)?;
        if place.load(Ordering::Acquire).is_null() {
            // Made entry by entry, not on the stack: that may be the program's, and small.
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
                // SAFETY: another thread was faster; nobody has seen ours.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        self.get(fd).ok_or(Errno::EMFILE)
    }

    /// All entries that have been made, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Fd, &'static T)> + '_ {
        (0..CHUNKS)
            .filter_map(|index| self.chunk(index).map(|chunk| (index * CHUNK, chunk)))
            .flat_map(|(first, chunk)| (first as Fd..).zip(chunk))
    }

    /// Makes the entries that a program of a simulation needs.
    #[cfg(anyring_simulation)]
    pub fn prepare(&self) {
        for chunk in 0..CHUNKS {
            let made = self.get_or_make((chunk * CHUNK) as Fd);
            debug_assert!(made.is_ok(), "chunks are made");
        }
    }
}
