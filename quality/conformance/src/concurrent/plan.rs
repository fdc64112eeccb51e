//! A program: its rings, and what its threads do with them.

use std::fmt;

use linux_raw_sys::io_uring::*;

use crate::harness::{SETUP, SQE_FLAGS, flags};

/// A ring to be created.
#[derive(Clone, Debug)]
pub struct RingPlan {
    /// `IORING_SETUP_*`.
    pub flags: u32,
    /// The number of SQEs.
    pub entries: u32,
    /// The number of CQEs, for `IORING_SETUP_CQSIZE`.
    pub cq_entries: u32,
    /// The thread that creates the ring, and ends it.
    pub owner: usize,
    /// The threads that use the ring.
    pub users: Vec<usize>,
    /// True if the ring is closed while it is in use.
    pub doomed: bool,
    /// True if the ring has an eventfd.
    pub eventfd: bool,
    /// True if the ring has a group of provided buffers.
    pub buffers: bool,
    /// True if the ring has a registered buffer.
    pub fixed_buffer: bool,
    /// True if, on the user engine, filters check some requests, which they allow.
    pub filtered: bool,
    /// True if requests may drain the ring.
    pub drains: bool,
}

impl RingPlan {
    /// True if only the owner may enter the ring.
    pub fn is_private(&self) -> bool {
        self.flags & IORING_SETUP_SINGLE_ISSUER != 0
    }

    /// True if the ring has an SQ thread.
    pub fn is_polled(&self) -> bool {
        self.flags & IORING_SETUP_SQPOLL != 0
    }

    /// True if a wait without a limit ends as soon as a request that is sure to complete has completed.
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
    /// READ or WRITE.
    Plain,
    /// READV or WRITEV.
    Vector,
    /// READ_FIXED or WRITE_FIXED.
    FixedBuffer,
    /// SEND or RECV.
    Socket,
    /// SEND or RECV with a registered buffer.
    FixedSocket,
    /// SENDMSG or RECVMSG.
    Message,
    /// SEND_ZC.
    ZeroCopy,
    /// With a provided buffer.
    Selected,
    /// A multishot request with provided buffers.
    Many,
}

/// The work of a child.
#[derive(Clone, Copy, Debug)]
pub enum Child {
    /// None: the child ends immediately.
    Ends,
    /// Requests on a ring of its own, among them messages to this ring, if any.
    OwnRing(Option<usize>),
    /// A NOP on this ring.
    Nop(usize),
}

/// The target of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// One request, by its user data.
    One,
    /// All requests on the read end of one stream.
    Stream(usize),
    /// Any one request.
    Any,
    /// All requests.
    All,
}

/// A request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum What {
    Nop {
        result: i32,
        big: bool,
        /// True if the SQE takes two places, unless it is linked.
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
    /// A read of a file whose descriptor is closed as soon as the request is submitted.
    ReadClosed {
        file: usize,
        unit: u32,
    },
    WriteClosed {
        disk: bool,
    },
    /// A request on a pipe whose read end is closed immediately; then a byte is written.
    OtherPipe,
    ReadFile {
        file: usize,
        unit: u32,
    },
    /// A read of a registered file, whichever is in the slot.
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
    /// `IOSQE_*` flags that link to the next request, or ask for threads or draining.
    pub flags: u8,
}

/// A thread's next step after it has pushed requests.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// Submit.
    Submit,
    /// Submit, and wait for this number of completions.
    Wait(u32),
    /// Submit, and wait at most this number of microseconds for a completion.
    WaitFor(u32),
    /// Wait for the ring's eventfd.
    Event,
}

/// Work of a thread on a ring that no other thread knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// Some NOPs.
    Nops,
    /// Close the ring with a request in it.
    Leaves,
    /// Write a file in pieces, and read it.
    Files,
    /// Open, write, read, close and remove a file by one chain.
    Chain,
    /// This number of concurrent connections.
    Connections(usize),
    /// Zero-copy sends by several descriptors of a socket, to a peer that does not always read.
    Unread,
}

/// An act of a thread.
#[derive(Clone, Debug)]
pub enum Act {
    /// Push requests to a ring.
    Push(usize, Vec<Req>, Then),
    /// Enter a ring, and reap its completions.
    Look(usize),
    /// Reap completions without a call.
    Reap(usize),
    /// `IORING_REGISTER_SYNC_CANCEL`, with a limit in microseconds or without.
    SyncCancel(usize, Whom, Option<u32>),
    /// Register another file in a slot, or clear it.
    Register(usize, u32, Option<usize>),
    /// Connect to a listener, and close the connection.
    Connect(usize),
    /// Write to an eventfd, or read it.
    Poke(usize, bool),
    /// Open a file, and close it.
    Open(usize),
    /// Create, use and close a ring of the thread's own.
    OwnRing(Own),
    /// Start a program.
    Exec,
    /// Close a ring that other threads use.
    CloseRing(usize, bool),
    /// Fork a child. It may be stopped at any point, until this work on another ring is done.
    Fork(Child, Option<Own>),
    /// Spin for this number of turns.
    Spin(u32),
}

/// How a program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Requests cancel everything.
    Cancel,
    /// `IORING_REGISTER_SYNC_CANCEL` cancels everything.
    SyncCancel,
    /// Rings are closed with requests in flight.
    Close,
}

/// A program.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Program {
    pub seed: u64,
    pub rings: Vec<RingPlan>,
    pub streams: Vec<Carrier>,
    /// The listeners: true for TCP, false for `AF_UNIX`.
    pub listeners: Vec<bool>,
    pub threads: Vec<Vec<Act>>,
    pub end: End,
    /// True if the program reports its closes to the engine.
    pub announces: bool,
    /// The seed of pauses in the engine; zero for none.
    pub pauses: u64,
    /// True if, on the user engine, the program uses features newer than this machine's kernel.
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
