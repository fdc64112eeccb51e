//! Whether the calls that a thread makes put it to sleep.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Calls between two looks.
const CALLS: u32 = 8;
/// Where so many take less, they do not.
const QUICK: Duration = Duration::from_micros(50);

/// The record that a thread keeps of its calls.
pub struct Asleep {
    /// Calls since it looked.
    calls: u32,
    looked: Instant,
    /// How often it had slept then.
    slept: i64,
}

impl Asleep {
    /// Of a thread that makes no call as yet.
    pub fn new() -> Asleep {
        Asleep { calls: 0, looked: Instant::now(), slept: 0 }
    }

    /// Begins anew: what put the thread to sleep until now was no call.
    pub fn begin(&mut self) {
        *self = Asleep { calls: 0, looked: Instant::now(), slept: sleeps() };
    }

    /// Notes a call of the thread. From time to time that tells whether such calls put it to sleep.
    pub fn called(&mut self) -> bool {
        self.calls += 1;
        if self.calls < CALLS {
            return false;
        }
        let now = Instant::now();
        let slept = if now - self.looked > QUICK { sleeps() } else { self.slept };
        let has_slept = slept != self.slept;
        *self = Asleep { calls: 0, looked: now, slept };
        has_slept
    }
}

/// How often this thread has slept.
fn sleeps() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes the structure, of integers.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}
