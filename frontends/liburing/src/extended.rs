//! Operations that the kernel lacks, on its rings.

use crate::ring::SQ_REWIND;
use crate::types::Ring;
use crate::{call, queue};
use anyring_kernel_ring::{Queue, Taken};
use core::ffi::{c_int, c_uint, c_void};
use linux_raw_sys::io_uring::io_uring_register_op as Code;
use linux_raw_sys::io_uring::{IORING_REGISTER_FILES_SKIP, io_uring_rsrc_update, io_uring_rsrc_update2};

/// What `anyring.h` has every preparation of such an operation call: from then on they are looked for, and what newer kernels
/// have.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_private_operations() {
    if !call::is_user() && !call::is_extended() {
        call::extend();
    }
}

/// Submits by `submit` what the kernel is to do, after what it cannot do was taken out; the result counts both.
///
/// # Safety
/// The ring must be set up.
pub unsafe fn with(ring: &mut Ring, submit: impl FnOnce(&mut Ring) -> c_int) -> c_int {
    // A ring of our engine has them anyway.
    if !call::is_extended() || call::serves(ring.ring_fd) {
        return submit(ring);
    }
    // SAFETY: the caller's promise.
    let taken = unsafe { take(ring) };
    let mut before = taken.count as c_int;
    if taken.brings_files {
        // Nobody may wait before what they are for has begun. A bad entry ends a submission.
        // What an error leaves in the queue goes the same way when it is next submitted.
        while ring.sq.sqe_tail != ring.taken() {
            let submitted = queue::submit_only(ring);
            if submitted <= 0 {
                break;
            }
            before += submitted;
        }
        anyring_kernel_ring::deliver(ring.ring_fd);
    }
    let result = submit(ring);
    // As the kernel does, which tells of an error only where nothing was submitted.
    if before == 0 { result } else { before + result.max(0) }
}

/// A registration on the ring `fd` is about to be made: where it changes slots of the table of files, what chains have left
/// open for them does not come there any more.
///
/// # Safety
/// As for the call.
pub unsafe fn minds_registration(fd: c_int, opcode: c_uint, argument: *const c_void, count: c_uint) {
    if !call::is_extended() {
        return;
    }
    // Memory is read only where a slot is in question.
    let changed: &dyn Fn(u32) -> bool = match opcode & !(Code::IORING_REGISTER_USE_REGISTERED_RING as c_uint)
    {
        code if code == Code::IORING_UNREGISTER_FILES as c_uint => &|_| true,
        code if code == Code::IORING_REGISTER_FILES_UPDATE as c_uint => &|slot| {
            // SAFETY: the caller's promise.
            let update = unsafe { argument.cast::<io_uring_rsrc_update>().read_unaligned() };
            // SAFETY: as above.
            unsafe { changes(slot, update.offset, update.data, count) }
        },
        code if code == Code::IORING_REGISTER_FILES_UPDATE2 as c_uint => &|slot| {
            // SAFETY: the caller's promise.
            let update = unsafe { argument.cast::<io_uring_rsrc_update2>().read_unaligned() };
            // SAFETY: as above.
            unsafe { changes(slot, update.offset, update.data, update.nr) }
        },
        _ => return,
    };
    anyring_kernel_ring::abandon_slots(fd, changed);
}

/// Does a slot change, if those from `first` on become what the list at `list` says?
///
/// # Safety
/// The list must have so many entries.
unsafe fn changes(slot: u32, first: u32, list: u64, count: u32) -> bool {
    let index = slot.wrapping_sub(first);
    // SAFETY: the caller's promise.
    index < count
        && unsafe { (list as *const c_int).add(index as usize).read_unaligned() }
            != IORING_REGISTER_FILES_SKIP
}

/// # Safety
/// As for [`with`].
unsafe fn take(ring: &mut Ring) -> Taken {
    let rewinds = ring.flags & SQ_REWIND != 0;
    let head_taken = if rewinds { 0 } else { ring.taken() };
    let sq = &mut ring.sq;
    let queue = Queue {
        fd: ring.ring_fd,
        flags: ring.flags,
        features: ring.features,
        sqes: sq.sqes,
        mask: sq.ring_mask,
        taken: head_taken,
        head: if rewinds { 0 } else { sq.sqe_head },
        tail: sq.sqe_tail,
    };
    // SAFETY: the caller's promise.
    let taken = unsafe { anyring_kernel_ring::take(&queue) };
    sq.sqe_tail = taken.tail;
    taken
}
