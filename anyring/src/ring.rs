//! The safe ring.

use crate::{Builder, Engine, Error, low};

/// A ring whose requests are safe.
pub struct Ring {
    low: low::Ring,
}

impl Ring {
    /// A ring with room for `entries` submissions, and everything else as [`Builder`] has it.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(entries: u32) -> Result<Ring, Error> {
        Ring::builder(entries).build()
    }

    /// How a ring with room for `entries` submissions is to be.
    pub fn builder(entries: u32) -> Builder {
        Builder::new(entries)
    }

    pub(crate) fn over(low: low::Ring) -> Ring {
        Ring { low }
    }

    /// The engine that it has.
    pub fn engine(&self) -> Engine {
        self.low.engine()
    }
}
