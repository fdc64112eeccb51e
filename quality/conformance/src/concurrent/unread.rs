//! Zero-copy sends on a socket with several names: descriptors, and slots of rings. They are closed in any order, rings too, and the
//! peer reads at any time. The program overwrites memory as soon as a notification says that it is free: the peer's data shows
//! whether that was too early.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

use anyring_engine::abi::Sqe;
use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::{io_uring_op as Op, *};

use super::own::{Outcome, expect, sqe};
use super::world::World;
use crate::harness::sqe_flags::FIXED_FILE;
use crate::ring::{Engine, Ring};
use crate::rng::Rng;

const REGISTER: u32 = io_uring_register_op::IORING_REGISTER_FILES as u32;
const UNREGISTER: u32 = io_uring_register_op::IORING_UNREGISTER_FILES as u32;
/// The byte with which the program overwrites free memory; no block has it.
const FREE: u8 = 0xee;
/// The wait between two polls.
const SLICE_US: u32 = 1000;

/// The memory of one send.
struct Block {
    memory: Vec<u8>,
    byte: u8,
    result: Option<i32>,
    /// True if a notification is outstanding.
    owes: bool,
}

struct Unread<'a> {
    world: &'a World<'a>,
    rng: &'a mut Rng,
    rings: Vec<Ring>,
    /// By ring, true if the ring has the socket in its slot.
    slots: Vec<bool>,
    descriptors: Vec<i32>,
    far: TcpStream,
    blocks: Vec<Block>,
    /// The block that the peer reads, and the number of its bytes that were read.
    reads: (usize, usize),
}

/// Sends by the names of a new connection.
pub fn work(world: &World, rng: &mut Rng) {
    if let Err(what) = Unread::new(world, rng).and_then(Unread::run) {
        world.fail(format!("sends to a peer that does not read: {what}"));
    }
}

fn set(fd: i32, option: i32, value: &[i32]) {
    let (at, length) = (value.as_ptr().cast(), size_of_val(value) as u32);
    // SAFETY: an option of ours on a socket of ours.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, length) };
}

impl<'a> Unread<'a> {
    fn new(world: &'a World<'a>, rng: &'a mut Rng) -> Outcome<Unread<'a>> {
        let text = |error: std::io::Error| error.to_string();
        // An address other than the peer's: the user engine uses zero-copy there.
        let listener = TcpListener::bind("127.0.0.2:0").map_err(text)?;
        set(listener.as_raw_fd(), libc::SO_RCVBUF, &[rng.pick(&[32 << 10, 64 << 10, 256 << 10])]);
        let near = TcpStream::connect(listener.local_addr().map_err(text)?).map_err(text)?;
        set(near.as_raw_fd(), libc::SO_SNDBUF, &[4 << 20]);
        let far = listener.accept().map_err(text)?.0;
        far.set_nonblocking(true).map_err(text)?;
        let new = |_| {
            // SAFETY: integers only.
            let params: io_uring_params = unsafe { std::mem::zeroed() };
            Ring::new(world.engine, 16, params).map_err(|errno| format!("no ring: {errno}"))
        };
        let rings: Vec<Ring> = (0..1 + rng.below(2)).map(new).collect::<Outcome<_>>()?;
        let (slots, descriptors) = (vec![false; rings.len()], vec![near.into_raw_fd()]);
        Ok(Unread { world, rng, rings, slots, descriptors, far, blocks: vec![], reads: (0, 0) })
    }

    fn run(mut self) -> Outcome {
        let mut done = Ok(());
        for _ in 0..4 + self.rng.below(16) {
            done = done.and_then(|()| self.step());
        }
        let resets = self.rng.percent(40);
        if let Some(&fd) = self.descriptors.first()
            && resets
        {
            set(fd, libc::SO_LINGER, &[1, 0]);
        }
        // Slots are cleared, too, because a ring may keep its file.
        (0..self.rings.len()).for_each(|ring| self.empty_slot(ring));
        while !self.descriptors.is_empty() {
            self.close_one();
        }
        done?;
        self.end(resets)
    }

    fn names(&self) -> usize {
        self.descriptors.len() + self.slots.iter().filter(|&&has| has).count()
    }

    fn step(&mut self) -> Outcome {
        self.world.shared.step();
        let ring = self.rng.below(self.rings.len());
        match self.rng.below(10) {
            0..4 => self.send(ring)?,
            4 | 5 => self.duplicate(),
            6 | 7 if self.names() > 1 && !self.descriptors.is_empty() => self.close_one(),
            8 if self.slots[ring] && self.names() > 1 => self.empty_slot(ring),
            8 if !self.slots[ring] && !self.descriptors.is_empty() => {
                let fd = self.rng.pick(&self.descriptors);
                let result = self.rings[ring].register(REGISTER, &raw const fd as usize, 1);
                expect(result == 0, || format!("a slot gives {result}"))?;
                self.slots[ring] = true;
            }
            _ => {
                let most = 1 + self.rng.below(40_000);
                self.read(most)?;
            }
        }
        self.reap()
    }

    fn duplicate(&mut self) {
        if self.descriptors.is_empty() {
            return;
        }
        let old = self.rng.pick(&self.descriptors);
        // SAFETY: a new descriptor.
        let new = unsafe { libc::fcntl(old, libc::F_DUPFD_CLOEXEC, 0) };
        if new < 0 {
            return;
        }
        if self.world.engine == Engine::User && self.world.program.announces {
            anyring_engine::frontend::duplicated(old, new);
        }
        self.descriptors.push(new);
    }

    fn close_one(&mut self) {
        let place = self.rng.below(self.descriptors.len());
        self.world.close(self.descriptors.swap_remove(place));
    }

    fn empty_slot(&mut self, ring: usize) {
        if std::mem::take(&mut self.slots[ring]) {
            self.rings[ring].register(UNREGISTER, 0, 0);
        }
    }

    /// Sends by any name, mostly with zero-copy. If there is no room, the peer reads meanwhile.
    fn send(&mut self, ring: usize) -> Outcome {
        let (number, byte) = (self.blocks.len(), (self.blocks.len() % 200) as u8);
        let length = self.rng.pick(&[1000, 32 << 10, 100_000, 256 << 10]);
        let opcode = if self.rng.percent(80) { Op::IORING_OP_SEND_ZC } else { Op::IORING_OP_SEND };
        let memory = vec![byte; length];
        let (addr, len) = (memory.as_ptr() as u64, length as u32);
        self.blocks.push(Block { memory, byte, result: None, owes: false });
        let by_slot = self.slots[ring] && (self.descriptors.is_empty() || self.rng.percent(50));
        let (fd, flags) = match by_slot {
            true => (0, FIXED_FILE),
            false if self.descriptors.is_empty() => {
                // The other ring has the last name.
                self.blocks.pop();
                return Ok(());
            }
            false => (self.rng.pick(&self.descriptors), 0),
        };
        self.rings[ring].push(Sqe { flags, addr, len, user_data: number as u64, ..sqe(opcode, fd) });
        loop {
            let pending = self.rings[ring].pending();
            self.rings[ring].enter_for(pending, 1, IORING_ENTER_GETEVENTS, Some(SLICE_US));
            self.reap()?;
            match self.blocks[number].result {
                Some(result) if result > 0 => return Ok(()),
                Some(result) => return Err(format!("a send gives {result}")),
                None => {
                    self.read(64 << 10)?;
                }
            }
        }
    }

    /// Reaps completions of all rings. Overwrites memory that a notification reports as free.
    fn reap(&mut self) -> Outcome {
        for ring in &self.rings {
            ring.enter(0, 0, IORING_ENTER_GETEVENTS);
            while let Some(cqe) = ring.reap() {
                self.world.shared.step();
                let block = self.blocks.get_mut(cqe.user_data as usize).ok_or("a completion of nothing")?;
                if cqe.flags & IORING_CQE_F_NOTIF != 0 {
                    expect(block.owes, || format!("a notification that is not owed: {cqe:?}"))?;
                    block.owes = false;
                    block.memory.fill(FREE);
                } else {
                    expect(block.result.is_none(), || format!("completed twice: {cqe:?}"))?;
                    block.result = Some(cqe.res);
                    block.owes = cqe.flags & IORING_CQE_F_MORE != 0;
                }
            }
        }
        Ok(())
    }

    /// Reads at most `most` available bytes, and compares them with those sent. Returns `None` at the end, and after a reset.
    fn read(&mut self, most: usize) -> Outcome<Option<usize>> {
        let mut bytes = vec![0; most];
        let count = match self.far.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(0)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(format!("the peer reads: {error}")),
        };
        for &byte in &bytes[..count] {
            self.pass_whole_blocks();
            let block = self.blocks.get(self.reads.0).ok_or("more is read than was sent")?;
            let (at, wanted) = (self.reads, block.byte);
            expect(byte == wanted, || {
                format!("byte {} of block {} is {byte:#x}, not {wanted:#x}", at.1, at.0)
            })?;
            self.reads.1 += 1;
        }
        Ok(Some(count))
    }

    fn pass_whole_blocks(&mut self) {
        // The result of a send in flight is not known yet.
        let length = |block: &Block| block.result.map_or(block.memory.len(), |result| result.max(0) as usize);
        while self.blocks.get(self.reads.0).is_some_and(|block| self.reads.1 >= length(block)) {
            self.reads = (self.reads.0 + 1, 0);
        }
    }

    /// Ends without names: the peer reads to the end, and all memory must be reported as free.
    fn end(mut self, resets: bool) -> Outcome {
        // A reset comes immediately if nothing else has the socket, and otherwise after all data was read.
        let mut is_over = false;
        while !is_over || self.blocks.iter().any(|block| block.owes) {
            self.world.shared.step();
            if !is_over {
                is_over = self.read(64 << 10)?.is_none();
            }
            self.rings[0].enter_for(0, 1, 0, Some(SLICE_US));
            self.reap()?;
        }
        self.pass_whole_blocks();
        let all = self.reads.0 == self.blocks.len();
        expect(resets || all, || {
            format!("the peer has read {:?} of {} blocks", self.reads, self.blocks.len())
        })
    }
}
