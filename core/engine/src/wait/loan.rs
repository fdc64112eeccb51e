//! Which queued work a call may do on the program's own descriptors.
//!
//! The kernel holds a request's file from the first attempt on. Here that costs a duplicate, some 0.5 us, as much as
//! half of a cached write. It is spared where the program cannot know yet that the SQE was consumed, so that closing the
//! descriptor would be its own race on the kernel, too:
//!
//! - the call that takes the SQEs does the work itself, before it returns;
//! - the SQ head in ring memory moves only when that is done;
//! - nothing behind the first of this work in the submission has completed, or can: all of it is such work, and leaves
//!   the queue at once, in its order;
//! - who wants to submit meanwhile waits. From then on the ring, which several threads submit to, lends nothing.
//!
//! All other work gets a duplicate before the ring's lock is given up.

/// The posts so far: the end of the CQ, and how many CQEs are kept.
pub type Posted = (u32, usize);

/// The state of what is lent, under the ring's lock.
#[derive(Debug, Default)]
pub struct Loan {
    /// The submission in progress may lend.
    open: bool,
    /// The work that it has queued so far, where all of that can be lent.
    queued: Option<Queued>,
    /// The holder of the lent work.
    state: State,
    /// A thread waits for the end of the loan.
    awaited: bool,
    /// Two threads wanted to submit at once.
    refused: bool,
}

/// From the end of the submission until the SQ head is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Nothing is lent.
    #[default]
    In,
    /// The queue may be taken by the thread that has submitted, which still has the lock.
    Offered,
    /// The thread that has submitted has taken the queue. Only its return ends the loan, whoever else comes by.
    Out,
}

#[derive(Debug)]
struct Queued {
    posted: Posted,
    sq_head: u32,
}

impl Loan {
    /// A submission begins.
    pub fn open(&mut self, lends: bool) {
        debug_assert!(!self.is_out(), "a submission waits for the end of a loan");
        debug_assert!(self.queued.is_none(), "the submission before it is over");
        self.open = lends && !self.refused;
    }

    /// The submission, which [is open](Loan::is_open), has queued a piece of work, up to `sq_head`; `fits` where that
    /// can be lent.
    pub fn queue(&mut self, sq_head: u32, posted: Posted, fits: bool) {
        let follows = match &self.queued {
            None => true,
            Some(before) => before.sq_head.wrapping_add(1) == sq_head && before.posted == posted,
        };
        self.open &= fits && follows;
        self.queued = self.open.then_some(Queued { posted, sq_head });
    }

    /// The submission ends at `sq_head`. True where work is lent: then the SQ head must not be published before
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

    /// True if work is lent that nobody has taken yet.
    pub fn is_offered(&self) -> bool {
        self.state == State::Offered
    }

    /// The calling thread takes what is offered, and will [`Loan::end`] it. False where there is nothing to be taken.
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

    /// Refuses to lend, for another thread wants to submit: it waits for [`Loan::end`].
    pub fn refuse(&mut self) {
        self.awaited = true;
        self.refused = true;
    }

    /// All that was lent is done, or holds its file: said by who has taken it, or while it is offered. Returns whether
    /// somebody waits for that.
    pub fn end(&mut self) -> bool {
        debug_assert!(self.is_out(), "only what was lent comes back");
        self.state = State::In;
        core::mem::take(&mut self.awaited)
    }
}
