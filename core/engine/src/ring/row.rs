//! A row of the op table: an operation, and the steps by which a ring does its requests.
//!
//! A step sees its request and what the ring lends for it ([`Attempt`]). A request is checked ([`Row::prep`]), tried without blocking
//! ([`Row::issue`]), done where it may block ([`Row::block`]) and finished ([`Row::finish`]). Only [`Row::control`], and the step for
//! requests that leave together, have the whole ring.

use core::ops::Deref;

use anyring_chaos_plan::journal::Effect;
use anyring_chaos_plan::{Fault, Faults};

use crate::abi::{Errno, Sqe, columns};
use crate::os::{Fd, user};
use crate::request::field::{self, FIRST_HIDDEN, FIRST_PRIVATE, Unused};
use crate::request::op::{Caps, Named, Op};
use crate::request::shown::Argument;
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
    /// A shorter way for ordinary requests.
    pub quick: Option<Quick>,
    /// Sends requests of the operation that were held back ([`Op::together_bytes`]), by one system call, and settles each of them.
    pub together: Option<Depart>,
    /// Makes the blocking attempt, without any lock.
    pub block: Option<Block>,
    /// Turns the result of the blocking attempt into an outcome: a completion, or another attempt. Called under the ring's lock.
    pub finish: fn(&mut Attempt<'_>, Result<usize, Errno>) -> Outcome,
    /// The step when the request's timer has expired.
    pub expire: Expiry,
    /// Disarms what [`Outcome::Armed`] armed, or stops the thread that works on the request, for a cancellation. Returns false if it is too
    /// late.
    pub disarm: fn(&mut Attempt<'_>) -> bool,
    /// Returns the result for the CQE of a request that fails with the given one: the size of a part that was done takes precedence.
    pub failed: fn(&Request, i32) -> i32,
    /// The words of the operation that BPF filters see, beside the words that every request has.
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
    /// An attempt that completes the request, or waits again.
    Attempt(Issue),
    /// A step that has the whole ring, as [`Row::control`] has.
    Control(fn(&mut Core, RequestId)),
}

/// The words of a prepared request that filters of its operation (`IORING_REGISTER_BPF_FILTER`) see.
#[derive(Clone, Copy)]
pub struct Filtered {
    /// The number of bytes.
    pub bytes: u8,
    /// Writes the words, which are zero at first.
    pub show: fn(&Request, &mut [u32; 6]),
}

/// The short way of an operation: see `request/quick.rs`.
#[derive(Clone, Copy)]
pub struct Quick {
    /// Tries an SQE without blocking, if it is ordinary: it would pass every check of [`Row::prep`], selects no buffer, and has no flag
    /// that asks for more than one attempt.
    pub attempt: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// Goes on after an attempt whose SQE has become a request (`Tried::Attempt`).
    pub go_on: fn(&mut Attempt<'_>, Fd, Result<usize, Errno>) -> Outcome,
    /// Makes the next attempt of a request that waits as [`Tried::Wait`] of its first attempt said.
    pub again: fn(&mut Lent, &Sqe, Fd) -> Tried,
    /// Makes the next attempt of a multishot request that was woken. Returns its outcome, or `Armed` if the request waits already; `None`
    /// if the attempt has to be made in the ordinary way.
    pub more: fn(&mut Attempt<'_>) -> Option<Outcome>,
}

/// The departure of requests that leave together: see [`Train`](crate::request::order::Train).
pub type Depart = fn(&mut Core, &[RequestId]);

/// The result of a quick attempt.
#[derive(Clone, Copy, Debug)]
pub enum Tried {
    /// No attempt was made.
    Nothing,
    /// The request is done, with this result and flags of its CQE.
    Done(i32, u32),
    /// No attempt makes sense before one of these events. `Known` is given if the descriptor is registered, and none of the events has come
    /// since the descriptor last showed none.
    Wait(u32, Option<Known>),
    /// An attempt was made, with this result, and more has to be done than to post the result.
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
    /// In flight at the device. [`Row::block`] fetches the result before long, or tries to, with `RWF_NOWAIT`.
    InFlight,
    /// Try again after the requests that are ready now.
    Again,
    /// The operation armed a timer, a counter or a thread that will complete the request.
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
    /// Makes a row with the steps that most operations have.
    pub const fn new(op: Named, caps: Caps, prep: Prep, issue: Issue) -> Row {
        Row::numbered(op.0 as u8, op.1, caps, prep, issue)
    }

    /// Makes a row with the steps that most operations have, for an operation whose number is not the kernel's.
    pub const fn numbered(code: u8, name: &'static str, caps: Caps, prep: Prep, issue: Issue) -> Row {
        Row::of(Op::new(code, name, caps), prep, issue)
    }

    /// Makes a row with the steps that most operations have.
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

    /// Marks the operation as one that can take a provided buffer.
    pub const fn select_buffer(mut self) -> Row {
        self.op.caps = self.op.caps.with(Caps::BUFFER_SELECT);
        self
    }

    /// Marks the operation as one that acts on its ring's requests, buffers or files, or may.
    pub const fn of_its_ring(mut self) -> Row {
        self.op.caps = self.op.caps.with(Caps::OF_ITS_RING);
        self
    }

    /// Makes the row of an operation with a longer SQE that is done in the same way.
    pub const fn wide(mut self, code: u8, name: &'static str) -> Row {
        self.op = Op { code, name, caps: self.op.caps.with(Caps::WIDE), ..self.op };
        self
    }

    /// Lets requests of at most `most_bytes` leave together, by one system call.
    pub const fn together(mut self, most_bytes: u32, depart: Depart) -> Row {
        self.op.together_bytes = most_bytes;
        self.together = Some(depart);
        self
    }

    /// Sets the words of the operation that filters see.
    pub const fn filtered(mut self, bytes: u8, show: fn(&Request, &mut [u32; 6])) -> Row {
        self.filtered = Some(Filtered { bytes, show });
        self
    }

    /// Adds faults of the operation to those that every request may meet.
    pub const fn faults(mut self, faults: &[Fault]) -> Row {
        self.op.faults = self.op.faults.or(Faults::list(faults));
        self
    }
}

columns! { pub Row:
    /// Sets the fields of the SQE that the operation reads.
    arguments in op: &'static [Argument] = arguments;
    /// Sets the errors that the operation itself returns.
    errors in op: &'static [Errno] = errors;
    /// Sets the differences from the kernel's operation.
    limits in op: &'static str = limits;
    /// Sets the effect of the operation on files.
    stores in op: Effect = Some(stores);
    /// Sets the first attempt.
    issue: Issue = issue;
    /// Sets the step that has the whole ring.
    control: fn(&mut Core, RequestId) -> Outcome = control;
    /// Sets the step when the timer has expired.
    expire: Expiry = expire;
    /// Sets the step that disarms the request.
    disarm: fn(&mut Attempt<'_>) -> bool = disarm;
    /// Sets the step that reports a part that was done before the failure.
    failed: fn(&Request, i32) -> i32 = failed;
    /// Sets a condition on the running kernel.
    available in op: fn() -> bool = available;
    /// Sets the step after the blocking attempt.
    finish: fn(&mut Attempt<'_>, Result<usize, Errno>) -> Outcome = finish;
    /// Sets the SQE fields that must be zero.
    unused in op: Unused = Some(unused);
    /// Sets the shorter way for ordinary requests.
    quick: Quick = Some(quick);
    /// Sets the blocking attempt.
    block: Block = Some(block);
}

/// Checks nothing, for operations whose only check is that of their unused fields.
pub fn prep_nothing(_: &mut Attempt<'_>) -> Result<(), Errno> {
    Ok(())
}

/// Prepares operations whose only argument is an address at which only the kernel looks.
pub fn prep_address(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    user::announce(cx.sqe.addr);
    Ok(())
}

/// Issues an operation that is always done by its blocking attempt.
pub fn issue_blocks(_: &mut Attempt<'_>) -> Outcome {
    Outcome::Block
}

/// Issues an operation that needs the whole ring.
pub fn issue_controls(_: &mut Attempt<'_>) -> Outcome {
    Outcome::Control
}

/// The rows, found by their opcodes, whether a program may name them or not. Tables share it: each of its pointers costs time at the start of
/// every process that loads the engine.
pub struct Steps {
    rows: &'static [Row],
    by_code: [&'static Row; 256],
}

/// The rows that a program may name.
#[derive(Clone, Copy)]
pub struct Table {
    steps: &'static Steps,
    /// The kernel's operations have numbers less than this one.
    operations: u8,
}

/// The row of opcodes that no operation has.
static UNKNOWN: Row = Row::of(Op::unknown(), |_| Err(Errno::EINVAL), |_| Errno::EINVAL.into());

/// The row of a zero-copy send's notification, which no program can submit. Only a notification that chaos delays has a timer.
pub static NOTIFICATION: Row =
    Row::numbered(field::NOTIFICATION, "NOTIFICATION", Caps::HIDDEN, prep_nothing, |cx| {
        Outcome::Complete(cx.result)
    })
    .expire(Expiry::Control(|core, id| core.attempt(id).make_ready()))
    .faults(&[Fault::NotificationLate]);

/// The row of a request whose first attempt chaos delays.
pub static HELD: Row = Row::numbered(field::HELD, "HELD", Caps::FILE, prep_nothing, |_| Outcome::Armed)
    .disarm(|cx| cx.ends_hold())
    .expire(Expiry::Control(Core::ends_hold_now));

/// The row of a request whose result is known and whose CQE chaos delays: a cancellation always comes too late.
pub static LATE: Row = Row::numbered(field::LATE, "LATE", Caps::NONE, prep_nothing, |_| Outcome::Armed)
    .disarm(|_| false)
    .expire(Expiry::Control(Core::comes_now));

impl Steps {
    /// Makes the steps of these rows.
    ///
    /// # Panics
    /// If two rows have the same opcode: at compile time, for a static.
    pub const fn of(rows: &'static [Row]) -> Steps {
        let mut by_code = [&UNKNOWN; 256];
        by_code[NOTIFICATION.op.code as usize] = &NOTIFICATION;
        by_code[HELD.op.code as usize] = &HELD;
        by_code[LATE.op.code as usize] = &LATE;
        let mut place = 0;
        while place < rows.len() {
            let code = rows[place].op.code as usize;
            assert!(code < FIRST_HIDDEN as usize, "the last numbers are the engine's own");
            assert!(by_code[code].op.is_unknown(), "an opcode has one row");
            by_code[code] = &rows[place];
            place += 1;
        }
        Steps { rows, by_code }
    }
}

impl Table {
    /// Makes the table of all rows with these steps.
    pub const fn new(steps: &'static Steps) -> Table {
        Table::up_to(steps, FIRST_PRIVATE)
    }

    /// Makes the table of the kernel's operations whose numbers are less than `operations`, and of all private ones.
    pub const fn up_to(steps: &'static Steps, operations: u8) -> Table {
        Table { steps, operations }
    }

    /// Returns the row of an opcode; that of an unknown operation for numbers that a program may not name.
    #[inline(always)]
    pub const fn lookup(&self, code: u8) -> &'static Row {
        if code < self.operations { self.steps.by_code[code as usize] } else { self.lookup_beyond(code) }
    }

    #[cold]
    const fn lookup_beyond(&self, code: u8) -> &'static Row {
        let is_private = code >= FIRST_PRIVATE && code < FIRST_HIDDEN;
        if is_private { self.steps.by_code[code as usize] } else { &UNKNOWN }
    }

    /// Returns the row of an operation.
    #[inline(always)]
    pub const fn row(&self, op: &Op) -> &'static Row {
        self.steps.by_code[op.code as usize]
    }

    /// Returns all rows.
    pub const fn rows(&self) -> &'static [Row] {
        self.steps.rows
    }
}
