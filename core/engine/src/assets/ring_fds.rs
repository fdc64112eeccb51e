//! Registered ring descriptors (`IORING_REGISTER_RING_FDS`): sixteen places per thread, by which
//! `enter` and `register` name a ring without a descriptor of the program's.
//!
//! A place holds a duplicate of the engine's own, so the ring lives on when the program closes its
//! descriptor. A thread is known by its identity, which another may have after it: places of threads
//! that are gone are cleared before any is given out.

use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, host};

/// Places per thread.
pub const PLACES: usize = 16;
/// An empty one.
const NONE: Fd = -1;
/// The identity of no thread.
const NOBODY: usize = 0;

/// The places of one thread, or of nobody. Only their thread changes them while it lives, so it reads them without
/// a lock. Never freed, for others look through the list meanwhile.
struct Thread {
    identity: AtomicUsize,
    number: AtomicI32,
    places: [AtomicI32; PLACES],
    before: Option<&'static Thread>,
}

impl Thread {
    /// Empties all places; what was in them is the caller's to let go of.
    fn clear(&self) -> impl Iterator<Item = Fd> + use<> {
        self.identity.store(NOBODY, Ordering::Relaxed);
        let before = self.places.each_ref().map(|place| place.swap(NONE, Ordering::Relaxed));
        before.into_iter().filter(|&fd| fd != NONE)
    }
}

/// The one made last.
static LAST: AtomicPtr<Thread> = AtomicPtr::new(core::ptr::null_mut());
/// Who gives places to a thread, or takes them from one that has ended, holds this.
static CHANGES: Mutex<()> = Mutex::new(());

/// The lock of the places, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &CHANGES
}

fn threads() -> impl Iterator<Item = &'static Thread> {
    // Acquire pairs with the release store in `add`.
    // SAFETY: they are leaked and never freed.
    core::iter::successors(unsafe { LAST.load(Ordering::Acquire).as_ref() }, |thread| thread.before)
}

/// The calling thread's places, once it has any.
#[inline]
fn own() -> Option<&'static Thread> {
    let identity = host::thread_identity();
    // Relaxed: the thread itself has stored it.
    threads().find(|thread| thread.identity.load(Ordering::Relaxed) == identity)
}

/// Gives places to a thread, with the lock held.
fn add(identity: usize, number: i32) -> &'static Thread {
    let unused = threads().find(|thread| thread.identity.load(Ordering::Relaxed) == NOBODY);
    let thread = unused.unwrap_or_else(|| {
        // SAFETY: as in `threads`.
        let before = unsafe { LAST.load(Ordering::Relaxed).as_ref() };
        let places = [const { AtomicI32::new(NONE) }; PLACES];
        let (identity, number) = (AtomicUsize::new(NOBODY), AtomicI32::new(0));
        let thread = Box::leak(Box::new(Thread { identity, number, places, before }));
        // Release publishes it to the acquire load in `threads`.
        LAST.store(thread, Ordering::Release);
        thread
    });
    thread.number.store(number, Ordering::Relaxed);
    thread.identity.store(identity, Ordering::Relaxed);
    thread
}

/// The descriptor behind the calling thread's place `index`.
///
/// # Errors
/// `EINVAL` where there is no such place, `EBADF` where it is empty.
#[inline]
pub fn resolve(index: Fd) -> Result<Fd, Errno> {
    let index = usize::try_from(index).ok().filter(|&index| index < PLACES).ok_or(Errno::EINVAL)?;
    let fd = own().map_or(NONE, |thread| thread.places[index].load(Ordering::Relaxed));
    if fd == NONE { Err(Errno::EBADF) } else { Ok(fd) }
}

/// Empties the places of threads that have ended; what was in them is the caller's to let go of.
pub fn clear_ended() -> Vec<Fd> {
    let _changes = CHANGES.lock();
    let ended = |thread: &&Thread| {
        let given = thread.identity.load(Ordering::Relaxed) != NOBODY;
        given && !os::thread_lives(thread.number.load(Ordering::Relaxed))
    };
    threads().filter(ended).flat_map(Thread::clear).collect()
}

/// Empties a place of the calling thread; what was in it is the caller's to let go of.
pub fn take(index: usize) -> Option<Fd> {
    own().map(|thread| thread.places[index].swap(NONE, Ordering::Relaxed)).filter(|&fd| fd != NONE)
}

/// Puts a descriptor into the first empty one of these places of the calling thread.
///
/// # Errors
/// `EBUSY` where none is empty.
pub fn put(own: Fd, places: core::ops::Range<usize>) -> Result<u32, Errno> {
    let (identity, number) = (host::thread_identity(), os::gettid());
    let _changes = CHANGES.lock();
    let is_it = |thread: &&Thread| {
        thread.identity.load(Ordering::Relaxed) == identity && thread.number.load(Ordering::Relaxed) == number
    };
    let thread = threads().find(is_it).unwrap_or_else(|| add(identity, number));
    let is_empty = |&place: &usize| thread.places[place].load(Ordering::Relaxed) == NONE;
    let place = places.into_iter().find(is_empty).ok_or(Errno::EBUSY)?;
    thread.places[place].store(own, Ordering::Relaxed);
    Ok(place as u32)
}

/// In a child after `fork`: it has none of the parent's; what was in the places is the caller's to let go of.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() -> Vec<Fd> {
    // SAFETY: passed on to the caller.
    unsafe { CHANGES.reset() };
    threads().flat_map(Thread::clear).collect()
}
