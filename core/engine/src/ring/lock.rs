//! The lock of a ring, and what its holder owes when it lets go.

use core::ops::{Deref, DerefMut};

use crate::os::sync::Guard;
use crate::os::sync::atomic::Ordering;
use crate::process::page::Page;
use crate::ring::drive::leave;
use crate::ring::{Core, Ring};

/// The locked state of a live ring: the lock of this process, and inside it that of the ring's page,
/// if it has one.
pub struct CoreGuard<'a> {
    pub(in crate::ring) ring: &'a Ring,
    core: Guard<'a, Option<Core>>,
    page: Option<&'static Page>,
    exit: Exit,
}

/// The debts of a ring's lock: what its holder owes when it gives the lock back for good.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// Nothing beside what every unlocking owes: the holder has looked something up, or left a message.
    Visit,
    /// The holder has gone on with requests: work is left to others, and so is the driver's role.
    Drive,
    /// The reactor has gone on with requests, and says by its list when it looks at the ring again.
    Reactor,
}

impl<'a> CoreGuard<'a> {
    /// The ring that is locked.
    pub fn ring(&self) -> &'a Ring {
        self.ring
    }
}

impl CoreGuard<'_> {
    #[inline]
    fn enter_page(&mut self) {
        // Relaxed: changes only under the lock that we hold.
        // SAFETY: mapped until a guard takes it off the ring.
        if let Some(page) = unsafe { self.ring.page.load(Ordering::Relaxed).as_ref() } {
            page.lock();
            self.page = Some(page);
            entered(&mut self.core);
        }
    }

    #[inline]
    fn leave_page(&mut self) {
        if let Some(page) = self.page.take() {
            self.left(page);
        }
    }

    #[cold]
    fn left(&mut self, page: &'static Page) {
        let in_use = self.core.as_mut().filter(|core| core.shared.is_some());
        if let Some(core) = in_use {
            core.leave_page();
            page.unlock();
        } else {
            // The ring is gone from this process, or it is this process's alone.
            self.ring.page.store(core::ptr::null_mut(), Ordering::Relaxed);
            page.unlock();
            // SAFETY: nobody looks it up any more, and whoever did held the lock that we hold.
            unsafe { page.destroy() };
        }
    }

    /// Before every unlocking: what was posted under the lock is told. Work that waits keeps its file.
    #[inline]
    fn settle(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        core.notify();
        debug_assert!(
            core.work.keeps_files(),
            "no work waits for another thread, or for another moment, without its file"
        );
    }

    /// Lets go of the lock for the duration of `body`.
    #[inline]
    pub fn unlocked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.settle();
        self.leave_page();
        let result = self.core.unlocked(body);
        self.enter_page();
        result
    }

    /// True if the end of the guard passes the driver's role on: nobody else may take it.
    pub fn passes_role_on(&self) -> bool {
        matches!(self.exit, Exit::Drive)
    }

    /// The holder goes on with requests from now on.
    pub fn begin_to_drive(&mut self) {
        self.exit = Exit::Drive;
    }

    /// As [`Guard::yield_to_waiters`].
    pub fn yield_to_waiters(&mut self) {
        self.settle();
        self.leave_page();
        self.core.yield_to_waiters();
        self.enter_page();
    }
}

/// The lock of a ring's page was taken.
#[cold]
fn entered(core: &mut Option<Core>) {
    if let Some(core) = core {
        core.enter_page();
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Option<Core>;
    fn deref(&self) -> &Option<Core> {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Option<Core> {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.as_mut() {
            match self.exit {
                Exit::Visit => {}
                Exit::Drive => leave::end_call(core),
                Exit::Reactor => leave::leave(core),
            }
        }
        self.settle();
        self.leave_page();
    }
}

/// The core behind a guard, if the ring still is the one with `serial`.
pub fn live<'a>(guard: &'a mut CoreGuard<'_>, serial: u64) -> Option<&'a mut Core> {
    guard.as_mut().filter(|core| core.identity.serial == serial)
}

impl Ring {
    /// Locks the ring. The guard holds `None` where the ring was closed meanwhile.
    #[inline]
    pub fn lock(&self) -> CoreGuard<'_> {
        let mut guard = CoreGuard { ring: self, core: self.core.lock(), page: None, exit: Exit::Visit };
        guard.enter_page();
        guard
    }

    /// Locks the ring to go on with its requests.
    #[inline]
    pub fn lock_to_drive(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Drive;
        guard
    }

    /// Locks the ring for the reactor, to go on with its requests.
    pub fn lock_as_reactor(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Reactor;
        guard
    }

    /// Locks the ring if nobody holds it.
    pub fn try_lock(&self) -> Option<CoreGuard<'_>> {
        let core = self.core.try_lock()?;
        // SAFETY: as in `CoreGuard::enter_page`.
        let page = unsafe { self.page.load(Ordering::Relaxed).as_ref() };
        if page.is_some_and(|page| !page.try_lock()) {
            return None;
        }
        let mut guard = CoreGuard { ring: self, core, page, exit: Exit::Visit };
        if page.is_some() {
            entered(&mut guard.core);
        }
        Some(guard)
    }
}
