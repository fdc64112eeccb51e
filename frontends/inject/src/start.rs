//! The steps before the program's first instruction.

use crate::patched::{self, Block};
use crate::stack::Stack;
use crate::{arch, frontend};
use anyring_engine::os::vdso;
use anyring_runtime::{config, process, sys};
use anyring_trap::filter::Reach;
use anyring_trap::{exec, fork, low, trap};

/// Installs the trap. `tracer` is a child of this process that has mapped the image and is about to end; `top` is the stack as the
/// kernel prepared it; `block` is the tracer's data for patched sites, or null.
///
/// # Safety
/// Called only by the image's entry.
pub unsafe extern "C" fn start(tracer: usize, _first: usize, top: *const usize, block: *mut Block) {
    // The program must not find a child that it did not start.
    sys::wait_for(tracer as u32);
    // SAFETY: the kernel's stack.
    let stack = unsafe { Stack::read(top) };
    // SAFETY: the kernel's list, which stays.
    let config = unsafe { config::read(stack.environment) };
    process::refuse_settings(&config);
    // SAFETY: the kernel's list, and nothing of the program runs yet.
    unsafe { config::forget_started(stack.environment) };
    arch::learn(stack.features());
    vdso::note_image(stack.vdso());
    let entry = stack.entry();
    let is_low = low::is_low(entry);
    let text = if is_low { Some(low::RANGE) } else { stack.text() };
    anyring_trap::start::begin(
        &config,
        &Reach { low: is_low, text },
        false,
        &frontend::FRONTEND,
        &frontend::HOST,
    );
    // Without the user engine, the sites make their calls themselves, and the trap passes these on to the kernel.
    if process::active() {
        // SAFETY: the tracer's, as the caller promises.
        unsafe { patched::begin(block) };
    }
    if trap::installed() {
        fork::watch();
        // SAFETY: as above.
        unsafe { exec::remember(stack.environment) };
    }
}
