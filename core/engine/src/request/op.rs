//! An operation: its name, arguments, abilities, and the checks before its first step.
//!
//! A row of the op table ([`crate::ring::row::Row`]) consists of an operation and its steps. No other code distinguishes operations.

pub use linux_raw_sys::io_uring::io_uring_op as Code;

use anyring_chaos_plan::journal::Effect;
use anyring_chaos_plan::{Fault, Faults};

use crate::abi::{Errno, Sqe, flags};
use crate::request::field::Unused;
use crate::request::field::{FIRST_PRIVATE, UNKNOWN};
use crate::request::shown::Argument;

/// The number of an operation of the kernel, and its name without the prefix `IORING_OP_`.
pub type Named = (Code, &'static str);

/// Returns an operation of the kernel by the name of its number, as a [`Named`].
#[macro_export]
macro_rules! op {
    ($code:ident) => {
        ($crate::request::op::Code::$code, $crate::request::op::bare(stringify!($code)))
    };
}

pub use crate::op;

/// Returns the name of an operation without the prefix `IORING_OP_`.
pub const fn bare(name: &'static str) -> &'static str {
    name.split_at("IORING_OP_".len()).1
}

/// An operation.
#[derive(Clone, Copy)]
pub struct Op {
    /// `IORING_OP_*`.
    pub code: u8,
    /// Name without the prefix `IORING_OP_`.
    pub name: &'static str,
    /// The SQE fields that the operation reads, in the order in which they are printed.
    pub arguments: &'static [Argument],
    /// The fields that must be zero (`EINVAL`), checked before all other fields. A field that is neither in
    /// here nor read is ignored, as by the kernel.
    pub unused: Option<Unused>,
    /// Missing parts of the operation, for the support page.
    pub limits: &'static str,
    /// The errors that the engine itself returns for the operation, from its checks, copies and look-ups; not those of
    /// system calls. `make coverage` fails if the tests have not seen one of them.
    ///
    /// Errors that tests cannot provoke are left out: lack of memory, descriptors or rights, and errors that depend on
    /// the progress of another thread (`EALREADY`).
    pub errors: &'static [Errno],
    /// Abilities and needs of the operation.
    pub caps: Caps,
    /// Faults that chaos may inject, because they could occur in the kernel.
    pub faults: Faults,
    /// The effect of the operation on files, which a power cut may undo.
    pub stores: Option<Effect>,
    /// Maximum length in bytes of a request that may be sent together with others by one system call; 0 if none may.
    pub together_bytes: u32,
    /// True if this kernel has the system calls that the operation needs; called by the probe.
    pub available: fn() -> bool,
}

/// Abilities and needs of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps(u32);

flags!(Caps);

impl Caps {
    /// No ability.
    pub const NONE: Caps = Caps(0);
    /// The engine has the operation; the probe reports it.
    pub const PRESENT: Caps = Caps(1 << 0);
    /// `fd` is a file, looked up when the request is issued.
    pub const FILE: Caps = Caps(1 << 1);
    /// The operation can use a provided buffer.
    pub const BUFFER_SELECT: Caps = Caps(1 << 2);
    /// The operation uses `ioprio`.
    pub const IOPRIO: Caps = Caps(1 << 3);
    /// With `IOSQE_ASYNC`, a worker does the operation without a first non-blocking attempt.
    pub const ASYNC_BLOCKS: Caps = Caps(1 << 4);
    /// Blocking attempts on one regular file are made one after the other.
    pub const HASHED: Caps = Caps(1 << 5);
    /// The operation is allowed on a polled ring (`IORING_SETUP_IOPOLL`).
    pub const IOPOLL: Caps = Caps(1 << 6);
    /// With offset -1 the operation moves the file's position, and its blocking attempts keep their order, too.
    pub const POSITION: Caps = Caps(1 << 7);
    /// The blocking attempt takes longer than waking a worker: a caller that does not wait passes it to a worker.
    pub const SLOW: Caps = Caps(1 << 8);
    /// On a polled ring, the operation is allowed although its file cannot be polled.
    pub const UNPOLLED: Caps = Caps(1 << 9);
    /// An error of the attempt itself does not break the chain, because the kernel does not mark the request as failed.
    pub const SPARES_LINKS: Caps = Caps(1 << 10);
    /// The operation depends on credentials although it has neither a file nor a blocking attempt.
    pub const CREDENTIALS: Caps = Caps(1 << 13);
    /// The file must be a socket; this is checked before any other error of the attempt.
    pub const SOCKET: Caps = Caps(1 << 11);
    /// The kernel executes the operation during submission or waits without a thread, where the engine queues work.
    pub const AT_ONCE: Caps = Caps(1 << 12);

    /// Only the request's own ring can execute it, since it may act on the ring's requests, buffers or files.
    pub const OF_ITS_RING: Caps = Caps(1 << 14);
    /// With an offset, only its own ring can execute it: it counts completions.
    pub const COUNTS: Caps = Caps(1 << 15);

    /// With `file_index`, the operation puts a file into that slot.
    pub const INSTALLS: Caps = Caps(1 << 16);
    /// With `file_index`, the operation empties that slot.
    pub const EMPTIES: Caps = Caps(1 << 17);
    /// The operation cancels or changes other requests, which may be ready by then.
    pub const CANCELS: Caps = Caps(1 << 18);

    /// While armed, it is not found among the waiting requests by a cancellation, which finds it elsewhere or not at all.
    pub const HIDDEN: Caps = Caps(1 << 20);
    /// The operation waits without a file, in the kernel's list of futexes, of whose cancellations the kernel returns the count.
    pub const LISTED_FUTEX: Caps = Caps(1 << 21);
    /// The operation waits without a file, in the kernel's list of waits for children (WAITID).
    pub const LISTED_CHILD: Caps = Caps(1 << 28);
    /// The operation waits in one of the two lists.
    pub const LISTED: Caps = Caps::LISTED_FUTEX.with(Caps::LISTED_CHILD);
    /// The operation watches the previous request of its chain (LINK_TIMEOUT).
    pub const WATCHES: Caps = Caps(1 << 22);
    /// The operation polls: its events and user data can be changed while it waits.
    pub const POLLS: Caps = Caps(1 << 23);
    /// When its process ends while it is armed, another process of the ring takes it over.
    pub const INHERITED: Caps = Caps(1 << 24);

    /// A second CQE notifies that its memory is free.
    pub const NOTIFIES: Caps = Caps(1 << 25);

    /// The SQE has 128 bytes, which are two entries on a ring of mixed sizes.
    pub const WIDE: Caps = Caps(1 << 26);

    /// Each CQE but the last reports data in registered pages; its second half has their place.
    pub const PLACES: Caps = Caps(1 << 27);

    /// Once issued it is executed, although it may wait for a lock: a cancellation comes too late.
    pub const COMMITTED: Caps = Caps(1 << 29);

    /// The number has no operation in this version of the ABI.
    pub const UNKNOWN: Caps = Caps(1 << 19);
}

impl Op {
    /// True if the operation brings a file's data to the device.
    pub fn is_sync(&self) -> bool {
        self.stores == Some(Effect::Sync)
    }

    /// Makes an operation with the properties that most have.
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
            stores: None,
            together_bytes: 0,
            available: || true,
        }
    }

    /// Makes the operation that stands for unassigned opcodes.
    pub const fn unknown() -> Op {
        Op { caps: Caps::UNKNOWN, available: || false, ..Op::new(UNKNOWN, "UNKNOWN", Caps::NONE) }
    }

    /// Returns the number of SQ entries of its SQE: two if the ring mixes SQE sizes, the operation is wide and the second entry
    /// exists.
    pub const fn places(&self, mixed: bool, has_second: bool) -> u32 {
        if mixed && has_second && self.caps.has(Caps::WIDE) { 2 } else { 1 }
    }

    /// True if the number has no operation in this version of the ABI.
    pub const fn is_unknown(&self) -> bool {
        self.caps.has(Caps::UNKNOWN)
    }

    /// True if a field that must be zero is set in the SQE.
    #[inline(always)]
    pub fn refuses(&self, sqe: &Sqe) -> bool {
        self.unused.as_ref().is_some_and(|unused| unused.is_set(sqe))
    }

    /// True if the request can be executed only by the ring to which it is submitted.
    pub fn needs_its_ring(&self, sqe: &Sqe) -> bool {
        self.caps.has(Caps::OF_ITS_RING) || self.caps.has(Caps::COUNTS) && sqe.off != 0
    }

    /// True if the operation is the engine's own, not the kernel's.
    pub fn is_private(&self) -> bool {
        self.code >= FIRST_PRIVATE
    }
}
