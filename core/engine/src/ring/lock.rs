//! The lock of a ring, and what its holder has to do before it unlocks.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use crate::os::sync::Guard;
use crate::os::sync::atomic::Ordering;
use crate::process::page::Page;
use crate::ring::drive::leave;
use crate::ring::{Core, Ring};

/// The locked state of a live ring. Holds the lock of this process, and inside it the lock of the ring's page, if the ring has one.
pub struct CoreGuard<'a> {
    ring: &'a Ring,
    core: Guard<'a, Option<Core>>,
    page: Option<&'static Page>,
    exit: Exit,
}

/// The duties of the holder of a ring's lock at the end of its guard.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// Nothing more than at every unlocking: the holder has looked something up, or left a message.
    Visit,
    /// Queued work and the driver's role are passed on: the holder has advanced requests.
    Drive,
    /// Queued work is passed on: the reactor has advanced requests, and its list says when it looks at the ring again.
    Reactor,
}

impl<'a> CoreGuard<'a> {
    /// Returns the ring that is locked.
    pub fn ring(&self) -> &'a Ring {
        self.ring
    }

    #[inline]
    fn enter_page(&mut self) {
        // Relaxed: changes only under the lock, which this guard holds.
        // SAFETY: the page is mapped until a guard takes it off the ring.
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
        let in_use = self.core.as_mut().filter(|core| core.shared.has_page());
        if let Some(core) = in_use {
            core.leave_page();
            page.unlock();
        } else {
            // This process has left the ring, or no other process has it.
            self.ring.page.store(core::ptr::null_mut(), Ordering::Relaxed);
            page.unlock();
            // SAFETY: the page is no longer found, and threads that found it before held the lock that this guard holds.
            unsafe { page.destroy() };
        }
    }

    /// Does what is due before every unlocking: notifies of CQEs that were posted under the lock. Queued work keeps its file.
    #[inline]
    fn settle(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        core.resources.files.settle();
        self.settle_but_files();
    }

    /// Does the same as [`CoreGuard::settle`], but for fresh registered files.
    #[inline]
    fn settle_but_files(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        core.notify();
        debug_assert!(
            core.work.keeps_files(),
            "no work waits for another thread, or for another moment, without its file"
        );
    }

    /// Releases the lock while `body` runs.
    #[inline]
    pub fn unlocked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.settle();
        self.without_lock(body)
    }

    /// Releases the lock while `body` does work of the call that holds it. Files that the call has opened for slots stay fresh
    /// ([`crate::feature::files`]).
    #[inline]
    pub fn unlocked_for_work<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.settle_but_files();
        self.without_lock(body)
    }

    #[inline]
    fn without_lock<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.leave_page();
        let result = self.core.unlocked(body);
        self.enter_page();
        result
    }

    /// True if the end of the guard passes the driver's role on. Only then may the holder take the role.
    pub fn passes_role_on(&self) -> bool {
        matches!(self.exit, Exit::Drive)
    }

    /// Makes the guard pass on work and the driver's role when it ends, because its holder advances requests from now on.
    pub fn begin_to_drive(&mut self) {
        self.exit = Exit::Drive;
    }

    /// Ends the guard of a call. Most calls [owe nothing](leave::owes_nothing): they take none of the steps of `drop`.
    #[inline(always)]
    pub fn end_call(mut self) {
        if self.page.is_none()
            && let Some(core) = self.core.as_mut()
            && leave::owes_nothing(core)
        {
            leave::end_quietly(core);
            self.unlock();
        }
    }

    /// Ends the guard of a call that owes nothing. A page that the call has given up is still locked.
    #[inline(always)]
    pub(in crate::ring) fn end_quietly(mut self) {
        if self.page.is_none()
            && let Some(core) = self.core.as_mut()
        {
            leave::end_quietly(core);
            self.unlock();
        }
    }

    /// Unlocks the ring, which has no page, and does nothing else.
    #[inline(always)]
    fn unlock(self) {
        debug_assert!(self.page.is_none(), "the lock of a page is the guard's to unlock");
        let this = ManuallyDrop::new(self);
        // SAFETY: the guard is neither used nor dropped from here on, and its page, `None`, needs no drop.
        drop(unsafe { core::ptr::read(&this.core) });
    }

    /// Does the same as [`Guard::yield_to_waiters`].
    pub fn yield_to_waiters(&mut self) {
        self.settle();
        self.leave_page();
        self.core.yield_to_waiters();
        self.enter_page();
    }
}

/// Brings the core up to date after the lock of the ring's page was locked.
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

/// Returns the core behind a guard if the ring's serial number still is `serial`.
pub fn live<'a>(guard: &'a mut CoreGuard<'_>, serial: u64) -> Option<&'a mut Core> {
    guard.as_mut().filter(|core| core.identity.serial == serial)
}

impl Ring {
    /// Locks the ring. The guard holds `None` if the ring was closed meanwhile.
    #[inline]
    pub fn lock(&self) -> CoreGuard<'_> {
        let mut guard = CoreGuard { ring: self, core: self.core.lock(), page: None, exit: Exit::Visit };
        guard.enter_page();
        guard
    }

    /// Locks the ring to advance its requests.
    #[inline]
    pub fn lock_to_drive(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Drive;
        guard
    }

    /// Locks the ring for the reactor, to advance its requests.
    pub fn lock_as_reactor(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Reactor;
        guard
    }

    /// Locks the ring if no thread holds its lock.
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
