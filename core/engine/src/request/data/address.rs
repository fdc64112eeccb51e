//! Socket addresses, copied from the program.

use alloc::boxed::Box;

use crate::abi::Errno;
use crate::os::user;

/// Size of the longest address (`struct sockaddr_storage`) in bytes.
pub const LONGEST: usize = 128;

/// A socket address of any family.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Address {
    bytes: [u8; LONGEST],
    length: u32,
}

impl Address {
    /// Copies an address of the program.
    ///
    /// # Errors
    /// `EINVAL` if the length is negative or too large, `EFAULT` if the memory is not readable.
    pub fn read(address: u64, length: i64) -> Result<Box<Address>, Errno> {
        let length = usize::try_from(length).ok().filter(|&length| length <= LONGEST).ok_or(Errno::EINVAL)?;
        let mut copy = Box::new(Address { bytes: [0; LONGEST], length: length as u32 });
        user::read_bytes(address, &mut copy.bytes[..length])?;
        Ok(copy)
    }

    /// Returns a pointer to the address, for system calls.
    pub fn pointer(&self) -> usize {
        self.bytes.as_ptr() as usize
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// Returns the address as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}
