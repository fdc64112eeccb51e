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

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use linux_raw_sys::io_uring::{
    IORING_MSG_RING_CQE_SKIP, IORING_MSG_RING_FLAGS_PASS, IORING_SETUP_R_DISABLED,
    io_uring_msg_ring_flags as Command,
};

use crate::abi::{Errno, Sqe};
use crate::os::OwnedFd;
use crate::os::sync::Mutex;
use crate::os::sync::atomic::{AtomicBool, Ordering};
use crate::queue::Cqe;
use crate::ring::{Core, CoreGuard, live};

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

    fn arrive(&self, target: Option<&mut Core>) {
        let mut progress = self.progress.lock();
        let Progress::Waits(file) = &mut *progress else { return };
        let file = file.take();
        *progress = Progress::Arrived(match target {
            Some(target) => deliver(target, &self.sqe, file),
            None => Err(Errno::EBADFD),
        });
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
pub(super) struct Mailbox {
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

impl CoreGuard<'_> {
    /// Delivers what waits for this ring.
    pub fn empty_mailbox(&mut self) {
        let mailbox = &self.ring.mailbox;
        if mailbox.used.load(Ordering::Relaxed) {
            while let Some(message) = mailbox.take() {
                message.arrive(live(self, message.life));
            }
        }
    }

    /// Delivers a message, behind those that wait for this ring.
    ///
    /// # Errors
    /// `EBADFD` where the ring has ended or is not enabled, and those of the message.
    pub fn send(&mut self, life: u64, sqe: &Sqe, file: Option<Passed>) -> Result<usize, Errno> {
        self.empty_mailbox();
        deliver(live(self, life).ok_or(Errno::EBADFD)?, sqe, file)
    }
}

/// Posts a message, and tells whoever waits there.
fn deliver(target: &mut Core, sqe: &Sqe, file: Option<Passed>) -> Result<usize, Errno> {
    target.drive_mut().observers.posts_later();
    let result = match file {
        Some(file) => target.accept_file(sqe, file),
        None => target.accept_data(sqe),
    };
    target.notify();
    result
}

impl Core {
    /// True if a completion that is posted here at once counts for a TIMEOUT.
    pub fn counts_completions(&self) -> bool {
        self.time.timeouts.counting() > 0 && !self.defers()
    }

    /// A message without a file has come.
    ///
    /// # Errors
    /// `EINVAL` for fields that it does not have, `EBADFD` where the ring is not enabled.
    pub fn accept_data(&mut self, sqe: &Sqe) -> Result<usize, Errno> {
        if sqe.addr as u32 != Command::IORING_MSG_DATA as u32 {
            return Err(Errno::EINVAL);
        }
        let passes = sqe.op_flags & IORING_MSG_RING_FLAGS_PASS != 0;
        if sqe.addr3 as u32 != 0
            || sqe.op_flags & !IORING_MSG_RING_FLAGS_PASS != 0
            || !passes && sqe.file_index != 0
        {
            return Err(Errno::EINVAL);
        }
        if self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        let flags = if passes { sqe.file_index } else { 0 };
        self.receive(Cqe { user_data: sqe.off, res: sqe.len as i32, flags, big: [0; 2] });
        Ok(0)
    }

    fn accept_file(&mut self, sqe: &Sqe, file: Passed) -> Result<usize, Errno> {
        if self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        let slot = self.install_file(file?.into_fd(), sqe.file_index)?;
        if sqe.op_flags & IORING_MSG_RING_CQE_SKIP == 0 {
            self.receive(Cqe { user_data: sqe.off, res: slot as i32, flags: 0, big: [0; 2] });
        }
        Ok(slot)
    }
}
