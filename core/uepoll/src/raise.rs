//! Events that threads raise, and how a sleeping consumer is woken.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering, fence};

use anyring_engine::abi::Errno;
use anyring_engine::os;

use crate::insert::Raised;
use crate::ring::Ring;

/// Nobody sleeps.
const AWAKE: u32 = 0;
/// The consumer sleeps where the bell is heard, an eventfd.
pub const AT_THE_BELL: u32 = 1;
/// It sleeps on the very word that says so.
pub const ON_THE_WORD: u32 = 2;

/// The ring, and how its consumer is woken: what everybody has who puts something into it.
pub struct Shared {
    /// The ring.
    pub ring: Ring,
    /// An eventfd, once there is one.
    pub bell: AtomicI32,
}

impl Shared {
    /// Says that the caller is about to sleep; false where there is something already, and it must not.
    pub fn announce_sleep(&self, how: u32) -> bool {
        // In one order with the tail: either the caller sees what came, or who put it there sees the sleeper.
        self.ring.header().sleeper.store(how, Ordering::SeqCst);
        // As much for what the caller looks at next: `changed` is the other side.
        fence(Ordering::SeqCst);
        let sleeps = self.ring.is_empty();
        if !sleeps {
            self.woke();
        }
        sleeps
    }

    /// The caller sleeps no longer.
    pub fn woke(&self) {
        self.ring.header().sleeper.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the consumer, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        if self.ring.header().sleeper.load(Ordering::SeqCst) != AWAKE {
            self.wake_sleeper();
        }
    }

    /// Something else than the ring was changed that a sleeper has to look at.
    pub fn changed(&self) {
        fence(Ordering::SeqCst);
        self.wake();
    }

    #[cold]
    fn wake_sleeper(&self) {
        let sleeper = &self.ring.header().sleeper;
        let bell = self.bell.load(Ordering::Acquire);
        if bell < 0 && sleeper.load(Ordering::Relaxed) == AT_THE_BELL {
            // It sleeps where there is no bell yet, and hears of everything else by itself.
            return;
        }
        // One of those who find it asleep.
        match sleeper.swap(AWAKE, Ordering::SeqCst) {
            AT_THE_BELL if bell >= 0 => _ = os::eventfd_signal(bell),
            ON_THE_WORD => os::futex_wake_shared(sleeper, 1),
            _ => {}
        }
    }

    /// Sleeps on the word.
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

/// Raises one event of a set, from any thread, and from children of the process. It may outlive the event and the
/// set, and then raises nothing.
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

    /// Adds `events`, any bits, to those that the consumer takes next. Where some are there already that is one atomic
    /// operation, else a few; never a system call, unless the consumer sleeps.
    #[inline]
    pub fn raise(&self, events: u32) {
        if self.alive.load(Ordering::Relaxed) && self.shared.ring.raise(self.item, events) == Raised::Visible
        {
            self.shared.wake();
        }
    }

    /// Raises nothing from now on; false where that was so already, or this is another's.
    pub(crate) fn end(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared) && self.alive.swap(false, Ordering::Relaxed)
    }

    /// The item's number in the shared memory.
    pub fn item(&self) -> u32 {
        self.item
    }
}
