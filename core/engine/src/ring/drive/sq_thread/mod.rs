//! The SQ thread (`IORING_SETUP_SQPOLL`): consumes SQEs without a call, and drives its ring.
//!
//! The thread spins for the ring's idle time after the last activity, then sets `IORING_SQ_NEED_WAKEUP`, looks once more and sleeps in the
//! ring's `epoll_wait`, which also serves requests in flight. Like the kernel's thread it begins asleep: a new ring's first SQEs need a
//! wake-up.

mod run;

use crate::process::credentials::Credentials;

pub use run::{check_cpu, renew, start};

/// The state that a ring keeps about its SQ thread.
#[derive(Default)]
pub struct SqThread {
    /// How long the thread spins before it sleeps.
    idle_ns: u64,
    /// The thread sleeps in epoll, or is about to.
    asleep: bool,
    /// The credentials that the thread was cloned with.
    credentials: Option<Credentials>,
    /// The number of the current term. A thread of an earlier term ends.
    term: u32,
    /// The thread of the term before the current one has ended.
    gone: bool,
    /// The processor that the thread is bound to, if any.
    cpu: Option<u32>,
}

impl SqThread {
    /// True if the thread sleeps in epoll, or is about to.
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }
}
