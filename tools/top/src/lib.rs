//! The io_uring rings of running processes, watched from outside: nothing is injected into a process, and no process is stopped.
//!
//! [`find`] finds rings by the descriptors of processes. A [`ring::Ring`] is looked at periodically: its memory is mapped read-only for
//! some microseconds, and the changes in its queues since the last look are copied ([`follow`]). The number of changes that were missed
//! between two looks is known, because heads and tails of queues count everything.
//!
//! [`top`] makes a table of all rings of the machine, [`trace`] makes events of one process for `anyring-tracer`.

mod fdinfo;
pub mod find;
pub mod follow;
pub mod geometry;
mod irregular;
mod pair;
pub mod process;
pub mod records;
pub mod refusal;
pub mod ring;
pub mod screen;
pub mod signals;
pub mod table;
pub mod top;
pub mod trace;
mod view;

use std::time::Duration;

/// The shortest time between two looks at all rings.
const SHORTEST: Duration = Duration::from_millis(2);
/// The least ratio of the time between two looks to the time that a look takes.
const REST: u32 = 40;
/// The least ratio of the time between two looks to the time that a look takes, if single requests are of interest.
const SHORT_REST: u32 = 15;
/// The shortest time between two looks, if single requests are of interest.
const SHORTEST_OF_ALL: Duration = Duration::from_micros(250);

/// Returns the time to wait after a look that took `took` of processor time.
fn pause(took: Duration) -> Duration {
    (took * REST).max(SHORTEST)
}

/// Returns the time to wait after a look that took `took` of processor time, if single requests are of interest.
pub fn short_pause(took: Duration) -> Duration {
    (took * SHORT_REST).max(SHORTEST_OF_ALL)
}

/// Returns the processor time that this thread has used. It does not include the time of other threads, or of waiting for a slow
/// reader.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Watches the rings for an interval, and returns the table. Rings that are made during the interval appear in the next one.
pub fn sample(machine: &mut top::Machine, interval: Duration) -> top::Table {
    let began = std::time::Instant::now();
    machine.search();
    loop {
        let took = machine.look();
        let left = interval.saturating_sub(began.elapsed());
        if left.is_zero() {
            return machine.next_table();
        }
        std::thread::sleep(pause(took).min(left));
    }
}
