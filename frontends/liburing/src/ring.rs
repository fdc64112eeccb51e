//! Facts that the library remembers of a ring, and its ways to look at the queues.

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
/// Waits do not count as waits for I/O.
pub const NO_IOWAIT: u8 = IORING_ENTER_NO_IOWAIT as u8;
/// Registrations go by the registered index, too.
pub const REGISTERS_BY_INDEX: u8 = 1;
/// The program gave the memory.
pub const PROGRAM_MEMORY: u8 = 2;
/// Completions are found by entering only.
pub const ENTERS_FOR_COMPLETIONS: u8 = 4;

/// Submissions begin at the first entry each time: in [`Ring::flags`].
pub const SQ_REWIND: c_uint = 1 << 20;

/// The user data of a timeout that the library itself has submitted.
pub const OWN_TIMEOUT: u64 = u64::MAX;

const CQE_F_SKIP: u32 = anyring_engine::abi::IORING_CQE_F_SKIP;
const CQE_F_32: u32 = anyring_engine::abi::IORING_CQE_F_32;

/// How many places of the completion queue a CQE has.
pub fn cqe_places(cqe: &Cqe) -> c_uint {
    if cqe.flags & CQE_F_32 == 0 { 1 } else { 2 }
}

/// 1 where each CQE of such a ring has two places.
pub fn cqe_shift(flags: c_uint) -> c_uint {
    c_uint::from(flags & IORING_SETUP_CQE32 != 0)
}

/// 1 where each SQE of such a ring has two places.
pub fn sqe_shift(flags: c_uint) -> c_uint {
    c_uint::from(flags & IORING_SETUP_SQE128 != 0)
}

/// An index or flags in ring memory.
///
/// # Safety
/// It must be one, of a ring that is mapped.
#[inline(always)]
unsafe fn word<'a>(address: *mut c_uint) -> &'a AtomicU32 {
    // SAFETY: the caller's promise; the other side accesses it atomically, too.
    unsafe { AtomicU32::from_ptr(address) }
}

/// All of these are called on rings that the program had set up, which are mapped until it gives them up.
impl Ring {
    /// Flags that each `enter` has.
    #[inline(always)]
    pub fn enter_flags(&self) -> c_uint {
        c_uint::from(self.int_flags & (REGISTERED | NO_IOWAIT))
    }

    /// The descriptor by which the ring's memory can be mapped: over anyring's engine not the ring's, which shows readiness.
    pub fn memory_fd(&self) -> c_int {
        if self.pad2 == 0 { self.ring_fd } else { self.pad2 as c_int - 1 }
    }

    /// The program is going to map something of the ring itself, by its descriptor.
    pub fn let_map(&self) {
        if self.pad2 != 0 {
            call::replace(self.memory_fd(), self.ring_fd);
        }
    }

    /// The program has looked for completions, and found none.
    #[inline(always)]
    pub fn found_nothing(&self) {
        if self.pad2 != 0 {
            user::found_nothing(self.ring_fd);
        }
    }

    /// True if the library remembers this of the ring.
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.int_flags & flag != 0
    }

    /// Whether the kernel must be entered for `submit` new entries; if it takes a wake-up of the SQ thread,
    /// `flags` say so.
    #[inline(always)]
    pub fn submits_by_entering(&self, submit: c_uint, flags: &mut c_uint) -> bool {
        if submit == 0 || self.flags & IORING_SETUP_SQPOLL == 0 {
            return submit != 0;
        }
        // The new tail first, or thread and program could miss each other.
        fence(Ordering::SeqCst);
        // SAFETY: see above.
        let asleep = unsafe { word(self.sq.kflags) }.load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP != 0;
        if asleep {
            *flags |= IORING_ENTER_SQ_WAKEUP;
        }
        asleep
    }

    /// Completions wait for somebody to come in.
    #[inline(always)]
    pub fn must_flush(&self) -> bool {
        // SAFETY: see above.
        let flags = unsafe { word(self.sq.kflags) }.load(Ordering::Relaxed);
        flags & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN) != 0
    }

    /// True if completions may wait for somebody to come in.
    #[inline(always)]
    pub fn completes_by_entering(&self) -> bool {
        self.has(ENTERS_FOR_COMPLETIONS) || self.must_flush()
    }

    /// Completions in the queue.
    #[inline(always)]
    pub fn ready(&self) -> c_uint {
        // Acquire pairs with the release of whoever posts: the CQEs are there.
        // SAFETY: see above; only the program writes the head.
        unsafe { word(self.cq.ktail).load(Ordering::Acquire).wrapping_sub(*self.cq.khead) }
    }

    /// The CQE at a place of the queue.
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
                // Release pairs with the acquire of whoever posts: the CQEs were read.
                word(self.cq.khead).store(head.wrapping_add(places), Ordering::Release);
            }
        }
    }

    /// The next CQE, or null, and how many places are filled.
    ///
    /// # Errors
    /// With what a timeout of the library's own ended.
    #[inline(always)]
    pub fn peek(&self) -> (Result<*mut Cqe, i32>, c_uint) {
        loop {
            let ready = self.ready();
            if ready == 0 {
                return (Ok(ptr::null_mut()), 0);
            }
            // SAFETY: see above.
            let cqe = self.cqe(unsafe { *self.cq.khead });
            // SAFETY: it was posted.
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

    /// Up to where entries were taken from the submission queue.
    #[inline(always)]
    pub fn taken(&self) -> c_uint {
        // SAFETY: see above.
        let head = unsafe { word(self.sq.khead) };
        // Acquire pairs with the SQ thread's release: it has read the entries. Nobody else takes them
        // while the program is not inside.
        let order = if self.flags & IORING_SETUP_SQPOLL != 0 { Ordering::Acquire } else { Ordering::Relaxed };
        head.load(order)
    }

    /// Tells of the new tail; how many entries are to be taken.
    #[inline(always)]
    pub fn flush(&mut self) -> c_uint {
        let tail = self.sq.sqe_tail;
        if self.flags & SQ_REWIND != 0 {
            // Such rings have no indices: what was filled begins at 0 each time.
            self.sq.sqe_tail = 0;
            return tail;
        }
        if self.sq.sqe_head != tail {
            self.sq.sqe_head = tail;
            // SAFETY: see above. Release pairs with the acquire of whoever takes the entries.
            unsafe { word(self.sq.ktail) }.store(tail, Ordering::Release);
        }
        // SAFETY: see above.
        tail.wrapping_sub(unsafe { word(self.sq.khead) }.load(Ordering::Relaxed))
    }
}
