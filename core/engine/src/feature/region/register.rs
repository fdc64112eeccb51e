//! The parameter region (`IORING_REGISTER_MEM_REGION`).

use core::ops::Range;

use linux_raw_sys::io_uring::{
    IORING_MEM_REGION_REG_WAIT_ARG, IORING_MEM_REGION_TYPE_USER, IORING_SETUP_R_DISABLED,
    io_uring_mem_region_reg, io_uring_region_desc,
};

use crate::abi::Errno;
use crate::abi::layout::{PARAM_REGION_OFFSET, RECEIVE_QUEUES_OFFSET};
use crate::calls::register::call::Register;
use crate::os::region::Region;
use crate::os::{self, Fd, pages, user};
use crate::ring::Core;

/// `IORING_REGISTER_MEM_REGION`. `fd` is the program's descriptor of this ring.
///
/// # Errors
/// As the kernel's: `EBUSY` if one is registered, `EINVAL`, `EFAULT`, `E2BIG`, `EOVERFLOW`; `ENOMEM` also for
/// a region that would overlap the next part of the ring's file, which the kernel keeps apart.
pub fn register(core: &mut Core, fd: Fd, call: &Register) -> Result<usize, Errno> {
    if core.resources().region.is_there() {
        return Err(Errno::EBUSY);
    }
    let given: io_uring_mem_region_reg = user::read(call.argument)?;
    let mut wanted: io_uring_region_desc = user::read(given.region_uptr)?;
    let waits = u64::from(IORING_MEM_REGION_REG_WAIT_ARG as u32);
    let holds_waits = given.flags & waits != 0;
    if given.__resv != [0; 2] || given.flags & !waits != 0 || holds_waits && !core.is(IORING_SETUP_R_DISABLED)
    {
        return Err(Errno::EINVAL);
    }
    let memory = take(&mut wanted, fd, PARAM_REGION_OFFSET..RECEIVE_QUEUES_OFFSET)?;
    user::write(given.region_uptr, &wanted)?;
    core.resources_mut().region.set(memory, holds_waits);
    Ok(0)
}

/// Maps the memory that a description asks for: the program's or, if the description gives none, this part of the
/// ring's file, from its beginning on.
///
/// # Errors
/// As [`register`], without `EBUSY`.
pub fn take(wanted: &mut io_uring_region_desc, fd: Fd, part: Range<u64>) -> Result<Region, Errno> {
    let of_program = IORING_MEM_REGION_TYPE_USER as u32;
    if wanted.__resv != [0; 4] || wanted.flags & !of_program != 0 {
        return Err(Errno::EINVAL);
    }
    if (wanted.flags == of_program) != (wanted.user_addr != 0) {
        return Err(Errno::EFAULT);
    }
    if wanted.size == 0 || wanted.mmap_offset != 0 || wanted.id != 0 {
        return Err(Errno::EINVAL);
    }
    if wanted.size / pages::page_bytes() as u64 > i32::MAX as u64 {
        return Err(Errno::E2BIG);
    }
    if wanted.size % pages::page_bytes() as u64 != 0 {
        return Err(Errno::EINVAL);
    }
    if wanted.flags == of_program {
        return Region::of_program(wanted.user_addr, wanted.size, fd);
    }
    if wanted.size > part.end - part.start {
        return Err(Errno::ENOMEM);
    }
    os::grow_memfd(fd, part.start + wanted.size)?;
    wanted.mmap_offset = part.start;
    os::by_own_description(fd, |fd| Region::map(fd, part.start, wanted.size as usize))
}
