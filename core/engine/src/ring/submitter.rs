//! The one thread that may submit to a ring with `IORING_SETUP_SINGLE_ISSUER`.

/// The thread that may submit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submitter {
    /// Not known yet, or the ring has no single submitter.
    #[default]
    Unknown,
    /// The thread with this identity.
    Thread(usize),
    /// A thread of another process, or one that has ended.
    Elsewhere,
}

impl Submitter {
    /// True if the submitter is known.
    pub fn is_known(self) -> bool {
        self != Submitter::Unknown
    }

    /// True if the submitter is a thread of this process.
    pub fn is_here(self) -> bool {
        matches!(self, Submitter::Thread(_))
    }
}
