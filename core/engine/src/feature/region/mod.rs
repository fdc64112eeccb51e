//! The parameter region (`IORING_REGISTER_MEM_REGION`): memory from which waits read their arguments without
//! a copy or a check per call.

pub(crate) mod register;

use linux_raw_sys::io_uring::io_uring_reg_wait;

use crate::abi::Errno;
use crate::os::region::Region;

/// A ring's parameter region, if one is registered.
#[derive(Default)]
pub struct ParamRegion {
    memory: Option<Region>,
    /// Waits may read their arguments from the region.
    holds_waits: bool,
}

impl ParamRegion {
    /// True if a region is registered.
    pub fn is_there(&self) -> bool {
        self.memory.is_some()
    }

    /// Sets the ring's region, for as long as the ring lives.
    pub fn set(&mut self, memory: Region, holds_waits: bool) {
        debug_assert!(self.memory.is_none(), "a ring has one");
        *self = ParamRegion { memory: Some(memory), holds_waits };
    }

    /// Returns the arguments of a wait at a byte offset into the region.
    ///
    /// # Errors
    /// `EFAULT` if there is no such region, or the offset is not aligned or beyond its end.
    pub fn wait(&self, offset: u64) -> Result<[u64; 8], Errno> {
        let memory = self.memory.as_ref().filter(|_| self.holds_waits).ok_or(Errno::EFAULT)?;
        let end = offset.checked_add(size_of::<io_uring_reg_wait>() as u64).ok_or(Errno::EFAULT)?;
        if offset % 8 != 0 || end > memory.length() as u64 {
            return Err(Errno::EFAULT);
        }
        memory.try_value(offset as usize).ok_or(Errno::EFAULT)
    }
}

const _: () = assert!(size_of::<io_uring_reg_wait>() == size_of::<[u64; 8]>());
