//! The name of a request, its place in its life, its marks, and how it holds its file.

use crate::abi::flags;
use crate::assets::table::NodeIndex;
use crate::os::Fd;

/// Names a request for as long as it lives; afterwards it names none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Where a request is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Prepared, perhaps a link of a chain whose turn has not come.
    Prepared,
    /// Held back by a drain.
    Deferred,
    /// To be issued (again) when the ready queue is run.
    Ready,
    /// Armed for readiness of a descriptor.
    Waiting,
    /// In the hands of the caller's work queue or of a worker.
    Working,
    /// The device has what it reads: see [`crate::work::in_flight`].
    InFlight,
    /// Armed by its operation: a timer, a sequence count.
    Armed,
}

/// Marks of a request. The lower eight are those of its SQE (`IOSQE_*`).
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
    /// The request failed, and its soft links with it.
    pub const FAILED: Flags = Flags(1 << 8);
    /// The request failed before it was issued; `result` says how.
    pub const FAILED_EARLY: Flags = Flags(1 << 9);
    /// The request failed and would have skipped its CQE: so do the links that fail with it.
    pub const SKIP_LINK_CQES: Flags = Flags(1 << 10);
    /// A LINK_TIMEOUT follows it, not armed yet.
    pub const ARM_LINK_TIMEOUT: Flags = Flags(1 << 11);
    /// Never wait for readiness: report `-EAGAIN`.
    pub const NOWAIT: Flags = Flags(1 << 12);
    /// The request posts CQEs until it ends.
    pub const MULTISHOT: Flags = Flags(1 << 13);
    /// To be cancelled as soon as whoever works on it is done.
    pub const CANCELED: Flags = Flags(1 << 14);
    /// Not counted as failed whatever its result.
    pub const NEVER_FAILS: Flags = Flags(1 << 15);
    /// Readiness woke it: the next attempt may find `events` of use.
    pub const WOKEN: Flags = Flags(1 << 16);
    /// Its memory must lie in a registered buffer, and that has not been checked yet.
    pub const REGISTERED_BUFFER: Flags = Flags(1 << 17);
    /// A worker has it.
    pub const HANDED_OVER: Flags = Flags(1 << 18);
    /// The transfer goes past the page cache.
    pub const DIRECT: Flags = Flags(1 << 20);
    /// The kernel would have a thread of its own issue it: told so, behind a drain, or in a chain that such
    /// a thread goes on with.
    pub const THREADED: Flags = Flags(1 << 22);
    /// A thread of its own has waited for it, or does.
    pub const PATIENT: Flags = Flags(1 << 19);
    /// The request owes a notification that its memory is free, behind its own CQE.
    pub const NOTIFIES: Flags = Flags(1 << 21);
    /// The work for the request may take for ever.
    pub const LONG: Flags = Flags(1 << 23);
    /// Its end was told before it came: there is no other CQE.
    pub const SILENCED: Flags = Flags(1 << 24);
    /// The request waits by its SQE alone, and is prepared only if it comes to more than one attempt.
    pub const UNPREPARED: Flags = Flags(1 << 25);
    /// The request's events are told: see [`crate::observe::trace`].
    pub const TRACED: Flags = Flags(1 << 26);
    /// Faults may be injected: see [`crate::observe::chaos`].
    pub const CHAOS: Flags = Flags(1 << 27);
    /// No attempt was made yet, where faults may be injected into the first.
    pub const UNTRIED: Flags = Flags(1 << 28);
    /// To what is submitted behind it, the descriptor that it names is closed.
    pub const CLOSES: Flags = Flags(1 << 29);
    /// The request was woken by what may have happened before it began to wait.
    pub const WOKEN_EARLY: Flags = Flags(1 << 30);
    /// The device of the kernel's own ring would have it by now: it is found by no cancellation.
    pub const AT_DEVICE: Flags = Flags(1 << 31);

    /// The flags of an SQE.
    pub const fn of_sqe(flags: u8) -> Flags {
        Flags(flags as u32)
    }

    /// The SQE's flags among them.
    pub const fn sqe(self) -> u8 {
        self.0 as u8
    }

    /// True if any is set that is not in `other`.
    pub const fn has_other_than(self, other: Flags) -> bool {
        self.0 & !other.0 != 0
    }

    /// True if all of `these` are set, and of the rest none that is not in `others`.
    pub const fn are_only(self, these: Flags, others: Flags) -> bool {
        self.0 & !others.0 == these.0
    }

    /// Adds `other`.
    pub fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    /// Takes `other` away.
    pub fn clear(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// True for a part of a chain that goes on.
    pub const fn links(self) -> bool {
        self.has(Flags::LINK.with(Flags::HARDLINK))
    }
}

/// The offset of a transfer that means the file's own position.
pub const POSITION: u64 = u64::MAX;

/// How a request holds its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileHold {
    /// Not looked up.
    #[default]
    None,
    /// The program's descriptor.
    Plain(Fd),
    /// A duplicate of the engine's own, since the program may close its descriptor.
    Owned(Fd),
    /// A duplicate of the engine's own that several requests share: it lasts until the last of them lets go of it.
    Kept(NodeIndex, Fd),
    /// A registered file, which stays alive until this request lets go of it.
    Fixed(NodeIndex, Fd),
}

impl FileHold {
    /// The program's descriptor, if it is by that.
    pub fn plain(self) -> Option<Fd> {
        match self {
            FileHold::Plain(fd) => Some(fd),
            _ => None,
        }
    }

    /// Of a registered file that is held for it.
    pub fn fixed((node, fd): (NodeIndex, Fd)) -> FileHold {
        FileHold::Fixed(node, fd)
    }

    /// The descriptor number to use in system calls.
    pub fn fd(self) -> Fd {
        match self {
            FileHold::None => -1,
            FileHold::Plain(fd) | FileHold::Owned(fd) | FileHold::Kept(_, fd) | FileHold::Fixed(_, fd) => fd,
        }
    }
}
