//! One call of `io_uring_register`.

use linux_raw_sys::io_uring::{
    IORING_RSRC_REGISTER_SPARSE, io_uring_rsrc_register, io_uring_rsrc_update, io_uring_rsrc_update2,
};

use crate::abi::Errno;
use crate::os::user;
use crate::request::shown::Structure;

/// The arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// `IORING_REGISTER_*`.
    pub opcode: u32,
    /// The address of the data that the registration reads or writes.
    pub argument: u64,
    /// The number of elements at the address.
    pub count: u32,
}

/// The type of the data at the address of a call, for code that prints them.
#[derive(Clone, Copy)]
pub enum Argument {
    /// An array of `struct iovec`s.
    Vectors,
    /// An array of descriptors.
    Descriptors,
    /// One structure, whatever the count says.
    One(&'static Structure),
    /// An array of structures.
    Many(&'static Structure),
}

/// Reads the argument of a registration with tags.
pub fn tagged(call: &Register) -> Result<io_uring_rsrc_register, Errno> {
    if call.count as usize != size_of::<io_uring_rsrc_register>() {
        return Err(Errno::EINVAL);
    }
    let given: io_uring_rsrc_register = user::read(call.argument)?;
    let sparse = given.flags & IORING_RSRC_REGISTER_SPARSE != 0;
    let unknown = given.flags & !IORING_RSRC_REGISTER_SPARSE != 0;
    if given.nr == 0 || given.resv2 != 0 || unknown || sparse && given.data != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(given)
}

/// Checks that the address of the array is not null.
pub fn given(call: &Register) -> Result<(), Errno> {
    if call.argument == 0 { Err(Errno::EFAULT) } else { Ok(()) }
}

/// Reads an update without tags.
pub fn short_update(call: &Register) -> Result<io_uring_rsrc_update2, Errno> {
    if call.count == 0 {
        return Err(Errno::EINVAL);
    }
    let short: io_uring_rsrc_update = user::read(call.argument)?;
    if short.resv != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(io_uring_rsrc_update2 {
        offset: short.offset,
        resv: 0,
        data: short.data,
        tags: 0,
        nr: call.count,
        resv2: 0,
    })
}

/// Reads an update with tags.
pub fn update(call: &Register) -> Result<io_uring_rsrc_update2, Errno> {
    if call.count as usize != size_of::<io_uring_rsrc_update2>() {
        return Err(Errno::EINVAL);
    }
    let update: io_uring_rsrc_update2 = user::read(call.argument)?;
    if update.nr == 0 || update.resv != 0 || update.resv2 != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(update)
}
