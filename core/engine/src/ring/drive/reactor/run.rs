//! The thread of the reactor.

use core::ffi::c_void;

use linux_raw_sys::general::{EPOLL_CTL_MOD, EPOLLIN, EPOLLONESHOT};

use crate::abi::Errno;
use crate::feature::zero_copy_send::ending;
use crate::os::sync::Guard;
use crate::os::sync::atomic::Ordering;
use crate::os::{self, EpollEvent, Fd, user};
use crate::process::credentials::Credentials;
use crate::process::threads;
use crate::ring::drive::names::BATCH;
use crate::ring::drive::reactor::{
    Attended, CLOSED, KICK, REACTOR, RECRUITS, Reactor, leave_to_looks, put, release, take_over,
};
use crate::ring::{Core, CoreGuard, Ring, lifetime, live};
use crate::wait::Driver;
use crate::wait::listing::TICK_NS;
use crate::work::pool;

/// Ends the reactor's thread, after it has started the requested workers: no other thread has its credentials.
fn leave(own: Credentials, term: usize) {
    // If this thread could not be woken, another one may run already.
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
    // No thread can be had now. Another reactor need not wait for this one.
    ends();
    while !pool::recruit(own) {
        os::pause(TICK_NS);
    }
    threads::end();
}

/// Adds the epoll instances of the rings that the reactor drives to its new instance.
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

/// Runs the thread of this term.
pub extern "C" fn run(term: *mut c_void) {
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
            // No thread can be had now.
            RECRUITS.store(true, Ordering::Relaxed);
            timeout_ns = Some(timeout_ns.map_or(TICK_NS, |left_ns| left_ns.min(TICK_NS)));
        }
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        let woken = os::epoll_wait(epoll, &mut events, timeout_ns, None);
        let Some(()) = in_term(term).map(|mut reactor| reactor.listing.wakes()) else { break };
        let count = match woken {
            Ok(count) => count,
            // The program has closed the instance unseen.
            Err(Errno::EBADF | Errno::EINVAL) => {
                if let Some(mut reactor) = in_term(term) {
                    reactor.lose_descriptors();
                    reactor.make_descriptors();
                    epoll = reactor.epoll.unwrap_or(-1);
                }
                // If no instance can be had, the next round tries again.
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
                // Closing a ring advances its ready requests, whose addresses may have tags.
                user::take_tags();
                lifetime::collect();
            } else if data != KICK {
                // A ring that is gone may have left an entry in the instance.
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

/// Returns the reactor's state, for the thread of this term. `None` if the term is over: the state is the successor's.
fn in_term(term: usize) -> Option<Guard<'static, Reactor>> {
    Some(REACTOR.lock()).filter(|reactor| reactor.term == term)
}

/// Does `act` with a listed ring, looks at the ring if a tick has passed since the last look, and notes when the ring is due again.
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
    // Without ticks, or with long ones, a thread that takes the ring back has to ask for the next tick.
    if core.drive.token.driver() == Driver::Reactor && (!core.needs_ticks() || core.tick_ns() > TICK_NS) {
        core.drive.attendance.was_driven = true;
    }
    let has_orphans = looks && core.zero_copy.has_orphans();
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
        ending::end_orphans(ring, None);
    }
}

/// Returns when a listed ring is due again: a tick after the last look if the reactor does not drive it, or if it needs ticks; at its
/// earliest deadline if the reactor drives it.
fn next_look_ns(core: &Core, looked_ns: u64, now_ns: u64) -> u64 {
    let mut due_ns = u64::MAX;
    let is_driven = core.drive.token.driver() == Driver::Reactor;
    if !is_driven || core.needs_ticks() {
        due_ns = looked_ns.saturating_add(if is_driven { core.tick_ns() } else { TICK_NS });
    }
    // A look takes the ring's lock, and so finds what a process posted that was killed before it could ring the bell.
    if let Some(look_ns) = core.shared.next_look_ns().filter(|_| core.is_owed()) {
        due_ns = due_ns.min(now_ns.saturating_add(look_ns));
    }
    if is_driven
        && !core.drive.observers.know_of_deferred()
        && let Some(left_ns) = core.next_timer_ns()
    {
        due_ns = due_ns.min(now_ns.saturating_add(left_ns));
    }
    due_ns
}

/// Locks a ring to advance its requests.
fn enter(ring: &Ring) -> CoreGuard<'_> {
    let guard = ring.lock_as_reactor();
    // After the lock: the thread that made these requests has noted before whether their addresses have tags.
    user::take_tags();
    guard
}

/// Takes events of a ring that the reactor drives.
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

/// Advances a ring in which something is ready or due. If only the ring's own thread may drive it, notifies the ring's observers.
fn proceed(core: &mut Core) {
    if core.defers() {
        tell_of_deferred(core);
        return;
    }
    core.drive.observers.posts_later();
    core.advance();
}

/// Notifies the observers of a ring that defers, once, that `enter` has something to fetch.
fn tell_of_deferred(core: &mut Core) {
    let due = core.next_timer_ns() == Some(0);
    if (due || has_deferred(core)) && !core.drive.observers.know_of_deferred() {
        core.drive.observers.note_deferred_told();
        core.notify_deferred();
    }
}

/// Fires the timers of a ring that the reactor drives.
fn expire(core: &mut Core) {
    if core.drive.token.driver() == Driver::Reactor && core.next_timer_ns() == Some(0) {
        proceed(core);
    }
}

/// Looks at a ring at a tick; returns the ring's activity, or `None` if the ring is to leave the list.
fn look_at(core: &mut Core, last_activity: u64) -> Option<u64> {
    if core.needs_ticks() {
        core.drive.observers.posts_later();
        core.recheck();
        core.tick_channels();
        core.put_right();
        core.drive.observers.note_left(core.queues.left());
        core.resources.directories.tick();
        core.tick_device(!core.is_left_to_callers());
        if !core.defers() && core.drive.token.driver() != Driver::SqThread {
            core.advance();
        } else {
            if core.defers() && has_deferred(core) {
                // Perhaps no thread drives the ring.
                core.notify_deferred();
            } else if !core.defers() && !core.order.ready.is_empty() {
                core.drive.kick_driver();
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

/// Looks for events of a ring that no thread drives: callers enter it, but perhaps none of them waits.
fn look_for_events(core: &mut Core) {
    core.harvest_now();
    if !core.defers() {
        core.advance();
    } else {
        tell_of_deferred(core);
    }
}

/// True if a ring that defers has anything that its thread must enter for.
fn has_deferred(core: &Core) -> bool {
    !core.order.ready.is_empty() || core.aio.has_completion()
}
