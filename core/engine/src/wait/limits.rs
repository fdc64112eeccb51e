//! The limits of a wait for completions.

/// Until when to wait, on the monotonic clock in nanoseconds, and with which signal mask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The end of the wait, if it has one.
    pub deadline_ns: Option<u64>,
    /// Until then only all that is wanted ends the wait, from then on a single completion does
    /// (`min_wait_usec`).
    pub enough_ns: Option<u64>,
    /// The signal mask to sleep with.
    pub signal_mask: Option<u64>,
}
