//! One engine's half of a run: its ring, its world, its memory.

use std::collections::HashMap;
use std::path::Path;

use anyring_engine::{abi, io_uring_params};
use linux_raw_sys::io_uring::*;

use super::program::*;
use super::world::{LISTENER_PORT, NEVER_OPEN, Place, World};
use crate::ring::{self, Cqe, Engine, Ring, above_small_numbers};

/// The memory that requests read and write, between two inaccessible pages.
pub struct Arena {
    base: *mut u8,
}

const GUARD: usize = 64 * 1024;

impl Default for Arena {
    fn default() -> Arena {
        let (protection, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, and a part of it.
        unsafe {
            let all = libc::mmap(std::ptr::null_mut(), ARENA as usize + 2 * GUARD, protection, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED, "memory can be mapped");
            let base = all.cast::<u8>().add(GUARD);
            libc::mprotect(base.cast(), ARENA as usize, libc::PROT_READ | libc::PROT_WRITE);
            Arena { base }
        }
    }
}

impl Arena {
    /// Returns the address of an offset.
    pub fn address(&self, at: u32) -> u64 {
        self.base as u64 + u64::from(at)
    }

    /// Returns a copy of the whole arena.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; ARENA as usize];
        // SAFETY: the arena is mapped; concurrent writes only change bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.base, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Writes bytes at an offset.
    pub fn store(&self, at: u32, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= ARENA as usize, "a place in the arena");
        // SAFETY: just checked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at as usize), bytes.len()) };
    }
}

/// Returns the initial contents of buffers.
fn pattern() -> &'static [u8] {
    static PATTERN: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut bytes = vec![0; ARENA as usize];
        for (at, byte) in bytes.iter_mut().enumerate().skip(BUFFERS as usize) {
            *byte = b'a' + (at / 64 + at) as u8 % 26;
        }
        bytes
    })
}

/// Returns the initial contents of a word of a buffer.
pub fn pattern_at(at: u32) -> [u8; 4] {
    let at = at as usize;
    [pattern()[at], pattern()[at + 1], pattern()[at + 2], pattern()[at + 3]]
}

/// The offset of the argument of `enter`.
const ENTER_ARGUMENT: u32 = BUFFERS - 64;

/// One engine's side of a run.
pub struct Side<'a> {
    /// The engine.
    pub engine: Engine,
    /// The ring, or the errno of its creation.
    pub ring: Result<Ring, i32>,
    /// The files and sockets.
    pub world: World,
    arena: &'a Arena,
    before: Vec<u8>,
    /// CQEs that were reaped and not compared yet.
    pub taken: Vec<Cqe>,
    /// Descriptors that requests returned.
    pub returned: HashMap<u64, i32>,
}

impl<'a> Side<'a> {
    /// Creates everything that the program needs. The two sides of a run differ in `place`.
    pub fn new(
        engine: Engine,
        place: Place,
        arena: &'a Arena,
        scratch: &Path,
        program: &Program,
    ) -> Side<'a> {
        let world = World::new(place, scratch, program);
        arena.store(0, pattern());
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = program.setup_flags;
        params.cq_entries = program.cq_entries;
        let ring = above_small_numbers(|| Ring::new(engine, program.entries, params));
        let mut side = Side {
            engine,
            ring,
            world,
            arena,
            before: Vec::new(),
            taken: Vec::new(),
            returned: HashMap::new(),
        };
        for structure in &program.structures {
            let bytes = side.bytes(&structure.cells);
            arena.store(structure.at, &bytes);
        }
        side.before = arena.snapshot();
        side
    }

    fn bytes(&self, cells: &[Cell]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for cell in cells {
            match cell {
                Cell::Bytes(port) if port[..] == LISTENER_PORT => bytes.extend(self.world.port),
                Cell::Bytes(these) => bytes.extend(these),
                Cell::Word(word) => bytes.extend(word.to_ne_bytes()),
                Cell::Fd(fd) => bytes.extend(self.fd(*fd).to_ne_bytes()),
                Cell::Long(value) => bytes.extend(self.value(*value).to_ne_bytes()),
            }
        }
        bytes
    }

    /// Returns the ring.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("a ring was made")
    }

    fn fd(&self, fd: Fd) -> i32 {
        match fd {
            Fd::Raw(number) => number,
            Fd::Of(thing) => self.world.fd(thing),
            Fd::Ring => self.ring.as_ref().map_or(NEVER_OPEN, |ring| ring.fd),
            Fd::From(user_data) => self.returned.get(&user_data).copied().unwrap_or(NEVER_OPEN),
        }
    }

    fn value(&self, value: Value) -> u64 {
        match value {
            Value::Raw(raw) => raw,
            Value::At(at) => self.arena.address(at),
            Value::Fd(fd) => self.fd(fd) as u64,
        }
    }

    /// Returns an SQE with actual addresses and descriptors.
    pub fn known(&self, sqe: &Sqe) -> abi::Sqe {
        abi::Sqe {
            opcode: sqe.opcode,
            flags: sqe.flags,
            ioprio: sqe.ioprio,
            fd: self.fd(sqe.fd),
            off: self.value(sqe.off),
            addr: self.value(sqe.addr),
            len: self.value(sqe.len) as u32,
            op_flags: sqe.op_flags,
            user_data: sqe.user_data,
            buf_index: sqe.buf_index,
            personality: sqe.personality,
            file_index: self.value(sqe.file_index) as u32,
            addr3: self.value(sqe.addr3),
            pad: sqe.pad,
        }
    }

    /// Queues an SQE; if the SQ is full, it is left out in both engines.
    pub fn push(&mut self, sqe: &Sqe) -> bool {
        let sqe = self.known(sqe);
        let room = self.ring().has_room(&[sqe]);
        if room {
            self.ring().push(sqe);
        }
        room
    }

    /// Enters the ring as the program says.
    pub fn enter(&mut self, call: &Enter, patience_ns: u64) -> i32 {
        let time = |seconds: i64, ns: i64| [seconds.to_ne_bytes(), ns.to_ne_bytes()].concat();
        let ns = patience_ns as i64;
        self.arena.store(
            ENTER_ARGUMENT + 32,
            &match call.patience {
                Patience::Some | Patience::Fault => time(ns / 1_000_000_000, ns % 1_000_000_000),
                Patience::None => time(0, 0),
                Patience::Bad => time(-1, 1_001_000_000),
            },
        );
        let timespec = match call.patience {
            Patience::Fault => 8,
            _ => self.arena.address(ENTER_ARGUMENT + 32),
        };
        let mut argument = [0; 24];
        argument[16..].copy_from_slice(&timespec.to_ne_bytes());
        self.arena.store(ENTER_ARGUMENT, &argument);
        let argument = if call.argument_size == 0 { 0 } else { self.arena.address(ENTER_ARGUMENT) as usize };
        let engine = self.engine;
        let fd = self.ring().fd;
        let mut result = ring::enter(
            engine,
            fd,
            call.to_submit,
            call.min_complete,
            call.flags,
            argument,
            call.argument_size,
        );
        while result == -libc::EINTR && call.to_submit == 0 {
            // The kernel's ring interrupts sleeps of this thread to complete its requests.
            result = ring::enter(engine, fd, 0, call.min_complete, call.flags, argument, call.argument_size);
        }
        self.arena.store(ENTER_ARGUMENT, &[0; 48]);
        result
    }

    /// Enters the ring to get its completions, and waits for `wanted` CQEs.
    pub fn look(&mut self, wanted: u32, patience_ns: u64) -> i32 {
        let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        let patience = if wanted == 0 { Patience::None } else { Patience::Some };
        let call = Enter { to_submit: 0, min_complete: wanted, flags, patience, argument_size: 24 };
        self.enter(&call, patience_ns)
    }

    /// Makes a registration.
    pub fn register(&mut self, call: &Register) -> i32 {
        let argument = self.value(call.argument) as usize;
        let (engine, fd) = (self.engine, self.ring().fd);
        ring::register(engine, fd, call.opcode, argument, call.count)
    }

    /// Makes a system call besides those of the ring.
    pub fn act(&mut self, act: Act) -> String {
        if let Act::Provide { ring, mask, id, at, len } = act {
            let tail_at = ring + 14;
            let memory = self.arena.snapshot();
            let tail = u16::from_ne_bytes([memory[tail_at as usize], memory[tail_at as usize + 1]]);
            let entry = ring + 16 * u32::from(tail & mask);
            self.store(entry, &self.arena.address(at).to_ne_bytes());
            self.store(entry + 8, &len.to_ne_bytes());
            self.store(entry + 12, &id.to_ne_bytes());
            self.store(tail_at, &tail.wrapping_add(1).to_ne_bytes());
        }
        self.world.act(act)
    }

    /// Writes to a structure on behalf of the program.
    fn store(&mut self, at: u32, bytes: &[u8]) {
        self.arena.store(at, bytes);
        self.before[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// Reaps at most `count` CQEs.
    pub fn reap(&mut self, count: u32) {
        for _ in 0..count {
            let Some(cqe) = self.ring().reap() else { return };
            self.taken.push(cqe);
        }
    }

    /// Returns memory in the form in which the engines must agree: changed bytes as they are, other
    /// bytes as zero, because addresses differ.
    pub fn changes(&self, masked: &[(u32, u32)]) -> Vec<u8> {
        let mut now = self.arena.snapshot();
        for (byte, before) in now.iter_mut().zip(&self.before).take(BUFFERS as usize) {
            if byte == before {
                *byte = 0;
            }
        }
        for &(from, to) in masked {
            now[from as usize..to as usize].fill(0);
        }
        now
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        for &fd in self.returned.values() {
            ring::close(fd);
        }
    }
}
