//! Notes on descriptor numbers: which rings keep something about them, which of them the engine itself was
//! given anew meanwhile, and what [`crate::assets::kinds`] remembers of them.
//!
//! A ring that keeps something about a number holds an [`Interest`] in it. As a rule it is the only ring that does, and
//! who closes the descriptor has to look at that ring alone, however many there are.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::by_descriptor::ByDescriptor;
use crate::os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::os::{self, Fd, host};

/// The notes on one number.
#[derive(Debug)]
struct Entry {
    /// How many [`Interest`]s there are, in the lower half; in the upper half the number of the place whose ring holds
    /// them all, or [`SEVERAL`]. Where there are none, the upper half means nothing.
    interest: AtomicU64,
    /// How often the engine itself was given the number for a new file while a ring knew it.
    renewals: AtomicU32,
    /// The facts of [`crate::assets::kinds`] about the number's file; zero for none.
    note: AtomicU32,
    /// How often the process had handed descriptors over when the number stood for nothing, or for a file that the engine made;
    /// or [`OLD`].
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
    /// The number stands for nothing now, or for a file that the engine has just made.
    fn note_freed(&self) {
        self.free_at.store(HANDED_OVER.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

/// Stands for the number of a place where the rings of several places hold an [`Interest`].
const SEVERAL: u32 = u32::MAX;

static TABLE: ByDescriptor<Entry> = ByDescriptor::empty();

/// Of all numbers that [`TABLE`] has no entry for.
static BEYOND: Entry = Entry::new();

/// The rings that keep something about a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interested {
    /// No ring does.
    Nobody,
    /// The ring in the place with this number.
    One(u32),
    /// Rings in several places.
    Several,
}

/// A ring keeps something about a number as long as it has this, and wants to hear of the descriptor's end.
#[derive(Debug)]
pub struct Interest {
    entry: &'static Entry,
}

impl Interest {
    /// Of the ring in the place with the number `place`, in `fd`.
    pub fn new(fd: Fd, place: u32) -> Interest {
        let entry = TABLE.get_or_make(fd).unwrap_or(&BEYOND);
        let mut known = entry.interest.load(Ordering::Relaxed);
        loop {
            let alone = count_of(known) == 0 || place_of(known) == place;
            let more = packed(if alone { place } else { SEVERAL }, count_of(known) + 1);
            // Relaxed: who closes a descriptor and has not heard of the call that made this closes it beside that call.
            match entry.interest.compare_exchange(known, more, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Interest { entry },
                Err(now) => known = now,
            }
        }
    }

    /// Changes whenever [`renew`] told of a new file at the number.
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

/// The rings that keep something about `fd`.
pub fn interested(fd: Fd) -> Interested {
    let interest = TABLE.get(fd).unwrap_or(&BEYOND).interest.load(Ordering::Relaxed);
    match (count_of(interest), place_of(interest)) {
        (0, _) => Interested::Nobody,
        (_, SEVERAL) => Interested::Several,
        (_, place) => Interested::One(place),
    }
}

/// The engine was given `fd` for a new file (by `accept`, `socket`, `open`, ...): what any ring keeps
/// about the number is about a file that is gone. Rings find out when they next look.
pub fn renew(fd: Fd) {
    // An entry that stands for many numbers must not look renewed for one of them.
    let Some(entry) = TABLE.get(fd) else { return };
    entry.note.store(0, Ordering::Relaxed);
    entry.note_freed();
    if count_of(entry.interest.load(Ordering::Relaxed)) > 0 {
        entry.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often this process may have handed descriptors over to others: by a child, or in a message.
static HANDED_OVER: AtomicU32 = AtomicU32::new(0);

/// Stands for a file that may be as old as the process, or that came from another one.
const OLD: u32 = u32::MAX;

/// How often a descriptor was duplicated, modulo 2^32.
static DUPLICATIONS: AtomicU32 = AtomicU32::new(0);

/// The newest duplicates, each at its place among all: in the upper half how many there were with it, in the lower half its number.
static NEWEST: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn newest(count: u32) -> &'static AtomicU64 {
    &NEWEST[count as usize % NEWEST.len()]
}

/// Before the first ring: whoever started this process may have the files that it has by now.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // Relaxed: a ring that another thread makes at the same time is without files so far. Simulated processes are started by nobody.
    if cfg!(anyring_simulation) || !host::sees_handovers() || BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    match os::own_descriptors() {
        Ok(descriptors) => descriptors.into_iter().for_each(received),
        // Any file may be somebody else's, too.
        Err(_) => HANDED_OVER.store(OLD, Ordering::Relaxed),
    }
}

/// The file of `fd` came from another process, which may still have it.
pub fn received(fd: Fd) {
    if let Ok(entry) = TABLE.get_or_make(fd) {
        entry.free_at.store(OLD, Ordering::Relaxed);
    }
}

/// The process is about to hand descriptors over, or has just done so.
pub fn hands_over() {
    let mut times = HANDED_OVER.load(Ordering::Relaxed);
    // Where it has done so too often to be counted, every file may be somebody else's, too.
    while times < OLD {
        match HANDED_OVER.compare_exchange(times, times + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => times = now,
        }
    }
}

/// How often the process has handed descriptors over, if that is known and can still be counted.
pub fn times_handed_over() -> Option<u32> {
    Some(HANDED_OVER.load(Ordering::Relaxed)).filter(|&times| times < OLD && host::sees_handovers())
}

/// [`times_handed_over`], where the file of `fd` came since the last time: no other process has it by that, and none as long as the
/// number is the same.
pub fn unshared(fd: Fd) -> Option<u32> {
    let times = times_handed_over()?;
    let free_at = TABLE.get_or_make(fd).ok()?.free_at.load(Ordering::Relaxed);
    (times == free_at).then_some(times)
}

/// `new` is a duplicate of `old`: its file is as old.
pub fn duplicated(old: Fd, new: Fd) {
    let free_at = TABLE.get(old).map_or(0, |entry| entry.free_at.load(Ordering::Relaxed));
    // Where there is no entry, it stands for a file of unknown age.
    if host::sees_handovers()
        && let Ok(entry) = TABLE.get_or_make(new)
    {
        entry.free_at.store(free_at, Ordering::Relaxed);
    }
    // Release pairs with the acquire in `duplications`.
    let count = DUPLICATIONS.fetch_add(1, Ordering::Release).wrapping_add(1);
    newest(count).store(u64::from(count) << 32 | u64::from(new as u32), Ordering::Relaxed);
}

/// The descriptors that were made since [`duplications`] was `seen`, which is what it is now; `None` where they were too many, or
/// another thread is about to tell. Whoever looks through descriptors, one after the other, may have missed a file whose number
/// changed meanwhile.
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

/// How often a descriptor was duplicated.
pub fn duplications() -> u32 {
    DUPLICATIONS.load(Ordering::Acquire)
}

/// A duplicate of the engine's own, close-on-exec.
///
/// # Errors
/// As `F_DUPFD_CLOEXEC`.
pub fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    os::duplicate(fd).inspect(|&own| {
        renew(own);
        duplicated(fd, own);
    })
}

/// The engine's own from now on, out of the way of the program's: a file that is new.
///
/// # Errors
/// As [`os::move_high`].
pub fn move_high(low: Fd) -> Result<Fd, Errno> {
    os::move_high(low).inspect(|&own| renew(own))
}

/// `fd` is about to be closed.
pub fn closes(fd: Fd) {
    if let Some(entry) = TABLE.get(fd) {
        entry.note.store(0, Ordering::Relaxed);
        entry.note_freed();
    }
}

/// True if something is noted of `fd` that its close changes.
pub fn changes_by_close(fd: Fd) -> bool {
    TABLE.get(fd).is_some_and(|entry| {
        let free_at = entry.free_at.load(Ordering::Relaxed);
        entry.note.load(Ordering::Relaxed) != 0 || free_at != HANDED_OVER.load(Ordering::Relaxed)
    })
}

/// The facts that are remembered of `fd`.
pub fn note(fd: Fd) -> u32 {
    // Relaxed, as everywhere: a note is a hint.
    TABLE.get(fd).map_or(0, |entry| entry.note.load(Ordering::Relaxed))
}

/// Forgets these bits of what is remembered of a descriptor that exists, and then remembers those. Returns what it was before.
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

/// Remembers nothing of `fd` any more.
pub fn forget_note(fd: Fd) {
    if let Some(entry) = TABLE.get(fd) {
        entry.note.store(0, Ordering::Relaxed);
    }
}

/// Makes now what is made once in a process, so that the first schedule of a simulation is like any other.
#[cfg(anyring_simulation)]
pub fn prepare() {
    TABLE.prepare();
}

/// For the next schedule of a simulation: nothing is remembered of any descriptor.
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
        // The place stays when the last interest ends.
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
        // Of a number that no other test has.
        let fd = 70_001;
        assert_eq!(interested(fd), Interested::Nobody);
        let first = Interest::new(fd, 3);
        let again = Interest::new(fd, 3);
        assert_eq!(interested(fd), Interested::One(3));
        let other = Interest::new(fd, 4);
        assert_eq!(interested(fd), Interested::Several);
        drop((first, again));
        // Which of them is left is not known.
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

    /// Two threads note different things of a number at the same time: neither takes back what the other notes.
    #[test]
    fn notes_of_two_threads_stay() {
        // Of a number that no other test has.
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
