//! `IORING_REGISTER_CLONE_BUFFERS`: copies the registered buffers of a ring to another ring.

use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_REGISTER_DST_REPLACE, IORING_REGISTER_SRC_REGISTERED, io_uring_clone_buffers,
};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::buffers::MAX_BUFFERS;
use crate::feature::ring_fds;
use crate::os::Fd;
use crate::os::user::{self, IoVector};
use crate::ring::{Core, CoreGuard, live, registry};

const REPLACE: u32 = IORING_REGISTER_DST_REPLACE as u32;
const REGISTERED: u32 = IORING_REGISTER_SRC_REGISTERED as u32;

/// `IORING_REGISTER_CLONE_BUFFERS`. The two rings are locked one after the other, never together.
///
/// # Errors
/// As the kernel's, in its order.
pub fn clone_buffers(guard: &mut CoreGuard<'_>, serial: u64, call: &Register) -> Result<usize, Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    let wanted: io_uring_clone_buffers = user::read(call.argument)?;
    if wanted.flags & !(REGISTERED | REPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    if wanted.flags & REPLACE == 0 && !core.resources().buffers.is_empty() {
        return Err(Errno::EBUSY);
    }
    if wanted.pad != [0; 3] {
        return Err(Errno::EINVAL);
    }
    let mut fd = wanted.src_fd as Fd;
    if wanted.flags & REGISTERED != 0 {
        fd = ring_fds::resolve(fd)?;
    }
    let source = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let buffers = if core::ptr::eq(source.ring(), core.ring()) {
        core.resources().buffers.all()?
    } else {
        guard.unlocked(|| buffers_of(source.lock()))?
    };
    take_buffers(live(guard, serial).ok_or(Errno::EBADF)?, &wanted, &buffers)
}

/// Returns the buffers that another ring has registered.
fn buffers_of(guard: CoreGuard<'_>) -> Result<Vec<Option<IoVector>>, Errno> {
    let core = guard.as_ref().ok_or(Errno::EBADF)?;
    if core.is_anothers() { Err(Errno::EEXIST) } else { core.resources().buffers.all() }
}

fn take_buffers(
    core: &mut Core,
    wanted: &io_uring_clone_buffers,
    source: &[Option<IoVector>],
) -> Result<usize, Errno> {
    if wanted.nr == 0 && (wanted.dst_off != 0 || wanted.src_off != 0) {
        return Err(Errno::EINVAL);
    }
    if wanted.flags & REPLACE == 0 && !core.resources().buffers.is_empty() {
        return Err(Errno::EBUSY);
    }
    if source.is_empty() {
        return Err(Errno::ENXIO);
    }
    let count = if wanted.nr == 0 { source.len() } else { wanted.nr as usize };
    if count > source.len() {
        return Err(Errno::EINVAL);
    }
    // The kernel adds signed integers.
    let sum = |offset: u32| {
        let sum = (count as u32).checked_add(offset).filter(|&sum| sum <= i32::MAX as u32);
        sum.ok_or(Errno::EOVERFLOW)
    };
    let source = source.get(wanted.src_off as usize..sum(wanted.src_off)? as usize);
    let source = source.ok_or(Errno::EOVERFLOW)?;
    let end = wanted.dst_off.checked_add(count as u32).ok_or(Errno::EOVERFLOW)?;
    if end > MAX_BUFFERS {
        return Err(Errno::EINVAL);
    }
    core.replace_buffers(wanted.dst_off as usize, source).map(|()| 0)
}
