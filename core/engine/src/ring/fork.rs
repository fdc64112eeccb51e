//! A ring around a `fork`: its lock is held during the `fork`, and the child's ring begins without requests.

use crate::os::sync::AcrossFork;
use crate::os::sync::atomic::Ordering;
use crate::ring::{Core, Ring};
use crate::work;

impl Ring {
    /// Waits, before a `fork` and without a lock, until lent work is back: a child begins at the SQ head, which moves only then.
    pub fn await_return(&self) {
        let mut guard = self.lock();
        if let Some(serial) = guard.as_ref().map(|core| core.identity.serial) {
            work::await_return(&mut guard, serial);
        }
    }

    /// Gives the ring a page before a `fork`, and keeps the ring's lock. Returns false, and does nothing, if work is lent.
    pub fn hold_for_fork(&self) -> bool {
        let mut guard = self.core.lock();
        if guard.as_ref().is_some_and(|core| core.work.is_lent()) {
            return false;
        }
        if let Some(page) = guard.as_mut().and_then(Core::share) {
            self.page.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
        }
        core::mem::forget(guard);
        true
    }

    /// Releases the lock after the `fork`, in the parent.
    ///
    /// # Safety
    /// The calling thread must hold the lock.
    pub unsafe fn release_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.core.release() };
    }

    /// Frees the lock in a child after `fork`, and makes the ring one of the child's.
    ///
    /// # Safety
    /// No other thread of this process may use the ring.
    pub unsafe fn forked(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.core.reset();
            self.mailbox.forked();
        }
        self.users.store(0, Ordering::Relaxed);
        // Without the page's lock: what the core knows of the page is still the parent's.
        if let Some(core) = self.core.lock().as_mut() {
            core.forked();
        }
    }
}
