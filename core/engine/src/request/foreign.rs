//! Requests that the acting thread must not continue, because its credentials differ from those of
//! the submitter or of the personality that the request names.

use crate::process::credentials::{self, Whose};
use crate::request::op::Caps;
use crate::request::{Phase, RequestId};
use crate::ring::Core;
use crate::work::{Step, Work};

impl Core {
    /// True if the calling thread's credentials differ from those that this request needs.
    #[inline]
    pub(super) fn is_foreign(&self, id: RequestId) -> bool {
        let whose = self[id].whose;
        (whose != Whose::Common || credentials::matter()) && self.is_foreign_now(id, whose)
    }

    #[cold]
    fn is_foreign_now(&self, id: RequestId, whose: Whose) -> bool {
        let row = self.row(id);
        let minds = row.block.is_some() || row.op.caps.has(Caps::FILE.with(Caps::CREDENTIALS));
        minds && whose.credentials() != credentials::acting()
    }

    /// Passes the request's next step to a thread with the right credentials.
    #[cold]
    pub(super) fn send_home(&mut self, id: RequestId, step: Step) {
        if let Err(errno) = self.file_if_needed(id) {
            return self.complete(id, errno.negated());
        }
        self[id].phase = Phase::Working;
        let work = Work::step(self, id, step);
        let handed_over = self.hand_over_one(work);
        debug_assert!(handed_over.is_ok(), "what nobody can do has failed");
    }
}
