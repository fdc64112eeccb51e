//! The engine in this process, called as a function: the cost of a ring without a front end, and the best
//! form for a profiler.

use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, Ordering};

use anyring_engine::{Host, install};

/// The host of the engine.
struct Workload;

static WORKLOAD: Workload = Workload;
static HOST: &dyn Host = &WORKLOAD;
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Makes every ring of this process a ring of the user engine.
pub fn activate() {
    install(&HOST);
    ACTIVE.store(true, Ordering::Relaxed);
}

/// True if rings are of the user engine.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// A pointer that may be passed to another thread.
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
            // SAFETY: called once, as the engine demands.
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
        // The workloads name no unmapped memory, so there is no fault to resume from.
        true
    }
}
