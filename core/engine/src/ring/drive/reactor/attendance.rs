//! The state that a ring keeps about the reactor.

/// The state that a ring keeps about the reactor.
#[derive(Default)]
pub struct Attendance {
    /// The ring is on the reactor's list.
    pub(super) listed: bool,
    /// The reactor drove the ring, and may sleep as if it still did.
    pub(super) was_driven: bool,
    /// The reactor runs and learns of the ring's close, or no watch reports closes.
    pub(super) is_heard: bool,
}

impl Attendance {
    /// True if the ring is on the reactor's list.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Resets the state in a child after `fork`, whose reactor has no ring.
    pub fn forked(&mut self) {
        self.listed = false;
        self.is_heard = false;
    }
}
