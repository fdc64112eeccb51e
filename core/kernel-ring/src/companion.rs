//! A ring of anyring's engine beside a ring of the kernel.

use crate::frontend;
use crate::poster::{Mark, Poster};
use crate::queue::{FIXED, LINKS, SKIP};
use crate::queues::Queues;
use crate::reserved::Reserved;
use alloc::boxed::Box;
use alloc::sync::Arc;
use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::frontend as engine;
use anyring_engine::os::{self, Fd};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_setup};
use linux_raw_sys::io_uring::{
    IORING_NOP_INJECT_RESULT, IORING_SETUP_CLAMP, io_uring_op, io_uring_params, io_uring_sqe_flags_bit,
};

/// Returns the flag of an SQE for a bit.
pub const fn flag(bit: io_uring_sqe_flags_bit) -> u8 {
    1 << bit as u8
}

/// A ring of the user engine that does the private operations of a ring of the kernel.
pub struct Companion {
    fd: Fd,
    queues: Arc<Queues>,
    tail: u32,
    mark: Arc<Mark>,
    /// The companion's slots for files, once it has some, and the slots of the program's ring that they stand for.
    pub reserved: Option<Reserved>,
}

impl Companion {
    /// Makes a companion for the ring `target`, whose chains have up to `entries` requests.
    pub fn new(target: Fd, entries: u32) -> Result<Companion, Errno> {
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { MaybeUninit::zeroed().assume_init() };
        params.flags = IORING_SETUP_CLAMP;
        // A chain may need one more request, for its end.
        let arguments = [entries as usize + 1, &raw mut params as usize, 0, 0, 0, 0];
        // SAFETY: reads and writes the parameters.
        let low = unsafe { frontend::call(__NR_io_uring_setup as usize, arguments) };
        if low < 0 {
            return Err(Errno::from_raw(low as isize));
        }
        let fd = move_away(low)?;
        let made = Queues::map(fd, params).map(Arc::new).and_then(|queues| {
            // The companion's memory is trusted, and any code may open a file from its descriptor.
            os::shut_memfd(fd)?;
            let mark = Mark::new();
            let poster = Poster::new(target, queues.clone(), mark.clone())?;
            let outlet: Box<dyn anyring_engine::Outlet> = Box::new(poster);
            frontend::quietly(|| engine::set_outlet(fd, outlet))
                .map_err(|errno| Errno::from_raw(errno as isize))?;
            Ok(Companion { fd, queues, tail: 0, mark, reserved: None })
        });
        made.inspect_err(|_| close(fd))
    }

    /// Returns the companion's descriptor.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// Returns the mark, which is signalled by requests that the program does not see.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Returns the number of requests that are not done.
    pub fn in_flight(&self) -> usize {
        frontend::quietly(|| engine::in_flight(self.fd))
    }

    /// Returns the number of free entries of the submission queue.
    pub fn room(&self) -> u32 {
        let taken = self.queues.sq_head().load(Ordering::Acquire);
        self.queues.sq_entries() - self.tail.wrapping_sub(taken)
    }

    /// Queues an SQE.
    pub fn push(&mut self, sqe: Sqe) {
        debug_assert!(self.room() > 0, "whoever pushes looks for room");
        // SAFETY: the head says that the entry is free; `self` is borrowed mutably.
        unsafe { self.queues.fill(self.tail, sqe) };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Submits the queued SQEs.
    pub fn submit(&mut self) {
        // Release pairs with the engine's acquire: the entries are written.
        self.queues.sq_tail().store(self.tail, Ordering::Release);
        loop {
            let left = self.tail.wrapping_sub(self.queues.sq_head().load(Ordering::Acquire));
            if left == 0 {
                return;
            }
            // A bad entry ends a submission; the rest is submitted by the next call.
            // SAFETY: the program's entries name memory of the program.
            let taken = unsafe {
                frontend::call(__NR_io_uring_enter as usize, [self.fd as usize, left as usize, 0, 0, 0, 0])
            };
            if taken < 0 {
                // There is no memory for a single request. There may be some when others are done.
                os::sched_yield();
            }
        }
    }

    /// Queues a NOP that gives the program a completion.
    pub fn say(&mut self, user_data: u64, result: i32, flags: u8) {
        if self.room() == 0 {
            self.submit();
        }
        self.push(Sqe {
            opcode: io_uring_op::IORING_OP_NOP as u8,
            flags,
            op_flags: IORING_NOP_INJECT_RESULT,
            len: result as u32,
            user_data,
            ..Sqe::default()
        });
    }

    /// Queues a request on a file, and closes the file after the request.
    pub fn push_owning(&mut self, mut sqe: Sqe, fd: Fd) {
        if self.room() < 2 {
            self.submit();
        }
        // For the companion it is a descriptor of the program's, which a request may close.
        os::own::forget(fd);
        sqe.flags = sqe.flags & !(FIXED | LINKS) | flag(io_uring_sqe_flags_bit::IOSQE_IO_HARDLINK_BIT);
        sqe.fd = fd;
        self.push(sqe);
        self.push(Sqe { opcode: io_uring_op::IORING_OP_CLOSE as u8, flags: SKIP, fd, ..Sqe::default() });
    }

    /// Waits until all pushed requests are done. False if that is unknown because requests skipped their
    /// completions.
    pub fn settle(&mut self) -> bool {
        self.submit();
        if self.in_flight() == 0 {
            return true;
        }
        self.push(Sqe {
            opcode: io_uring_op::IORING_OP_NOP as u8,
            flags: flag(io_uring_sqe_flags_bit::IOSQE_IO_DRAIN_BIT),
            user_data: self.mark.user_data(),
            ..Sqe::default()
        });
        self.submit();
        self.mark.wait() >= 0
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        close(self.fd);
    }
}

fn close(fd: Fd) {
    frontend::closing(fd);
    os::close(fd);
}

/// Moves a new ring's descriptor out of the program's low numbers.
fn move_away(low: Fd) -> Result<Fd, Errno> {
    let high = os::duplicate(low);
    if let Ok(high) = high {
        frontend::quietly(|| engine::duplicated(low, high));
    }
    close(low);
    high
}
