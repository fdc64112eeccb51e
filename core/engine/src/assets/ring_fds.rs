//! Registered ring descriptors (`IORING_REGISTER_RING_FDS`): sixteen places per thread, by which
//! `enter` and `register` name a ring without a descriptor of the program's.
//!
//! A place holds a duplicate of the engine's own, so the ring lives on when the program closes its
//! descriptor. A thread is known by its identity, which another may have after it: places of threads
//! that are gone are cleared before any is given out.

use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::io_uring::io_uring_rsrc_update;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, host, user};
use crate::ring::{descriptors, registry};

/// Places per thread.
const PLACES: usize = 16;
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
    /// Empties all places.
    fn clear(&self) -> [Fd; PLACES] {
        self.identity.store(NOBODY, Ordering::Relaxed);
        self.places.each_ref().map(|place| place.swap(NONE, Ordering::Relaxed))
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

/// Lets go of descriptors, without a lock held.
fn release(fds: impl IntoIterator<Item = Fd>) {
    for fd in fds.into_iter().filter(|&fd| fd != NONE) {
        descriptors::closed(fd);
        os::close(fd);
    }
}

/// Clears the places of threads that have ended.
pub fn sweep() {
    let mut gone = Vec::new();
    {
        let _changes = CHANGES.lock();
        for thread in threads() {
            let given = thread.identity.load(Ordering::Relaxed) != NOBODY;
            if given && !os::thread_lives(thread.number.load(Ordering::Relaxed)) {
                gone.extend(thread.clear());
            }
        }
    }
    release(gone);
}

/// `IORING_REGISTER_RING_FDS`: the count of descriptors registered.
///
/// # Errors
/// Of the first, where it failed.
pub fn register(address: u64, count: u32) -> Result<usize, Errno> {
    sweep();
    for_each_update(address, count, |place, update| {
        let offset = register_one(update)?;
        let done = io_uring_rsrc_update { offset, resv: 0, data: update.data };
        user::write(place, &done).inspect_err(|_| release(take(offset as usize)))
    })
}

/// Gives the first empty place to a ring that is to have no descriptor of the program's
/// (`IORING_SETUP_REGISTERED_FD_ONLY`); `fd` becomes the place's.
///
/// # Errors
/// `EBUSY` where all are taken.
pub fn register_own(fd: Fd) -> Result<Fd, Errno> {
    let own = os::duplicate(fd)?;
    descriptors::duplicated(fd, own);
    release([fd]);
    put(own, 0..PLACES).map(|place| place as Fd).inspect_err(|_| release([own]))
}

/// `IORING_UNREGISTER_RING_FDS`: the count of places cleared.
///
/// # Errors
/// Of the first, where it failed.
pub fn unregister(address: u64, count: u32) -> Result<usize, Errno> {
    for_each_update(address, count, |_, update| {
        if update.resv != 0 || update.data != 0 || update.offset as usize >= PLACES {
            return Err(Errno::EINVAL);
        }
        release(take(update.offset as usize));
        Ok(())
    })
}

fn for_each_update(
    address: u64,
    count: u32,
    mut body: impl FnMut(u64, &io_uring_rsrc_update) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    if count == 0 || count as usize > PLACES {
        return Err(Errno::EINVAL);
    }
    for done in 0..count as usize {
        let place = address.wrapping_add((done * size_of::<io_uring_rsrc_update>()) as u64);
        let result = user::read(place).and_then(|update| body(place, &update));
        if let Err(errno) = result {
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
    }
    Ok(count as usize)
}

/// Empties a place of the calling thread.
fn take(index: usize) -> Option<Fd> {
    own().map(|thread| thread.places[index].swap(NONE, Ordering::Relaxed))
}

fn register_one(update: &io_uring_rsrc_update) -> Result<u32, Errno> {
    if update.resv != 0 {
        return Err(Errno::EINVAL);
    }
    let places = match update.offset {
        u32::MAX => 0..PLACES,
        offset if (offset as usize) < PLACES => offset as usize..offset as usize + 1,
        _ => return Err(Errno::EINVAL),
    };
    let fd = update.data as Fd;
    if registry::get(fd).is_none() {
        return Err(registry::no_ring(fd));
    }
    let own = os::duplicate(fd)?;
    descriptors::duplicated(fd, own);
    let placed = put(own, places);
    if placed.is_err() {
        release([own]);
    }
    placed
}

/// Puts a descriptor into the first empty one of these places.
fn put(own: Fd, places: core::ops::Range<usize>) -> Result<u32, Errno> {
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

/// In a child after `fork`: it has none of the parent's.
///
/// # Safety
/// No other thread of this process may use the list, and the rings must have been seen to.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { CHANGES.reset() };
    release(threads().flat_map(Thread::clear));
}
