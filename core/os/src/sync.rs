//! The engine's lock. It spins only briefly, never allocates, and knows nothing of threads: it
//! must work in a process with any thread library.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::pauses::may_pause;
use atomic::{AtomicU32, Ordering};

/// The atomics of the whole engine. In a simulation each access is a scheduling point.
#[cfg(not(anyring_simulation))]
pub mod atomic {
    pub use core::sync::atomic::*;
}
#[cfg(anyring_simulation)]
pub mod atomic;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a thread checks a held lock before it sleeps. In a simulation nothing changes between two checks.
const SPINS: u32 = if cfg!(anyring_simulation) { 1 } else { 100 };

/// A mutual exclusion lock over a futex.
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives access to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: the lock may be sent if the value may.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// Makes an unlocked lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Locks, and waits if necessary.
    pub fn lock(&self) -> Guard<'_, T> {
        may_pause();
        // Acquire pairs with the release in `unlock`.
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        // While this thread pauses, other threads come to wait.
        may_pause();
        Guard { mutex: self }
    }

    /// Locks if the lock is free.
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
        // Acquire pairs with the release in `unlock`; CONTENDED makes `unlock` wake a waiter.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            if !self.is_soon_free() {
                let _ = crate::futex_wait(&self.state, CONTENDED, None);
            }
        }
    }

    fn is_soon_free(&self) -> bool {
        (0..SPINS).any(|_| {
            core::hint::spin_loop();
            self.state.load(Ordering::Relaxed) == FREE
        })
    }

    /// Unlocks. True if a thread waits for the lock.
    #[inline]
    fn unlock(&self) -> bool {
        // Release pairs with the acquires above.
        let contended = self.state.swap(FREE, Ordering::Release) == CONTENDED;
        if contended {
            crate::futex_wake(&self.state, 1);
        }
        may_pause();
        contended
    }

    /// Returns the value even if the lock is held.
    ///
    /// # Safety
    /// No other thread may run during the access.
    #[cfg(anyring_simulation)]
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: passed on to the caller.
        unsafe { &*self.value.get() }
    }

    /// Frees the lock in a child after `fork`, whose copy of it may be held by a thread that does
    /// not exist there.
    ///
    /// # Safety
    /// No other thread of this process may use the lock.
    pub unsafe fn reset(&self) {
        self.state.store(FREE, Ordering::Relaxed);
    }
}

/// A lock that is held across a `fork`, so that no thread is inside its critical section then.
pub trait AcrossFork: Sync {
    /// Locks. [`AcrossFork::release`] follows in the parent, [`Mutex::reset`] in the child.
    fn hold(&self);

    /// Unlocks.
    ///
    /// # Safety
    /// The calling thread must hold the lock.
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

/// Access to the value of a locked [`Mutex`]; unlocks on drop.
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<'a, T> Guard<'a, T> {
    /// Unlocks for the duration of `body`.
    pub fn unlocked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.mutex.unlock();
        let result = body();
        core::mem::forget(self.mutex.lock());
        result
    }

    /// Unlocks for a moment, long enough for a waiter to lock: a thread that locks again immediately
    /// would starve the waiters.
    pub fn yield_to_waiters(&mut self) {
        /// Some ten microseconds. Sleeping would gain nothing: a waiter that is not running now will
        /// mark the lock as contended again.
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
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}
