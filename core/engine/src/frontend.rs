//! What a front end must tell the engine, and may ask it, beside the three calls: descriptors that were
//! closed or duplicated, readiness of ring descriptors, faults, forks.

use crate::os::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use alloc::boxed::Box;
use core::ffi::c_void;

use linux_raw_sys::net::msghdr;

use crate::Outlet;
use crate::assets::{epoll_sets, kinds, ring_fds};
use crate::calls::fork;
use crate::ops::net::{error_queue, rights};
use crate::os::{self, Fd, user};
use crate::process::credentials;
use crate::ring::drive::{caller, reactor};
use crate::ring::{Core, Counted, lifetime, registry, shared};
use crate::wait::Driver;
use crate::work::{exposure, interrupt, pool, threads};

/// Counters of this process since the engine was first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rings created.
    pub rings: u64,
    /// SQEs taken from submission rings.
    pub submitted: u64,
    /// CQEs posted to completion rings (or kept for them on overflow).
    pub completed: u64,
}

static RINGS: AtomicU64 = AtomicU64::new(0);

/// The process that the engine's memory belongs to.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// A child between `vfork` and `exec` runs in its parent's memory: what it closes stays open here.
fn is_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == os::getpid()
}

/// Has this process had a ring?
pub(crate) fn is_used() -> bool {
    RINGS.load(Ordering::Relaxed) > 0 && is_this_process()
}

pub(crate) fn count_ring() {
    PROCESS.store(os::getpid(), Ordering::Relaxed);
    if RINGS.fetch_add(1, Ordering::Relaxed) == 0 {
        credentials::begin_to_watch();
    }
}

/// The process's counters.
pub fn counters() -> Counters {
    let sum = |what| registry::places().map(|place| place.counted(what)).sum();
    Counters {
        rings: RINGS.load(Ordering::Relaxed),
        submitted: sum(Counted::Submitted),
        completed: sum(Counted::Completed),
    }
}

/// Whether `fd` is a ring of this engine.
pub fn is_ring(fd: Fd) -> bool {
    registry::is_ring(fd)
}

/// From now on the completions of the ring `fd` go to `outlet`, as long as this process has the ring.
///
/// # Errors
/// Negative errno where `fd` is no ring.
pub fn set_outlet(fd: Fd, outlet: Box<dyn Outlet>) -> Result<(), i32> {
    let ring = registry::get(fd).ok_or_else(|| crate::calls::enter::no_ring(fd).negated())?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(crate::abi::Errno::EBADF.negated())?;
    core.external.outlet = Some(outlet);
    Ok(())
}

/// The file in a slot of the ring `fd`: a descriptor of the engine's own, good as long as it is there.
pub fn registered_file(fd: Fd, slot: u32) -> Option<Fd> {
    registry::get(fd)?.lock().as_ref()?.files.get(slot)
}

/// How many requests of the ring `fd` are not done.
pub fn in_flight(fd: Fd) -> usize {
    let Some(ring) = registry::get(fd) else { return 0 };
    ring.lock().as_ref().map_or(0, |core| core.requests.live())
}

/// The program closes `fd` (or replaces it by `dup2`); call it *before* the number can be reused.
/// Any descriptor may be named: kept readiness registrations end, a ring loses one reference.
pub fn closed(fd: Fd) {
    epoll_sets::closed(fd);
    registry::forget_note(fd);
    if !registry::is_ring(fd) && !registry::has_interest(fd) && !exposure::is_any() {
        return;
    }
    if !is_this_process() {
        return;
    }
    if let Some(ring) = registry::clear(fd) {
        lifetime::descriptor_gone(ring);
    }
    registry::for_each_live(|ring| {
        let mut guard = ring.lock();
        if let Some(core) = guard.as_mut() {
            core.forget_fd(fd);
            // What is linked behind a request that this ended may be under way.
            caller::leave(core);
        }
    });
}

/// The program is about to poll `fd`, a socket perhaps, by other means than its rings, or to set an option
/// of it that has to do with its error queue: zero-copy sends must not be seen there.
pub fn watches_errors(fd: Fd) {
    kinds::watch_errors(fd);
    if !registry::has_interest(fd) || !is_this_process() {
        return;
    }
    registry::for_each_live(|ring| {
        let mut guard = ring.lock();
        let Some(core) = guard.as_mut() else { return };
        core.leave_error_queue(fd);
        if !core.defers() {
            core.advance();
            caller::leave(core);
        } else if !core.ready.is_empty() {
            core.notify_deferred();
        }
    });
}

/// The program is about to set an option of `fd`, a socket perhaps: what was noted of it may no longer hold.
#[inline]
pub fn sets_option(fd: Fd, level: i32, name: i32) {
    kinds::option_set(fd, level as u32, name as u32);
}

/// Would the message whose `struct msghdr` lies at `message`, sent to `fd`, hand a ring over? The kernel refuses that with
/// `EINVAL`, and so must the front end.
pub fn hands_over_ring(fd: Fd, message: u64) -> bool {
    user::read::<msghdr>(message).is_ok_and(|message| rights::hands_over_ring(fd, &message))
}

/// Is a socket option one that [`watches_errors`] should be told of?
pub fn concerns_errors(level: i32, name: i32) -> bool {
    error_queue::is_option(level as u32, name as u32)
}

/// The program duplicated `old` to `new` (`dup`, `dup2`, `dup3`, `F_DUPFD`). Harmless where `old` is no ring.
pub fn duplicated(old: Fd, new: Fd) {
    let Some(ring) = registry::get(old) else { return };
    if !is_this_process() {
        return;
    }
    if let Some(core) = ring.lock().as_mut() {
        core.descriptors += 1;
    }
    if let Ok(Some(before)) = registry::set(new, ring.ring()) {
        lifetime::descriptor_gone(before);
    }
}

/// A descriptor that can be polled in place of the ring `fd`: readable while the CQ holds
/// completions, as of the last [`sync_readiness`] or completion. It stays the engine's to close.
///
/// # Errors
/// Negative errno where `fd` is no ring or a descriptor cannot be had.
pub fn readiness_fd(fd: Fd) -> Result<Fd, i32> {
    let ring = registry::get(fd).ok_or_else(|| crate::calls::enter::no_ring(fd).negated())?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(crate::abi::Errno::EBADF.negated())?;
    core.readiness_fd().map_err(crate::abi::Errno::negated)
}

/// The program did `operation` to its epoll instance with a ring's [`readiness_fd`] in the ring's place.
pub fn changed_epoll(instance: Fd, operation: u32, ring: Fd) {
    epoll_sets::changed(instance, operation, ring);
}

/// Need [`before_epoll_wait`] be called at all?
#[inline]
pub fn has_rings_in_epoll() -> bool {
    epoll_sets::any()
}

/// The program is about to wait for one of its epoll instances, in which there may be rings.
pub fn before_epoll_wait(instance: Fd) {
    epoll_sets::synchronize(instance);
}

/// Brings the descriptor of [`readiness_fd`] in line with the CQ: readable if it holds
/// completions, not readable if the program has taken them all. Call it before a level-triggered
/// wait. Returns whether it is readable.
pub fn sync_readiness(fd: Fd) -> bool {
    let Some(ring) = registry::get(fd) else { return false };
    let mut guard = ring.lock();
    let Some(core) = guard.as_mut() else { return false };
    let Some(stand_in) = core.external.readiness_fd else { return false };
    core.flush_overflow();
    let ready = core.cq_ready() > 0 || core.defers() && !core.ready.is_empty();
    os::eventfd_drain(stand_in);
    core.external.readable = false;
    if ready {
        core.signal_readiness();
        return true;
    }
    core.unmark_shown();
    if core.needs_driver() && core.token.driver() == Driver::Nobody {
        reactor::attend(core);
    }
    false
}

/// Lets `fd`, a ring's descriptor, be what [`readiness_fd`] answers: it can be polled as a ring of the kernel's
/// can, where nobody sees that it is, but no longer be mapped. To be called before there are requests, by a front end
/// that calls [`sync_readiness`] when the program has looked for completions and found none.
///
/// # Errors
/// Negative errno where `fd` is no ring or a descriptor cannot be had.
pub fn show_readiness(fd: Fd) -> Result<(), i32> {
    let ring = registry::get(fd).ok_or_else(|| crate::calls::enter::no_ring(fd).negated())?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(crate::abi::Errno::EBADF.negated())?;
    let show = |core: &mut Core| {
        let stand_in = core.readiness_fd()?;
        let identity = os::identity(stand_in)?;
        os::replace(stand_in, fd)?;
        for (word, value) in ring.shown.iter().zip([identity.device, identity.inode]) {
            word.store(value, Ordering::Relaxed);
        }
        core.external.shown = true;
        Ok(())
    };
    show(core).map_err(crate::abi::Errno::negated)
}

impl Core {
    fn readiness_fd(&mut self) -> Result<Fd, crate::abi::Errno> {
        if let Some(fd) = self.external.readiness_fd {
            return Ok(fd);
        }
        let fd = os::eventfd()?;
        self.external.readiness_fd = Some(fd);
        if self.cq_ready() > 0 {
            os::eventfd_signal(fd);
        }
        if self.needs_driver() {
            reactor::attend(self);
        }
        Ok(fd)
    }
}

/// Where to resume a thread that faulted (`SIGSEGV`, `SIGBUS`) at `instruction_pointer`, if that
/// lies in one of the engine's guarded copies.
pub fn resume_address(instruction_pointer: usize) -> Option<usize> {
    os::resume_address(instruction_pointer)
}

/// Where a thread goes on that got the signal of [`crate::Host::interrupt_signal`] at an instruction; `None` where the
/// signal was not sent by the engine.
///
/// # Safety
/// `info` must be the second argument of a signal handler.
pub unsafe fn interrupted(info: *const c_void, instruction_pointer: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    interrupt::resumes_at(unsafe { &*info.cast() }, instruction_pointer)
}

/// The first and the end address of the engine's system call stub: a filter that traps the
/// program's calls must let those from here through.
pub fn syscall_stub() -> core::ops::Range<usize> {
    os::stub()
}

/// The process is about to fork: from here to [`after_fork`] no other thread is inside the engine, and
/// the calling one must not enter it either (in a signal handler, say). A child of a `fork` that was
/// not announced can make rings of its own, but must not use one at the same time as its parent.
pub fn before_fork() {
    fork::before();
}

/// The process has forked, or could not, and this is the parent.
pub fn after_fork() {
    fork::after();
}

/// The process ends. Where others use its rings, its requests are cancelled, as the kernel does.
pub fn exits() {
    if is_this_process() {
        shared::exits();
    }
}

/// The calling thread ends: what waits on its behalf is cancelled, as the kernel does.
pub fn thread_ends() {
    if is_this_process() {
        shared::thread_ends();
    }
}

/// The process is about to execute another program; as for [`exits`].
pub fn executes() {
    if is_this_process() {
        shared::executes();
    }
}

/// For the next schedule of a simulation.
#[cfg(anyring_simulation)]
pub(crate) fn reset() {
    debug_assert!(!exposure::is_any(), "all work is done");
    RINGS.store(0, Ordering::Relaxed);
}

/// The process has forked and this is the child: every ring of the parent becomes one without
/// threads and without the parent's requests. A front end that sees `fork` calls it first thing in the
/// child, where no other thread exists.
pub fn forked() {
    lifetime::renew_fork_mark();
    PROCESS.store(os::getpid(), Ordering::Relaxed);
    // SAFETY: the caller says that this thread is the only one of the process.
    unsafe {
        fork::forked();
        credentials::forked();
        threads::forked();
        pool::forked();
        reactor::forked();
        registry::forked();
        lifetime::forked();
        ring_fds::forked();
    }
    exposure::forked();
}
