//! Multishot polls of the kernel's `io_uring`.
//!
//! The thread that submitted a poll posts the poll's completion at the end of any of its system calls
//! (`COOP_TASKRUN`): if only the consumer submits polls, its own receives and sends bring the events in, and it
//! takes them without a call. So no other thread submits: polls for other threads wait in the queue.

use core::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, Timespec, nr};
use anyring_mapping::RingMemory;
use linux_raw_sys::general::{EPOLLIN, EPOLLONESHOT};
use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_ENTER_EXT_ARG, IORING_ENTER_GETEVENTS, IORING_FEAT_EXT_ARG, IORING_FEAT_NODROP,
    IORING_FEAT_SINGLE_MMAP, IORING_POLL_ADD_MULTI, IORING_SETUP_CLAMP, IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_CQSIZE, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_CQ_OVERFLOW, IORING_SQ_TASKRUN, io_uring_cqe,
    io_uring_getevents_arg, io_uring_op, io_uring_params, io_uring_sqe,
};

use super::{BELL, INSIDE, NOBODY, Sink, Slot, Token, arm_of, item_of, token};

const ENTRIES: u32 = 256;

/// A ring of the kernel. All methods but [`Uring::sleep`] are called under the set's lock.
pub struct Uring {
    fd: Fd,
    memory: RingMemory,
    sq_entries: u32,
    cq_mask: u32,
    sq_head: *const AtomicU32,
    sq_tail: *const AtomicU32,
    sq_flags: *const AtomicU32,
    cq_head: *const AtomicU32,
    cq_tail: *const AtomicU32,
    cqes: *const io_uring_cqe,
}

// SAFETY: the pointers are to its own mappings; the lock that guards them is named above.
unsafe impl Send for Uring {}
// SAFETY: as above; what is used without the lock is atomic.
unsafe impl Sync for Uring {}

impl Uring {
    /// Creates a ring with room for the events of `items` files.
    ///
    /// # Errors
    /// The kernel's, mostly `EPERM` and `ENOSYS`; `ENOSYS` if the kernel lacks a feature.
    pub fn create(items: u32) -> Result<Uring, Errno> {
        // SAFETY: all zeroes are a valid `io_uring_params`.
        let mut params: io_uring_params = unsafe { core::mem::zeroed() };
        params.flags =
            IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
        params.cq_entries = (items * 2).next_power_of_two().clamp(2 * ENTRIES, 32_768);
        let arguments = [ENTRIES as usize, &raw mut params as usize, 0, 0, 0, 0];
        // SAFETY: reads and writes the parameters.
        let fd = match unsafe { os::call(nr::__NR_io_uring_setup, arguments) } {
            // A kernel that does not know all of these flags lacks their features.
            Err(Errno::EINVAL) => return Err(Errno::ENOSYS),
            result => result? as Fd,
        };
        Uring::map(fd, &params).inspect_err(|_| os::close(fd))
    }

    fn map(fd: Fd, params: &io_uring_params) -> Result<Uring, Errno> {
        let wanted = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
        if params.features & wanted != wanted {
            return Err(Errno::ENOSYS);
        }
        let memory = RingMemory::map(fd, params, size_of::<io_uring_sqe>(), size_of::<io_uring_cqe>())?;
        // SAFETY: the kernel's offsets lie within the mapping, whose length was computed from them.
        let word = |offset: u32| unsafe { memory.sq_ring().at::<AtomicU32>(offset) }.cast_const();
        Ok(Uring {
            fd,
            sq_entries: params.sq_entries,
            cq_mask: params.cq_entries - 1,
            sq_head: word(params.sq_off.head),
            sq_tail: word(params.sq_off.tail),
            sq_flags: word(params.sq_off.flags),
            cq_head: word(params.cq_off.head),
            cq_tail: word(params.cq_off.tail),
            cqes: word(params.cq_off.cqes).cast(),
            memory,
        })
    }

    fn word(&self, word: *const AtomicU32) -> &AtomicU32 {
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { &*word }
    }

    fn queued(&self) -> u32 {
        let tail = self.word(self.sq_tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.word(self.sq_head).load(Ordering::Acquire))
    }

    fn push(&self, sqe: io_uring_sqe) {
        if self.queued() >= self.sq_entries {
            self.submit();
            if self.queued() >= self.sq_entries {
                // The kernel is out of memory; the file is watched again when it is modified.
                return;
            }
        }
        let tail = self.word(self.sq_tail).load(Ordering::Relaxed);
        // SAFETY: an entry that the kernel has consumed, as was checked above.
        unsafe {
            self.memory.sqes().at::<io_uring_sqe>(0).add((tail & (self.sq_entries - 1)) as usize).write(sqe)
        };
        self.word(self.sq_tail).store(tail.wrapping_add(1), Ordering::Release);
    }

    fn enter(&self, least: u32, flags: u32, argument: usize, bytes: usize) -> Result<usize, Errno> {
        let arguments =
            [self.fd as usize, self.queued() as usize, least as usize, flags as usize, argument, bytes];
        // SAFETY: the queued requests are polls, which name no memory.
        unsafe { os::call(nr::__NR_io_uring_enter, arguments) }
    }

    /// Submits the queued requests.
    pub fn submit(&self) {
        let _ = self.enter(0, 0, 0, 0);
    }

    /// True if a call is needed for the kernel to post completions; with `now`, even if the next sleep would make it post them.
    pub fn wants_call(&self, now: bool) -> bool {
        let flags = self.word(self.sq_flags).load(Ordering::Relaxed);
        flags & IORING_SQ_CQ_OVERFLOW != 0 || now && (flags & IORING_SQ_TASKRUN != 0 || self.queued() != 0)
    }

    /// Makes the call that [`Uring::wants_call`] is about.
    pub fn call(&self) {
        let _ = self.enter(0, IORING_ENTER_GETEVENTS, 0, 0);
    }

    /// True if there are completions.
    pub fn has_completions(&self) -> bool {
        self.word(self.cq_tail).load(Ordering::Acquire) != self.word(self.cq_head).load(Ordering::Relaxed)
    }

    /// Submits the queued requests, and sleeps until there is a completion, for `timeout_ns` at most.
    pub fn sleep(&self, timeout_ns: Option<u64>) -> Result<(), Errno> {
        let time = timeout_ns.map(Timespec::from_ns);
        let argument = io_uring_getevents_arg {
            sigmask: 0,
            sigmask_sz: 8,
            min_wait_usec: 0,
            ts: time.as_ref().map_or(0, |time| core::ptr::from_ref(time) as u64),
        };
        let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        let result = self.enter(1, flags, &raw const argument as usize, size_of_val(&argument));
        match result {
            Err(Errno::ETIME) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn poll(&self, fd: Fd, events: u32, multishot: bool, name: Token) {
        // SAFETY: all zeroes are a valid entry.
        let mut sqe: io_uring_sqe = unsafe { core::mem::zeroed() };
        sqe.opcode = io_uring_op::IORING_OP_POLL_ADD as u8;
        sqe.fd = fd;
        sqe.user_data = name;
        sqe.len = if multishot { IORING_POLL_ADD_MULTI } else { 0 };
        // On big-endian machines the halves of this word are swapped.
        let events = if cfg!(target_endian = "big") { events.rotate_left(16) } else { events };
        sqe.__bindgen_anon_3.poll32_events = events;
        self.push(sqe);
    }

    /// Watches a file of the set's own for being readable.
    pub fn watch_own(&self, fd: Fd, name: Token) {
        self.poll(fd, EPOLLIN, true, name);
    }

    /// Watches an item's file, from the next submission on.
    pub fn watch(&self, item: u32, slot: &mut Slot) {
        slot.arm = slot.arm.wrapping_add(1);
        let multishot = slot.events & EPOLLONESHOT == 0;
        self.poll(slot.fd, slot.interest(), multishot, token(item, slot.generation, slot.arm));
    }

    /// Ends the watch. The kernel releases the file immediately if `now`, else at the next submission.
    pub fn forget(&self, item: u32, generation: u32, arm: u16, now: bool) {
        self.remove(token(item, generation, arm));
        if now {
            self.submit();
        }
    }

    fn remove(&self, name: Token) {
        // SAFETY: all zeroes are a valid entry.
        let mut sqe: io_uring_sqe = unsafe { core::mem::zeroed() };
        sqe.opcode = io_uring_op::IORING_OP_POLL_REMOVE as u8;
        sqe.fd = -1;
        sqe.__bindgen_anon_2.addr = name;
        sqe.user_data = NOBODY;
        self.push(sqe);
    }

    /// Ends the poll of the inner epoll instance; the poll's last completion starts a new one.
    pub fn forget_inside(&self) {
        self.remove(INSIDE);
        self.submit();
    }

    /// Passes completions on. Returns whether the inner epoll instance has events.
    pub fn harvest(&self, sink: &mut Sink<'_>, bell: Fd, inside: Fd) -> bool {
        let mut inside_has_events = false;
        let mut head = self.word(self.cq_head).load(Ordering::Relaxed);
        let tail = self.word(self.cq_tail).load(Ordering::Acquire);
        while head != tail && !sink.is_full() {
            // SAFETY: an entry of the queue, which the kernel has written before it moved the tail.
            let cqe = unsafe { &*self.cqes.add((head & self.cq_mask) as usize) };
            let (name, result, more) = (cqe.user_data, cqe.res, cqe.flags & IORING_CQE_F_MORE != 0);
            head = head.wrapping_add(1);
            match name {
                BELL if !more => self.watch_own(bell, BELL),
                INSIDE => {
                    inside_has_events = true;
                    if !more {
                        self.watch_own(inside, INSIDE);
                    }
                }
                BELL | NOBODY => {}
                name => self.completed(sink, name, result, more),
            }
        }
        // Release: the entries are read before the kernel may write there again.
        self.word(self.cq_head).store(head, Ordering::Release);
        inside_has_events
    }

    #[inline]
    fn completed(&self, sink: &mut Sink<'_>, name: Token, result: i32, more: bool) {
        let goes_on = match result {
            // The thread that submitted the poll has ended.
            result if result == Errno::ECANCELED.negated() => sink.event(name, 0),
            // The file was closed before the kernel watched it: as in epoll, this is not reported.
            result if result < 0 => false,
            events => sink.event(name, events as u32),
        };
        if goes_on && !more {
            let item = item_of(name);
            let slot = &mut sink.slots[item];
            if slot.arm == arm_of(name) {
                self.watch(item as u32, slot);
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        os::close(self.fd);
    }
}
