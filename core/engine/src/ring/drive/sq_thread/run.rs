//! Starting and running the SQ thread.

use core::ffi::c_void;

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SQ_NEED_WAKEUP};

use crate::abi::Errno;
use crate::os::sync::atomic::{Ordering, fence};
use crate::os::{self, EpollEvent, host};
use crate::process::credentials::{self};
use crate::process::threads;
use crate::ring::drive::names::BATCH;
use crate::ring::drive::reactor;
use crate::ring::{Core, CoreGuard, Ring, lifetime, live, registry};
use crate::wait::Driver;
use crate::work;

/// Idle time in milliseconds, if the program names none.
const DEFAULT_IDLE_MS: u32 = 1000;

/// Checks that the program may run on a processor.
///
/// # Errors
/// `EINVAL` if not.
pub fn check_cpu(cpu: u32) -> Result<(), Errno> {
    let allowed = os::allowed_cpus()?;
    let word = *allowed.get(cpu as usize / 64).ok_or(Errno::EINVAL)?;
    if word & (1 << (cpu % 64)) == 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Starts the thread of a new ring, on one processor if `cpu` names it (`IORING_SETUP_SQ_AFF`).
///
/// # Errors
/// `EAGAIN` if no thread can be had.
pub fn start(core: &mut Core, idle_ms: u32, cpu: Option<u32>) -> Result<(), Errno> {
    core.drive.sq_thread.cpu = cpu;
    host::get().ok_or(Errno::ENOMEM)?;
    core.drive.token.give(Driver::SqThread);
    core.drive.sq_thread.idle_ns =
        u64::from(if idle_ms == 0 { DEFAULT_IDLE_MS } else { idle_ms }) * 1_000_000;
    core.epoll()?;
    // The program publishes its first SQEs after it can see this flag.
    core.queues.memory.change_sq_flags(IORING_SQ_NEED_WAKEUP, 0);
    launch(core)
}

/// Clones the thread, with the credentials of the calling thread.
fn launch(core: &mut Core) -> Result<(), Errno> {
    core.drive.sq_thread.credentials = Some(credentials::acting());
    let ring = core::ptr::from_ref(core.identity.ring).cast_mut().cast::<c_void>();
    threads::spawn(c"iou-sqp", run, ring)
}

/// Replaces the SQ threads of all rings, because the process has other credentials. The kernel's threads keep the credentials of the ring's
/// creator; but they run no code that the program could reach.
pub fn renew(until_ns: u64) {
    registry::for_each_live(|ring| {
        let mut guard = ring.lock();
        let Some(core) = guard.as_mut() else { return };
        if core.drive.token.driver() != Driver::SqThread || core.life.is_closing() {
            return;
        }
        let serial = core.identity.serial;
        core.drive.sq_thread.term += 1;
        core.drive.sq_thread.gone = false;
        core.drive.kick_driver();
        drop(guard);
        threads::wait(until_ns, || {
            live(&mut ring.lock(), serial).is_none_or(|core| core.drive.sq_thread.gone)
        });
        let mut guard = ring.lock();
        let Some(core) = live(&mut guard, serial) else { return };
        if !core.drive.sq_thread.gone || launch(core).is_err() {
            core.drive.token.give_up();
        }
    });
}

extern "C" fn run(ring: *mut c_void) {
    // SAFETY: `start` passed a `&'static Ring`.
    let ring = unsafe { &*ring.cast::<Ring>() };
    let guard = ring.lock();
    threads::begin(
        guard.as_ref().and_then(|core| core.drive.sq_thread.credentials).unwrap_or_else(credentials::common),
    );
    serve_ring(guard);
}

/// Serves the ring until it is closed, or until another thread is to take this one's place.
fn serve_ring(mut guard: CoreGuard<'_>) {
    let Some(core) = guard.as_mut() else { return threads::end() };
    let (serial, idle_ns, term) =
        (core.identity.serial, core.drive.sq_thread.idle_ns, core.drive.sq_thread.term);
    if let Some(cpu) = core.drive.sq_thread.cpu {
        // Checked at setup. The set may have shrunk since; then any processor will do.
        let mut set = os::CpuSet::default();
        set[cpu as usize / 64] = 1 << (cpu % 64);
        let _ = os::run_on(&set);
    }
    if term == 0 {
        // The flag that the thread sleeps was set for the first thread only.
        wait(&mut guard, serial);
    }
    let mut last_active_ns = os::monotonic_ns();
    loop {
        let Some(core) = live(&mut guard, serial) else { return threads::end() };
        if core.drive.sq_thread.term != term {
            threads::end();
            core.drive.sq_thread.gone = true;
            return;
        }
        if core.life.is_closing() && core.life.inside() == 0 {
            threads::end();
            core.drive.token.give_up();
            return lifetime::dispose_if_done(guard, serial);
        }
        let active = serve(core);
        if !core.work.is_empty() {
            // No worker can be had.
            work::run_by_caller(&mut guard, serial, false);
            last_active_ns = os::monotonic_ns();
        } else if active {
            last_active_ns = os::monotonic_ns();
        } else if os::monotonic_ns() - last_active_ns >= idle_ns {
            sleep(&mut guard, serial);
            last_active_ns = os::monotonic_ns();
        } else {
            // Other threads with work for this processor go first; on an idle machine there are none.
            guard.unlocked(os::sched_yield);
        }
        guard.yield_to_waiters();
    }
}

/// Does one round without sleeping. Returns true if there was something to do.
fn serve(core: &mut Core) -> bool {
    let mut active = false;
    core.drive.observers.posts_later();
    core.flush_overflow();
    if core.queues.sq_pending() > 0 && !core.is(IORING_SETUP_R_DISABLED) {
        let _ = core.submit(u32::MAX, false);
        // Threads that wait for room (`IORING_ENTER_SQ_WAIT`) look again.
        core.drive.wake_all();
        core.shared.tell_others();
        active = true;
    }
    if core.readiness.waiting() > 0 {
        // The reactor's ticks check registrations that may be for a file that is gone.
        reactor::attend_stale(core);
        active |= core.harvest(true);
    }
    core.fetch_answered();
    core.advance();
    core.hand_over();
    active | core.queues.cq.has_news()
}

/// Sleeps, after nothing has happened for the idle time.
fn sleep(guard: &mut CoreGuard<'_>, serial: u64) {
    let Some(core) = live(guard, serial) else { return };
    core.queues.memory.change_sq_flags(IORING_SQ_NEED_WAKEUP, 0);
    // Pairs with the program's full barrier between its store of the SQ tail and its look at the
    // flag: either it sees the flag, or the tail is seen here.
    fence(Ordering::SeqCst);
    let rests = core.queues.sq_pending() == 0 || core.is(IORING_SETUP_R_DISABLED);
    if rests {
        core.hand_over_in_flight();
    }
    // If no worker can be had, this thread does the work that it could not hand over.
    if rests && core.work.is_empty() {
        wait(guard, serial);
    } else {
        core.queues.memory.change_sq_flags(0, IORING_SQ_NEED_WAKEUP);
    }
}

/// Sleeps until the thread is woken, or until something in flight has to be looked at. The flag that asks for a wake-up is set.
fn wait(guard: &mut CoreGuard<'_>, serial: u64) {
    let Some(core) = live(guard, serial) else { return };
    if core.readiness.epoll().is_none() {
        return;
    }
    core.drive.sq_thread.asleep = true;
    core.watch_pages();
    core.readiness.falls_asleep();
    let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
    let (core, woken) = loop {
        let Some(core) = live(guard, serial) else { return };
        let Some(epoll) = core.readiness.epoll() else { break (core, Ok(0)) };
        // No event reports transfers that were submitted while the thread was awake: it looks for them, and then sleeps on.
        let look_ns = core.aio.lengthen_look_ns();
        let timeout_ns = [core.next_timer_ns(), look_ns].into_iter().flatten().min();
        let woken = guard.unlocked(|| os::epoll_wait(epoll, &mut events, timeout_ns, None));
        let Some(core) = live(guard, serial) else { return };
        let is_due = core.aio.has_completion() || core.next_timer_ns() == Some(0);
        if look_ns.is_none() || woken != Ok(0) || is_due {
            break (core, woken);
        }
    };
    debug_assert!(core.zero_copy.is_all_watched(), "nothing came back unheard");
    core.drive.sq_thread.asleep = false;
    core.readiness.wakes();
    let count = woken.unwrap_or_else(|_| {
        core.renews_epoll();
        0
    });
    core.take_events_of_sleep(&events[..count]);
    // In flight work goes on while asleep: only SQEs end the need for a wake-up.
    core.queues.memory.change_sq_flags(0, IORING_SQ_NEED_WAKEUP);
}
