//! Operations that the kernel lacks, on rings of the kernel.

use crate::ring::SQ_REWIND;
use crate::types::Ring;
use crate::{call, queue};
use anyring_kernel_ring::{Queue, Taken};
use core::ffi::c_int;

/// Enables operations of newer kernels and private ones. In `anyring.h`, every preparation of a private operation calls this
/// function: from then on, submissions are searched for such operations.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_private_operations() {
    if !call::is_user() && !call::is_extended() {
        call::extend();
    }
}

/// Starts the queued operations that the kernel lacks, then submits the others by `submit`. The result counts both.
///
/// # Safety
/// The ring must be set up.
pub unsafe fn with(ring: &mut Ring, submit: impl FnOnce(&mut Ring) -> c_int) -> c_int {
    // A ring of the user engine has these operations anyway.
    if !call::is_extended() || call::serves(ring.ring_fd) {
        return submit(ring);
    }
    // SAFETY: the caller's promise.
    let taken = unsafe { take(ring) };
    let mut before = taken.count as c_int;
    if taken.brings_files {
        // These entries bring files for the operations that were taken, which must begin before a thread waits. A bad entry ends a submission,
        // and the rest follows.
        let mut submitted = 1;
        while submitted > 0 && ring.sq.sqe_tail != ring.taken() {
            submitted = queue::submit_only(ring);
            before += submitted.max(0);
        }
        anyring_kernel_ring::deliver(ring.ring_fd);
        if submitted < 0 {
            // The files of the remaining entries come with the next submission.
            return if before == 0 { submitted } else { before };
        }
    }
    let result = submit(ring);
    // The kernel, too, reports an error only if nothing was submitted.
    if before == 0 { result } else { before + result.max(0) }
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
