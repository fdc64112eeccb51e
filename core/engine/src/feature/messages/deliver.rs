//! Delivery of messages.

use linux_raw_sys::io_uring::{
    IORING_MSG_RING_CQE_SKIP, IORING_MSG_RING_FLAGS_PASS, IORING_SETUP_R_DISABLED,
    io_uring_msg_ring_flags as Command,
};

use crate::abi::{Errno, Sqe};
use crate::feature::messages::{Message, Passed, Progress};
use crate::os::sync::atomic::Ordering;
use crate::queue::Cqe;
use crate::ring::{Core, CoreGuard, live};

impl Message {
    fn arrive(&self, target: Option<&mut Core>) {
        let mut progress = self.progress.lock();
        let Progress::Waits(file) = &mut *progress else { return };
        let file = file.take();
        *progress = Progress::Arrived(match target {
            Some(target) => deliver(target, &self.sqe, file),
            None => Err(Errno::EBADFD),
        });
    }
}

impl CoreGuard<'_> {
    /// Delivers the messages that wait for this ring.
    pub fn empty_mailbox(&mut self) {
        let mailbox = self.ring().mailbox();
        if mailbox.used.load(Ordering::Relaxed) {
            while let Some(message) = mailbox.take() {
                message.arrive(live(self, message.serial));
            }
        }
    }

    /// Delivers a message, after those that wait for this ring.
    ///
    /// # Errors
    /// `EBADFD` if the ring has ended or is not enabled, and the errors of the message.
    pub fn send(&mut self, serial: u64, sqe: &Sqe, file: Option<Passed>) -> Result<usize, Errno> {
        self.empty_mailbox();
        deliver(live(self, serial).ok_or(Errno::EBADFD)?, sqe, file)
    }
}

/// Posts a message, and notifies the target's waiters.
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
    /// True if a TIMEOUT counts a completion that is posted here now.
    pub(in crate::feature::messages) fn counts_completions(&self) -> bool {
        self.time().timeouts.counting() > 0 && !self.defers()
    }

    /// Accepts a message without a file.
    ///
    /// # Errors
    /// `EINVAL` for fields that such a message does not have, `EBADFD` if the ring is not enabled, `EOVERFLOW` if it is full of messages that
    /// another process has not fetched.
    pub(in crate::feature::messages) fn accept_data(&mut self, sqe: &Sqe) -> Result<usize, Errno> {
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
        self.receive(Cqe { user_data: sqe.off, res: sqe.len as i32, flags, big: [0; 2] }).map(|()| 0)
    }

    fn accept_file(&mut self, sqe: &Sqe, file: Passed) -> Result<usize, Errno> {
        if self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        let slot = self.install_file(file?.into_fd(), sqe.file_index)?;
        if sqe.op_flags & IORING_MSG_RING_CQE_SKIP == 0 {
            self.receive(Cqe { user_data: sqe.off, res: slot as i32, flags: 0, big: [0; 2] })?;
        }
        Ok(slot)
    }
}
