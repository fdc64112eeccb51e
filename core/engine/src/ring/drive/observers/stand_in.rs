//! The stand-in that is polled in place of a ring's descriptor, which is a memfd and always ready. It is an eventfd that is readable if the
//! CQ held completions at the last look or post.
//!
//! A stand-in that is readable, and in an epoll instance of the program, is *lit*. Before a wait for any instance, lit stand-ins are
//! drained if the program has emptied their CQ meanwhile; otherwise a level-triggered wait would report completions that are gone. The
//! engine does not keep which instance a ring is in: an instance has many names, and few rings are lit at a time.
//!
//! A thread that polls by a list is a *looker*: it looks at the ring before its poll ([`begin_poll`]), and after it if the stand-in is readable ([`end_poll`]).
//! As long as all threads that poll are lookers, the kernel itself signals the stand-in when an O_DIRECT transfer has ended: the thread that polls posts the
//! completion, and no other thread has to wake for that. What keeps a wake-up from getting lost:
//!
//! - the kernel signals after it has shown the transfer's event, which it does once for each;
//! - only a thread that has the ring's lock, and finds the CQ empty, drains the stand-in; it looks for transfers once more afterwards, and if
//!   it finds one, signals by itself, or has whoever takes the transfer back do so.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, user};
use crate::ring::drive::reactor;
use crate::ring::{Core, CoreGuard, Ring, live, registry, watches};
use crate::wait::Driver;

/// Returns the stand-in of the ring `fd`. Only the engine may close it.
///
/// # Errors
/// `EBADF`, `EOPNOTSUPP` if `fd` is no ring; or the reason why a descriptor cannot be had.
pub fn of(fd: Fd) -> Result<Fd, Errno> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    core.drive.observers.note_others();
    core.stand_in()
}

/// Returns the stand-in of a ring for a request, in line with the CQ.
///
/// # Errors
/// The reason why a descriptor cannot be had.
pub fn for_request(core: &mut Core) -> Result<Fd, Errno> {
    core.drive.observers.note_others();
    let stand_in = core.stand_in()?;
    core.synchronize_stand_in();
    Ok(stand_in)
}

/// Returns the stand-in of the ring `fd` for a poll that begins, in line with the CQ. If the poll finds the stand-in readable, the thread
/// calls [`end_poll`] before it goes on.
///
/// # Errors
/// As for [`of`].
pub fn begin_poll(fd: Fd) -> Result<Fd, Errno> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    let stand_in = core.stand_in()?;
    core.drive.observers.note_looker();
    core.work.note_poll();
    look_for_poll(&mut guard, false);
    Ok(stand_in)
}

/// Looks at the ring `fd` after a poll has found its stand-in readable. Returns whether there are completions: if not, the stand-in is not
/// readable any more.
pub fn end_poll(fd: Fd) -> bool {
    // Where the ring has ended meanwhile, the poll's own answer stands.
    let Some(ring) = registry::get(fd) else { return true };
    let mut guard = ring.lock();
    look_for_poll(&mut guard, true)
}

/// Takes back transfers that have ended, and brings the stand-in in line with the CQ. `was_readable`: a poll has found it readable, perhaps
/// by a signal of the kernel. Returns whether there are completions.
fn look_for_poll(guard: &mut CoreGuard<'_>, was_readable: bool) -> bool {
    let mut is_drained = false;
    loop {
        let takes = guard.as_ref().is_some_and(|core| core.aio.has_completion() && core.may_be_advanced());
        if takes {
            // After the lock, as in the reactor's thread.
            user::take_tags();
            guard.begin_to_drive();
        }
        let Some(core) = guard.as_mut() else { return true };
        if takes {
            core.drive.observers.posts_later();
            core.advance();
        }
        if core.finds_completions() {
            core.show_completions(is_drained);
            return true;
        }
        if was_readable {
            core.drive.observers.set_readable(true);
        }
        // Before the poll, it was the engine's just now.
        core.show_none(if was_readable { os::eventfd_drain } else { os::eventfd_take });
        let is_left = core.aio.has_completion();
        if is_drained || !is_left || !core.may_be_advanced() {
            // The driver takes these back, and nobody hears of them by what was drained.
            core.drive.observers.set_doubts(is_left);
            return false;
        }
        is_drained = true;
    }
}

/// Makes the stand-in of the ring `fd` readable if the CQ holds completions, and drains it if the program has taken them all. Returns
/// whether it is readable.
pub fn synchronize(fd: Fd) -> bool {
    let Some(ring) = registry::get(fd) else { return false };
    let mut guard = ring.lock();
    guard.as_mut().is_some_and(Core::synchronize_stand_in)
}

/// Rings whose stand-in is lit. Changes for a ring under the ring's lock, inside which this lock is taken.
static LIT: Mutex<Vec<(&'static Ring, u64)>> = Mutex::new(Vec::new());
/// True if any stand-in is lit. A thread that waits for an instance sees at least its own changes.
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns the lock of the list of lit stand-ins, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &LIT
}

/// Resets the list's lock in a child after `fork`: its rings have the parent's stand-ins.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { LIT.reset() };
}

/// True if the stand-in of any ring is lit.
#[inline]
pub fn any_lit() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Drains the lit stand-ins whose CQ is empty. Called without a lock.
#[cold]
pub fn synchronize_lit() {
    let lit = LIT.lock().clone();
    for (ring, serial) in lit {
        // If another thread has the ring's lock, the ring is shown ready for too long at worst: the next wait looks again.
        let Some(mut guard) = ring.try_lock() else { continue };
        match live(&mut guard, serial) {
            Some(core) => _ = core.look_for_completions(),
            None => put_out(ring, serial),
        }
    }
}

fn put_out(ring: &'static Ring, serial: u64) {
    let mut lit = LIT.lock();
    lit.retain(|&(other, of)| !(core::ptr::eq(ring, other) && of == serial));
    ANY.store(!lit.is_empty(), Ordering::Relaxed);
}

/// Notes that the stand-in of the ring `fd` was put into an epoll instance of the program.
pub fn added_to_epoll(fd: Fd) {
    let Some(ring) = registry::get(fd) else { return };
    if let Some(core) = ring.lock().as_mut() {
        core.drive.observers.note_in_epoll();
        if core.drive.observers.is_readable() || core.is_shown_by_others() {
            core.light();
        }
    }
}

/// Replaces the descriptor `fd` of a ring by the ring's stand-in.
///
/// # Errors
/// As for [`of`].
pub fn show(fd: Fd) -> Result<(), Errno> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    let stand_in = core.stand_in()?;
    let identity = os::identity(stand_in)?;
    let note = |file: [u64; 2]| {
        ring.shown.iter().zip(file).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    };
    let before = ring.shown.each_ref().map(|word| word.load(Ordering::Relaxed));
    // Before the kernel reports that the memory's descriptor is gone: the thread that reads the report looks without the lock.
    note([identity.device, identity.inode]);
    os::replace(stand_in, fd).inspect_err(|_| note(before))?;
    core.drive.observers.note_stand_in_shown();
    watches::unwatch(ring.ring(), core.serial());
    Ok(())
}

impl Core {
    fn stand_in(&mut self) -> Result<Fd, Errno> {
        if let Some(fd) = self.drive.observers.stand_in().filter(|&fd| os::is_still_own(fd)) {
            return Ok(fd);
        }
        let fd = os::eventfd()?;
        if let Some(lost) = self.drive.observers.stand_in() {
            os::close_own(lost);
        }
        self.drive.observers.set_stand_in(fd);
        self.shared.note_own_stand_in();
        if self.queues.cq_ready() > 0 {
            self.drive.observers.set_readable(os::eventfd_signal(fd));
        }
        reactor::attend_if_needed(self);
        Ok(fd)
    }

    /// True if a thread other than the one that fetches completions may advance the ring.
    fn may_be_advanced(&self) -> bool {
        !self.life.is_closing() && !self.defers() && self.drive.token.driver() != Driver::SqThread
    }

    /// Makes the stand-in readable; `is_drained`: it was drained after the transfer had ended whose completion is to be shown.
    fn show_completions(&mut self, is_drained: bool) {
        if is_drained {
            self.drive.observers.set_readable(false);
        } else if self.shared.has_page() || !self.drive.observers.are_lookers() {
            // Other processes may have drained it.
            self.drain_stand_in(os::eventfd_drain);
        }
        self.signal_readiness();
    }

    fn synchronize_stand_in(&mut self) -> bool {
        if self.drive.observers.stand_in().is_none() {
            return false;
        }
        let is_ready = self.look_for_completions();
        if is_ready {
            self.show_completions(false);
        }
        is_ready
    }

    /// Drains a stand-in that is readable in the descriptor's place, if the program has taken all completions without a call. A poller
    /// would find it readable for ever. Until the program polls again, the reactor's ticks check.
    #[inline]
    pub(in crate::ring::drive) fn put_right(&mut self) {
        if self.drive.observers.may_be_stale() {
            self.put_right_shown();
        }
    }

    #[cold]
    fn put_right_shown(&mut self) {
        if self.look_for_completions() {
            reactor::attend_stale(self);
        }
    }

    /// Drains the stand-in if there are no completions. Its pollers see no other event: an edge says that a completion was posted.
    fn look_for_completions(&mut self) -> bool {
        let is_ready = self.finds_completions();
        if !is_ready {
            self.show_none(os::eventfd_drain);
        }
        is_ready
    }

    /// True if there are completions, or there will be when the ring's own thread enters.
    fn finds_completions(&mut self) -> bool {
        self.flush_overflow();
        // Those that found no room are completions, too: the program may have made room just now.
        self.queues.cq_ready() > 0 || self.queues.cq.kept() > 0 || self.defers() && self.has_to_be_entered()
    }

    /// True if a ring that defers has anything for its thread to fetch. What the observers were told is not told again before the thread
    /// enters.
    fn has_to_be_entered(&self) -> bool {
        self.drive.observers.know_of_deferred()
            || !self.order.ready.is_empty()
            || self.aio.has_completion()
            || self.work.finished() > 0
            || self.queues.cq.messages() > 0
    }

    /// Has `drain` reset the stand-in: there are no completions.
    fn show_none(&mut self, drain: fn(Fd)) {
        self.drain_stand_in(drain);
        self.unmark_shown();
        if self.drive.token.driver() == Driver::Nobody {
            reactor::attend_if_needed(self);
        }
    }

    /// True if the stand-in may become readable though this process does not signal it.
    fn is_shown_by_others(&self) -> bool {
        self.shared.has_page() || self.drive.observers.were_lookers()
    }

    /// Adds the stand-in, which is readable now, to the list of lit ones.
    pub(in crate::ring) fn light(&mut self) {
        let (ring, serial) = (self.ring(), self.serial());
        if self.drive.observers.mark_lit() {
            let mut lit = LIT.lock();
            lit.push((ring, serial));
            ANY.store(true, Ordering::Relaxed);
        }
    }

    /// Removes the stand-in, which is drained now, from the list, unless other processes may make it readable, too.
    pub(super) fn put_out_own(&mut self) {
        if !self.is_shown_by_others() {
            self.put_out();
        }
    }

    /// Removes the stand-in from the list, even if other processes may make it readable.
    pub(in crate::ring) fn put_out(&mut self) {
        if self.drive.observers.unmark_lit() {
            put_out(self.ring(), self.serial());
        }
    }
}
