//! Socket addresses, copied from the program.

use alloc::boxed::Box;

use crate::abi::Errno;
use crate::os::user;

/// Bytes of the longest address (`struct sockaddr_storage`).
pub const LONGEST: usize = 128;

/// An address of any family.
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
    /// `EINVAL` where the length cannot be one, `EFAULT` where it is not there.
    pub fn read(address: u64, length: i64) -> Result<Box<Address>, Errno> {
        let length = usize::try_from(length).ok().filter(|&length| length <= LONGEST).ok_or(Errno::EINVAL)?;
        let mut copy = Box::new(Address { bytes: [0; LONGEST], length: length as u32 });
        user::read_bytes(address, &mut copy.bytes[..length])?;
        Ok(copy)
    }

    /// Where it is, as system calls take it.
    pub fn pointer(&self) -> usize {
        self.bytes.as_ptr() as usize
    }

    /// Its length.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}
