//! Events that threads raise, and waking a sleeping consumer.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering, fence};

use anyring_engine::abi::Errno;
use anyring_engine::os;

use crate::insert::Raised;
use crate::ring::Ring;
use crate::sleeper::{self, AWAKE, Alarm, ON_THE_WORD};

/// The ring, and the means to wake its consumer: shared by all that insert events.
pub struct Shared {
    /// The ring.
    pub ring: Ring,
    /// The eventfd that wakes the consumer; -1 if none was made.
    pub bell: AtomicI32,
}

impl Alarm for Shared {
    #[inline]
    fn word(&self) -> u32 {
        self.ring.header().sleeper.load(Ordering::SeqCst)
    }
    fn set_word(&self, word: u32) {
        self.ring.header().sleeper.store(word, Ordering::SeqCst);
    }
    fn swap_word(&self, word: u32) -> u32 {
        self.ring.header().sleeper.swap(word, Ordering::SeqCst)
    }
    fn replace_word(&self, from: u32, to: u32) -> bool {
        self.ring.header().sleeper.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
    fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
    fn has_bell(&self) -> bool {
        self.bell.load(Ordering::Acquire) >= 0
    }
    fn ring_bell(&self) {
        let _ = os::eventfd_signal(self.bell.load(Ordering::Relaxed));
    }
    fn wake_word(&self) {
        os::futex_wake_shared(&self.ring.header().sleeper, 1);
    }
}

impl Shared {
    /// Announces that the caller is about to sleep; false if there are events already, so that it must not sleep.
    pub fn announce_sleep(&self, how: u32) -> bool {
        sleeper::announce(self, how)
    }

    /// Notes that the caller sleeps no longer.
    pub fn woke(&self) {
        self.ring.header().sleeper.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the consumer, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        sleeper::wake(self);
    }

    /// Wakes the consumer after a change of state other than the ring, which the consumer must see.
    pub fn changed(&self) {
        sleeper::changed(self);
    }

    /// Sleeps on the sleeper's word, a futex.
    pub fn sleep_on_word(&self, timeout_ns: Option<u64>) -> Result<(), Errno> {
        match os::futex_wait_shared(&self.ring.header().sleeper, ON_THE_WORD, timeout_ns) {
            Err(Errno::EINTR) => Err(Errno::EINTR),
            _ => Ok(()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bell = *self.bell.get_mut();
        if bell >= 0 {
            os::close(bell);
        }
    }
}

/// Raises one event of a set, from any thread, and from children of the process. A raiser may outlive the event
/// and the set; then it raises nothing.
#[derive(Clone)]
pub struct Raiser {
    shared: Arc<Shared>,
    item: u32,
    alive: Arc<AtomicBool>,
}

impl Raiser {
    pub(crate) fn new(shared: Arc<Shared>, item: u32) -> Raiser {
        Raiser { shared, item, alive: Arc::new(AtomicBool::new(true)) }
    }

    /// Adds `events`, which may be any bits, to those that the consumer takes next. This takes one atomic operation if the
    /// event is pending already, otherwise a few, and no system call unless the consumer sleeps.
    #[inline]
    pub fn raise(&self, events: u32) {
        if self.alive.load(Ordering::Relaxed) && self.shared.ring.raise(self.item, events) == Raised::Visible
        {
            self.shared.wake();
        }
    }

    /// Makes this raiser raise nothing from now on. Returns false if that was the case already, or if the event belongs
    /// to another set.
    pub(crate) fn revoke(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared) && self.alive.swap(false, Ordering::Relaxed)
    }

    /// Returns the item's number in the shared memory.
    pub fn item(&self) -> u32 {
        self.item
    }
}
