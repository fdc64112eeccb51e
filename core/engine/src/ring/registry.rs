//! The registry of rings, by their descriptors.
//!
//! A table from descriptor number to ring, which every `enter` reads without a lock. Rings are never freed, only emptied and used again, so
//! a stale read finds a ring. `users` keeps a place from being given to another ring while a thread uses it.
//!
//! A thread that uses a ring by [`get`] adds to `users`, then loads the slot once more. A thread that ends a ring empties its slots; then
//! [`vacant`] loads `users`. Each thread stores in one place and loads the other, and one of the two must see the other's store. Acquire
//! and release do not ensure that (an Arm processor may do the load first), so these four accesses are SeqCst.
//!
//! The kernel's reference counting shows when a ring is gone: the program's descriptor is a reopened description of the memfd, and inotify
//! reports when its last reference (descriptors, duplicates, mappings, in this process and in others) is closed. If a front end sees
//! `close`, or inotify cannot be had, only the known descriptors count.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::by_descriptor::ByDescriptor;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::{self, Interested};
use crate::feature::ring_fds;
use crate::os::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::ring::{Core, Ring, watches};

/// The ring that a descriptor number stands for.
struct Slot(AtomicPtr<Ring>);

impl Default for Slot {
    fn default() -> Slot {
        Slot(AtomicPtr::new(core::ptr::null_mut()))
    }
}

impl Slot {
    #[inline]
    fn ring(&self) -> Option<&'static Ring> {
        // Acquire pairs with the exchange in `replace`: the ring's core is there.
        // SAFETY: rings are leaked and never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces the slot's ring by `ring`, or by none if that is null, if the slot's ring is `known`. Returns whether it did.
    fn replace(&self, known: Option<&'static Ring>, ring: *mut Ring) -> bool {
        let known = known.map_or(core::ptr::null_mut(), |known| core::ptr::from_ref(known).cast_mut());
        // SeqCst: comes before the load of `users` in `vacant`; in `get`, the load of the slot comes after the addition to it.
        // Acquire pairs with another thread's change of the slot, which then comes before the load of `users`, too.
        self.0.compare_exchange(known, ring, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// Empties the slot, if its ring is `ring`.
    fn empty_of(&self, ring: &'static Ring) {
        self.replace(Some(ring), core::ptr::null_mut());
    }
}

static TABLE: ByDescriptor<Slot> = ByDescriptor::empty();

static VACANT: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// All places, by their numbers.
static NUMBERED: ByDescriptor<Slot> = ByDescriptor::empty();

/// The place made last, the head of the list of all places.
static PLACES: AtomicPtr<Ring> = AtomicPtr::new(core::ptr::null_mut());

/// A ring in use by the calling thread.
pub struct InUse(&'static Ring);

impl core::ops::Deref for InUse {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        self.0
    }
}

impl InUse {
    /// Returns the ring itself, which is never freed.
    pub fn ring(&self) -> &'static Ring {
        self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Release pairs with the load in `vacant`, before the place is used again.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

/// Returns the ring behind a descriptor.
pub fn get(fd: Fd) -> Option<InUse> {
    loop {
        let found = known(fd)?;
        // SeqCst, both: either `vacant` sees this addition, or the load below sees that the slot was changed before.
        found.ring.users.fetch_add(1, Ordering::SeqCst);
        let in_use = InUse(found.ring);
        if core::ptr::eq(found.slot.0.load(Ordering::SeqCst), found.ring) {
            return Some(in_use);
        }
    }
}

/// Calls `asks` with the ring behind a descriptor, or behind a `registered` ring number; returns its answer.
pub fn look<R>(fd: Fd, registered: bool, asks: impl FnOnce(&mut Core) -> R) -> Option<R> {
    let fd = if registered { ring_fds::resolve(fd).ok()? } else { fd };
    let ring = get(fd)?;
    let mut guard = ring.lock();
    guard.as_mut().map(asks)
}

/// A ring that a descriptor stood for when it was looked up.
pub struct Found {
    slot: &'static Slot,
    /// The ring.
    pub ring: &'static Ring,
}

impl Found {
    /// True if the descriptor still stands for the ring. Called with the ring locked: a thread that changes the slot holds the lock before
    /// or after the change.
    #[inline]
    pub fn stands(&self) -> bool {
        self.slot.ring().is_some_and(|ring| core::ptr::eq(ring, self.ring))
    }

    /// True if the descriptor still is the ring's file. If not, it no longer stands for the ring.
    #[cold]
    pub fn is_file(&self, fd: Fd) -> bool {
        match os::identity(fd).map(|identity| [identity.device, identity.inode]) {
            Ok(file) if is_file_of(self.ring, file) => return true,
            Ok(_) | Err(Errno::EBADF) => {}
            // A filter of the program refuses the system call.
            Err(_) => return true,
        }
        // In use, so that the place is not given to another ring meanwhile.
        if let Some(_ring) = get(fd).filter(|ring| core::ptr::eq(ring.ring(), self.ring)) {
            self.slot.empty_of(self.ring);
            watches::number_lost(self.ring, self.ring.serial());
        }
        false
    }
}

/// Returns the ring that a descriptor stands for at the moment.
#[inline]
pub(super) fn known(fd: Fd) -> Option<Found> {
    let slot = TABLE.get(fd)?;
    slot.ring().map(|ring| Found { slot, ring })
}

/// True if `file` is the device and inode of a ring's memory file, or of its stand-in: many files have those of the latter.
pub(super) fn is_file_of(ring: &Ring, file: [u64; 2]) -> bool {
    is(&ring.file, file) || is(&ring.shown, file)
}

/// True if `words` hold this device and inode.
pub(super) fn is(words: &[AtomicU64; 2], file: [u64; 2]) -> bool {
    words.each_ref().map(|word| word.load(Ordering::Relaxed)) == file
}

/// Returns the error for a descriptor that is no ring.
pub fn no_ring(fd: Fd) -> Errno {
    if os::fcntl(fd, os::nr::F_GETFD, 0).is_ok() { Errno::EOPNOTSUPP } else { Errno::EBADF }
}

/// True if the descriptor is a ring. False if the number was closed without the engine's knowledge, and now is another file's.
#[inline]
pub fn is_ring(fd: Fd) -> bool {
    known(fd).is_some_and(|found| found.is_file(fd))
}

/// Returns the facts about a descriptor to be read or written: known ones, or those that one system call shows.
///
/// # Errors
/// `EBADF` if there is no such descriptor; `EINVAL` for a ring, which can be neither read nor written.
#[inline]
pub fn transfer_kind(fd: Fd) -> Result<Kind, Errno> {
    let kind = kinds::noted(fd);
    if kind.has(Kind::KNOWN) { Ok(kind) } else { first_look(fd) }
}

#[cold]
fn first_look(fd: Fd) -> Result<Kind, Errno> {
    if is_ring(fd) { Err(Errno::EINVAL) } else { kinds::look(fd) }
}

/// Lets `fd` stand for `ring`; returns the ring it stood for before.
pub fn set(fd: Fd, ring: &'static Ring) -> Result<Option<InUse>, Errno> {
    notes::forget_note(fd);
    Ok(replace(fd, TABLE.get_or_make(fd)?, core::ptr::from_ref(ring).cast_mut()))
}

/// Lets `fd` stand for no ring; returns the ring it stood for.
pub fn clear(fd: Fd) -> Option<InUse> {
    replace(fd, TABLE.get(fd)?, core::ptr::null_mut())
}

/// Lets `fd`, which has this slot, stand for another ring. The returned ring is in use until the caller drops it: the ring may end at any
/// time, and its place be given to another ring.
fn replace(fd: Fd, slot: &Slot, ring: *mut Ring) -> Option<InUse> {
    loop {
        let before = get(fd);
        if slot.replace(before.as_ref().map(InUse::ring), ring) {
            return before;
        }
    }
}

/// Lets no descriptor stand for `ring` any more. Descriptors that were given to another ring meanwhile stay with the other ring.
pub fn clear_all(ring: &'static Ring) {
    for (_, slot) in slots_of(ring) {
        slot.empty_of(ring);
    }
}

/// True if one of the descriptors that stand for `ring` still is its memory file or its stand-in.
pub fn has_descriptor(ring: &'static Ring) -> bool {
    descriptor(ring).is_some()
}

/// Returns a descriptor that stands for `ring` and still is its memory file or its stand-in.
pub fn descriptor(ring: &'static Ring) -> Option<Fd> {
    slots_of(ring).map(|(fd, _)| fd).find(|&fd| {
        os::identity(fd).is_ok_and(|identity| is_file_of(ring, [identity.device, identity.inode]))
    })
}

/// Returns the numbers that stand for `ring`, with their slots.
fn slots_of(ring: &'static Ring) -> impl Iterator<Item = (Fd, &'static Slot)> {
    // Acquire pairs with the change of a slot that is left out here: the change comes before what the caller does next.
    TABLE.iter().filter(move |(_, slot)| slot.ring().is_some_and(|other| core::ptr::eq(other, ring)))
}

static LIVE: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// Calls `body` for all places that hold or held a ring. The list is copied: `body` may take any lock.
pub fn for_each_live(mut body: impl FnMut(&'static Ring)) {
    for ring in live() {
        body(ring);
    }
}

/// Returns all places that hold or held a ring.
pub fn live() -> Vec<&'static Ring> {
    LIVE.lock().clone()
}

/// True if there is any ring.
pub fn has_live() -> bool {
    !LIVE.lock().is_empty()
}

/// Calls `body` for the rings that keep something about a descriptor. `body` may take any lock.
pub fn for_each(interested: Interested, mut body: impl FnMut(&'static Ring)) {
    match interested {
        Interested::Nobody => {}
        Interested::One(place) => match numbered(place) {
            Some(ring) => body(ring),
            None => for_each_live(body),
        },
        Interested::Several => for_each_live(body),
    }
}

/// Returns the place with a number; `None` if there are more places than the table holds.
fn numbered(number: u32) -> Option<&'static Ring> {
    NUMBERED.get(Fd::try_from(number).ok()?)?.ring()
}

/// Locks the registry for a `fork`, if there are no other rings than `rings`. Returns whether it did.
pub fn hold_if_live_are(rings: &[&'static Ring]) -> bool {
    VACANT.hold();
    let live = LIVE.lock();
    let same = live.len() == rings.len() && live.iter().zip(rings).all(|(a, b)| core::ptr::eq(*a, *b));
    if same {
        core::mem::forget(live);
    } else {
        // SAFETY: just held.
        unsafe { VACANT.release() };
    }
    same
}

/// Unlocks the registry after a `fork`.
///
/// # Safety
/// The calling thread must hold the locks.
pub unsafe fn release() {
    // SAFETY: passed on to the caller.
    unsafe {
        LIVE.release();
        VACANT.release();
    }
}

/// Returns a place for a new ring, and the ring's serial number.
pub fn vacant() -> (&'static Ring, u64) {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut vacant = VACANT.lock();
    // Pairs with the release in `InUse::drop`. SeqCst: comes after the change of the slots that led here, see `get`.
    let unused = vacant.iter().position(|ring| ring.users.load(Ordering::SeqCst) == 0);
    let ring = match unused {
        Some(index) => vacant.swap_remove(index),
        None => new_place(),
    };
    LIVE.lock().push(ring);
    (ring, serial)
}

/// Makes a place. Called with the list of vacant places locked.
fn new_place() -> &'static Ring {
    let before = PLACES.load(Ordering::Relaxed);
    // SAFETY: places are leaked and never freed.
    let before = unsafe { before.as_ref() };
    let number = before.map_or(0, |before| before.number() + 1);
    let place: &'static Ring = Box::leak(Box::new(Ring::vacant(number, before)));
    if let Ok(slot) = NUMBERED.get_or_make(number as Fd) {
        // Release pairs with the acquire load in `Slot::ring`.
        slot.0.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
    }
    // Release pairs with the acquire load in `places`.
    PLACES.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
    place
}

/// Returns all places that were ever made. Takes no lock.
pub fn places() -> impl Iterator<Item = &'static Ring> {
    // Acquire pairs with the release store in `new_place`.
    // SAFETY: places are leaked and never freed.
    let last = unsafe { PLACES.load(Ordering::Acquire).as_ref() };
    core::iter::successors(last, |place| place.before)
}

/// Adds a place whose core is gone to the vacant ones.
pub fn give_back(ring: &'static Ring) {
    LIVE.lock().retain(|&live| !core::ptr::eq(live, ring));
    VACANT.lock().push(ring);
}

/// Resets the registry in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the table.
#[inline]
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe {
        VACANT.reset();
        LIVE.reset();
        // At the `fork`, another thread may have locked an empty place, for a `fork` of its own: here it does not exist to unlock the
        // place.
        VACANT.lock().iter().for_each(|ring| ring.forked());
    }
}

/// Allocates what a process allocates once, so that the first schedule of a simulation is like any other.
#[cfg(anyring_simulation)]
pub fn prepare() {
    /// More rings than any program has.
    const RINGS: usize = 16;
    TABLE.prepare();
    notes::prepare();
    let mut vacant = VACANT.lock();
    vacant.extend((0..RINGS).map(|_| new_place()));
}

/// Forgets all descriptors, and the rings that all places held, for the next schedule of a simulation.
#[cfg(anyring_simulation)]
pub fn reset() {
    debug_assert!(LIVE.lock().is_empty(), "no ring is left");
    notes::reset();
    SERIAL.store(1, Ordering::Relaxed);
    TABLE.iter().for_each(|(_, slot)| slot.0.store(core::ptr::null_mut(), Ordering::Relaxed));
    let mut vacant = VACANT.lock();
    // The list is in the order in which the rings ended.
    vacant.sort_unstable_by_key(|ring| ring.number());
    vacant.iter().for_each(|ring| ring.forget());
}

#[cfg(test)]
mod tests {
    use super::{forked, give_back, vacant};

    /// A child that used such a place for a new ring waited for the place's lock for ever.
    #[test]
    fn a_place_that_somebody_looks_into_is_free_in_a_child() {
        let (ring, _) = vacant();
        give_back(ring);
        core::mem::forget(ring.lock());
        // SAFETY: the child has one thread, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                forked();
                libc::_exit(i32::from(ring.try_lock().is_none()));
            }
        }
        let mut status = 0;
        // SAFETY: waits for our own child; the lock was left held above.
        unsafe {
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            ring.release_after_fork();
        }
        assert_eq!(status, 0);
    }
}
