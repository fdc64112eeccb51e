//! What is known of descriptor numbers: which of them rings keep something about, which the engine itself was given
//! anew meanwhile, and what [`crate::assets::kinds`] remembers of them.

use crate::abi::Errno;
use crate::assets::by_descriptor::ByDescriptor;
use crate::os::Fd;
use crate::os::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// What is known of one number.
struct Entry {
    /// How many rings know its readiness.
    interest: AtomicU32,
    /// How often the engine itself was given the number for a new file while a ring knew it.
    renewals: AtomicU32,
    /// What [`crate::assets::kinds`] remembers of it; zero for nothing.
    note: AtomicU16,
}

impl Default for Entry {
    fn default() -> Entry {
        Entry { interest: AtomicU32::new(0), renewals: AtomicU32::new(0), note: AtomicU16::new(0) }
    }
}

static TABLE: ByDescriptor<Entry> = ByDescriptor::empty();

/// A ring starts to keep something about `fd`, and wants to hear of its end.
pub fn add_interest(fd: Fd) -> Result<(), Errno> {
    TABLE.get_or_make(fd)?.interest.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A ring forgets `fd`.
pub fn drop_interest(fd: Fd) {
    if let Some(entry) = TABLE.get(fd) {
        entry.interest.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine was given `fd` for a new file (by `accept`, `socket`, `open`, ...): what any ring keeps
/// about the number is about a file that is gone. Rings find out when they next look.
pub fn renew(fd: Fd) {
    let Some(entry) = TABLE.get(fd) else { return };
    entry.note.store(0, Ordering::Relaxed);
    if entry.interest.load(Ordering::Relaxed) > 0 {
        entry.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes whenever [`renew`] told of a new file at a number that a ring keeps something about.
pub fn renewals(fd: Fd) -> u32 {
    TABLE.get(fd).map_or(0, |entry| entry.renewals.load(Ordering::Relaxed))
}

/// The counter behind [`renewals`], for a ring that keeps something about `fd`.
pub fn renewal_counter(fd: Fd) -> Option<&'static AtomicU32> {
    TABLE.get(fd).map(|entry| &entry.renewals)
}

/// Does any ring keep something about `fd`?
pub fn has_interest(fd: Fd) -> bool {
    TABLE.get(fd).is_some_and(|entry| entry.interest.load(Ordering::Relaxed) > 0)
}

/// What is remembered of `fd`.
pub fn note(fd: Fd) -> u16 {
    // Relaxed, as everywhere: a note is a hint.
    TABLE.get(fd).map_or(0, |entry| entry.note.load(Ordering::Relaxed))
}

/// Remembers something of a descriptor that exists.
pub fn set_note(fd: Fd, note: u16) {
    if let Ok(entry) = TABLE.get_or_make(fd) {
        entry.note.store(note, Ordering::Relaxed);
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
    for (_, entry) in TABLE.iter() {
        debug_assert!(
            entry.interest.load(Ordering::Relaxed) == 0,
            "nobody keeps anything about a descriptor"
        );
        if entry.renewals.load(Ordering::Relaxed) != 0 {
            entry.renewals.store(0, Ordering::Relaxed);
        }
        if entry.note.load(Ordering::Relaxed) != 0 {
            entry.note.store(0, Ordering::Relaxed);
        }
    }
}
