//! The reactor: the process's one thread that drives rings while no thread waits in `enter`.
//!
//! The reactor keeps a list of rings that need attention, and looks at each of them when it is due: every few milliseconds, at its next
//! deadline, or never. A ring with outstanding requests that no call entered since the last look is taken over: its epoll instance is added
//! to the reactor's own, and the ring is due at its deadlines only. A caller that starts to wait removes the instance again by
//! `EPOLL_CTL_DEL`: no wake-up, no handshake. A ring leaves the list if it needs nothing any more, or if its caller has been waiting inside
//! for a whole tick. A wake-up costs what is ready and due; with nothing due, the thread sleeps without a timeout.
//!
//! A DEFER_TASKRUN ring is only watched: when something of it becomes ready, its observers are notified (eventfd, `IORING_SQ_TASKRUN`), and
//! the program enters and drives it itself.

pub mod run;

use core::ffi::c_void;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT};

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::ring::{Core, Ring, watches};
use crate::wait::Driver;
use crate::wait::listing::{Kick, Listing, TICK_NS};

/// Names the reactor's own eventfd among its events.
const KICK: u64 = u64::MAX;

/// Names the inotify instance, which reports that rings were closed.
const CLOSED: u64 = u64::MAX - 1;

#[derive(Clone, Copy)]
struct Attended {
    ring: &'static Ring,
    serial: u64,
    activity: u64,
    /// The time of the last look at the ring, on the monotonic clock.
    looked_ns: u64,
}

struct Reactor {
    /// The entry of the thread. The thread's code uses modules above this one, so `setup` passes the entry.
    entry: Option<Entry>,
    epoll: Option<Fd>,
    kick: Fd,
    running: bool,
    /// The thread is to end: no other thread relies on it.
    leaves: bool,
    /// The credentials that the thread was cloned with.
    credentials: Credentials,
    /// The number of the current term. A thread of an earlier term ends.
    term: usize,
    /// The term of the thread that runs.
    launched: usize,
    listing: Listing<Attended>,
}

static REACTOR: Mutex<Reactor> = Mutex::new(Reactor {
    entry: None,
    epoll: None,
    kick: -1,
    running: false,
    leaves: false,
    credentials: Credentials::FIRST,
    term: 0,
    launched: 0,
    listing: Listing::new(),
});

/// Queued work waits for workers that only the reactor can clone.
static RECRUITS: AtomicBool = AtomicBool::new(false);

/// The entry of a thread, with its argument.
type Entry = extern "C" fn(*mut c_void);

/// Sets the entry of the thread, without which the reactor cannot run.
pub fn set_entry(entry: Entry) {
    REACTOR.lock().entry = Some(entry);
}

/// Returns the lock of the list of rings, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &REACTOR
}

/// Lists a ring with the reactor, which looks after it from then on. Called under the ring's lock. If something waits outside `enter`, or
/// cannot enter, the reactor drives the ring at once.
pub fn attend(core: &mut Core) {
    // Other processes cannot enter to drive this process's requests.
    let at_once = core.drive.observers.may_wait_outside()
        || core.shared.is_crowded()
        || core.work.in_flight().is_left_alone();
    if core.drive.attendance.listed {
        let left = core.drive.token.driver() == Driver::Nobody && !(at_once && take_over(core));
        if left && core::mem::take(&mut core.drive.attendance.was_driven) {
            // A caller took the ring back from the reactor, which may sleep without a timeout.
            wake_for_a_tick(core);
        }
        return;
    }
    if core.is_left_to_callers() {
        return;
    }
    if !start(core) {
        // Without the reactor, no tick finds reads that the program does not fetch.
        core.hand_over_in_flight();
        return;
    }
    core.drive.attendance.listed = true;
    if core.drive.token.driver() == Driver::Nobody && at_once {
        take_over(core);
    }
}

/// Lists a ring with the reactor, as [`attend`] does, if anything in the ring needs a thread that sleeps for it.
pub fn attend_if_needed(core: &mut Core) {
    if core.needs_driver() {
        attend(core);
    }
}

/// Has the reactor run if a watch reports the ring's close. For rings that have files, a thread, or work that may take for ever: perhaps no
/// call enters them any more.
pub fn hear_of_close(core: &mut Core) {
    if !core.drive.attendance.is_heard {
        core.drive.attendance.is_heard = watches::watch_fd().is_none() || REACTOR.lock().launch_if_gone();
    }
}

/// Has the reactor run for a watch that the ring did not have before: without a watch, there was nothing to hear of.
pub fn hear_of_new_watch(core: &mut Core) {
    core.drive.attendance.is_heard = false;
    hear_of_close(core);
}

/// Adds the watch that reports closes to the reactor's epoll instance. A reactor that is launched later does so itself.
pub fn listen(watch: Fd) {
    if let Some(epoll) = REACTOR.lock().epoll {
        hear_in(epoll, watch);
    }
}

/// Has the reactor's epoll instance report the watch's events.
fn hear_in(epoll: Fd, watch: Fd) {
    let _ = os::epoll_ctl(epoll, EPOLL_CTL_ADD, watch, EPOLLIN | EPOLLET, CLOSED);
}

/// Launches the thread if it does not run and the ring will need it when its caller leaves. A launch may cost the caller its turn on the
/// processor.
pub fn prepare(core: &Core) {
    if core.drive.attendance.listed
        || core.drive.token.driver() != Driver::Nobody
        || core.is_left_to_callers()
    {
        return;
    }
    // If the thread cannot be launched now, that is tried again when the caller leaves.
    REACTOR.lock().launch_if_gone();
}

/// Asks for the reactor's next ticks, before a caller sleeps, if anything in the ring has to be checked at ticks.
pub fn attend_stale(core: &mut Core) {
    if !core.needs_ticks() || core.rechecks_itself() {
        return;
    }
    if core.drive.attendance.listed {
        // While the reactor drove the ring, the ring needed no ticks; otherwise it ticks already.
        if core::mem::take(&mut core.drive.attendance.was_driven) {
            wake_for_a_tick(core);
        }
    } else if start(core) {
        core.drive.attendance.listed = true;
    }
}

/// Has a listed ring looked at within the time of a tick: the reactor may sleep without a timeout.
fn wake_for_a_tick(core: &Core) {
    let due_ns = os::monotonic_ns().saturating_add(TICK_NS);
    let mut reactor = REACTOR.lock();
    let kick = reactor.listing.bring_look_forward(core.identity.serial, due_ns);
    reactor.kicked_if(kick);
}

fn start(core: &Core) -> bool {
    let mut reactor = REACTOR.lock();
    if !reactor.launch_if_gone() {
        return false;
    }
    let now = os::monotonic_ns();
    let activity = core.life.activity();
    let attended =
        Attended { ring: core.identity.ring, serial: core.identity.serial, activity, looked_ns: now };
    let kick = reactor.listing.add(core.identity.serial, attended, now);
    reactor.kicked_if(kick);
    true
}

impl Reactor {
    /// Wakes the thread if it has to look at the list again.
    fn kicked_if(&mut self, Kick(needed): Kick) {
        if needed {
            self.wake();
        }
    }

    /// Wakes the thread. If the program has closed its descriptors unseen, that fails: another thread goes on with the list.
    fn wake(&mut self) {
        if !os::eventfd_signal(self.kick) {
            self.lose_descriptors();
            self.running = false;
            self.launch();
        }
    }

    fn lose_descriptors(&mut self) {
        if let Some(epoll) = self.epoll.take() {
            os::close_own(epoll);
            os::close_own(self.kick);
        }
    }

    /// Makes the thread's descriptors, if it has none. Returns false if they cannot be had.
    fn make_descriptors(&mut self) -> bool {
        if self.epoll.is_some() {
            return true;
        }
        let Ok(epoll) = os::epoll_create() else { return false };
        let Ok(kick) = os::eventfd() else {
            os::close(epoll);
            return false;
        };
        let _ = os::epoll_ctl(epoll, EPOLL_CTL_ADD, kick, EPOLLIN | EPOLLET, KICK);
        if let Some(closed) = watches::watch_fd() {
            hear_in(epoll, closed);
        }
        self.epoll = Some(epoll);
        self.kick = kick;
        true
    }

    /// Launches the thread, unless it runs. Returns false if it cannot be launched.
    fn launch_if_gone(&mut self) -> bool {
        self.running || self.launch()
    }

    fn launch(&mut self) -> bool {
        let Some(entry) = self.entry.filter(|_| self.make_descriptors()) else { return false };
        self.term += 1;
        self.launched = self.term;
        self.credentials = credentials::acting();
        self.leaves = false;
        self.running = threads::spawn(c"anyring-reactor", entry, self.term as *mut c_void).is_ok();
        self.running
    }

    /// Tells the thread to end, if it runs.
    fn dismiss(&mut self) {
        self.term += 1;
        self.leaves = true;
        if self.running && !os::eventfd_signal(self.kick) {
            self.lose_descriptors();
            self.running = false;
        }
    }
}

/// True if the reactor starts workers with these credentials for work that is queued now. Called with the pool's lock held: a reactor that
/// ends looks at the queue afterwards.
pub fn has(credentials: Credentials) -> bool {
    let reactor = REACTOR.lock();
    reactor.running && !reactor.leaves && reactor.credentials == credentials
}

/// Has the reactor start the workers for which queued work waits, if it runs.
pub fn recruit() {
    // Release pairs with the acquire in the thread's loop: the work was queued before.
    RECRUITS.store(true, Ordering::Release);
    let mut reactor = REACTOR.lock();
    if reactor.running {
        reactor.wake();
    }
}

/// Replaces the reactor's thread, because the process has other credentials, as soon as the old thread has ended. The new one also starts
/// workers for work that others leave behind.
pub fn renew(until_ns: u64) {
    let mut reactor = REACTOR.lock();
    if reactor.running {
        reactor.dismiss();
        let term = reactor.term;
        drop(reactor);
        threads::wait(until_ns, || {
            let reactor = REACTOR.lock();
            !reactor.running || reactor.term != term
        });
        reactor = REACTOR.lock();
    }
    reactor.launch_if_gone();
}

/// True if the reactor runs.
#[cfg(anyring_simulation)]
pub fn is_running() -> bool {
    REACTOR.lock().running
}

/// Ends the reactor.
#[cfg(anyring_simulation)]
pub fn retire() {
    REACTOR.lock().dismiss();
    threads::wait(u64::MAX, || !is_running());
    let mut reactor = REACTOR.lock();
    (reactor.term, reactor.launched) = (0, 0);
}

/// Has the reactor drive a ring: adds the ring's epoll instance to the reactor's. Returns false if that fails: the kernel limits how many
/// nested epoll instances can watch one file.
fn take_over(core: &mut Core) -> bool {
    let Ok(epoll) = core.epoll() else { return false };
    let mut reactor = REACTOR.lock();
    let Some(outer) = reactor.epoll else { return false };
    if put(outer, epoll, core.identity.serial).is_err() {
        return false;
    }
    core.drive.token.give(Driver::Reactor);
    core.watch_pages();
    core.drive.attendance.was_driven = true;
    // The reactor's sleep is bounded by the ring's deadlines, and by a tick if anything has to be checked at ticks.
    let tick_ns = if core.needs_ticks() { os::monotonic_ns().saturating_add(TICK_NS) } else { u64::MAX };
    let kick = reactor.listing.bring_look_forward(core.identity.serial, due_ns(core).min(tick_ns));
    reactor.kicked_if(kick);
    true
}

/// Adds a ring's epoll instance to the reactor's, under the ring's serial number.
fn put(outer: Fd, epoll: Fd, serial: u64) -> Result<(), Errno> {
    let events = EPOLLIN | EPOLLONESHOT;
    match os::epoll_ctl(outer, EPOLL_CTL_ADD, epoll, events, serial) {
        Err(Errno::EEXIST) => os::epoll_ctl(outer, EPOLL_CTL_MOD, epoll, events, serial),
        other => other,
    }
}

/// Returns when a ring's next timer is due, on the monotonic clock; `u64::MAX` if it has none.
fn due_ns(core: &Core) -> u64 {
    core.next_timer_ns().map_or(u64::MAX, |left| os::monotonic_ns().saturating_add(left))
}

/// Takes the driver's role back from the reactor, for a caller.
pub fn release(core: &mut Core) {
    debug_assert!(core.drive.token.driver() == Driver::Reactor, "only what the reactor drives is released");
    core.drive.token.give_up();
    let outer = REACTOR.lock().epoll;
    if let (Some(outer), Some(epoll)) = (outer, core.readiness.epoll()) {
        let _ = os::epoll_ctl(outer, EPOLL_CTL_DEL, epoll, 0, 0);
    }
}

/// Has the reactor look at a ring from time to time, because it can no longer drive the ring.
pub fn leave_to_looks(core: &mut Core) {
    release(core);
    core.drive.attendance.was_driven = false;
    wake_for_a_tick(core);
}

/// Has the reactor wake earlier, if it drives the ring and the ring's new timer needs that.
pub fn deadline_changed(core: &mut Core) {
    if core.drive.token.driver() != Driver::Reactor {
        return;
    }
    let due_ns = due_ns(core);
    let mut reactor = REACTOR.lock();
    let kick = reactor.listing.bring_look_forward(core.identity.serial, due_ns);
    reactor.kicked_if(kick);
}

/// Removes a ring that ends from the list.
pub fn forget(core: &mut Core) {
    if core::mem::take(&mut core.drive.attendance.listed) {
        REACTOR.lock().listing.remove(core.identity.serial);
    }
}

/// Resets the reactor in a child after `fork`: the parent's thread does not exist here.
///
/// # Safety
/// No other thread of this process may use the reactor.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { REACTOR.reset() };
    let mut reactor = REACTOR.lock();
    // The parent's reactor shares this epoll instance: only the descriptor is closed.
    if let Some(epoll) = reactor.epoll.take() {
        os::close_own(epoll);
        os::close_own(reactor.kick);
    }
    reactor.running = false;
    RECRUITS.store(false, Ordering::Relaxed);
    reactor.listing.clear();
}
