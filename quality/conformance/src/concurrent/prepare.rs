//! Turns a program's requests into SQEs, and records them in the ledger.

use anyring_engine::abi::{IORING_OP_NOP128, IORING_TIMEOUT_IMMEDIATE_ARG, Sqe};
use linux_raw_sys::io_uring::*;

use super::generate::UNIT;
use super::memory::{Kind, Request, State, traits};
use super::plan::*;
use super::world::{BUFFER, PLACE, World};
use crate::harness::sqe_flags::{BUFFER_SELECT, DRAIN, FIXED_FILE, HARDLINK, LINKS};
use crate::ring::Engine;
use crate::rng::Rng;

/// The group of provided buffers.
pub const GROUP: u16 = 7;
/// The offset of a vector or a message header in a request's place.
const HEADER: usize = PLACE - 88;
/// The number of bytes that a request writes to a file.
pub const WRITTEN: u32 = 64;

/// Requests that are pushed together.
pub struct Batch<'a> {
    world: &'a World<'a>,
    ring: usize,
    rng: &'a mut Rng,
    /// True if the requests are a chain.
    linked: bool,
    /// Where the chain continues to write and read each stream.
    writes: [Option<u64>; 3],
    reads: [bool; 3],
    before: u32,
    hard: bool,
    /// The SQEs to push, with their numbers in the ledger.
    pub sqes: Vec<(u32, Sqe)>,
    /// Descriptors to close after the submission.
    pub closes: Vec<i32>,
    /// A descriptor to write to and then close after that.
    pub wakes: Option<i32>,
}

impl<'a> Batch<'a> {
    /// Prepares requests; a request that is not possible now becomes a NOP.
    pub fn new(world: &'a World<'a>, ring: usize, rng: &'a mut Rng, requests: &[Req]) -> Batch<'a> {
        let linked = requests.iter().any(|request| request.flags & LINKS != 0);
        let (sqes, closes, wakes) = (Vec::new(), Vec::new(), None);
        let (writes, reads, before, hard) = ([None; 3], [false; 3], 0, false);
        let mut batch = Batch { world, ring, rng, linked, writes, reads, before, hard, sqes, closes, wakes };
        for (place, request) in requests.iter().enumerate() {
            let limited = matches!(requests.get(place + 1), Some(Req { what: What::LinkTimeout { .. }, .. }));
            if !batch.add(request, limited) {
                break;
            }
        }
        batch.end_chain();
        batch
    }

    /// Adds a request; returns false if the ledger is full.
    fn add(&mut self, request: &Req, limited: bool) -> bool {
        let Some((mut sqe, mut entry)) = self.prepare(request.what) else { return false };
        entry.traits |= if limited { traits::TIMED } else { 0 };
        entry.traits |= if request.flags & DRAIN != 0 { traits::DRAIN } else { 0 };
        entry.traits |= if self.hard { traits::HARD } else { 0 };
        entry.before = self.before;
        let Some(id) = self.world.shared.open(&entry) else { return false };
        sqe.flags |= request.flags;
        sqe.user_data = self.user_data(id);
        self.fill(id, request.what, &mut sqe, &entry);
        // A thread that reaps the completion sees these fields, also for a sanitizer.
        self.world.shared.entry(id).set_state(State::Pushed);
        self.hard = request.flags & HARDLINK != 0;
        self.before = if request.flags & LINKS != 0 { id + 1 } else { 0 };
        self.sqes.push((id, sqe));
        true
    }

    /// Ends a chain that was cut short at its last request.
    fn end_chain(&mut self) {
        if let Some((_, sqe)) = self.sqes.last_mut() {
            sqe.flags &= !LINKS;
        }
    }

    /// True if the program uses features newer than the kernel.
    fn has_newest(&self) -> bool {
        self.world.program.newest && self.world.engine == Engine::User
    }

    fn user_data(&self, id: u32) -> u64 {
        u64::from(self.world.tag) << 32 | u64::from(id)
    }

    fn of(&self, kind: Kind, opcode: io_uring_op) -> (Sqe, Request) {
        (Sqe { opcode: opcode as u8, fd: -1, ..Sqe::default() }, Request::new(kind, self.ring))
    }

    fn nop(&self, result: i32, big: bool, long: bool) -> (Sqe, Request) {
        let (mut sqe, mut entry) = self.of(Kind::Nop, io_uring_op::IORING_OP_NOP);
        entry.other = result as u32;
        if result != 0 {
            sqe.op_flags |= IORING_NOP_INJECT_RESULT;
            sqe.len = result as u32;
        }
        let wide = IORING_SETUP_CQE32 | anyring_engine::abi::IORING_SETUP_CQE_MIXED;
        if big && self.world.program.rings[self.ring].flags & wide != 0 {
            sqe.op_flags |= anyring_engine::abi::IORING_NOP_CQE32;
            (sqe.off, sqe.addr) = (0x1111_2222, 0x3333_4444);
            entry.traits |= traits::BIG;
        }
        if long && self.has_newest() && !self.linked {
            sqe.opcode = IORING_OP_NOP128;
        }
        (sqe, entry)
    }

    /// Prepares everything that does not depend on the request's number. Returns `None` if the ledger is full.
    fn prepare(&mut self, what: What) -> Option<(Sqe, Request)> {
        let world = self.world;
        Some(match what {
            What::Nop { result, big, wide } => self.nop(result, big, wide),
            What::Timeout { us, count, many } => {
                let many = many && !self.linked;
                let kind = if many { Kind::TimeoutMany } else { Kind::Timeout };
                let (mut sqe, mut entry) = self.of(kind, io_uring_op::IORING_OP_TIMEOUT);
                (sqe.len, sqe.off) = (1, if many { 3 } else { u64::from(count) });
                sqe.op_flags = if many { IORING_TIMEOUT_MULTISHOT } else { 0 };
                entry.traits = if many { traits::MULTI } else { 0 };
                // The time of the first expiry, and the interval of later ones.
                (entry.offset, entry.other) = (now_ns() + u64::from(us) * 1000, us);
                world.shared.rings[self.ring].timed.store(1, std::sync::atomic::Ordering::Relaxed);
                (sqe, entry)
            }
            What::LinkTimeout { .. } => {
                let (mut sqe, entry) = self.of(Kind::LinkTimeout, io_uring_op::IORING_OP_LINK_TIMEOUT);
                sqe.len = 1;
                (sqe, entry)
            }
            What::TimeoutRemove => {
                let target = self.outstanding();
                let (mut sqe, entry) = self.of(Kind::TimeoutRemove, io_uring_op::IORING_OP_TIMEOUT_REMOVE);
                sqe.addr = target.map_or(0, |id| self.user_data(id));
                self.cancels();
                (sqe, entry)
            }
            What::Poll { event, many } => {
                let many = many && !self.linked;
                let kind = if many { Kind::PollMany } else { Kind::Poll };
                let (mut sqe, mut entry) = self.of(kind, io_uring_op::IORING_OP_POLL_ADD);
                (sqe.fd, sqe.op_flags) = (world.events[event], libc::POLLIN as u32);
                sqe.len = if many { IORING_POLL_ADD_MULTI } else { 0 };
                entry.traits = if many { traits::MULTI } else { 0 };
                (sqe, entry)
            }
            What::Write { stream, length, how } => self.write(stream, length, how),
            What::Read { stream, length, how } => self.read(stream, length, how),
            What::Accept { listener, many } => {
                let many = many && !self.linked;
                let kind = if many { Kind::AcceptMany } else { Kind::Accept };
                let (mut sqe, mut entry) = self.of(kind, io_uring_op::IORING_OP_ACCEPT);
                (sqe.fd, sqe.op_flags) = (world.listeners[listener].fd, libc::SOCK_CLOEXEC as u32);
                sqe.ioprio = if many { IORING_ACCEPT_MULTISHOT as u16 } else { 0 };
                entry.traits = if many { traits::MULTI } else { 0 };
                entry.object = listener as u32;
                (sqe, entry)
            }
            What::SendMessage { to } => return self.message(Kind::SendMessage, to, 0, false),
            What::SendFile { to, slot, silent } => return self.message(Kind::SendFile, to, slot, silent),
            What::Cancel(whom) => self.cancel(whom),
            What::Splice => {
                let (mut sqe, entry) = self.of(Kind::Splice, io_uring_op::IORING_OP_SPLICE);
                (sqe.fd, sqe.file_index, sqe.len) = (world.idle[3], world.idle[0] as u32, 100);
                (sqe.off, sqe.addr) = (u64::MAX, u64::MAX);
                (sqe, entry)
            }
            other => self.file(other),
        })
    }

    fn file(&mut self, what: What) -> (Sqe, Request) {
        let world = self.world;
        let open = |path: &std::ffi::CString, how| {
            // SAFETY: a path that ends in NUL.
            unsafe { libc::open(path.as_ptr(), how | libc::O_CLOEXEC) }
        };
        let (kind, opcode) = match what {
            What::WriteFile { .. } | What::WriteClosed { .. } => {
                (Kind::WriteFile, io_uring_op::IORING_OP_WRITE)
            }
            What::FilesUpdate { .. } => (Kind::FilesUpdate, io_uring_op::IORING_OP_FILES_UPDATE),
            What::OtherPipe => (Kind::OtherPipe, io_uring_op::IORING_OP_READ),
            _ => (Kind::ReadFile, io_uring_op::IORING_OP_READ),
        };
        let (mut sqe, mut entry) = self.of(kind, opcode);
        let mut unit_of = |sqe: &mut Sqe, file: usize, unit: u32| {
            (sqe.len, sqe.off) = (UNIT, u64::from(unit * UNIT));
            (entry.object, entry.length, entry.offset) = (file as u32, UNIT, u64::from(unit));
        };
        match what {
            What::ReadFile { file, unit } => {
                unit_of(&mut sqe, file, unit);
                sqe.fd = world.files[file];
            }
            What::ReadSlot { slot, unit } => {
                unit_of(&mut sqe, usize::MAX, unit);
                (sqe.fd, sqe.flags) = (slot as i32, FIXED_FILE);
            }
            What::ReadClosed { file, unit } => {
                unit_of(&mut sqe, file, unit);
                sqe.fd = open(&world.ground.files[file], libc::O_RDONLY);
                self.closes.push(sqe.fd);
            }
            What::WriteFile { disk } => {
                (sqe.fd, entry.object, entry.length) =
                    (world.written[usize::from(disk)], disk.into(), WRITTEN);
            }
            What::WriteClosed { disk } => {
                sqe.fd = open(&world.ground.written[usize::from(disk)], libc::O_RDWR);
                (entry.object, entry.length) = (disk.into(), WRITTEN);
                self.closes.push(sqe.fd);
            }
            What::OtherPipe => {
                let mut ends = [0; 2];
                // SAFETY: room for two numbers.
                unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
                (sqe.fd, sqe.len, entry.length) = (ends[0], 8, 8);
                self.closes.push(ends[0]);
                self.wakes = Some(ends[1]);
            }
            What::FilesUpdate { slot, .. } => (sqe.len, sqe.off) = (1, slot.into()),
            other => unreachable!("{other:?} is prepared elsewhere"),
        }
        (sqe, entry)
    }

    /// Returns a request of this ring that is in flight.
    fn outstanding(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.world.shared.outstanding(self.ring).collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    fn cancels(&self) {
        self.world.shared.rings[self.ring].cancels.store(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn cancel(&mut self, whom: Whom) -> (Sqe, Request) {
        let (mut sqe, mut entry) = self.of(Kind::Cancel, io_uring_op::IORING_OP_ASYNC_CANCEL);
        match whom {
            Whom::One => {
                let target = self.outstanding();
                sqe.addr = target.map_or(1, |id| self.user_data(id));
                entry.other = target.map_or(0, |id| id + 1);
            }
            Whom::Stream(stream) => {
                sqe.fd = self.world.streams[stream].read_fd;
                sqe.op_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
            }
            Whom::Any => sqe.op_flags = IORING_ASYNC_CANCEL_ANY,
            Whom::All => sqe.op_flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL,
        }
        self.cancels();
        (sqe, entry)
    }

    fn message(&mut self, kind: Kind, to: usize, slot: u32, silent: bool) -> Option<(Sqe, Request)> {
        let Some(target) = self.world.ring(to) else { return Some(self.nop(0, false, false)) };
        let (mut sqe, mut entry) = self.of(kind, io_uring_op::IORING_OP_MSG_RING);
        sqe.fd = target.fd;
        entry.object = to as u32;
        if kind == Kind::SendFile {
            (sqe.addr, sqe.addr3, sqe.file_index) = (1, 0, slot + 1);
            sqe.op_flags = if silent { IORING_MSG_RING_CQE_SKIP } else { 0 };
        }
        if !silent {
            let message = Request { other: 1, ..Request::new(Kind::Message, to) };
            let id = self.world.shared.open(&message)?;
            sqe.off = self.user_data(id);
            // A data message carries its number; a file message carries nothing.
            sqe.len = if kind == Kind::SendMessage { id } else { 0 };
            entry.other = id + 1;
        }
        Some((sqe, entry))
    }

    fn write(&mut self, stream: usize, length: u32, how: How) -> (Sqe, Request) {
        use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
        let place = &self.world.streams[stream];
        let offset = match self.writes[stream].filter(|_| self.linked) {
            Some(offset) => {
                place.writers.fetch_add(1, AcqRel);
                offset
            }
            None if place.writers.compare_exchange(0, 1, AcqRel, Acquire).is_ok() => {
                place.written.load(Relaxed)
            }
            None => return self.nop(0, false, false),
        };
        self.writes[stream] = Some(offset + u64::from(length));
        let (kind, opcode) = match how {
            How::Vector => (Kind::Write, io_uring_op::IORING_OP_WRITEV),
            How::FixedBuffer if length as usize <= HEADER => {
                (Kind::Write, io_uring_op::IORING_OP_WRITE_FIXED)
            }
            How::Socket | How::FixedSocket => (Kind::Write, io_uring_op::IORING_OP_SEND),
            How::Message => (Kind::Write, io_uring_op::IORING_OP_SENDMSG),
            How::ZeroCopy => (Kind::SendZc, io_uring_op::IORING_OP_SEND_ZC),
            _ => (Kind::Write, io_uring_op::IORING_OP_WRITE),
        };
        let (mut sqe, mut entry) = self.of(kind, opcode);
        let sends = matches!(how, How::Socket | How::FixedSocket | How::Message | How::ZeroCopy);
        if sends {
            let all = if self.linked || self.rng.percent(30) { libc::MSG_WAITALL } else { 0 };
            sqe.op_flags = (libc::MSG_NOSIGNAL | all) as u32;
        }
        if how == How::FixedSocket && self.has_newest() && length as usize <= HEADER {
            sqe.ioprio = IORING_RECVSEND_FIXED_BUF as u16;
        }
        (sqe.fd, sqe.len) = (place.write_fd, length);
        (entry.object, entry.length, entry.offset) = (stream as u32, length, offset);
        (sqe, entry)
    }

    fn read(&mut self, stream: usize, length: u32, how: How) -> (Sqe, Request) {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        let place = &self.world.streams[stream];
        if self.linked && self.reads[stream] {
            place.readers.fetch_add(1, AcqRel);
        } else if place.readers.compare_exchange(0, 1, AcqRel, Acquire).is_err() {
            return self.nop(0, false, false);
        }
        self.reads[stream] = true;
        let how = if self.linked && how == How::Many { How::Selected } else { how };
        let pipe = self.world.program.streams[stream] == Carrier::Pipe;
        let (kind, opcode) = match how {
            How::Many if pipe => (Kind::ReadMany, io_uring_op::IORING_OP_READ_MULTISHOT),
            How::Many => (Kind::ReadMany, io_uring_op::IORING_OP_RECV),
            How::Vector => (Kind::Read, io_uring_op::IORING_OP_READV),
            How::FixedBuffer => (Kind::Read, io_uring_op::IORING_OP_READ_FIXED),
            How::Socket | How::FixedSocket => (Kind::Read, io_uring_op::IORING_OP_RECV),
            How::Message => (Kind::Read, io_uring_op::IORING_OP_RECVMSG),
            How::Selected if !pipe => (Kind::Read, io_uring_op::IORING_OP_RECV),
            _ => (Kind::Read, io_uring_op::IORING_OP_READ),
        };
        let (mut sqe, mut entry) = self.of(kind, opcode);
        (sqe.fd, sqe.len) = (place.read_fd, length);
        if matches!(how, How::Socket | How::FixedSocket) && self.rng.percent(20) {
            sqe.op_flags = libc::MSG_WAITALL as u32;
        }
        if how == How::FixedSocket && self.has_newest() {
            sqe.ioprio = IORING_RECVSEND_FIXED_BUF as u16;
        }
        if matches!(how, How::Selected | How::Many) {
            (sqe.flags, sqe.buf_index) = (BUFFER_SELECT, GROUP);
            sqe.len = if how == How::Many { 0 } else { BUFFER as u32 };
            entry.traits |= traits::SELECTS;
        }
        if how == How::Many {
            entry.traits |= traits::MULTI;
            sqe.ioprio = if pipe { 0 } else { IORING_RECV_MULTISHOT as u16 };
        }
        (entry.object, entry.length) = (stream as u32, sqe.len);
        (sqe, entry)
    }

    /// Fills the request's place in the arena.
    fn fill(&mut self, id: u32, what: What, sqe: &mut Sqe, entry: &Request) {
        let place = self.world.place(id);
        let store = |at: usize, bytes: &[u8]| {
            assert!(at + bytes.len() <= PLACE, "within a place");
            // SAFETY: just checked.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.add(at), bytes.len()) };
        };
        match (entry.kind, what) {
            (Kind::Timeout | Kind::TimeoutMany, What::Timeout { us, .. })
            | (Kind::LinkTimeout, What::LinkTimeout { us }) => {
                let nanoseconds = u64::from(us) * 1000;
                store(0, &0u64.to_ne_bytes());
                store(8, &nanoseconds.to_ne_bytes());
                sqe.addr = place as u64;
                if self.has_newest() && self.rng.percent(50) {
                    sqe.addr = nanoseconds;
                    sqe.op_flags |= IORING_TIMEOUT_IMMEDIATE_ARG;
                }
            }
            (Kind::FilesUpdate, What::FilesUpdate { file, .. }) => {
                store(0, &file.map_or(-1, |file| self.world.files[file]).to_ne_bytes());
                sqe.addr = place as u64;
            }
            (Kind::WriteFile, _) => {
                store(0, &written(self.world.tag, id));
                (sqe.addr, sqe.len, sqe.off) = (place as u64, WRITTEN, u64::from(id * WRITTEN));
            }
            (Kind::ReadFile | Kind::OtherPipe, _) => {
                store(0, &[0xaa; UNIT as usize]);
                sqe.addr = place as u64;
            }
            (Kind::Write | Kind::SendZc, What::Write { .. }) => {
                let data = self.world.pattern(entry.object as usize, entry.offset, entry.length as usize);
                sqe.addr = data.as_ptr() as u64;
                // Data longer than a place is written from the pattern itself.
                if entry.length <= HEADER as u32 {
                    store(0, data);
                    sqe.addr = place as u64;
                }
                self.vectors(id, sqe, store);
            }
            (Kind::Read, What::Read { .. }) if entry.traits & traits::SELECTS == 0 => {
                // SAFETY: within the place.
                unsafe { std::ptr::write_bytes(place, 0xaa, entry.length as usize) };
                sqe.addr = place as u64;
                self.vectors(id, sqe, store);
            }
            _ => {}
        }
    }

    /// Stores iovecs or message headers, for operations that take them.
    fn vectors(&self, id: u32, sqe: &mut Sqe, store: impl Fn(usize, &[u8])) {
        const V: [u8; 2] = [io_uring_op::IORING_OP_READV as u8, io_uring_op::IORING_OP_WRITEV as u8];
        const M: [u8; 2] = [io_uring_op::IORING_OP_RECVMSG as u8, io_uring_op::IORING_OP_SENDMSG as u8];
        let header = self.world.place(id) as u64 + HEADER as u64;
        if V.contains(&sqe.opcode) || M.contains(&sqe.opcode) {
            store(HEADER, &sqe.addr.to_ne_bytes());
            store(HEADER + 8, &u64::from(sqe.len).to_ne_bytes());
            (sqe.addr, sqe.len) = (header, 1);
        }
        if M.contains(&sqe.opcode) {
            store(HEADER + 16, &[0; 56]);
            store(HEADER + 32, &header.to_ne_bytes());
            store(HEADER + 40, &1u64.to_ne_bytes());
            sqe.addr = header + 16;
        }
    }
}

/// Returns the time of the clock by which timeouts expire.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the contents that a request writes to a file.
pub fn written(tag: u32, id: u32) -> Vec<u8> {
    let word = u64::from(tag) << 32 | u64::from(id);
    (0..u64::from(WRITTEN) / 8).flat_map(|at| (word ^ at << 16).to_ne_bytes()).collect()
}

/// Withdraws requests from the ledger that are not pushed after all.
pub fn withdraw(world: &World, batch: &Batch) {
    use std::sync::atomic::Ordering::AcqRel;
    for &(id, _) in &batch.sqes {
        let request = world.shared.entry(id).request();
        match request.kind {
            Kind::Write | Kind::SendZc => {
                _ = world.streams[request.object as usize].writers.fetch_sub(1, AcqRel)
            }
            Kind::Read | Kind::ReadMany => {
                _ = world.streams[request.object as usize].readers.fetch_sub(1, AcqRel)
            }
            Kind::SendMessage | Kind::SendFile if request.other != 0 => {
                world.shared.entry(request.other - 1).set_state(State::Free);
            }
            _ => {}
        }
        world.shared.entry(id).set_state(State::Free);
    }
}
