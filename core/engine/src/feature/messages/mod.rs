//! Messages from other rings (`MSG_RING`).
//!
//! No thread waits for two rings' locks: it tries the target's while it holds the sender's. If another thread holds the
//! target's lock, the message waits at the target, and a thread without a ring's lock locks the target for it. A thread
//! that locks the target delivers the waiting messages first, in order. So two rings that send to each other do not block
//! each other, and the messages of one ring arrive in the order in which it sent them:
//!
//! ```text
//!  sender's lock held          target free ──► waiting messages, then this one
//!  MSG_RING is issued ──┤
//!                              target locked ─► `leave`, at the queue's end ··· work, without a lock: target.lock(), waiting messages
//! ```

mod deliver;
pub mod ops;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::abi::{Errno, Sqe};
use crate::os::OwnedFd;
use crate::os::sync::Mutex;
use crate::os::sync::atomic::{AtomicBool, Ordering};

/// A duplicate of the registered file that a message passes, or the reason why there is none.
pub type Passed = Result<OwnedFd, Errno>;

/// A message on its way to a ring.
pub struct Message {
    /// The serial number of the target ring.
    serial: u64,
    sqe: Sqe,
    progress: Mutex<Progress>,
}

enum Progress {
    /// Not delivered yet; with the file that it passes, if any.
    Waits(Option<Passed>),
    Arrived(Result<usize, Errno>),
}

impl Message {
    /// Makes the message of `sqe` to the ring with this serial number.
    pub fn new(serial: u64, sqe: Sqe, file: Option<Passed>) -> Message {
        Message { serial, sqe, progress: Mutex::new(Progress::Waits(file)) }
    }

    /// Cancels the message, unless it has arrived.
    pub fn revoke(&self) {
        let mut progress = self.progress.lock();
        if let Progress::Waits(_) = &*progress {
            *progress = Progress::Arrived(Err(Errno::ECANCELED));
        }
    }

    /// Returns the message's result. The caller must have locked the target since it left the message, and emptied the mailbox.
    pub fn result(&self) -> Result<usize, Errno> {
        match *self.progress.lock() {
            Progress::Arrived(result) => result,
            Progress::Waits(_) => unreachable!("what waits for a ring is delivered before its sender looks"),
        }
    }
}

/// Messages that wait for a ring's lock. The mailbox's own lock is taken inside any other lock; a `fork`, which holds
/// all rings' locks, finds it free.
pub(crate) struct Mailbox {
    /// The mailbox may hold a message. Relaxed: a sender that must see its own message put it there under its own ring's lock.
    used: AtomicBool,
    messages: Mutex<VecDeque<Arc<Message>>>,
}

impl Mailbox {
    pub const fn new() -> Mailbox {
        Mailbox { used: AtomicBool::new(false), messages: Mutex::new(VecDeque::new()) }
    }

    /// Puts a message behind the others. Its sender then locks this ring, without another ring's lock, and empties the mailbox.
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

    /// Resets the mailbox for the next schedule of a simulation.
    #[cfg(anyring_simulation)]
    pub fn forget(&self) {
        debug_assert!(self.messages.lock().is_empty(), "every sender came for its message");
        self.used.store(false, Ordering::Relaxed);
    }

    /// Empties the mailbox in a child after `fork`: the parent delivers the messages.
    ///
    /// # Safety
    /// No other thread of this process may use the mailbox.
    pub unsafe fn forked(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.messages.reset() };
        self.messages.lock().clear();
        self.used.store(false, Ordering::Relaxed);
    }
}
