//! Timeouts.

use super::plain;
use crate::Error;
use crate::low::{Sqe, flags, op as low};
use crate::operation::{CqeResult, Files, Multishot, Operation};
use std::time::Duration;

/// See [`timeout`].
#[derive(Debug)]
pub struct Timeout {
    time: low::Timespec,
    flags: u32,
    count: u64,
}

/// Ends after this time.
pub fn timeout(time: Duration) -> Timeout {
    Timeout { time: time.into(), flags: 0, count: 0 }
}

impl Timeout {
    /// Ends the timeout earlier if `requests` other requests have ended.
    pub fn count(mut self, requests: u64) -> Timeout {
        self.count = requests;
        self
    }

    /// Makes the time a point in time on `CLOCK_MONOTONIC`.
    pub fn absolute(mut self) -> Timeout {
        self.flags |= flags::TIMEOUT_ABS;
        self
    }

    /// Lets the rest of the chain begin when the time is over, instead of cancelling it.
    pub fn success(mut self) -> Timeout {
        self.flags |= flags::TIMEOUT_ETIME_SUCCESS;
        self
    }
}

// SAFETY: the operation owns the time.
unsafe impl Operation for Timeout {
    /// `Ok` when the time is over, or when as many requests have ended as [`count`](Timeout::count) says.
    type Output = Result<(), Error>;

    const NAME: &'static str = "TIMEOUT";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        low::Timeout::new(&raw const self.time).flags(self.flags).count(self.count).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        elapsed(came)
    }
}

/// Turns `ETIME`, the normal result of a timeout, into `Ok`.
fn elapsed(came: CqeResult) -> Result<(), Error> {
    match came.result {
        Err(error) if error.errno() == libc::ETIME => Ok(()),
        result => result.map(drop),
    }
}

/// See [`timeout_multi`].
#[derive(Debug)]
pub struct TimeoutMulti {
    time: low::Timespec,
    count: u64,
}

/// Completes each time that `interval` has passed.
pub fn timeout_multi(interval: Duration) -> TimeoutMulti {
    TimeoutMulti { time: interval.into(), count: 0 }
}

impl TimeoutMulti {
    /// Ends the operation after `times` completions. Without it the operation has no end.
    pub fn count(mut self, times: u64) -> TimeoutMulti {
        self.count = times;
        self
    }
}

// SAFETY: the operation owns the time.
unsafe impl Multishot for TimeoutMulti {
    type Item = Result<(), Error>;

    const NAME: &'static str = "TIMEOUT";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        low::TimeoutMulti::new(&raw const self.time).count(self.count).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        elapsed(came)
    }
}

/// The timeout of [`Ring::push_with_timeout`](crate::Ring::push_with_timeout).
#[derive(Debug)]
pub struct LinkTimeout {
    time: low::Timespec,
}

impl LinkTimeout {
    pub(crate) fn new(time: Duration) -> LinkTimeout {
        LinkTimeout { time: time.into() }
    }
}

plain!(unit LinkTimeout, "LINK_TIMEOUT", |it, _files| low::LinkTimeout::new(&raw const it.time).build());
