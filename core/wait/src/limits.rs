//! The limits of a wait for completions.

/// The deadline of a wait, on the monotonic clock in nanoseconds, and its signal mask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The end of the wait, if it has one.
    pub deadline_ns: Option<u64>,
    /// Before this time the wait ends only when all wanted completions are there, afterwards when
    /// any is there (`min_wait_usec`).
    pub enough_ns: Option<u64>,
    /// The signal mask during the sleep, if the caller passed one.
    pub signal_mask: Option<u64>,
}
