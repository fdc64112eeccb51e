//! Registration of buffers, and what a ring does with its buffer table.

use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_REGISTER_DST_REPLACE, IORING_REGISTER_SRC_REGISTERED, io_uring_clone_buffers,
    io_uring_rsrc_update2,
};

use crate::abi::Errno;
use crate::assets::table::NodeIndex;
use crate::calls::register::call::{Register, given, tagged, update};
use crate::feature::buffers::{Limit, MAX_BUFFERS, validate};
use crate::feature::ring_fds;
use crate::os::Fd;
use crate::os::user::{self, IoVector};
use crate::queue::Cqe;
use crate::request::{RequestId, version};
use crate::ring::{Core, CoreGuard, Lent, live, registry};

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

/// `IORING_UNREGISTER_BUFFERS`.
///
/// # Errors
/// `ENXIO` without a table.
pub fn unregister_buffers(core: &mut Core, _: &Register) -> Result<usize, Errno> {
    if core.resources().buffers.is_empty() {
        return Err(Errno::ENXIO);
    }
    core.dissolve_buffers();
    Ok(0)
}

/// `IORING_REGISTER_BUFFERS_UPDATE`.
pub fn update_buffers(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    let update = update(call)?;
    core.update_buffers(&update, update.nr)
}

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

impl Core {
    /// `IORING_REGISTER_BUFFERS(2)`: `vectors` and `tags` are addresses of the program, or 0.
    pub(in crate::feature::buffers) fn register_buffers(
        &mut self,
        vectors: u64,
        count: u32,
        tags: u64,
    ) -> Result<usize, Errno> {
        if !self.resources().buffers.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 || count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        self.resources_mut().buffers.create(count as usize)?;
        for slot in 0..count as usize {
            if let Err(errno) = self.register_buffer(slot, slot, vectors, tags) {
                self.resources_mut().buffers.clear_tags();
                self.dissolve_buffers();
                return Err(errno);
            }
        }
        Ok(0)
    }

    /// Registers the element `index` of the array at `vectors` in a slot.
    fn register_buffer(&mut self, slot: usize, index: usize, vectors: u64, tags: u64) -> Result<(), Errno> {
        let vector: IoVector = user::element(vectors, index)?.unwrap_or_default();
        let tag: u64 = user::element(tags, index)?.unwrap_or(0);
        let buffer = validate(vector, limit())?;
        if buffer.is_none() && tag != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(node) = self.resources_mut().buffers.empty(slot) {
            self.release_buffer(node);
        }
        buffer.map_or(Ok(()), |buffer| self.resources_mut().buffers.fill(slot, buffer, tag))
    }

    fn dissolve_buffers(&mut self) {
        for node in self.resources_mut().buffers.dissolve().into_iter().rev() {
            self.release_buffer(node);
        }
    }

    /// `IORING_REGISTER_BUFFERS_UPDATE`; returns how many slots were updated.
    pub(in crate::feature::buffers) fn update_buffers(
        &mut self,
        update: &io_uring_rsrc_update2,
        count: u32,
    ) -> Result<usize, Errno> {
        self.resources().buffers.expect_slots(update.offset, count)?;
        if update.data == 0 {
            return Err(Errno::EFAULT);
        }
        for done in 0..count as usize {
            let slot = update.offset as usize + done;
            if let Err(errno) = self.register_buffer(slot, done, update.data, update.tags) {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        Ok(count as usize)
    }

    /// Replaces the buffers in the slots from `first` on by these validated buffers, and extends the table if
    /// necessary. Other slots keep their buffers.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub(in crate::feature::buffers) fn replace_buffers(
        &mut self,
        first: usize,
        buffers: &[Option<IoVector>],
    ) -> Result<(), Errno> {
        let slots = first..first + buffers.len();
        self.resources_mut().buffers.grow(slots.end, buffers.len())?;
        for slot in slots.clone().rev() {
            if let Some(node) = self.resources_mut().buffers.empty(slot) {
                self.release_buffer(node);
            }
        }
        for (slot, buffer) in slots.zip(buffers) {
            if let Some(buffer) = *buffer {
                self.resources_mut().buffers.fill(slot, buffer, 0)?;
            }
        }
        Ok(())
    }
}

impl Lent {
    /// Holds a registered buffer for a request: the buffer lives until the request releases it, even if its slot is emptied.
    pub fn hold_buffer(&mut self, id: RequestId, node: NodeIndex) {
        let core = self.core_mut();
        debug_assert!(core[id].registered_buffer.is_none(), "one buffer for a request");
        core.resources_mut().buffers.hold(node);
        core[id].registered_buffer = Some(node);
    }

    /// Releases a hold of a registered buffer.
    pub fn release_buffer(&mut self, node: NodeIndex) {
        let core = self.core_mut();
        if let Some(gone) = core.resources_mut().buffers.release(node)
            && gone.tag != 0
        {
            core.post_unrequested(Cqe { user_data: gone.tag, ..Cqe::default() });
        }
    }
}

/// Returns the maximal length of a buffer in the kernel version that this process emulates.
fn limit() -> Limit {
    let is_short = version::current() < version::LONG_BUFFERS;
    if is_short { Limit(1 << 30, Errno::EFAULT) } else { Limit(1 << 40, Errno::EINVAL) }
}
