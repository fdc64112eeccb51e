//! Decides which queued work a call may do on the program's own descriptors, without a duplicate.
//!
//! The kernel holds a request's file from the first attempt on. In the engine that costs a duplicate of the descriptor:
//! some 0.5 us, half the cost of a cached write. The duplicate is unnecessary while the program cannot know yet that the
//! SQE was consumed. Closing the descriptor then is a race of the program on the kernel, too:
//!
//! - the call that consumes the SQEs does the work itself, before it returns;
//! - the SQ head in ring memory moves only when the work is done;
//! - no request behind the first lent one in the submission has completed or can complete: all of them are lent work,
//!   and all leave the queue together, in order;
//! - another thread that wants to submit meanwhile waits. From then on the ring, which several threads submit to, lends no more.
//!
//! All other work gets a duplicate before the ring's lock is released.

/// Identifies the posts so far: the CQ's tail, and the number of kept CQEs.
pub type Posted = (u32, usize);

/// The state of the loan, under the ring's lock.
#[derive(Debug, Default)]
pub struct Loan {
    /// The submission in progress may lend work.
    open: bool,
    /// The last work that the submission has queued, if all its work can be lent.
    queued: Option<Queued>,
    /// The phase of the current loan, if any.
    state: State,
    /// A thread waits for the end of the loan.
    awaited: bool,
    /// Two threads wanted to submit at the same time; the ring lends no more.
    refused: bool,
}

/// The phases from the end of the submission until the SQ head is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// No work is lent.
    #[default]
    In,
    /// The submitting thread may take the queue; it still holds the ring's lock.
    Offered,
    /// The submitting thread has taken the queue. Only this thread ends the loan.
    Out,
}

#[derive(Debug)]
struct Queued {
    posted: Posted,
    sq_head: u32,
}

impl Loan {
    /// Begins a submission, which may lend work if `lends`.
    pub fn open(&mut self, lends: bool) {
        debug_assert!(!self.is_out(), "a submission waits for the end of a loan");
        debug_assert!(self.queued.is_none(), "the submission before it is over");
        self.open = lends && !self.refused;
    }

    /// Notes that the submission, which [is open](Loan::is_open), has queued work for the SQE before `sq_head`.
    /// `fits`: this work can be lent.
    pub fn queue(&mut self, sq_head: u32, posted: Posted, fits: bool) {
        let follows = match &self.queued {
            None => true,
            Some(before) => before.sq_head.wrapping_add(1) == sq_head && before.posted == posted,
        };
        self.open &= fits && follows;
        self.queued = self.open.then_some(Queued { posted, sq_head });
    }

    /// Ends the submission at `sq_head`. True if work is lent: then the SQ head must not be published before
    /// [`Loan::end`].
    pub fn close(&mut self, sq_head: u32, posted: Posted) -> bool {
        self.open = false;
        if self.queued.is_none() {
            return false;
        }
        let lends = self.queued.take().is_some_and(|last| (last.sq_head, last.posted) == (sq_head, posted));
        if lends {
            self.state = State::Offered;
        }
        lends
    }

    /// True if work is lent and no thread has taken it yet.
    pub fn is_offered(&self) -> bool {
        self.state == State::Offered
    }

    /// Takes the offered work for the calling thread, which must [`Loan::end`] the loan. False if no work is offered.
    pub fn take(&mut self) -> bool {
        let offered = self.is_offered();
        if offered {
            self.state = State::Out;
        }
        offered
    }

    /// True if the work that the submission queues may be lent.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// True if work is lent.
    pub fn is_out(&self) -> bool {
        self.state != State::In
    }

    /// Refuses all further loans, because another thread wants to submit. That thread waits for [`Loan::end`].
    pub fn refuse(&mut self) {
        self.awaited = true;
        self.refused = true;
    }

    /// Ends the loan: all lent work is done or holds its file. Called by the thread that took the work, or while the
    /// work is offered. True if a thread waits for the end.
    pub fn end(&mut self) -> bool {
        debug_assert!(self.is_out(), "only what was lent comes back");
        self.state = State::In;
        core::mem::take(&mut self.awaited)
    }
}
