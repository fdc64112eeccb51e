//! A ring that several threads, and processes, use at once, as a program with locks around its queues does.

use std::sync::atomic::{AtomicU32, Ordering::*};

use anyring_engine::abi::{
    IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_OP_NOP128, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED, Sqe,
};
use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::*;

use super::complete::BATON;
use super::memory::{Guarded, RingNote};
use super::plan::RingPlan;
use crate::differential::ring::{self as abi, Cqe, Engine};

/// Bytes that a ring in the program's own pages gets for its queues, and for its SQEs.
const GIVEN: usize = 64 * 1024;

/// CQEs for all that a program can have.
const ROOMY: u32 = 2048;

/// A ring's memory, and where things are in it. It stays mapped until the program is over.
pub struct Map {
    engine: Engine,
    /// Its descriptor.
    pub fd: i32,
    /// What the setup call returned.
    pub params: io_uring_params,
    rings: (*mut u8, usize),
    sqes: (*mut Sqe, usize),
    /// What is known of it.
    pub note: &'static RingNote,
}

// SAFETY: what the pointers lead to is read and written atomically, or under the locks of the note.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Makes a ring.
    ///
    /// # Errors
    /// The negative errno of the setup call.
    pub fn new(engine: Engine, plan: &RingPlan, attach: i32, note: &'static RingNote) -> Result<Map, i32> {
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
        let given = plan.flags & IORING_SETUP_NO_MMAP != 0;
        let own = if given {
            (anonymous(GIVEN), anonymous(GIVEN))
        } else {
            (std::ptr::null_mut(), std::ptr::null_mut())
        };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (own.0 as u64, own.1 as u64);
        let fd = abi::setup(engine, plan.entries, &raw mut params as usize);
        if fd < 0 {
            return Err(fd);
        }
        let big = |flag: u32| usize::from(params.flags & flag != 0);
        let cq_end =
            params.cq_off.cqes as usize + params.cq_entries as usize * (16 << big(IORING_SETUP_CQE32));
        let rings_length = cq_end.max(params.sq_off.array as usize + params.sq_entries as usize * 4);
        let sqes_length = params.sq_entries as usize * (64 << big(IORING_SETUP_SQE128));
        let (rings, sqes) = if given {
            ((own.0, GIVEN), (own.1.cast(), GIVEN))
        } else {
            let sqes = map(fd, sqes_length, i64::from(IORING_OFF_SQES));
            ((map(fd, rings_length, 0), rings_length), (sqes.cast(), sqes_length))
        };
        note.setup_flags.store(params.flags, Relaxed);
        note.base.store(rings.0 as u64, Relaxed);
        let (sq, cq) = (params.sq_off, params.cq_off);
        for (word, offset) in
            note.words.iter().zip([sq.head, sq.tail, sq.flags, cq.head, cq.tail, cq.overflow])
        {
            word.store(offset, Relaxed);
        }
        // Release pairs with the acquire of who attaches to it.
        note.fd.store(fd + 1, Release);
        Ok(Map { engine, fd, params, rings, sqes, note })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets come from the engine and lie in the mapping.
        unsafe { AtomicU32::from_ptr(self.rings.0.add(offset as usize).cast()) }
    }

    /// SQEs that the engine has not taken.
    pub fn pending(&self) -> u32 {
        // Acquire pairs with the engine's release store of the head.
        let head = self.word(self.params.sq_off.head).load(Acquire);
        self.word(self.params.sq_off.tail).load(Relaxed).wrapping_sub(head)
    }

    /// At which positions SQEs would be pushed, and where the queue would end. One of two places does not go around the
    /// end of the queue: one place is left out before it. The caller holds the queue's lock.
    pub fn positions(&self, sqes: &[Sqe]) -> (Vec<u32>, u32) {
        let mut at = self.pushed();
        let positions = sqes.iter().map(|sqe| {
            let wide = sqe.opcode == IORING_OP_NOP128;
            let last = self.params.sq_entries - 1;
            at = at.wrapping_add(u32::from(wide && at & last == last));
            let position = at;
            at = at.wrapping_add(1 + u32::from(wide));
            position
        });
        (positions.collect(), at)
    }

    /// Have these SQEs room? The caller holds the queue's lock.
    pub fn has_room(&self, sqes: &[Sqe]) -> bool {
        let count = self.positions(sqes).1.wrapping_sub(self.pushed());
        self.pending() + count <= self.params.sq_entries
    }

    /// How many SQEs were pushed so far.
    pub fn pushed(&self) -> u32 {
        self.word(self.params.sq_off.tail).load(Relaxed)
    }

    /// Pushes SQEs for which there is room. A place that is left out gets a NOP, counted as a baton. The caller holds the
    /// queue's lock.
    pub fn push(&self, sqes: &[Sqe]) {
        let tail = self.word(self.params.sq_off.tail);
        let (positions, end) = self.positions(sqes);
        let mut next = tail.load(Relaxed);
        for (position, sqe) in positions.into_iter().zip(sqes) {
            if position != next {
                self.note.batons.fetch_add(1, Relaxed);
                self.write(next, &Sqe { user_data: BATON, fd: -1, ..Sqe::default() });
            }
            self.write(position, sqe);
            next = position.wrapping_add(1);
            if sqe.opcode == IORING_OP_NOP128 {
                // Nothing of the second half is looked at.
                self.write(next, &Sqe { opcode: u8::MAX, ..Sqe::default() });
                next = next.wrapping_add(1);
            }
        }
        // Release pairs with the engine's acquire load of the tail.
        tail.store(end, Release);
    }

    fn write(&self, position: u32, sqe: &Sqe) {
        let stride = 1 + usize::from(self.params.flags & IORING_SETUP_SQE128 != 0);
        let index = position & (self.params.sq_entries - 1);
        // SAFETY: a slot of the ring, which the engine does not read before the tail says so.
        unsafe { self.sqes.0.add(index as usize * stride).write(*sqe) };
        if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            self.word(self.params.sq_off.array + 4 * index).store(index, Relaxed);
        }
    }

    /// `IORING_SQ_*`.
    pub fn flags(&self) -> u32 {
        std::sync::atomic::fence(SeqCst);
        self.word(self.params.sq_off.flags).load(Relaxed)
    }

    /// CQEs that are there.
    pub fn ready(&self) -> u32 {
        // Acquire pairs with the engine's release store of the tail.
        let tail = self.word(self.params.cq_off.tail).load(Acquire);
        tail.wrapping_sub(self.word(self.params.cq_off.head).load(Relaxed))
    }

    /// So many CQEs have room at once, whatever they are: a large one among small ones takes two places, and none at the
    /// end of the queue.
    pub fn sure_to_fit(&self) -> u32 {
        let mixed = self.params.flags & IORING_SETUP_CQE_MIXED != 0;
        self.params.cq_entries - if mixed { 2.min(self.params.cq_entries - 1) } else { 0 }
    }

    /// Takes a CQE. The caller holds the queue's lock.
    pub fn reap(&self) -> Option<Cqe> {
        loop {
            if self.ready() == 0 {
                return None;
            }
            let head = self.word(self.params.cq_off.head);
            let at = head.load(Relaxed);
            let cqe = self.cqe(at);
            let wide = cqe.flags & IORING_CQE_F_32 != 0 && self.params.flags & IORING_SETUP_CQE32 == 0;
            // Release: the CQE was read before the engine may write it again.
            head.store(at.wrapping_add(1 + u32::from(wide)), Release);
            if cqe.flags & IORING_CQE_F_SKIP == 0 {
                return Some(cqe);
            }
        }
    }

    fn cqe(&self, at: u32) -> Cqe {
        let big = self.params.flags & IORING_SETUP_CQE32 != 0;
        let index = (at & (self.params.cq_entries - 1)) as usize;
        // SAFETY: a published CQE of the mapping; one of 32 bytes does not go around the end.
        unsafe {
            let offset = self.params.cq_off.cqes as usize + (index << (4 + usize::from(big)));
            let slot = self.rings.0.add(offset).cast::<u64>();
            let result = slot.add(1).read();
            let flags = (result >> 32) as u32;
            let wide = big || flags & IORING_CQE_F_32 != 0;
            let rest = if wide { [slot.add(2).read(), slot.add(3).read()] } else { [0; 2] };
            Cqe { user_data: slot.read(), res: result as i32, flags, big: rest }
        }
    }

    /// `io_uring_enter`; with a limit in microseconds, its wait has one.
    pub fn enter(&self, submit: u32, wait: u32, flags: u32, limit_us: Option<u32>) -> i32 {
        let Some(us) = limit_us else {
            return abi::enter(self.engine, self.fd, submit, wait, flags, 0, 0);
        };
        let time = [0u64, u64::from(us) * 1000];
        let argument = [0u64, 0, time.as_ptr() as u64];
        let flags = flags | IORING_ENTER_EXT_ARG | IORING_ENTER_GETEVENTS;
        abi::enter(self.engine, self.fd, submit, wait, flags, argument.as_ptr() as usize, 24)
    }

    /// Whose it is.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// `io_uring_register`.
    pub fn register(&self, opcode: u32, argument: usize, count: u32) -> i32 {
        abi::register(self.engine, self.fd, opcode, argument, count)
    }

    /// Was its descriptor closed?
    pub fn is_closed(&self) -> bool {
        self.note.closed.load(Acquire) != 0
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let parts = [(self.rings.0 as usize, self.rings.1), (self.sqes.0 as usize, self.sqes.1)];
        if self.params.flags & IORING_SETUP_NO_MMAP != 0 {
            GIVEN_TO_RINGS.with(|given| given.extend(parts));
        } else {
            parts.into_iter().for_each(unmap);
        }
    }
}

/// Memory of the program's own that rings were given: a ring's threads may look at it until they have ended.
static GIVEN_TO_RINGS: Guarded<Vec<(usize, usize)>> = Guarded::new(Vec::new());

/// Unmaps what rings were given that are gone now.
pub fn unmap_given() {
    GIVEN_TO_RINGS.with(std::mem::take).into_iter().for_each(unmap);
}

fn unmap((address, length): (usize, usize)) {
    // SAFETY: a ring's mapping, used by nobody any more.
    unsafe { libc::munmap(address as *mut libc::c_void, length) };
}

/// New memory that children share.
pub fn anonymous(length: usize) -> *mut u8 {
    map_with(-1, length, 0, libc::MAP_ANONYMOUS)
}

fn map(fd: i32, length: usize, offset: i64) -> *mut u8 {
    map_with(fd, length, offset, libc::MAP_POPULATE)
}

fn map_with(fd: i32, length: usize, offset: i64, flags: i32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED | flags, fd, offset) };
    assert_ne!(address, libc::MAP_FAILED, "memory can be mapped");
    address.cast()
}
