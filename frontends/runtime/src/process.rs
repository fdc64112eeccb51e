//! The life of the process: which engine it has, its forks, its end.

use crate::arch::STUB_ADDRESS;
use crate::ask::{self, Answer};
use crate::config::{Choice, Config, Level, Wrong};
use crate::{beside, calls, chaos, config, log, stats, sys, threads, trace};
use alloc::vec::Vec;
use anyring_engine::{Host, frontend};
use anyring_trace::event::{ENGINE_KERNEL, ENGINE_USER};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use linux_raw_sys::errno::{EACCES, ENXIO};
use linux_raw_sys::general as raw;

/// The part of anyring that is to see the three calls of this process.
static SEEN_BY: AtomicU8 = AtomicU8::new(NOBODY);
/// The kernel alone.
const NOBODY: u8 = 0;
/// Our engine, which answers them.
const ENGINE: u8 = 1;
/// `anyring-kernel-trace`, and then the kernel.
const WATCH: u8 = 2;
/// Whether this process forked off the one that started here.
static FORKED: AtomicBool = AtomicBool::new(false);
/// This process, 0 before anybody asked, which a front end does before a child of `vfork` may: a filter that the program installs
/// later may kill who asks the kernel.
static OWN_ID: AtomicU32 = AtomicU32::new(0);
/// Whether the process has had a child by `vfork`, which runs in its memory. [`vforks`] sets it, and assembly that can call
/// nothing.
pub static VFORKED: AtomicBool = AtomicBool::new(false);
/// Whether the last line was written.
static ENDED: AtomicBool = AtomicBool::new(false);
/// Whether a ring was asked for, whatever the answer was.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether the engine of this process is ours.
#[inline]
pub fn active() -> bool {
    SEEN_BY.load(Ordering::Relaxed) == ENGINE
}

/// Whether the engine of this process is the kernel's, and what happens there is told.
#[inline]
pub fn watches_kernel() -> bool {
    SEEN_BY.load(Ordering::Relaxed) == WATCH
}

/// Whether the three calls of this process are to come to us.
#[inline]
pub fn sees_calls() -> bool {
    SEEN_BY.load(Ordering::Relaxed) != NOBODY
}

/// Which engine it is to be: ours or the kernel's, which `kernel` makes a system call of. Where the kernel's was not asked for, ours
/// is [offered](beside) for what it refuses.
pub fn choose(asked: Choice, asks: Asks, kernel: impl Fn(usize, [usize; 6]) -> isize) -> Choice {
    match asked {
        Choice::Auto if kernel_allows(asks, kernel) => {
            beside::offer();
            Choice::Kernel
        }
        // Then nobody makes rings: what the kernel says is an errno at least.
        Choice::Auto if rings_kill() => Choice::Kernel,
        Choice::Auto => Choice::User,
        choice => choice,
    }
}

/// The maker of a ring that shows whether the kernel makes any. Some ms after a ring was closed, the kernel interrupts the
/// threads that had to do with it (`TWA_SIGNAL`), and then calls like `epoll_wait` fail with `EINTR` though no signal came.
#[derive(Clone, Copy)]
pub enum Asks {
    /// A thread that ends, before `main`: the program may never want a ring, and must not notice.
    Thread,
    /// This process: it is about to make rings itself, and may be too large to be copied; or it is about to execute another program,
    /// which the kernel does not interrupt.
    Itself,
}

/// A call that a small ring was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its number.
    pub call: u32,
    /// The kernel's, or a filter's.
    pub errno: i32,
}

/// Whether the kernel's `io_uring` works here, which using a ring shows: limits, quotas and security modules speak up only when one
/// is made, and a filter may refuse one of the calls alone. `kernel` makes a system call of the kernel.
///
/// # Errors
/// The first call that is refused.
pub fn use_a_ring(kernel: impl Fn(usize, [usize; 6]) -> isize) -> Result<(), Refused> {
    /// Says at once that there are none, in every kernel that has rings.
    const UNREGISTER_BUFFERS: usize = 1;
    let mut parameters = [0_u32; 30];
    let made = kernel(raw::__NR_io_uring_setup as usize, [1, parameters.as_mut_ptr().addr(), 0, 0, 0, 0]);
    let refused = |call, result: isize| Err(Refused { call, errno: -result as i32 });
    let Ok(fd) = usize::try_from(made) else { return refused(raw::__NR_io_uring_setup, made) };
    let entered = kernel(raw::__NR_io_uring_enter as usize, [fd, 0, 0, 0, 0, 0]);
    let registered = kernel(raw::__NR_io_uring_register as usize, [fd, UNREGISTER_BUFFERS, 0, 0, 0, 0]);
    sys::close(fd as i32);
    // The kernel's own restrictions of a process may refuse a registration; the ring is the kernel's then, too.
    let restricted = registered == -(EACCES as isize) && !ask::is_filtered();
    if entered < 0 {
        refused(raw::__NR_io_uring_enter, entered)
    } else if registered == -(ENXIO as isize) || restricted {
        Ok(())
    } else {
        refused(raw::__NR_io_uring_register, registered)
    }
}

/// Whether [it works](use_a_ring). Where a filter kills who asks, it does not.
fn kernel_allows(asks: Asks, kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    let makes_a_ring = || match use_a_ring(&kernel) {
        Ok(()) => true,
        // A ring with which nothing can be registered is better than none.
        Err(refused) => refused.call == raw::__NR_io_uring_register && !makes_a_file(),
    };
    let answer = match asks {
        Asks::Thread => ask::by_thread(makes_a_ring),
        Asks::Itself => ask::safely(makes_a_ring),
    };
    match answer {
        Answer::Is(works) => works,
        // Where no child can be had, this process may ask, unless a filter could end it.
        Answer::Unknown if !ask::is_filtered() => makes_a_ring(),
        // Where there is a filter and no process that could ask, this one must not: it may be ended for it.
        Answer::Dies | Answer::Unknown => false,
    }
}

/// Whether a file in memory can be made, which our engine needs for a ring.
fn makes_a_file() -> bool {
    let fd = sys::memory_file(c"anyring");
    sys::close(fd);
    fd >= 0
}

/// Whether a filter ends whoever makes such a file.
pub fn rings_kill() -> bool {
    ask::safely(makes_a_file) == Answer::Dies
}

/// The reason that the log gives then.
pub const RINGS_KILL: &str =
    "a seccomp filter ends processes that call memfd_create, as the engine does for a ring";

/// How a program ends that was started to see whether the engine gets into it, where it does. No other ends so as a rule.
pub const LOADED: i32 = 86;

/// The exit status of a program that is not started, as of `anyring run` itself.
pub const OWN_FAILURE: i32 = 125;

/// Ends the process where a setting cannot be understood: a guess would be another engine than the user asked for.
pub fn refuse_settings(config: &Config) {
    if let Some(Wrong { name, wanted }) = config.wrong {
        log::write(format_args!("{name} cannot be understood: it is to be {wanted}"));
        sys::exit_group(OWN_FAILURE);
    }
}

/// The engine cannot be had: where `anyring run` was to start a program on it, the program does not start; others go on
/// with what the kernel says of `io_uring`.
pub fn goes_without(config: &Config, why: core::fmt::Arguments<'_>) {
    if config.started && config.choice == Choice::User {
        log::write(format_args!("{why}: the engine cannot be had here"));
        sys::exit_group(OWN_FAILURE);
    }
    let level = if config.started { Level::Off } else { Level::Info };
    log::line(level, format_args!("{why}: io_uring is left as it is"));
}

/// Leaves the end of the process to another front end, which answers in this process, and says in the end what was done.
pub fn leaves_to_another() {
    ENDED.store(true, Ordering::Relaxed);
    log::line(Level::Debug, format_args!("another front end answers in this process"));
}

/// Whether a front end that traps calls is in this process, this one or another: it has put its page in place.
pub fn others_answer() -> bool {
    const PAGE: usize = 4096;
    sys::is_mapped(STUB_ADDRESS, PAGE)
}

/// From here on the engine of this process is ours; `host` provides what it needs.
pub fn adopt(host: &'static &'static dyn Host) {
    anyring_engine::install(host);
    SEEN_BY.store(ENGINE, Ordering::Relaxed);
    trace::begin(ENGINE_USER);
    if config::stats().is_some() {
        frontend::count_operations();
    }
    chaos::begin();
}

/// From here on what happens on the kernel's rings of this process is told, if it is to be traced; `host` provides what that
/// needs. Whether it is.
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

/// Which engine the process has, or which two.
pub fn engine() -> &'static CStr {
    match (active(), beside::is_shared()) {
        (true, true) => c"kernel+user",
        (true, false) => c"user",
        _ => c"kernel",
    }
}

/// The process asks for a ring: it is to say at its end what came of that, if there is a log.
pub fn asks_for_ring() {
    if !ASKED.swap(true, Ordering::Relaxed) && !is_silent() {
        log::keep();
    }
}

/// The name that [`engine`] has, as a string.
pub fn engine_name() -> &'static str {
    engine().to_str().unwrap_or_default()
}

/// The id of this process; in a child of `vfork` that of its parent.
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

/// The path of the program's file.
pub fn executable() -> Vec<u8> {
    const MOST: usize = 4096;
    let mut path = alloc::vec![0; MOST];
    let length = sys::read_link(c"/proc/self/exe", &mut path);
    path.truncate(usize::try_from(length).unwrap_or(0));
    path
}

/// True if the thread that ends the process is in a child of `vfork`, whose end is none of its parent's. The parent goes on then,
/// and need not ask any more.
fn child_of_vfork_ends() -> bool {
    VFORKED.load(Ordering::Relaxed) && sys::process_id() != own_id() && VFORKED.swap(false, Ordering::Relaxed)
}

/// The process is about to have a child by `vfork`.
pub fn vforks() {
    frontend::hands_over();
    VFORKED.store(true, Ordering::Relaxed);
}

/// Does what executes another program. If that is a child of `vfork`, its parent goes on and need not ask any more; where it
/// returns, the child does.
pub fn leaving_by<T>(executes: impl FnOnce() -> T) -> T {
    let vforked = VFORKED.swap(false, Ordering::Relaxed);
    let failed = if active() && calls::rings_exist() { frontend::executing(executes) } else { executes() };
    VFORKED.store(vforked, Ordering::Relaxed);
    failed
}

/// True if the process may have something to say when it ends.
pub fn may_speak() -> bool {
    config::level() > Level::Off || stats::wanted().is_some()
}

/// The process has forked and this is the child, whose engine is the kernel's.
pub fn forked_unwatched() {
    OWN_ID.store(sys::process_id(), Ordering::Relaxed);
    FORKED.store(true, Ordering::Relaxed);
    ENDED.store(false, Ordering::Relaxed);
    ASKED.store(false, Ordering::Relaxed);
    VFORKED.store(false, Ordering::Relaxed);
    log::forked();
}

/// The process has forked and this is the child.
pub fn forked() {
    forked_unwatched();
    threads::forked();
    frontend::forked();
    if watches_kernel() {
        anyring_kernel_trace::forked();
    }
}

/// The process is about to fork; [`after_fork`] or [`forked`] follows. Handlers of the program must not enter a ring meanwhile.
pub fn before_fork() {
    frontend::before_fork();
    if watches_kernel() {
        anyring_kernel_trace::before_fork();
    }
}

/// The process has forked, or could not, and this is the parent.
pub fn after_fork() {
    if watches_kernel() {
        anyring_kernel_trace::after_fork();
    }
    frontend::after_fork();
}

/// Notes that these descriptors are about to be closed, of a process whose kernel's rings are watched.
pub fn closes_watched(descriptors: core::ops::RangeInclusive<i32>) {
    if is_watched_here() {
        anyring_kernel_trace::closing(descriptors);
    }
}

/// True if the kernel's rings of this very process are watched. A child of `vfork` has descriptors and an end of its own.
fn is_watched_here() -> bool {
    watches_kernel() && sys::process_id() == own_id()
}

/// The process is about to execute another program: rings that others have are left.
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

/// The process ends, and says what was done, if asked.
pub fn exits() {
    let has_rings = sees_calls() && calls::rings_exist();
    // A filter of the program's own may kill who asks for more than the end.
    if !has_rings && is_silent() || child_of_vfork_ends() {
        return;
    }
    if has_rings {
        ends_rings();
    }
    end();
}

/// True if the process has nothing to say when it ends, as far as is known by now.
pub(crate) fn is_silent() -> bool {
    !is_logged() && stats::wanted().is_none()
}

/// True if the log is to have a line of this process. It has of those that use rings, and of the one that the user has started,
/// who wants to know whether it uses any. Of the kernel's rings nothing is known but that they were asked for.
fn is_logged() -> bool {
    let uses_rings = ASKED.load(Ordering::Relaxed) || active() && calls::rings_exist();
    config::level() > Level::Off && (uses_rings || is_first())
}

/// True if this process is the one that `anyring run` became, whatever it has executed since.
pub fn is_first() -> bool {
    config::succeeds_started() && !FORKED.load(Ordering::Relaxed)
}

/// The process, which has rings, ends.
fn ends_rings() {
    if active() {
        frontend::exits();
    } else if is_watched_here() {
        anyring_kernel_trace::ends();
    }
}

/// The process ends: what is to be done for its rings, inside of what keeps handlers of the program out.
pub fn ends_inside<T>(enter: impl FnOnce() -> T) {
    if sees_calls() && calls::rings_exist() {
        let _stay = enter();
        ends_rings();
    }
}

/// The process ends: says what was done, if asked.
pub extern "C" fn end() {
    if is_silent() || child_of_vfork_ends() || ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(format) = stats::wanted() {
        stats::tell(format);
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
    // Nothing that the engine did in this child could be seen.
    if FORKED.load(Ordering::Relaxed) && traps == 0 && counters.rings == 0 {
        return;
    }
    log::line(
        Level::Info,
        format_args!(
            "engine={} rings={} submitted={} completed={} traps={} patched_sites={} program={program}",
            engine_name(),
            counters.rings,
            counters.submitted,
            counters.completed,
            traps,
            calls::PATCHED_SITES.load(Ordering::Relaxed),
        ),
    );
}

/// Says what went wrong in code of ours, and ends the process.
pub fn bug(what: &dyn core::fmt::Display) -> ! {
    log::write(format_args!("bug: {what}"));
    sys::raise(linux_raw_sys::general::SIGABRT as i32);
    sys::exit_group(134)
}
