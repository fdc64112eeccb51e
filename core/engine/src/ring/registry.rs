//! Which descriptors are rings.
//!
//! A table from descriptor number to ring that is read on every `enter` without a lock. Rings are
//! never freed, only emptied and used again, so a stale read finds a ring; `users` keeps it from
//! being emptied while somebody is inside.
//!
//! The kernel's own reference counting tells when a ring is gone: the program's descriptor is a
//! reopened description of the memfd, and inotify reports when its last reference (descriptors,
//! duplicates, mappings, in this process and in others) is closed. Where a front end sees `close`, or
//! inotify cannot be had, the descriptor alone counts.

use crate::os::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::ring::Ring;

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// What is known of one descriptor number.
struct Slot {
    /// The ring it stands for.
    ring: AtomicPtr<Ring>,
    /// How many rings know its readiness.
    interest: AtomicU32,
    /// How often the engine itself was given the number for a new file while a ring knew it.
    renewals: AtomicU32,
    /// What [`crate::assets::kinds`] remembers of it; zero for nothing.
    note: AtomicU16,
}

impl Slot {
    const fn vacant() -> Slot {
        Slot {
            ring: AtomicPtr::new(core::ptr::null_mut()),
            interest: AtomicU32::new(0),
            renewals: AtomicU32::new(0),
            note: AtomicU16::new(0),
        }
    }
}

type Chunk = [Slot; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];
static VACANT: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());
static SERIAL: AtomicU64 = AtomicU64::new(1);
/// The place made last, from which a list leads to all.
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
    /// The ring itself, which is never freed.
    pub fn ring(&self) -> &'static Ring {
        self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Release pairs with the acquire load of whoever wants to use the place again.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

fn slot(fd: Fd) -> Option<&'static Slot> {
    let number = usize::try_from(fd).ok()?;
    // Acquire pairs with the release store in `slot_or_new`.
    let chunk = TABLE.get(number / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: chunks are leaked boxes.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[number % CHUNK])
}

fn slot_or_new(fd: Fd) -> Result<&'static Slot, Errno> {
    let number = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
    let place = TABLE.get(number / CHUNK).ok_or(Errno::EMFILE)?;
    if place.load(Ordering::Acquire).is_null() {
        let fresh: Box<Chunk> = Box::new([const { Slot::vacant() }; CHUNK]);
        let fresh = Box::into_raw(fresh);
        // Release publishes the empty chunk to the acquire load in `slot`.
        if place.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            // SAFETY: another thread was faster; nobody has seen ours.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    slot(fd).ok_or(Errno::EMFILE)
}

/// The ring behind a descriptor.
pub fn get(fd: Fd) -> Option<InUse> {
    loop {
        let ring = known(fd)?;
        ring.users.fetch_add(1, Ordering::Acquire);
        let in_use = InUse(ring);
        if stands_for(fd, ring) {
            return Some(in_use);
        }
    }
}

/// The ring that a descriptor stands for, if it does so still when the ring is locked ([`stands_for`]): whoever changes
/// that holds the lock before or after.
#[inline]
pub fn find(fd: Fd) -> Option<&'static Ring> {
    known(fd).or_else(|| recognise(fd).map(|in_use| in_use.ring()))
}

/// Does a descriptor stand for `ring`?
#[inline]
pub fn stands_for(fd: Fd, ring: &'static Ring) -> bool {
    known(fd).is_some_and(|known| core::ptr::eq(known, ring))
}

/// The ring that a descriptor stands for at the moment.
#[inline]
fn known(fd: Fd) -> Option<&'static Ring> {
    // Acquire pairs with the release store in `set`: the ring's core is there.
    // SAFETY: rings are leaked and never freed.
    unsafe { slot(fd)?.ring.load(Ordering::Acquire).as_ref() }
}

/// Is this a file's device and inode?
fn is(words: &[AtomicU64; 2], file: [u64; 2]) -> bool {
    words.each_ref().map(|word| word.load(Ordering::Relaxed)) == file
}

/// The ring behind a descriptor that nobody told of: one duplicated by a system call of the program's
/// own, or one that came back over a socket. It counts as one more of the ring's descriptors.
#[cold]
pub fn recognise(fd: Fd) -> Option<InUse> {
    let identity = os::identity(fd).ok()?;
    let file = [identity.device, identity.inode];
    let is_it = |ring: &&Ring| {
        is(&ring.file, file)
            // Many files have this one's identity.
            || is(&ring.shown, file)
                && ring.lock().as_ref().and_then(|core| core.observers.stand_in()).is_some_and(|shown| {
                    os::compare(shown, fd) == Ok(true)
                })
    };
    let ring = live().into_iter().find(is_it)?;
    ring.lock().as_mut().filter(|core| !core.life.is_closing())?.life.gain_descriptor();
    if let Ok(Some(before)) = set(fd, ring) {
        crate::ring::lifetime::descriptor_gone(before);
    }
    get(fd)
}

/// Why a descriptor is no ring.
pub fn no_ring(fd: Fd) -> Errno {
    if os::fcntl(fd, os::nr::F_GETFD, 0).is_ok() { Errno::EOPNOTSUPP } else { Errno::EBADF }
}

/// Is the descriptor a ring? A number that was closed where nobody saw it, and now is another file's,
/// is not.
pub fn is_ring(fd: Fd) -> bool {
    let Some(slot) = slot(fd) else { return false };
    let known = slot.ring.load(Ordering::Acquire);
    // SAFETY: rings are leaked and never freed.
    let Some(ring) = (unsafe { known.as_ref() }) else { return false };
    let file = os::identity(fd).map(|identity| [identity.device, identity.inode]);
    if file.is_ok_and(|file| is(&ring.file, file) || is(&ring.shown, file)) {
        return true;
    }
    // What is left of that ring ends when inotify tells of it.
    let none = core::ptr::null_mut();
    let _ = slot.ring.compare_exchange(known, none, Ordering::AcqRel, Ordering::Relaxed);
    false
}

/// A ring starts to keep something about `fd`, and wants to hear of its end.
pub fn add_interest(fd: Fd) -> Result<(), Errno> {
    slot_or_new(fd)?.interest.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A ring forgets `fd`.
pub fn drop_interest(fd: Fd) {
    if let Some(slot) = slot(fd) {
        slot.interest.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine was given `fd` for a new file (by `accept`, `socket`, `open`, ...): what any ring keeps
/// about the number is about a file that is gone. Rings find out when they next look.
pub fn renew(fd: Fd) {
    let Some(slot) = slot(fd) else { return };
    slot.note.store(0, Ordering::Relaxed);
    if slot.interest.load(Ordering::Relaxed) > 0 {
        slot.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes whenever [`renew`] told of a new file at a number that a ring keeps something about.
pub fn renewals(fd: Fd) -> u32 {
    slot(fd).map_or(0, |slot| slot.renewals.load(Ordering::Relaxed))
}

/// The counter behind [`renewals`], for a ring that keeps something about `fd`.
pub fn renewal_counter(fd: Fd) -> Option<&'static AtomicU32> {
    slot(fd).map(|slot| &slot.renewals)
}

/// Does any ring keep something about `fd`?
pub fn has_interest(fd: Fd) -> bool {
    slot(fd).is_some_and(|slot| slot.interest.load(Ordering::Relaxed) > 0)
}

/// What is remembered of `fd`.
pub fn note(fd: Fd) -> u16 {
    // Relaxed, as everywhere: a note is a hint.
    slot(fd).map_or(0, |slot| slot.note.load(Ordering::Relaxed))
}

/// Remembers something of a descriptor that exists.
pub fn set_note(fd: Fd, note: u16) {
    if let Ok(slot) = slot_or_new(fd) {
        slot.note.store(note, Ordering::Relaxed);
    }
}

/// Remembers nothing of `fd` any more.
pub fn forget_note(fd: Fd) {
    if let Some(slot) = slot(fd) {
        slot.note.store(0, Ordering::Relaxed);
    }
}

/// Lets `fd` stand for `ring`; returns the ring it stood for before.
pub fn set(fd: Fd, ring: &'static Ring) -> Result<Option<&'static Ring>, Errno> {
    forget_note(fd);
    let before = slot_or_new(fd)?.ring.swap(core::ptr::from_ref(ring).cast_mut(), Ordering::AcqRel);
    // SAFETY: rings are leaked and never freed.
    Ok(unsafe { before.as_ref() })
}

/// Lets `fd` stand for no ring; returns the ring it stood for.
pub fn clear(fd: Fd) -> Option<&'static Ring> {
    let before = slot(fd)?.ring.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: rings are leaked and never freed.
    unsafe { before.as_ref() }
}

/// Lets no descriptor stand for `ring` any more. One that was given to another ring meanwhile is that
/// one's.
pub fn clear_all(ring: &'static Ring) {
    let known = core::ptr::from_ref(ring).cast_mut();
    for (_, slot) in slots_of(ring) {
        let none = core::ptr::null_mut();
        let _ = slot.ring.compare_exchange(known, none, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Is one of the descriptors that are known to stand for `ring` its memory file still, or what shows its readiness?
pub fn has_descriptor(ring: &'static Ring) -> bool {
    slots_of(ring).any(|(fd, _)| {
        os::identity(fd).is_ok_and(|identity| {
            let file = [identity.device, identity.inode];
            is(&ring.file, file) || is(&ring.shown, file)
        })
    })
}

/// The numbers that stand for `ring`, with their slots.
fn slots_of(ring: &'static Ring) -> impl Iterator<Item = (Fd, &'static Slot)> {
    TABLE
        .iter()
        .enumerate()
        .filter_map(|(index, chunk)| {
            // SAFETY: chunks are leaked boxes.
            Some((index * CHUNK, unsafe { chunk.load(Ordering::Acquire).as_ref() }?))
        })
        .flat_map(|(first, chunk)| chunk.iter().enumerate().map(move |(at, slot)| ((first + at) as Fd, slot)))
        .filter(move |(_, slot)| core::ptr::eq(slot.ring.load(Ordering::Relaxed), ring))
}

static LIVE: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// All places that hold or held a ring. The list is copied: `body` may take any lock.
pub fn for_each_live(mut body: impl FnMut(&'static Ring)) {
    for ring in live() {
        body(ring);
    }
}

/// All places that hold or held a ring.
pub fn live() -> Vec<&'static Ring> {
    LIVE.lock().clone()
}

/// For a `fork`: takes the locks here, if there are no other rings than these.
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

/// Lets go of them.
///
/// # Safety
/// The calling thread must hold them.
pub unsafe fn release() {
    // SAFETY: passed on to the caller.
    unsafe {
        LIVE.release();
        VACANT.release();
    }
}

/// A place for a new ring, and its serial number.
pub fn vacant() -> (&'static Ring, u64) {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut vacant = VACANT.lock();
    // Acquire pairs with the release in `InUse::drop`.
    let unused = vacant.iter().position(|ring| ring.users.load(Ordering::Acquire) == 0);
    let ring = match unused {
        Some(index) => vacant.swap_remove(index),
        None => new_place(),
    };
    LIVE.lock().push(ring);
    (ring, serial)
}

/// Called with the list of vacant places locked.
fn new_place() -> &'static Ring {
    let before = PLACES.load(Ordering::Relaxed);
    // SAFETY: places are leaked and never freed.
    let place: &'static Ring = Box::leak(Box::new(Ring::vacant(unsafe { before.as_ref() })));
    // Release pairs with the acquire load in `places`.
    PLACES.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
    place
}

/// All places that there ever were. Takes no lock.
pub fn places() -> impl Iterator<Item = &'static Ring> {
    // Acquire pairs with the release store in `new_place`.
    // SAFETY: places are leaked and never freed.
    let last = unsafe { PLACES.load(Ordering::Acquire).as_ref() };
    core::iter::successors(last, |place| place.before)
}

/// Gives a place back whose core is gone.
pub fn give_back(ring: &'static Ring) {
    LIVE.lock().retain(|&live| !core::ptr::eq(live, ring));
    VACANT.lock().push(ring);
}

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the table.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe {
        VACANT.reset();
        LIVE.reset();
        // Whoever looked into an empty place at that moment, a thread that was about to fork itself, is not here
        // to let go of it.
        VACANT.lock().iter().for_each(|ring| ring.forked());
    }
}

/// Makes now what is made once in a process, so that the first schedule of a simulation is like any other.
#[cfg(anyring_simulation)]
pub fn prepare() {
    /// More than any program has.
    const RINGS: usize = 16;
    for chunk in 0..4 {
        let made = slot_or_new((chunk * CHUNK) as Fd);
        debug_assert!(made.is_ok(), "chunks are made");
    }
    let mut vacant = VACANT.lock();
    vacant.extend((0..RINGS).map(|_| new_place()));
}

/// For the next schedule of a simulation: nothing is remembered of any descriptor.
#[cfg(anyring_simulation)]
pub fn reset() {
    debug_assert!(LIVE.lock().is_empty(), "no ring is left");
    for chunk in &TABLE {
        // SAFETY: chunks are leaked boxes.
        let Some(chunk) = (unsafe { chunk.load(Ordering::Relaxed).as_ref() }) else { continue };
        for slot in chunk {
            debug_assert!(
                slot.interest.load(Ordering::Relaxed) == 0,
                "nobody keeps anything about a descriptor"
            );
            if slot.renewals.load(Ordering::Relaxed) != 0 {
                slot.renewals.store(0, Ordering::Relaxed);
            }
            if slot.note.load(Ordering::Relaxed) != 0 {
                slot.note.store(0, Ordering::Relaxed);
            }
        }
    }
    SERIAL.store(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{forked, give_back, vacant};

    /// A child that took such a place for a new ring waited for its lock for ever.
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
