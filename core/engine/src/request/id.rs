//! The ID of a request, its phase, its flags, and how it holds its file.

use crate::abi::flags;
use crate::assets::table::NodeIndex;
use crate::os::Fd;

/// Identifies a request; an ID whose request has ended identifies none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The phase of a request's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Prepared; possibly a link of a chain that has not started yet.
    Prepared,
    /// Held back by a drain.
    Deferred,
    /// Queued to be issued (again) when the ready queue is run.
    Ready,
    /// Waiting for readiness of its descriptor.
    Waiting,
    /// In the caller's work queue, or with a worker.
    Working,
    /// The read is in flight at the device: see [`crate::work::in_flight`].
    InFlight,
    /// Armed by its operation, with a timer or a count of completions.
    Armed,
}

/// Flags of a request. The lower eight bits are the flags of its SQE (`IOSQE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u32);

flags!(Flags);

impl Flags {
    /// `IOSQE_FIXED_FILE`.
    pub const FIXED_FILE: Flags = Flags(1 << 0);
    /// `IOSQE_IO_DRAIN`.
    pub const DRAIN: Flags = Flags(1 << 1);
    /// `IOSQE_IO_LINK`.
    pub const LINK: Flags = Flags(1 << 2);
    /// `IOSQE_IO_HARDLINK`.
    pub const HARDLINK: Flags = Flags(1 << 3);
    /// `IOSQE_ASYNC`.
    pub const ASYNC: Flags = Flags(1 << 4);
    /// `IOSQE_BUFFER_SELECT`.
    pub const BUFFER_SELECT: Flags = Flags(1 << 5);
    /// `IOSQE_CQE_SKIP_SUCCESS`, until the request fails.
    pub const CQE_SKIP: Flags = Flags(1 << 6);
    /// The request has failed; its soft links fail with it.
    pub const FAILED: Flags = Flags(1 << 8);
    /// The request failed before it was issued; `result` has the error.
    pub const FAILED_EARLY: Flags = Flags(1 << 9);
    /// The request has failed and would have skipped its CQE: the links that fail with it skip theirs.
    pub const SKIP_LINK_CQES: Flags = Flags(1 << 10);
    /// The next link is a LINK_TIMEOUT that is not armed yet.
    pub const ARM_LINK_TIMEOUT: Flags = Flags(1 << 11);
    /// Do not wait for readiness: complete with `-EAGAIN`.
    pub const NOWAIT: Flags = Flags(1 << 12);
    /// The request posts several CQEs.
    pub const MULTISHOT: Flags = Flags(1 << 13);
    /// The request ends with `-ECANCELED` as soon as the current attempt returns.
    pub const CANCELED: Flags = Flags(1 << 14);
    /// The request does not count as failed, whatever its result is.
    pub const NEVER_FAILS: Flags = Flags(1 << 15);
    /// Readiness has woken the request; `events` are the events.
    pub const WOKEN: Flags = Flags(1 << 16);
    /// The memory must lie in a registered buffer, which is not checked yet.
    pub const REGISTERED_BUFFER: Flags = Flags(1 << 17);
    /// A worker has the request.
    pub const HANDED_OVER: Flags = Flags(1 << 18);
    /// Kernel AIO may do the blocking attempt: a transfer past the page cache (`O_DIRECT`), or FSYNC.
    pub const DIRECT: Flags = Flags(1 << 20);
    /// In the kernel, a kernel thread would issue the request: because of `IOSQE_ASYNC`, a drain, or a
    /// chain that such a thread continues.
    pub const THREADED: Flags = Flags(1 << 22);
    /// A dedicated thread waits in the request's attempt, or has waited.
    pub const PATIENT: Flags = Flags(1 << 19);
    /// The request owes a notification, after its CQE, that its memory is free.
    pub const NOTIFIES: Flags = Flags(1 << 21);
    /// The blocking attempt may take for ever.
    pub const LONG: Flags = Flags(1 << 23);
    /// The request's CQE was posted before its end, so that no other CQE follows.
    pub const SILENCED: Flags = Flags(1 << 24);
    /// The request waits by its SQE alone, and is prepared when it leaves the short way (`quick.rs`).
    pub const UNPREPARED: Flags = Flags(1 << 25);
    /// Events of the request are reported: see [`crate::observe::trace`].
    pub const TRACED: Flags = Flags(1 << 26);
    /// Faults may be injected into the request: see [`crate::observe::chaos`].
    pub const CHAOS: Flags = Flags(1 << 27);
    /// No attempt was made yet, and faults may be injected into the first.
    pub const UNTRIED: Flags = Flags(1 << 28);
    /// The request will close the descriptor in its SQE; later requests treat the descriptor as closed.
    pub const CLOSES: Flags = Flags(1 << 29);
    /// The event that woke the request may have occurred before the request began to wait.
    pub const WOKEN_EARLY: Flags = Flags(1 << 30);
    /// In the kernel's ring the device would have the transfer by now: no cancellation finds it.
    pub const AT_DEVICE: Flags = Flags(1 << 31);

    /// Converts the flags of an SQE.
    pub const fn of_sqe(flags: u8) -> Flags {
        Flags(flags as u32)
    }

    /// Returns the flags of the SQE.
    pub const fn sqe(self) -> u8 {
        self.0 as u8
    }

    /// True if a flag is set that is not in `other`.
    pub const fn has_other_than(self, other: Flags) -> bool {
        self.0 & !other.0 != 0
    }

    /// True if all of `these` are set, and no other flag that is not in `others`.
    pub const fn are_only(self, these: Flags, others: Flags) -> bool {
        self.0 & !others.0 == these.0
    }

    /// Sets the flags in `other`.
    pub fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    /// Clears the flags in `other`.
    pub fn clear(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// True if the chain continues with the next request.
    pub const fn links(self) -> bool {
        self.has(Flags::LINK.with(Flags::HARDLINK))
    }
}

/// The offset of a transfer at the file's own position.
pub const POSITION: u64 = u64::MAX;

/// How a request holds its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileHold {
    /// Not looked up.
    #[default]
    None,
    /// The program's descriptor.
    Plain(Fd),
    /// A duplicate that belongs to the request, since the program may close its own descriptor.
    Owned(Fd),
    /// A duplicate that several requests share; it is closed when the last of them releases it.
    Kept(NodeIndex, Fd),
    /// A registered file, which exists at least until this request releases it.
    Fixed(NodeIndex, Fd),
}

impl FileHold {
    /// Returns the program's descriptor, if the request uses that.
    pub fn plain(self) -> Option<Fd> {
        match self {
            FileHold::Plain(fd) => Some(fd),
            _ => None,
        }
    }

    /// Makes the hold of a registered file whose node is held for the request.
    pub fn fixed((node, fd): (NodeIndex, Fd)) -> FileHold {
        FileHold::Fixed(node, fd)
    }

    /// Returns the descriptor number to use in system calls.
    pub fn fd(self) -> Fd {
        match self {
            FileHold::None => -1,
            FileHold::Plain(fd) | FileHold::Owned(fd) | FileHold::Kept(_, fd) | FileHold::Fixed(_, fd) => fd,
        }
    }
}
