//! Messages from other rings (`MSG_RING`).
//!
//! Two rings' locks are never waited for together: the target's is tried while the sender's is held. Where it is taken, the
//! message waits at the target, and a thread without a ring's lock comes for the target's. Whoever has the target's lock
//! delivers first what waits there, in its order. So two rings that send to each other cannot keep each other from it, and
//! the messages of one ring arrive in the order in which it sent them:
//!
//! ```text
//!  sender's lock held          target free ──► what waits there, then this one
//!  MSG_RING is issued ──┤
//!                              target taken ──► `leave`, at its end ··· work, without a lock: target.lock(), what waits there
//! ```

mod deliver;
pub mod ops;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::abi::{Errno, Sqe};
use crate::os::OwnedFd;
use crate::os::sync::Mutex;
use crate::os::sync::atomic::{AtomicBool, Ordering};

/// A duplicate of the registered file that a message passes on, or why there is none.
pub type Passed = Result<OwnedFd, Errno>;

/// A message on its way to a ring.
pub struct Message {
    /// The life of the target that it is for.
    life: u64,
    sqe: Sqe,
    progress: Mutex<Progress>,
}

enum Progress {
    /// With the file that it takes along.
    Waits(Option<Passed>),
    Arrived(Result<usize, Errno>),
}

impl Message {
    /// The message of `sqe`, to the ring of this life.
    pub fn new(life: u64, sqe: Sqe, file: Option<Passed>) -> Message {
        Message { life, sqe, progress: Mutex::new(Progress::Waits(file)) }
    }

    /// Keeps the message from arriving, unless it has.
    pub fn revoke(&self) {
        let mut progress = self.progress.lock();
        if let Progress::Waits(_) = &*progress {
            *progress = Progress::Arrived(Err(Errno::ECANCELED));
        }
    }

    /// The message's result, for who has locked the target since and delivered what waited there.
    pub fn result(&self) -> Result<usize, Errno> {
        match *self.progress.lock() {
            Progress::Arrived(result) => result,
            Progress::Waits(_) => unreachable!("what waits for a ring is delivered before its sender looks"),
        }
    }
}

/// Messages that wait for a ring's lock. Its own lock is taken inside any other; a `fork`, which holds all rings' locks,
/// finds it free.
pub(crate) struct Mailbox {
    /// The mailbox may hold a message. Relaxed: whoever must see a message of its own ring put it there under that ring's lock.
    used: AtomicBool,
    messages: Mutex<VecDeque<Arc<Message>>>,
}

impl Mailbox {
    pub const fn new() -> Mailbox {
        Mailbox { used: AtomicBool::new(false), messages: Mutex::new(VecDeque::new()) }
    }

    /// Puts a message behind the others. Its sender then takes the ring's lock without another, and empties the mailbox.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn leave(&self, message: Arc<Message>) -> Result<(), Errno> {
        let mut messages = self.messages.lock();
        messages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        messages.push_back(message);
        self.used.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn take(&self) -> Option<Arc<Message>> {
        let mut messages = self.messages.lock();
        let message = messages.pop_front();
        if message.is_none() {
            self.used.store(false, Ordering::Relaxed);
        }
        message
    }

    /// For the next schedule of a simulation.
    #[cfg(anyring_simulation)]
    pub fn forget(&self) {
        debug_assert!(self.messages.lock().is_empty(), "every sender came for its message");
        self.used.store(false, Ordering::Relaxed);
    }

    /// In a child after `fork`: they are the parent's to deliver.
    ///
    /// # Safety
    /// No other thread of this process may use it.
    pub unsafe fn forked(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.messages.reset() };
        self.messages.lock().clear();
        self.used.store(false, Ordering::Relaxed);
    }
}
