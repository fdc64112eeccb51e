//! The process: its engine, its forks, its end.

use crate::arch::STUB_ADDRESS;
use crate::ask::{self, Answer};
use crate::config::{Choice, Config, Level, Wrong};
use crate::{beside, calls, chaos, config, log, metrics, stats, sys, threads, trace};
use alloc::vec::Vec;
use anyring_engine::{Host, frontend};
use anyring_trace::event::{ENGINE_KERNEL, ENGINE_USER};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use linux_raw_sys::errno::{EACCES, ENXIO};
use linux_raw_sys::general as raw;

/// The part of anyring that sees the three calls of this process.
static SEEN_BY: AtomicU8 = AtomicU8::new(NOBODY);
/// No part: the kernel answers the calls.
const NOBODY: u8 = 0;
/// The user engine, which answers the calls.
const ENGINE: u8 = 1;
/// `anyring-kernel-trace`, which passes the calls on to the kernel.
const WATCH: u8 = 2;
/// True if this process began by a `fork`, and has executed no program since.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The id of this process, or 0 before it was first read. A front end reads it before a child of `vfork` can, and before the program
/// installs a filter that may kill a process for asking the kernel.
static OWN_ID: AtomicU32 = AtomicU32::new(0);
/// True if the process has had a child by `vfork`, which runs in its memory. Set by [`vforks`], and by assembly that cannot call
/// functions.
pub static VFORKED: AtomicBool = AtomicBool::new(false);
/// True once the last line was written.
static ENDED: AtomicBool = AtomicBool::new(false);
/// True once a ring was asked for, whether it was made or not.
static ASKED: AtomicBool = AtomicBool::new(false);

/// True if the engine of this process is the user engine.
#[inline]
pub fn active() -> bool {
    SEEN_BY.load(Ordering::Relaxed) == ENGINE
}

/// True if the engine of this process is the kernel engine, and requests on its rings are traced.
#[inline]
pub fn watches_kernel() -> bool {
    SEEN_BY.load(Ordering::Relaxed) == WATCH
}

/// True if anyring sees the three calls of this process.
#[inline]
pub fn sees_calls() -> bool {
    SEEN_BY.load(Ordering::Relaxed) != NOBODY
}

/// Chooses the engine; `kernel` makes a system call of the kernel. If the kernel engine is chosen and the user did not ask for it,
/// the user engine is [offered](beside) for rings that the kernel refuses.
pub fn choose(asked: Choice, asks: Asks, kernel: impl Fn(usize, [usize; 6]) -> isize) -> Choice {
    match asked {
        Choice::Auto if kernel_allows(asks, kernel) => {
            beside::offer();
            Choice::Kernel
        }
        // No engine can make rings here; the kernel at least returns an errno.
        Choice::Auto if rings_kill() => Choice::Kernel,
        Choice::Auto => Choice::User,
        choice => choice,
    }
}

/// The task that makes the test ring. Some milliseconds after a ring was closed, the kernel interrupts the threads that have
/// used it (`TWA_SIGNAL`), and then calls such as `epoll_wait` fail with `EINTR` without a signal.
#[derive(Clone, Copy)]
pub enum Asks {
    /// A separate thread, before `main`: the program may never want a ring, and must not be interrupted.
    Thread,
    /// This process: it is about to make rings itself, and may be too large to be forked; or it is about to execute another program,
    /// which the kernel does not interrupt.
    Itself,
}

/// A call on a small test ring that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The number of the call.
    pub call: u32,
    /// The errno, from the kernel or from a filter.
    pub errno: i32,
}

/// Tests whether the kernel's `io_uring` works here, by using a ring: limits, quotas and security modules take effect only when one
/// is made, and a filter may refuse one of the calls only. `kernel` makes a system call of the kernel.
///
/// # Errors
/// The first call that is refused.
pub fn use_a_ring(kernel: impl Fn(usize, [usize; 6]) -> isize) -> Result<(), Refused> {
    /// A registration that fails immediately with `ENXIO`, in every kernel that has rings.
    const UNREGISTER_BUFFERS: usize = 1;
    let mut parameters = [0_u32; 30];
    let made = kernel(raw::__NR_io_uring_setup as usize, [1, parameters.as_mut_ptr().addr(), 0, 0, 0, 0]);
    let refused = |call, result: isize| Err(Refused { call, errno: -result as i32 });
    let Ok(fd) = usize::try_from(made) else { return refused(raw::__NR_io_uring_setup, made) };
    let entered = kernel(raw::__NR_io_uring_enter as usize, [fd, 0, 0, 0, 0, 0]);
    let registered = kernel(raw::__NR_io_uring_register as usize, [fd, UNREGISTER_BUFFERS, 0, 0, 0, 0]);
    sys::close(fd as i32);
    // The kernel's own restrictions of a process may refuse the registration; the kernel engine is used then, too.
    let restricted = registered == -(EACCES as isize) && !ask::is_filtered();
    if entered < 0 {
        refused(raw::__NR_io_uring_enter, entered)
    } else if registered == -(ENXIO as isize) || restricted {
        Ok(())
    } else {
        refused(raw::__NR_io_uring_register, registered)
    }
}

/// True if [a ring can be used](use_a_ring); false if a filter kills processes that try.
fn kernel_allows(asks: Asks, kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    let makes_a_ring = || match use_a_ring(&kernel) {
        Ok(()) => true,
        // A ring without registrations is better than none.
        Err(refused) => refused.call == raw::__NR_io_uring_register && !makes_a_file(),
    };
    let answer = match asks {
        Asks::Thread => ask::by_thread(makes_a_ring),
        Asks::Itself => ask::safely(makes_a_ring),
    };
    match answer {
        Answer::Is(works) => works,
        // If no child can be made, this process may try, unless a filter could kill it.
        Answer::Unknown if !ask::is_filtered() => makes_a_ring(),
        // If there is a filter and no other process that could try, this process must not: the filter may kill it.
        Answer::Dies | Answer::Unknown => false,
    }
}

/// True if a memory file can be made, which the user engine needs for a ring.
fn makes_a_file() -> bool {
    let fd = sys::memory_file(c"anyring");
    sys::close(fd);
    fd >= 0
}

/// True if a filter kills processes that make a memory file.
pub fn rings_kill() -> bool {
    ask::safely(makes_a_file) == Answer::Dies
}

/// The reason that the log gives if [`rings_kill`].
pub const RINGS_KILL: &str =
    "a seccomp filter ends processes that call memfd_create, as the engine does for a ring";

/// The exit status by which a program reports that the engine was loaded into it (`ANYRING_PROBE`). Programs rarely exit with it.
pub const LOADED: i32 = 86;
/// The exit status by which a program reports that all of its closes are seen.
pub const SEES_CLOSES: i32 = 87;
/// The exit status by which a program reports that some of its closes may not be seen.
pub const MISSES_CLOSES: i32 = 88;

/// The exit status of a program that is not started, equal to that of `anyring run`.
pub const OWN_FAILURE: i32 = 125;

/// Ends the process if a setting is invalid: a guess could select an engine that the user did not ask for.
pub fn refuse_settings(config: &Config) {
    if let Some(Wrong { name, wanted }) = config.wrong {
        log::write(format_args!("{name} cannot be understood: it is to be {wanted}"));
        sys::exit_group(OWN_FAILURE);
    }
}

/// Handles the absence of the user engine. If the user asked `anyring run` to start the program on it, the process ends; other
/// processes continue with the kernel's `io_uring`.
pub fn goes_without(config: &Config, why: core::fmt::Arguments<'_>) {
    if config.started && config.choice == Choice::User {
        log::write(format_args!("{why}: the engine cannot be had here"));
        sys::exit_group(OWN_FAILURE);
    }
    let level = if config.started { Level::Off } else { Level::Info };
    log::line(level, format_args!("{why}: io_uring is left as it is"));
}

/// Leaves the report at the process's end to another front end, which answers the calls of this process.
pub fn leaves_to_another() {
    ENDED.store(true, Ordering::Relaxed);
    log::line(Level::Debug, format_args!("another front end answers in this process"));
}

/// True if a front end that traps calls, this one or another, has mapped its page in this process.
pub fn others_answer() -> bool {
    const PAGE: usize = 4096;
    sys::is_mapped(STUB_ADDRESS, PAGE)
}

/// Makes the user engine the engine of this process; `host` provides what the engine needs.
pub fn adopt(host: &'static &'static dyn Host) {
    anyring_engine::install(host);
    SEEN_BY.store(ENGINE, Ordering::Relaxed);
    trace::begin(ENGINE_USER);
    if config::stats().is_some() || config::stats_file().is_some() {
        frontend::count_operations();
    }
    if host.checker().is_some() {
        frontend::tell_checker();
    }
    chaos::begin();
}

/// Begins to trace requests on the kernel's rings of this process, if the process is to be traced; `host` provides
/// threads and memory for that. Returns true if the process is traced.
pub fn watch_kernel(host: &'static &'static dyn Host) -> bool {
    if !trace::is_wanted() {
        return false;
    }
    anyring_engine::install(host);
    let attached = trace::begin(ENGINE_KERNEL);
    if attached {
        SEEN_BY.store(WATCH, Ordering::Relaxed);
    }
    attached
}

/// Returns the name of the engine of this process, or of both.
pub fn engine() -> &'static CStr {
    match (active(), beside::is_shared()) {
        (true, true) => c"kernel+user",
        (true, false) => c"user",
        _ => c"kernel",
    }
}

/// Notes that the process asks for a ring. If there is a log, the process reports that at its end.
pub fn asks_for_ring() {
    if !ASKED.swap(true, Ordering::Relaxed) && !is_silent() {
        log::keep_descriptor();
    }
}

/// Returns the name that [`engine`] returns, as a string.
pub fn engine_name() -> &'static str {
    engine().to_str().unwrap_or_default()
}

/// Returns the id of this process; in a child of `vfork`, the id of its parent.
pub fn own_id() -> u32 {
    match OWN_ID.load(Ordering::Relaxed) {
        0 => {
            let id = sys::process_id();
            OWN_ID.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Returns the path of the program's file.
pub fn executable() -> Vec<u8> {
    const MOST: usize = 4096;
    let mut path = alloc::vec![0; MOST];
    let length = sys::read_link(c"/proc/self/exe", &mut path);
    path.truncate(usize::try_from(length).unwrap_or(0));
    path
}

/// True if the thread that ends the process is in a child of `vfork`, whose end does not end the parent. The parent continues then,
/// so [`VFORKED`] is reset.
fn child_of_vfork_ends() -> bool {
    VFORKED.load(Ordering::Relaxed) && sys::process_id() != own_id() && VFORKED.swap(false, Ordering::Relaxed)
}

/// True in a child of `vfork`, which has descriptors of its own in its parent's memory.
pub fn is_child_of_vfork() -> bool {
    VFORKED.load(Ordering::Relaxed) && sys::process_id() != own_id()
}

/// Notes that the process is about to have a child by `vfork`.
pub fn vforks() {
    frontend::hands_over();
    VFORKED.store(true, Ordering::Relaxed);
}

/// Calls `executes`, which executes another program. If this is a child of `vfork`, the parent continues and finds [`VFORKED`] reset. If
/// `executes` returns, [`VFORKED`] is restored.
pub fn leaving_by<T>(executes: impl FnOnce() -> T) -> T {
    let vforked = VFORKED.swap(false, Ordering::Relaxed);
    let failed = if active() && calls::rings_exist() { frontend::executing(executes) } else { executes() };
    VFORKED.store(vforked, Ordering::Relaxed);
    failed
}

/// True if the process may write to the log, or statistics, when it ends.
pub fn may_speak() -> bool {
    config::level() > Level::Off || stats::wanted().is_some() || metrics::is_wanted()
}

/// Updates the state in a child of `fork` whose engine is the kernel engine.
pub fn forked_unwatched() {
    OWN_ID.store(sys::process_id(), Ordering::Relaxed);
    FORKED.store(true, Ordering::Relaxed);
    ENDED.store(false, Ordering::Relaxed);
    ASKED.store(false, Ordering::Relaxed);
    VFORKED.store(false, Ordering::Relaxed);
    log::forked();
}

/// Updates the state in a child of `fork`.
pub fn forked() {
    forked_unwatched();
    threads::forked();
    frontend::forked();
    metrics::forked();
    if watches_kernel() {
        anyring_kernel_trace::forked();
    }
}

/// Prepares for a fork; [`after_fork`] or [`forked`] must follow. Handlers of the program must not enter a ring meanwhile.
pub fn before_fork() {
    frontend::before_fork();
    if watches_kernel() {
        anyring_kernel_trace::before_fork();
    }
}

/// Ends a fork in the parent, whether it succeeded or not.
pub fn after_fork() {
    if watches_kernel() {
        anyring_kernel_trace::after_fork();
    }
    frontend::after_fork();
}

/// Notes that these descriptors are about to be closed, in a process in which the kernel's rings are traced.
pub fn closes_watched(descriptors: core::ops::RangeInclusive<i32>) {
    if is_watched_here() {
        anyring_kernel_trace::closing(descriptors);
    }
}

/// True if the kernel's rings of this process are traced. False in a child of `vfork`, which has descriptors and an end of its own.
fn is_watched_here() -> bool {
    watches_kernel() && sys::process_id() == own_id()
}

/// Prepares for the execution of another program: rings that other processes have are left to them.
pub fn executes() {
    if !calls::rings_exist() {
        return;
    }
    if active() {
        frontend::executes();
    } else if is_watched_here() {
        anyring_kernel_trace::looks();
    }
}

/// Handles the end of the process, and writes the reports that the user wants.
pub fn exits() {
    let has_rings = sees_calls() && calls::rings_exist();
    // A filter of the program may kill the process for any further call.
    if !has_rings && writes_nothing() || child_of_vfork_ends() {
        return;
    }
    if has_rings {
        ends_rings();
    }
    end();
}

/// True if the process has nothing to report when it ends, as far as is known now.
pub(crate) fn is_silent() -> bool {
    !is_logged() && stats::wanted().is_none()
}

/// True if the process writes neither to the log nor to its file of statistics when it ends.
fn writes_nothing() -> bool {
    is_silent() && !metrics::is_wanted()
}

/// True if the process writes a line to the log: if it uses rings, and if it is the process that the user has started, so
/// that the user learns whether it uses any. A process with rings of the kernel counts once it has asked for a ring.
fn is_logged() -> bool {
    let uses_rings = ASKED.load(Ordering::Relaxed) || active() && calls::rings_exist();
    config::level() > Level::Off && (uses_rings || is_first())
}

/// True if this process is the one that `anyring run` became, even if it has executed other programs since.
pub fn is_first() -> bool {
    config::succeeds_started() && !FORKED.load(Ordering::Relaxed)
}

/// Ends the rings of a process that ends.
fn ends_rings() {
    if active() {
        frontend::exits();
    } else if is_watched_here() {
        anyring_kernel_trace::ends();
    }
}

/// Ends the rings of a process that ends. `enter` begins a stay in the engine, which keeps signal handlers of the
/// program out.
pub fn ends_inside<T>(enter: impl FnOnce() -> T) {
    if sees_calls() && calls::rings_exist() {
        let _stay = enter();
        ends_rings();
    }
}

/// Writes the reports that the user wants, when the process ends.
pub extern "C" fn end() {
    if writes_nothing() || child_of_vfork_ends() || ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    if metrics::is_wanted() {
        metrics::end();
    }
    if let Some(format) = stats::wanted() {
        stats::write(format);
    }
    if !is_logged() {
        return;
    }
    let program = log::Value(log::program());
    if !active() {
        log::line(Level::Info, format_args!("engine=kernel program={program}"));
        return;
    }
    let counters = frontend::counters();
    let traps = calls::TRAPS.load(Ordering::Relaxed);
    // Without traps and without rings of its own, a forked child has nothing to report.
    if FORKED.load(Ordering::Relaxed) && traps == 0 && counters.rings == 0 {
        return;
    }
    log::line(
        Level::Info,
        format_args!(
            "engine={} rings={} submitted={} completed={} traps={} patched_sites={} closes={} program={program}",
            engine_name(),
            counters.rings,
            counters.submitted,
            counters.completed,
            traps,
            calls::PATCHED_SITES.load(Ordering::Relaxed),
            how_closes_are_checked(),
        ),
    );
    log::debug!("{} other calls trapped", calls::OTHER_TRAPS.load(Ordering::Relaxed));
}

/// Returns how waits are checked for unreported closes, in a word of the log: `late` if all closes are seen, `ticks` if some may be
/// unseen, and `unknown`, which means at ticks, too, before the program's code was searched.
fn how_closes_are_checked() -> &'static str {
    match frontend::are_closes_seen() {
        Some(true) => "late",
        Some(false) => "ticks",
        None => "unknown",
    }
}

/// Reports a bug of anyring, and ends the process.
pub fn bug(what: &dyn core::fmt::Display) -> ! {
    log::write(format_args!("bug: {what}"));
    sys::raise(linux_raw_sys::general::SIGABRT as i32);
    sys::exit_group(134)
}
