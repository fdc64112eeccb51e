//! An operation: how it is named and printed, what it may be combined with, and what is refused of it before its first step.
//!
//! A row of the op table ([`crate::ring::row::Row`]) has this, and the steps of the operation. Nothing else tells operations apart.

pub use linux_raw_sys::io_uring::io_uring_op as Code;

use anyring_chaos_plan::{Fault, Faults};

use crate::abi::{Errno, Sqe, flags};
use crate::request::field::{FIRST_PRIVATE, UNKNOWN};
use crate::request::shown::Argument;
use crate::request::unused::Unused;

/// An operation.
#[derive(Clone, Copy)]
pub struct Op {
    /// `IORING_OP_*`.
    pub code: u8,
    /// Its name without the prefix.
    pub name: &'static str,
    /// The SQE's fields that it reads, in the order in which they are printed.
    pub arguments: &'static [Argument],
    /// The fields that must be zero (`EINVAL`), which is checked before anything else of them. A field that
    /// is neither here nor read is ignored, as the kernel ignores it.
    pub unused: Option<Unused>,
    /// The parts of it that are missing, for the support page.
    pub limits: &'static str,
    /// The errors that it answers with of its own accord: from checks, copies and look-ups of the engine's, not from the
    /// system calls that it makes. `make coverage` fails where the tests have not seen one of them.
    ///
    /// Left out is what tests cannot bring about: memory or descriptors that run out, rights that a process lacks, and
    /// what depends on how far another thread is (`EALREADY`).
    pub errors: &'static [Errno],
    /// The abilities and needs of its requests.
    pub caps: Caps,
    /// Faults that chaos may inject, as the kernel could have them happen.
    pub faults: Faults,
    /// The most bytes of a request that may leave together with others, by one system call; 0 where none may.
    pub together_bytes: u32,
    /// Whether this kernel has the system calls that it needs; asked by the probe.
    pub available: fn() -> bool,
}

/// Capabilities and needs of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps(u32);

flags!(Caps);

impl Caps {
    /// No capability.
    pub const NONE: Caps = Caps(0);
    /// The engine has it; the probe shows it.
    pub const PRESENT: Caps = Caps(1 << 0);
    /// `fd` is a file, looked up when the request is issued.
    pub const FILE: Caps = Caps(1 << 1);
    /// The operation can take a provided buffer.
    pub const BUFFER_SELECT: Caps = Caps(1 << 2);
    /// `ioprio` means something.
    pub const IOPRIO: Caps = Caps(1 << 3);
    /// With `IOSQE_ASYNC` it goes to a worker at once, instead of being tried and waited for.
    pub const ASYNC_BLOCKS: Caps = Caps(1 << 4);
    /// Blocking attempts of this operation on one regular file are done one after the other.
    pub const HASHED: Caps = Caps(1 << 5);
    /// The operation is allowed on a polled ring (`IORING_SETUP_IOPOLL`).
    pub const IOPOLL: Caps = Caps(1 << 6);
    /// With offset -1 it moves the file's position: then its blocking attempts keep their order, too.
    pub const POSITION: Caps = Caps(1 << 7);
    /// Its blocking attempt takes longer than waking a worker: a caller who does not wait hands it over.
    pub const SLOW: Caps = Caps(1 << 8);
    /// On a polled ring, it goes without polling its file.
    pub const UNPOLLED: Caps = Caps(1 << 9);
    /// An error that the attempt itself comes to does not break its chain: the kernel never marked it.
    pub const SPARES_LINKS: Caps = Caps(1 << 10);
    /// The operation has neither a file nor a blocking attempt, and yet the kernel looks at its credentials.
    pub const CREDENTIALS: Caps = Caps(1 << 13);
    /// Its file must be a socket, and that comes before any other fault of the attempt.
    pub const SOCKET: Caps = Caps(1 << 11);
    /// The kernel does it during the submission, or waits for it without a thread, where we give it to our queue.
    pub const AT_ONCE: Caps = Caps(1 << 12);

    /// Only its own ring can do it: it acts on other requests, on buffers or files there, or may.
    pub const OF_ITS_RING: Caps = Caps(1 << 14);
    /// With an offset it does: it counts completions.
    pub const COUNTS: Caps = Caps(1 << 15);

    /// With a file index it puts a file into that slot.
    pub const INSTALLS: Caps = Caps(1 << 16);
    /// With a file index it empties that slot.
    pub const EMPTIES: Caps = Caps(1 << 17);
    /// The operation ends or changes other requests, which may be ready by then.
    pub const CANCELS: Caps = Caps(1 << 18);

    /// While it is armed, a cancellation does not find it among what waits: it looks for it elsewhere, or not at all.
    pub const HIDDEN: Caps = Caps(1 << 20);
    /// The operation waits without a file, in the kernel's list of futexes: cancelling one reports how many were.
    pub const LISTED_FUTEX: Caps = Caps(1 << 21);
    /// The operation waits without a file, in the kernel's list of waits for children.
    pub const LISTED_CHILD: Caps = Caps(1 << 28);
    /// The operation waits in one of these lists.
    pub const LISTED: Caps = Caps::LISTED_FUTEX.with(Caps::LISTED_CHILD);
    /// The operation watches over the request before it in its chain.
    pub const WATCHES: Caps = Caps(1 << 22);
    /// The operation polls: its events and its user data can be changed while it waits.
    pub const POLLS: Caps = Caps(1 << 23);
    /// While it is armed, another process of its ring takes it over where its own ends.
    pub const INHERITED: Caps = Caps(1 << 24);

    /// A second CQE says when its memory is the program's again.
    pub const NOTIFIES: Caps = Caps(1 << 25);

    /// Its SQE takes two places, where the ring's are not as big anyway.
    pub const WIDE: Caps = Caps(1 << 26);

    /// Each CQE but the last tells of data in registered pages: where they lie there stands in its second half.
    pub const PLACES: Caps = Caps(1 << 27);

    /// Once it was issued it is done, though it may wait for a lock: a cancellation comes too late.
    pub const COMMITTED: Caps = Caps(1 << 29);

    /// No operation of this version of the ABI has the number.
    pub const UNKNOWN: Caps = Caps(1 << 19);
}

impl Op {
    /// An operation with what most have.
    pub const fn new(code: u8, name: &'static str, caps: Caps) -> Op {
        Op {
            code,
            name,
            arguments: &[],
            unused: None,
            limits: "",
            errors: &[],
            caps: caps.with(Caps::PRESENT),
            faults: Faults::list(&[
                Fault::Late,
                Fault::Overflow,
                Fault::SqeRubbish,
                Fault::PauseIssue,
                Fault::PauseWake,
            ]),
            together_bytes: 0,
            available: || true,
        }
    }

    /// The operation that stands for numbers without one. Its own number is none of the kernel's.
    pub const fn unknown() -> Op {
        Op { caps: Caps::UNKNOWN, available: || false, ..Op::new(UNKNOWN, "UNKNOWN", Caps::NONE) }
    }

    /// How many places its SQE takes in the queue: two, where SQEs of two sizes are `mixed` and there is a place for the second
    /// half of a long one.
    pub const fn places(&self, mixed: bool, has_second: bool) -> u32 {
        if mixed && has_second && self.caps.has(Caps::WIDE) { 2 } else { 1 }
    }

    /// True if no operation of this version of the ABI has the number.
    pub const fn is_unknown(&self) -> bool {
        self.caps.has(Caps::UNKNOWN)
    }

    /// True if something stands in a field of the SQE in which nothing may.
    #[inline(always)]
    pub fn refuses(&self, sqe: &Sqe) -> bool {
        self.unused.as_ref().is_some_and(|unused| unused.is_set(sqe))
    }

    /// True if such a request can be done only by the ring to which it is submitted.
    pub fn needs_its_ring(&self, sqe: &Sqe) -> bool {
        self.caps.has(Caps::OF_ITS_RING) || self.caps.has(Caps::COUNTS) && sqe.off != 0
    }

    /// True if no kernel has the operation.
    pub fn is_private(&self) -> bool {
        self.code >= FIRST_PRIVATE
    }
}
