//! Registered ring descriptors (`IORING_REGISTER_RING_FDS`): 16 slots per thread, called places, by which
//! `enter` and `register` name a ring without a descriptor of the program.
//!
//! A place holds a duplicate of the engine's own, so the ring lives on when the program closes its descriptor, until the thread ends. Most
//! front ends report the end of a thread. A thread is known by its identity, which a later thread may reuse: the thread's number
//! distinguishes the two, and places of threads whose end was not reported are cleared a few at a time.

pub(crate) mod register;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, host};

/// Places per thread.
pub const PLACES: usize = 16;
/// An empty place.
const NONE: Fd = -1;
/// The identity of an entry without a thread.
const NOBODY: usize = 0;

/// The places of one thread, or an unused entry. Only the entry's thread changes the places while the thread lives, so it reads them
/// without a lock. An entry is never freed, because other threads may be traversing the list.
struct Thread {
    identity: AtomicUsize,
    number: AtomicI32,
    places: [AtomicI32; PLACES],
    before: Option<&'static Thread>,
}

impl Thread {
    /// Empties all places; the caller releases the returned descriptors.
    fn clear(&self) -> impl Iterator<Item = Fd> + use<> {
        if self.identity.swap(NOBODY, Ordering::Relaxed) != NOBODY {
            GIVEN.fetch_sub(1, Ordering::Relaxed);
        }
        let before = self.places.each_ref().map(|place| place.swap(NONE, Ordering::Relaxed));
        before.into_iter().filter(|&fd| fd != NONE)
    }
}

/// Lists of threads, by hashes of their identities; the newest entry is first.
static LISTS: [AtomicPtr<Thread>; 1024] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 1024];
/// The number of threads that have places.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
/// The list in which the next search for ended threads begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The number of threads that one search checks.
const LOOKS: usize = 16;
/// The lock for assigning an entry to a thread, and for clearing that of an ended thread.
static CHANGES: Mutex<()> = Mutex::new(());

/// Returns the lock of the places, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &CHANGES
}

fn list_of(identity: usize) -> &'static AtomicPtr<Thread> {
    // Identities of threads differ by whole pages.
    &LISTS[(identity >> 12 ^ identity >> 22) % LISTS.len()]
}

fn threads_in(list: &AtomicPtr<Thread>) -> impl Iterator<Item = &'static Thread> + use<> {
    // Acquire pairs with the release store in `add`.
    // SAFETY: entries are leaked and never freed.
    core::iter::successors(unsafe { list.load(Ordering::Acquire).as_ref() }, |thread| thread.before)
}

/// Returns the entry with an identity; its thread may have ended.
fn find(identity: usize) -> Option<&'static Thread> {
    threads_in(list_of(identity)).find(|thread| thread.identity.load(Ordering::Relaxed) == identity)
}

/// Returns the calling thread's entry, if it has one.
#[inline]
fn own() -> Option<&'static Thread> {
    // Relaxed: the calling thread itself has stored its identity.
    find(host::thread_identity())
}

/// Assigns an entry to a thread. The lock must be held.
fn add(identity: usize, number: i32) -> &'static Thread {
    let list = list_of(identity);
    let unused = threads_in(list).find(|thread| thread.identity.load(Ordering::Relaxed) == NOBODY);
    let thread = unused.unwrap_or_else(|| {
        // SAFETY: as in `threads_in`.
        let before = unsafe { list.load(Ordering::Relaxed).as_ref() };
        let places = [const { AtomicI32::new(NONE) }; PLACES];
        let (identity, number) = (AtomicUsize::new(NOBODY), AtomicI32::new(0));
        let thread = Box::leak(Box::new(Thread { identity, number, places, before }));
        // Release: pairs with the acquire load in `threads_in`.
        list.store(thread, Ordering::Release);
        thread
    });
    thread.number.store(number, Ordering::Relaxed);
    thread.identity.store(identity, Ordering::Relaxed);
    GIVEN.fetch_add(1, Ordering::Relaxed);
    thread
}

/// Returns the descriptor in the calling thread's place `index`.
///
/// # Errors
/// `EINVAL` if there is no such place, `EBADF` if it is empty.
#[inline]
pub fn resolve(index: Fd) -> Result<Fd, Errno> {
    let index = usize::try_from(index).ok().filter(|&index| index < PLACES).ok_or(Errno::EINVAL)?;
    let fd = own().map_or(NONE, |thread| thread.places[index].load(Ordering::Relaxed));
    if fd == NONE { Err(Errno::EBADF) } else { Ok(fd) }
}

/// Empties the places of the calling thread, which ends; the caller releases the returned descriptors.
pub fn clear_own() -> Vec<Fd> {
    let _changes = CHANGES.lock();
    own().map_or_else(Vec::new, |thread| thread.clear().collect())
}

/// Empties the places of ended threads: of the one whose identity the calling thread reuses, and of some others. The caller
/// releases the returned descriptors.
pub fn clear_ended() -> Vec<Fd> {
    // A thread that is not counted yet is still registering, so it has not ended.
    if GIVEN.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let (identity, number) = (host::thread_identity(), os::gettid());
    let _changes = CHANGES.lock();
    let before = find(identity).filter(|thread| thread.number.load(Ordering::Relaxed) != number);
    let mut cleared: Vec<Fd> = before.into_iter().flat_map(Thread::clear).collect();
    let mut looks = 0;
    let first = NEXT.load(Ordering::Relaxed);
    for index in (first..first + LISTS.len()).map(|index| index % LISTS.len()) {
        if looks >= LOOKS {
            NEXT.store(index, Ordering::Relaxed);
            break;
        }
        for thread in threads_in(&LISTS[index]) {
            if thread.identity.load(Ordering::Relaxed) != NOBODY {
                looks += 1;
                if !os::thread_lives(thread.number.load(Ordering::Relaxed)) {
                    cleared.extend(thread.clear());
                }
            }
        }
    }
    cleared
}

/// Empties a place of the calling thread; the caller releases the returned descriptor.
pub fn take(index: usize) -> Option<Fd> {
    own().map(|thread| thread.places[index].swap(NONE, Ordering::Relaxed)).filter(|&fd| fd != NONE)
}

/// Puts a descriptor into the first empty place of this range of the calling thread.
///
/// # Errors
/// `EBUSY` if none is empty.
pub fn put(own: Fd, places: core::ops::Range<usize>) -> Result<u32, Errno> {
    let (identity, number) = (host::thread_identity(), os::gettid());
    let _changes = CHANGES.lock();
    // A registration calls `clear_ended` first: no ended thread has this identity.
    let thread = find(identity).unwrap_or_else(|| add(identity, number));
    let is_empty = |&place: &usize| thread.places[place].load(Ordering::Relaxed) == NONE;
    let place = places.into_iter().find(is_empty).ok_or(Errno::EBUSY)?;
    thread.places[place].store(own, Ordering::Relaxed);
    Ok(place as u32)
}

/// Clears the parent's places in a child after `fork`; the caller releases the returned descriptors.
///
/// # Safety
/// No other thread of this process may use the list.
#[inline]
pub unsafe fn forked() -> Vec<Fd> {
    // SAFETY: passed on to the caller.
    unsafe { CHANGES.reset() };
    if GIVEN.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    LISTS.iter().flat_map(threads_in).flat_map(Thread::clear).collect()
}
