//! A row of the op table: what is done with a request of one operation.
//!
//! A row says how the operation is named and printed, what it may be combined with, how it is
//! checked ([`Op::prep`]), tried without blocking ([`Op::issue`]), done where it may block
//! ([`Op::block`]) and ended ([`Op::finish`]). Nothing else tells operations apart.

pub use linux_raw_sys::io_uring::io_uring_op as Code;

use anyring_chaos_plan::{Fault, Faults};

use crate::abi::{Errno, Sqe, columns, flags};
use crate::os::{Fd, user};
use crate::request::shown::Argument;
use crate::request::unused::Unused;
use crate::request::{Request, RequestId};
use crate::ring::drive::readiness::Known;
use crate::ring::{Attempt, Core, Lent};
use crate::work::Work;

/// The first number of operations that no kernel has, far from the kernel's growing list.
pub const FIRST_PRIVATE: u8 = 192;

/// The check of an SQE.
pub type Prep = fn(&mut Attempt<'_>) -> Result<(), Errno>;

/// An attempt that does not block.
pub type Issue = fn(&mut Attempt<'_>) -> Outcome;

/// A blocking attempt.
pub type Block = fn(&mut Work) -> Result<usize, Errno>;

/// One row of the op table.
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
    /// Checks the SQE and copies what the program may overwrite after submission.
    pub prep: Prep,
    /// Tries without blocking, under the ring's lock.
    pub issue: Issue,
    /// Acts on the whole ring, after [`Outcome::Control`]: on other requests, as a cancellation does, or on other rings.
    pub control: fn(&mut Core, RequestId) -> Outcome,
    /// A shorter way, for what is ordinary.
    pub quick: Option<Quick>,
    /// How several requests of it leave by one system call.
    pub together: Option<Together>,
    /// Does it where it may block, without any lock.
    pub block: Option<Block>,
    /// After the blocking attempt, under the ring's lock again: what its CQE says, or another round.
    pub finish: fn(&mut Attempt<'_>, Result<usize, Errno>) -> Outcome,
    /// Its timer has expired.
    pub expire: Expiry,
    /// Disarms what [`Outcome::Armed`] armed, or stops the thread that works on it, for a cancellation;
    /// false where it is too late.
    pub disarm: fn(&mut Attempt<'_>) -> bool,
    /// The result in its CQE where it fails with this one: a part that was done already comes first.
    pub failed: fn(&Request, i32) -> i32,
    /// Faults that chaos may inject, as the kernel could have them happen.
    pub faults: Faults,
    /// The words that filters see of its requests, beside those that they see of all.
    pub filtered: Option<Filtered>,
    /// Whether this kernel has the system calls that it needs; asked by the probe.
    pub available: fn() -> bool,
}

/// The step of a request whose timer has expired.
#[derive(Clone, Copy)]
pub enum Expiry {
    /// One more attempt, by [`Op::issue`].
    Issue,
    /// An end, or another wait.
    Attempt(Issue),
    /// A step that has the whole ring, as [`Op::control`] has.
    Control(fn(&mut Core, RequestId)),
}

/// The words that filters of an operation (`IORING_REGISTER_BPF_FILTER`) see of a request that is prepared.
#[derive(Clone, Copy)]
pub struct Filtered {
    /// The number of bytes.
    pub bytes: u8,
    /// Writes them, zeroes at first.
    pub show: fn(&Request, &mut [u32; 6]),
}

/// The short way of an operation: see `request/quick.rs`.
#[derive(Clone, Copy)]
pub struct Quick {
    /// Tries without blocking what an SQE says, if that is nothing out of the ordinary: every check of
    /// [`Op::prep`] passed, no buffer to be selected, no flag that asks for more than one attempt.
    pub attempt: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// Goes on behind an attempt that a request took over.
    pub go_on: fn(&mut Attempt<'_>, Fd, Result<usize, Errno>) -> Outcome,
    /// The next attempt of a request that waits as its first one said ([`Tried::Wait`]).
    pub again: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// The next attempt of a multishot request that was woken, which waits already or whose outcome is told; `None`
    /// where it has to be made in the ordinary way.
    pub more: fn(&mut Attempt<'_>) -> Option<Outcome>,
}

/// Requests of an operation that are held back until the next ones of their submission join them: see
/// `request/train.rs`.
#[derive(Clone, Copy)]
pub struct Together {
    /// The most bytes of a request that may go together with others.
    pub most: u32,
    /// Sends those that were held back, and says what came of each.
    pub depart: fn(&mut Core, &[RequestId]),
}

/// The result of a quick attempt.
#[derive(Clone, Copy, Debug)]
pub enum Tried {
    /// No attempt was made.
    Nothing,
    /// The request is done, with this result and flags of its CQE.
    Done(i32, u32),
    /// There is nothing to be tried before one of these events. Where the descriptor stands is said if it is
    /// registered and none of them has come since it was last seen to show none.
    Wait(u32, Option<Known>),
    /// An attempt was made, with this result, and more is to be done than to report it.
    Attempt(Result<usize, Errno>),
}

/// The result of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done, with this result.
    Complete(i32),
    /// Try again when the request's file is ready for one of these (`EPOLLIN`, ...).
    Wait(u32),
    /// To be done by [`Op::block`]; the caller may do it itself.
    Block,
    /// To be done by [`Op::block`] in a thread of its own: it may take for ever.
    BlockForLong,
    /// The device has it: to be fetched by [`Op::block`] before long, or by that with `RWF_NOWAIT`.
    InFlight,
    /// Try again once those that are ready now had their turn.
    Again,
    /// The operation armed what will complete it.
    Armed,
    /// To be done by [`Op::control`].
    Control,
}

impl From<Result<usize, Errno>> for Outcome {
    fn from(result: Result<usize, Errno>) -> Outcome {
        Outcome::Complete(crate::abi::errno::to_res(result))
    }
}

impl From<Errno> for Outcome {
    fn from(errno: Errno) -> Outcome {
        Outcome::Complete(errno.negated())
    }
}

/// A place in an SQE, by which the arguments of an operation are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `IOSQE_*`, which all operations have.
    Flags,
    /// Flags in `ioprio`.
    Ioprio,
    /// The descriptor, or a registered one.
    Fd,
    /// Offset or second address.
    Offset,
    /// The lower half of `off`.
    OffsetLow,
    /// The address.
    Address,
    /// The lower half of `addr`.
    AddressLow,
    /// The upper half of `addr`.
    AddressHigh,
    /// The length or count.
    Length,
    /// The operation's flags.
    OpFlags,
    /// A registered buffer or a buffer group.
    BufferIndex,
    /// A slot of the file table, a second descriptor, or the length of an option.
    FileIndex,
    /// The length of an address, the lower half of `file_index`.
    AddressLength,
    /// The third address.
    Address3,
    /// Attributes.
    Attributes,
}

impl Field {
    /// The value of the field, without sign: the upper bits of a narrow place are 0.
    pub const fn value(self, sqe: &Sqe) -> u64 {
        match self {
            Field::Flags => sqe.flags as u64,
            Field::Ioprio => sqe.ioprio as u64,
            Field::Fd => sqe.fd as u32 as u64,
            Field::Offset => sqe.off,
            Field::OffsetLow => sqe.off as u32 as u64,
            Field::Address => sqe.addr,
            Field::AddressLow => sqe.addr as u32 as u64,
            Field::AddressHigh => sqe.addr >> 32,
            Field::Length => sqe.len as u64,
            Field::OpFlags => sqe.op_flags as u64,
            Field::BufferIndex => sqe.buf_index as u64,
            Field::FileIndex => sqe.file_index as u64,
            Field::AddressLength => sqe.file_index as u16 as u64,
            Field::Address3 => sqe.addr3,
            Field::Attributes => sqe.pad,
        }
    }

    /// Sets bits there.
    pub const fn set(self, sqe: &mut Sqe, bits: u64) {
        self.put(sqe, self.value(sqe) | bits);
    }

    /// Clears bits of what stands there.
    pub const fn clear(self, sqe: &mut Sqe, bits: u64) {
        self.put(sqe, self.value(sqe) & !bits);
    }

    /// Puts a value there, as much of it as there is room for.
    const fn put(self, sqe: &mut Sqe, value: u64) {
        const LOW: u64 = u32::MAX as u64;
        match self {
            Field::Flags => sqe.flags = value as u8,
            Field::Ioprio => sqe.ioprio = value as u16,
            Field::Fd => sqe.fd = value as i32,
            Field::Offset => sqe.off = value,
            Field::OffsetLow => sqe.off = sqe.off & !LOW | value & LOW,
            Field::Address => sqe.addr = value,
            Field::AddressLow => sqe.addr = sqe.addr & !LOW | value & LOW,
            Field::AddressHigh => sqe.addr = sqe.addr & LOW | value << 32,
            Field::Length => sqe.len = value as u32,
            Field::OpFlags => sqe.op_flags = value as u32,
            Field::BufferIndex => sqe.buf_index = value as u16,
            Field::FileIndex => sqe.file_index = value as u32,
            Field::AddressLength => sqe.file_index = sqe.file_index & 0xffff_0000 | value as u16 as u32,
            Field::Address3 => sqe.addr3 = value,
            Field::Attributes => sqe.pad = value,
        }
    }

    /// How many bytes wide the place is.
    pub const fn bytes(self) -> u32 {
        match self {
            Field::Flags => 1,
            Field::Ioprio | Field::BufferIndex | Field::AddressLength => 2,
            Field::Fd
            | Field::OffsetLow
            | Field::AddressLow
            | Field::AddressHigh
            | Field::Length
            | Field::OpFlags
            | Field::FileIndex => 4,
            Field::Offset | Field::Address | Field::Address3 | Field::Attributes => 8,
        }
    }
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
    /// A row with what most operations have.
    pub const fn new(code: Code, name: &'static str, caps: Caps, prep: Prep, issue: Issue) -> Op {
        Op::numbered(code as u8, name, caps, prep, issue)
    }

    /// A row with what most operations have, for an operation whose number is not the kernel's.
    pub const fn numbered(code: u8, name: &'static str, caps: Caps, prep: Prep, issue: Issue) -> Op {
        let caps = caps.with(Caps::PRESENT);
        Op {
            code,
            name,
            arguments: &[],
            unused: None,
            limits: "",
            errors: &[],
            caps,
            prep,
            issue,
            control: |_, _| Errno::EINVAL.into(),
            quick: None,
            together: None,
            block: None,
            finish: |_, result| result.into(),
            expire: Expiry::Issue,
            disarm: |cx| cx.cancel_timer(),
            faults: Faults::list(&[
                Fault::Late,
                Fault::Overflow,
                Fault::SqeRubbish,
                Fault::PauseIssue,
                Fault::PauseWake,
            ]),
            filtered: None,
            available: || true,
            failed: |_, result| result,
        }
    }

    /// How many places its SQE takes in the queue: two, where SQEs of two sizes are `mixed` and there is a place for the second
    /// half of a long one.
    pub const fn places(&self, mixed: bool, has_second: bool) -> u32 {
        if mixed && has_second && self.caps.has(Caps::WIDE) { 2 } else { 1 }
    }

    /// A row for what is no operation.
    pub const fn unknown() -> Op {
        let mut op = Op::new(
            Code::IORING_OP_LAST,
            "UNKNOWN",
            Caps::NONE,
            |_| Err(Errno::EINVAL),
            |_| Errno::EINVAL.into(),
        );
        op.caps = Caps::UNKNOWN;
        op.available = || false;
        op
    }

    /// A row whose operation can take a provided buffer.
    pub const fn select_buffer(mut self) -> Op {
        self.caps = self.caps.with(Caps::BUFFER_SELECT);
        self
    }

    /// A row whose operation acts on its ring's requests, buffers or files, or may.
    pub const fn of_its_ring(mut self) -> Op {
        self.caps = self.caps.with(Caps::OF_ITS_RING);
        self
    }

    /// With what filters see of it.
    pub const fn filtered(mut self, bytes: u8, show: fn(&Request, &mut [u32; 6])) -> Op {
        self.filtered = Some(Filtered { bytes, show });
        self
    }

    /// With faults of its own, beside those that every request may meet.
    pub const fn faults(mut self, faults: &[Fault]) -> Op {
        self.faults = self.faults.or(Faults::list(faults));
        self
    }
}

columns! { pub Op:
    /// With what it reads of the SQE.
    arguments: &'static [Argument] = arguments;
    /// With the errors that it answers with of its own accord.
    errors: &'static [Errno] = errors;
    /// With what of it is missing.
    limits: &'static str = limits;
    /// With another first attempt.
    issue: Issue = issue;
    /// With a step that has the whole ring.
    control: fn(&mut Core, RequestId) -> Outcome = control;
    /// With what its timer does.
    expire: Expiry = expire;
    /// With a disarming of its own.
    disarm: fn(&mut Attempt<'_>) -> bool = disarm;
    /// With a part that is reported where it fails.
    failed: fn(&Request, i32) -> i32 = failed;
    /// With a condition on the kernel.
    available: fn() -> bool = available;
    /// With an end of its own after the blocking attempt.
    finish: fn(&mut Attempt<'_>, Result<usize, Errno>) -> Outcome = finish;
    /// With the SQE fields in which nothing may stand.
    unused: Unused = Some(unused);
    /// With a shorter way.
    quick: Quick = Some(quick);
    /// With others of it, by one system call.
    together: Together = Some(together);
    /// With a blocking attempt.
    block: Block = Some(block);
}

/// A check for operations that look at nothing but their unused fields.
pub fn prep_nothing(_: &mut Attempt<'_>) -> Result<(), Errno> {
    Ok(())
}

/// A check for operations that have nothing else than an address at which only the kernel looks.
pub fn prep_address(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    user::announce(cx.sqe.addr);
    Ok(())
}

/// An issue step for operations that are always done by their blocking attempt.
pub fn issue_blocks(_: &mut Attempt<'_>) -> Outcome {
    Outcome::Block
}

/// An issue step for operations that need the whole ring.
pub fn issue_controls(_: &mut Attempt<'_>) -> Outcome {
    Outcome::Control
}

impl Op {
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
