//! The steps before `main`, and at the end of the process.

use crate::{frontend, patch};
use anyring_engine::os::vdso;
use anyring_interpose::next;
use anyring_runtime::config::Config;
use anyring_runtime::{beside, config, process};
use anyring_trap::filter::Reach;
use anyring_trap::{exec, low, stub, trap};
use core::ffi::{CStr, c_ulong};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = crate::interpose::process::end;

/// Chooses the engine and installs the trap.
pub extern "C" fn start() {
    // A program without a C library gets the engine by injection; here only its dynamic linker has loaded this library.
    let Some(environment) = next::environment() else { return };
    const AT_ENTRY: c_ulong = 9;
    const AT_SECURE: c_ulong = 23;
    // In a privileged program, variables of its unprivileged caller are ignored.
    let privileged = auxiliary(AT_SECURE).is_some_and(|secure| secure != 0);
    let variables = if privileged { core::ptr::null() } else { environment };
    // SAFETY: the environment is the C library's, set before constructors run.
    let config = unsafe { config::read(variables) };
    process::refuse_settings(&config);
    // The id is read now, so that a child of `vfork` in this memory finds the parent's id.
    process::own_id();
    #[cfg(not(test))]
    crate::interpose::process::find_vfork();
    #[cfg(not(test))]
    next::find_all();
    // SAFETY: as above; the process has one thread.
    unsafe { config::forget_started(environment) };
    let entry = auxiliary(AT_ENTRY);
    vdso::note_image(auxiliary(vdso::AUXILIARY as c_ulong).unwrap_or(0));
    // The code of a program with a fixed address is at low addresses, so the filter must cover these.
    let reach = Reach { low: entry.is_none_or(low::is_low), text: None };
    let ours = anyring_trap::start::begin(&config, &reach, true, &frontend::FRONTEND, &frontend::HOST);
    if trap::installed() {
        // SAFETY: the environment is the C library's, as before; null if the variables are ignored.
        unsafe { exec::remember(variables) };
    }
    // The notes on signal actions belong to this process, so forks must be noticed whichever engine answers.
    #[cfg(not(test))]
    if ours || trap::installed() {
        crate::interpose::process::register_fork();
        anyring_trap::fork::watch();
    } else if process::may_speak() {
        crate::interpose::process::register_fork_of_id();
    }
    #[cfg(not(test))]
    // SAFETY: as before; null if the variables are ignored.
    unsafe {
        crate::probe::answer(variables, ours);
    }
    if !ours {
        if beside::is_offered() {
            stand_ready(&config, entry.unwrap_or(0));
        }
        return;
    }
    if config.patch {
        patch::before_main(entry.unwrap_or(0));
    }
    patch::unseen::learn();
    #[cfg(not(test))]
    // SAFETY: as before.
    unsafe {
        crate::probe::answer_after_patching(variables);
    }
    #[cfg(not(test))]
    crate::threads::prepare();
}

/// Prepares for rings that the kernel is too old for, in a process whose other rings are the kernel's. From here on, anyring sees the setups
/// that are made by the C library's functions, or at sites that could be patched before `main`.
fn stand_ready(config: &Config, entry: usize) {
    // SAFETY: the call makes a ring with parameters of the caller.
    let kernel = |number, arguments| unsafe { stub::syscall(number, arguments) };
    let all_seen = || config.patch && patch::beside_kernel(entry, beside::mark());
    // Calls that an ancestor's filter traps go to the kernel.
    if trap::installed() || beside::kernel_has_all(kernel) || !all_seen() {
        beside::withdraw();
    }
}

/// Returns a value of the auxiliary vector, in which the kernel describes the program.
pub fn auxiliary(name: c_ulong) -> Option<usize> {
    const NAME: &CStr = c"getauxval";
    let address = next::find(next::Place::Anywhere, NAME);
    if address.is_null() {
        return None;
    }
    // SAFETY: the C library's function of this name has this type.
    let get: unsafe extern "C" fn(c_ulong) -> c_ulong = unsafe { core::mem::transmute(address) };
    // SAFETY: only reads a value.
    Some(unsafe { get(name) } as usize)
}
