//! A ring that several threads, and processes, use concurrently, like a program with locks around its queues.

use std::ops::Deref;
use std::sync::atomic::Ordering::*;

use anyring_engine::abi::{IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED, Sqe};
use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::*;

use super::complete::BATON;
use super::memory::{Guarded, RingNote};
use super::plan::RingPlan;
use crate::ring::{Engine, Ring, map};

/// The size of program memory for a ring's queues, and for its SQEs.
const GIVEN: usize = 64 * 1024;

/// A number of CQEs that suffices for all requests of a program.
const ROOMY: u32 = 2048;

/// A ring, and its notes. The ring stays mapped until the program is over.
pub struct SharedRing {
    ring: Ring,
    /// The notes on the ring.
    pub note: &'static RingNote,
}

impl Deref for SharedRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

impl SharedRing {
    /// Creates a ring.
    ///
    /// # Errors
    /// Returns the negative errno of the setup call.
    pub fn new(
        engine: Engine,
        plan: &RingPlan,
        attach: i32,
        note: &'static RingNote,
    ) -> Result<SharedRing, i32> {
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = plan.flags | IORING_SETUP_CQSIZE;
        params.cq_entries = plan.cq_entries.max(plan.entries);
        if engine == Engine::Kernel {
            // Only newer kernels have the flag.
            params.flags &= !IORING_SETUP_SQE_MIXED;
        }
        if engine == Engine::Kernel && plan.flags & IORING_SETUP_CQE_MIXED != 0 {
            // Linux 6.18 loses its position if a large completion comes at the end of a full queue.
            params.cq_entries = ROOMY;
        }
        params.sq_thread_idle = 1;
        params.wq_fd = attach as u32;
        if plan.flags & IORING_SETUP_NO_MMAP != 0 {
            params.cq_off.user_addr = map(GIVEN, -1, 0) as u64;
            params.sq_off.user_addr = map(GIVEN, -1, 0) as u64;
        }
        let mut ring = Ring::new(engine, plan.entries, params)?;
        // The program, or its end, closes the ring.
        ring.closes = false;
        note.setup_flags.store(ring.params.flags, Relaxed);
        note.base.store(ring.memory()[0].0 as u64, Relaxed);
        let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
        for (word, offset) in
            note.words.iter().zip([sq.head, sq.tail, sq.flags, cq.head, cq.tail, cq.overflow])
        {
            word.store(offset, Relaxed);
        }
        // Release pairs with the acquire of a thread that attaches to the ring.
        note.fd.store(ring.fd + 1, Release);
        Ok(SharedRing { ring, note })
    }

    /// Pushes SQEs for which there is room. A place that is left out gets a NOP, counted as a baton. The caller holds the
    /// queue's lock.
    pub fn push(&self, sqes: &[Sqe]) {
        let filled = self.push_together(sqes, &Sqe { user_data: BATON, fd: -1, ..Sqe::default() });
        self.note.batons.fetch_add(filled, Relaxed);
    }

    /// Returns how many CQEs of any size fit at the same time: a large one among small ones takes two places, and leaves
    /// a place at the end of the queue unused.
    pub fn sure_to_fit(&self) -> u32 {
        let mixed = self.params.flags & IORING_SETUP_CQE_MIXED != 0;
        self.params.cq_entries - if mixed { 2.min(self.params.cq_entries - 1) } else { 0 }
    }

    /// True if the ring's descriptor was closed.
    pub fn is_closed(&self) -> bool {
        self.note.closed.load(Acquire) != 0
    }
}

impl Drop for SharedRing {
    fn drop(&mut self) {
        if self.params.flags & IORING_SETUP_NO_MMAP != 0 {
            GIVEN_TO_RINGS.with(|given| given.extend(self.memory().map(|(start, _)| start as usize)));
        }
    }
}

/// Program memory that was given to rings: a ring's threads may access it until they have ended.
static GIVEN_TO_RINGS: Guarded<Vec<usize>> = Guarded::new(Vec::new());

/// Unmaps memory that was given to rings that are gone now.
pub fn unmap_given() {
    for start in GIVEN_TO_RINGS.with(std::mem::take) {
        // SAFETY: a ring's memory, which is not used any more.
        unsafe { libc::munmap(start as *mut libc::c_void, GIVEN) };
    }
}
