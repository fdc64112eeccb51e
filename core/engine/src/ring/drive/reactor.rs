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

use crate::os::sync::atomic::{AtomicBool, Ordering};
use core::ffi::c_void;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT};

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Guard, Mutex};
use crate::os::{self, EpollEvent, Fd, user};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::ring::drive::BATCH;
use crate::ring::{Core, CoreGuard, Ring, descriptors, lifetime, live};
use crate::wait::Driver;
pub use crate::wait::listing::TICK_NS;
use crate::wait::listing::{Kick, Listing};
use crate::work::pool;

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

/// The state that a ring keeps about the reactor.
#[derive(Default)]
pub struct Attendance {
    /// The ring is on the reactor's list.
    listed: bool,
    /// The reactor drove it, and may sleep as if it still did.
    was_driven: bool,
    /// The reactor runs, or nothing tells it of closes.
    is_heard: bool,
}

impl Attendance {
    /// Is the ring on the reactor's list?
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// In a child after `fork`, whose reactor has no ring.
    pub fn forked(&mut self) {
        self.listed = false;
        self.is_heard = false;
    }
}

struct Reactor {
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
        core.drive.attendance.is_heard = lifetime::watch_fd().is_none() || REACTOR.lock().launch_if_gone();
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
        if let Some(closed) = lifetime::watch_fd() {
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
        if !self.make_descriptors() {
            return false;
        }
        self.term += 1;
        self.launched = self.term;
        self.credentials = credentials::acting();
        self.leaves = false;
        self.running = threads::spawn(c"anyring-reactor", run, self.term as *mut c_void).is_ok();
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

/// The reactor ends, once the workers are started that it was asked for: nobody else has its credentials.
fn leave(own: Credentials, term: usize) {
    // Another one may run already, where nobody could wake this one.
    let ends = || {
        let mut reactor = REACTOR.lock();
        if reactor.launched == term {
            reactor.running = false;
        }
    };
    if pool::recruit(own) {
        threads::end();
        ends();
        return;
    }
    // No thread is to be had now. Another reactor need not wait for that.
    ends();
    while !pool::recruit(own) {
        os::pause(TICK_NS);
    }
    threads::end();
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

/// The reactor has another epoll instance than before: the rings that it drives are put there.
fn put_all(outer: Fd) {
    let rings = REACTOR.lock().listing.rings();
    for attended in rings {
        let mut guard = enter(attended.ring);
        let Some(core) = live(&mut guard, attended.serial) else { continue };
        if core.drive.token.driver() != Driver::Reactor {
            continue;
        }
        core.renews_epoll();
        let epoll = core.readiness.epoll();
        if epoll.is_none_or(|epoll| put(outer, epoll, core.identity.serial).is_err()) {
            leave_to_looks(core);
        }
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

extern "C" fn run(term: *mut c_void) {
    let term = term as usize;
    let (mut epoll, own) = {
        let reactor = REACTOR.lock();
        (reactor.epoll.unwrap_or(-1), reactor.credentials)
    };
    threads::begin(own);
    put_all(epoll);
    loop {
        // Acquire pairs with the release in `recruit`.
        let wanting = RECRUITS.swap(false, Ordering::Acquire) && !pool::recruit(own);
        let Some(until_ns) = in_term(term).map(|mut reactor| reactor.listing.falls_asleep()) else { break };
        let mut timeout_ns = (until_ns != u64::MAX).then(|| until_ns.saturating_sub(os::monotonic_ns()));
        if wanting {
            // No thread is to be had now.
            RECRUITS.store(true, Ordering::Relaxed);
            timeout_ns = Some(timeout_ns.map_or(TICK_NS, |left_ns| left_ns.min(TICK_NS)));
        }
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        let woken = os::epoll_wait(epoll, &mut events, timeout_ns, None);
        let Some(()) = in_term(term).map(|mut reactor| reactor.listing.wakes()) else { break };
        let count = match woken {
            Ok(count) => count,
            // The program has closed it unseen.
            Err(Errno::EBADF | Errno::EINVAL) => {
                if let Some(mut reactor) = in_term(term) {
                    reactor.lose_descriptors();
                    reactor.make_descriptors();
                    epoll = reactor.epoll.unwrap_or(-1);
                }
                // Where there is none to be had, it is tried again.
                if epoll < 0 {
                    os::pause(TICK_NS)
                } else {
                    put_all(epoll)
                }
                0
            }
            Err(_) => 0,
        };
        for event in &events[..count] {
            let data = event.data;
            if data == CLOSED {
                // A ring that closes goes on with what is ready.
                user::take_tags();
                lifetime::collect();
            } else if data != KICK {
                // A ring that is gone may have left an entry.
                let attended = REACTOR.lock().listing.get(data);
                if let Some(attended) = attended {
                    serve(attended, |core| drive(epoll, core));
                }
            }
        }
        let due = in_term(term).map(|mut reactor| reactor.listing.take_due(os::monotonic_ns()));
        let Some(due) = due else { break };
        for attended in due {
            serve(attended, expire);
        }
    }
    leave(own, term);
}

/// The reactor's state, for the thread of this term. `None` where its time is over: the state is its successor's.
fn in_term(term: usize) -> Option<Guard<'static, Reactor>> {
    Some(REACTOR.lock()).filter(|reactor| reactor.term == term)
}

/// Does with a ring on the list what is to be done now, looks at it if the time of a tick is over since the last look, and says when
/// it is due again.
fn serve(attended: Attended, act: impl FnOnce(&mut Core)) {
    let Attended { ring, serial, activity, looked_ns } = attended;
    let mut guard = enter(ring);
    let Some(core) = live(&mut guard, serial) else {
        REACTOR.lock().listing.remove(serial);
        return;
    };
    act(core);
    let now = os::monotonic_ns();
    let looks = now >= looked_ns.saturating_add(TICK_NS);
    let seen = if looks { look_at(core, activity) } else { Some(activity) };
    let looked_ns = if looks { now } else { looked_ns };
    let due_ns = next_look_ns(core, looked_ns, now);
    // Without a need for ticks there will be none, or none soon: who takes the ring back asks for the next one.
    if core.drive.token.driver() == Driver::Reactor && (!core.needs_ticks() || core.tick_ns() > TICK_NS) {
        core.drive.attendance.was_driven = true;
    }
    let has_orphans = looks && core.has_orphans();
    let mut reactor = REACTOR.lock();
    match seen {
        Some(activity) => {
            if let Some(entry) = reactor.listing.get_mut(serial) {
                (entry.activity, entry.looked_ns) = (activity, looked_ns);
            }
            reactor.listing.set_due(serial, due_ns);
        }
        None => reactor.listing.remove(serial),
    }
    drop((reactor, guard));
    if has_orphans {
        descriptors::end_orphans(ring, None);
    }
}

/// When a ring on the list is to be looked at again: a tick after the last look if it is not driven from here, or needs ticks, and at
/// its earliest deadline if it is.
fn next_look_ns(core: &Core, looked_ns: u64, now_ns: u64) -> u64 {
    let mut due_ns = u64::MAX;
    let is_driven = core.drive.token.driver() == Driver::Reactor;
    if !is_driven || core.needs_ticks() {
        due_ns = looked_ns.saturating_add(if is_driven { core.tick_ns() } else { TICK_NS });
    }
    // The look takes the ring's lock, which finds what a process posted that was killed before it told of it.
    if let Some(look_ns) = core.next_look_ns().filter(|_| core.is_owed()) {
        due_ns = due_ns.min(now_ns.saturating_add(look_ns));
    }
    if is_driven
        && !core.drive.observers.know_of_deferred()
        && let Some(left_ns) = core.time.timers.next_ns()
    {
        due_ns = due_ns.min(now_ns.saturating_add(left_ns));
    }
    due_ns
}

/// Locks a ring to go on with its requests.
fn enter(ring: &Ring) -> CoreGuard<'_> {
    let guard = ring.lock_as_reactor();
    // Behind the lock: who made one of these requests has said before whether its addresses have tags.
    user::take_tags();
    guard
}

/// A ring may be ready that the reactor drives.
fn drive(outer: Fd, core: &mut Core) {
    if core.drive.token.driver() != Driver::Reactor {
        return;
    }
    let Some(epoll) = core.readiness.epoll() else { return };
    debug_assert!(core.zero_copy.is_all_watched(), "nothing came back unheard");
    let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
    let count = os::epoll_wait(epoll, &mut events, Some(0), None).unwrap_or(0);
    core.take_events_as_driver(&events[..count]);
    proceed(core);
    let _ = os::epoll_ctl(outer, EPOLL_CTL_MOD, epoll, EPOLLIN | EPOLLONESHOT, core.identity.serial);
}

/// Something is ready, or due: goes on with it, or tells the observers of a ring that only its own
/// thread may drive.
fn proceed(core: &mut Core) {
    if core.defers() {
        tell_of_deferred(core);
        return;
    }
    core.drive.observers.posts_later();
    core.advance();
}

/// Tells the observers of a ring that defers, once, that its thread has something to come in for.
fn tell_of_deferred(core: &mut Core) {
    let due = core.time.timers.next_ns() == Some(0);
    if (due || has_deferred(core)) && !core.drive.observers.know_of_deferred() {
        core.drive.observers.note_deferred_told();
        core.notify_deferred();
    }
}

/// Fires the timers of a ring that is driven from here.
fn expire(core: &mut Core) {
    if core.drive.token.driver() == Driver::Reactor && core.time.timers.next_ns() == Some(0) {
        proceed(core);
    }
}

/// One ring at a tick; `None` where it is to leave the list.
fn look_at(core: &mut Core, last_activity: u64) -> Option<u64> {
    if core.needs_ticks() {
        core.drive.observers.posts_later();
        core.recheck();
        core.tick_channels();
        core.put_right();
        core.note_left();
        core.resources.directories.tick();
        if !core.is_left_to_callers() {
            core.rescue_in_flight();
        }
        core.tick_transfers();
        if !core.defers() && core.drive.token.driver() != Driver::SqThread {
            core.advance();
        } else {
            if core.defers() && has_deferred(core) {
                // Nobody drives it, perhaps.
                core.notify_deferred();
            } else if !core.defers() && !core.order.ready.is_empty() {
                core.kick_driver();
            }
        }
    }
    let quiet = core.life.activity() == last_activity;
    let stays = match core.drive.token.driver() {
        Driver::SqThread => core.needs_ticks(),
        Driver::Caller => !quiet || core.needs_ticks(),
        Driver::Nobody | Driver::Reactor => core.needs_driver() || core.needs_ticks(),
    };
    if !stays {
        if core.drive.token.driver() == Driver::Reactor {
            release(core);
        }
        core.drive.attendance.listed = false;
        return None;
    }
    match core.drive.token.driver() {
        Driver::Nobody if quiet && take_over(core) => {}
        Driver::Nobody => look_for_events(core),
        _ => {}
    }
    Some(core.life.activity())
}

/// Callers come and go, and perhaps none of them waits.
fn look_for_events(core: &mut Core) {
    core.harvest_now();
    if !core.defers() {
        core.advance();
    } else {
        tell_of_deferred(core);
    }
}

/// Has a ring that defers anything for its thread to come in for?
fn has_deferred(core: &Core) -> bool {
    !core.order.ready.is_empty() || core.aio.has_completion()
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
