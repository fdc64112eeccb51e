//! Calls of the program that change credentials.

use crate::process::credentials;
pub use crate::process::credentials::Reach;
use crate::work::renewal;

/// A change of credentials under way, between [`Change::begin`] before the call and [`Change::end`].
pub struct Change(credentials::Change);

impl Change {
    /// The program is about to make a call that may change credentials. `None` where nothing of the
    /// engine is concerned.
    pub fn begin(reach: Reach) -> Option<Change> {
        credentials::Change::begin(reach).map(Change)
    }

    /// The call has returned. When this returns too, no thread of the engine that has nothing to do
    /// holds what the process gave up.
    pub fn end(self) {
        if self.0.end() {
            renewal::renew();
        }
    }
}
