//! `execve` and similar functions, with the plans of [`anyring_trap::exec`].

use super::spawn::Kept;
use crate::{arch, inside};
use alloc::vec::Vec;
use anyring_engine::frontend;
use anyring_interpose::next;
use anyring_runtime::config::entries;
use anyring_runtime::{calls, log, process, sys};
use anyring_trap::exec::{self, Plan, Strings};
use anyring_trap::left;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;
use linux_raw_sys::general::AT_EMPTY_PATH;

fn environ() -> Strings {
    next::environment().unwrap_or(null())
}

/// Executes another program by `plan`; this process leaves its rings to other processes that have them. Returns only on failure.
fn leaving_by<T>(plan: &mut Plan, executes: impl FnOnce() -> T) -> T {
    left::note(plan);
    becoming_another(executes)
}

/// Executes the program that the caller names, without a plan.
pub fn becoming_another<T>(executes: impl FnOnce() -> T) -> T {
    if process::sees_calls() && calls::rings_exist() {
        let _inside = inside::enter();
        process::executes();
    }
    process::leaving_by(executes)
}

/// Returns the plan for executing a path.
///
/// # Safety
/// As for [`Plan::new`].
unsafe fn named(path: *const c_char, arguments: Strings, environment: Strings) -> Plan {
    // SAFETY: the caller's promise.
    unsafe { Plan::new(path, arguments, environment) }
}

/// Returns the plan for executing a name that the C library looks up in `PATH`.
///
/// # Safety
/// As for [`Plan::new`].
unsafe fn found(file: *const c_char, arguments: Strings, environment: Strings) -> Plan {
    // SAFETY: a string, as `is_string` has checked.
    let name = (!log::is_filtered() && sys::is_string(file.cast())).then(|| unsafe { CStr::from_ptr(file) });
    // SAFETY: the environment is valid, because the C library reads it, too.
    let search = |name| unsafe { exec::search(name, environ()) };
    let path = name.filter(|name| !name.to_bytes().contains(&b'/')).and_then(search);
    let path_or_name = path.as_ref().map_or(file, |path| path.as_ptr().cast());
    // SAFETY: the caller's promise; the plan keeps the path.
    let mut plan = unsafe { Plan::new(path_or_name, arguments, environment) };
    if !plan.replaced {
        plan.path = file;
    }
    // A program that replaces the one that was found is given its path.
    plan.keep_found(path);
    plan
}

/// `execve(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let mut plan = unsafe { Plan::new(path, arguments, environment) };
    let (path, arguments, environment) = (plan.path, plan.arguments, plan.environment);
    leaving_by(&mut plan, || {
        next!(c"execve", fn(*const c_char, Strings, Strings) -> c_int, path, arguments, environment)
    })
}

/// `execv(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, arguments, environ()) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let mut plan = unsafe { found(file, arguments, environment) };
    let (file, arguments, environment) = (plan.path, plan.arguments, plan.environment);
    leaving_by(&mut plan, || {
        next!(c"execvpe", fn(*const c_char, Strings, Strings) -> c_int, file, arguments, environment)
    })
}

/// `execvp(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ()) }
}

/// `fexecve(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    let flags = AT_EMPTY_PATH;
    // SAFETY: the caller's promise.
    let mut plan = unsafe { Plan::at(fd, c"".as_ptr(), arguments, environment, flags) };
    let (arguments, environment) = (plan.arguments, plan.environment);
    let (path, replaced) = (plan.path, plan.replaced);
    leaving_by(&mut plan, || {
        if replaced {
            return next!(
                c"execve",
                fn(*const c_char, Strings, Strings) -> c_int,
                path,
                arguments,
                environment
            );
        }
        next!(c"fexecve", fn(c_int, Strings, Strings) -> c_int, fd, arguments, environment)
    })
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
    let mut plan = unsafe { Plan::at(directory, path, arguments, environment, flags as u32) };
    let (path, arguments, environment) = (plan.path, plan.arguments, plan.environment);
    let replaced = plan.replaced;
    leaving_by(&mut plan, || {
        if replaced {
            return next!(
                c"execve",
                fn(*const c_char, Strings, Strings) -> c_int,
                path,
                arguments,
                environment
            );
        }
        next!(
            c"execveat",
            fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int,
            directory,
            path,
            arguments,
            environment,
            flags,
        )
    })
}

/// Defines a variadic function: `$body` gets the first argument, and a list of all others.
macro_rules! variadic {
    ($(#[$doc:meta])* $name:ident, $body:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            arch::list_arguments!($body)
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
    unsafe { execve(path, arguments, environ()) }
}

unsafe extern "C" fn execute_from_path(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ()) }
}

/// Executes a program with the environment that follows the null at the end of the arguments.
unsafe extern "C" fn execute_with_environment(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let count = entries(arguments).count();
        execve(path, arguments, *arguments.add(count + 1).cast::<Strings>())
    }
}

/// Defines a function of the type of `posix_spawn` and `posix_spawnp`.
macro_rules! spawn {
    ($name:ident, $text:literal, $find:path) => {
        /// Starts a process that executes a program.
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
            let plan = unsafe { $find(path, arguments, environment) };
            let (path, arguments, environment) = (plan.path, plan.arguments, plan.environment);
            // SAFETY: the caller's promise.
            let kept = plan.descriptor.and_then(|descriptor| unsafe { Kept::new(actions, descriptor) });
            let actions = kept.as_ref().map_or(actions, Kept::as_ptr);
            let result = frontend::handing_over(|| {
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
            });
            // These functions return an errno, also if the C library does not have them.
            if result < 0 { -next::MISSING as c_int } else { result }
        }
    };
}
spawn!(posix_spawn, c"posix_spawn", named);
spawn!(posix_spawnp, c"posix_spawnp", found);
spawn!(pidfd_spawn, c"pidfd_spawn", named);
spawn!(pidfd_spawnp, c"pidfd_spawnp", found);

/// Completes a command for the shell, for a function without an environment argument.
///
/// # Safety
/// As for [`exec::shell_command`]; `command` must be null or a string.
unsafe fn completed(command: *const c_char) -> Option<(Vec<u8>, Plan)> {
    if command.is_null() || log::is_filtered() || !sys::is_string(command.cast()) {
        return None;
    }
    // SAFETY: a string; the caller's promise.
    unsafe { exec::shell_command(CStr::from_ptr(command), environ()) }
}

/// `system(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let completed = unsafe { completed(command) };
    let command = completed.as_ref().map_or(command, |(command, _)| command.as_ptr().cast());
    frontend::handing_over(|| next!(c"system", fn(*const c_char) -> c_int, command))
}

/// `popen(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let completed = unsafe { completed(command) };
    let command = completed.as_ref().map_or(command, |(command, _)| command.as_ptr().cast());
    frontend::handing_over(|| next!(c"popen", fn(*const c_char, *const c_char) -> *mut c_void, command, kind))
}
