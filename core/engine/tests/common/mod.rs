//! Helpers that the engine's tests share: a front end made of std threads, and a ring that speaks the ABI to
//! either engine, so that the same test runs on the kernel's io_uring and on ours.
#![allow(dead_code, unused_imports, reason = "each test uses its own part")]

pub mod record;
pub mod scene;
pub mod text;

// What tests name again and again.
pub use std::ffi::{CStr, CString, c_void};
pub use std::fs::File;
pub use std::io::{Read, Write};
pub use std::net::{TcpListener, TcpStream, UdpSocket};
pub use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
pub use std::os::unix::fs::FileExt;
pub use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
pub use std::path::{Path, PathBuf};
pub use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
pub use std::time::{Duration, Instant};

pub use anyring_both::{both, by};
pub use anyring_engine::abi::Sqe;
pub use anyring_engine::abi::*;
pub use anyring_engine::{frontend, io_uring_params};
pub use linux_raw_sys::io_uring::*;
pub use scene::*;

use std::num::NonZeroUsize;
use std::sync::{Once, OnceLock};

use anyring_engine::request::version;
use anyring_engine::{Caller, Host};

/// `IOSQE_*`.
pub const FIXED: u8 = 1 << 0;
pub const DRAIN: u8 = 1 << 1;
pub const LINK: u8 = 1 << 2;
pub const HARDLINK: u8 = 1 << 3;
pub const ASYNC: u8 = 1 << 4;
pub const SELECT: u8 = 1 << 5;
pub const SKIP: u8 = 1 << 6;

/// A ring whose thread does its work itself, in calls that wait.
pub const DEFER: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// How long a test waits for what never comes: a busy machine holds a process up for seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PATIENCE_MS: i32 = PATIENCE.as_millis() as i32;

/// All of this module, with the names of operations and registrations.
pub mod prelude {
    pub use super::*;
    pub use linux_raw_sys::io_uring::io_uring_op::*;
    pub use linux_raw_sys::io_uring::io_uring_register_op::*;
}

/// Which engine a ring runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    Kernel,
    User,
}

struct StdHost {
    sees_closes: bool,
}

struct Start(unsafe extern "C" fn(*mut c_void), *mut c_void);
// SAFETY: handed to one thread.
unsafe impl Send for Start {}

impl Host for StdHost {
    fn sees_handovers(&self) -> bool {
        true
    }

    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        let start = Start(entry, argument);
        let name = name.to_str().unwrap().to_owned();
        let body = move || {
            let start = start;
            let Start(entry, argument) = start;
            // SAFETY: blocks signals in this thread only.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            // SAFETY: once, as the engine wants it.
            unsafe { entry(argument) };
        };
        std::thread::Builder::new().name(name).spawn(body).map(drop).map_err(|_| libc::EAGAIN)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        NonZeroUsize::new(anyring_engine::os::thread_pointer()).unwrap()
    }

    fn faults_resume(&self) -> bool {
        false
    }

    fn sees_closes(&self) -> bool {
        self.sees_closes
    }
}

/// The functions that a [`Host`] of a test's own takes from [`SEEING`]: all, or all but how threads begin.
macro_rules! as_seeing {
    () => {
        $crate::common::as_seeing!(but spawn);

        fn spawn(
            &self,
            name: &'static std::ffi::CStr,
            entry: unsafe extern "C" fn(*mut std::ffi::c_void),
            argument: *mut std::ffi::c_void,
        ) -> Result<(), i32> {
            $crate::common::SEEING.spawn(name, entry, argument)
        }
    };
    (but spawn) => {
        fn thread_identity(&self) -> std::num::NonZeroUsize {
            $crate::common::SEEING.thread_identity()
        }

        fn faults_resume(&self) -> bool {
            $crate::common::SEEING.faults_resume()
        }
    };
}
pub(crate) use as_seeing;

static HOST: &dyn Host = &StdHost { sees_closes: false };
/// As a front end that is told of closes: for tests that tell of all.
pub static SEEING: &dyn Host = &StdHost { sees_closes: true };

/// Notes which operation comes to which result, in the file that the environment names.
#[cfg(feature = "coverage")]
fn note_results() {
    let path = std::env::var_os("ANYRING_COVERAGE").expect("ANYRING_COVERAGE names a file");
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("the file of ANYRING_COVERAGE");
    file.set_len(anyring_engine::observe::coverage::LENGTH as u64).unwrap();
    anyring_engine::observe::coverage::record_to(file.as_raw_fd());
}

/// Makes the engine this process's. A test that forks by itself, not by [`child`], and whose child makes a ring, calls it before: another
/// thread may be at it.
pub fn install() {
    static ONCE: Once = Once::new();
    alone_in_the_process();
    ONCE.call_once(|| {
        anyring_engine::install(&HOST);
        version::play(record::version());
        #[cfg(feature = "coverage")]
        note_results();
    });
}

/// Fails where two tests use the engine in one process: what one says to the engine, or to the process, the other would meet.
fn alone_in_the_process() {
    static TEST: OnceLock<String> = OnceLock::new();
    let thread = std::thread::current();
    let Some(test) = thread.name().filter(|name| name.contains("::")) else { return };
    let first = TEST.get_or_init(|| test.to_owned());
    assert_eq!(
        first, test,
        "two tests in one process: run each in its own, by `cargo nextest run`, or one alone by its name and --exact"
    );
}

/// Tells the engine of every `fork` from now on.
fn announce_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: hooks that stay.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(forked));
    });
}

unsafe extern "C" fn before_fork() {
    anyring_engine::frontend::before_fork();
}

unsafe extern "C" fn after_fork() {
    anyring_engine::frontend::after_fork();
}

unsafe extern "C" fn forked() {
    anyring_engine::frontend::forked();
}

/// A child, announced to the engine, that runs `body`; it ends with 0 where that is true, with 1 where it is false, and with 101
/// where it panics.
pub fn child(body: impl FnOnce() -> bool) -> libc::pid_t {
    // A child that is forked while another test's thread is inside `install` would wait for that thread for ever.
    install();
    announce_forks();
    // SAFETY: the child runs `body` and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "a child");
    if pid > 0 {
        return pid;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    anyring_engine::frontend::exits();
    // SAFETY: ends the child.
    unsafe { libc::_exit(result.map_or(101, |good| i32::from(!good))) }
}

/// The result of a test in a child process: nothing, where it has only assertions, or whether all is as it should be.
pub trait Found {
    fn good(self) -> bool;
}

impl Found for () {
    fn good(self) -> bool {
        true
    }
}

impl Found for bool {
    fn good(self) -> bool {
        self
    }
}

/// Gives `body` a ring of ours.
pub fn ours(entries: u32, flags: u32, body: impl FnOnce(Ring)) {
    body(Ring::new(Engine::User, entries, flags));
}

/// Does this in a [`child`], which must find it good.
#[track_caller]
pub fn in_child<T: Found>(body: impl FnOnce() -> T) {
    assert_eq!(ended(child(|| body().good())), 0);
}

/// [`in_child`] where the test runs as root.
#[track_caller]
pub fn in_child_of_root<T: Found>(body: impl FnOnce() -> T) {
    if is_root() {
        in_child(body);
    }
}

/// This process may have so many threads. Root's limit counts for nothing: where root runs the test, this process is the only one of `user`.
pub fn without_more_threads(user: u32, threads: u64) {
    // SAFETY: of a child alone. The ids are nobody else's.
    unsafe {
        assert!(!is_root() || libc::setuid(user) == 0);
        let limit = libc::rlimit { rlim_cur: threads, rlim_max: threads };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &limit), 0);
    }
}

/// Waits until a process, or the thread with this number, sleeps.
pub fn asleep(pid: libc::pid_t) {
    asleep_or(pid, || false);
}

/// Waits until a process or thread sleeps that may be at its end instead.
pub fn asleep_or(pid: libc::pid_t, ended: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ended() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit(')').next().unwrap().trim_start().starts_with('S') {
            return;
        }
        assert!(Instant::now() < deadline, "process {pid} does not sleep");
        std::thread::yield_now();
    }
}

/// The number of the call in which a thread of this process sleeps; `None` where the thread runs.
pub fn sleeps_in(thread: libc::pid_t) -> Option<libc::c_long> {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    // It is negative where the thread sleeps for another reason than a call.
    call.split(' ').next()?.parse().ok().filter(|&number| number >= 0)
}

/// Waits until a thread of this process sleeps in a call on files, not for a lock on its way there.
pub fn waits_for_events(thread: libc::pid_t) {
    // futex(2) on the machine's own processor, whichever is emulated: x86-64, aarch64.
    const FUTEX: [libc::c_long; 2] = [202, 98];
    until("the thread waits for events", || sleeps_in(thread).is_some_and(|call| !FUTEX.contains(&call)));
}

/// The time of a clock: seconds and nanoseconds.
pub fn clock(clock: i32) -> [i64; 2] {
    // SAFETY: writes a time of ours.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(clock, &mut time);
        [time.tv_sec, time.tv_nsec]
    }
}

/// Looks until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// How a child ended: its exit status, or minus the signal.
pub fn ended(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// Why a test is left out that wants memory which is [`Missing`].
pub const NO_MISSING: &str = "no userfaultfd";

/// A page of memory that is not there: whoever reads or writes it sleeps until it is given.
pub struct Missing {
    userfault: i32,
    page: *mut u8,
}

// SAFETY: an address, which nobody here reads or writes, and a descriptor.
unsafe impl Sync for Missing {}
// SAFETY: as above.
unsafe impl Send for Missing {}

impl Missing {
    /// So much of it tests use: pages are as long at least.
    pub const LENGTH: u32 = 4096;

    /// `None` where the system has no such pages.
    pub fn new() -> Option<Missing> {
        const USERFAULTFD_IOC_NEW: u64 = 0xaa00;
        const UFFDIO_API: u64 = 0xc018_aa3f;
        const UFFDIO_REGISTER: u64 = 0xc020_aa00;
        // SAFETY: a fresh mapping, and structures of integers that live through the calls.
        unsafe {
            let mut userfault = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            if userfault < 0 {
                // A filter that refuses the call may leave its device (Linux 6.1).
                let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").ok()?;
                userfault = libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC);
            }
            if userfault < 0 {
                return None;
            }
            let mut api = [0xaa_u64, 0, 0];
            assert_eq!(libc::ioctl(userfault, UFFDIO_API, api.as_mut_ptr()), 0);
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page =
                libc::mmap(std::ptr::null_mut(), anyring_engine::os::page_bytes(), protection, flags, -1, 0)
                    .cast::<u8>();
            let mut range = [page as u64, anyring_engine::os::page_bytes() as u64, 1, 0];
            assert_eq!(libc::ioctl(userfault, UFFDIO_REGISTER, range.as_mut_ptr()), 0);
            Some(Missing { userfault, page })
        }
    }

    pub fn address(&self) -> *mut u8 {
        self.page
    }

    /// Sleeps until somebody waits for the page.
    pub fn await_demand(&self) {
        let mut message = [0u64; 4];
        // SAFETY: writes one message of ours.
        assert_eq!(unsafe { libc::read(self.userfault, message.as_mut_ptr().cast(), 32) }, 32);
    }

    /// Whoever waits for the page finds it full of `1`.
    pub fn give(&self) {
        const UFFDIO_COPY: u64 = 0xc028_aa03;
        let content = vec![b'1'; anyring_engine::os::page_bytes()];
        let mut copy =
            [self.page as u64, content.as_ptr() as u64, anyring_engine::os::page_bytes() as u64, 0, 0];
        // SAFETY: fills a page that nobody has yet.
        assert_eq!(unsafe { libc::ioctl(self.userfault, UFFDIO_COPY, copy.as_mut_ptr()) }, 0);
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        // SAFETY: both are ours, and nobody uses them any more.
        unsafe {
            libc::close(self.userfault);
            libc::munmap(self.page.cast(), anyring_engine::os::page_bytes());
        }
    }
}

/// A completion as the ring shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
}

/// A ring, mapped and used as a program does.
pub struct Ring {
    pub engine: Engine,
    pub fd: i32,
    pub params: io_uring_params,
    rings: *mut u8,
    rings_length: usize,
    sqes: *mut Sqe,
    sqes_length: usize,
    sq_tail: u32,
    close_on_drop: bool,
}

// SAFETY: the tests that share a ring between threads say who does what.
unsafe impl Send for Ring {}

pub fn setup(engine: Engine, entries: u32, params: &mut io_uring_params) -> i32 {
    install();
    // SAFETY: passes structures of ours.
    unsafe {
        match engine {
            Engine::Kernel => {
                let fd = libc::syscall(libc::SYS_io_uring_setup, entries, std::ptr::from_mut(params));
                if fd < 0 { -*libc::__errno_location() } else { fd as i32 }
            }
            Engine::User => anyring_engine::setup(entries, params, &Caller::default()) as i32,
        }
    }
}

pub fn enter(
    engine: Engine,
    fd: i32,
    submit: u32,
    wait: u32,
    flags: u32,
    arg: *const c_void,
    size: usize,
) -> i32 {
    // SAFETY: the SQEs name memory of the test's.
    unsafe {
        match engine {
            Engine::Kernel => {
                let n = libc::syscall(libc::SYS_io_uring_enter, fd, submit, wait, flags, arg, size);
                if n < 0 { -*libc::__errno_location() } else { n as i32 }
            }
            Engine::User => {
                anyring_engine::enter(fd, submit, wait, flags, arg as usize, size, &Caller::default()) as i32
            }
        }
    }
}

pub fn register(engine: Engine, fd: i32, opcode: u32, arg: *const c_void, count: u32) -> i32 {
    // SAFETY: passes structures of the test's.
    unsafe {
        match engine {
            Engine::Kernel => {
                let n = libc::syscall(libc::SYS_io_uring_register, fd, opcode, arg, count);
                if n < 0 { -*libc::__errno_location() } else { n as i32 }
            }
            Engine::User => anyring_engine::register(fd, opcode, arg as usize, count) as i32,
        }
    }
}

/// [`Ring::new`], for `#[both]`.
pub fn ring(engine: Engine, entries: u32, flags: u32) -> Ring {
    Ring::new(engine, entries, flags)
}

impl Ring {
    pub fn new(engine: Engine, entries: u32, flags: u32) -> Ring {
        Ring::with_params(engine, entries, params(flags)).expect("a ring")
    }

    /// A ring of ours, of whose close the engine is told: there is no watch for it.
    pub fn told(entries: u32, flags: u32) -> Ring {
        install();
        let mut params = params(flags);
        let caller = Caller { tells_closes: true, ..Caller::default() };
        // SAFETY: passes a structure of ours.
        let fd = unsafe { anyring_engine::setup(entries, &mut params, &caller) };
        Ring::of(Engine::User, i32::try_from(fd).expect("a ring"), params)
    }

    pub fn with_params(engine: Engine, entries: u32, mut params: io_uring_params) -> Result<Ring, i32> {
        let fd = setup(engine, entries, &mut params);
        if fd < 0 {
            return Err(fd);
        }
        Ok(Ring::of(engine, fd, params))
    }

    /// A ring that was set up, mapped.
    pub fn of(engine: Engine, fd: i32, params: io_uring_params) -> Ring {
        let cqe_size = if params.flags & IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
        let sqe_size = if params.flags & IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
        let cq_end = params.cq_off.cqes as usize + params.cq_entries as usize * cqe_size;
        let sq_end = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let (rings_length, sqes_length) = (cq_end.max(sq_end), params.sq_entries as usize * sqe_size);
        let given = params.flags & IORING_SETUP_NO_MMAP != 0;
        let at = |address: u64, length, offset| {
            if given { address as *mut u8 } else { map(fd, length, offset) }
        };
        let (rings, sqes) = (
            at(params.cq_off.user_addr, rings_length, 0),
            at(params.sq_off.user_addr, sqes_length, i64::from(IORING_OFF_SQES)),
        );
        // What was given is the giver's to unmap.
        let own = |length| if given { 0 } else { length };
        Ring {
            engine,
            fd,
            params,
            rings,
            rings_length: own(rings_length),
            sqes: sqes.cast(),
            sqes_length: own(sqes_length),
            sq_tail: 0,
            close_on_drop: true,
        }
    }

    pub fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets come from the engine and lie in the mapping.
        unsafe { AtomicU32::from_ptr(self.rings.add(offset as usize).cast()) }
    }

    pub fn sqe_slot(&mut self, index: u32) -> *mut Sqe {
        let size = if self.params.flags & IORING_SETUP_SQE128 != 0 { 2 } else { 1 };
        // SAFETY: within the mapping for indices below sq_entries.
        unsafe { self.sqes.add(index as usize * size) }
    }

    /// Goes on where the ring stands, after it was resized.
    pub fn continue_at_tail(&mut self) {
        if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            for index in 0..self.params.sq_entries {
                self.word(self.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
            }
        }
        self.sq_tail = self.word(self.params.sq_off.tail).load(Ordering::Relaxed);
    }

    /// How many SQEs the engine has taken.
    pub fn sq_taken(&self) -> u32 {
        self.word(self.params.sq_off.head).load(Ordering::Acquire)
    }

    /// Takes the tail of the submission queue from memory that another process has written.
    pub fn follow(&mut self) {
        self.sq_tail = self.word(self.params.sq_off.tail).load(Ordering::Acquire);
    }

    /// Queues an SQE without submitting it.
    pub fn push(&mut self, sqe: Sqe) {
        self.push_together(&[sqe]);
    }

    /// Queues SQEs of which the engine sees all or none.
    pub fn push_together(&mut self, sqes: &[Sqe]) {
        for sqe in sqes {
            let index = self.sq_tail & (self.params.sq_entries - 1);
            let slot = self.sqe_slot(index);
            // SAFETY: a slot of the ring, which the engine does not read before the tail says so.
            unsafe { slot.write(*sqe) };
            if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
                self.word(self.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
            }
            self.sq_tail = self.sq_tail.wrapping_add(1);
        }
        self.word(self.params.sq_off.tail).store(self.sq_tail, Ordering::Release);
    }

    /// [`Ring::push`] of each SQE.
    pub fn push_all(&mut self, sqes: impl IntoIterator<Item = Sqe>) {
        sqes.into_iter().for_each(|sqe| self.push(sqe));
    }

    pub fn enter(&self, submit: u32, wait: u32) -> i32 {
        let flags = if wait > 0 { IORING_ENTER_GETEVENTS } else { 0 };
        self.enter_with(submit, wait, flags)
    }

    pub fn enter_with(&self, submit: u32, wait: u32, flags: u32) -> i32 {
        enter(self.engine, self.fd, submit, wait, flags, std::ptr::null(), 0)
    }

    pub fn register(&self, opcode: io_uring_register_op, arg: *const c_void, count: u32) -> i32 {
        register(self.engine, self.fd, opcode as u32, arg, count)
    }

    /// Registers these files, in slots from 0 on, -1 for none.
    #[track_caller]
    pub fn register_files(&self, files: &[i32]) {
        let code = io_uring_register_op::IORING_REGISTER_FILES;
        assert_eq!(self.register(code, files.as_ptr().cast(), files.len() as u32), 0);
    }

    /// Registers these buffers.
    #[track_caller]
    pub fn register_buffers(&self, buffers: &[libc::iovec]) {
        let code = io_uring_register_op::IORING_REGISTER_BUFFERS;
        assert_eq!(self.register(code, buffers.as_ptr().cast(), buffers.len() as u32), 0);
    }

    /// Has completions told to an eventfd.
    #[track_caller]
    pub fn register_eventfd(&self, event: &impl AsRawFd) {
        let (code, fd) = (io_uring_register_op::IORING_REGISTER_EVENTFD, event.as_raw_fd());
        assert_eq!(self.register(code, (&raw const fd).cast(), 1), 0);
    }

    /// Enables a ring that was set up disabled.
    pub fn enable(&self) -> i32 {
        self.unregister(io_uring_register_op::IORING_REGISTER_ENABLE_RINGS)
    }

    /// Gives up what was registered so.
    pub fn unregister(&self, code: io_uring_register_op) -> i32 {
        self.register(code, std::ptr::null(), 0)
    }

    /// `IORING_REGISTER_SYNC_CANCEL` of a request, which waits as long as it takes.
    pub fn sync_cancel(&self, user_data: u64) -> i32 {
        let timeout = __kernel_timespec { tv_sec: -1, tv_nsec: -1 };
        let argument = io_uring_sync_cancel_reg { addr: user_data, timeout, ..zeroed() };
        self.register(io_uring_register_op::IORING_REGISTER_SYNC_CANCEL, (&raw const argument).cast(), 1)
    }

    pub fn reap(&mut self) -> Option<Cqe> {
        self.reap_big().map(|(cqe, _)| cqe)
    }

    /// A completion and the 16 bytes behind it.
    pub fn reap_big(&mut self) -> Option<(Cqe, [u64; 2])> {
        let off = self.params.cq_off;
        let head = self.word(off.head).load(Ordering::Relaxed);
        let tail = self.word(off.tail).load(Ordering::Acquire);
        if head == tail {
            return None;
        }
        let size = if self.params.flags & IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
        let index = (head & (self.params.cq_entries - 1)) as usize;
        // SAFETY: a published CQE of the mapping.
        let place = unsafe { self.rings.add(off.cqes as usize + index * size) };
        // SAFETY: as above.
        let cqe = unsafe { place.cast::<Cqe>().read() };
        let wide = cqe.flags & IORING_CQE_F_32 != 0;
        let big = if size > 16 || wide {
            // SAFETY: big ones have a second half, and do not go around the end.
            unsafe { place.add(16).cast::<[u64; 2]>().read() }
        } else {
            [0; 2]
        };
        self.word(off.head).store(head.wrapping_add(if wide { 2 } else { 1 }), Ordering::Release);
        Some((cqe, big))
    }

    /// Gives the ring up without telling the engine; its number stays open.
    pub fn forget(mut self) -> i32 {
        self.close_on_drop = false;
        self.fd
    }

    /// All completions that are there.
    pub fn reap_all(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.reap()).collect()
    }

    /// Submits all that was pushed, waits for as many completions, returns them in order.
    pub fn run(&mut self, sqes: &[Sqe]) -> Vec<Cqe> {
        self.submit_and_wait(sqes, sqes.len() as u32);
        self.reap_all()
    }

    /// [`Ring::run`] of each SQE in a submission of its own.
    pub fn one_by_one(&mut self, sqes: &[Sqe]) -> Vec<Cqe> {
        sqes.iter().flat_map(|&sqe| self.run(&[sqe])).collect()
    }

    /// Waits until so many completions are there, and takes all that are.
    #[track_caller]
    pub fn waited(&mut self, count: u32) -> Vec<Cqe> {
        assert_eq!(self.enter_with(0, count, IORING_ENTER_GETEVENTS), 0);
        self.reap_all()
    }

    /// Submits, and waits for nothing.
    #[track_caller]
    pub fn submit(&mut self, sqes: &[Sqe]) {
        self.submit_and_wait(sqes, 0);
    }

    /// Submits, and waits until so many completions are there.
    #[track_caller]
    pub fn submit_and_wait(&mut self, sqes: &[Sqe], wait: u32) {
        self.submit_all(sqes.iter().copied(), wait);
    }

    #[track_caller]
    pub fn submit_all(&mut self, sqes: impl IntoIterator<Item = Sqe>, wait: u32) {
        let before = self.sq_tail;
        self.push_all(sqes);
        let count = self.sq_tail.wrapping_sub(before);
        assert_eq!(self.enter(count, wait), count as i32, "{:?} takes all SQEs", self.engine);
    }

    /// The result of an `enter` that submits these SQEs and waits for so many completions, and the completions that are there then.
    pub fn entered(&mut self, sqes: &[Sqe], wait: u32) -> (i32, Vec<Cqe>) {
        self.push_all(sqes.iter().copied());
        (self.enter(sqes.len() as u32, wait), self.reap_all())
    }

    /// [`Ring::entered`], with the completions' results by user data.
    pub fn answers(&mut self, sqes: &[Sqe], wait: u32) -> (i32, Vec<(u64, i32)>) {
        let (entered, cqes) = self.entered(sqes, wait);
        (entered, results(&cqes))
    }

    /// The next completion.
    #[track_caller]
    pub fn wait(&mut self) -> Cqe {
        if let Some(cqe) = self.reap() {
            return cqe;
        }
        assert_eq!(self.enter_with(0, 1, IORING_ENTER_GETEVENTS), 0);
        self.reap().expect("a completion")
    }

    /// Waits until there are as many completions; returns all that are there then.
    pub fn collect(&mut self, count: usize) -> Vec<Cqe> {
        let mut cqes = self.reap_all();
        while cqes.len() < count {
            assert_eq!(self.enter_with(0, 1, IORING_ENTER_GETEVENTS), 0);
            cqes.extend(self.reap_all());
        }
        cqes
    }

    /// Submits, and returns all completions that are there when there are as many.
    #[track_caller]
    pub fn collect_from(&mut self, sqes: &[Sqe], count: usize) -> Vec<Cqe> {
        self.submit(sqes);
        let mut all = self.reap_all();
        while all.len() < count {
            self.enter(0, 1);
            all.extend(self.reap_all());
        }
        all
    }

    /// Closes the descriptor; the memory stays mapped.
    pub fn close(&mut self) {
        close(self.engine, self.fd);
        self.close_on_drop = false;
    }

    /// Unmaps the memory; the descriptor stays open.
    pub fn unmap(mut self) -> i32 {
        self.close_on_drop = false;
        self.fd
    }

    pub fn overflowed(&self) -> bool {
        self.word(self.params.sq_off.flags).load(Ordering::Relaxed) & IORING_SQ_CQ_OVERFLOW != 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by this ring, used by nobody any more.
        unsafe {
            libc::munmap(self.rings.cast(), self.rings_length);
            libc::munmap(self.sqes.cast(), self.sqes_length);
        }
        if self.close_on_drop {
            self.close();
        }
    }
}

/// Closes a descriptor of the test's, as a program does; our engine is told before.
pub fn close(engine: Engine, fd: i32) {
    closes(engine, fd);
    close_number(fd);
}

/// Tells our engine that the test closes the descriptor.
pub fn closes(engine: Engine, fd: i32) {
    if engine == Engine::User {
        frontend::closed(fd);
    }
}

/// Ends a ring whose last descriptor this is where nobody but the kernel tells of it: another file is in its place then.
pub fn ends_unseen(fd: i32) {
    replace(&fd, &File::open("/dev/null").unwrap());
    until("the ring has ended", || {
        drop(Ring::new(Engine::User, 4, 0));
        frontend::in_flight(fd) == 0
    });
    close(Engine::User, fd);
}

/// Closes a descriptor of the test's that it knows by its number, if there is one.
pub fn close_number(fd: i32) {
    // SAFETY: the test's, which does not use it again.
    unsafe { libc::close(fd) };
}

/// Writes all of it at once.
#[track_caller]
pub fn write_to(file: &impl AsRawFd, bytes: &[u8]) {
    // SAFETY: reads bytes of ours.
    let written = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(written, bytes.len() as isize);
}

/// The events that a file shows of these, and of those that are always shown, within so many milliseconds.
pub fn shown(file: &impl AsRawFd, events: i16, timeout_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd: file.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry of ours.
    unsafe { libc::poll(&mut entry, 1, timeout_ms) };
    entry.revents
}

/// A vector of these bytes.
pub fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// A message of these vectors.
pub fn message_of(vectors: &[libc::iovec]) -> libc::msghdr {
    let mut message: libc::msghdr = zeroed();
    (message.msg_iov, message.msg_iovlen) = (vectors.as_ptr().cast_mut(), vectors.len());
    message
}

/// An address as calls take it.
pub fn address_of(address: std::net::SocketAddr) -> libc::sockaddr_in {
    let std::net::SocketAddr::V4(to) = address else { panic!("{address} is none of IPv4") };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    }
}

/// Puts another file behind a descriptor of the test's, of which nobody is told.
#[track_caller]
pub fn replace(descriptor: &impl AsRawFd, by: &impl AsRawFd) {
    let fd = descriptor.as_raw_fd();
    // SAFETY: the test's, which closes what is behind it then.
    assert_eq!(unsafe { libc::dup2(by.as_raw_fd(), fd) }, fd);
}

/// A duplicate of a file's descriptor, with this number or a higher one: one that no other test gets meanwhile.
#[track_caller]
pub fn numbered(file: &impl AsRawFd, least: i32) -> i32 {
    // SAFETY: makes a descriptor.
    owned(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, least) }).into_raw_fd()
}

/// The flags of an open file, which it shares with whoever inherited it.
pub fn flags_of(file: &impl AsRawFd) -> i32 {
    // SAFETY: asks for flags.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
}

/// A socket.
#[track_caller]
pub fn socket(domain: i32, kind: i32) -> OwnedFd {
    // SAFETY: touches no memory.
    owned(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) })
}

/// A listener over the loopback interface, and its address.
pub fn listening() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Has a listener keep so many connections, and one, that nobody has accepted yet.
#[track_caller]
pub fn has_room_for(listener: &impl AsRawFd, waiting: i32) {
    // SAFETY: touches no memory.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), waiting) }, 0);
}

/// A Unix socket whose listener's backlog is full, and the address.
pub struct Full {
    _listener: UnixListener,
    _queued: UnixStream,
    socket: OwnedFd,
    address: libc::sockaddr_un,
}

impl Full {
    pub fn new(path: &Path, flags: i32) -> Full {
        let listener = UnixListener::bind(path).unwrap();
        has_room_for(&listener, 0);
        let queued = UnixStream::connect(path).unwrap();
        let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        for (to, &from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().as_bytes()) {
            *to = from as libc::c_char;
        }
        let socket = socket(libc::AF_UNIX, libc::SOCK_STREAM | flags);
        Full { _listener: listener, _queued: queued, socket, address }
    }

    pub fn connect(&self, user_data: u64) -> Sqe {
        connect(user_data, &self.socket, &self.address)
    }
}

/// Has this process open so many files, if it may have as many; whether it may.
pub fn allow_files(most: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit of this process.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(most);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    limit.rlim_cur == most
}

/// The calling thread's number.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

/// Ends a child after so many seconds, where it waits for what never comes.
pub fn ends_after(seconds: u32) {
    // SAFETY: touches no memory.
    unsafe { libc::alarm(seconds) };
}

/// Structures of integers and pointers, of which zeros are a value.
///
/// # Safety
/// They must be.
pub unsafe trait Zeroes {}

macro_rules! zeroes {
    ($($name:ty),* $(,)?) => {
        // SAFETY: C's structures of integers and pointers.
        $(unsafe impl Zeroes for $name {})*
    };
}

zeroes!(
    io_uring_params,
    io_uring_sync_cancel_reg,
    io_uring_getevents_arg,
    io_uring_region_desc,
    io_uring_reg_wait,
    io_uring_rsrc_register,
    io_uring_buf_reg,
    libc::msghdr,
    libc::sockaddr_in,
    libc::siginfo_t,
);

/// A structure of zeros.
pub fn zeroed<T: Zeroes>() -> T {
    // SAFETY: the trait says so.
    unsafe { std::mem::zeroed() }
}

/// The owner of a descriptor that was just made for the test.
#[track_caller]
pub fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "a descriptor, not {fd}: {}", std::io::Error::last_os_error());
    // SAFETY: new, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The two ends of a pipe, the one to read from first.
pub fn pipe() -> (File, File) {
    pipe_with(libc::O_CLOEXEC)
}

pub fn pipe_with(flags: i32) -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors of ours.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) }, 0);
    ends.map(|end| File::from(owned(end))).into()
}

/// An eventfd.
pub fn eventfd(count: u32, flags: i32) -> OwnedFd {
    // SAFETY: touches no memory.
    owned(unsafe { libc::eventfd(count, flags) })
}

/// A file in memory.
pub fn memory_file(content: &[u8]) -> File {
    // SAFETY: a name.
    let file = File::from(owned(unsafe { libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC) }));
    file.write_all_at(content, 0).unwrap();
    file
}

/// Sets an option of a socket.
pub fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) {
    let (value, length) = ((&raw const value).cast(), size_of::<T>() as u32);
    // SAFETY: reads a value of ours.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Completions by user data; those with the same in the order in which they came.
pub fn by_user_data(mut cqes: Vec<Cqe>) -> Vec<Cqe> {
    cqes.sort_by_key(|cqe| cqe.user_data);
    cqes
}

/// Results by user data, without the flags; those with the same user data in the order in which they came.
pub fn results(cqes: &[Cqe]) -> Vec<(u64, i32)> {
    let mut results: Vec<_> = cqes.iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    results.sort_by_key(|&(user_data, _)| user_data);
    results
}

/// Memory as direct transfers want it.
#[derive(Clone, Copy)]
#[repr(align(4096))]
pub struct Page(pub [u8; 4096]);

/// New memory of no file, private or shared, which stays until somebody unmaps it.
pub fn mapped(length: usize, protection: i32, kind: i32) -> *mut c_void {
    // SAFETY: a new mapping.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), length, protection, kind | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address
}

/// Some pages behind which nothing can be read or written; they stay.
pub fn pages_before_a_hole(count: usize) -> &'static mut [u8] {
    let page = anyring_engine::os::page_bytes();
    let length = count * page;
    let start = mapped(length + page, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a mapping of our own; all but its last page stays accessible for good.
    unsafe {
        assert_eq!(libc::mprotect(start.add(length), page, libc::PROT_NONE), 0);
        std::slice::from_raw_parts_mut(start.cast(), length)
    }
}

pub fn map(fd: i32, length: usize, offset: i64) -> *mut u8 {
    // SAFETY: a new mapping.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd,
            offset,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "ring memory can be mapped");
    address.cast()
}

/// An SQE with an opcode and user data.
pub fn sqe(opcode: io_uring_op, user_data: u64) -> Sqe {
    Sqe { opcode: opcode as u8, user_data, fd: -1, ..Sqe::default() }
}

/// A type by which requests count: bytes, vectors, words, events.
pub trait Unit {}
impl Unit for u8 {}
impl Unit for u64 {}
impl Unit for libc::iovec {}
impl Unit for libc::epoll_event {}
impl Unit for anyring_engine::os::user::IoVector {}

/// A request that reads from a file into all of this memory, which may be the vectors of one.
pub fn reading<T: Unit>(
    opcode: io_uring_op,
    user_data: u64,
    file: &(impl AsRawFd + ?Sized),
    memory: &mut [T],
) -> Sqe {
    let (addr, len) = (memory.as_mut_ptr() as u64, memory.len() as u32);
    Sqe { fd: file.as_raw_fd(), addr, len, ..sqe(opcode, user_data) }
}

/// A request that writes all of this memory to a file.
pub fn writing<T: Unit>(
    opcode: io_uring_op,
    user_data: u64,
    file: &(impl AsRawFd + ?Sized),
    memory: &[T],
) -> Sqe {
    let (addr, len) = (memory.as_ptr() as u64, memory.len() as u32);
    Sqe { fd: file.as_raw_fd(), addr, len, ..sqe(opcode, user_data) }
}

/// A request that connects a socket to an address.
pub fn connect<T>(user_data: u64, socket: &impl AsRawFd, address: &T) -> Sqe {
    let (addr, off) = (std::ptr::from_ref(address) as u64, size_of::<T>() as u64);
    Sqe { fd: socket.as_raw_fd(), addr, off, ..sqe(io_uring_op::IORING_OP_CONNECT, user_data) }
}

/// A request that waits until a file shows one of these events.
pub fn poll(user_data: u64, file: &(impl AsRawFd + ?Sized), events: i16) -> Sqe {
    let op_flags = u32::from(events as u16);
    Sqe { fd: file.as_raw_fd(), op_flags, ..sqe(io_uring_op::IORING_OP_POLL_ADD, user_data) }
}

/// A type that the kernel reads as a time.
pub trait Time {}
impl Time for [i64; 2] {}
impl Time for libc::timespec {}
impl Time for __kernel_timespec {}

/// A request that receives or sends a message.
pub fn messaging(
    opcode: io_uring_op,
    user_data: u64,
    socket: &impl AsRawFd,
    header: *const libc::msghdr,
) -> Sqe {
    Sqe { fd: socket.as_raw_fd(), addr: header as u64, len: 1, ..sqe(opcode, user_data) }
}

/// A request that provides all of this memory as buffers of a length, from number 0 on.
pub fn providing(user_data: u64, group: u16, memory: &mut [u8], length: usize) -> Sqe {
    let (fd, addr) = ((memory.len() / length) as i32, memory.as_mut_ptr() as u64);
    let sqe = sqe(io_uring_op::IORING_OP_PROVIDE_BUFFERS, user_data);
    Sqe { fd, addr, len: length as u32, buf_index: group, ..sqe }
}

/// A request on a path, as if from the working directory.
pub fn at_path(opcode: io_uring_op, user_data: u64, path: &CStr) -> Sqe {
    Sqe { fd: libc::AT_FDCWD, addr: path.as_ptr() as u64, ..sqe(opcode, user_data) }
}

pub fn open(user_data: u64, path: &CStr, flags: i32) -> Sqe {
    Sqe { op_flags: flags as u32, len: 0o600, ..at_path(io_uring_op::IORING_OP_OPENAT, user_data, path) }
}

/// A request on an attribute of a path, by so much of this value.
pub fn attribute(opcode: io_uring_op, user_data: u64, path: &CStr, name: &CStr, value: *const [u8]) -> Sqe {
    let (addr3, off, len) = (path.as_ptr() as u64, value.cast::<u8>() as u64, value.len() as u32);
    Sqe { addr: name.as_ptr() as u64, addr3, off, len, ..sqe(opcode, user_data) }
}

/// A timeout of a time that lives on.
pub fn timeout<T: Time>(user_data: u64, time: &T) -> Sqe {
    let addr = std::ptr::from_ref(time) as u64;
    Sqe { addr, len: 1, ..sqe(io_uring_op::IORING_OP_TIMEOUT, user_data) }
}

/// A splice of so many bytes between two pipes.
pub fn splice(user_data: u64, from: &impl AsRawFd, to: &impl AsRawFd, len: u32) -> Sqe {
    let (fd, file_index, none) = (to.as_raw_fd(), from.as_raw_fd() as u32, u64::MAX);
    Sqe { fd, file_index, len, addr: none, off: none, ..sqe(io_uring_op::IORING_OP_SPLICE, user_data) }
}

pub fn cancel(user_data: u64, target: u64, flags: u32) -> Sqe {
    Sqe { addr: target, op_flags: flags, ..sqe(io_uring_op::IORING_OP_ASYNC_CANCEL, user_data) }
}

/// Bytes that repeat late.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

/// Parameters of a ring with these flags.
pub fn params(flags: u32) -> io_uring_params {
    let mut params: io_uring_params = zeroed();
    params.flags = flags;
    params
}

/// A NOP with these flags.
pub fn nop(user_data: u64, flags: u8) -> Sqe {
    Sqe { flags, ..sqe(io_uring_op::IORING_OP_NOP, user_data) }
}

/// Two sockets over UDP, which are not connected.
pub fn udp_pair() -> (UdpSocket, UdpSocket) {
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    (bind(), bind())
}

/// Two sockets over UDP, of which the second sends to the first.
pub fn udp_connected() -> (UdpSocket, UdpSocket) {
    let (to, from) = udp_pair();
    from.connect(to.local_addr().unwrap()).unwrap();
    (to, from)
}

/// A zero-copy send of these bytes.
pub fn send_zc(user_data: u64, socket: &(impl AsRawFd + ?Sized), bytes: &[u8]) -> Sqe {
    writing(io_uring_op::IORING_OP_SEND_ZC, user_data, socket, bytes)
}

/// A connection over TCP between two ports of an address, as `127.0.0.1:0`: its client and its other end.
pub fn tcp_pair_at(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Two connected sockets over TCP, on the loopback interface.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    tcp_pair_at("127.0.0.1:0")
}

/// A pseudo-terminal, neither end of which knows non-blocking attempts.
pub fn terminal() -> (i32, i32) {
    let (mut main, mut terminal) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: writes two descriptors of ours.
    assert_eq!(unsafe { libc::openpty(&mut main, &mut terminal, null, null.cast(), null.cast()) }, 0);
    (main, terminal)
}

/// An inotify instance with these flags, which waits for these events of a file.
pub fn inotify(watched: &File, events: u32, flags: i32) -> File {
    let path = CString::new(format!("/proc/self/fd/{}", watched.as_raw_fd())).unwrap();
    // SAFETY: a descriptor of ours; the path is a C string.
    unsafe {
        let instance = File::from_raw_fd(libc::inotify_init1(libc::IN_CLOEXEC | flags));
        assert!(libc::inotify_add_watch(instance.as_raw_fd(), path.as_ptr(), events) > 0);
        instance
    }
}

/// Says that the test leaves something out, and why. The same reason has the same words in every test.
pub fn skip(reason: &str) {
    anyring_tally::skipped(reason);
}

/// Whether the kernel has `openat2`, without which no open can be told how to look for its path (`RESOLVE_*`): the user engine
/// answers `EINVAL` then. Counts what a test leaves out for it.
pub fn has_openat2() -> bool {
    // SAFETY: names nothing.
    let result = unsafe { libc::syscall(libc::SYS_openat2, -1, 0, 0, 0) };
    let has = result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS);
    if !has {
        skip("no openat2 (Linux before 5.6)");
    }
    has
}

/// True if an epoll instance can be told to poll busily. Counts what a test leaves out where it cannot.
pub fn has_busy_epoll() -> bool {
    const EPIOCSPARAMS: u64 = 0x4008_8a01;
    let none = [0u8; 8];
    // SAFETY: a new descriptor, closed here; the call reads zeros of ours.
    let result = unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let result = libc::ioctl(epoll, EPIOCSPARAMS, none.as_ptr());
        libc::close(epoll);
        result
    };
    if result != 0 {
        skip("no EPIOCSPARAMS (Linux before 6.9)");
    }
    result == 0
}

/// True if the kernel says whether memory can be written to, as for a buffer that is registered. Counts what a test leaves out
/// where it does not.
pub fn has_populate() -> bool {
    // SAFETY: concerns no memory.
    let result = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) };
    if result != 0 {
        skip("no MADV_POPULATE_WRITE (Linux before 5.14)");
    }
    result == 0
}

/// True if the test runs as root. Counts it as skipped where it does not.
pub fn is_root() -> bool {
    // SAFETY: asks only.
    let is = unsafe { libc::geteuid() } == 0;
    if !is {
        skip("not root");
    }
    is
}

/// The answers of an engine, as they are compared and recorded.
pub trait Answer: PartialEq + std::fmt::Debug {}

impl<T: PartialEq + std::fmt::Debug> Answer for T {}

/// Runs `body` on ours, and on the kernel's io_uring where that is asked: both must hold and give the same value, which is that of
/// the record. A test that does nothing else has the attribute `#[both]`.
pub fn both<T: Answer>(body: impl Fn(Engine) -> T) {
    install();
    let user = body(Engine::User);
    if let Err(difference) = record::compare(&user, || body(Engine::Kernel)) {
        panic!("{difference}");
    }
}

/// [`both`] where the machine has what the test wants; `has` counts what is left out.
pub fn both_if<T: Answer>(has: fn() -> bool, body: impl Fn(Engine) -> T) {
    if has() {
        both(body);
    }
}

/// Cases by what comes of them: a record says each outcome once.
pub fn by_outcome<O: PartialEq, C>(cases: impl IntoIterator<Item = (C, O)>) -> Vec<(O, Vec<C>)> {
    let mut all = Vec::<(O, Vec<C>)>::new();
    for (case, outcome) in cases {
        match all.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, cases)) => cases.push(case),
            None => all.push((outcome, vec![case])),
        }
    }
    all
}

/// The name of a case, without quotation marks in the record.
#[derive(PartialEq, Eq)]
pub struct Case(pub String);

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// [`both`] where the kernel may answer otherwise, too, because its own timer or worker comes at another time: it tries again until
/// its answer is one that `counts`. Our engine has one attempt.
pub fn both_where<T: Answer>(counts: impl Fn(&T) -> bool, body: impl Fn(Engine) -> T) {
    both(|engine| {
        let counts = |answer: &T| engine == Engine::User || counts(answer);
        (0..100).map(|_| body(engine)).find(counts).expect("one of the kernel's answers counts")
    });
}

/// [`both`] where a request that waits for ever can be told from a slow one by time only: `body` waits as many milliseconds for
/// either engine as it is told, and longer where the answers differ.
pub fn both_in_time<T: Answer>(body: impl Fn(Engine, i64) -> T) {
    install();
    let difference = [10, 200, 2000].into_iter().try_fold(String::new(), |_, limit_ms| {
        let user = body(Engine::User, limit_ms);
        record::compare(&user, || body(Engine::Kernel, limit_ms)).err()
    });
    if let Some(difference) = difference {
        panic!("{difference}");
    }
}

/// Runs `body` on ours, and on the kernel's io_uring where that is asked and has it: what came after the kernels of the record.
/// Its own assertions say what both answer.
pub fn each_of_the_newest(body: impl Fn(Engine)) {
    drop(Ring::new(Engine::User, 1, 0));
    let is_as_new = record::oracle().asks_the_kernel() && version::current() == version::Version::NEWEST;
    version::play(version::Version::NEWEST);
    body(Engine::User);
    if is_as_new {
        body(Engine::Kernel);
        anyring_tally::compared();
    }
}

/// Has the kernel make a ring, which is closed again: in another thread, for what is left of the ring interrupts that one's waits.
///
/// # Errors
/// Why it does not.
fn kernel_ring() -> Result<(), std::io::Error> {
    let make = || {
        // SAFETY: zeroes are a value, which the call fills in.
        let (fd, error) = unsafe {
            let mut params: io_uring_params = std::mem::zeroed();
            let fd = libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) as i32;
            (fd, std::io::Error::last_os_error())
        };
        if fd < 0 {
            return Err(error);
        }
        // SAFETY: ours.
        unsafe { libc::close(fd) };
        Ok(())
    };
    std::thread::spawn(make).join().unwrap()
}

/// A buffer ring as a program has it.
pub struct Buffers {
    pub ring: *mut u8,
    pub length: usize,
    entries: u16,
    tail: u16,
}

impl Buffers {
    pub fn map(entries: u16, fd: i32, offset: i64) -> Buffers {
        let length = (usize::from(entries) * 16).next_multiple_of(4096);
        let kind = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let ring = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, kind, fd, offset) };
        assert_ne!(ring, libc::MAP_FAILED);
        Buffers { ring: ring.cast(), entries, tail: 0, length }
    }

    /// One that a ring takes buffers of a group from.
    #[track_caller]
    pub fn of(ring: &Ring, entries: u16, group: u16, flags: u16) -> Buffers {
        let buffers = Buffers::map(entries, -1, 0);
        assert_eq!(buffers.register(ring, group, flags), 0);
        buffers
    }

    pub fn register(&self, ring: &Ring, group: u16, flags: u16) -> i32 {
        self.register_with(ring, group, flags, 0)
    }

    pub fn register_with(&self, ring: &Ring, group: u16, flags: u16, min_left: u64) -> i32 {
        let request = io_uring_buf_reg {
            ring_addr: self.ring as u64,
            ring_entries: u32::from(self.entries),
            bgid: group,
            flags,
            resv: [min_left, 0, 0],
        };
        ring.register(io_uring_register_op::IORING_REGISTER_PBUF_RING, (&raw const request).cast(), 1)
    }

    pub fn add(&mut self, id: u16, buffer: &mut [u8]) {
        let index = usize::from(self.tail & (self.entries - 1));
        // SAFETY: an entry of the mapping.
        unsafe {
            let entry = self.ring.add(index * 16);
            entry.cast::<u64>().write(buffer.as_mut_ptr() as u64);
            entry.add(8).cast::<u32>().write(buffer.len() as u32);
            entry.add(12).cast::<u16>().write(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail of the mapping.
        unsafe { AtomicU16::from_ptr(self.ring.add(14).cast()) }.store(self.tail, Ordering::Release);
    }

    /// Adds all of this memory, in buffers of a length, with numbers from `first` on, each `step` higher.
    pub fn fill(&mut self, memory: &mut [u8], length: usize, first: u16, step: u16) {
        memory.chunks_mut(length).zip(0..).for_each(|(buffer, at)| self.add(first + at * step, buffer));
    }

    /// Where a buffer begins by now, from `start` on, and its length.
    pub fn left(&self, index: usize, start: u64) -> (u64, u32) {
        // SAFETY: an entry of the mapping.
        unsafe {
            let entry = self.ring.add(index * 16);
            (entry.cast::<u64>().read() - start, entry.add(8).cast::<u32>().read())
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, used by the test no more.
        unsafe { libc::munmap(self.ring.cast(), self.length) };
    }
}
