//! Descriptions of directories that a ring keeps, and the CQEs by which it tells of the end of registered things.

use crate::assets::directories::Description;
use crate::os::Fd;
use crate::queue::Cqe;
use crate::ring::Core;
use crate::ring::drive::reactor;

impl Core {
    /// Keeps a description of the directory with this number for the next request that reads it.
    pub fn keep_directory(&mut self, number: Fd, description: Description) {
        if self.life.is_closing() {
            return;
        }
        let place = self.identity.ring.number();
        self.resources.directories.keep(number, place, description);
        if !self.resources.directories.is_empty() {
            reactor::attend_stale(self);
        }
    }

    /// Announces the end of a registered thing, if it has a tag.
    pub(crate) fn post_tag(&mut self, tag: u64) {
        if tag != 0 {
            self.post_unrequested(Cqe { user_data: tag, ..Cqe::default() });
        }
    }
}
