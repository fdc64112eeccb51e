//! Notes on descriptor numbers: which rings keep state about a number, which numbers the engine itself has
//! got for a new file meanwhile, and the facts of [`crate::assets::kinds`].
//!
//! A ring that keeps state about a number holds an [`Interest`] in it. Usually it is the only such ring, and a close of
//! the descriptor has to look at that ring only, however many rings there are.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::by_descriptor::ByDescriptor;
use crate::os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::os::{self, Fd, host};

/// The notes on one number.
#[derive(Debug)]
struct Entry {
    /// In the lower half the number of [`Interest`]s; in the upper half the number of the ring that holds them all, or
    /// [`SEVERAL`]. Without interests the upper half has no meaning.
    interest: AtomicU64,
    /// How often the engine itself got the number for a new file while a ring held an interest.
    renewals: AtomicU32,
    /// The facts of [`crate::assets::kinds`] about the number's file; zero for none.
    note: AtomicU32,
    /// The value of [`HANDED_OVER`] when the number was last free or was given to a file that the engine made; [`OLD`] if
    /// unknown.
    free_at: AtomicU32,
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            interest: AtomicU64::new(0),
            renewals: AtomicU32::new(0),
            note: AtomicU32::new(0),
            free_at: AtomicU32::new(0),
        }
    }
}

impl Entry {
    /// Notes that the number is free now, or belongs to a file that the engine has just made.
    fn note_freed(&self) {
        self.free_at.store(HANDED_OVER.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

/// Stands for a ring's number if several rings hold an [`Interest`].
const SEVERAL: u32 = u32::MAX;

static TABLE: ByDescriptor<Entry> = ByDescriptor::empty();

/// The entry of all numbers beyond [`TABLE`].
static BEYOND: Entry = Entry::new();

/// The rings that keep state about a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interested {
    /// No ring.
    Nobody,
    /// The ring with this number in the registry.
    One(u32),
    /// Rings with several numbers.
    Several,
}

/// Held while a ring keeps state about a number; the close of the descriptor then is reported to the ring.
#[derive(Debug)]
pub struct Interest {
    entry: &'static Entry,
}

impl Interest {
    /// Registers an interest of the ring with the registry number `place` in `fd`.
    pub fn new(fd: Fd, place: u32) -> Interest {
        let entry = TABLE.get_or_make(fd).unwrap_or(&BEYOND);
        let mut known = entry.interest.load(Ordering::Relaxed);
        loop {
            let alone = count_of(known) == 0 || place_of(known) == place;
            let more = packed(if alone { place } else { SEVERAL }, count_of(known) + 1);
            // Relaxed: a thread that closes the descriptor without having synchronized with this call races with it.
            match entry.interest.compare_exchange(known, more, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Interest { entry },
                Err(now) => known = now,
            }
        }
    }

    /// Returns a count that [`renew`] changes when the number gets a new file.
    #[inline]
    pub fn renewals(&self) -> u32 {
        self.entry.renewals.load(Ordering::Relaxed)
    }
}

impl Drop for Interest {
    #[inline]
    fn drop(&mut self) {
        let before = self.entry.interest.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(count_of(before) > 0, "an interest ends once");
    }
}

fn count_of(interest: u64) -> u32 {
    interest as u32
}

fn place_of(interest: u64) -> u32 {
    (interest >> 32) as u32
}

fn packed(place: u32, count: u32) -> u64 {
    u64::from(place) << 32 | u64::from(count)
}

/// Returns the rings that keep state about `fd`.
pub fn interested(fd: Fd) -> Interested {
    let interest = TABLE.get(fd).unwrap_or(&BEYOND).interest.load(Ordering::Relaxed);
    match (count_of(interest), place_of(interest)) {
        (0, _) => Interested::Nobody,
        (_, SEVERAL) => Interested::Several,
        (_, place) => Interested::One(place),
    }
}

/// Notes that the engine got `fd` for a new file (by `accept`, `socket`, `open`, ...): the state that
/// rings keep is about a closed file. Rings notice at their next look.
pub fn renew(fd: Fd) {
    // `BEYOND` stands for many numbers and must not be renewed because of one.
    let Some(entry) = TABLE.get(fd) else { return };
    entry.note.store(0, Ordering::Relaxed);
    entry.note_freed();
    if count_of(entry.interest.load(Ordering::Relaxed)) > 0 {
        entry.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often this process may have passed descriptors to other processes: by a child, or in a message.
static HANDED_OVER: AtomicU32 = AtomicU32::new(0);

/// Marks a file that may be as old as the process, or that was received from another process.
const OLD: u32 = u32::MAX;

/// Number of duplications of descriptors so far, modulo 2^32.
static DUPLICATIONS: AtomicU32 = AtomicU32::new(0);

/// The newest duplicates, in a ring buffer: in the upper half the count of duplications, in the lower half the descriptor.
static NEWEST: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn newest(count: u32) -> &'static AtomicU64 {
    &NEWEST[count as usize % NEWEST.len()]
}

/// Marks all open files as possibly shared with the parent, before the first ring.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // Relaxed: a ring that another thread makes at the same time has no files yet. Simulated processes have no parent.
    if cfg!(anyring_simulation) || !host::sees_handovers() || BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    match os::own_descriptors() {
        Ok(descriptors) => descriptors.into_iter().for_each(received),
        // Any file may be shared.
        Err(_) => HANDED_OVER.store(OLD, Ordering::Relaxed),
    }
}

/// Notes that the file of `fd` was received from another process, which may still have it.
pub fn received(fd: Fd) {
    if let Ok(entry) = TABLE.get_or_make(fd) {
        entry.free_at.store(OLD, Ordering::Relaxed);
    }
}

/// Notes that the process is about to pass descriptors to another process, or has just done so.
pub fn hands_over() {
    let mut times = HANDED_OVER.load(Ordering::Relaxed);
    // When the count has reached its maximum, every file counts as shared.
    while times < OLD {
        match HANDED_OVER.compare_exchange(times, times + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => times = now,
        }
    }
}

/// Returns how often the process has passed descriptors to others; `None` if not observed or no longer countable.
pub fn times_handed_over() -> Option<u32> {
    Some(HANDED_OVER.load(Ordering::Relaxed)).filter(|&times| times < OLD && host::sees_handovers())
}

/// Returns [`times_handed_over`] if the file of `fd` is newer than the last handover: no other process has the file as long as the
/// number stays the same.
pub fn unshared(fd: Fd) -> Option<u32> {
    let times = times_handed_over()?;
    let free_at = TABLE.get_or_make(fd).ok()?.free_at.load(Ordering::Relaxed);
    (times == free_at).then_some(times)
}

/// Notes that `new` is a duplicate of `old`: its file is as old.
pub fn duplicated(old: Fd, new: Fd) {
    let free_at = TABLE.get(old).map_or(0, |entry| entry.free_at.load(Ordering::Relaxed));
    // A number beyond the table stands for a file of unknown age.
    if host::sees_handovers()
        && let Ok(entry) = TABLE.get_or_make(new)
    {
        entry.free_at.store(free_at, Ordering::Relaxed);
    }
    // Release pairs with the acquire in `duplications`.
    let count = DUPLICATIONS.fetch_add(1, Ordering::Release).wrapping_add(1);
    newest(count).store(u64::from(count) << 32 | u64::from(new as u32), Ordering::Relaxed);
}

/// Returns the duplicates made since [`duplications`] was `seen`, and updates `seen`. `None` if there are too many, or if another
/// thread is just noting one. A scan of all descriptors needs this: it may have missed a file whose number changed meanwhile.
pub fn duplicates_since(seen: &mut u32) -> Option<Vec<Fd>> {
    let before = core::mem::replace(seen, duplications());
    let count = seen.wrapping_sub(before);
    let each = (1..=count).map(|more| {
        let count = before.wrapping_add(more);
        let known = newest(count).load(Ordering::Relaxed);
        ((known >> 32) as u32 == count).then_some(known as u32 as Fd)
    });
    if count as usize <= NEWEST.len() { each.collect() } else { None }
}

/// Returns how often a descriptor was duplicated.
pub fn duplications() -> u32 {
    DUPLICATIONS.load(Ordering::Acquire)
}

/// Duplicates a descriptor for the engine, close-on-exec.
///
/// # Errors
/// Errors of `F_DUPFD_CLOEXEC`.
pub fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    os::duplicate(fd).inspect(|&own| {
        renew(own);
        duplicated(fd, own);
    })
}

/// Moves a descriptor of a new file, made by the engine, out of the range of the program's numbers.
///
/// # Errors
/// Errors of [`os::move_high`].
pub fn move_high(low: Fd) -> Result<Fd, Errno> {
    os::move_high(low).inspect(|&own| renew(own))
}

/// Forgets the facts about `fd`, which is about to be closed.
pub fn closes(fd: Fd) {
    if let Some(entry) = TABLE.get(fd) {
        entry.note.store(0, Ordering::Relaxed);
        entry.note_freed();
    }
}

/// True if the close of `fd` changes its notes.
pub fn changes_by_close(fd: Fd) -> bool {
    TABLE.get(fd).is_some_and(|entry| {
        let free_at = entry.free_at.load(Ordering::Relaxed);
        entry.note.load(Ordering::Relaxed) != 0 || free_at != HANDED_OVER.load(Ordering::Relaxed)
    })
}

/// Returns the facts that are remembered about `fd`.
pub fn note(fd: Fd) -> u32 {
    // Relaxed, as everywhere: a note is a hint.
    TABLE.get(fd).map_or(0, |entry| entry.note.load(Ordering::Relaxed))
}

/// Clears the bits `less` and sets the bits `more` of the facts about an open descriptor. Returns the previous facts.
pub fn change_note(fd: Fd, less: u32, more: u32) -> u32 {
    let entry = if more == 0 { TABLE.get(fd) } else { TABLE.get_or_make(fd).ok() };
    let Some(entry) = entry else { return 0 };
    let mut known = entry.note.load(Ordering::Relaxed);
    loop {
        let changed = known & !less | more;
        if changed == known {
            return known;
        }
        // Another thread may change other bits at the same time.
        match entry.note.compare_exchange(known, changed, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return known,
            Err(now) => known = now,
        }
    }
}

/// Forgets the facts about `fd`.
pub fn forget_note(fd: Fd) {
    if let Some(entry) = TABLE.get(fd) {
        entry.note.store(0, Ordering::Relaxed);
    }
}

/// Allocates the table now, so that the first schedule of a simulation is like any other.
#[cfg(anyring_simulation)]
pub fn prepare() {
    TABLE.prepare();
}

/// Resets all notes for the next schedule of a simulation.
#[cfg(anyring_simulation)]
pub fn reset() {
    HANDED_OVER.store(0, Ordering::Relaxed);
    DUPLICATIONS.store(0, Ordering::Relaxed);
    NEWEST.iter().for_each(|known| known.store(0, Ordering::Relaxed));
    for entry in TABLE.iter().map(|(_, entry)| entry).chain([&BEYOND]) {
        debug_assert!(
            count_of(entry.interest.load(Ordering::Relaxed)) == 0,
            "nobody keeps anything about a descriptor"
        );
        // The ring's number stays when the last interest ends.
        if entry.interest.load(Ordering::Relaxed) != 0 {
            entry.interest.store(0, Ordering::Relaxed);
        }
        if entry.renewals.load(Ordering::Relaxed) != 0 {
            entry.renewals.store(0, Ordering::Relaxed);
        }
        if entry.note.load(Ordering::Relaxed) != 0 {
            entry.note.store(0, Ordering::Relaxed);
        }
        if entry.free_at.load(Ordering::Relaxed) != 0 {
            entry.free_at.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Interest, Interested, change_note, duplicated, duplicates_since, duplications, interested, note,
    };
    extern crate std;

    #[test]
    fn the_one_ring_is_known_until_another_comes() {
        // A number that no other test uses.
        let fd = 70_001;
        assert_eq!(interested(fd), Interested::Nobody);
        let first = Interest::new(fd, 3);
        let again = Interest::new(fd, 3);
        assert_eq!(interested(fd), Interested::One(3));
        let other = Interest::new(fd, 4);
        assert_eq!(interested(fd), Interested::Several);
        drop((first, again));
        // The entry does not tell which ring is left.
        assert_eq!(interested(fd), Interested::Several);
        drop(other);
        assert_eq!(interested(fd), Interested::Nobody);
        let _next = Interest::new(fd, 4);
        assert_eq!(interested(fd), Interested::One(4));
    }

    #[test]
    fn numbers_beyond_the_table_are_one() {
        let (far, farther) = (5 << 20, 6 << 20);
        assert_eq!(interested(far), Interested::Nobody);
        let one = Interest::new(far, 3);
        assert_eq!(interested(farther), Interested::One(3));
        let other = Interest::new(farther, 4);
        assert_eq!(interested(far), Interested::Several);
        drop((one, other));
        assert_eq!((interested(far), interested(-1)), (Interested::Nobody, Interested::Nobody));
    }

    #[test]
    fn the_newest_duplicates_are_known() {
        let mut seen = duplications();
        (0..3).for_each(|more| duplicated(70_010, 70_011 + more));
        assert_eq!(duplicates_since(&mut seen).unwrap(), [70_011, 70_012, 70_013]);
        assert_eq!(duplicates_since(&mut seen).unwrap(), []);
        (0..300).for_each(|_| duplicated(70_010, 70_011));
        assert_eq!(duplicates_since(&mut seen), None);
    }

    /// Sets and clears different bits of a number in two threads at the same time: no change is lost.
    #[test]
    fn notes_of_two_threads_stay() {
        // A number that no other test uses.
        let fd = 70_002;
        let both = std::sync::Barrier::new(2);
        let noting = |bit: u32| {
            let both = &both;
            move || {
                both.wait();
                for _ in 0..1_000_000 {
                    assert_eq!(change_note(fd, 0, bit) & bit, 0);
                    assert_eq!(change_note(fd, bit, 0) & bit, bit);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(noting(1));
            scope.spawn(noting(2));
        });
        assert_eq!(note(fd), 0);
    }
}
