//! The end of rings: noticing it, cancelling requests, releasing the ring's resources; and a ring around a `fork`: its lock is held
//! during the `fork`, and the child's ring begins without requests.

use alloc::vec::Vec;

use crate::assets::directories::{self, Directories};
use crate::assets::{lingering, mounts};
use crate::feature::eventfd;
use crate::feature::futex::waits;
use crate::feature::timeouts::Timeouts;
use crate::feature::zero_copy_receive::exported;
use crate::feature::zero_copy_send::error_queue;
use crate::observe::chaos::let_go;
use crate::observe::trace;
use crate::os::sync::AcrossFork;
use crate::os::sync::atomic::Ordering;
use crate::os::{self, Fd};
use crate::request::{FileHold, Flags, Phase, RequestId};
use crate::ring::drive::observers::stand_in;
use crate::ring::drive::{leave, reactor};
use crate::ring::registry::{self, InUse};
use crate::ring::{Core, CoreGuard, Ring, live, watches};
use crate::wait::{Driver, Token};
use crate::work::{self, Recalled};

/// Has the kernel report the end of the program's last reference to a ring. `fd` is the program's descriptor.
pub fn watch(fd: Fd, ring: &'static Ring, serial: u64) {
    if let Some(inotify) = watches::add(fd, ring, serial) {
        reactor::listen(inotify);
    }
}

/// Has the kernel report the ends of all rings that it does not report yet: the front end may miss their closes from now on.
pub fn watch_all() {
    registry::for_each_live(|ring| {
        let serial = ring.lock().as_ref().map(|core| core.identity.serial);
        if let Some(serial) = serial
            && !watches::watches_ring(ring)
            && let Some(fd) = registry::descriptor(ring)
        {
            // Without a watch before, the ring may be listed to be checked.
            watches::forget(ring, serial);
            watch(fd, ring, serial);
            if let Some(core) = live(&mut ring.lock(), serial) {
                reactor::hear_of_new_watch(core);
            }
        }
    });
}

/// Ends the rings that [`collect`] ends, and unwatched rings of which the program has no descriptor any more.
pub fn collect_all() {
    collect();
    for (ring, serial) in watches::unwatched() {
        if !registry::has_descriptor(ring) {
            watches::forget(ring, serial);
            close(ring, serial);
        }
    }
}

/// Ends rings whose last reference the kernel has reported gone.
///
/// The kernel reports the end of any description of the ring's file. There may be more than the program's own: opening
/// `/proc/PID/fd/NUMBER` makes one, and on kernels before 6.14 the engine's own counts if its memory was mapped before the ring was
/// resized. So a ring lives as long as a descriptor of the program is its file; the end of that description is reported, too.
pub fn collect() {
    while let Some(ended) = watches::take_ended(|ring| !registry::has_descriptor(ring)) {
        for (ring, serial) in ended {
            close(ring, serial);
        }
    }
}

/// Handles the end of a descriptor that stood for `ring`.
pub fn descriptor_gone(ring: &InUse) {
    let ring = ring.ring();
    let mut guard = ring.lock();
    let Some(core) = guard.as_mut() else { return };
    let (serial, last) = (core.identity.serial, core.life.lose_descriptor());
    drop(guard);
    if last {
        close(ring, serial);
    }
}

/// Handles that a descriptor's number stands for another ring now: it was closed without the engine's knowledge, so it may have been
/// duplicated as well. If the kernel watches the ring, its report of the last reference's end decides.
pub fn number_taken(ring: &InUse) {
    if !watches::watches_ring(ring.ring()) {
        descriptor_gone(ring);
    }
}

/// Ends a ring. No call finds it any more. Once the calls that are inside have left, none of its requests is issued, waiting requests are
/// dropped, and attempts in progress end by themselves.
pub fn close(ring: &'static Ring, serial: u64) {
    let mut guard = ring.lock();
    let_go::in_ring(&mut guard, serial);
    let Some(core) = live(&mut guard, serial) else { return };
    core.life.close();
    trace::notice_watchers(core);
    if core.instruments.traced.is_on() {
        core.trace_end();
    }
    if core.life.inside() == 0 && core.drive.token.is_free() && !core.defers() {
        // Events before the end are posted: the program may look at the CQ without a descriptor.
        core.harvest_now();
        core.advance();
        core.notify();
    }
    registry::clear_all(ring);
    watches::forget(ring, serial);
    end(guard, serial);
}

/// Ends a call that was counted as inside, and what it owes. Rings in which a request polls this one look at it afterwards.
#[inline(always)]
pub fn end_call(mut guard: CoreGuard<'_>, serial: u64) {
    let Some(core) = live(&mut guard, serial) else { return };
    if leave::owes_nothing(core) && !core.life.is_closing() {
        core.life.go_out();
        return guard.end_quietly();
    }
    leave::end_call(core);
    let pollers = core.drive.observers.pollers_to_tell();
    go_out(guard, serial);
    pollers.into_iter().for_each(|(ring, serial)| ring.look_in(serial));
}

/// Counts a call out that was counted as inside. A ring that was closed meanwhile lives until the last call leaves it, as the kernel's does.
pub fn go_out(mut guard: CoreGuard<'_>, serial: u64) {
    let Some(core) = live(&mut guard, serial) else { return };
    core.life.go_out();
    if core.life.is_closing() {
        end(guard, serial);
    }
}

/// Ends a closed ring once no call is inside.
pub fn end(mut guard: CoreGuard<'_>, serial: u64) {
    let Some(core) = live(&mut guard, serial) else { return };
    debug_assert!(core.life.is_closing(), "only closed rings end");
    if core.life.inside() > 0 {
        return;
    }
    core.cancel_for_others();
    core.shut_down();
    dispose_if_done(guard, serial);
}

/// Releases a closed ring, if no thread works for it any more. The last thread that leaves the ring does this.
pub fn dispose_if_done(mut guard: CoreGuard<'_>, serial: u64) {
    let Some(core) = live(&mut guard, serial) else { return };
    // Later there are no sleepers and observers to notify.
    core.notify();
    let busy = core.life.inside() > 0 || core.work.out() > 0 || core.drive.token.driver() == Driver::SqThread;
    if !core.life.is_closing() || busy {
        return;
    }
    let ring = core.identity.ring;
    core.shared.leave();
    let core = guard.take();
    drop(guard);
    drop(core);
    registry::give_back(ring);
    if !registry::has_live() {
        waits::dismiss();
    }
}

/// Resets all rings in a child after `fork`: they stay, without the parent's threads and requests.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe {
        watches::forked();
        eventfd::forked();
        directories::forked();
        lingering::forked();
        mounts::forked();
        exported::forked();
        stand_in::forked();
        error_queue::forked();
    }
    registry::for_each_live(|ring| {
        // SAFETY: passed on to the caller.
        unsafe { ring.forked() };
    });
}

impl Core {
    /// Makes the ring the child's: the requests, the epoll instance and the eventfds are the parent's, and the child drops them.
    fn forked(&mut self) {
        self.instruments.chaos.forked();
        self.requests.forked();
        // First, because requests release files that something may still be noted about.
        self.readiness.forked();
        self.resources.files.forked();
        self.resources.buffers.forked();
        self.resources.receive_queues.forked();
        self.forget_pages(true);
        self.zero_copy.forked();
        self.resources.directories = Directories::default();
        let ids: Vec<RequestId> = self.requests.ids().collect();
        ids.into_iter().for_each(|id| self.drop_request(id));
        self.drop_queues();
        self.work.forked();
        self.aio.forked();
        self.queues.cq.forked();
        self.life.forked();
        self.resources.personalities.forked();
        self.drive.token = Token::default();
        self.drive.sleepers.close();
        self.drive.attendance.forked();
        self.drive.observers.forked();
        self.processes_forked();
    }

    /// Removes a request without a CQE.
    fn drop_request(&mut self, id: RequestId) {
        self.time.timers.cancel(id);
        self.attempt(id).release_file();
        self.requests[id].buffer = None;
        self.requests.remove(id);
    }

    /// Empties the queues, so that no request is left to be issued.
    fn drop_queues(&mut self) {
        self.time.timeouts = Timeouts::default();
        self.order.assembly.take();
        self.order.drain.clear();
        self.order.ready.clear();
    }

    fn shut_down(&mut self) {
        self.put_out();
        self.run_finished();
        self.forget_pages(false);
        self.zero_copy.close();
        self.resources.directories = Directories::default();
        self.work.comes_back(self.aio.shut_down());
        if self.drive.token.driver() == Driver::Reactor {
            reactor::release(self);
        }
        let ids: Vec<RequestId> = self.requests.ids().collect();
        for id in ids {
            if self.requests[id].phase == Phase::Working && self.recall(id) != Recalled::Withdrawn {
                // A linked request is dropped before its predecessor, which is still in progress.
                let request = &mut self.requests[id];
                request.link = None;
                request.partner = None;
                request.flags.clear(Flags::ARM_LINK_TIMEOUT);
                continue;
            }
            self.attempt(id).disarm();
            if self.requests[id].flags.has(Flags::CHAOS) {
                self.drops_under_chaos(id);
            }
            self.drop_request(id);
        }
        self.drop_queues();
        // The work that is left is committed, and workers do it.
        self.hand_over();
        self.resources.receive_queues.leave(self.identity.serial);
        self.drive.kick_driver();
        self.drive.wake_all();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let ids: Vec<RequestId> = self.requests.ids().collect();
        for id in ids {
            if let FileHold::Owned(fd) = self.requests[id].file {
                lingering::close(fd);
            }
        }
        reactor::forget(self);
        self.resources.files.close_all();
        self.resources.personalities.forget_all();
        self.readiness.forget_all();
        self.zero_copy.close();
        self.drive.sleepers.close();
        for fd in [self.readiness.epoll(), self.drive.observers.end()].into_iter().flatten() {
            os::close_own(fd);
        }
    }
}

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
