//! Errors: the engine, the operation, the likely cause, and a remedy.

use crate::Engine;
use anyring_linked as linked;
use std::{fmt, fs, io};

/// An error of a ring, of one of its registrations or of one of its operations.
///
/// Its text names the engine, the operation, and the errno. If the state of this machine hints at the cause, the text
/// also says the likely cause and a remedy:
///
/// ```
/// # use anyring::{Engine, Ring};
/// let error = Ring::builder(0).engine(Engine::User).build().err().unwrap();
/// assert_eq!(error.errno(), libc::EINVAL);
/// assert!(error.to_string().starts_with("io_uring_setup on the user engine: "), "{error}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    engine: Engine,
    context: ErrorContext,
    errno: i32,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorContext {
    /// `io_uring_setup(2)`.
    Setup,
    /// The mapping of a ring's memory.
    Map,
    /// `io_uring_enter(2)`.
    Enter,
    /// `io_uring_register(2)` with the opcode of this name.
    Register(&'static str),
    /// An operation of this name; the error is the result in its completion.
    Operation(&'static str),
    /// A use of a ring that this crate refuses.
    Use(&'static str),
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorContext::Setup => f.write_str("io_uring_setup"),
            ErrorContext::Map => f.write_str("mmap of a ring"),
            ErrorContext::Enter => f.write_str("io_uring_enter"),
            ErrorContext::Register(name) => write!(f, "io_uring_register({name})"),
            ErrorContext::Operation(name) => write!(f, "operation {name}"),
            ErrorContext::Use(name) => f.write_str(name),
        }
    }
}

impl Error {
    pub(crate) fn new(engine: Engine, context: ErrorContext, errno: i32) -> Error {
        Error { engine, context, errno }
    }

    /// Returns the number in a call's result, or the error that a negative result stands for.
    #[inline]
    pub(crate) fn check(engine: Engine, context: ErrorContext, result: i32) -> Result<u32, Error> {
        if result < 0 { Err(Error { engine, context, errno: -result }) } else { Ok(result as u32) }
    }

    /// The engine that reported the error.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The step that failed.
    pub fn context(&self) -> ErrorContext {
        self.context
    }

    /// The errno, equal to `raw_os_error` of the standard library's error. It is never 0.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The errno as a kind of the standard library.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno).kind()
    }

    /// The likely cause and a remedy, if more is known than the errno says.
    pub fn advice(&self) -> Option<String> {
        match self.context {
            ErrorContext::Setup => self.setup_advice(),
            ErrorContext::Map => Some(advice_on_memory()),
            ErrorContext::Enter => self.enter_advice().map(str::to_owned),
            ErrorContext::Register(_) => self.register_advice(),
            ErrorContext::Operation(_) => self.operation_advice().map(str::to_owned),
            ErrorContext::Use(_) => None,
        }
    }

    fn setup_advice(&self) -> Option<String> {
        const ELSE: &str = "build the ring with Engine::Auto or Engine::User to run without it";
        let cause = match self.errno {
            libc::EPERM if self.engine == Engine::User => return Some(linked::RINGS_KILL.to_owned()),
            libc::EPERM | libc::EACCES => denied(),
            libc::ENOSYS => hidden(),
            libc::ENOMEM => return Some(advice_on_memory()),
            libc::EMFILE | libc::ENFILE => return Some(advice_on_descriptors()),
            libc::EFBIG => return Some(linked::SMALL_FILES.to_owned()),
            libc::EINVAL => {
                return Some(String::from(
                    "no entries, more than 32768, or a flag that this engine does not have or not in this \
                     combination; older kernels know fewer flags",
                ));
            }
            _ => return None,
        };
        Some(if self.engine == Engine::Kernel { format!("{cause}; {ELSE}") } else { cause })
    }

    fn enter_advice(&self) -> Option<&'static str> {
        Some(match self.errno {
            libc::EEXIST => {
                "a ring with SINGLE_ISSUER is entered by the thread that built it (or enabled it) only"
            }
            libc::EBADFD => "the ring was built disabled: call enable()",
            libc::EBUSY => "the completion queue has overflown: take completions before you submit more",
            libc::EINTR => "a signal handler ran while the ring waited: wait again",
            libc::EOWNERDEAD => "the thread that polls the submission queue has ended",
            _ => return None,
        })
    }

    fn register_advice(&self) -> Option<String> {
        Some(match self.errno {
            libc::ENOMEM => advice_on_memory(),
            libc::EMFILE | libc::ENFILE => advice_on_descriptors(),
            libc::EFBIG => linked::SMALL_FILES.to_owned(),
            libc::EINVAL => String::from("wrong arguments, or this engine does not have this registration"),
            libc::EBUSY => String::from("there are such resources already: unregister them first"),
            libc::ENXIO => String::from("nothing of the kind is registered, or not that many"),
            libc::EACCES => String::from("the ring's restrictions do not allow it"),
            _ => return None,
        })
    }

    fn operation_advice(&self) -> Option<&'static str> {
        Some(match self.errno {
            libc::EINVAL => "wrong arguments, or this engine does not have the operation: see Ring::probe",
            libc::ENOBUFS => "the buffer group is empty: let go of buffers, or provide more",
            libc::ECANCELED => "it was cancelled, or a request failed that it was linked to",
            libc::ETIME => "the time is over",
            libc::EMFILE | libc::ENFILE => "no more descriptors may be opened: raise RLIMIT_NOFILE",
            libc::EFAULT => "memory that it names is not the program's",
            libc::EOPNOTSUPP => "this file does not have this operation",
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on the {} engine: ", self.context, self.engine)?;
        match name(self.errno) {
            Some(name) => write!(f, "{} ({name})", description(self.errno))?,
            None => write!(f, "{}", io::Error::from_raw_os_error(self.errno))?,
        }
        match self.advice() {
            Some(advice) => write!(f, ": {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    /// Keeps the errno: `raw_os_error` and `kind` of the result are as for a system error. The engine, the operation
    /// and the advice are lost: print the error before the conversion if they matter.
    ///
    /// ```
    /// # use anyring::{Ring, op};
    /// # let mut ring = Ring::new(8)?;
    /// let error = ring.run(op::open("/nowhere"))?.unwrap_err();
    /// assert_eq!(std::io::Error::from(error).raw_os_error(), Some(libc::ENOENT));
    /// # Ok::<(), anyring::Error>(())
    /// ```
    fn from(error: Error) -> io::Error {
        io::Error::from_raw_os_error(error.errno)
    }
}

/// Returns the C library's text for an errno.
fn description(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn name(errno: i32) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => { match errno { $(libc::$name => stringify!($name),)* _ => return None } };
    }
    Some(names! {
        E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBADFD EBADMSG EBUSY ECANCELED
        ECHILD ECONNABORTED ECONNREFUSED ECONNRESET EDEADLK EDESTADDRREQ EDOM EDQUOT EEXIST EFAULT EFBIG
        EHOSTUNREACH EIDRM EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR ELOOP EMFILE EMLINK EMSGSIZE EMULTIHOP
        ENAMETOOLONG ENETDOWN ENETRESET ENETUNREACH ENFILE ENOBUFS ENODATA ENODEV ENOENT ENOEXEC ENOLCK ENOLINK
        ENOMEM ENOMSG ENOPROTOOPT ENOSPC ENOSYS ENOTBLK ENOTCONN ENOTDIR ENOTEMPTY ENOTRECOVERABLE ENOTSOCK
        ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EOWNERDEAD EPERM EPIPE EPROTO EPROTONOSUPPORT EPROTOTYPE ERANGE EROFS
        ESHUTDOWN ESPIPE ESRCH ESTALE ETIME ETIMEDOUT ETXTBSY EXDEV
    })
}

/// Reads the number in a file of the kernel.
fn setting(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// True if a seccomp filter applies to this process's calls.
fn is_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Returns the cause of `io_uring_setup`'s `EPERM`.
fn denied() -> String {
    let text = match setting("/proc/sys/kernel/io_uring_disabled") {
        Some(2) => "the sysctl kernel.io_uring_disabled is 2, nobody may use it",
        Some(1) => {
            "the sysctl kernel.io_uring_disabled is 1, only CAP_SYS_ADMIN and the group kernel.io_uring_group \
             may use it"
        }
        _ if is_filtered() => "a seccomp filter denies it, as the default profiles of container engines do",
        _ => "a security module denies it, or a setup flag takes a privilege that the process has not",
    };
    text.to_owned()
}

/// Returns the cause of a missing `io_uring_setup`.
fn hidden() -> String {
    let text = if is_filtered() {
        "a seccomp filter hides it"
    } else {
        "the kernel is older than 5.1, was built without it, or a sandbox stands in the kernel's place"
    };
    text.to_owned()
}

fn limit(resource: libc::__rlimit_resource_t) -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::getrlimit(resource, &mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY { String::from("unlimited") } else { limit.rlim_cur.to_string() }
}

fn advice_on_memory() -> String {
    let limit = limit(libc::RLIMIT_MEMLOCK);
    format!(
        "there is too little memory, or RLIMIT_MEMLOCK (now {limit} bytes) is too low: raise it, or ask for less"
    )
}

fn advice_on_descriptors() -> String {
    let limit = limit(libc::RLIMIT_NOFILE);
    format!("no more descriptors may be opened: close some, or raise RLIMIT_NOFILE (now {limit})")
}
