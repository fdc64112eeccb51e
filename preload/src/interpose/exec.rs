//! `execve` and its kin: the filter outlives `exec`, so the library should too.
//!
//! A program that starts another with an environment of its own making would start it under the
//! filter but without the library, and its first `io_uring` call would end it. So the variables that
//! matter are put back into every environment. The program may still set them to what it likes.
//!
//! What that does not reach: a program that loads no library (static, or gaining privileges). One at
//! a fixed address is not trapped (see [`anyring_trap::filter`]); a position-independent one that enters a
//! ring ends by SIGSYS.

use crate::inside;
use crate::next::next;
use alloc::vec::Vec;
use anyring_engine::door;
use anyring_trap::calls;
use anyring_trap::config::entries;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// What is kept: the assignments as this process found them at its start.
static KEPT: [AtomicPtr<c_char>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];
const NAMES: [&[u8]; 4] = [b"LD_PRELOAD=", b"ANYRING_ENGINE=", b"ANYRING_LOG=", b"ANYRING_PATCH="];

/// Notes what is to be kept.
///
/// # Safety
/// `environment` must be a list of strings that stay, as `environ` is at the start.
pub unsafe fn remember(environment: Strings) {
    for (kept, name) in KEPT.iter().zip(NAMES) {
        // SAFETY: the caller's promise.
        let entry = unsafe { entries(environment) }.find(|entry| entry.to_bytes().starts_with(name));
        if let Some(entry) = entry {
            kept.store(copy(entry), Ordering::Release);
        }
    }
}

/// A copy that stays: the program may overwrite its environment's strings (`setproctitle` does).
fn copy(entry: &CStr) -> *mut c_char {
    let bytes: Vec<u8> = entry.to_bytes_with_nul().to_vec();
    bytes.leak().as_mut_ptr().cast()
}

/// An environment that was completed: the list, and an entry that was made for it.
struct Completed {
    list: Vec<*const c_char>,
    /// Kept alive as long as the list names it.
    _merged: Option<Vec<u8>>,
}

/// `environment` with what it lacks, if it lacks anything.
///
/// # Safety
/// `environment` must be null or a list of strings.
unsafe fn completed(environment: Strings) -> Option<Completed> {
    if !anyring_trap::active() {
        return None;
    }
    // SAFETY: the caller's promise.
    let given = unsafe { entries(environment) };
    let mut list = Vec::new();
    for (kept, name) in KEPT.iter().zip(NAMES) {
        let kept = kept.load(Ordering::Acquire).cast_const();
        if !kept.is_null() && !given.clone().any(|entry| entry.to_bytes().starts_with(name)) {
            list.push(kept);
        }
    }
    let other = given.clone().find(|entry| is_other_list(entry.to_bytes()));
    let merged = other.and_then(|entry| merge(entry.to_bytes()));
    if list.is_empty() && merged.is_none() {
        return None;
    }
    list.extend(merged.as_ref().map(|entry| entry.as_ptr().cast()));
    let kept = given.filter(|entry| merged.is_none() || !is_other_list(entry.to_bytes()));
    list.extend(kept.map(CStr::as_ptr));
    list.push(null());
    Some(Completed { list, _merged: merged })
}

/// Whether an entry preloads libraries, ours not among them.
fn is_other_list(entry: &[u8]) -> bool {
    const OURS: &[u8] = b"libanyring_preload.so";
    entry.starts_with(NAMES[0]) && !entry.windows(OURS.len()).any(|window| window == OURS)
}

/// An entry that preloads what we were preloaded with, and what `entry` says.
fn merge(entry: &[u8]) -> Option<Vec<u8>> {
    let kept = KEPT[0].load(Ordering::Acquire);
    if kept.is_null() {
        return None;
    }
    // SAFETY: `copy` made it.
    let mut merged = unsafe { CStr::from_ptr(kept) }.to_bytes().to_vec();
    merged.push(b':');
    merged.extend_from_slice(&entry[NAMES[0].len()..]);
    merged.push(0);
    Some(merged)
}

/// The process is about to become another program: rings that others have are left.
fn leaving() {
    if anyring_trap::active() && calls::rings_exist() {
        let _inside = inside::enter();
        door::executes();
    }
}

/// The list to pass on: the completed one, or the program's.
fn choose(completed: Option<&Completed>, environment: Strings) -> Strings {
    completed.map_or(environment, |completed| completed.list.as_ptr())
}

/// `execve(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let list = unsafe { completed(environment) };
    let environment = choose(list.as_ref(), environment);
    leaving();
    next!(c"execve", fn(*const c_char, Strings, Strings) -> c_int, path, arguments, environment)
}

/// `execv(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, arguments, environ) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let list = unsafe { completed(environment) };
    let environment = choose(list.as_ref(), environment);
    leaving();
    next!(c"execvpe", fn(*const c_char, Strings, Strings) -> c_int, file, arguments, environment)
}

/// `execvp(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ) }
}

/// `fexecve(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let list = unsafe { completed(environment) };
    let environment = choose(list.as_ref(), environment);
    leaving();
    next!(c"fexecve", fn(c_int, Strings, Strings) -> c_int, fd, arguments, environment)
}

/// `execveat(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let list = unsafe { completed(environment) };
    let environment = choose(list.as_ref(), environment);
    leaving();
    next!(
        c"execveat",
        fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int,
        directory,
        path,
        arguments,
        environment,
        flags,
    )
}

/// A function whose arguments have no fixed number: makes a list of all behind the first, by putting
/// those that came in registers before those on the stack, and calls `$body` with the first and it.
macro_rules! variadic {
    ($(#[$doc:meta])* $name:ident, $body:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            // The return address makes room for the last that came in a register.
            naked_asm!(
                "mov rax, [rsp]",
                "mov [rsp], r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {body}",
                "pop rcx",
                "add rsp, 32",
                "mov [rsp], rcx",
                "ret",
                body = sym $body,
            )
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "sub sp, sp, #80",
                "stp x29, x30, [sp]",
                "mov x29, sp",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {body}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #80",
                "ret",
                body = sym $body,
            )
        }
    };
}
variadic!(
    /// `execl(3)`.
    execl,
    execute
);
variadic!(
    /// `execlp(3)`.
    execlp,
    execute_from_path
);
variadic!(
    /// `execle(3)`.
    execle,
    execute_with_environment
);

unsafe extern "C" fn execute(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, arguments, environ) }
}

unsafe extern "C" fn execute_from_path(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ) }
}

/// The environment comes behind the null that ends the arguments.
unsafe extern "C" fn execute_with_environment(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let count = entries(arguments).count();
        execve(path, arguments, *arguments.add(count + 1).cast::<Strings>())
    }
}

/// The type of `posix_spawn` and `posix_spawnp`.
macro_rules! spawn {
    ($name:ident, $text:literal) => {
        /// A process with a program of its own.
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            process: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            environment: Strings,
        ) -> c_int {
            // SAFETY: the caller's promise.
            let list = unsafe { completed(environment) };
            let environment = choose(list.as_ref(), environment);
            next!(
                $text,
                fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int,
                process,
                path,
                actions,
                attributes,
                arguments,
                environment,
            )
        }
    };
}
spawn!(posix_spawn, c"posix_spawn");
spawn!(posix_spawnp, c"posix_spawnp");
