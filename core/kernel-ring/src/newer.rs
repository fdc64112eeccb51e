//! Features of known operations that only newer kernels have.
//!
//! The companion does queries of socket names (`SOCKET_URING_OP_GETSOCKNAME`, Linux 6.19) if the kernel lacks this command.
//! Times in the SQE itself (`IORING_TIMEOUT_IMMEDIATE_ARG`, Linux 7.1) are stored in memory, where any kernel reads them when
//! it consumes the SQE.

use crate::poster::new_ring;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use anyring_engine::abi::{Errno, IORING_TIMEOUT_IMMEDIATE_ARG, SOCKET_URING_OP_GETSOCKNAME, Sqe};
use anyring_engine::os::{self, Fd, OwnedFd};
use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_socket, O_CLOEXEC};
use linux_raw_sys::io_uring::{IORING_ENTER_GETEVENTS, IORING_TIMEOUT_UPDATE_MASK, io_uring_op as Code};
use linux_raw_sys::net::{AF_UNIX, SO_TYPE, SOCK_STREAM, socklen_t};

const FIXED: u8 = crate::queue::FIXED;

/// True if the SQE queries the name of a socket, by its descriptor.
pub fn is_name(sqe: &Sqe) -> bool {
    sqe.opcode == Code::IORING_OP_URING_CMD as u8
        && sqe.off == u64::from(SOCKET_URING_OP_GETSOCKNAME)
        && sqe.flags & FIXED == 0
}

/// True if a request queries a name, its file is a socket, and the kernel lacks the command. For drivers of other files the
/// command's number may mean something else, and a registered file is not checked here.
pub fn lacks_name(sqe: &Sqe) -> bool {
    is_name(sqe) && os::socket_option(sqe.fd, SO_TYPE).is_ok() && kernel_lacks_names()
}

/// The kernel's answer to a question that is asked only once.
struct Asked(AtomicU8);

impl Asked {
    const UNKNOWN: u8 = 0;
    const HAS: u8 = 1;
    const LACKS: u8 = 2;

    const fn new() -> Asked {
        Asked(AtomicU8::new(Asked::UNKNOWN))
    }

    /// Asks by `lacks` whether the kernel lacks the feature, at the first call. False if that cannot be found out now: then
    /// the kernel gets the request, and answers it itself.
    fn lacks(&self, lacks: impl FnOnce() -> Result<bool, Errno>) -> bool {
        if self.0.load(Ordering::Relaxed) == Asked::UNKNOWN {
            let Ok(lacks) = lacks() else { return false };
            self.0.store(if lacks { Asked::LACKS } else { Asked::HAS }, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed) == Asked::LACKS
    }
}

fn kernel_lacks_names() -> bool {
    static ASKED: Asked = Asked::new();
    ASKED.lacks(|| {
        let arguments = [AF_UNIX as usize, (SOCK_STREAM | O_CLOEXEC) as usize, 0, 0, 0, 0];
        // SAFETY: names no memory.
        let socket = OwnedFd::new(unsafe { os::call(__NR_socket, arguments) }? as Fd);
        let mut name = [0_u8; 16];
        let mut length = size_of_val(&name) as socklen_t;
        let sqe = Sqe {
            opcode: Code::IORING_OP_URING_CMD as u8,
            fd: socket.fd(),
            off: SOCKET_URING_OP_GETSOCKNAME.into(),
            addr: (&raw mut name).expose_provenance() as u64,
            addr3: (&raw mut length).expose_provenance() as u64,
            ..Sqe::default()
        };
        // SAFETY: the command completes within this call, so the memory lives long enough.
        Ok(unsafe { answer(sqe) }? == Errno::EOPNOTSUPP.negated())
    })
}

/// True if the kernel does not support times in SQEs.
pub fn kernel_lacks_times() -> bool {
    static ASKED: Asked = Asked::new();
    ASKED.lacks(|| {
        let sqe = Sqe {
            opcode: Code::IORING_OP_TIMEOUT as u8,
            len: 1,
            op_flags: IORING_TIMEOUT_IMMEDIATE_ARG,
            ..Sqe::default()
        };
        // SAFETY: the request names no memory. If the field is read as an address, it is null, and the kernel refuses
        // the flag before it reads there.
        Ok(unsafe { answer(sqe) }? == Errno::EINVAL.negated())
    })
}

/// Returns the kernel's result of this request, on a ring made for it.
///
/// # Safety
/// The memory that the request names must live until it is completed.
unsafe fn answer(sqe: Sqe) -> Result<i32, Errno> {
    let (ring, queues) = new_ring(1)?;
    // SAFETY: the queue is new.
    unsafe { queues.fill(0, sqe) };
    // Release: the entry is written.
    queues.sq_tail().store(1, Ordering::Release);
    let arguments = [ring.fd() as usize, 1, 1, IORING_ENTER_GETEVENTS as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { os::call(__NR_io_uring_enter, arguments) }?;
    // Acquire pairs with the kernel's release.
    if queues.cq_tail().load(Ordering::Acquire) == 0 {
        return Err(Errno::EAGAIN);
    }
    // SAFETY: posted, and only reaped here.
    Ok(unsafe { queues.cqe(0) }.res)
}

/// `struct __kernel_timespec`.
type Time = [i64; 2];

/// Times of the SQEs in a submission queue, by their places: each stays as long as its SQE may wait to be consumed.
pub struct Times {
    by_place: Box<[Time]>,
    /// Times of SQEs that waited when the queue was resized.
    before: Vec<Box<[Time]>>,
}

impl Times {
    /// Makes room for the times of `entries` SQEs.
    pub fn new(entries: u32) -> Times {
        Times { by_place: vec![[0; 2]; entries as usize].into(), before: Vec::new() }
    }

    /// True if these are the times of a queue that has, and always had, this number of entries.
    pub fn fit(&self, entries: u32) -> bool {
        self.by_place.len() == entries as usize && self.before.is_empty()
    }

    /// Adapts the store to a queue of `entries` entries. `waits` says whether SQEs wait whose times were stored before.
    pub fn resize(&mut self, entries: u32, waits: bool) {
        if !waits {
            *self = Times::new(entries);
        } else if self.by_place.len() != entries as usize {
            let larger = Times::new(entries);
            self.before.push(core::mem::replace(&mut self.by_place, larger.by_place));
        }
    }

    /// True if the time of this SQE is stored here.
    pub fn hold(&self, sqe: &Sqe) -> bool {
        let Some(address) = address_of_time(&mut { *sqe }).map(|field| *field as usize) else { return false };
        self.before.iter().chain([&self.by_place]).any(|times| times.as_ptr_range().contains(&(address as _)))
    }

    /// Moves the time of an SQE that moves from one place to another; the time at the other place is not read any more.
    pub fn follow(&mut self, from: u32, to: u32, sqe: &mut Sqe) {
        let (Some(&time), Some(field)) = (self.by_place.get(from as usize), address_of_time(sqe)) else {
            return;
        };
        let place =
            |times: &mut Times, place: u32| (&raw mut times.by_place[place as usize]).expose_provenance();
        if *field == place(self, from) as u64 && (to as usize) < self.by_place.len() {
            self.by_place[to as usize] = time;
            *field = place(self, to) as u64;
        }
    }

    /// Stores the time of the SQE at this place, and makes the SQE name its address.
    pub fn lay(&mut self, place: u32, sqe: &mut Sqe) {
        const NANOSECONDS: u64 = 1_000_000_000;
        let Some(time) = self.by_place.get_mut(place as usize) else { return };
        let address = (&raw mut *time).expose_provenance() as u64;
        let field = time_field(sqe);
        *time = [(*field / NANOSECONDS) as i64, (*field % NANOSECONDS) as i64];
        *field = address;
        sqe.op_flags &= !IORING_TIMEOUT_IMMEDIATE_ARG;
    }
}

/// Returns the field with the time of a timeout, or the time's address.
fn time_field(sqe: &mut Sqe) -> &mut u64 {
    if is_update(sqe) { &mut sqe.off } else { &mut sqe.addr }
}

/// Returns the address field of an SQE whose time is in memory.
fn address_of_time(sqe: &mut Sqe) -> Option<&mut u64> {
    let is = |code: Code| sqe.opcode == code as u8;
    let has = match is_update(sqe) {
        true => sqe.op_flags & IORING_TIMEOUT_UPDATE_MASK != 0,
        false => is(Code::IORING_OP_TIMEOUT) || is(Code::IORING_OP_LINK_TIMEOUT),
    };
    (has && sqe.op_flags & IORING_TIMEOUT_IMMEDIATE_ARG == 0).then(|| time_field(sqe))
}

fn is_update(sqe: &Sqe) -> bool {
    sqe.opcode == Code::IORING_OP_TIMEOUT_REMOVE as u8
}

/// True if the SQE contains a time that can be stored. Every kernel refuses a negative time, and one of an SQE that needs none.
pub fn has_time(sqe: &Sqe) -> bool {
    let is = |code: Code| sqe.opcode == code as u8;
    let has = match is_update(sqe) {
        true if sqe.op_flags & IORING_TIMEOUT_UPDATE_MASK != 0 => sqe.off <= i64::MAX as u64,
        true => false,
        false => {
            (is(Code::IORING_OP_TIMEOUT) || is(Code::IORING_OP_LINK_TIMEOUT)) && sqe.addr <= i64::MAX as u64
        }
    };
    has && sqe.op_flags & IORING_TIMEOUT_IMMEDIATE_ARG != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqe(code: Code, op_flags: u32, addr: u64, off: u64) -> Sqe {
        Sqe { opcode: code as u8, op_flags, addr, off, ..Sqe::default() }
    }

    #[test]
    fn times_are_laid_where_they_are_read() {
        const FLAG: u32 = IORING_TIMEOUT_IMMEDIATE_ARG;
        let mut times = Times::new(4);
        let mut timeout = sqe(Code::IORING_OP_TIMEOUT, FLAG | 1, 3_000_000_007, 9);
        assert!(has_time(&timeout));
        times.lay(2, &mut timeout);
        assert_eq!(
            (timeout.addr, timeout.off, timeout.op_flags),
            ((&raw const times.by_place[2]).addr() as u64, 9, 1)
        );
        assert_eq!(times.by_place[2], [3, 7]);
        assert!(!has_time(&timeout));
        let mut update = sqe(Code::IORING_OP_TIMEOUT_REMOVE, FLAG | IORING_TIMEOUT_UPDATE_MASK, 5, 1);
        assert!(has_time(&update));
        times.lay(0, &mut update);
        assert_eq!((update.addr, update.off), (5, (&raw const times.by_place[0]).addr() as u64));
        assert_eq!(times.by_place[0], [0, 1]);
        let mut most = sqe(Code::IORING_OP_LINK_TIMEOUT, FLAG, i64::MAX as u64, 0);
        times.lay(1, &mut most);
        assert_eq!(times.by_place[1], [9_223_372_036, 854_775_807]);
    }

    /// An SQE that is moved while it waits must keep its time when another SQE gets its place.
    #[test]
    fn times_follow_their_entries() {
        let timeout = |time: u64| sqe(Code::IORING_OP_TIMEOUT, IORING_TIMEOUT_IMMEDIATE_ARG, time, 0);
        // SAFETY: the address of a time in this test, or the test fails.
        let time = |sqe: &Sqe| unsafe { (sqe.addr as *const Time).read() };
        let mut times = Times::new(4);
        let (mut moved, mut other) = (timeout(7), timeout(8));
        times.lay(3, &mut moved);
        times.follow(3, 1, &mut moved);
        times.lay(3, &mut other);
        assert_eq!([&moved, &other].map(time), [[0, 7], [0, 8]]);
        // An address of the program's is not changed.
        let mut own = sqe(Code::IORING_OP_TIMEOUT, 0, other.addr + 1, 0);
        times.follow(3, 2, &mut own);
        assert_eq!(own.addr, other.addr + 1);
        assert!(times.hold(&other) && !times.hold(&sqe(Code::IORING_OP_READ, 0, other.addr, 0)));
    }

    /// An SQE that waits while the queue is resized must keep its time, too.
    #[test]
    fn times_of_before_a_resize() {
        let timeout = |time: u64| sqe(Code::IORING_OP_TIMEOUT, IORING_TIMEOUT_IMMEDIATE_ARG, time, 0);
        let mut times = Times::new(2);
        let mut waits = timeout(7);
        times.lay(1, &mut waits);
        assert!(times.fit(2) && !times.fit(4));
        times.resize(4, true);
        let mut new = [timeout(8), timeout(9)];
        times.lay(1, &mut new[0]);
        times.lay(3, &mut new[1]);
        // SAFETY: addresses of times in this test, or the test fails.
        let laid = [&waits, &new[0], &new[1]].map(|sqe| unsafe { (sqe.addr as *const Time).read() });
        assert_eq!(laid, [[0, 7], [0, 8], [0, 9]]);
        assert!(times.hold(&waits) && times.hold(&new[1]) && !times.fit(4));
        times.resize(4, false);
        assert!(times.fit(4) && !times.hold(&waits));
    }

    #[test]
    fn what_is_refused_everywhere_stays() {
        const FLAG: u32 = IORING_TIMEOUT_IMMEDIATE_ARG;
        for left in [
            sqe(Code::IORING_OP_TIMEOUT, 0, 1, 0),
            sqe(Code::IORING_OP_TIMEOUT, FLAG, u64::MAX, 0),
            sqe(Code::IORING_OP_TIMEOUT_REMOVE, FLAG, 1, 1),
            sqe(Code::IORING_OP_TIMEOUT_REMOVE, FLAG | IORING_TIMEOUT_UPDATE_MASK, 1, u64::MAX),
            sqe(Code::IORING_OP_READ, FLAG, 1, 0),
        ] {
            assert!(!has_time(&left), "{left:?}");
        }
    }
}
