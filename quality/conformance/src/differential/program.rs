//! The parts of a random program, and its printed form.
//!
//! Addresses and descriptors are symbolic, because the two engines run the same program, each in a
//! separate world.

use std::fmt::{self, Display, Formatter};

use anyring_engine::ops;

use super::world::Thing;
use crate::harness::sqe_flags::{ASYNC, DRAIN, LINKS};
use crate::harness::{SETUP, SQE_FLAGS, flags};

/// The size of the memory that requests read and write. The lower half has structures (iovecs,
/// paths, timespecs), the upper half buffers.
pub const ARENA: u32 = 128 * 1024;
/// The offset at which the buffers begin.
pub const BUFFERS: u32 = 64 * 1024;

/// A descriptor, or a number in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fd {
    /// This number.
    Raw(i32),
    /// A thing of the world.
    Of(Thing),
    /// The ring itself.
    Ring,
    /// The descriptor that the request with this user data returned.
    From(u64),
}

/// A 64-bit value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// This number.
    Raw(u64),
    /// An address in the arena.
    At(u32),
    /// A descriptor.
    Fd(Fd),
}

/// A piece of a structure in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cell {
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// A 32-bit number.
    Word(u32),
    /// A 32-bit descriptor.
    Fd(Fd),
    /// A 64-bit value.
    Long(Value),
}

/// A structure in the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Structure {
    /// The address in the arena.
    pub at: u32,
    /// The name of the structure, for the listing.
    pub what: &'static str,
    /// The parts of the structure.
    pub cells: Vec<Cell>,
}

/// An SQE before addresses and descriptors are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields of an SQE")]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: Fd,
    pub off: Value,
    pub addr: Value,
    pub len: Value,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: Value,
    pub addr3: Value,
    pub pad: u64,
}

impl Sqe {
    /// Returns an SQE without arguments.
    pub fn new(opcode: u8, user_data: u64) -> Sqe {
        Sqe {
            opcode,
            flags: 0,
            ioprio: 0,
            fd: Fd::Raw(-1),
            off: Value::Raw(0),
            addr: Value::Raw(0),
            len: Value::Raw(0),
            op_flags: 0,
            user_data,
            buf_index: 0,
            personality: 0,
            file_index: Value::Raw(0),
            addr3: Value::Raw(0),
            pad: 0,
        }
    }
}

/// The timeout of a wait in `enter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// No time.
    None,
    /// Some time, in which everything that can complete does.
    Some,
    /// An invalid timespec.
    Bad,
    /// An invalid address.
    Fault,
}

/// A call of `io_uring_enter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the arguments of the call")]
pub struct Enter {
    pub to_submit: u32,
    pub min_complete: u32,
    pub flags: u32,
    pub patience: Patience,
    pub argument_size: usize,
}

/// A call of `io_uring_register`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the arguments of the call")]
pub struct Register {
    pub opcode: u32,
    pub argument: Value,
    pub count: u32,
}

/// An action of the program by plain system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Writes this number of bytes.
    Write(Thing, u32),
    /// Reads at most this number of bytes, without blocking.
    Read(Thing, u32),
    /// Shuts a socket down (`SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`).
    Shutdown(Thing, i32),
    /// Closes a descriptor.
    Close(Thing),
    /// Connects a new socket to the listener.
    Connect,
    /// Appends a buffer to a registered buffer ring.
    Provide {
        /// The address of the buffer ring.
        ring: u32,
        /// The number of its entries less one.
        mask: u16,
        /// The buffer ID.
        id: u16,
        /// The address of the buffer.
        at: u32,
        /// The length of the buffer.
        len: u32,
    },
}

/// A step of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Queues an SQE.
    Push(Sqe),
    /// Enters the ring.
    Enter(Enter),
    /// Reaps at most this number of CQEs.
    Reap(u32),
    /// Registers something.
    Register(Register),
    /// Makes a system call besides those of the ring.
    Act(Act),
    /// Waits until both engines have posted all CQEs that they can, and reaps them.
    Settle,
}

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Closes the ring with requests in flight.
    Close,
    /// Cancels all requests first, and expects a CQE for each.
    CancelAll,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The seed that the program was generated from.
    pub seed: u64,
    /// True if every step is deterministic: CQEs and ring words must be equal after each.
    pub strict: bool,
    /// `entries` of the setup call.
    pub entries: u32,
    /// The flags of the setup call.
    pub setup_flags: u32,
    /// `cq_entries` of the setup parameters.
    pub cq_entries: u32,
    /// The initial contents of memory.
    pub structures: Vec<Structure>,
    /// Memory whose contents always differ: inode numbers, times, descriptors.
    pub masked: Vec<(u32, u32)>,
    /// The steps of the program.
    pub steps: Vec<Step>,
    /// How the program ends.
    pub ending: Ending,
}

impl Program {
    /// True if the program uses `IOSQE_IO_DRAIN`.
    pub fn drains(&self) -> bool {
        self.sqes().any(|sqe| sqe.flags & DRAIN != 0)
    }

    /// Returns the SQEs that the program pushes.
    pub fn sqes(&self) -> impl Iterator<Item = &Sqe> {
        self.steps.iter().filter_map(|step| match step {
            Step::Push(sqe) => Some(sqe),
            _ => None,
        })
    }

    /// True if a submission ends in the middle of a chain, which the kernel then gives to a thread.
    pub fn cuts_chains(&self) -> bool {
        let mut queued = Vec::new();
        for step in &self.steps {
            match step {
                Step::Push(sqe) => queued.push(sqe.flags & LINKS != 0),
                Step::Enter(enter) => {
                    let taken = (enter.to_submit as usize).min(queued.len());
                    if taken > 0 && queued[taken - 1] {
                        return true;
                    }
                    queued.drain(..taken);
                }
                _ => {}
            }
        }
        queued.last() == Some(&true)
    }

    /// True if the program closes a descriptor itself.
    pub fn closes(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Act(Act::Close(_))))
    }

    /// True if the program's CQ has room for only a few completions.
    pub fn has_small_cq(&self) -> bool {
        (1..=4).contains(&self.cq_entries) || self.cq_entries == 0 && self.entries <= 2
    }

    /// True if the program itself writes to a counter more than once.
    pub fn counts_twice(&self) -> bool {
        let counts = |step: &&Step| matches!(step, Step::Act(Act::Write(Thing::Event0 | Thing::Event5, _)));
        self.steps.iter().filter(counts).count() > 1
    }

    /// True if the program has sends whose memory the network may keep.
    pub fn sends_zero_copy(&self) -> bool {
        let names = ["SEND_ZC", "SENDMSG_ZC"];
        self.sqes().any(|sqe| names.contains(&ops::lookup(sqe.opcode).name))
    }

    /// True if the kernel may give one of the requests to a thread.
    pub fn uses_threads(&self) -> bool {
        self.sqes().any(|sqe| sqe.flags & (DRAIN | ASYNC | LINKS) != 0)
    }

    /// Returns the first request of this one's chain.
    pub fn chain_of(&self, user_data: u64) -> u64 {
        let mut head = None;
        for sqe in self.sqes() {
            let first = *head.get_or_insert(sqe.user_data);
            if sqe.user_data == user_data {
                return first;
            }
            if sqe.flags & LINKS == 0 {
                head = None;
            }
        }
        user_data
    }

    /// Removes the push of the SQE with this user data.
    pub fn forget(&mut self, user_data: u64) {
        self.steps.retain(|step| !matches!(step, Step::Push(sqe) if sqe.user_data == user_data));
    }

    /// Returns the SQE with this user data.
    pub fn sqe(&self, user_data: u64) -> Option<&Sqe> {
        self.sqes().find(|sqe| sqe.user_data == user_data)
    }
}

const ENTER: &[&str] = &[
    "GETEVENTS",
    "SQ_WAKEUP",
    "SQ_WAIT",
    "EXT_ARG",
    "REGISTERED_RING",
    "ABS_TIMER",
    "EXT_ARG_REG",
    "NO_IOWAIT",
];

impl Display for Fd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fd::Raw(number) => write!(f, "{number}"),
            Fd::Of(thing) => write!(f, "{thing:?}"),
            Fd::Ring => f.write_str("ring"),
            Fd::From(user_data) => write!(f, "result(#{user_data})"),
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Raw(value) if value < 100_000 => write!(f, "{value}"),
            Value::Raw(value) => write!(f, "{value:#x}"),
            Value::At(at) if at >= BUFFERS => write!(f, "buffers+{}", at - BUFFERS),
            Value::At(at) => write!(f, "memory+{at}"),
            Value::Fd(fd) => write!(f, "{fd}"),
        }
    }
}

impl Display for Sqe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let op = ops::lookup(self.opcode);
        write!(f, "#{} ", self.user_data)?;
        if (self.opcode as usize) < ops::COUNT {
            f.write_str(op.name)?
        } else {
            write!(f, "op {}", self.opcode)?
        }
        if self.fd != Fd::Raw(-1) {
            write!(f, " fd={}", self.fd)?;
        }
        let values = [
            ("off", self.off),
            ("addr", self.addr),
            ("len", self.len),
            ("addr3", self.addr3),
            ("file_index", self.file_index),
        ];
        for (name, value) in values.into_iter().filter(|&(_, value)| value != Value::Raw(0)) {
            write!(f, " {name}={value}")?;
        }
        let numbers = [
            ("op_flags", self.op_flags.into()),
            ("ioprio", self.ioprio.into()),
            ("buf_index", self.buf_index.into()),
            ("personality", self.personality.into()),
            ("pad", self.pad),
        ];
        for (name, value) in numbers.into_iter().filter(|&(_, value)| value != 0) {
            write!(f, " {name}={}", Value::Raw(value))?;
        }
        if self.flags != 0 { write!(f, "  {}", flags(self.flags.into(), SQE_FLAGS)) } else { Ok(()) }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Push(sqe) => write!(f, "push      {sqe}"),
            Step::Enter(enter) => {
                write!(f, "enter     submit={} wait={}", enter.to_submit, enter.min_complete)?;
                write!(f, " flags={}", flags(enter.flags, ENTER))?;
                write!(f, " timeout={:?} size={}", enter.patience, enter.argument_size)
            }
            Step::Reap(count) => write!(f, "reap      {count}"),
            Step::Register(call) => {
                write!(f, "register  {} argument={} count={}", call.opcode, call.argument, call.count)
            }
            Step::Act(act) => write!(f, "act       {act:?}"),
            Step::Settle => f.write_str("settle"),
        }
    }
}

impl Display for Structure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", Value::At(self.at), self.what)?;
        for cell in &self.cells {
            match cell {
                Cell::Bytes(bytes) => write!(f, " {:?}", String::from_utf8_lossy(bytes))?,
                Cell::Word(word) => write!(f, " {:#x}", word)?,
                Cell::Fd(fd) => write!(f, " {fd}")?,
                Cell::Long(value) => write!(f, " {value}")?,
            }
        }
        Ok(())
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "program {:#018x}: {} entries", self.seed, self.entries)?;
        if self.cq_entries != 0 {
            write!(f, ", {} CQ entries", self.cq_entries)?;
        }
        writeln!(
            f,
            ", flags {}, {}",
            flags(self.setup_flags, SETUP),
            if self.strict { "strict" } else { "loose" }
        )?;
        for structure in &self.structures {
            writeln!(f, "        {structure}")?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {number:>3}   {step}")?;
        }
        write!(f, "  end   {:?}", self.ending)
    }
}
