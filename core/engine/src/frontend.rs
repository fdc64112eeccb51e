//! Calls by which a front end informs and asks the engine, beside io_uring's three: descriptors that were
//! closed or duplicated, readiness of ring descriptors, faults, forks.

pub mod credentials;

use alloc::boxed::Box;
use core::ffi::c_void;

use anyring_trace::event::Called;
use linux_raw_sys::net::msghdr;

use crate::Outlet;
use crate::abi::Errno;
use crate::assets::{kinds, notes};
use crate::calls::{fork, setup};
use crate::feature::ring_fds;
use crate::feature::zero_copy_send::error_queue;
use crate::observe::{chaos, trace};
use crate::ops::net::rights;
use crate::os::{self, Fd, limits, own, user};
use crate::process::{identity, threads};
use crate::ring::drive::stand_in;
use crate::ring::{Counted, descriptors, registry, shared};
use crate::work::interrupt;

pub use crate::observe::trace::counts::{Counted as OperationCount, Counts};

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

/// The process's counters.
pub fn counters() -> Counters {
    let sum = |what| registry::places().map(|place| place.counted(what)).sum();
    Counters {
        rings: identity::rings(),
        submitted: sum(Counted::Submitted),
        completed: sum(Counted::Completed),
    }
}

/// From now on this process, which runs `engine` ([`anyring_trace::event::ENGINE_USER`] or its like), tells what happens to its
/// requests in the buffer behind `fd` ([`anyring_trace`]), which may be closed afterwards. Of rings that are there already nothing is told. `program` is its path; each of `arguments` ends with
/// a zero.
///
/// # Errors
/// Negative errno where there is no buffer, or it cannot be mapped.
pub fn trace_to(fd: Fd, engine: u32, program: &[u8], arguments: &[u8]) -> Result<(), i32> {
    trace::attach(fd, engine, program, arguments).map_err(Errno::negated)
}

/// True if the reader is to be told which code of the program enters rings. Asked before each call, so it is cheap.
#[inline]
pub fn wants_callers() -> bool {
    trace::is_on() && trace::callers::are_wanted()
}

/// Code of the program is about to enter a ring in the calling thread: with these instruction, stack and frame pointers, and this
/// link register, where the processor has one.
pub fn called_from([ip, sp, bp, lr]: [usize; 4]) {
    trace::callers::called(Called { ip: ip as u64, sp: sp as u64, bp: bp as u64, lr: lr as u64 });
}

/// From now on this process counts what is asked of the rings that it makes; read them by [`operation_counts`].
pub fn count_operations() {
    trace::count();
}

/// The counts since [`count_operations`].
pub fn operation_counts() -> Option<&'static Counts> {
    trace::counts::get()
}

/// From now on this process meets the faults of the plan behind `fd` ([`anyring_chaos_plan`]), which may be closed
/// afterwards. Rings that are there already meet none.
///
/// # Errors
/// Negative errno where there is no plan, or it cannot be mapped.
pub fn plan_from(fd: Fd) -> Result<(), i32> {
    chaos::attach(fd).map_err(Errno::negated)
}

/// The parameters at the address `params`, where they and the number of entries are such that [`crate::setup`] refuses neither.
pub fn acceptable(entries: u32, params: u64) -> Option<crate::io_uring_params> {
    setup::acceptable(entries, params)
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
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd).negated())?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF.negated())?;
    core.drive_mut().observers.set_outlet(outlet);
    Ok(())
}

/// The file in a slot of the ring `fd`: a descriptor of the engine's own, good as long as it is there.
pub fn registered_file(fd: Fd, slot: u32) -> Option<Fd> {
    registry::get(fd)?.lock().as_ref()?.resources().files.get(slot)
}

/// How many requests of the ring `fd` are not done.
pub fn in_flight(fd: Fd) -> usize {
    let Some(ring) = registry::get(fd) else { return 0 };
    ring.lock().as_ref().map_or(0, |core| core.requests().live())
}

/// The program closes `fd` (or replaces it by `dup2`); call it *before* the number can be reused.
/// Any descriptor may be named: kept readiness registrations end, a ring loses one reference.
pub fn closed(fd: Fd) {
    descriptors::closed(fd);
}

/// True if it makes a difference whether the engine is told that `fd` is [closed].
pub fn concerns_close(fd: Fd) -> bool {
    descriptors::concerns_close(fd)
}

/// True if `fd` is a descriptor of the engine's own. For the program it is none: a front end that sees the
/// program close, replace or duplicate it answers so.
#[inline]
pub fn is_engines(fd: Fd) -> bool {
    own::is_own(fd)
}

/// The first descriptor of the engine's own whose number is `first` or higher.
pub fn next_of_engine(first: u32) -> Option<u32> {
    own::next(first)
}

/// How many threads of the engine this process has.
pub fn threads() -> usize {
    threads::count()
}

/// Where the engine's own descriptors begin, where the limit of descriptors lies higher.
pub use crate::os::HIGH as FIRST_OF_ENGINE;

/// The program is about to poll `fd`, a socket perhaps, by other means than its rings: zero-copy sends must not be seen there.
pub fn watches_errors(fd: Fd) {
    descriptors::watches_errors(fd, false);
}

/// The program is about to set an option of `fd`, a socket perhaps, that has to do with its error queue: what comes there is the
/// program's.
pub fn takes_errors(fd: Fd) {
    descriptors::watches_errors(fd, true);
}

/// The program is about to set an option of `fd`, a socket perhaps: what was noted of it may no longer hold.
#[inline]
pub fn sets_option(fd: Fd, level: i32, name: i32) {
    kinds::option_set(fd, level as u32, name as u32);
}

/// True if the message whose `struct msghdr` lies at `message`, sent to `fd`, would hand a ring over. The
/// kernel refuses that with `EINVAL`, and so must the front end.
pub fn hands_over_ring(fd: Fd, message: u64) -> bool {
    user::read::<msghdr>(message).is_ok_and(|message| rights::hands_over_ring(fd, &message))
}

/// The program has received the message whose `struct msghdr` lies at `message`: whoever sent it may still have what came with it.
pub fn received(message: u64) {
    if let Ok(message) = user::read::<msghdr>(message) {
        rights::received(&message);
    }
}

/// The program got the descriptor `fd` from another process, which may still have the file.
pub fn received_descriptor(fd: Fd) {
    notes::received(fd);
}

/// True if a socket option is one that [`takes_errors`] should be told of.
pub fn concerns_errors(level: i32, name: i32) -> bool {
    error_queue::is_option(level as u32, name as u32)
}

/// The program duplicated `old` to `new` (`dup`, `dup2`, `dup3`, `F_DUPFD`). Any descriptors may be named.
pub fn duplicated(old: Fd, new: Fd) {
    descriptors::duplicated(old, new);
}

/// A descriptor that can be polled in place of the ring `fd`: readable while the CQ holds
/// completions, as of the last [`sync_readiness`] or completion. It stays the engine's to close.
///
/// # Errors
/// Negative errno where `fd` is no ring or a descriptor cannot be had.
pub fn readiness_fd(fd: Fd) -> Result<Fd, i32> {
    stand_in::of(fd).map_err(Errno::negated)
}

/// The program has put a ring's [`readiness_fd`] into an epoll instance, in the ring's place.
pub fn added_to_epoll(ring: Fd) {
    stand_in::added_to_epoll(ring);
}

/// True if [`before_epoll_wait`] need be called at all.
#[inline]
pub fn has_ready_rings_in_epoll() -> bool {
    stand_in::any_lit()
}

/// The program is about to wait for an epoll instance, in which there may be rings.
pub fn before_epoll_wait() {
    stand_in::synchronize_lit();
}

/// Brings the descriptor of [`readiness_fd`] in line with the CQ: readable if it holds
/// completions, not readable if the program has taken them all. Call it before a level-triggered
/// wait. Returns whether it is readable.
pub fn sync_readiness(fd: Fd) -> bool {
    stand_in::synchronize(fd)
}

/// Lets `fd`, a ring's descriptor, be what [`readiness_fd`] answers: it can be polled as a ring of the kernel's
/// can, where nobody sees that it is, but no longer be mapped. To be called before there are requests, by a front end
/// that calls [`sync_readiness`] when the program has looked for completions and found none.
///
/// # Errors
/// Negative errno where `fd` is no ring or a descriptor cannot be had.
pub fn show_readiness(fd: Fd) -> Result<(), i32> {
    stand_in::show(fd).map_err(Errno::negated)
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

/// The process is about to start another that gets its descriptors, as by `vfork`, where it need not announce a fork, or has just
/// done so; or a thread gets descriptors of its own.
pub fn hands_over() {
    notes::hands_over();
}

/// Does what another process, or a thread, gets descriptors and limits by: says so [before and after](hands_over), for what comes
/// meanwhile may be handed over, too; and the limits are those that the program has set.
pub fn handing_over<T>(act: impl FnOnce() -> T) -> T {
    hands_over();
    let result = limits::unlifted(act);
    hands_over();
    result
}

/// Does what executes another program, which has the limits that the program has set. It may be a child of `vfork`, whose limits are
/// its own already.
pub fn executing<T>(act: impl FnOnce() -> T) -> T {
    if identity::is_own() { limits::executing(act) } else { act() }
}

/// Does something while a limit of the process is lifted for a moment, as the engine does, too: nobody makes a process meanwhile, or
/// executes a program.
pub fn lifting<T>(act: impl FnOnce() -> T) -> T {
    limits::lifting(act)
}

/// The process has forked, or could not, and this is the parent.
pub fn after_fork() {
    fork::after();
}

/// The process ends. Where others use its rings, its requests are cancelled, as the kernel does.
pub fn exits() {
    if identity::is_own() {
        shared::exits();
        trace::ends();
    }
}

/// The calling thread ends: what waits on its behalf is cancelled, as the kernel does.
pub fn thread_ends() {
    if identity::is_own() {
        shared::thread_ends();
        ring_fds::register::thread_ends();
        trace::forget_thread();
    }
}

/// The process is about to execute another program; as for [`exits`]. It may be a child of `vfork`.
pub fn executes() {
    notes::hands_over();
    if identity::is_own() {
        shared::executes();
    }
}

/// The process has forked and this is the child: every ring of the parent becomes one without
/// threads and without the parent's requests. A front end that sees `fork` calls it first thing in the
/// child, where no other thread exists.
pub fn forked() {
    fork::forked();
}
