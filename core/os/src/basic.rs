//! System calls and their types that need nothing else of this folder.

use core::ffi::c_void;

use linux_raw_sys::general as nr;

use crate::call;
use crate::sync::atomic::AtomicU32;
use anyring_abi::Errno;

/// A file descriptor number.
pub type Fd = i32;

/// `struct timespec` with 64-bit fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: i64,
}

impl Timespec {
    /// Converts nanoseconds.
    pub const fn from_ns(ns: u64) -> Timespec {
        Timespec { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }

    /// Returns the time in nanoseconds; `None` if the kernel would answer `-EINVAL`.
    pub fn to_ns(self) -> Option<u64> {
        if self.seconds < 0 || !(0..1_000_000_000).contains(&self.nanoseconds) {
            return None;
        }
        Some(self.to_ns_wrapping() as u64)
    }

    /// Returns the time in nanoseconds as the kernel's timers count it: without checks, modulo 2^64, and the last possible time in place of
    /// seconds that do not fit.
    pub fn to_ns_wrapping(self) -> i64 {
        const SECOND: i64 = 1_000_000_000;
        if self.seconds >= i64::MAX / SECOND {
            return i64::MAX;
        }
        self.seconds.wrapping_mul(SECOND).wrapping_add(self.nanoseconds)
    }
}

/// Returns a limit of this process, and sets a new value if one is given.
pub fn limit(resource: u32, new: Option<&nr::rlimit64>) -> Result<nr::rlimit64, Errno> {
    let mut old = nr::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let new = new.map_or(0, |new| address_of(new));
    // SAFETY: reads and writes limits of ours.
    unsafe {
        call(nr::__NR_prlimit64, [0, resource as usize, new, &raw mut old as usize, 0, 0])?;
    }
    Ok(old)
}

/// Lets other threads run.
pub fn sched_yield() {
    // SAFETY: touches no memory.
    let _ = unsafe { call(nr::__NR_sched_yield, [0; 6]) };
}

/// Sleeps while `*word == expected`, at most `timeout_ns`.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    futex_wait_as(nr::FUTEX_WAIT | nr::FUTEX_PRIVATE_FLAG, word, expected, timeout_ns)
}

/// Does [`futex_wait`] on a word that several processes share.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    futex_wait_as(nr::FUTEX_WAIT, word, expected, timeout_ns)
}

fn futex_wait_as(
    operation: u32,
    word: &AtomicU32,
    expected: u32,
    timeout_ns: Option<u64>,
) -> Result<(), Errno> {
    let timeout = timeout_ns.map(Timespec::from_ns);
    let timeout = timeout.as_ref().map_or(0, |time| core::ptr::from_ref(time) as usize);
    // SAFETY: a word and a time of ours.
    unsafe {
        call(nr::__NR_futex, [word.as_ptr() as usize, operation as usize, expected as usize, timeout, 0, 0])
    }
    .map(drop)
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    futex_wake_as(nr::FUTEX_WAKE | nr::FUTEX_PRIVATE_FLAG, word, count);
}

/// Does [`futex_wake`] on a word that several processes share.
pub fn futex_wake_shared(word: &AtomicU32, count: u32) {
    futex_wake_as(nr::FUTEX_WAKE, word, count);
}

fn futex_wake_as(operation: u32, word: &AtomicU32, count: u32) {
    // SAFETY: names a word of ours, touches nothing.
    let _ = unsafe {
        call(nr::__NR_futex, [word.as_ptr() as usize, operation as usize, count as usize, 0, 0, 0])
    };
}

/// Locks a word that contains the thread ID of its holder, or 0 (`FUTEX_LOCK_PI`); `deadline_ns` is on `CLOCK_REALTIME`. The
/// word may be in shared memory.
///
/// # Errors
/// `ESRCH` if the holder does not live, `ETIMEDOUT`, `ENOSYS` if the kernel has no such locks, and others.
pub fn futex_lock_owned(word: &AtomicU32, deadline_ns: Option<u64>) -> Result<(), Errno> {
    let deadline = deadline_ns.map(Timespec::from_ns);
    let deadline = deadline.as_ref().map_or(0, |time| core::ptr::from_ref(time) as usize);
    // SAFETY: the kernel changes a word of ours, and reads a time.
    unsafe { call(nr::__NR_futex, [word.as_ptr() as usize, nr::FUTEX_LOCK_PI as usize, 0, deadline, 0, 0]) }
        .map(drop)
}

/// Unlocks a lock of [`futex_lock_owned`] for which other threads wait.
pub fn futex_unlock_owned(word: &AtomicU32) {
    // SAFETY: as above.
    let _ =
        unsafe { call(nr::__NR_futex, [word.as_ptr() as usize, nr::FUTEX_UNLOCK_PI as usize, 0, 0, 0, 0]) };
}

/// Calls `getpid(2)`.
pub fn getpid() -> i32 {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_getpid, [0; 6]) }.map_or(0, |pid| pid as i32)
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoVector {
    /// Address of the first byte.
    pub base: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Returns the address of a value, as an argument of a system call.
pub fn address_of<T>(value: *const T) -> usize {
    value.cast::<c_void>() as usize
}
