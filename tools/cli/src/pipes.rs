//! Broken pipes: Rust's start ignores SIGPIPE, and programs that this command executes must
//! find it as this command did.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it was ignored when this process began.
static IGNORED: AtomicBool = AtomicBool::new(false);

// Before Rust's own start.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    // SAFETY: asks only.
    let ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    IGNORED.store(ignored, Ordering::Relaxed);
}

/// Before another program is executed.
pub fn restore() {
    if !IGNORED.load(Ordering::Relaxed) {
        // SAFETY: the default action is always fit.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Where that failed.
pub fn ignore() {
    // SAFETY: nothing is called.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
