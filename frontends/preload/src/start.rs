//! The steps before `main`, and at the end.

use crate::{frontend, patch};
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

/// Chooses the engine and puts the trap in place.
pub extern "C" fn start() {
    // A program without a C library has the engine by injection; only a dynamic linker loaded this.
    let Some(environment) = next::environment() else { return };
    const AT_ENTRY: c_ulong = 9;
    const AT_SECURE: c_ulong = 23;
    // The variables of who starts a program are not obeyed with privileges that he has not.
    let privileged = auxiliary(AT_SECURE).is_some_and(|secure| secure != 0);
    let variables = if privileged { core::ptr::null() } else { environment };
    // SAFETY: the C library's, set before constructors run.
    let config = unsafe { config::read(variables) };
    process::refuse_settings(&config);
    // A child of `vfork` in this memory must find it.
    process::own_id();
    #[cfg(not(test))]
    crate::interpose::process::find_vfork();
    #[cfg(not(test))]
    next::find_all();
    // SAFETY: as above; the process has one thread.
    unsafe { config::forget_started(environment) };
    let entry = auxiliary(AT_ENTRY);
    // Code of a fixed-address program lies low; it needs a filter that reaches there.
    let reach = Reach { low: entry.is_none_or(low::is_low), text: None };
    let ours = anyring_trap::start::begin(&config, &reach, true, &frontend::FRONTEND, &frontend::HOST);
    if trap::installed() {
        // SAFETY: the C library's, as before; null where the variables are not obeyed.
        unsafe { exec::remember(variables) };
    }
    // What is known of signal actions is this process's, whoever answers its calls.
    #[cfg(not(test))]
    if ours || trap::installed() {
        crate::interpose::process::register_fork();
        anyring_trap::fork::watch();
    } else if process::may_speak() {
        crate::interpose::process::register_fork_of_id();
    }
    #[cfg(not(test))]
    // SAFETY: as before; null where the variables are not obeyed.
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
    crate::threads::prepare();
}

/// The kernel answers, and the engine takes the rings that it is too old for: from here on setups are seen, where they go by the C
/// library or by a site that can be patched before `main`.
fn stand_ready(config: &Config, entry: usize) {
    // SAFETY: makes a ring.
    let kernel = |number, arguments| unsafe { stub::syscall(number, arguments) };
    let all_seen = || config.patch && patch::beside_kernel(entry, beside::mark());
    // What an ancestor's filter traps goes to the kernel.
    if trap::installed() || beside::kernel_has_all(kernel) || !all_seen() {
        beside::withdraw();
    }
}

/// A value that the kernel told the program about itself.
pub fn auxiliary(name: c_ulong) -> Option<usize> {
    const NAME: &CStr = c"getauxval";
    let address = next::find(next::Place::Anywhere, NAME);
    if address.is_null() {
        return None;
    }
    // SAFETY: the C library's function of this name has this type.
    let get: unsafe extern "C" fn(c_ulong) -> c_ulong = unsafe { core::mem::transmute(address) };
    // SAFETY: asks only.
    Some(unsafe { get(name) } as usize)
}
