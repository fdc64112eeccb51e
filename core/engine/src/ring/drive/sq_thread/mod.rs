//! The SQ thread (`IORING_SETUP_SQPOLL`): takes SQEs without being asked, and drives its ring.
//!
//! It spins for the ring's idle time after the last sign of life, then sets `IORING_SQ_NEED_WAKEUP`,
//! looks once more and sleeps in the ring's `epoll_wait`, which also serves whatever is in flight. As
//! the kernel's it begins asleep: a new ring's first SQEs need a wake-up.

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
    /// How many SQ threads the ring has had; one that is not the last ends.
    term: u32,
    /// The one before the last has ended.
    gone: bool,
    /// The processor that the thread is bound to, if any.
    cpu: Option<u32>,
}

impl SqThread {
    /// Does the thread sleep in epoll, or is about to?
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }
}
