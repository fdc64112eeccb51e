//! Provided buffers: groups that operations take a buffer from when they need one.

use crate::request::RequestId;
use crate::ring::Core;

/// A ring's buffer groups.
#[derive(Default)]
pub struct BufferGroups {}

/// A buffer that a request took and has not reported yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selected {}

impl Core {
    /// A request with a provided buffer ends: report the buffer in its CQE if it was used, give it
    /// back if not.
    pub fn settle_buffer(&mut self, id: RequestId, _result: i32) {
        self.requests[id].buffer = None;
    }
}
