//! The engine's lock. It never spins for long, never allocates, and knows nothing of threads: it
//! must work in a process whose thread library it has never met.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::os;
use crate::os::pauses::may_pause;
use atomic::{AtomicU32, Ordering};

/// The atomics of the whole engine: in a simulation each access is a place where another thread may go on.
#[cfg(not(anyring_simulation))]
pub mod atomic {
    pub use core::sync::atomic::*;
}
#[cfg(anyring_simulation)]
pub mod atomic;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a thread looks at a taken lock before it sleeps. In a simulation nothing happens between two looks.
const SPINS: u32 = if cfg!(anyring_simulation) { 1 } else { 100 };

/// A mutual exclusion lock over a futex.
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: as for the value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> Guard<'_, T> {
        may_pause();
        // Acquire pairs with the release in `unlock`.
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        // Others come to wait for it.
        may_pause();
        Guard { mutex: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire pairs with the release in `unlock`.
        self.state
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Guard { mutex: self })
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        // Acquire pairs with the release in `unlock`; CONTENDED makes that one wake us, or leave it to us.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            if !self.is_soon_free() {
                let _ = os::futex_wait(&self.state, CONTENDED, None);
            }
        }
    }

    fn is_soon_free(&self) -> bool {
        (0..SPINS).any(|_| {
            core::hint::spin_loop();
            self.state.load(Ordering::Relaxed) == FREE
        })
    }

    /// Returns whether somebody waits for it.
    fn unlock(&self) -> bool {
        // Release pairs with the acquires above.
        let contended = self.state.swap(FREE, Ordering::Release) == CONTENDED;
        if contended {
            os::futex_wake(&self.state, 1);
        }
        may_pause();
        contended
    }

    /// The value, whoever holds the lock.
    ///
    /// # Safety
    /// No other thread may run meanwhile.
    #[cfg(anyring_simulation)]
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: passed on to the caller.
        unsafe { &*self.value.get() }
    }

    /// The value, in a process where no other thread can hold the lock: a child after `fork`, whose
    /// copy of the lock may have been taken by a thread that does not exist there.
    ///
    /// # Safety
    /// No other thread of this process may use the lock.
    pub unsafe fn reset(&self) {
        self.state.store(FREE, Ordering::Relaxed);
    }
}

/// A lock that is kept across a `fork`, for nobody may be in the middle of something then.
pub trait AcrossFork: Sync {
    /// Takes it. [`AcrossFork::release`] follows in the parent, [`Mutex::reset`] in the child.
    fn hold(&self);

    /// Lets go of it.
    ///
    /// # Safety
    /// The calling thread must hold it.
    unsafe fn release(&self);
}

impl<T: Send> AcrossFork for Mutex<T> {
    fn hold(&self) {
        core::mem::forget(self.lock());
    }

    unsafe fn release(&self) {
        self.unlock();
    }
}

/// The right to use the value of a [`Mutex`].
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<'a, T> Guard<'a, T> {
    /// Lets go of the lock for the duration of `body`.
    pub fn unlocked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.mutex.unlock();
        let result = body();
        core::mem::forget(self.mutex.lock());
        result
    }

    /// Lets go of the lock for a moment, long enough for whoever waits for it: a thread that takes it
    /// again at once would have it for ever.
    pub fn yield_to_waiters(&mut self) {
        /// Some ten microseconds. Nothing is gained by sleeping: a waiter that is not running now will
        /// announce itself again.
        const LOOKS: u32 = if cfg!(anyring_simulation) { 0 } else { 256 };
        let contended = self.mutex.unlock();
        let mut looks = if contended { LOOKS } else { 1 };
        while looks > 0 && self.mutex.state.load(Ordering::Relaxed) == FREE {
            core::hint::spin_loop();
            looks -= 1;
        }
        core::mem::forget(self.mutex.lock());
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}
