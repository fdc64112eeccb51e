//! Which engine a ring has, and the ways into the two.

use anyring_engine::Host;
use anyring_linked as linked;
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::io_uring_params;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The backend that does the work of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The engine that the environment variable `ANYRING_ENGINE` names (`kernel` or `user`); where it names none, the
    /// kernel where its `io_uring` works, else anyring. A ring whose memory is to be laid out in a way that a working
    /// kernel is too old for (`SQE_MIXED`, `CQE_MIXED`, `SQ_REWIND`, `SQE128`, `CQE32`, `NO_MMAP`) is anyring's, too. No ring that was built has this.
    #[default]
    Auto,
    /// The kernel's `io_uring`. In a program that `anyring run` started these are the calls that it answers.
    Kernel,
    /// Anyring's own, in this process.
    User,
}

impl Engine {
    /// The engine that [`Engine::Auto`] stands for in this process, as long as a ring asks for nothing that the kernel is too old
    /// for; the others stand for themselves.
    pub fn resolve(self) -> Engine {
        static CHOSEN: OnceLock<Engine> = OnceLock::new();
        match self {
            Engine::Auto => *CHOSEN.get_or_init(|| match linked::choose() {
                linked::Choice::User => Engine::User,
                _ => Engine::Kernel,
            }),
            engine => engine,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Auto => "auto",
            Engine::Kernel => "kernel",
            Engine::User => "user",
        })
    }
}

/// The host that this process is to the engine: threads of the standard library, for the engine allocates with the program's
/// allocator, which counts on a thread's local storage.
struct Process;

static HOST: &dyn Host = &Process;

/// The function that a new thread is to run.
struct Start(unsafe extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: the engine gives it to one thread.
unsafe impl Send for Start {}

impl Start {
    fn run(self) {
        // SAFETY: once, as the engine wants it.
        unsafe { (self.0)(self.1) };
    }
}

impl Host for Process {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        spawn(name, entry, argument)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        linked::thread_pointer()
    }

    fn faults_resume(&self) -> bool {
        // Signal actions are the program's.
        false
    }

    fn sees_closes(&self) -> bool {
        crate::everywhere::sees_closes()
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        linked::may_end_in(call, ended);
    }
}

/// Starts a thread that no signal of the program's interrupts.
pub(crate) fn spawn(
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<(), i32> {
    const STACK_BYTES: usize = 256 << 10;
    let start = Start(entry, argument);
    let result = spawn_thread(&name.to_string_lossy(), Some(STACK_BYTES), move || start.run());
    result.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// Starts a thread that no signal of the program's interrupts, with a stack of so many bytes, or of the usual size.
pub(crate) fn spawn_thread(
    name: &str,
    stack_bytes: Option<usize>,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let mut builder = std::thread::Builder::new().name(name.to_owned());
    if let Some(bytes) = stack_bytes {
        builder = builder.stack_size(bytes);
    }
    // The new thread inherits the mask. The C library keeps the signals unblocked by which it makes all
    // threads change their credentials.
    let mask = block_signals();
    let result = builder.spawn(run);
    // SAFETY: a mask that the call before has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut()) };
    result.map(drop)
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are written before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

/// How often this process has come out of a `fork` as the child.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A number that is another one in a child of this process.
#[inline]
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn exits() {
    linked::exits();
}

/// Whether anyring's engine was put in place.
static USED: AtomicBool = AtomicBool::new(false);

/// A descriptor of the program's is about to be closed.
pub(crate) fn closing(fd: i32) {
    if USED.load(Ordering::Relaxed) {
        linked::closing(fd);
    }
}

/// Lets rings of `engine` be made in this process.
pub(crate) fn begin(engine: Engine) {
    static WATCH: OnceLock<()> = OnceLock::new();
    static BEGIN: OnceLock<()> = OnceLock::new();
    static END: OnceLock<()> = OnceLock::new();
    // SAFETY: a hook that stays.
    WATCH.get_or_init(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    if engine == Engine::User {
        BEGIN.get_or_init(|| {
            linked::begin(&HOST);
            USED.store(true, Ordering::Relaxed);
        });
    }
    // SAFETY: a function that stays.
    END.get_or_init(|| unsafe {
        libc::atexit(exits);
    });
}

/// Lets rings of the kernel have what it lacks; false where somebody else answers the calls, who is as good as a
/// kernel that has it.
pub(crate) fn extend() -> bool {
    if linked::others_answer() {
        return false;
    }
    begin(Engine::User);
    linked::begin_beside_kernel(&HOST);
    true
}

/// `io_uring_setup(2)`: a descriptor, or a negative errno.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn setup(engine: Engine, entries: u32, params: *mut io_uring_params) -> i32 {
    if engine == Engine::User && linked::rings_kill() {
        return -libc::EPERM;
    }
    let arguments = [entries as usize, params.expose_provenance(), 0, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { call(engine, raw::__NR_io_uring_setup, arguments) }
}

/// Whether anyring's engine makes a ring that the kernel has refused with this errno: for a flag that the kernel does not know.
pub(crate) fn outdoes_kernel(errno: i32, entries: u32, params: &mut io_uring_params) -> bool {
    let arguments = [entries as usize, ptr::from_mut(params).expose_provenance(), 0, 0, 0, 0];
    // SAFETY: makes rings with parameters of its own.
    let kernel = |number, arguments| unsafe { linked::syscall(number, arguments) };
    linked::beside::outdoes(-(errno as isize), arguments, kernel)
}

/// `io_uring_register(2)`.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn register(
    engine: Engine,
    fd: i32,
    opcode: u32,
    argument: *const c_void,
    count: u32,
) -> i32 {
    let arguments = [fd as usize, opcode as usize, argument.expose_provenance(), count as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { call(engine, raw::__NR_io_uring_register, arguments) }
}

/// `io_uring_enter2(2)`.
///
/// # Safety
/// As for the call.
#[inline(always)]
pub(crate) unsafe fn enter(
    engine: Engine,
    fd: i32,
    submit: u32,
    least: u32,
    flags: u32,
    argument: *const c_void,
    argument_bytes: usize,
) -> i32 {
    let arguments = [
        fd as usize,
        submit as usize,
        least as usize,
        flags as usize,
        argument.expose_provenance(),
        argument_bytes,
    ];
    // SAFETY: the caller's promise.
    unsafe { call(engine, raw::__NR_io_uring_enter, arguments) }
}

/// One of the three calls.
///
/// # Safety
/// As for the call that `number` names.
#[inline(always)]
unsafe fn call(engine: Engine, number: u32, arguments: [usize; 6]) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        if engine == Engine::User {
            user_call(number, arguments)
        } else {
            linked::syscall(number as usize, arguments) as i32
        }
    }
}

/// Apart, so that the way to the kernel keeps its few registers.
///
/// # Safety
/// As for [`call`].
#[cold]
#[inline(never)]
unsafe fn user_call(number: u32, arguments: [usize; 6]) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { linked::call(number as usize, arguments, true) }
}

/// Closes a ring's descriptor.
pub(crate) fn close(engine: Engine, fd: i32) {
    if engine == Engine::User {
        closing(fd);
    }
    // SAFETY: the ring's owner gives it up.
    unsafe { libc::close(fd) };
}

/// Lets a ring's descriptor be one that can be polled.
pub(crate) fn show_readiness(engine: Engine, fd: i32) -> Result<(), i32> {
    if engine == Engine::User {
        return linked::quietly(|| anyring_engine::frontend::show_readiness(fd));
    }
    Ok(())
}

/// Lets nobody write into a ring's memory by its descriptor any more, nor cut it off; the mappings that are there stay as
/// they are. Whether that could be said: it takes Linux 5.1. The kernel's rings cannot be written so.
pub(crate) fn seal(engine: Engine, fd: i32) -> bool {
    if engine == Engine::Kernel && !linked::others_answer() {
        return true;
    }
    anyring_engine::os::shut_memfd(fd).is_ok()
}

/// The program has looked for completions, and found none: who polls the descriptor may sleep.
#[cold]
pub(crate) fn found_nothing(fd: i32) {
    linked::quietly(|| anyring_engine::frontend::sync_readiness(fd));
}
