//! Notices to the engine about the program, as far as such a front end sees it: the program's forks, the ends of its
//! threads, and, when the program next enters a ring, that it has other credentials.

use crate::quietly;
use anyring_engine::credentials::{Change, Reach};
use anyring_engine::frontend;
use anyring_runtime::{arch, process, sys};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general::__NR_getresuid;

type Hook = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Hook, parent: Hook, child: Hook) -> c_int;
    fn pthread_key_create(key: *mut c_uint, end: extern "C" fn(*mut c_void)) -> c_int;
    fn pthread_getspecific(key: c_uint) -> *mut c_void;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
}

/// Threads that have entered a ring have a value for it.
static KEY: AtomicU32 = AtomicU32::new(c_uint::MAX);
/// The signal mask of the thread that forks: one at a time, for it holds the engine's locks.
static FORK_MASK: AtomicU64 = AtomicU64::new(0);
/// The users that the process acts for, [`NOBODY`] before it was looked at.
static USERS: [AtomicU64; 2] = [const { AtomicU64::new(NOBODY) }; 2];
const NOBODY: u64 = u64::MAX;

/// From here on forks and ends of threads are noticed.
pub fn begin() {
    let mut key = c_uint::MAX;
    // SAFETY: hooks and destructor stay, for this library is never unloaded.
    unsafe {
        pthread_atfork(Some(before_fork), Some(after_fork), Some(forked));
        if pthread_key_create(&mut key, thread_ends) == 0 {
            KEY.store(key, Ordering::Relaxed);
        }
    }
}

/// The calling thread enters a ring.
#[inline]
pub fn thread() {
    let key = KEY.load(Ordering::Relaxed);
    // SAFETY: a key of ours; any value but null.
    unsafe {
        if key != c_uint::MAX && pthread_getspecific(key).is_null() {
            pthread_setspecific(key, (&raw const KEY).cast());
        }
    }
}

/// The calling thread ends: what it leaves in flight is cancelled, as the kernel does.
extern "C" fn thread_ends(_: *mut c_void) {
    quietly(frontend::thread_ends);
}

/// If the process acts for other users than when this was last looked at, the engine's threads do, too. Called
/// with signals blocked.
pub fn credentials() {
    let mut ids = [0_u32; 3];
    let first = ids.as_mut_ptr().expose_provenance();
    let arguments = [first, first + size_of::<u32>(), first + 2 * size_of::<u32>(), 0, 0, 0];
    // SAFETY: writes the three.
    unsafe { arch::syscall(__NR_getresuid as usize, arguments) };
    let now = [u64::from(ids[0]) << 32 | u64::from(ids[1]), u64::from(ids[2])];
    let known = USERS.each_ref().map(|word| word.load(Ordering::Relaxed));
    if now != known {
        changed(known != [NOBODY; 2], now);
    }
}

#[cold]
fn changed(was_known: bool, now: [u64; 2]) {
    USERS.iter().zip(now).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    if was_known && let Some(change) = Change::begin(Reach::Unseen) {
        change.end();
    }
}

extern "C" fn before_fork() {
    let mask = sys::set_signal_mask(sys::ASYNCHRONOUS);
    frontend::before_fork();
    FORK_MASK.store(mask, Ordering::Relaxed);
}

extern "C" fn after_fork() {
    let mask = FORK_MASK.load(Ordering::Relaxed);
    frontend::after_fork();
    sys::set_signal_mask(mask);
}

extern "C" fn forked() {
    process::forked();
    sys::set_signal_mask(FORK_MASK.load(Ordering::Relaxed));
}
