//! Data that operations on sockets keep between their steps.

use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::net::{MSG_WAITALL, msghdr};

use crate::abi::{Errno, Sqe};
use crate::feature::provided_buffers::Span;
use crate::os;
use crate::os::user::{self, IoVector};

/// Data of an operation on a socket.
pub enum Data {
    /// SEND, RECV.
    Transfer(Transfer),
    /// SENDMSG, RECVMSG.
    Message(Box<Message>),
    /// Data of the notification of a zero-copy send.
    Pages(Pages),
}

/// Pages of the program that the network stack still reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    /// Number of system calls whose pages are in use.
    pub out: u32,
    /// No further system calls will follow.
    pub ended: bool,
    /// The kernel has copied some of the data.
    pub copied: bool,
}

/// Data of SEND and RECV: the rest of one piece of memory.
pub struct Transfer {
    /// The progress of the transfer.
    pub progress: Progress,
    /// Length of the rest in bytes.
    pub length: u32,
    /// Address of the rest.
    pub address: u64,
    /// The destination address.
    pub to: Option<Box<Address>>,
}

impl Transfer {
    /// Makes the transfer of an SQE's memory, as far as one call can transfer it.
    pub fn of(sqe: &Sqe, progress: Progress, to: Option<Box<Address>>) -> Transfer {
        let length = sqe.len.min(os::max_transfer_bytes() as u32);
        Transfer { progress, length, address: sqe.addr, to }
    }
}

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

/// Maximum number of vectors of a message (`UIO_MAXIOV`).
const MOST_VECTORS: usize = 1024;

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// `MSG_*` for the system calls, without `MSG_DONTWAIT`.
    pub flags: u32,
    /// Bytes transferred by earlier attempts (`MSG_WAITALL`).
    pub done: u32,
    /// CQEs posted since the request last yielded to other requests.
    pub rounds: u8,
}

impl Progress {
    /// True if the request asks for the full length (`MSG_WAITALL`).
    pub fn waits_for_all(self) -> bool {
        self.flags & MSG_WAITALL != 0
    }
}

/// A copy of a `struct msghdr` with its vectors and its address. Data and control bytes stay in the
/// program's memory.
pub struct Message {
    /// The progress of the transfer.
    pub progress: Progress,
    /// Address of the program's header.
    pub header: u64,
    /// Address where the source address is stored.
    pub name: u64,
    /// Length of that memory; a multishot request reserves this much of its buffers even if `name` is null.
    pub name_length: i32,
    /// Address of the control bytes.
    pub control: u64,
    /// The length of the control bytes.
    pub control_length: usize,
    /// The memory of the rest of the data.
    pub vectors: Vec<IoVector>,
    /// The destination address.
    pub to: Option<Box<Address>>,
}

/// Makes a header of zeros.
pub fn empty_header() -> msghdr {
    msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: core::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: core::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

impl Message {
    /// Copies a header of the program and its vectors. With `selects`, only the length of the first
    /// vector counts, because the memory will be a provided buffer's.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL` and `EMSGSIZE`, as in the kernel.
    pub fn read(address: u64, selects: bool, progress: Progress) -> Result<Message, Errno> {
        let header: msghdr = user::read(address)?;
        let (name, control) = (header.msg_name as u64, header.msg_control as u64);
        user::announce(name);
        user::announce(control);
        let named_badly = header.msg_namelen < 0 && name != 0;
        // The kernel checks the vector before the name only for provided buffers.
        if named_badly && !selects {
            return Err(Errno::EINVAL);
        }
        let vectors = read_vectors(&header, selects)?;
        if named_badly {
            return Err(Errno::EINVAL);
        }
        Ok(Message {
            progress,
            header: address,
            name,
            name_length: header.msg_namelen,
            control,
            control_length: header.msg_controllen,
            vectors,
            to: None,
        })
    }

    /// Makes a message for provided buffers, which are chosen later.
    pub fn of_bundle(progress: Progress, to: Option<Box<Address>>) -> Message {
        Message {
            progress,
            header: 0,
            name: 0,
            name_length: 0,
            control: 0,
            control_length: 0,
            vectors: Vec::new(),
            to,
        }
    }

    /// Copies the destination address.
    ///
    /// # Errors
    /// `EFAULT` if the memory is not readable.
    pub fn read_address(&mut self) -> Result<(), Errno> {
        let length = self.name_length.min(LONGEST as i32);
        if self.name != 0 && length > 0 {
            self.to = Some(Address::read(self.name, i64::from(length))?);
        }
        Ok(())
    }

    /// Returns the number of bytes that are left.
    pub fn length(&self) -> usize {
        let total = self.vectors.iter().fold(0u64, |sum, vector| sum.saturating_add(vector.length));
        total.min(os::max_transfer_bytes() as u64) as usize
    }

    /// Makes a header for a system call, with the vectors that are left.
    pub fn raw(&mut self) -> msghdr {
        msghdr {
            msg_iov: self.vectors.as_mut_ptr().cast(),
            msg_iovlen: self.vectors.len(),
            msg_control: self.control as *mut _,
            msg_controllen: self.control_length,
            ..empty_header()
        }
    }

    /// Removes `count` transferred bytes. The control bytes were transferred with the first of them.
    pub fn advance(&mut self, count: usize) {
        self.control = 0;
        self.control_length = 0;
        let mut left = count as u64;
        let mut whole = 0;
        for vector in &mut self.vectors {
            if left < vector.length {
                vector.base += left;
                vector.length -= left;
                break;
            }
            left -= vector.length;
            whole += 1;
        }
        self.vectors.drain(..whole);
    }

    /// Replaces the vectors by one piece of memory.
    pub fn set_memory(&mut self, span: Span) {
        self.vectors.clear();
        self.vectors.push(IoVector { base: span.address, length: span.length as u64 });
    }
}

fn read_vectors(header: &msghdr, selects: bool) -> Result<Vec<IoVector>, Errno> {
    if header.msg_iovlen > if selects { 1 } else { MOST_VECTORS } {
        return Err(if selects { Errno::EINVAL } else { Errno::EMSGSIZE });
    }
    if !selects {
        return import_vectors(header.msg_iov as u64, header.msg_iovlen);
    }
    let vectors: Vec<IoVector> = user::read_many(header.msg_iov as u64, header.msg_iovlen)?;
    if vectors.iter().any(|vector| (vector.length as i64) < 0) {
        return Err(Errno::EINVAL);
    }
    Ok(vectors)
}

/// Copies a vector of the program, checks its addresses and lengths, and limits the sum of the lengths to what one call transfers.
///
/// # Errors
/// `EINVAL` if it is too long or a length is negative, `EFAULT` if a range cannot be the program's.
pub fn import_vectors(address: u64, count: usize) -> Result<Vec<IoVector>, Errno> {
    if count > MOST_VECTORS {
        return Err(Errno::EINVAL);
    }
    let mut vectors: Vec<IoVector> = user::read_many(address, count)?;
    if vectors.iter().any(|vector| (vector.length as i64) < 0) {
        return Err(Errno::EINVAL);
    }
    let mut room = os::max_transfer_bytes() as u64;
    for vector in &mut vectors {
        user::check_range(vector.base, vector.length)?;
        vector.length = vector.length.min(room);
        room -= vector.length;
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::import_vectors;
    use crate::os;
    use crate::os::user::IoVector;

    #[test]
    fn vectors_are_limited_to_what_one_call_transfers() {
        let vectors = [IoVector { base: 1 << 20, length: 64 << 20 }; 64];
        let limited = import_vectors(vectors.as_ptr().addr() as u64, vectors.len()).unwrap();
        let total: u64 = limited.iter().map(|vector| vector.length).sum();
        assert_eq!((limited.len(), total), (vectors.len(), os::max_transfer_bytes() as u64));
    }
}
