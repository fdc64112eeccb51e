//! The register calls that files and buffers share: whole arrays, sparse tables, updates, tags.

use linux_raw_sys::io_uring::{
    IORING_RSRC_REGISTER_SPARSE, io_uring_file_index_range, io_uring_rsrc_register, io_uring_rsrc_update,
    io_uring_rsrc_update2,
};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::os::user;
use crate::ring::Core;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Resource {
    Files,
    Buffers,
}

/// `IORING_REGISTER_BUFFERS`.
pub fn register_buffers(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    given(call)?;
    core.register_buffers(call.argument, call.count, 0)
}

/// `IORING_REGISTER_BUFFERS2`.
pub fn register_buffers2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    register_tagged(core, Resource::Buffers, call)
}

/// `IORING_REGISTER_BUFFERS_UPDATE`.
pub fn update_buffers(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let update = update(call)?;
    core.update_buffers(&update, update.nr)
}

/// `IORING_REGISTER_FILES`.
pub fn register_files(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    given(call)?;
    core.register_files(call.argument, call.count, 0)
}

/// `IORING_REGISTER_FILES2`.
pub fn register_files2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    register_tagged(core, Resource::Files, call)
}

/// `IORING_REGISTER_FILES_UPDATE`.
pub fn update_files(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    core.update_files(&short_update(call)?, call.count)
}

/// `IORING_REGISTER_FILES_UPDATE2`.
pub fn update_files2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let update = update(call)?;
    core.update_files(&update, update.nr)
}

/// `IORING_REGISTER_FILE_ALLOC_RANGE`.
pub fn set_file_alloc_range(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let range: io_uring_file_index_range = user::read(call.argument)?;
    let end = range.off.checked_add(range.len).ok_or(Errno::EOVERFLOW)?;
    if range.resv != 0 {
        return Err(Errno::EINVAL);
    }
    core.resources_mut().files.allocate_from(range.off as usize..end as usize).map(|()| 0)
}

fn register_tagged(core: &mut Core, resource: Resource, call: &Register) -> Result<usize, Errno> {
    if call.count as usize != size_of::<io_uring_rsrc_register>() {
        return Err(Errno::EINVAL);
    }
    let given: io_uring_rsrc_register = user::read(call.argument)?;
    let sparse = given.flags & IORING_RSRC_REGISTER_SPARSE != 0;
    let unknown = given.flags & !IORING_RSRC_REGISTER_SPARSE != 0;
    if given.nr == 0 || given.resv2 != 0 || unknown || sparse && given.data != 0 {
        return Err(Errno::EINVAL);
    }
    match resource {
        Resource::Files => core.register_files(given.data, given.nr, given.tags),
        Resource::Buffers => core.register_buffers(given.data, given.nr, given.tags),
    }
}

fn given(call: &Register) -> Result<(), Errno> {
    if call.argument == 0 { Err(Errno::EFAULT) } else { Ok(()) }
}

fn short_update(call: &Register) -> Result<io_uring_rsrc_update2, Errno> {
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

fn update(call: &Register) -> Result<io_uring_rsrc_update2, Errno> {
    if call.count as usize != size_of::<io_uring_rsrc_update2>() {
        return Err(Errno::EINVAL);
    }
    let update: io_uring_rsrc_update2 = user::read(call.argument)?;
    if update.nr == 0 || update.resv != 0 || update.resv2 != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(update)
}
