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

/// What was posted so far: the end of the CQ, and how many CQEs are kept.
type Posted = (u32, usize);

/// The state of that, under the ring's lock.
#[derive(Debug, Default)]
pub struct Loan {
    /// The submission in progress may lend.
    open: bool,
    /// The work that it has queued so far.
    queued: Option<Queued>,
    /// Its work is the calling thread's to do on the program's descriptors, and the SQ head is not published.
    out: bool,
    /// Somebody waits for the end of that.
    awaited: bool,
    /// Two threads wanted to submit at once.
    refused: bool,
}

#[derive(Debug)]
struct Queued {
    posted: Posted,
    sq_head: u32,
}

impl Loan {
    /// A submission begins.
    pub fn open(&mut self, lends: bool) {
        debug_assert!(!self.out, "a submission waits for the end of a loan");
        self.open = lends && !self.refused;
        self.queued = None;
    }

    /// The submission has queued a piece of work, up to `sq_head`; `fits` where that can be lent.
    pub fn queue(&mut self, sq_head: u32, posted: Posted, fits: bool) {
        let follows = match &self.queued {
            None => true,
            Some(before) => before.sq_head.wrapping_add(1) == sq_head && before.posted == posted,
        };
        self.open &= fits && follows;
        self.queued = Some(Queued { posted, sq_head });
    }

    /// The submission ends at `sq_head`. True where work is lent: then the SQ head must not be published before
    /// [`Loan::end`].
    pub fn close(&mut self, sq_head: u32, posted: Posted) -> bool {
        let open = core::mem::take(&mut self.open);
        self.out =
            open && self.queued.take().is_some_and(|last| (last.sq_head, last.posted) == (sq_head, posted));
        self.out
    }

    /// May the work be lent that the submission queues?
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Is work lent?
    pub fn is_out(&self) -> bool {
        self.out
    }

    /// Another thread wants to submit: it waits for [`Loan::end`].
    pub fn refuse(&mut self) {
        self.awaited = true;
        self.refused = true;
    }

    /// All that was lent is done, or holds its file. Returns whether somebody waits for that.
    pub fn end(&mut self) -> bool {
        debug_assert!(self.out, "only what was lent comes back");
        self.out = false;
        core::mem::take(&mut self.awaited)
    }
}
