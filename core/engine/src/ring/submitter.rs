//! The one thread that may submit to a ring with `IORING_SETUP_SINGLE_ISSUER`.

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

use crate::abi::Errno;
use crate::os::host;
use crate::ring::Core;

/// The thread that may submit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submitter {
    /// Not known yet, or not asked for.
    #[default]
    Unknown,
    /// The thread of this identity.
    Thread(usize),
    /// A thread of another process, or one that has ended.
    Elsewhere,
}

impl Submitter {
    /// True if the submitter is known.
    pub fn is_known(self) -> bool {
        self != Submitter::Unknown
    }

    /// True if the submitter is a thread of this process.
    pub fn is_here(self) -> bool {
        matches!(self, Submitter::Thread(_))
    }
}

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
