//! Rings of provided buffers (`IORING_REGISTER_PBUF_RING`).

use linux_raw_sys::io_uring::{
    io_uring_buf_reg, io_uring_buf_status, io_uring_register_pbuf_ring_flags as RingFlags,
};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::provided_buffers::{NewRing, Place};
use crate::os::pages;
use crate::os::{Fd, user};
use crate::ring::Core;

const IN_OWN_MEMORY: u32 = RingFlags::IOU_PBUF_RING_MMAP as u32;
const INCREMENTAL: u32 = RingFlags::IOU_PBUF_RING_INC as u32;

/// The number of entries is less than this: head and tail have 16 bits.
const MAX_ENTRIES: u32 = 1 << 16;

/// `IORING_REGISTER_PBUF_RING`. `fd` is the program's descriptor of this ring.
///
/// # Errors
/// As the kernel's: `EINVAL`, `EFAULT`, `EEXIST`, `ENOMEM`; the last also if a ring in the ring's own memory
/// would overlap the next group's, because one file holds them all.
pub fn register(core: &mut Core, fd: Fd, call: &Register) -> Result<usize, Errno> {
    let request: io_uring_buf_reg = user::read(call.argument)?;
    let flags = u32::from(request.flags);
    let min_left = min_left(&request)?;
    if flags & !(IN_OWN_MEMORY | INCREMENTAL) != 0 || min_left != 0 && flags & INCREMENTAL == 0 {
        return Err(Errno::EINVAL);
    }
    if !request.ring_entries.is_power_of_two() || request.ring_entries >= MAX_ENTRIES {
        return Err(Errno::EINVAL);
    }
    core.resources().groups.expect_vacant(request.bgid)?;
    let new = NewRing {
        place: if flags & IN_OWN_MEMORY != 0 { Place::Own(fd) } else { place(request.ring_addr, fd)? },
        entries: request.ring_entries as u16,
        incremental: flags & INCREMENTAL != 0,
        min_left: min_left.max(1),
    };
    core.resources_mut().groups.add_ring(request.bgid, &new).map(|()| 0)
}

/// Checks an address in the program's memory.
fn place(address: u64, memfd: Fd) -> Result<Place, Errno> {
    if address == 0 {
        return Err(Errno::EFAULT);
    }
    if address % pages::page_bytes() as u64 != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Place::Program { address, memfd: Some(memfd) })
}

/// Returns the `min_left` of a registration, which is in the first four bytes of fields reserved before Linux 7.1.
///
/// # Errors
/// `EINVAL` if another reserved byte is set.
fn min_left(request: &io_uring_buf_reg) -> Result<u32, Errno> {
    match request.resv {
        [first, 0, 0] => u32::try_from(first).map_err(|_| Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

/// `IORING_UNREGISTER_PBUF_RING`.
///
/// # Errors
/// `ENOENT` if the group does not exist, `EINVAL` if it is no ring.
pub fn unregister(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let request: io_uring_buf_reg = user::read(call.argument)?;
    min_left(&request)?;
    if request.flags != 0 {
        return Err(Errno::EINVAL);
    }
    core.resources_mut().groups.remove_ring(request.bgid).map(|()| 0)
}

/// `IORING_REGISTER_PBUF_STATUS`: writes the position of a ring's head.
///
/// # Errors
/// As [`unregister`].
pub fn status(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let mut status: io_uring_buf_status = user::read(call.argument)?;
    if status.resv != [0; 8] {
        return Err(Errno::EINVAL);
    }
    let group = u16::try_from(status.buf_group).map_err(|_| Errno::ENOENT)?;
    status.head = u32::from(core.resources().groups.ring_head(group)?);
    user::write(call.argument, &status).map(|()| 0)
}
