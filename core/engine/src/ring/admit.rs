//! Admission to a ring: which thread may submit, and from when on.

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

use crate::abi::Errno;
use crate::os::host;
use crate::ring::Core;
use crate::ring::submitter::Submitter;

impl Core {
    /// Checks that `thread` may submit. On a SINGLE_ISSUER ring only one thread may; if the ring defers, only this thread may fetch.
    ///
    /// # Errors
    /// `EEXIST` if another thread is the submitter.
    #[inline(always)]
    pub fn admit(&mut self, thread: usize) -> Result<(), Errno> {
        if !self.is(IORING_SETUP_SINGLE_ISSUER) {
            return Ok(());
        }
        if !self.drive.submitter.is_known() {
            self.drive.submitter = Submitter::Thread(thread);
            self.publish_submitter();
        }
        if self.drive.submitter == Submitter::Thread(thread) { Ok(()) } else { Err(Errno::EEXIST) }
    }

    /// True if only another thread may submit to the ring and register with it.
    pub fn is_anothers(&self) -> bool {
        self.is(IORING_SETUP_SINGLE_ISSUER)
            && !self.is(IORING_SETUP_R_DISABLED)
            && self.drive.submitter.is_known()
            && self.drive.submitter != Submitter::Thread(host::thread_identity())
    }

    /// Enables a ring that was set up with `IORING_SETUP_R_DISABLED`.
    ///
    /// # Errors
    /// `EBADFD` if the ring is not disabled.
    pub fn enable(&mut self) -> Result<(), Errno> {
        if !self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        self.begin_enabled();
        if self.is(IORING_SETUP_SINGLE_ISSUER) {
            self.drive.submitter = Submitter::Thread(host::thread_identity());
        }
        self.publish_submitter();
        self.kick_driver();
        Ok(())
    }

    /// Notes that the ring was enabled, by this process or by another.
    pub(super) fn begin_enabled(&mut self) {
        self.identity.setup_flags &= !IORING_SETUP_R_DISABLED;
        self.resources.restrictions.enforce();
    }
}
