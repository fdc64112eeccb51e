//! The life of a ring, which the program's descriptors and calls that are inside keep alive.

/// From setup to the end of a ring.
pub struct Life {
    /// Descriptors of the program that stand for the ring, as far as they are seen.
    descriptors: u32,
    /// Calls that are in progress.
    inside: u32,
    /// The ring was closed and only ends what is being worked on.
    closing: bool,
    /// Calls of `enter` so far; tells an observer whether anybody comes by.
    activity: u64,
}

impl Life {
    /// A new ring has one descriptor.
    pub fn begin() -> Life {
        Life { descriptors: 1, inside: 0, closing: false, activity: 0 }
    }

    /// One more descriptor stands for the ring.
    pub fn gain_descriptor(&mut self) {
        self.descriptors += 1;
    }

    /// One of the ring's descriptors is gone. Returns true if that was the last.
    pub fn lose_descriptor(&mut self) -> bool {
        self.descriptors = self.descriptors.saturating_sub(1);
        self.descriptors == 0
    }

    /// A call of `enter` begins.
    #[inline]
    pub fn call(&mut self) {
        self.activity += 1;
    }

    /// Calls of `enter` so far.
    #[inline]
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// A call needs the ring until it [leaves](Life::go_out).
    #[inline]
    pub fn come_in(&mut self) {
        self.inside += 1;
    }

    /// The call leaves.
    #[inline]
    pub fn go_out(&mut self) {
        self.inside -= 1;
    }

    /// The number of calls that are inside.
    #[inline]
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// The ring is closed.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True if the ring is closed.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// In a child after `fork`: the parent's calls are not here.
    pub fn forked(&mut self) {
        self.inside = 0;
    }
}
