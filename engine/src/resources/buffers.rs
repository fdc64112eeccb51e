//! Registered buffers.

use alloc::vec::Vec;

use crate::user::IoVector;

/// A ring's registered buffers.
#[derive(Default)]
pub struct BufferTable {
    buffers: Option<Vec<Option<IoVector>>>,
}

impl BufferTable {
    /// The buffer at an index, if there is one.
    pub fn get(&self, index: u16) -> Option<IoVector> {
        *self.buffers.as_ref()?.get(usize::from(index))?
    }
}
