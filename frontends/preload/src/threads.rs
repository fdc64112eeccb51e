//! The ends of threads: requests that a thread leaves in flight are cancelled, as in the kernel.
//!
//! A thread that enters a ring sets a value for a key of the C library, whose destructor runs when
//! the thread ends. Setting the value is one store if the key is low, as the keys of libraries that are loaded first are:
//! so the trap's handler may set it, too.

use crate::inside;
use anyring_engine::frontend;
use anyring_interpose::next;
use anyring_runtime::calls;
use anyring_trap::pending;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number of keys whose values lie in the thread's own block in glibc; in musl, all do.
const LOW_KEYS: u32 = 32;

static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static SET: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

fn find(name: &CStr) -> *mut c_void {
    next::find(next::Place::Anywhere, name)
}

/// Makes the key, before any thread enters a ring.
pub fn prepare() {
    let (create, set) = (find(c"pthread_key_create"), find(c"pthread_setspecific"));
    if create.is_null() || set.is_null() {
        return;
    }
    // SAFETY: the POSIX function has this type.
    let create: unsafe extern "C" fn(*mut c_uint, extern "C" fn(*mut c_void)) -> c_int =
        unsafe { core::mem::transmute(create) };
    let mut key = u32::MAX;
    // SAFETY: writes a local variable; the destructor is never unloaded.
    if unsafe { create(&mut key, ended) } == 0 && key < LOW_KEYS {
        SET.store(set, Ordering::Relaxed);
        KEY.store(key, Ordering::Release);
    }
}

/// Notes that the calling thread enters a ring.
#[inline]
pub fn seen() {
    if !inside::set_known(true) {
        note_thread();
    }
}

#[cold]
fn note_thread() {
    let key = KEY.load(Ordering::Acquire);
    if key == u32::MAX {
        return;
    }
    // SAFETY: the POSIX function has this type.
    let set: unsafe extern "C" fn(c_uint, *const c_void) -> c_int =
        unsafe { core::mem::transmute(SET.load(Ordering::Relaxed)) };
    // SAFETY: the key is this module's; any value but null will do.
    unsafe { set(key, (&raw const KEY).cast()) };
}

/// Notes that the calling thread ends.
extern "C" fn ended(_: *mut c_void) {
    // The thread may still enter a ring again, in another destructor.
    inside::set_known(false);
    inside::thread_ends();
    if calls::rings_exist() {
        let _inside = inside::enter();
        frontend::thread_ends();
        pending::thread_ends();
    }
}
