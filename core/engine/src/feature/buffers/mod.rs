//! Registered buffers: memory that the program promises to leave mapped. The kernel pins it. The engine
//! faults it in at registration, and checks the ranges of requests against it. Nothing is locked, so nothing
//! counts against `RLIMIT_MEMLOCK`; a transfer into memory that was unmapped meanwhile fails.

pub(crate) mod register;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::table::{NodeIndex, Table};
use crate::os::user::IoVector;
use crate::os::{self, pages};

/// The maximal number of buffers of a ring.
pub const MAX_BUFFERS: u32 = 1 << 14;

/// A ring's registered buffers.
pub type BufferTable = Table<IoVector>;

impl BufferTable {
    /// Returns the buffer in each slot.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn all(&self) -> Result<Vec<Option<IoVector>>, Errno> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.len()).map_err(|_| Errno::ENOMEM)?;
        all.extend((0..self.len()).map(|slot| self.get(slot).map(|(_, buffer)| buffer)));
        Ok(all)
    }

    /// Returns the node of the buffer at an index, to be held.
    ///
    /// # Errors
    /// `EFAULT` if the slot is empty.
    pub fn node(&self, index: u16) -> Result<NodeIndex, Errno> {
        self.get(usize::from(index)).map(|(node, _)| node).ok_or(Errno::EFAULT)
    }

    /// Returns the node of the buffer at an index, if `address` and `length` lie within the buffer.
    ///
    /// # Errors
    /// `EFAULT` if they do not, if the slot is empty, and if `length` is more than one transfer moves.
    pub fn check(&self, index: u16, address: u64, length: u64) -> Result<NodeIndex, Errno> {
        let (node, buffer) = self.get(usize::from(index)).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        // The buffer's end cannot overflow: `validate` has checked it.
        let inside = address >= buffer.base && end <= buffer.base + buffer.length;
        if inside && length <= os::max_transfer_bytes() as u64 { Ok(node) } else { Err(Errno::EFAULT) }
    }
}

/// The maximal length of a buffer, and the error for a longer one.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64, pub Errno);

/// Checks a buffer as the kernel does; `None` for an empty slot.
///
/// # Errors
/// `EINVAL`; `EFAULT`, also if the memory is not mapped; `EOVERFLOW`.
pub fn validate(buffer: IoVector, limit: Limit) -> Result<Option<IoVector>, Errno> {
    if buffer.length > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if buffer.base == 0 {
        return if buffer.length == 0 { Ok(None) } else { Err(Errno::EFAULT) };
    }
    if buffer.length == 0 {
        return Err(Errno::EFAULT);
    }
    if buffer.length > limit.0 {
        return Err(limit.1);
    }
    let end =
        buffer.base.checked_add(buffer.length + pages::page_bytes() as u64 - 1).ok_or(Errno::EOVERFLOW)?;
    let first = buffer.base & !(pages::page_bytes() as u64 - 1);
    pages::take(first, (end & !(pages::page_bytes() as u64 - 1)) - first)?;
    Ok(Some(buffer))
}
