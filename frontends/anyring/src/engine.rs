//! The engine of a ring, and the calls into both engines.

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
    /// The engine that the environment variable `ANYRING_ENGINE` names (`kernel` or `user`); if it names none, the kernel if its
    /// `io_uring` works, else anyring. If the kernel works but is too old for the memory layout that a ring asks for (`SQE_MIXED`,
    /// `CQE_MIXED`, `SQ_REWIND`, `SQE128`, `CQE32`, `NO_MMAP`), anyring's engine makes that ring. No built ring has this value.
    #[default]
    Auto,
    /// The kernel's `io_uring`. In a program started by `anyring run`, the front end of `anyring run` answers the calls.
    Kernel,
    /// Anyring's engine, in this process.
    User,
}

impl Engine {
    /// Returns the engine that [`Engine::Auto`] stands for in this process, for rings whose setup flags the kernel knows. The other
    /// values stand for themselves.
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

/// This process as the engine's host. It starts threads of the standard library, because the engine allocates with the program's
/// allocator, which relies on thread-local storage.
struct Process;

static HOST: &dyn Host = &Process;

/// The entry function and the argument of a new thread.
struct Start(unsafe extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: the engine passes the argument to one thread only.
unsafe impl Send for Start {}

impl Start {
    fn run(self) {
        // SAFETY: called once, with the argument that the engine gave for it.
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
        // The program owns the signal actions.
        false
    }

    fn sees_closes(&self) -> bool {
        crate::everywhere::sees_closes()
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        linked::may_end_in(call, ended);
    }
}

/// Starts a thread that blocks all signals.
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

/// Starts a thread that blocks all signals, with a stack of `stack_bytes`, or of the default size.
pub(crate) fn spawn_thread(
    name: &str,
    stack_bytes: Option<usize>,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let mut builder = std::thread::Builder::new().name(name.to_owned());
    if let Some(bytes) = stack_bytes {
        builder = builder.stack_size(bytes);
    }
    // The new thread inherits the mask. The C library keeps its own signals unblocked, by which it makes all threads change
    // their credentials.
    let mask = block_signals();
    let result = builder.spawn(run);
    // SAFETY: `block_signals` has written the mask.
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

/// How many `fork`s this process descends from, counted since the hook was registered.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between this process and its children.
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

/// True once anyring's engine has been started.
static USED: AtomicBool = AtomicBool::new(false);

/// Tells the engine that a descriptor of the program's is about to be closed.
pub(crate) fn closing(fd: i32) {
    if USED.load(Ordering::Relaxed) {
        linked::closing(fd);
    }
}

/// Prepares this process for rings of `engine`.
pub(crate) fn begin(engine: Engine) {
    static WATCH: OnceLock<()> = OnceLock::new();
    static BEGIN: OnceLock<()> = OnceLock::new();
    static END: OnceLock<()> = OnceLock::new();
    // SAFETY: a function that is never unloaded.
    WATCH.get_or_init(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    if engine == Engine::User {
        BEGIN.get_or_init(|| {
            linked::begin(&HOST);
            USED.store(true, Ordering::Relaxed);
        });
    }
    // SAFETY: a function that is never unloaded.
    END.get_or_init(|| unsafe {
        libc::atexit(exits);
    });
}

/// Adds operations that the kernel lacks to the kernel's rings. Returns false if another front end answers the calls:
/// it has these operations itself.
pub(crate) fn extend() -> bool {
    if linked::others_answer() {
        return false;
    }
    begin(Engine::User);
    linked::begin_beside_kernel(&HOST);
    true
}

/// Calls `io_uring_setup(2)`. Returns a descriptor, or a negative errno.
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

/// True if anyring's engine can make the ring that the kernel has refused with this errno, because of a flag unknown to the kernel.
pub(crate) fn outdoes_kernel(errno: i32, entries: u32, params: &mut io_uring_params) -> bool {
    let arguments = [entries as usize, ptr::from_mut(params).expose_provenance(), 0, 0, 0, 0];
    // SAFETY: the calls set up rings with parameters of their own.
    let kernel = |number, arguments| unsafe { linked::syscall(number, arguments) };
    linked::beside::outdoes(-(errno as isize), arguments, kernel)
}

/// Calls `io_uring_register(2)`.
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

/// Calls `io_uring_enter2(2)`.
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

/// Makes one of the three calls on the engine.
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

/// Makes a call on the user engine. A separate function, so that the path to the kernel engine saves few registers.
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
    // SAFETY: the ring's owner gives the descriptor up.
    unsafe { libc::close(fd) };
}

/// Makes a ring's descriptor pollable.
pub(crate) fn show_readiness(engine: Engine, fd: i32) -> Result<(), i32> {
    if engine == Engine::User {
        return linked::quietly(|| anyring_engine::frontend::show_readiness(fd));
    }
    Ok(())
}

/// Seals a ring's memory: its descriptor can no longer be used to write or to truncate the memory; existing mappings stay as
/// they are. Returns false if sealing failed: it needs Linux 5.1. The kernel's rings cannot be written by their descriptor.
pub(crate) fn seal(engine: Engine, fd: i32) -> bool {
    if engine == Engine::Kernel && !linked::others_answer() {
        return true;
    }
    anyring_engine::os::shut_memfd(fd).is_ok()
}

/// Tells the engine that the program has found the CQ empty: pollers of the descriptor may sleep.
#[cold]
pub(crate) fn found_nothing(fd: i32) {
    linked::quietly(|| anyring_engine::frontend::sync_readiness(fd));
}
