//! Admission to a ring: the thread that may submit, and the time from which it may.

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

use crate::abi::Errno;
use crate::os::host;
use crate::ring::Core;
use crate::ring::submitter::Submitter;

impl Core {
    /// On a SINGLE_ISSUER ring only one thread may submit; on one that defers, only it may fetch.
    ///
    /// # Errors
    /// `EEXIST` where `thread` is another.
    #[inline]
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

    /// True if submitting and registering is another thread's.
    pub fn is_anothers(&self) -> bool {
        self.is(IORING_SETUP_SINGLE_ISSUER)
            && !self.is(IORING_SETUP_R_DISABLED)
            && self.drive.submitter.is_known()
            && self.drive.submitter != Submitter::Thread(host::thread_identity())
    }

    /// Lets a ring begin that was set up with `IORING_SETUP_R_DISABLED`.
    ///
    /// # Errors
    /// `EBADFD` where it was not.
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

    /// The ring is enabled, by whatever process.
    pub(super) fn begin_enabled(&mut self) {
        self.identity.setup_flags &= !IORING_SETUP_R_DISABLED;
        self.resources.restrictions.enforce();
    }
}
