//! The harness of random programs of both kinds: children, each of which runs many programs, so that a program that dies or
//! hangs takes only its child with it; and the lanes that follow consecutive children.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;

/// The programs of a run.
#[derive(Args, Clone, Debug)]
pub struct Programs {
    /// Number of programs, on each engine
    #[arg(long, default_value_t = 10_000)]
    pub programs: u64,
    /// The seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Begin with this program: resumes a run that was stopped
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// Say now and then how far it is
    #[arg(long)]
    pub progress: bool,
}

impl Programs {
    /// Returns the index after the last.
    pub fn end(&self) -> u64 {
        self.first + self.programs
    }

    /// Returns the progress of a run with `done` programs since `begun`; `behind` is the first index that may not be done.
    pub fn progress(&self, done: u64, begun: Instant, behind: u64) -> String {
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        let (all, seed, first) = (self.programs, self.seed, behind.max(self.first));
        format!("{done} of {all} programs, {rate:.0} a second; to resume: --seed {seed} --first {first}")
    }
}

/// Returns the names in a list of known open faults.
pub fn listed(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|name| !name.is_empty())
}

/// Bits of `IOSQE_*`.
#[expect(missing_docs, reason = "the names of the ABI")]
pub mod sqe_flags {
    pub const FIXED_FILE: u8 = 1;
    pub const DRAIN: u8 = 1 << 1;
    pub const LINK: u8 = 1 << 2;
    pub const HARDLINK: u8 = 1 << 3;
    pub const ASYNC: u8 = 1 << 4;
    pub const BUFFER_SELECT: u8 = 1 << 5;
    pub const SKIP: u8 = 1 << 6;
    pub const LINKS: u8 = LINK | HARDLINK;
}

/// `IORING_SETUP_*` by bit.
pub const SETUP: &[&str] = &[
    "IOPOLL",
    "SQPOLL",
    "SQ_AFF",
    "CQSIZE",
    "CLAMP",
    "ATTACH_WQ",
    "R_DISABLED",
    "SUBMIT_ALL",
    "COOP_TASKRUN",
    "TASKRUN_FLAG",
    "SQE128",
    "CQE32",
    "SINGLE_ISSUER",
    "DEFER_TASKRUN",
    "NO_MMAP",
    "REGISTERED_FD_ONLY",
    "NO_SQARRAY",
    "HYBRID_IOPOLL",
    "CQE_MIXED",
    "SQE_MIXED",
];
/// `IOSQE_*` by bit.
pub const SQE_FLAGS: &[&str] =
    &["FIXED_FILE", "DRAIN", "LINK", "HARDLINK", "ASYNC", "BUFFER_SELECT", "CQE_SKIP", "0x80"];
/// Formats flags by name.
pub fn flags(value: u32, names: &[&str]) -> String {
    let mut text = String::new();
    for bit in (0..32).filter(|bit| value & (1 << bit) != 0) {
        let separator = if text.is_empty() { "" } else { "|" };
        match names.get(bit) {
            Some(name) => write!(text, "{separator}{name}"),
            None => write!(text, "{separator}{:#x}", 1u32 << bit),
        }
        .expect("a string takes text");
    }
    if text.is_empty() { "0".into() } else { text }
}

/// Maps memory that children share.
///
/// # Safety
/// Zeroes must be a valid value of the type.
pub unsafe fn map_shared<T>() -> &'static T {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of zeroes, which is never unmapped.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED, "memory can be mapped");
        &*page.cast::<T>()
    }
}

/// Creates pages for `jobs` concurrent children, by default `each` for each processor.
pub fn pages<P>(jobs: Option<usize>, each: usize, new: fn() -> &'static P) -> Vec<&'static P> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (0..jobs.unwrap_or(each * processors).max(1)).map(|_| new()).collect()
}

/// Runs `body` for each page in a thread; a single one in the calling thread, because ThreadSanitizer sees nothing in
/// the children of a process with several threads.
pub fn lanes<P: Sync, T: Send>(pages: &[&'static P], body: impl Fn(usize, &'static P) -> T + Sync) -> Vec<T> {
    if let [page] = pages {
        return vec![body(0, page)];
    }
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            pages.iter().enumerate().map(|(lane, &page)| scope.spawn(move || body(lane, page))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a lane ends")).collect()
    })
}

/// Runs `body`; if `wanted`, `tell` reports the progress from time to time.
pub fn telling<T>(wanted: bool, tell: impl Fn() + Sync, body: impl FnOnce() -> T) -> T {
    const PAUSE: Duration = Duration::from_secs(10);
    if !wanted {
        return body();
    }
    std::thread::scope(|scope| {
        let (_stop, stopped) = mpsc::channel::<()>();
        let tell = &tell;
        scope.spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        });
        body()
    })
}

/// A forked child with its pipe for reports.
pub struct Child {
    /// The child's process ID.
    pub pid: i32,
    reports: BufReader<File>,
}

/// A message of a child.
pub enum Heard {
    /// The child wrote a line.
    Line(String),
    /// The child has written nothing yet.
    Nothing,
    /// The child will write nothing more.
    End,
}

impl Child {
    /// Forks a child that runs `body` and exits with its result, or with 101 if it panics. `body` gets the pipe for reports, whose
    /// descriptor is `number` or above; below it only the standard descriptors are open.
    pub fn fork(number: i32, body: impl FnOnce(File) -> i32) -> Child {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; the child leaves by `_exit` and never returns from here.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe");
            let pid = libc::fork();
            assert!(pid >= 0, "a child");
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Broken pipes are errors.
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                let reports = libc::fcntl(ends[1], libc::F_DUPFD_CLOEXEC, number);
                libc::syscall(libc::SYS_close_range, 3, number - 1, 0);
                // A panic must not unwind into the parent's code.
                let body = std::panic::AssertUnwindSafe(|| body(File::from_raw_fd(reports)));
                libc::_exit(std::panic::catch_unwind(body).unwrap_or(101));
            }
            libc::close(ends[1]);
            Child { pid, reports: BufReader::new(File::from_raw_fd(ends[0])) }
        }
    }

    /// Waits for a message for at most `limit_ms`.
    pub fn hear(&mut self, limit_ms: i32) -> Heard {
        let fd = self.reports.get_ref().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        if self.reports.buffer().is_empty() && unsafe { libc::poll(&mut poll, 1, limit_ms) } <= 0 {
            return Heard::Nothing;
        }
        let mut line = String::new();
        match self.reports.read_line(&mut line) {
            Ok(count) if count > 0 => Heard::Line(line.trim_end().to_owned()),
            _ => Heard::End,
        }
    }

    /// Waits for the child's end; returns the status of `waitpid`.
    pub fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child, which is waited for once.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        status
    }
}
