//! The engine in this very process, called as a function: what a ring costs without any front end, and the
//! form in which a profiler sees it best.

use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, Ordering};

use anyring_engine::{Host, install};

/// What the workload provides to the engine.
struct Workload;

static WORKLOAD: Workload = Workload;
static HOST: &dyn Host = &WORKLOAD;
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Lets every ring of this process be the engine's.
pub fn activate() {
    install(&HOST);
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Whether rings are the engine's.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// A pointer that may go to another thread.
struct Sent(*mut c_void);

// SAFETY: the engine hands it to `spawn` for the new thread alone.
unsafe impl Send for Sent {}

impl Host for Workload {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        let argument = Sent(argument);
        let body = move || {
            let Sent(argument) = { argument };
            // SAFETY: once, as the engine wants it.
            unsafe { entry(argument) };
        };
        // The new thread inherits the mask.
        let before = block_signals();
        let name = name.to_string_lossy().into_owned();
        let result = std::thread::Builder::new().name(name).spawn(body);
        restore_signals(&before);
        result.map(drop).map_err(|_| libc::EAGAIN)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        // SAFETY: takes nothing, cannot fail.
        let identity = unsafe { libc::pthread_self() } as usize;
        NonZeroUsize::new(identity).unwrap_or(NonZeroUsize::MIN)
    }

    fn faults_resume(&self) -> bool {
        // The workloads name no memory that is not there, so there is nothing to resume from.
        true
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid set; both sets live through the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set lives through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
