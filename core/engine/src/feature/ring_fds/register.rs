//! Registration of ring descriptors (`IORING_REGISTER_RING_FDS`). Locks of other rings are taken here.

use linux_raw_sys::io_uring::io_uring_rsrc_update;

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::ring_fds::{self, PLACES};
use crate::os::{self, Fd, user};
use crate::ring::{descriptors, registry};

/// Closes descriptors. No lock may be held.
fn release(fds: impl IntoIterator<Item = Fd>) {
    for fd in fds {
        descriptors::closed(fd);
        os::close(fd);
    }
}

/// Clears the places of threads that have ended.
pub fn sweep() {
    release(ring_fds::clear_ended());
}

/// Clears the places of the calling thread, which ends.
pub fn thread_ends() {
    release(ring_fds::clear_own());
}

/// Clears the parent's places in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the list, and the rings must have been reset.
#[inline]
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    release(unsafe { ring_fds::forked() });
}

/// `IORING_REGISTER_RING_FDS`: returns the number of registered descriptors.
///
/// # Errors
/// The error of the first descriptor, if it failed.
pub fn register(call: &Register) -> Result<usize, Errno> {
    sweep();
    for_each_update(call, |place, update| {
        let offset = register_one(update)?;
        let done = io_uring_rsrc_update { offset, resv: 0, data: update.data };
        user::write(place, &done).inspect_err(|_| release(ring_fds::take(offset as usize)))
    })
}

/// Registers a ring that has no descriptor of the program (`IORING_SETUP_REGISTERED_FD_ONLY`) in the first
/// empty place, and closes `fd`.
///
/// # Errors
/// `EBUSY` if no place is empty.
pub fn register_own(fd: Fd) -> Result<Fd, Errno> {
    let own = os::duplicate(fd).inspect_err(|_| release([fd]))?;
    descriptors::duplicated(fd, own);
    release([fd]);
    ring_fds::put(own, 0..PLACES).map(|place| place as Fd).inspect_err(|_| release([own]))
}

/// `IORING_UNREGISTER_RING_FDS`: returns the number of cleared places.
///
/// # Errors
/// The error of the first place, if it failed.
pub fn unregister(call: &Register) -> Result<usize, Errno> {
    for_each_update(call, |_, update| {
        if update.resv != 0 || update.data != 0 || update.offset as usize >= PLACES {
            return Err(Errno::EINVAL);
        }
        release(ring_fds::take(update.offset as usize));
        Ok(())
    })
}

fn for_each_update(
    call: &Register,
    mut body: impl FnMut(u64, &io_uring_rsrc_update) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let Register { argument: address, count, .. } = *call;
    if count == 0 || count as usize > PLACES {
        return Err(Errno::EINVAL);
    }
    for done in 0..count as usize {
        let place = address.wrapping_add((done * size_of::<io_uring_rsrc_update>()) as u64);
        let result = user::read(place).and_then(|update| body(place, &update));
        if let Err(errno) = result {
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
    }
    Ok(count as usize)
}

fn register_one(update: &io_uring_rsrc_update) -> Result<u32, Errno> {
    if update.resv != 0 {
        return Err(Errno::EINVAL);
    }
    let places = match update.offset {
        u32::MAX => 0..PLACES,
        offset if (offset as usize) < PLACES => offset as usize..offset as usize + 1,
        _ => return Err(Errno::EINVAL),
    };
    let fd = update.data as Fd;
    if registry::get(fd).is_none() {
        return Err(registry::no_ring(fd));
    }
    let own = os::duplicate(fd)?;
    descriptors::duplicated(fd, own);
    let placed = ring_fds::put(own, places);
    if placed.is_err() {
        release([own]);
    }
    placed
}
