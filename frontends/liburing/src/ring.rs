//! The library's notes about a ring, and reads and writes of the ring's queues.

use crate::types::{Cqe, Ring};
use crate::{call, user};
use core::ffi::{c_int, c_uint};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use linux_raw_sys::io_uring::{
    IORING_ENTER_NO_IOWAIT, IORING_ENTER_REGISTERED_RING, IORING_ENTER_SQ_WAKEUP, IORING_FEAT_EXT_ARG,
    IORING_SETUP_CQE32, IORING_SETUP_SQE128, IORING_SETUP_SQPOLL, IORING_SQ_CQ_OVERFLOW,
    IORING_SQ_NEED_WAKEUP, IORING_SQ_TASKRUN,
};

/// In [`Ring::int_flags`]: `enter_ring_fd` is the index of a registered ring.
pub const REGISTERED: u8 = IORING_ENTER_REGISTERED_RING as u8;
/// In [`Ring::int_flags`]: waits do not count as waits for I/O.
pub const NO_IOWAIT: u8 = IORING_ENTER_NO_IOWAIT as u8;
/// In [`Ring::int_flags`]: registrations name the ring by its registered index, too.
pub const REGISTERS_BY_INDEX: u8 = 1;
/// In [`Ring::int_flags`]: the program has provided the ring's memory.
pub const PROGRAM_MEMORY: u8 = 2;
/// In [`Ring::int_flags`]: completions are found only by entering the ring.
pub const ENTERS_FOR_COMPLETIONS: u8 = 4;

/// In [`Ring::flags`]: each submission begins at the first entry.
pub const SQ_REWIND: c_uint = 1 << 20;

/// The user data of a timeout that the library has submitted itself.
pub const OWN_TIMEOUT: u64 = u64::MAX;

const CQE_F_SKIP: u32 = anyring_engine::abi::IORING_CQE_F_SKIP;
const CQE_F_32: u32 = anyring_engine::abi::IORING_CQE_F_32;

/// Returns the number of places in the completion queue that a CQE takes.
pub fn cqe_places(cqe: &Cqe) -> c_uint {
    if cqe.flags & CQE_F_32 == 0 { 1 } else { 2 }
}

/// Returns 1 if each CQE of a ring with these flags takes two places, else 0.
pub fn cqe_shift(flags: c_uint) -> c_uint {
    c_uint::from(flags & IORING_SETUP_CQE32 != 0)
}

/// Returns 1 if each SQE of a ring with these flags takes two places, else 0.
pub fn sqe_shift(flags: c_uint) -> c_uint {
    c_uint::from(flags & IORING_SETUP_SQE128 != 0)
}

/// Returns a reference to an index or to flags in ring memory.
///
/// # Safety
/// The address must be that of an index or of flags of a ring that is mapped.
#[inline(always)]
unsafe fn word<'a>(address: *mut c_uint) -> &'a AtomicU32 {
    // SAFETY: the caller's promise; the other side accesses it atomically, too.
    unsafe { AtomicU32::from_ptr(address) }
}

/// Methods on rings that were set up; a ring is mapped until the program gives it up.
impl Ring {
    /// Returns the flags of every `enter` on the ring.
    #[inline(always)]
    pub fn enter_flags(&self) -> c_uint {
        c_uint::from(self.int_flags & (REGISTERED | NO_IOWAIT))
    }

    /// Returns the descriptor for mapping the ring's memory. For the user engine this is not the ring's descriptor, which shows readiness.
    pub fn memory_fd(&self) -> c_int {
        if self.pad2 == 0 { self.ring_fd } else { self.pad2 as c_int - 1 }
    }

    /// Lets the program map memory of the ring by the ring's descriptor.
    pub fn let_map(&self) {
        if self.pad2 != 0 {
            call::replace(self.memory_fd(), self.ring_fd);
        }
    }

    /// Notes that the program has looked for completions and found none.
    #[inline(always)]
    pub fn found_nothing(&self) {
        if self.pad2 != 0 {
            user::found_nothing(self.ring_fd);
        }
    }

    /// True if the flag is set in `int_flags`.
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.int_flags & flag != 0
    }

    /// True if the kernel must be entered for `submit` new entries. If the SQ thread must be woken,
    /// adds the flag for that to `flags`.
    #[inline(always)]
    pub fn submits_by_entering(&self, submit: c_uint, flags: &mut c_uint) -> bool {
        if submit == 0 || self.flags & IORING_SETUP_SQPOLL == 0 {
            return submit != 0;
        }
        // The new tail must be visible before the flag is read; otherwise the SQ thread could go to sleep without
        // seeing the new entries.
        fence(Ordering::SeqCst);
        // SAFETY: see above.
        let asleep = unsafe { word(self.sq.kflags) }.load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP != 0;
        if asleep {
            *flags |= IORING_ENTER_SQ_WAKEUP;
        }
        asleep
    }

    /// True if completions wait for an `enter`.
    #[inline(always)]
    pub fn must_flush(&self) -> bool {
        // SAFETY: see above.
        let flags = unsafe { word(self.sq.kflags) }.load(Ordering::Relaxed);
        flags & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN) != 0
    }

    /// True if completions may wait for an `enter`.
    #[inline(always)]
    pub fn completes_by_entering(&self) -> bool {
        self.has(ENTERS_FOR_COMPLETIONS) || self.must_flush()
    }

    /// Returns the number of places in the completion queue that are filled.
    #[inline(always)]
    pub fn ready(&self) -> c_uint {
        // Acquire pairs with the release of the side that posts: the CQEs are written.
        // SAFETY: see above; only the program writes the head.
        unsafe { word(self.cq.ktail).load(Ordering::Acquire).wrapping_sub(*self.cq.khead) }
    }

    /// Returns the CQE at an index of the queue.
    #[inline(always)]
    pub fn cqe(&self, index: c_uint) -> *mut Cqe {
        let place = ((index & self.cq.ring_mask) as usize) << cqe_shift(self.flags);
        // SAFETY: see above.
        unsafe { self.cq.cqes.add(place) }
    }

    /// Gives places of the completion queue back.
    #[inline(always)]
    pub fn advance(&self, places: c_uint) {
        if places > 0 {
            // SAFETY: see above; only the program writes the head.
            unsafe {
                let head = *self.cq.khead;
                // Release pairs with the acquire of the side that posts: the CQEs were read.
                word(self.cq.khead).store(head.wrapping_add(places), Ordering::Release);
            }
        }
    }

    /// Returns the next CQE, or null, and the number of filled places.
    ///
    /// # Errors
    /// The result of a timeout of the library's own, if it failed or expired.
    #[inline(always)]
    pub fn peek(&self) -> (Result<*mut Cqe, i32>, c_uint) {
        loop {
            let ready = self.ready();
            if ready == 0 {
                return (Ok(ptr::null_mut()), 0);
            }
            // SAFETY: see above.
            let cqe = self.cqe(unsafe { *self.cq.khead });
            // SAFETY: the CQE was posted.
            let posted = unsafe { &*cqe };
            let own = self.features & IORING_FEAT_EXT_ARG == 0 && posted.user_data == OWN_TIMEOUT;
            if posted.flags & CQE_F_SKIP == 0 && !own {
                return (Ok(cqe), ready);
            }
            let result = posted.res;
            let failed = posted.flags & CQE_F_SKIP == 0 && result < 0;
            self.advance(cqe_places(posted));
            if failed {
                return (Err(result), ready);
            }
        }
    }

    /// Returns the position up to which entries were taken from the submission queue.
    #[inline(always)]
    pub fn taken(&self) -> c_uint {
        // SAFETY: see above.
        let head = unsafe { word(self.sq.khead) };
        // Acquire pairs with the SQ thread's release after it has read the entries. Without an SQ thread, entries are
        // taken only while the program is inside a call.
        let order = if self.flags & IORING_SETUP_SQPOLL != 0 { Ordering::Acquire } else { Ordering::Relaxed };
        head.load(order)
    }

    /// Publishes the new tail. Returns the number of entries that can be taken.
    #[inline(always)]
    pub fn flush(&mut self) -> c_uint {
        let tail = self.sq.sqe_tail;
        if self.flags & SQ_REWIND != 0 {
            // Such rings use no head and tail: each submission begins at entry 0.
            self.sq.sqe_tail = 0;
            return tail;
        }
        if self.sq.sqe_head != tail {
            self.sq.sqe_head = tail;
            // SAFETY: see above. Release pairs with the acquire of the side that takes the entries.
            unsafe { word(self.sq.ktail) }.store(tail, Ordering::Release);
        }
        // SAFETY: see above.
        tail.wrapping_sub(unsafe { word(self.sq.khead) }.load(Ordering::Relaxed))
    }
}
