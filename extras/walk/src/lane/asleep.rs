//! Detects whether the calls that a thread makes put it to sleep.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// The number of calls between two checks.
const CALLS: u32 = 8;
/// If [`CALLS`] calls take less time than this, none of them has slept.
const QUICK: Duration = Duration::from_micros(50);

/// A thread's record of its calls.
pub struct Asleep {
    /// The number of calls since the last check.
    calls: u32,
    looked: Instant,
    /// How often the thread had slept at the last check.
    slept: i64,
}

impl Asleep {
    /// Creates the record of a thread without calls.
    pub fn new() -> Asleep {
        Asleep { calls: 0, looked: Instant::now(), slept: 0 }
    }

    /// Begins a new record, without the sleeps so far: they had other reasons than calls.
    pub fn begin(&mut self) {
        *self = Asleep { calls: 0, looked: Instant::now(), slept: sleeps() };
    }

    /// Notes a call of the thread; at each check, returns true if calls put the thread to sleep.
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

/// Returns how often this thread has slept.
fn sleeps() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes the structure, of integers.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}
