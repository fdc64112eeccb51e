//! The register calls that files and buffers share: whole arrays, sparse tables, updates, tags.

use linux_raw_sys::io_uring::{
    IORING_RSRC_REGISTER_SPARSE, io_uring_register_op as Code, io_uring_rsrc_register, io_uring_rsrc_update,
    io_uring_rsrc_update2,
};

use crate::errno::Errno;
use crate::register::Register;
use crate::ring::Core;
use crate::user;

type Carry = fn(&mut Core, &Register) -> Result<usize, Errno>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Resource {
    Files,
    Buffers,
}

impl Core {
    /// Carries out a call about files or buffers; `None` where it is about something else.
    pub fn register_resource(&mut self, call: &Register) -> Option<Result<usize, Errno>> {
        const CALLS: &[(Code, Carry)] = &[
            (Code::IORING_REGISTER_BUFFERS, |core, call| {
                given(call)?;
                core.register_buffers(call.argument, call.count, 0)
            }),
            (Code::IORING_UNREGISTER_BUFFERS, |core, call| {
                bare(call)?;
                core.unregister_buffers()
            }),
            (Code::IORING_REGISTER_FILES, |core, call| {
                given(call)?;
                core.register_files(call.argument, call.count, 0)
            }),
            (Code::IORING_UNREGISTER_FILES, |core, call| {
                bare(call)?;
                core.unregister_files()
            }),
            (Code::IORING_REGISTER_FILES_UPDATE, |core, call| {
                let update = short_update(call)?;
                core.update_files(&update, call.count)
            }),
            (Code::IORING_REGISTER_FILES2, |core, call| core.register_tagged(Resource::Files, call)),
            (Code::IORING_REGISTER_FILES_UPDATE2, |core, call| {
                let update = update(call)?;
                core.update_files(&update, update.nr)
            }),
            (Code::IORING_REGISTER_BUFFERS2, |core, call| core.register_tagged(Resource::Buffers, call)),
            (Code::IORING_REGISTER_BUFFERS_UPDATE, |core, call| {
                let update = update(call)?;
                core.update_buffers(&update, update.nr)
            }),
            (Code::IORING_REGISTER_FILE_ALLOC_RANGE, |core, call| {
                if call.argument == 0 || call.count != 0 {
                    return Err(Errno::EINVAL);
                }
                core.set_file_alloc_range(call.argument)
            }),
        ];
        let (_, carry_out) = CALLS.iter().find(|&&(code, _)| code as u32 == call.opcode)?;
        Some(carry_out(self, call))
    }

    fn register_tagged(&mut self, resource: Resource, call: &Register) -> Result<usize, Errno> {
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
            Resource::Files => self.register_files(given.data, given.nr, given.tags),
            Resource::Buffers => self.register_buffers(given.data, given.nr, given.tags),
        }
    }
}

fn given(call: &Register) -> Result<(), Errno> {
    if call.argument == 0 { Err(Errno::EFAULT) } else { Ok(()) }
}

fn bare(call: &Register) -> Result<(), Errno> {
    if call.argument != 0 || call.count != 0 { Err(Errno::EINVAL) } else { Ok(()) }
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
