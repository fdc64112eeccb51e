//! The arguments that registrations of files and of buffers share: arrays, sparse tables, updates, tags.

use linux_raw_sys::io_uring::{
    IORING_RSRC_REGISTER_SPARSE, io_uring_rsrc_register, io_uring_rsrc_update, io_uring_rsrc_update2,
};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::os::user;

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
