//! Requests that the acting thread may not go on with, because it has other credentials than whoever
//! submitted them, or than the personality that they name.

use crate::process::credentials::{self, Whose};
use crate::request::op::Caps;
use crate::request::{Phase, RequestId};
use crate::ring::Core;
use crate::work::{Step, Work};

impl Core {
    /// True if the calling thread has other credentials than this request is to be done with.
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

    /// Lets a thread with the right credentials take the request's next step.
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
