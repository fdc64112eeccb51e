//! Registration of files.

use linux_raw_sys::io_uring::io_uring_file_index_range;

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::calls::register::rsrc::{given, short_update, tagged, update};
use crate::os::user;
use crate::ring::Core;

/// `IORING_REGISTER_FILES`.
pub fn register_files(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    given(call)?;
    core.register_files(call.argument, call.count, 0)
}

/// `IORING_REGISTER_FILES2`.
pub fn register_files2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let given = tagged(call)?;
    core.register_files(given.data, given.nr, given.tags)
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
