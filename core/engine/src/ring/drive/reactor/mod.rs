//! The reactor: the process's one thread that drives rings while nobody waits in `enter`.
//!
//! The reactor keeps a list of rings that want attention and looks at each of them when it is due: every few
//! milliseconds, at its next deadline, or never. A ring with requests outstanding into which nobody
//! came since the last look is taken over: its epoll instance is put into the reactor's own, and it is
//! due at its deadlines only. A caller that starts to wait takes it out again by `EPOLL_CTL_DEL`: no
//! wake-up, no hand-shake. A ring that needs nothing any more, or whose caller has been waiting inside
//! for a whole tick, leaves the list. A wake-up costs what is ready and due; with nothing due the thread sleeps for good.
//!
//! A DEFER_TASKRUN ring is only watched from here: when something of it becomes ready its observers
//! are told (eventfd, `IORING_SQ_TASKRUN`), and the program comes and drives it itself.

mod attendance;
pub mod run;

use core::ffi::c_void;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT};

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::ring::watches;
use crate::ring::{Core, Ring};
use crate::wait::Driver;
use crate::wait::listing::{Kick, Listing, TICK_NS};

pub use attendance::Attendance;

/// Names the reactor's own eventfd among its events.
const KICK: u64 = u64::MAX;

/// Names the notifications that rings were closed.
const CLOSED: u64 = u64::MAX - 1;

#[derive(Clone, Copy)]
struct Attended {
    ring: &'static Ring,
    serial: u64,
    activity: u64,
    /// When it was looked at last.
    looked_ns: u64,
}

struct Reactor {
    /// The code of the thread. It uses all that is above this file, so `setup` gives it.
    entry: Option<Entry>,
    epoll: Option<Fd>,
    kick: Fd,
    running: bool,
    /// The thread is to end: nobody counts on it any more.
    leaves: bool,
    /// The credentials that the thread was cloned with.
    credentials: Credentials,
    /// How many there have been; one that is not the last ends.
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

/// Work waits for workers that only the reactor can clone.
static RECRUITS: AtomicBool = AtomicBool::new(false);

/// The entry of a thread, with its argument.
type Entry = extern "C" fn(*mut c_void);

/// From now on the reactor can run: this is its thread.
pub fn set_entry(entry: Entry) {
    REACTOR.lock().entry = Some(entry);
}

/// The lock of the list of rings, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &REACTOR
}

/// Asks the reactor to look after a ring. Called under the ring's lock; does nothing where the
/// reactor knows of it already.
pub fn attend(core: &mut Core) {
    // Other processes cannot come and drive this one's requests.
    let at_once =
        core.drive.observers.may_wait_outside() || core.is_crowded() || core.work.in_flight().is_left_alone();
    if core.drive.attendance.listed {
        let left = core.drive.token.driver() == Driver::Nobody && !(at_once && take_over(core));
        if left && core::mem::take(&mut core.drive.attendance.was_driven) {
            // It was taken back from a reactor that had gone to sleep for good.
            wake_for_a_tick(core);
        }
        return;
    }
    if core.is_left_to_callers() {
        return;
    }
    if !start(core) {
        // Nobody is going to find that the program does not come for its reads.
        core.hand_over_in_flight();
        return;
    }
    core.drive.attendance.listed = true;
    if core.drive.token.driver() == Driver::Nobody && at_once {
        take_over(core);
    }
}

/// The ring has files, a thread, or work that may take for ever, and perhaps nobody comes by any more: if a watch is what tells
/// of its close, that must be heard of.
pub fn hear_of_close(core: &mut Core) {
    if !core.drive.attendance.is_heard {
        core.drive.attendance.is_heard = watches::watch_fd().is_none() || REACTOR.lock().launch_if_gone();
    }
}

/// There is a watch now, in which closes are told of. A reactor that is launched later finds it itself.
pub fn listen(watch: Fd) {
    if let Some(epoll) = REACTOR.lock().epoll {
        hear_in(epoll, watch);
    }
}

/// Lets the reactor's epoll instance tell of what the watch tells of.
fn hear_in(epoll: Fd, watch: Fd) {
    let _ = os::epoll_ctl(epoll, EPOLL_CTL_ADD, watch, EPOLLIN | EPOLLET, CLOSED);
}

/// Starts the thread, where the ring will need it when its caller leaves and it does not run. That may cost the caller its
/// turn on the processor.
pub fn prepare(core: &Core) {
    if core.drive.attendance.listed
        || core.drive.token.driver() != Driver::Nobody
        || core.is_left_to_callers()
    {
        return;
    }
    // Where it cannot be launched now, that is tried again when the caller leaves.
    REACTOR.lock().launch_if_gone();
}

/// Before a caller sleeps: what has to be looked at by and by needs the reactor's next ticks.
pub fn attend_stale(core: &mut Core) {
    if !core.needs_ticks() || core.rechecks_itself() {
        return;
    }
    if core.drive.attendance.listed {
        // While the reactor drove the ring, nothing of it needed a tick; otherwise it ticks.
        if core::mem::take(&mut core.drive.attendance.was_driven) {
            wake_for_a_tick(core);
        }
    } else if start(core) {
        core.drive.attendance.listed = true;
    }
}

/// A ring on the list is to be looked at within the time of a tick: the reactor may be asleep for good.
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
    /// Wakes the thread where it has to look again.
    fn kicked_if(&mut self, Kick(needed): Kick) {
        if needed {
            self.wake();
        }
    }

    /// Wakes the thread. Where the program has closed its descriptors unseen, nobody can: another one goes on with the list.
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

    /// Makes the thread's descriptors, where it has none. False where they cannot be had.
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

    /// Launches the thread, unless it runs. False if it cannot be launched.
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

    /// Has the thread end, if it runs.
    fn dismiss(&mut self) {
        self.term += 1;
        self.leaves = true;
        if self.running && !os::eventfd_signal(self.kick) {
            self.lose_descriptors();
            self.running = false;
        }
    }
}

/// Does the reactor start workers with these credentials for work that is queued now? Asked with the pool's lock held: one
/// that ends looks at the queue afterwards.
pub fn has(credentials: Credentials) -> bool {
    let reactor = REACTOR.lock();
    reactor.running && !reactor.leaves && reactor.credentials == credentials
}

/// Has it start the workers that queued work waits for, if it runs.
pub fn recruit() {
    // Release pairs with the acquire where the reactor looks: the work was queued before.
    RECRUITS.store(true, Ordering::Release);
    let mut reactor = REACTOR.lock();
    if reactor.running {
        reactor.wake();
    }
}

/// The process has other credentials: another thread takes the reactor's place, as soon as the one so
/// far has ended. It starts workers for what others leave behind, too.
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

/// Is there a reactor?
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

/// Puts a ring's epoll instance into the reactor's: from now on the reactor drives it. False where that cannot be: the
/// kernel lets only so many instances that are in another one know the same file.
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
    // A ring's deadlines bound the reactor's sleep, and so does what has to be looked at by and by.
    let tick_ns = if core.needs_ticks() { os::monotonic_ns().saturating_add(TICK_NS) } else { u64::MAX };
    let kick = reactor.listing.bring_look_forward(core.identity.serial, due_ns(core).min(tick_ns));
    reactor.kicked_if(kick);
    true
}

/// Puts a ring's epoll instance into the reactor's, where the ring is known by its serial number.
fn put(outer: Fd, epoll: Fd, serial: u64) -> Result<(), Errno> {
    let events = EPOLLIN | EPOLLONESHOT;
    match os::epoll_ctl(outer, EPOLL_CTL_ADD, epoll, events, serial) {
        Err(Errno::EEXIST) => os::epoll_ctl(outer, EPOLL_CTL_MOD, epoll, events, serial),
        other => other,
    }
}

/// When a ring's next timer is due, on the monotonic clock; `u64::MAX` where it has none.
fn due_ns(core: &Core) -> u64 {
    core.time.timers.next_ns().map_or(u64::MAX, |left| os::monotonic_ns().saturating_add(left))
}

/// A caller takes the driver's role back from the reactor.
pub fn release(core: &mut Core) {
    debug_assert!(core.drive.token.driver() == Driver::Reactor, "only what the reactor drives is released");
    core.drive.token.give_up();
    let outer = REACTOR.lock().epoll;
    if let (Some(outer), Some(epoll)) = (outer, core.readiness.epoll()) {
        let _ = os::epoll_ctl(outer, EPOLL_CTL_DEL, epoll, 0, 0);
    }
}

/// The reactor cannot drive a ring any more that it drives: it looks at it from time to time from now on.
pub fn leave_to_looks(core: &mut Core) {
    release(core);
    core.drive.attendance.was_driven = false;
    wake_for_a_tick(core);
}

/// A ring that the reactor drives got a timer: it may have to wake earlier.
pub fn deadline_changed(core: &mut Core) {
    if core.drive.token.driver() != Driver::Reactor {
        return;
    }
    let due_ns = due_ns(core);
    let mut reactor = REACTOR.lock();
    let kick = reactor.listing.bring_look_forward(core.identity.serial, due_ns);
    reactor.kicked_if(kick);
}

/// A ring ends: it leaves the list.
pub fn forget(core: &mut Core) {
    if core::mem::take(&mut core.drive.attendance.listed) {
        REACTOR.lock().listing.remove(core.identity.serial);
    }
}

/// In a child after `fork`: the parent's reactor is not here.
///
/// # Safety
/// No other thread of this process may use the reactor.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { REACTOR.reset() };
    let mut reactor = REACTOR.lock();
    // The epoll instance is shared with the parent's reactor: leave it alone.
    if let Some(epoll) = reactor.epoll.take() {
        os::close_own(epoll);
        os::close_own(reactor.kick);
    }
    reactor.running = false;
    RECRUITS.store(false, Ordering::Relaxed);
    reactor.listing.clear();
}
