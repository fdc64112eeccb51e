//! Signals that end or stop a process that looks at rings.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

static ENDS: AtomicBool = AtomicBool::new(false);

/// Catches these signals, which would end the program, so that it can end in an orderly way ([`has_to_end`]). A second signal of the same
/// kind ends it immediately. An ignored signal, as SIGHUP under `nohup`, stays ignored.
pub fn catch_end(signals: &[libc::c_int]) {
    extern "C" fn note(_: libc::c_int) {
        ENDS.store(true, Ordering::Relaxed);
    }
    for &signal in signals {
        // SAFETY: structures of ours, in which all bits may be zero; the handler stores a word.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND;
            let asked = libc::sigaction(signal, std::ptr::null(), &raw mut before) == 0;
            if asked && before.sa_sigaction != libc::SIG_IGN {
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
}

/// True if one of the caught signals has come.
pub fn has_to_end() -> bool {
    ENDS.load(Ordering::Relaxed)
}

/// A guard that keeps Ctrl-Z from stopping this thread, because a ring that the thread has mapped cannot end. SIGSTOP cannot be
/// blocked.
pub struct StopHeld {
    before: libc::sigset_t,
}

impl StopHeld {
    /// Blocks the signal until the guard is dropped.
    pub fn hold() -> StopHeld {
        // SAFETY: sets of ours, which the calls fill.
        unsafe {
            let (mut stops, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            libc::sigemptyset(stops.as_mut_ptr());
            libc::sigaddset(stops.as_mut_ptr(), libc::SIGTSTP);
            libc::pthread_sigmask(libc::SIG_BLOCK, stops.as_ptr(), before.as_mut_ptr());
            StopHeld { before: before.assume_init() }
        }
    }
}

impl Drop for StopHeld {
    fn drop(&mut self) {
        // SAFETY: a set of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_stay_so_and_others_are_noted_once() {
        let action = |signal| {
            // SAFETY: asks only.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &raw mut action);
                action.sa_sigaction
            }
        };
        // SAFETY: the test has a process of its own.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
        }
        catch_end(&[libc::SIGHUP, libc::SIGTERM]);
        assert!(!has_to_end());
        // SAFETY: the signal is caught.
        unsafe { libc::raise(libc::SIGTERM) };
        assert!(has_to_end());
        assert_eq!((action(libc::SIGHUP), action(libc::SIGTERM)), (libc::SIG_IGN, libc::SIG_DFL));
    }

    #[test]
    fn a_stop_waits_until_it_may_come() {
        let is_held = || {
            // SAFETY: fills a set of ours.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
                libc::sigismember(&raw const set, libc::SIGTSTP) == 1
            }
        };
        let held = StopHeld::hold();
        assert!(is_held());
        drop(held);
        assert!(!is_held());
    }
}
