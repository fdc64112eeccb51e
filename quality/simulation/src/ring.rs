//! A ring as a program sees it: calls, and memory that it maps.

use anyring_engine::abi::Sqe;
use anyring_engine::{Caller, io_uring_params};
use linux_raw_sys::errno as raw;
use linux_raw_sys::io_uring::{
    IORING_ENTER_EXT_ARG, IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAKEUP, IORING_OFF_SQES,
    IORING_SETUP_CQSIZE, IORING_SETUP_SQPOLL, IORING_SQ_CQ_OVERFLOW, IORING_SQ_NEED_WAKEUP, io_uring_cqe,
    io_uring_getevents_arg,
};

use crate::world::{self, world};

/// The size of a ring's SQ.
const ENTRIES: u32 = 8;

/// A ring.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The ring's descriptor.
    pub fd: i32,
    params: io_uring_params_copy,
    rings: usize,
    sqes: usize,
    lengths: [usize; 2],
    description: usize,
}

/// The needed part of `io_uring_params`.
#[allow(non_camel_case_types, reason = "as the kernel's")]
#[derive(Clone, Copy, Debug)]
struct io_uring_params_copy {
    flags: u32,
    sq: [u32; 5],
    cq: [u32; 4],
}

/// A time, as calls take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Time {
    seconds: i64,
    nanoseconds: i64,
}

impl Time {
    /// Converts nanoseconds.
    pub fn from_ns(ns: u64) -> Time {
        Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }
}

impl Mapped {
    /// Creates a ring.
    pub fn make(flags: u32, completions: u32) -> Result<Mapped, i32> {
        // SAFETY: a structure of integers.
        let mut params: io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = flags | IORING_SETUP_CQSIZE;
        params.cq_entries = completions.max(ENTRIES);
        params.sq_thread_idle = 1;
        // SAFETY: the parameters are ours.
        let fd = unsafe { anyring_engine::setup(ENTRIES, &raw mut params, &Caller::default()) } as i32;
        if fd < 0 {
            return Err(-fd);
        }
        let rings = (params.sq_off.array + ENTRIES * 4).next_multiple_of(4096) as usize;
        let sqes = (ENTRIES as usize * 64).next_multiple_of(4096);
        let (description, at) = world(|world| {
            let description = world.kernel.description(fd).expect("a ring was made");
            let map = |offset: u32, length| (offset, length);
            let both = [map(0, rings), map(IORING_OFF_SQES, sqes)];
            let at = both.map(|(offset, length)| {
                world.kernel.map(Some(description), u64::from(offset), length).expect("a ring can be mapped")
            });
            (description, at)
        });
        let (sq, cq) = (params.sq_off, params.cq_off);
        let params = io_uring_params_copy {
            flags: params.flags,
            sq: [sq.head, sq.tail, sq.ring_mask, sq.flags, sq.array],
            cq: [cq.head, cq.tail, cq.ring_mask, cq.cqes],
        };
        Ok(Mapped { fd, params, rings: at[0], sqes: at[1], lengths: [rings, sqes], description })
    }

    fn word(&self, offset: u32) -> *mut u32 {
        (self.rings + offset as usize) as *mut u32
    }

    fn load(&self, offset: u32) -> u32 {
        // SAFETY: within the mapping. Threads switch only at points, so the load is atomic.
        unsafe { self.word(offset).read_volatile() }
    }

    fn store(&self, offset: u32, value: u32) {
        // SAFETY: as above.
        unsafe { self.word(offset).write_volatile(value) };
    }

    /// True if there is an SQ thread.
    pub fn is_polled(&self) -> bool {
        self.params.flags & IORING_SETUP_SQPOLL != 0
    }

    /// Returns how many SQEs fit into the SQ.
    pub fn room(&self) -> u32 {
        ENTRIES - self.load(self.params.sq[1]).wrapping_sub(self.load(self.params.sq[0]))
    }

    /// Puts an SQE into the SQ, which must have room.
    pub fn push(&self, sqe: &Sqe) {
        let tail = self.load(self.params.sq[1]);
        let index = tail & self.load(self.params.sq[2]);
        // SAFETY: within the mapping.
        unsafe { ((self.sqes + index as usize * 64) as *mut Sqe).write(*sqe) };
        self.store(self.params.sq[4] + 4 * index, index);
        self.store(self.params.sq[1], tail.wrapping_add(1));
    }

    /// Returns the number of SQEs that have not been taken.
    pub fn pending(&self) -> u32 {
        ENTRIES - self.room()
    }

    /// Reaps a completion.
    pub fn take(&self) -> Option<(u64, i32, u32)> {
        let [head, tail, mask, cqes] = self.params.cq;
        let at = self.load(head);
        if at == self.load(tail) {
            return None;
        }
        let place = self.rings + cqes as usize + 16 * (at & self.load(mask)) as usize;
        // SAFETY: within the mapping.
        let cqe = unsafe { &*(place as *const io_uring_cqe) };
        let taken = (cqe.user_data, cqe.res, cqe.flags);
        self.store(head, at.wrapping_add(1));
        Some(taken)
    }

    /// True if there is a completion to reap.
    pub fn has_completion(&self) -> bool {
        let [head, tail, ..] = self.params.cq;
        self.load(head) != self.load(tail)
    }

    /// True if completions are in the overflow list.
    pub fn overflows(&self) -> bool {
        self.load(self.params.sq[3]) & IORING_SQ_CQ_OVERFLOW != 0
    }

    /// True if the SQ thread must be woken.
    pub fn sleeps(&self) -> bool {
        self.load(self.params.sq[3]) & IORING_SQ_NEED_WAKEUP != 0
    }

    /// `io_uring_enter(2)`: returns the count, or a positive errno.
    pub fn enter(&self, submit: u32, wanted: u32, flags: u32, timeout_ns: Option<u64>) -> Result<u32, u32> {
        let time = timeout_ns.map(Time::from_ns);
        // SAFETY: a structure of integers.
        let mut argument: io_uring_getevents_arg = unsafe { std::mem::zeroed() };
        argument.ts = time.as_ref().map_or(0, |time| std::ptr::from_ref(time) as u64);
        let (flags, address, size) = if time.is_some() {
            let address = &raw const argument as usize;
            (flags | IORING_ENTER_EXT_ARG, address, size_of::<io_uring_getevents_arg>())
        } else {
            (flags, 0, 0)
        };
        world::point();
        // SAFETY: the SQEs name memory that the program keeps until its end.
        let result = unsafe {
            anyring_engine::enter(self.fd, submit, wanted, flags, address, size, &Caller::default())
        };
        if result < 0 { Err(-result as u32) } else { Ok(result as u32) }
    }

    /// Submits the SQEs in the SQ.
    pub fn submit(&self, wanted: u32, timeout_ns: Option<u64>) -> Result<u32, u32> {
        let fetches = if wanted > 0 { IORING_ENTER_GETEVENTS } else { 0 };
        if !self.is_polled() {
            return self.enter(self.pending(), wanted, fetches, timeout_ns);
        }
        world::point();
        let wakes = if self.sleeps() { IORING_ENTER_SQ_WAKEUP } else { 0 };
        if wakes | fetches == 0 { Ok(0) } else { self.enter(0, wanted, wakes | fetches, timeout_ns) }
    }

    /// `io_uring_register(2)`.
    pub fn register(&self, opcode: u32, argument: usize, count: u32) -> Result<u32, u32> {
        world::point();
        // SAFETY: the registered memory is the program's, and stays until its end.
        let result = unsafe { anyring_engine::register(self.fd, opcode, argument, count) };
        if result < 0 { Err(-result as u32) } else { Ok(result as u32) }
    }

    /// Unmaps the ring's memory.
    pub fn unmap(&self) {
        world(|world| {
            for (address, length) in [self.rings, self.sqes].into_iter().zip(self.lengths) {
                let _ = world.kernel.unmap(address, length, Some(self.description));
            }
        });
    }
}

/// True if the error only asks to try again.
pub fn is_passing(errno: u32) -> bool {
    matches!(errno, raw::EINTR | raw::EAGAIN | raw::EMFILE | raw::ETIME | raw::EBUSY | raw::EBADFD)
}
