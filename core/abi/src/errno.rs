//! Error numbers, by the kernel's names.

use linux_raw_sys::errno as raw;

/// A positive error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

macro_rules! errno {
    ($($name:ident)*) => {
        #[expect(missing_docs, reason = "errno(3) documents them")]
        impl Errno { $(pub const $name: Errno = Errno(raw::$name as i32);)* }

        impl core::fmt::Debug for Errno {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Errno::$name => f.write_str(stringify!($name)),)*
                    Errno(number) => write!(f, "errno {number}"),
                }
            }
        }
    };
}

errno! {
    EPERM ENAMETOOLONG ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EPIPE ERANGE ENOSYS ELOOP
    ENODATA ETIME EOVERFLOW EBADFD EOPNOTSUPP ENOTSOCK EMSGSIZE EINPROGRESS EALREADY ECANCELED
    EDEADLK EOWNERDEAD ETIMEDOUT ECONNREFUSED EHOSTUNREACH ENETUNREACH ENOBUFS ECONNABORTED ECONNRESET EISCONN ENOTCONN EBADR ESTALE EPROTOTYPE
    EPROTONOSUPPORT
}

impl Errno {
    /// Returns the error of a raw system call result between -4095 and -1.
    pub const fn from_raw(result: isize) -> Errno {
        Errno((-result) as i32)
    }

    /// Returns the value as a CQE or a system call reports it.
    pub const fn negated(self) -> i32 {
        -self.0
    }
}

/// Converts a result into the `res` of a CQE.
pub fn to_res(result: Result<usize, Errno>) -> i32 {
    match result {
        // Counts are bounded by MAX_RW_COUNT, descriptors by RLIMIT_NOFILE.
        Ok(value) => value as i32,
        Err(errno) => errno.negated(),
    }
}
