//! `IORING_REGISTER_RESIZE_RINGS`.

use linux_raw_sys::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE, IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128, io_uring_params,
};

use crate::abi::layout::Layout;
use crate::abi::{Errno, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED};
use crate::os::{self, Fd, user};
use crate::queue::{RingMemory, Source};
use crate::ring::Core;

/// Setup flags that the call may pass.
const ASKED: u32 = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
/// Setup flags that the ring keeps.
const INHERITED: u32 = IORING_SETUP_NO_SQARRAY
    | IORING_SETUP_SQE128
    | IORING_SETUP_SQE_MIXED
    | IORING_SETUP_CQE32
    | IORING_SETUP_NO_MMAP
    | IORING_SETUP_CQE_MIXED;

/// Resizes a ring. `fd` is the program's descriptor of the ring; the program maps the new rings at the usual
/// offsets.
///
/// # Errors
/// As the kernel's: `EINVAL` if the ring does not defer or a size is invalid; `EOVERFLOW` if the entries in the
/// queues would not fit.
pub fn resize(core: &mut Core, fd: Fd, argument: u64) -> Result<usize, Errno> {
    if !core.is(IORING_SETUP_DEFER_TASKRUN) {
        return Err(Errno::EINVAL);
    }
    let mut params: io_uring_params = user::read(argument)?;
    if params.flags & !ASKED != 0 {
        return Err(Errno::EINVAL);
    }
    params.flags |= core.identity().setup_flags & INHERITED;
    let layout = Layout::new(params.sq_entries, &params)?;
    let memory = if params.flags & IORING_SETUP_NO_MMAP != 0 {
        let (rings, sqes) = (params.cq_off.user_addr, params.sq_off.user_addr);
        RingMemory::map(Source::Program { rings, sqes, memfd: fd }, layout)?
    } else {
        os::by_own_description(fd, |fd| RingMemory::map(Source::File(fd), layout))?
    };
    layout.describe(&mut params);
    user::write(argument, &params)?;
    core.queues_mut().move_to(memory).map(|()| 0)
}
