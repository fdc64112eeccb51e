//! Registration of buffers.

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::calls::register::rsrc::{given, tagged, update};
use crate::ring::Core;

/// `IORING_REGISTER_BUFFERS`.
pub fn register_buffers(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    given(call)?;
    core.register_buffers(call.argument, call.count, 0)
}

/// `IORING_REGISTER_BUFFERS2`.
pub fn register_buffers2(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let given = tagged(call)?;
    core.register_buffers(given.data, given.nr, given.tags)
}

/// `IORING_REGISTER_BUFFERS_UPDATE`.
pub fn update_buffers(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let update = update(call)?;
    core.update_buffers(&update, update.nr)
}
