//! Reports to the engine about the program, as far as such a front end sees it: forks, ends of threads, and,
//! when the program next enters a ring, a change of credentials.

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

/// The key for which the threads that have entered a ring have a value.
static KEY: AtomicU32 = AtomicU32::new(c_uint::MAX);
/// The signal mask of the thread that forks. Only one thread forks at a time, because it holds the engine's locks.
static FORK_MASK: AtomicU64 = AtomicU64::new(0);
/// The user ids of the process when they were last read, or [`NOBODY`].
static USERS: [AtomicU64; 2] = [const { AtomicU64::new(NOBODY) }; 2];
const NOBODY: u64 = u64::MAX;

/// Begins to notice forks and ends of threads.
pub fn begin() {
    let mut key = c_uint::MAX;
    // SAFETY: the hooks and the destructor are never unloaded, because this library is not.
    unsafe {
        pthread_atfork(Some(before_fork), Some(after_fork), Some(forked));
        if pthread_key_create(&mut key, thread_ends) == 0 {
            KEY.store(key, Ordering::Relaxed);
        }
    }
}

/// Notes that the calling thread enters a ring.
#[inline]
pub fn thread() {
    let key = KEY.load(Ordering::Relaxed);
    // SAFETY: the key is this module's; any value but null will do.
    unsafe {
        if key != c_uint::MAX && pthread_getspecific(key).is_null() {
            pthread_setspecific(key, (&raw const KEY).cast());
        }
    }
}

/// Cancels the requests in flight of the calling thread, which ends, as the kernel does.
extern "C" fn thread_ends(_: *mut c_void) {
    quietly(frontend::thread_ends);
}

/// Makes the engine's threads change their credentials, if the user ids of the process have changed since the last call.
/// Called with signals blocked.
pub fn credentials() {
    let mut ids = [0_u32; 3];
    let first = ids.as_mut_ptr().expose_provenance();
    let arguments = [first, first + size_of::<u32>(), first + 2 * size_of::<u32>(), 0, 0, 0];
    // SAFETY: the kernel writes the three ids.
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
