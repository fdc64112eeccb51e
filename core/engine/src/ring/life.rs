//! The life of a ring. The program's descriptors, and calls in progress, keep it alive.

/// The references to a ring, and whether the ring is closed.
pub struct Life {
    /// Descriptors of the program that stand for the ring, as far as the engine sees them.
    descriptors: u32,
    /// Calls that are in progress.
    inside: u32,
    /// The ring was closed. Only attempts in progress still end.
    closing: bool,
    /// The number of `enter` calls so far, by which an observer sees whether any thread enters the ring.
    activity: u64,
}

impl Life {
    /// Begins the life of a new ring, which has one descriptor.
    pub fn begin() -> Life {
        Life { descriptors: 1, inside: 0, closing: false, activity: 0 }
    }

    /// Counts one more descriptor of the ring.
    pub fn gain_descriptor(&mut self) {
        self.descriptors += 1;
    }

    /// Counts one descriptor less. Returns true if that was the last.
    pub fn lose_descriptor(&mut self) -> bool {
        self.descriptors = self.descriptors.saturating_sub(1);
        self.descriptors == 0
    }

    /// Counts a call of `enter`.
    #[inline]
    pub fn call(&mut self) {
        self.activity += 1;
    }

    /// Returns the number of `enter` calls so far.
    #[inline]
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// Keeps the ring alive for a call until the call [leaves](Life::go_out).
    #[inline]
    pub fn come_in(&mut self) {
        self.inside += 1;
    }

    /// Ends a call that came in.
    #[inline]
    pub fn go_out(&mut self) {
        self.inside -= 1;
    }

    /// Returns the number of calls that are inside.
    #[inline]
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// Notes that the ring is closed.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True if the ring is closed.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Forgets the calls of the parent, in a child after `fork`.
    pub fn forked(&mut self) {
        self.inside = 0;
    }
}
