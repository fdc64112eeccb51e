//! A row of the op table: an operation, and the steps by which a ring does its requests.
//!
//! A step sees its request and what the ring lends for it ([`Attempt`]). A request is checked ([`Row::prep`]), tried without blocking
//! ([`Row::issue`]), done where it may block ([`Row::block`]) and ended ([`Row::finish`]). Only [`Row::control`] and what leaves
//! together have the whole ring.

use core::ops::Deref;

use anyring_chaos_plan::{Fault, Faults};

use crate::abi::{Errno, Sqe, columns};
use crate::os::{Fd, user};
use crate::request::field::{self, FIRST_HIDDEN, FIRST_PRIVATE};
use crate::request::op::{Caps, Code, Op};
use crate::request::shown::Argument;
use crate::request::table::Operations;
use crate::request::unused::Unused;
use crate::request::{Request, RequestId};
use crate::ring::drive::readiness::Known;
use crate::ring::{Attempt, Core, Lent};
use crate::work::Work;

/// The check of an SQE.
pub type Prep = fn(&mut Attempt<'_>) -> Result<(), Errno>;

/// An attempt that does not block.
pub type Issue = fn(&mut Attempt<'_>) -> Outcome;

/// A blocking attempt.
pub type Block = fn(&mut Work) -> Result<usize, Errno>;

/// One row of the op table.
#[derive(Clone, Copy)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// Checks the SQE and copies what the program may overwrite after submission.
    pub prep: Prep,
    /// Tries without blocking, under the ring's lock.
    pub issue: Issue,
    /// Acts on the whole ring, after [`Outcome::Control`]: on other requests, as a cancellation does, or on other rings.
    pub control: fn(&mut Core, RequestId) -> Outcome,
    /// A shorter way, for what is ordinary.
    pub quick: Option<Quick>,
    /// Sends, by one system call, requests of it that were held back ([`Op::together_bytes`]), and says what came of each.
    pub together: Option<Depart>,
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
    /// The words that filters see of its requests, beside those that they see of all.
    pub filtered: Option<Filtered>,
}

impl Deref for Row {
    type Target = Op;
    fn deref(&self) -> &Op {
        &self.op
    }
}

/// The step of a request whose timer has expired.
#[derive(Clone, Copy)]
pub enum Expiry {
    /// One more attempt, by [`Row::issue`].
    Issue,
    /// An end, or another wait.
    Attempt(Issue),
    /// A step that has the whole ring, as [`Row::control`] has.
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
    /// [`Row::prep`] passed, no buffer to be selected, no flag that asks for more than one attempt.
    pub attempt: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// Goes on behind an attempt that a request took over.
    pub go_on: fn(&mut Attempt<'_>, Fd, Result<usize, Errno>) -> Outcome,
    /// The next attempt of a request that waits as its first one said ([`Tried::Wait`]).
    pub again: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// The next attempt of a multishot request that was woken, which waits already or whose outcome is told; `None`
    /// where it has to be made in the ordinary way.
    pub more: fn(&mut Attempt<'_>) -> Option<Outcome>,
}

/// The departure of requests that leave together: see `request/train/`.
pub type Depart = fn(&mut Core, &[RequestId]);

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
    /// To be done by [`Row::block`]; the caller may do it itself.
    Block,
    /// To be done by [`Row::block`] in a thread of its own: it may take for ever.
    BlockForLong,
    /// The device has it: to be fetched by [`Row::block`] before long, or by that with `RWF_NOWAIT`.
    InFlight,
    /// Try again once those that are ready now had their turn.
    Again,
    /// The operation armed what will complete it.
    Armed,
    /// To be done by [`Row::control`].
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

impl Row {
    /// A row with what most operations have.
    pub const fn new(code: Code, name: &'static str, caps: Caps, prep: Prep, issue: Issue) -> Row {
        Row::numbered(code as u8, name, caps, prep, issue)
    }

    /// A row with what most operations have, for an operation whose number is not the kernel's.
    pub const fn numbered(code: u8, name: &'static str, caps: Caps, prep: Prep, issue: Issue) -> Row {
        Row::of(Op::new(code, name, caps), prep, issue)
    }

    /// A row with what most operations have.
    const fn of(op: Op, prep: Prep, issue: Issue) -> Row {
        Row {
            op,
            prep,
            issue,
            control: |_, _| Errno::EINVAL.into(),
            quick: None,
            together: None,
            block: None,
            finish: |_, result| result.into(),
            expire: Expiry::Issue,
            disarm: |cx| cx.cancel_timer(),
            filtered: None,
            failed: |_, result| result,
        }
    }

    /// A row whose operation can take a provided buffer.
    pub const fn select_buffer(mut self) -> Row {
        self.op.caps = self.op.caps.with(Caps::BUFFER_SELECT);
        self
    }

    /// A row whose operation acts on its ring's requests, buffers or files, or may.
    pub const fn of_its_ring(mut self) -> Row {
        self.op.caps = self.op.caps.with(Caps::OF_ITS_RING);
        self
    }

    /// The row of an operation with a longer SQE that is done in the same way.
    pub const fn wide(mut self, code: u8, name: &'static str) -> Row {
        self.op = Op { code, name, caps: self.op.caps.with(Caps::WIDE), ..self.op };
        self
    }

    /// With others of it, by one system call: requests of at most so many bytes.
    pub const fn together(mut self, most_bytes: u32, depart: Depart) -> Row {
        self.op.together_bytes = most_bytes;
        self.together = Some(depart);
        self
    }

    /// With what filters see of it.
    pub const fn filtered(mut self, bytes: u8, show: fn(&Request, &mut [u32; 6])) -> Row {
        self.filtered = Some(Filtered { bytes, show });
        self
    }

    /// With faults of its own, beside those that every request may meet.
    pub const fn faults(mut self, faults: &[Fault]) -> Row {
        self.op.faults = self.op.faults.or(Faults::list(faults));
        self
    }
}

columns! { pub Row:
    /// With what it reads of the SQE.
    arguments in op: &'static [Argument] = arguments;
    /// With the errors that it answers with of its own accord.
    errors in op: &'static [Errno] = errors;
    /// With what of it is missing.
    limits in op: &'static str = limits;
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
    available in op: fn() -> bool = available;
    /// With an end of its own after the blocking attempt.
    finish: fn(&mut Attempt<'_>, Result<usize, Errno>) -> Outcome = finish;
    /// With the SQE fields in which nothing may stand.
    unused in op: Unused = Some(unused);
    /// With a shorter way.
    quick: Quick = Some(quick);
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

/// The rows, found by their opcodes.
pub struct Table {
    rows: &'static [Row],
    /// The operations that a program may name.
    operations: Operations,
    /// The steps of every operation, whether a program may name it or not.
    steps: [&'static Row; 256],
}

/// The row of numbers that no operation has.
static UNKNOWN: Row = Row::of(Op::unknown(), |_| Err(Errno::EINVAL), |_| Errno::EINVAL.into());

/// The row of a zero-copy send's notification, which no program can ask for. Only where it is to come late has it a timer.
pub static NOTIFICATION: Row =
    Row::numbered(field::NOTIFICATION, "NOTIFICATION", Caps::HIDDEN, prep_nothing, |cx| {
        Outcome::Complete(cx.result)
    })
    .expire(Expiry::Control(Core::make_ready))
    .faults(&[Fault::NotificationLate]);

/// The row of a request under chaos whose result is known and whose CQE comes late: no cancellation finds it in time.
pub static LATE: Row = Row::numbered(field::LATE, "LATE", Caps::NONE, prep_nothing, |_| Outcome::Armed)
    .disarm(|_| false)
    .expire(Expiry::Control(Core::comes_now));

impl Table {
    /// The table of these rows.
    ///
    /// # Panics
    /// Where two have the same opcode: at compile time, for a static.
    pub const fn new(rows: &'static [Row]) -> Table {
        Table::up_to(rows, FIRST_PRIVATE as usize)
    }

    /// The table of the kernel's operations whose numbers are less than `operations`, and of all private ones.
    ///
    /// # Panics
    /// As above.
    pub const fn up_to(rows: &'static [Row], operations: usize) -> Table {
        let mut steps = [&UNKNOWN; 256];
        steps[NOTIFICATION.op.code as usize] = &NOTIFICATION;
        steps[LATE.op.code as usize] = &LATE;
        let mut named = [&UNKNOWN.op; 256];
        let mut place = 0;
        while place < rows.len() {
            let code = rows[place].op.code as usize;
            assert!(code < FIRST_HIDDEN as usize, "the last numbers are the engine's own");
            assert!(steps[code].op.is_unknown(), "an opcode has one row");
            steps[code] = &rows[place];
            if code < operations || code >= FIRST_PRIVATE as usize {
                named[code] = &rows[place].op;
            }
            place += 1;
        }
        Table { rows, operations: Operations::new(named), steps }
    }

    /// The operation of an opcode; one that is unknown for numbers without a row.
    #[inline(always)]
    pub const fn lookup(&self, code: u8) -> &'static Op {
        self.operations.lookup(code)
    }

    /// The operations that a program may name.
    pub const fn operations(&self) -> &Operations {
        &self.operations
    }

    /// The row of an operation.
    #[inline(always)]
    pub const fn row(&self, op: &Op) -> &'static Row {
        self.steps[op.code as usize]
    }

    /// All rows.
    pub const fn rows(&self) -> &'static [Row] {
        self.rows
    }
}
