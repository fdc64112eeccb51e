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
            // SAFETY: blocks signals in this thread only.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            // SAFETY: once, as the engine wants it.
            unsafe { entry(argument) };
        };
        let name = name.to_string_lossy().into_owned();
        std::thread::Builder::new().name(name).spawn(body).map(drop).map_err(|_| libc::EAGAIN)
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
