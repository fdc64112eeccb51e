//! Requests that the kernel gave to its worker threads, if a source reports them ([`Workers`]).
//!
//! The memory of a ring does not show how the kernel did a request. The kernel's tracepoint `io_uring_queue_async_work` names the process,
//! the user data and the operation of each request that a worker is to do. Programs may use the same user data for several requests, so a
//! request is counted as a worker's only if no other request of its process with this operation and user data is in flight.

use std::collections::HashMap;

/// The maximum number of requests that wait for their completion; if there are more, all of them are forgotten.
const MOST: usize = 1 << 16;

/// A request that the kernel has queued for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The process that the request belongs to.
    pub process: u32,
    /// The time by the monotonic clock.
    pub time_ns: u64,
    /// The request's user data.
    pub user_data: u64,
    /// The request's opcode.
    pub opcode: u8,
}

/// A source of queued requests.
pub trait Workers {
    /// Returns the requests that were queued since the last call, in any process. A request that has completed is among them.
    fn take(&mut self) -> Vec<Queued>;
}

/// Queued requests whose completions were not seen yet.
#[derive(Debug, Default)]
pub struct Waiting {
    times: HashMap<(u32, u8, u64), Vec<u64>>,
    count: usize,
}

impl Waiting {
    /// Adds a request.
    pub fn add(&mut self, queued: Queued) {
        if self.count >= MOST {
            *self = Waiting::default();
        }
        let Queued { process, time_ns, user_data, opcode } = queued;
        self.times.entry((process, opcode, user_data)).or_default().push(time_ns);
        self.count += 1;
    }

    /// Removes the requests with this operation and user data that were queued up to `to_ns`, and returns the time of the last one,
    /// if it is not before `from_ns`.
    pub fn take(&mut self, key: (u32, u8, u64), from_ns: u64, to_ns: u64) -> Option<u64> {
        let times = self.times.get_mut(&key)?;
        let before = times.len();
        let newest = times.iter().copied().filter(|&time| time <= to_ns).max();
        times.retain(|&time| time > to_ns);
        self.count -= before - times.len();
        if times.is_empty() {
            self.times.remove(&key);
        }
        newest.filter(|&time| time >= from_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_between_its_submission_and_its_completion() {
        let mut waiting = Waiting::default();
        let key = (7, 22, 5);
        let add = |waiting: &mut Waiting, time_ns| {
            waiting.add(Queued { process: 7, time_ns, user_data: 5, opcode: 22 });
        };
        add(&mut waiting, 10);
        assert_eq!(waiting.take((7, 22, 6), 0, 100), None);
        assert_eq!(waiting.take(key, 11, 20), None, "it is an earlier one's");
        assert_eq!(waiting.take(key, 0, 100), None, "and forgotten");
        add(&mut waiting, 30);
        add(&mut waiting, 50);
        assert_eq!(waiting.take(key, 25, 40), Some(30));
        assert_eq!(waiting.take(key, 40, 60), Some(50));
        assert_eq!((waiting.count, waiting.times.len()), (0, 0));
        (0..=MOST as u64).for_each(|time| add(&mut waiting, time));
        assert_eq!(waiting.count, 1);
    }
}
