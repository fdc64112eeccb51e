//! Registered files of the program's ring in requests of a companion.
//!
//! A chain may open into a slot, use the slot and close it again: meanwhile the companion has the file in a slot of its own. A file that is
//! still open when the chain is over is moved into the program's ring before the program next submits, because no earlier request can use
//! it. Until then the program's slot is reserved ([`crate::reserved`]).
//!
//! If a private operation without a chain names a registered file, the program's ring sends the file by a message,
//! which replaces the operation in the queue. If the slot is empty, the kernel itself fails the message.

use crate::companion::{Companion, flag};
use crate::frontend;
use crate::poster::new_ring;
use crate::queue::{FIXED, LINKS, SKIP};
use crate::queues::Queues;
use crate::reserved::Reserved;
use alloc::collections::VecDeque;
use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::frontend as engine;
use anyring_engine::ops;
use anyring_engine::os::{self, Fd, OwnedFd};
use anyring_engine::request::op::Caps;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_register};
use linux_raw_sys::io_uring::{
    IORING_ENTER_GETEVENTS, IORING_FILE_INDEX_ALLOC, IORING_RSRC_REGISTER_SPARSE, io_uring_msg_ring_flags,
    io_uring_op, io_uring_register_op as Register, io_uring_rsrc_register, io_uring_rsrc_update2,
    io_uring_sqe_flags_bit as Bit,
};

/// The number of a companion's slots.
pub const SLOTS: u32 = 64;

/// The slots of registered files that a chain uses.
pub enum Use {
    /// None.
    None,
    /// The chain opens into this slot, and may use and close it.
    Own(u32),
    /// The chain needs files that are registered already.
    Foreign,
}

/// Determines the slots that a chain uses.
pub fn uses(chain: impl Iterator<Item = Sqe>) -> Use {
    let mut own = None;
    for sqe in chain {
        let caps = ops::lookup(sqe.opcode).caps;
        let slot = if sqe.flags & FIXED != 0 {
            sqe.fd as u32
        } else if sqe.file_index == 0 || sqe.opcode == io_uring_op::IORING_OP_URING_CMD as u8 {
            // The field of a command is no slot.
            continue;
        } else if sqe.file_index == IORING_FILE_INDEX_ALLOC as u32
            || !caps.has(Caps::INSTALLS.with(Caps::EMPTIES))
        {
            return Use::Foreign;
        } else {
            sqe.file_index - 1
        };
        let opens = sqe.flags & FIXED == 0 && caps.has(Caps::INSTALLS);
        // If a chain skips completions, its end may be unknown.
        if sqe.flags & SKIP != 0 || own.map_or(!opens, |own| own != slot || opens) {
            return Use::Foreign;
        }
        own = Some(slot);
    }
    own.map_or(Use::None, Use::Own)
}

/// Replaces the slot that the request names.
fn with_slot(mut sqe: Sqe, slot: u32) -> Sqe {
    if sqe.flags & FIXED != 0 {
        sqe.fd = slot as i32;
    } else if sqe.file_index != 0 {
        sqe.file_index = slot + 1;
    }
    sqe
}

/// Calls `IORING_REGISTER_FILES_UPDATE2` for one slot.
fn update(fd: Fd, slot: u32, file: Fd, register: impl Fn([usize; 6]) -> i32) -> i32 {
    let update = io_uring_rsrc_update2 {
        offset: slot,
        resv: 0,
        data: &raw const file as u64,
        tags: 0,
        nr: 1,
        resv2: 0,
    };
    let code = Register::IORING_REGISTER_FILES_UPDATE2 as usize;
    register([fd as usize, code, &raw const update as usize, size_of_val(&update), 0, 0])
}

fn by_kernel(arguments: [usize; 6]) -> i32 {
    // SAFETY: reads structures of this crate.
    anyring_engine::abi::errno::to_res(unsafe { os::call(__NR_io_uring_register, arguments) })
}

fn by_engine(arguments: [usize; 6]) -> i32 {
    // SAFETY: reads structures of this crate.
    unsafe { frontend::call(__NR_io_uring_register as usize, arguments) }
}

fn register_sparse(fd: Fd, count: u32, register: impl Fn([usize; 6]) -> i32) -> bool {
    let files =
        io_uring_rsrc_register { nr: count, flags: IORING_RSRC_REGISTER_SPARSE, resv2: 0, data: 0, tags: 0 };
    let code = Register::IORING_REGISTER_FILES2 as usize;
    register([fd as usize, code, &raw const files as usize, size_of_val(&files), 0, 0]) >= 0
}

impl Companion {
    /// Queues a chain that opens into the slot `own` of the program's ring `kernel`; false if that is not possible.
    pub fn push_with_file(&mut self, kernel: Fd, own: u32, chain: impl Iterator<Item = Sqe>) -> bool {
        let Some(slot) = self.reserve(kernel, own) else { return false };
        let mut chain = chain.peekable();
        while let Some(sqe) = chain.next() {
            let mut sqe = with_slot(sqe, slot);
            if chain.peek().is_none() {
                sqe.flags = sqe.flags & !LINKS | flag(Bit::IOSQE_IO_HARDLINK_BIT);
            }
            self.push(sqe);
        }
        self.push(Sqe {
            opcode: io_uring_op::IORING_OP_NOP as u8,
            user_data: self.mark().end_of(slot),
            ..Sqe::default()
        });
        true
    }

    /// Reserves a slot of the companion for a file that will be moved into the slot `own` of the program's ring.
    fn reserve(&mut self, kernel: Fd, own: u32) -> Option<u32> {
        if self.reserved.is_none() {
            let reserved = Reserved::new().ok()?;
            self.reserved = register_sparse(self.fd(), SLOTS, by_engine).then_some(reserved);
        }
        // The update replaces the slot's present file, and fails if there is no such slot.
        self.reserved.as_mut()?.reserve(own, |keeper| update(kernel, own, keeper, by_kernel) >= 0)
    }

    /// Moves files that chains have left open to the program's ring.
    pub fn return_files(&mut self, kernel: Fd) {
        let ended = self.mark().take_ended();
        self.return_from(kernel, ended);
    }

    /// Moves files for the last time: unfinished chains lose what they have opened.
    pub fn return_all(&mut self, kernel: Fd) {
        self.return_from(kernel, u64::MAX);
    }

    /// Moves the files in these slots of the companion, one bit each.
    fn return_from(&mut self, kernel: Fd, mut slots: u64) {
        let companion = self.fd();
        let Some(reserved) = &mut self.reserved else { return };
        while slots != 0 {
            let slot = slots.trailing_zeros();
            slots &= slots - 1;
            let Some(reservation) = reserved.remove(slot) else { continue };
            let file = frontend::quietly(|| engine::registered_file(companion, slot));
            if let Some(own) = reservation.kept() {
                update(kernel, own, file.unwrap_or(-1), by_kernel);
            }
            if file.is_some() {
                update(companion, slot, -1, by_engine);
            }
        }
    }
}

/// A small ring of the kernel to which the program's ring sends files.
pub struct Receiver {
    fd: OwnedFd,
    queues: Queues,
    tail: u32,
    /// Requests whose files are expected, by the user data of the files' messages.
    expected: VecDeque<(u64, Sqe)>,
    serial: u64,
    most: usize,
    /// Files that have arrived: the user data of each message, and the slot.
    arrived: VecDeque<(u64, i32)>,
    /// The result of the receiver's own request.
    result: i32,
}

/// The user data of the receiver's own requests.
const OWN: u64 = 0;

impl Receiver {
    /// Makes a receiver for up to `count` files at a time.
    ///
    /// # Errors
    /// `EINVAL` if no slots can be registered, and those of creating a ring.
    pub fn new(count: u32) -> Result<Receiver, Errno> {
        let (fd, queues) = new_ring(count)?;
        if !register_sparse(fd.fd(), count, by_kernel) {
            return Err(Errno::EINVAL);
        }
        Ok(Receiver {
            fd,
            queues,
            tail: 0,
            expected: VecDeque::new(),
            serial: OWN,
            most: 4 * count as usize,
            arrived: VecDeque::new(),
            result: 0,
        })
    }

    /// Returns the message that replaces a private operation on a slot: it sends the file here, and skips its CQE unless it fails.
    pub fn stand_in(&mut self, sqe: Sqe) -> Sqe {
        const SEND_FD: u64 = io_uring_msg_ring_flags::IORING_MSG_SEND_FD as u64;
        if self.expected.len() == self.most {
            // The queue of expected files is full. The oldest message was answered long ago, without a file: the slot
            // was empty.
            self.expected.pop_front();
        }
        self.serial += 1;
        self.expected.push_back((self.serial, sqe));
        Sqe {
            opcode: io_uring_op::IORING_OP_MSG_RING as u8,
            flags: SKIP,
            fd: self.fd.fd(),
            off: self.serial,
            addr: SEND_FD,
            addr3: sqe.fd as u64,
            file_index: IORING_FILE_INDEX_ALLOC as u32,
            user_data: sqe.user_data,
            ..Sqe::default()
        }
    }

    /// True if the request is such a message.
    pub fn is_stand_in(&self, sqe: &Sqe) -> bool {
        sqe.opcode == io_uring_op::IORING_OP_MSG_RING as u8 && sqe.flags == SKIP && sqe.fd == self.fd.fd()
    }

    /// Queues the requests whose files have arrived.
    pub fn receive(&mut self, companion: &mut Companion) {
        self.collect();
        while let Some((serial, slot)) = self.arrived.pop_front() {
            let file = self.take_out(slot);
            let place = self.expected.iter().position(|&(expected, _)| expected == serial);
            match (place.and_then(|place| self.expected.remove(place)), file) {
                (Some((_, sqe)), Ok(fd)) => companion.push_owning(sqe, fd),
                (Some((_, sqe)), Err(errno)) => {
                    companion.say(sqe.user_data, errno.negated(), sqe.flags & SKIP)
                }
                (None, Ok(fd)) => os::close(fd),
                (None, Err(_)) => {}
            }
        }
    }

    /// Reaps the kernel's CQEs, and sorts them.
    fn collect(&mut self) {
        let mut head = self.queues.cq_head().load(Ordering::Relaxed);
        // Acquire pairs with the kernel's release.
        while head != self.queues.cq_tail().load(Ordering::Acquire) {
            // SAFETY: posted, and only reaped here.
            let cqe = unsafe { self.queues.cqe(head) };
            head = head.wrapping_add(1);
            match cqe.user_data {
                OWN => self.result = cqe.res,
                serial => self.arrived.push_back((serial, cqe.res)),
            }
        }
        self.queues.cq_head().store(head, Ordering::Release);
    }

    /// Returns a descriptor for the file in a slot, and empties the slot.
    fn take_out(&mut self, slot: i32) -> Result<Fd, Errno> {
        let install = Sqe {
            opcode: io_uring_op::IORING_OP_FIXED_FD_INSTALL as u8,
            flags: FIXED,
            fd: slot,
            user_data: OWN,
            ..Sqe::default()
        };
        // SAFETY: the queue is empty.
        unsafe { self.queues.fill(self.tail, install) };
        self.tail = self.tail.wrapping_add(1);
        self.queues.sq_tail().store(self.tail, Ordering::Release);
        self.result = Errno::EAGAIN.negated();
        let arguments = [self.fd.fd() as usize, 1, 0, IORING_ENTER_GETEVENTS as usize, 0, 0];
        // SAFETY: the entry names no memory.
        unsafe { os::call(__NR_io_uring_enter, arguments) }?;
        self.collect();
        update(self.fd.fd(), slot as u32, -1, by_kernel);
        if self.result < 0 { Err(Errno::from_raw(self.result as isize)) } else { os::move_high(self.result) }
    }
}
