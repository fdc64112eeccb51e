//! Registered ring descriptors (`IORING_REGISTER_RING_FDS`): sixteen places per thread, by which
//! `enter` and `register` name a ring without a descriptor of the program's.
//!
//! A place holds a duplicate of the engine's own, so the ring lives on when the program closes its
//! descriptor, until the thread ends. Most front ends tell of that. A thread is known by its identity, which another may have
//! after it: its number tells the two apart, and places of threads that ended unheard are cleared a few at a time.

pub(crate) mod register;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
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
        if self.identity.swap(NOBODY, Ordering::Relaxed) != NOBODY {
            GIVEN.fetch_sub(1, Ordering::Relaxed);
        }
        let before = self.places.each_ref().map(|place| place.swap(NONE, Ordering::Relaxed));
        before.into_iter().filter(|&fd| fd != NONE)
    }
}

/// Lists of threads, by their identities; at the head is the one made last.
static LISTS: [AtomicPtr<Thread>; 1024] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 1024];
/// How many threads have places.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
/// The list in which threads that ended unheard are looked for next.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// How many threads are looked at for that at once.
const LOOKS: usize = 16;
/// The lock for giving places to a thread, and for taking them from one that has ended.
static CHANGES: Mutex<()> = Mutex::new(());

/// The lock of the places, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &CHANGES
}

fn list_of(identity: usize) -> &'static AtomicPtr<Thread> {
    // Threads lie pages apart.
    &LISTS[(identity >> 12 ^ identity >> 22) % LISTS.len()]
}

fn threads_in(list: &AtomicPtr<Thread>) -> impl Iterator<Item = &'static Thread> + use<> {
    // Acquire pairs with the release store in `add`.
    // SAFETY: they are leaked and never freed.
    core::iter::successors(unsafe { list.load(Ordering::Acquire).as_ref() }, |thread| thread.before)
}

/// The thread with an identity, which may have ended.
fn find(identity: usize) -> Option<&'static Thread> {
    threads_in(list_of(identity)).find(|thread| thread.identity.load(Ordering::Relaxed) == identity)
}

/// The calling thread's places, once it has any.
#[inline]
fn own() -> Option<&'static Thread> {
    // Relaxed: the thread itself has stored it.
    find(host::thread_identity())
}

/// Gives places to a thread, with the lock held.
fn add(identity: usize, number: i32) -> &'static Thread {
    let list = list_of(identity);
    let unused = threads_in(list).find(|thread| thread.identity.load(Ordering::Relaxed) == NOBODY);
    let thread = unused.unwrap_or_else(|| {
        // SAFETY: as in `threads_in`.
        let before = unsafe { list.load(Ordering::Relaxed).as_ref() };
        let places = [const { AtomicI32::new(NONE) }; PLACES];
        let (identity, number) = (AtomicUsize::new(NOBODY), AtomicI32::new(0));
        let thread = Box::leak(Box::new(Thread { identity, number, places, before }));
        // Release publishes it to the acquire load in `threads_in`.
        list.store(thread, Ordering::Release);
        thread
    });
    thread.number.store(number, Ordering::Relaxed);
    thread.identity.store(identity, Ordering::Relaxed);
    GIVEN.fetch_add(1, Ordering::Relaxed);
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

/// Empties the places of the calling thread, which ends; what was in them is the caller's to let go of.
pub fn clear_own() -> Vec<Fd> {
    let _changes = CHANGES.lock();
    own().map_or_else(Vec::new, |thread| thread.clear().collect())
}

/// Empties the places of threads that have ended: of the one whose identity the calling thread has now, and of some others;
/// what was in them is the caller's to let go of.
pub fn clear_ended() -> Vec<Fd> {
    // A thread that is not counted yet has not ended.
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
    // A registration calls `clear_ended` before: no thread that has ended has this identity.
    let thread = find(identity).unwrap_or_else(|| add(identity, number));
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
    if GIVEN.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    LISTS.iter().flat_map(threads_in).flat_map(Thread::clear).collect()
}
