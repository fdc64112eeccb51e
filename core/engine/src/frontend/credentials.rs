//! Calls of the program that change credentials.

use crate::process::credentials;
pub use crate::process::credentials::Reach;
use crate::work::renewal;

/// A change of credentials under way, between [`Change::begin`] before the call and [`Change::end`].
pub struct Change(credentials::Change);

impl Change {
    /// Begins a change before the program makes a call that may change credentials. `None` if the change does
    /// not concern the engine.
    pub fn begin(reach: Reach) -> Option<Change> {
        credentials::Change::begin(reach).map(Change)
    }

    /// Ends the change after the call has returned. When this returns, no idle thread of the engine holds
    /// credentials that the process gave up.
    pub fn end(self) {
        if self.0.end() {
            renewal::renew();
        }
    }
}
