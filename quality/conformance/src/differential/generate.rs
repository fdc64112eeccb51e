//! Generates random programs from the engine's op table: the operations, the SQE fields that each
//! reads, and what it may be combined with.
//!
//! Requests that the kernel gives to its threads would race with each other, so a batch with a
//! request that changes files ends there, or continues in its chain; see [`Effect`].

use anyring_engine::ops;
use anyring_engine::request::op::{Caps, Op};
use clap::ValueEnum;
use linux_raw_sys::io_uring::*;

use super::operations::{self, Effect};
use super::program::*;
use super::world::Thing;
use crate::harness::sqe_flags::*;
use crate::rng::Rng;

/// The state of the generator for one program.
pub struct Generator {
    /// The random numbers.
    pub rng: Rng,
    /// The program so far.
    pub program: Program,
    next_id: u64,
    structures_end: u32,
    buffers_end: u32,
    /// The number of SQEs that were pushed and not submitted.
    pending: u32,
    /// The effect of the unsubmitted batch on files.
    batch: Effect,
    /// True if the last pushed SQE is linked to the next.
    linked: bool,
    /// The number of slots for registered files; 0 without a registration.
    pub fixed_files: u32,
    /// The registered buffers: their addresses and lengths.
    pub fixed_buffers: Vec<(u32, u32)>,
    /// Groups of provided buffers: the ID and, for a ring, its address and mask.
    pub groups: Vec<(u16, Option<(u32, u16)>)>,
    /// True if the ring has not been enabled yet.
    disabled: bool,
    /// True if a personality is registered.
    personality: bool,
}

/// Generates the program of a seed.
pub fn program(seed: u64) -> Program {
    let mut generator = Generator::new(seed);
    generator.setup();
    let steps = 2 + generator.rng.below(10);
    for _ in 0..steps {
        if generator.program.strict { generator.strict_step() } else { generator.step() }
    }
    match (generator.pending, generator.program.strict) {
        (0, _) => {}
        (_, true) => generator.strict_enter(),
        (_, false) => generator.submit(),
    }
    generator.program
}

impl Generator {
    fn new(seed: u64) -> Generator {
        let mut rng = Rng::new(seed);
        let strict = rng.percent(25);
        let ending = if rng.percent(60) { Ending::CancelAll } else { Ending::Close };
        let program = Program {
            seed,
            strict,
            entries: 0,
            setup_flags: 0,
            cq_entries: 0,
            structures: Vec::new(),
            masked: Vec::new(),
            steps: Vec::new(),
            ending,
        };
        Generator {
            rng,
            program,
            next_id: 1,
            structures_end: 64,
            buffers_end: BUFFERS,
            pending: 0,
            batch: Effect::None,
            linked: false,
            fixed_files: 0,
            fixed_buffers: Vec::new(),
            groups: Vec::new(),
            disabled: false,
            personality: false,
        }
    }

    fn setup(&mut self) {
        let rng = &mut self.rng;
        self.program.entries = rng.pick(&[1, 2, 3, 4, 8, 8, 8, 16, 16, 32]);
        let mut flags = 0;
        for flag in [
            IORING_SETUP_CLAMP,
            IORING_SETUP_SUBMIT_ALL,
            IORING_SETUP_COOP_TASKRUN,
            IORING_SETUP_SINGLE_ISSUER,
            IORING_SETUP_NO_SQARRAY,
            IORING_SETUP_SQE128,
            IORING_SETUP_CQE32,
        ] {
            if rng.percent(20) {
                flags |= flag;
            }
        }
        if rng.percent(30) {
            flags |= IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
        }
        if flags & (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN) != 0 && rng.percent(30) {
            flags |= IORING_SETUP_TASKRUN_FLAG;
        }
        if rng.percent(25) {
            flags |= IORING_SETUP_CQSIZE;
            self.program.cq_entries = self.program.entries * rng.pick(&[1, 1, 2, 3, 4]);
        }
        if rng.percent(6) {
            flags |= IORING_SETUP_R_DISABLED;
            self.disabled = true;
        }
        if rng.percent(3) {
            self.garbage_setup(&mut flags);
        }
        self.program.setup_flags = flags;
    }

    fn garbage_setup(&mut self, flags: &mut u32) {
        let rng = &mut self.rng;
        match rng.below(6) {
            0 => self.program.entries = rng.pick(&[0, 32768, 32769, u32::MAX]),
            1 => {
                *flags |= IORING_SETUP_CQSIZE;
                self.program.cq_entries = rng.pick(&[0, 1, 65536, 65537, u32::MAX]);
            }
            2 => *flags |= 1 << (20 + rng.below(12)),
            3 => *flags |= IORING_SETUP_DEFER_TASKRUN,
            4 => *flags |= IORING_SETUP_TASKRUN_FLAG,
            _ => *flags |= IORING_SETUP_SQ_AFF | IORING_SETUP_HYBRID_IOPOLL,
        }
    }

    /// Returns the number of SQEs that may be pushed before the ring is entered.
    fn sq_entries(&self) -> u32 {
        self.program.entries.checked_next_power_of_two().unwrap_or(1)
    }

    /// Places a structure in memory; returns its address.
    pub fn structure(&mut self, what: &'static str, cells: Vec<Cell>) -> Value {
        let length: u32 = cells.iter().map(Cell::length).sum();
        let at = self.structures_end;
        self.structures_end = (at + length + 15) & !15;
        if self.structures_end > BUFFERS - 8192 {
            self.structures_end = 64;
        }
        self.program.structures.push(Structure { at, what, cells });
        Value::At(at)
    }

    /// Returns a buffer that no other request has.
    pub fn buffer(&mut self, length: u32) -> Value {
        let at = self.buffers_end;
        self.buffers_end = (at + length.min(8192) + 63) & !63;
        if self.buffers_end > ARENA - 8192 {
            self.buffers_end = BUFFERS;
        }
        Value::At(at)
    }

    /// Excludes memory from the comparison.
    pub fn mask(&mut self, place: Value, from: u32, to: u32) {
        if let Value::At(at) = place {
            self.program.masked.push((at + from, at + to));
        }
    }

    /// Returns the user data of an earlier request, or of none.
    pub fn earlier(&mut self) -> u64 {
        if self.rng.percent(10) {
            4040
        } else {
            1 + self.rng.below((self.next_id as usize).saturating_sub(2)) as u64
        }
    }

    fn step(&mut self) {
        if self.disabled && self.rng.percent(40) {
            self.disabled = false;
            let opcode = io_uring_register_op::IORING_REGISTER_ENABLE_RINGS as u32;
            self.register(Register { opcode, argument: Value::Raw(0), count: 0 });
        }
        match self.rng.below(20) {
            0..13 => self.push_some(),
            13..15 => self.submit(),
            15 => {
                let call = operations::register(self);
                if self.pending > 0 {
                    self.submit();
                }
                self.register(call);
            }
            16 if self.pending > 0 => self.submit(),
            _ => self.act(),
        }
    }

    fn register(&mut self, call: Register) {
        self.personality |= call.opcode == io_uring_register_op::IORING_REGISTER_PERSONALITY as u32;
        self.program.steps.push(Step::Register(call));
    }

    fn push_some(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            if self.pending == self.sq_entries() {
                self.submit();
            }
            let (sqe, effect) = self.random_sqe();
            self.push(sqe, effect);
        }
        if self.rng.percent(50) {
            self.submit();
        }
    }

    fn push(&mut self, mut sqe: Sqe, effect: Effect) {
        if self.pending > 0 && !self.linked && self.batch.conflicts(effect) {
            self.submit();
        }
        self.batch = self.batch.max(effect);
        self.linked = sqe.flags & (LINK | HARDLINK) != 0;
        if sqe.flags & SKIP != 0 && effect > Effect::None && !self.linked {
            // Without a CQE, the end of the request would be unknown.
            sqe.flags &= !SKIP;
        }
        self.program.steps.push(Step::Push(sqe));
        self.pending += 1;
    }

    /// Removes the link of the last SQE: an open chain goes to a thread of the kernel.
    fn end_chain(&mut self) {
        let last = self.program.steps.iter_mut().rev().find_map(|step| match step {
            Step::Push(sqe) => Some(sqe),
            _ => None,
        });
        if let Some(sqe) = last
            && sqe.flags & LINKS != 0
        {
            // Without a CQE, the end of the request would be unknown.
            sqe.flags &= !(LINK | HARDLINK | SKIP);
        }
    }

    /// Enters the ring with the pushed SQEs.
    fn submit(&mut self) {
        self.end_chain();
        let submit = match self.rng.below(12) {
            0 => self.pending + 1,
            1 if self.batch == Effect::None => self.part_of_pending(),
            _ => self.pending,
        };
        let mut call = Enter {
            to_submit: submit,
            min_complete: 0,
            flags: IORING_ENTER_EXT_ARG,
            patience: Patience::Some,
            argument_size: 24,
        };
        if self.rng.percent(60) {
            call.flags |= IORING_ENTER_GETEVENTS;
            call.min_complete =
                if self.rng.percent(50) { self.rng.below(submit as usize + 1) as u32 } else { 0 };
        }
        if self.rng.percent(4) {
            self.garbage_enter(&mut call);
        }
        self.program.steps.push(Step::Enter(call));
        self.pending = self.pending.saturating_sub(call.to_submit);
        let races = self.batch != Effect::None;
        if self.pending == 0 {
            self.batch = Effect::None;
            self.linked = false;
        }
        // Requests that were only submitted now must be settled soon.
        if !self.rng.percent(10) || races {
            self.program.steps.push(Step::Settle);
        }
    }

    /// Returns how many SQEs to submit so that no chain is cut.
    fn part_of_pending(&mut self) -> u32 {
        let part = self.rng.below(self.pending as usize + 1);
        let flags: Vec<u8> = self.program.sqes().map(|sqe| sqe.flags).collect();
        let first = flags.len() - self.pending as usize;
        if part > 0 && flags[first + part - 1] & LINKS != 0 { self.pending } else { part as u32 }
    }

    fn garbage_enter(&mut self, call: &mut Enter) {
        match self.rng.below(6) {
            0 => call.flags |= 1 << (8 + self.rng.below(24)),
            1 if self.program.setup_flags & IORING_SETUP_DEFER_TASKRUN == 0 => {
                call.argument_size = self.rng.pick(&[0, 8, 16, 23, 25, 4096]);
            }
            2 => call.patience = Patience::Bad,
            // How much is done before the fault is detected depends on the engine.
            3 if self.program.setup_flags & IORING_SETUP_DEFER_TASKRUN == 0 => {
                call.patience = Patience::Fault
            }
            4 => call.patience = Patience::None,
            _ => call.to_submit = self.rng.pick(&[0, u32::MAX, 1 << 31]),
        }
    }

    fn random_sqe(&mut self) -> (Sqe, Effect) {
        let present: Vec<u8> = ops::ROWS
            .iter()
            .filter(|op| op.caps.has(Caps::PRESENT) && operations::is_generated(op))
            .map(|op| op.code)
            .collect();
        let code = if self.rng.percent(12) { 0 } else { self.rng.pick(&present) };
        let op = ops::lookup(code);
        let mut sqe = Sqe::new(code, self.next_id);
        self.next_id += 1;
        let mut effect = operations::fill(self, op, &mut sqe);
        self.random_flags(op, &mut sqe);
        if op.name == "READ_MULTISHOT" {
            // The kernel's thread would wait before it takes a buffer.
            sqe.flags &= !ASYNC;
        }
        if sqe.flags & ASYNC != 0 {
            effect = effect.max(Effect::Alone);
        }
        if self.personality && self.rng.percent(15) {
            sqe.personality = 1;
        }
        if self.rng.percent(10) {
            effect = effect.max(self.spoil(&mut sqe));
        }
        operations::keep_safe(&mut sqe);
        (sqe, effect)
    }

    fn random_flags(&mut self, op: &Op, sqe: &mut Sqe) {
        let rng = &mut self.rng;
        for (flag, chance) in [(DRAIN, 4), (LINK, 20), (HARDLINK, 7), (ASYNC, 8), (SKIP, 6)] {
            if rng.percent(chance) {
                sqe.flags |= flag;
            }
        }
        if op.caps.has(Caps::BUFFER_SELECT) && !self.groups.is_empty() && rng.percent(30) {
            sqe.flags |= BUFFER_SELECT;
            sqe.buf_index = rng.pick(&self.groups).0;
            if rng.percent(60) {
                sqe.addr = Value::Raw(0);
            }
        }
        if op.caps.has(Caps::FILE) && self.fixed_files > 0 && rng.percent(35) {
            sqe.flags |= FIXED_FILE;
            sqe.fd = Fd::Raw(rng.below(self.fixed_files as usize + 1) as i32);
        }
    }

    /// Makes one field of an SQE invalid, or unusual.
    fn spoil(&mut self, sqe: &mut Sqe) -> Effect {
        let rng = &mut self.rng;
        let bad = [0, 1, 0xdead_0000, 0x7fff_ffff_f000, 0xffff_8000_0000_0000, u64::MAX];
        let bits = |rng: &mut Rng| 1u64 << rng.below(32);
        match rng.below(14) {
            0 => sqe.fd = rng.pick(&[Fd::Raw(-1), Fd::Raw(399), Fd::Raw(i32::MIN), Fd::Raw(i32::MAX)]),
            1 => sqe.fd = Fd::Of(rng.pick(Thing::value_variants())),
            2 => sqe.addr = Value::Raw(rng.pick(&bad)),
            3 => sqe.off = Value::Raw(rng.pick(&[0, 1, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX])),
            4 => {
                sqe.len =
                    Value::Raw(rng.pick(&[0, 1, 2, 5000, 0x7fff_f000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff]))
            }
            5 => sqe.op_flags ^= bits(rng) as u32,
            6 => sqe.ioprio ^= bits(rng) as u16 | 1,
            7 => sqe.buf_index = rng.pick(&[0, 1, 2, 7, u16::MAX]),
            8 => sqe.personality = rng.pick(&[1, 2, u16::MAX]),
            9 => sqe.file_index = Value::Raw(rng.pick(&[1, 2, 9, 0xffff_ffff, 0xffff_fffe])),
            10 => sqe.addr3 = Value::Raw(rng.pick(&bad)),
            11 => sqe.pad = 2,
            12 => sqe.flags ^= 1 << rng.below(8),
            _ => sqe.opcode = rng.pick(&[ops::COUNT as u8, 100, 200, 255]),
        }
        let op = ops::lookup(sqe.opcode);
        if op.caps.has(Caps::FILE) && sqe.flags & FIXED_FILE == 0 && matches!(sqe.fd, Fd::Raw(3..200)) {
            // Other numbers could be those of the rings.
            sqe.fd = Fd::Raw(399);
        }
        if op.caps.has(Caps::SOCKET) || op.name == "SENDMSG_ZC" {
            const MSG_CMSG_COMPAT: u32 = 1 << 31;
            sqe.op_flags &= !MSG_CMSG_COMPAT;
        }
        Effect::Alone
    }

    fn act(&mut self) {
        use Thing::*;
        let writers = [FullW, EmptyW, NonblockW, StreamA, StreamB, IdleA, IdleB, DgramB, TcpA, TcpB, Event0];
        let readers = [FullR, EmptyR, NonblockR, StreamA, StreamB, IdleA, IdleB, DgramA, TcpA, TcpB, Event5];
        let rng = &mut self.rng;
        let act = match rng.below(12) {
            0..5 => Act::Write(rng.pick(&writers), rng.pick(&[1, 10, 64, 100, 1000])),
            5..8 => Act::Read(rng.pick(&readers), rng.pick(&[1, 10, 64, 100, 1000])),
            8 => Act::Shutdown(rng.pick(&[StreamA, StreamB, IdleA, IdleB, TcpA, TcpB]), rng.below(3) as i32),
            9 => Act::Close(rng.pick(&[EmptyW, FullW, IdleB, StreamB, TcpB, FullR, IdleA])),
            10 => Act::Connect,
            _ => match self.groups.iter().find_map(|group| group.1) {
                Some((ring, mask)) => {
                    let (id, len) = (rng.below(8) as u16, rng.pick(&[16, 64, 200]));
                    let Value::At(at) = self.buffer(len) else { return };
                    Act::Provide { ring, mask, id, at, len }
                }
                None => Act::Write(EmptyW, 7),
            },
        };
        if self.pending > 0 {
            self.submit();
        }
        self.program.steps.push(Step::Act(act));
        if self.rng.percent(80) {
            self.program.steps.push(Step::Settle);
        }
    }

    /// Adds a step of a program of which every word is compared.
    fn strict_step(&mut self) {
        match self.rng.below(10) {
            0..6 => {
                for _ in 0..1 + self.rng.below(6) {
                    if self.pending < self.sq_entries() {
                        let sqe = self.strict_sqe();
                        self.program.steps.push(Step::Push(sqe));
                        self.pending += 1;
                    }
                }
            }
            6..9 => self.strict_enter(),
            _ => {
                let count = 1 + self.rng.below(8) as u32;
                self.program.steps.push(Step::Reap(count));
            }
        }
        if self.disabled && self.rng.percent(30) {
            self.disabled = false;
            let opcode = io_uring_register_op::IORING_REGISTER_ENABLE_RINGS as u32;
            let count = u32::from(self.rng.percent(5));
            self.register(Register { opcode, argument: Value::Raw(0), count });
        }
    }

    fn strict_enter(&mut self) {
        self.end_chain();
        let rng = &mut self.rng;
        let to_submit = match rng.below(8) {
            0 => self.pending + 1,
            _ => self.pending,
        };
        let mut call = Enter {
            to_submit,
            min_complete: 0,
            flags: IORING_ENTER_EXT_ARG,
            patience: Patience::None,
            argument_size: 24,
        };
        if rng.percent(50) {
            call.flags |= IORING_ENTER_GETEVENTS;
            call.min_complete = rng.below(to_submit as usize + 2) as u32;
        }
        if rng.percent(4) {
            self.garbage_enter(&mut call);
        }
        self.pending -= to_submit.min(self.pending);
        self.program.steps.push(Step::Enter(call));
    }

    fn strict_sqe(&mut self) -> Sqe {
        let rng = &mut self.rng;
        let mut sqe = Sqe::new(0, self.next_id);
        self.next_id += 1;
        if rng.percent(25) {
            sqe.op_flags = IORING_NOP_INJECT_RESULT;
            sqe.len = Value::Raw(rng.pick(&[5, (-5i32) as u32, (-125i32) as u32, 0]).into());
        }
        // Without drains: the kernel gives requests behind one to a thread.
        for (flag, chance) in [(LINK, 30), (HARDLINK, 10), (SKIP, 8)] {
            if rng.percent(chance) {
                sqe.flags |= flag;
            }
        }
        if self.program.setup_flags & IORING_SETUP_DEFER_TASKRUN != 0 {
            // How far a chain advances in one call depends on the engine.
            sqe.flags &= !(LINK | HARDLINK);
        }
        if rng.percent(8) {
            match rng.below(7) {
                0 => sqe.opcode = rng.pick(&[ops::COUNT as u8, 200, 255]),
                1 => sqe.flags |= 0x80,
                2 => sqe.ioprio = 1,
                3 => sqe.personality = 3,
                // A NOP by task work may complete after later ones.
                4 => sqe.op_flags |= 1 << rng.below(32) & !IORING_NOP_TW,
                5 => sqe.flags |= BUFFER_SELECT,
                _ => {
                    sqe.op_flags = IORING_NOP_FILE;
                    sqe.flags |= rng.pick(&[0, FIXED_FILE]);
                }
            }
        }
        sqe
    }
}

impl Cell {
    /// Returns the length in memory.
    fn length(&self) -> u32 {
        match self {
            Cell::Bytes(bytes) => bytes.len() as u32,
            Cell::Word(_) | Cell::Fd(_) => 4,
            Cell::Long(_) => 8,
        }
    }
}
