//! Which process the engine's memory belongs to, and whether this process has had a ring.

use crate::os::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::os;
use crate::process::credentials;

/// Number of rings made so far.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// The ID of the process that the engine's memory belongs to.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// A word that is 1 in the process that set it up and 0 in a child after `fork`.
static FORK_MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// A call has begun in this process, or in one that it descends from by `fork`.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// True in the process that owns the memory, not in a `vfork` child, which shares it: what the child closes stays open in the parent.
pub fn is_own() -> bool {
    PROCESS.load(Ordering::Relaxed) == os::getpid()
}

/// True if this process has had a ring.
pub fn is_used() -> bool {
    rings() > 0 && is_own()
}

/// Returns how many rings were made.
pub fn rings() -> u64 {
    RINGS.load(Ordering::Relaxed)
}

/// Counts a new ring.
pub fn count_ring() {
    PROCESS.store(os::getpid(), Ordering::Relaxed);
    if RINGS.fetch_add(1, Ordering::Relaxed) == 0 {
        credentials::begin_to_watch();
    }
}

/// True if a call may have changed anything that a child of `fork` has to reset.
pub fn is_entered() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

/// True if this process is a child whose `fork` was not announced. Checked first in every call. No other
/// thread of the child can be in the engine: a child begins with one thread, and this is its first call.
pub fn is_unannounced() -> bool {
    // Acquire pairs with the release store below: the word is initialised.
    // SAFETY: the page is mapped for good.
    match unsafe { FORK_MARK.load(Ordering::Acquire).as_ref() } {
        Some(mark) => mark.load(Ordering::Relaxed) == 0,
        None => {
            set_fork_mark();
            false
        }
    }
}

#[cold]
fn set_fork_mark() {
    ENTERED.store(true, Ordering::Relaxed);
    // Pairs with the `fork` of another thread, which copies memory: no lock that the call takes is copied without the note.
    fence(Ordering::SeqCst);
    let Ok(page) = os::map_wiped_on_fork(4096) else { return };
    let mark = page.cast::<AtomicU32>();
    // SAFETY: a fresh page of ours.
    unsafe { &*mark }.store(1, Ordering::Relaxed);
    // Release pairs with the acquire loads. If two threads race, the second page stays unused.
    let _ = FORK_MARK.compare_exchange(core::ptr::null_mut(), mark, Ordering::AcqRel, Ordering::Relaxed);
}

/// Makes the engine's memory this process's own, in a child after `fork`.
pub fn announce() {
    // First: a load would cost a page fault more.
    PROCESS.store(os::getpid(), Ordering::Relaxed);
    // SAFETY: the page is mapped for good.
    if let Some(mark) = unsafe { FORK_MARK.load(Ordering::Acquire).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
}

/// Resets the state for the next schedule of a simulation.
#[cfg(anyring_simulation)]
pub fn reset() {
    RINGS.store(0, Ordering::Relaxed);
    PROCESS.store(0, Ordering::Relaxed);
}
