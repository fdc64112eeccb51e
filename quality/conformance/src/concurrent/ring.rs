//! A ring that several threads, and processes, use at once, as a program with locks around its queues does.

use std::ops::Deref;
use std::sync::atomic::Ordering::*;

use anyring_engine::abi::{IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED, Sqe};
use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::*;

use super::complete::BATON;
use super::memory::{Guarded, RingNote};
use super::plan::RingPlan;
use crate::ring::{Engine, Ring, map};

/// Bytes that a ring in the program's own pages gets for its queues, and for its SQEs.
const GIVEN: usize = 64 * 1024;

/// CQEs for all that a program can have.
const ROOMY: u32 = 2048;

/// A ring, and what is known of it. It stays mapped until the program is over.
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
    /// Makes a ring.
    ///
    /// # Errors
    /// The negative errno of the setup call.
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
            // Only newer ones have it.
            params.flags &= !IORING_SETUP_SQE_MIXED;
        }
        if engine == Engine::Kernel && plan.flags & IORING_SETUP_CQE_MIXED != 0 {
            // Linux 6.18 loses its place where a large completion finds the end of a full queue.
            params.cq_entries = ROOMY;
        }
        params.sq_thread_idle = 1;
        params.wq_fd = attach as u32;
        if plan.flags & IORING_SETUP_NO_MMAP != 0 {
            params.cq_off.user_addr = map(GIVEN, -1, 0) as u64;
            params.sq_off.user_addr = map(GIVEN, -1, 0) as u64;
        }
        let mut ring = Ring::new(engine, plan.entries, params)?;
        // The program closes it, or its end does.
        ring.closes = false;
        note.setup_flags.store(ring.params.flags, Relaxed);
        note.base.store(ring.memory()[0].0 as u64, Relaxed);
        let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
        for (word, offset) in
            note.words.iter().zip([sq.head, sq.tail, sq.flags, cq.head, cq.tail, cq.overflow])
        {
            word.store(offset, Relaxed);
        }
        // Release pairs with the acquire of who attaches to it.
        note.fd.store(ring.fd + 1, Release);
        Ok(SharedRing { ring, note })
    }

    /// Pushes SQEs for which there is room. A place that is left out gets a NOP, counted as a baton. The caller holds the
    /// queue's lock.
    pub fn push(&self, sqes: &[Sqe]) {
        let filled = self.push_together(sqes, &Sqe { user_data: BATON, fd: -1, ..Sqe::default() });
        self.note.batons.fetch_add(filled, Relaxed);
    }

    /// So many CQEs have room at once, whatever they are: a large one among small ones takes two places, and none at the
    /// end of the queue.
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

/// Memory of the program's own that rings were given: a ring's threads may look at it until they have ended.
static GIVEN_TO_RINGS: Guarded<Vec<usize>> = Guarded::new(Vec::new());

/// Unmaps what rings were given that are gone now.
pub fn unmap_given() {
    for start in GIVEN_TO_RINGS.with(std::mem::take) {
        // SAFETY: a ring's memory, used by nobody any more.
        unsafe { libc::munmap(start as *mut libc::c_void, GIVEN) };
    }
}
