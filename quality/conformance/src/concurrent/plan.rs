//! A program: rings, and what each of its threads does with them.

use std::fmt;

use linux_raw_sys::io_uring::*;

use crate::harness::{SETUP, SQE_FLAGS, flags};

/// A ring to be made.
#[derive(Clone, Debug)]
pub struct RingPlan {
    /// `IORING_SETUP_*`.
    pub flags: u32,
    /// SQEs.
    pub entries: u32,
    /// CQEs, with `IORING_SETUP_CQSIZE`.
    pub cq_entries: u32,
    /// The thread that makes it, and ends it.
    pub owner: usize,
    /// Threads that use it.
    pub users: Vec<usize>,
    /// The ring is closed while it is in use.
    pub doomed: bool,
    /// Has an eventfd.
    pub eventfd: bool,
    /// Has a group of provided buffers.
    pub buffers: bool,
    /// Has a registered buffer.
    pub fixed_buffer: bool,
    /// On our engine it asks filters about some requests, which they allow.
    pub filtered: bool,
    /// Requests may drain it.
    pub drains: bool,
}

impl RingPlan {
    /// True if only the ring's owner is to enter it.
    pub fn is_private(&self) -> bool {
        self.flags & IORING_SETUP_SINGLE_ISSUER != 0
    }

    /// True if the ring has an SQ thread.
    pub fn is_polled(&self) -> bool {
        self.flags & IORING_SETUP_SQPOLL != 0
    }

    /// True if a wait without a limit is sure to end once something is sure to complete.
    pub fn waits_for_ever(&self) -> bool {
        !self.doomed && !self.drains
    }
}

/// The kind of object that carries bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// A pipe.
    Pipe,
    /// A pair of sockets.
    Pair,
    /// A connection.
    Tcp,
}

/// How bytes are written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// READ, WRITE.
    Plain,
    /// READV, WRITEV.
    Vector,
    /// READ_FIXED, WRITE_FIXED.
    FixedBuffer,
    /// SEND, RECV.
    Socket,
    /// SEND, RECV with a registered buffer.
    FixedSocket,
    /// SENDMSG, RECVMSG.
    Message,
    /// SEND_ZC.
    ZeroCopy,
    /// A provided buffer.
    Selected,
    /// A multishot with provided buffers.
    Many,
}

/// Whom a cancellation is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// One request, by its user data.
    One,
    /// All of one stream's reading end.
    Stream(usize),
    /// Anyone.
    Any,
    /// Everyone.
    All,
}

/// A request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum What {
    Nop {
        result: i32,
        big: bool,
        /// The SQE takes two places, unless it is linked.
        wide: bool,
    },
    Timeout {
        us: u32,
        count: u32,
        many: bool,
    },
    TimeoutRemove,
    LinkTimeout {
        us: u32,
    },
    Poll {
        event: usize,
        many: bool,
    },
    /// Of a file with a descriptor that is closed as soon as the request is submitted.
    ReadClosed {
        file: usize,
        unit: u32,
    },
    WriteClosed {
        disk: bool,
    },
    /// Of a pipe whose reading end is closed at once; then a byte is written.
    OtherPipe,
    ReadFile {
        file: usize,
        unit: u32,
    },
    /// Of a registered file, whichever is there.
    ReadSlot {
        slot: u32,
        unit: u32,
    },
    WriteFile {
        disk: bool,
    },
    FilesUpdate {
        slot: u32,
        file: Option<usize>,
    },
    Write {
        stream: usize,
        length: u32,
        how: How,
    },
    Read {
        stream: usize,
        length: u32,
        how: How,
    },
    Accept {
        listener: usize,
        many: bool,
    },
    SendMessage {
        to: usize,
    },
    SendFile {
        to: usize,
        slot: u32,
        silent: bool,
    },
    Cancel(Whom),
    Splice,
}

/// A request with its flags.
#[derive(Clone, Copy, Debug)]
pub struct Req {
    /// The operation.
    pub what: What,
    /// `IOSQE_*` that lead to the next one, or ask for threads or draining.
    pub flags: u8,
}

/// The thread's next step after it has pushed requests.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// Submits.
    Submit,
    /// Submits and waits for so many, until they are there.
    Wait(u32),
    /// Submits and waits at most so many microseconds for one.
    WaitFor(u32),
    /// Waits for the ring's eventfd.
    Event,
}

/// The work of a thread on a ring that no other knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// Some NOPs.
    Nops,
    /// Closes it with a request in it.
    Leaves,
    /// Writes a file in pieces, and reads it.
    Files,
    /// Opens, writes, reads, closes and removes a file by one chain.
    Chain,
    /// So many connections at a time.
    Connections(usize),
    /// Sends without a copy by several names of a socket, to a peer that does not always read.
    Unread,
}

/// One thing that a thread does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Pushes requests to a ring.
    Push(usize, Vec<Req>, Then),
    /// Enters a ring for what is there.
    Look(usize),
    /// Takes completions without a call.
    Reap(usize),
    /// `IORING_REGISTER_SYNC_CANCEL`, for so many microseconds or for ever.
    SyncCancel(usize, Whom, Option<u32>),
    /// Registers another file in a slot, or none.
    Register(usize, u32, Option<usize>),
    /// Connects to a listener, and closes the connection.
    Connect(usize),
    /// Raises an eventfd, or takes what it counts.
    Poke(usize, bool),
    /// Opens a file, and closes it.
    Open(usize),
    /// Makes a ring of its own, uses and closes it.
    OwnRing(Own),
    /// Starts a program.
    Exec,
    /// Closes a ring that others use.
    CloseRing(usize, bool),
    /// A child that ends at once, uses a ring of its own, or pushes a NOP to a ring. It is stopped at any moment, perhaps, until
    /// this work on another ring is done.
    Fork(Option<Option<usize>>, Option<Own>),
    /// Nothing, for so many turns.
    Spin(u32),
}

/// How it all ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Everything is cancelled by requests.
    Cancel,
    /// By `IORING_REGISTER_SYNC_CANCEL`.
    SyncCancel,
    /// Rings are closed with what is in them.
    Close,
}

/// A program.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Program {
    pub seed: u64,
    pub rings: Vec<RingPlan>,
    pub streams: Vec<Carrier>,
    /// The listeners, true for those over TCP; the others are of `AF_UNIX`.
    pub listeners: Vec<bool>,
    pub threads: Vec<Vec<Act>>,
    pub end: End,
    /// The engine hears what the program closes.
    pub announces: bool,
    /// Decides pauses in the engine; zero for none.
    pub pauses: u64,
    /// On our engine it has what is newer than the kernel that judges the others.
    pub newest: bool,
}

impl Program {
    /// True if any request of the program fits.
    pub fn has(&self, fits: impl Fn(&What) -> bool) -> bool {
        self.threads.iter().flatten().any(|act| match act {
            Act::Push(_, requests, _) => requests.iter().any(|request| fits(&request.what)),
            _ => false,
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Program { seed, announces, pauses, end, streams, listeners, newest, .. } = self;
        writeln!(
            f,
            "program {seed:#018x}: closes announced: {announces}, pauses: {pauses:#x}, end: {end:?}, \
             newest: {newest}, streams: {streams:?}, listeners over TCP: {listeners:?}"
        )?;
        for (index, ring) in self.rings.iter().enumerate() {
            let RingPlan { entries, cq_entries, owner, users, .. } = ring;
            let has = [
                (ring.doomed, "is closed"),
                (ring.eventfd, "eventfd"),
                (ring.buffers, "provided buffers"),
                (ring.fixed_buffer, "registered buffer"),
                (ring.filtered, "filters"),
                (ring.drains, "drains"),
            ];
            let has: Vec<&str> = has.iter().filter(|(has, _)| *has).map(|&(_, name)| name).collect();
            writeln!(
                f,
                "  ring {index}: {entries} entries, CQ {cq_entries}, {}; of thread {owner}, used by {users:?}; {}",
                flags(ring.flags, SETUP),
                has.join(", ")
            )?;
        }
        for (index, acts) in self.threads.iter().enumerate() {
            writeln!(f, "  thread {index}")?;
            for (place, act) in acts.iter().enumerate() {
                writeln!(f, "    {place:>2} {act}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Push(ring, requests, then) => {
                write!(f, "ring {ring}:")?;
                for (index, request) in requests.iter().enumerate() {
                    write!(f, "{} {:?}", if index > 0 { "," } else { "" }, request.what)?;
                    if request.flags != 0 {
                        write!(f, " {}", flags(request.flags.into(), SQE_FLAGS))?;
                    }
                }
                write!(f, "; {then:?}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}
