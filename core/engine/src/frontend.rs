//! Calls by which a front end informs and asks the engine, beside io_uring's three: closed and duplicated
//! descriptors, readiness of ring descriptors, faults, forks.

pub mod credentials;

use alloc::boxed::Box;
use core::ffi::{CStr, c_void};

use anyring_trace::event::Called;
use linux_raw_sys::net::msghdr;

use crate::Outlet;
use crate::abi::Errno;
use crate::assets::{kinds, notes, unseen};
use crate::calls::{fork, setup};
use crate::feature::ring_fds;
use crate::feature::zero_copy_send::error_queue;
use crate::observe::{chaos, trace};
use crate::ops::net::rights;
use crate::os::{self, Fd, limits, own, user};
use crate::process::{identity, threads};
use crate::ring::drive::observers::stand_in;
use crate::ring::{Counted, descriptors, lifetime, registry, shared};
use crate::work::{interrupt, reporter};

pub use anyring_chaos_plan::journal::Effect;

pub use crate::observe::chaos::storage::PlainCall;
pub use crate::observe::trace::counts::{Counted as OperationCount, Counts};

/// Counters of this process since the engine was first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rings created.
    pub rings: u64,
    /// SQEs consumed from submission queues.
    pub submitted: u64,
    /// CQEs posted to completion queues, or kept on the overflow list.
    pub completed: u64,
}

/// Returns the process's counters.
pub fn counters() -> Counters {
    let sum = |what| registry::places().map(|place| place.counted(what)).sum();
    Counters {
        rings: identity::rings(),
        submitted: sum(Counted::Submitted),
        completed: sum(Counted::Completed),
    }
}

/// The state of this process's rings at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Rings that the process has.
    pub rings: u64,
    /// Requests that are not done.
    pub in_flight: u64,
    /// CQEs that the program has not reaped.
    pub ready: u64,
    /// CQEs that are kept because their CQs were full.
    pub overflowed: u64,
    /// Threads of the engine.
    pub threads: u64,
}

/// Looks at all rings of the process, one after another, under their locks.
pub fn gauges() -> Gauges {
    let mut gauges = Gauges { threads: threads::count() as u64, ..Gauges::default() };
    registry::for_each_live(|ring| {
        if let Some(core) = ring.lock().as_ref() {
            gauges.rings += 1;
            gauges.in_flight += core.requests().live() as u64;
            gauges.ready += u64::from(core.queues().cq_ready());
            gauges.overflowed += core.queues().cq.kept() as u64;
        }
    });
    gauges
}

/// Has a thread of the engine call `report` now, and every `interval_ns` nanoseconds from then on. Does nothing if the process has
/// such a thread; a child of `fork` has none.
pub fn report_every(interval_ns: u64, report: fn()) {
    reporter::begin(interval_ns, report);
}

/// Replaces a regular file, or none, by one with this text, which is first written to `beside`, a path in the same directory that nobody
/// else uses.
///
/// # Errors
/// Negative errno: `EEXIST` if the file is not a regular one, `EFBIG` instead of the signal of a write beyond the limit of file sizes.
pub fn replace_file(path: &CStr, beside: &CStr, text: &[u8]) -> Result<(), i32> {
    os::replace_file(path, beside, text).map_err(Errno::negated)
}

/// True if there is a file at a path, which may be a symbolic link.
pub fn is_file(path: &CStr) -> bool {
    os::mode_of(path).is_some()
}

/// Makes this process record events of its requests in the buffer behind `fd` ([`anyring_trace`]), which may be closed afterwards. Rings
/// that exist already are not traced. `engine` says which engine runs ([`anyring_trace::event::ENGINE_USER`] or its like); `program` is the
/// program's path; each of `arguments` ends with a zero.
///
/// # Errors
/// Negative errno if there is no buffer, or it cannot be mapped.
pub fn trace_to(fd: Fd, engine: u32, program: &[u8], arguments: &[u8]) -> Result<(), i32> {
    trace::attach(fd, engine, program, arguments).map_err(Errno::negated)
}

/// True if the trace's reader asks for the stacks of ring calls. The front end asks this before each call, so the check is cheap.
#[inline]
pub fn wants_callers() -> bool {
    trace::is_on() && trace::callers::are_wanted()
}

/// Notes that code of the program is about to enter a ring in the calling thread, with the instruction, stack and frame pointers
/// and, if the processor has one, the link register of that code.
pub fn called_from([ip, sp, bp, lr]: [usize; 4]) {
    trace::callers::called(Called { ip: ip as u64, sp: sp as u64, bp: bp as u64, lr: lr as u64 });
}

/// Starts counting the operations that are asked of rings created from now on; [`operation_counts`] returns the counts.
pub fn count_operations() {
    trace::count();
}

/// Returns the counts since [`count_operations`].
pub fn operation_counts() -> Option<&'static Counts> {
    trace::counts::get()
}

/// Tells the host's [checker](crate::os::host::Host::checker) of requests on rings created from now on.
pub fn tell_checker() {
    trace::watch();
}

/// Injects the faults of the plan behind `fd` ([`anyring_chaos_plan`]) into this process from now on. `fd` may be
/// closed afterwards. Rings that exist already get no faults.
///
/// # Errors
/// Negative errno if there is no plan, or it cannot be mapped.
pub fn plan_from(fd: Fd) -> Result<(), i32> {
    chaos::attach(fd).map_err(Errno::negated)
}

/// True if what this process does to files is noted for a power cut: the front end then reports the plain calls that it sees.
#[inline]
pub fn notes_files() -> bool {
    chaos::storage::is_on()
}

/// Returns the parameters at the address `params` if [`crate::setup`] refuses neither them nor the number of entries.
pub fn acceptable(entries: u32, params: u64) -> Option<crate::io_uring_params> {
    setup::acceptable(entries, params)
}

/// True if `fd` is a ring of this engine.
pub fn is_ring(fd: Fd) -> bool {
    registry::is_ring(fd)
}

/// Passes the completions of the ring `fd` to `outlet` from now on, as long as this process has the ring.
///
/// # Errors
/// Negative errno if `fd` is no ring.
pub fn set_outlet(fd: Fd, outlet: Box<dyn Outlet>) -> Result<(), i32> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd).negated())?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF.negated())?;
    core.drive_mut().observers.set_outlet(outlet);
    Ok(())
}

/// Returns the file in a slot of the ring `fd`: a descriptor of the engine's own, valid while the file is registered.
pub fn registered_file(fd: Fd, slot: u32) -> Option<Fd> {
    registry::get(fd)?.lock().as_mut()?.resources_mut().files.get(slot)
}

/// Returns the number of requests of the ring `fd` that are not done.
pub fn in_flight(fd: Fd) -> usize {
    let Some(ring) = registry::get(fd) else { return 0 };
    ring.lock().as_ref().map_or(0, |core| core.requests().live())
}

/// Tells the engine that the program closes `fd` (or replaces it by `dup2`); call it *before* the number can be reused. `fd` may be any
/// descriptor: its kept registrations with epoll end, and a ring loses one reference.
pub fn closed(fd: Fd) {
    descriptors::closed(fd);
}

/// True if the engine needs to know that `fd` is [closed].
pub fn concerns_close(fd: Fd) -> bool {
    descriptors::concerns_close(fd)
}

/// Tells the engine that code is about to be loaded, which may close descriptors without a report ([`crate::Host::finds_unseen_closes`]).
pub fn code_comes() {
    unseen::void();
}

/// Tells the engine that closes of rings may be unseen, although it was told that they are reported ([`crate::Caller::tells_closes`]).
pub fn ring_closes_may_be_unseen() {
    lifetime::watch_all();
}

/// Tells the engine that the program has got a way to close descriptors without a report, which it keeps.
pub fn closes_may_be_unseen() {
    unseen::note_one();
}

/// Returns whether the front end reports all closes, if it has been found out.
pub fn are_closes_seen() -> Option<bool> {
    unseen::are_found_none()
}

/// True if `fd` is a descriptor of the engine's own. The program does not have such a descriptor: a front end
/// answers `close`, `dup` and the like on it with `EBADF`.
#[inline]
pub fn is_engines(fd: Fd) -> bool {
    own::is_own(fd)
}

/// Returns the engine's own descriptor with the lowest number that is at least `first`.
pub fn next_of_engine(first: u32) -> Option<u32> {
    own::next(first)
}

/// Returns the number of the engine's threads in this process.
pub fn threads() -> usize {
    threads::count()
}

/// The lowest number of the engine's own descriptors, if the limit of descriptors is higher.
pub use crate::os::HIGH as FIRST_OF_ENGINE;

/// Tells the engine that the program is about to poll `fd` (perhaps a socket) outside its rings: it must not see zero-copy sends there.
pub fn watches_errors(fd: Fd) {
    descriptors::watches_errors(fd, false);
}

/// Tells the engine that the program is about to set an option of `fd` (perhaps a socket) that concerns the error queue: the
/// queue is the program's from now on.
pub fn takes_errors(fd: Fd) {
    descriptors::watches_errors(fd, true);
}

/// Tells the engine that the program is about to set an option of `fd` (perhaps a socket): facts noted about `fd` may change. True if
/// [`changes_kind`] has to be called, too.
#[inline]
#[must_use]
pub fn sets_option(fd: Fd, level: i32, name: i32) -> bool {
    kinds::option_set(fd, level as u32, name as u32)
}

/// Tells the rings that the program is about to set an option of `fd` (perhaps a socket) by which they receive from it in another way.
pub fn changes_kind(fd: Fd) {
    descriptors::changes_kind(fd);
}

/// True if sending the message whose `struct msghdr` is at `message` to `fd` would pass a ring's descriptor.
/// The kernel refuses that with `EINVAL`, and so must the front end.
pub fn hands_over_ring(fd: Fd, message: u64) -> bool {
    user::read::<msghdr>(message).is_ok_and(|message| rights::hands_over_ring(fd, &message))
}

/// Tells the engine that the program received the message with the `struct msghdr` at `message`: its sender may still have its files.
pub fn received(message: u64) {
    if let Ok(message) = user::read::<msghdr>(message) {
        rights::received(&message);
    }
}

/// Tells the engine that the program got the descriptor `fd` from another process, which may still have the file.
pub fn received_descriptor(fd: Fd) {
    notes::received(fd);
}

/// True if [`takes_errors`] must be called for this socket option.
pub fn concerns_errors(level: i32, name: i32) -> bool {
    error_queue::is_option(level as u32, name as u32)
}

/// Tells the engine that the program duplicated `old` to `new` (`dup`, `dup2`, `dup3`, `F_DUPFD`). Both may be any descriptors.
pub fn duplicated(old: Fd, new: Fd) {
    descriptors::duplicated(old, new);
}

/// Returns a descriptor that can be polled in place of the ring `fd`: readable while the CQ holds
/// completions, as of the last [`sync_readiness`] or completion. Only the engine closes the descriptor.
///
/// # Errors
/// Negative errno if `fd` is no ring, or no descriptor can be made.
pub fn readiness_fd(fd: Fd) -> Result<Fd, i32> {
    stand_in::of(fd).map_err(Errno::negated)
}

/// Returns the descriptor of [`readiness_fd`] for a poll by the calling thread that begins, in line with the CQ. If the poll finds the
/// descriptor readable, the thread calls [`end_poll`].
///
/// # Errors
/// As for [`readiness_fd`].
pub fn begin_poll(ring: Fd) -> Result<Fd, i32> {
    fork::notice();
    stand_in::begin_poll(ring).map_err(Errno::negated)
}

/// Returns whether there are completions, after a poll that [`begin_poll`] began has found the descriptor readable. If not, the poll goes on.
pub fn end_poll(ring: Fd) -> bool {
    fork::notice();
    stand_in::end_poll(ring)
}

/// Tells the engine that the program has put a ring's [`readiness_fd`] into an epoll instance, in the ring's place.
pub fn added_to_epoll(ring: Fd) {
    stand_in::added_to_epoll(ring);
}

/// True if [`before_epoll_wait`] need be called at all.
#[inline]
pub fn has_ready_rings_in_epoll() -> bool {
    stand_in::any_lit()
}

/// Updates the readiness of rings before the program waits for an epoll instance that may contain rings.
pub fn before_epoll_wait() {
    stand_in::synchronize_lit();
}

/// Makes the descriptor of [`readiness_fd`] readable if the CQ holds completions, and not readable if the
/// program has reaped them all. Call it before a level-triggered wait. Returns whether the descriptor is
/// readable.
pub fn sync_readiness(fd: Fd) -> bool {
    stand_in::synchronize(fd)
}

/// Makes the ring's descriptor `fd` itself the one that [`readiness_fd`] returns. So `fd` can be polled like a kernel
/// ring, even by calls that the front end does not see, but no longer be mapped. Call this before there are requests,
/// if you call [`sync_readiness`] whenever the program found no completions.
///
/// # Errors
/// Negative errno if `fd` is no ring, or no descriptor can be made.
pub fn show_readiness(fd: Fd) -> Result<(), i32> {
    stand_in::show(fd).map_err(Errno::negated)
}

/// Returns where to resume a thread that faulted (`SIGSEGV`, `SIGBUS`) at `instruction_pointer`, if the fault
/// is in one of the engine's guarded copies.
pub fn resume_address(instruction_pointer: usize) -> Option<usize> {
    os::resume_address(instruction_pointer)
}

/// Returns where a thread continues that got the signal of [`crate::Host::interrupt_signal`] at `instruction_pointer`;
/// `None` if the engine did not send the signal.
///
/// # Safety
/// `info` must be the second argument of a signal handler.
pub unsafe fn interrupted(info: *const c_void, instruction_pointer: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    interrupt::resumes_at(unsafe { &*info.cast() }, instruction_pointer)
}

/// Returns the address range of the engine's system call stub: a filter that traps the program's calls must
/// let calls from this range through.
pub fn syscall_stub() -> core::ops::Range<usize> {
    os::stub()
}

/// Prepares for a fork: from here to [`after_fork`] no other thread is inside the engine, and the calling
/// thread must not enter the engine either (in a signal handler, say). A child of an unannounced `fork` can
/// create rings of its own, but must not use a ring at the same time as its parent.
pub fn before_fork() {
    fork::before();
}

/// Tells the engine that another process is about to get this process's descriptors (as by `vfork`) without an announced fork, or
/// has just got them; or that a thread gets a descriptor table of its own.
pub fn hands_over() {
    notes::hands_over();
}

/// Runs `act`, which gives descriptors and limits to another process or thread. Calls [`hands_over`] before and after, because
/// descriptors opened meanwhile may be passed, too; meanwhile the limits are those that the program has set.
pub fn handing_over<T>(act: impl FnOnce() -> T) -> T {
    hands_over();
    let result = limits::unlifted(act);
    hands_over();
    result
}

/// Runs `act`, which executes another program, with the limits that the program has set. The caller may be a child of `vfork`, whose
/// limits are its own already.
pub fn executing<T>(act: impl FnOnce() -> T) -> T {
    if identity::is_own() { limits::executing(act) } else { act() }
}

/// Runs `act`, which raises a limit of the process for a moment, as the engine does, too: meanwhile no other thread does so, creates
/// a process or executes a program.
pub fn lifting<T>(act: impl FnOnce() -> T) -> T {
    limits::lifting(act)
}

/// Ends [`before_fork`] in the parent, whether or not the fork succeeded.
pub fn after_fork() {
    fork::after();
}

/// Tells the engine that the process ends. If other processes use its rings, its requests are cancelled, as in the kernel.
pub fn exits() {
    if identity::is_own() {
        chaos::let_go::in_all_rings();
        shared::exits();
        trace::ends();
    }
}

/// Tells the engine that the calling thread ends: requests that wait on its behalf are cancelled, as in the kernel.
pub fn thread_ends() {
    if identity::is_own() {
        shared::thread_ends();
        ring_fds::register::thread_ends();
        trace::forget_thread();
    }
}

/// Tells the engine that the process is about to execute another program; see [`exits`]. The caller may be a child of `vfork`.
pub fn executes() {
    notes::hands_over();
    if identity::is_own() {
        chaos::let_go::in_all_rings();
        shared::executes();
    }
}

/// Prepares the child after a fork: every ring of the parent becomes one without threads and without the
/// parent's requests. A front end that sees `fork` calls this first thing in the child, where no other thread
/// exists.
pub fn forked() {
    fork::forked();
}
