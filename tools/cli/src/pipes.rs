//! Broken pipes: Rust's runtime ignores SIGPIPE at the start, but programs that this command
//! executes must get the disposition that this command got.

use std::sync::atomic::{AtomicBool, Ordering};

/// True if SIGPIPE was ignored when this process began.
static IGNORED: AtomicBool = AtomicBool::new(false);

// Runs before Rust's runtime starts.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    // SAFETY: a query only.
    let ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    IGNORED.store(ignored, Ordering::Relaxed);
}

/// Restores the disposition of SIGPIPE before another program is executed.
pub fn restore() {
    if !IGNORED.load(Ordering::Relaxed) {
        // SAFETY: the default action is always valid.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Ignores SIGPIPE again, if the execution failed.
pub fn ignore() {
    // SAFETY: ignoring calls no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
