//! `fork`, `vfork` and the ends of the process.

use crate::{arch, inside};
use anyring_interpose::next;
use anyring_runtime::{calls, process, sys};
use anyring_trap::fork;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    static __dso_handle: u8;
}

type Hook = Option<extern "C" fn()>;

fn find(name: &CStr) -> *mut c_void {
    next::find(next::Place::Anywhere, name)
}

/// The C library's `vfork`; before it was looked up, [`fork_instead`].
static VFORK: AtomicPtr<c_void> = AtomicPtr::new(fork_instead as *mut c_void);

/// `vfork(2)`; a plain `fork` once there are rings.
///
/// The child of a `vfork` runs in its parent's memory but has a descriptor table of its own: closes
/// and duplicates before its `exec` would change what is known of the parent's descriptors. POSIX allows the replacement.
///
/// # Safety
/// As in C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> c_int {
    arch::vfork!(VFORK, process::VFORKED, unless calls::RINGS, fork_instead)
}

extern "C" fn fork_instead() -> c_int {
    next!(c"fork", fn() -> c_int,)
}

/// Looks up the C library's `vfork`, before the program calls it, whichever engine answers the process's calls.
pub fn find_vfork() {
    let vfork = next::find(next::Place::Next, c"vfork");
    if !vfork.is_null() {
        VFORK.store(vfork, Ordering::Relaxed);
    }
}

/// Registers hooks for each fork with the C library.
pub fn register_fork() {
    register(Some(before_fork), Some(after_fork), Some(forked));
}

/// Registers a hook with the C library that only updates the process id in the child of a fork.
pub fn register_fork_of_id() {
    register(None, None, Some(has_own_id));
}

fn register(before: Hook, after: Hook, child: Hook) {
    // glibc's `pthread_atfork` is linked statically into each object and calls this.
    let register = find(c"__register_atfork");
    if !register.is_null() {
        // SAFETY: glibc's function of this name has this type.
        let register: unsafe extern "C" fn(Hook, Hook, Hook, *const u8) -> c_int =
            unsafe { core::mem::transmute(register) };
        // SAFETY: the hooks and the handle live as long as this library.
        unsafe { register(before, after, child, &raw const __dso_handle) };
        return;
    }
    let register = find(c"pthread_atfork");
    if !register.is_null() {
        // SAFETY: POSIX gives it this type.
        let register: unsafe extern "C" fn(Hook, Hook, Hook) -> c_int =
            unsafe { core::mem::transmute(register) };
        // SAFETY: the hooks live as long as this library.
        unsafe { register(before, after, child) };
    }
}

extern "C" fn has_own_id() {
    process::forked_unwatched();
}

/// Prepares for a fork: until the fork is done, no handler of the program may enter a ring.
extern "C" fn before_fork() {
    core::mem::forget(inside::enter());
    process::before_fork();
}

/// Ends a fork in the parent, whether it succeeded or not.
extern "C" fn after_fork() {
    process::after_fork();
    inside::leave();
}

/// Ends a fork in the child.
extern "C" fn forked() {
    fork::forked();
    inside::leave();
}

/// Handles the end of the process.
pub extern "C" fn end() {
    process::ends_inside(inside::enter);
    process::end();
}

/// `_exit(2)`: destructors do not run.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(code: c_int) -> ! {
    end();
    sys::exit_group(code)
}

/// `_Exit(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(code: c_int) -> ! {
    end();
    sys::exit_group(code)
}
