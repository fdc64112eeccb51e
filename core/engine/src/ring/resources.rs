//! Kept descriptions of directories, and the CQEs that report the end of registered files and buffers.

use crate::assets::directories::Description;
use crate::os::Fd;
use crate::queue::Cqe;
use crate::ring::Core;
use crate::ring::drive::reactor;

impl Core {
    /// Keeps a file description of the directory `number` for the next request that reads the directory.
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

    /// Posts the tag of a registered file or buffer that has ended, if it has one.
    pub(crate) fn post_tag(&mut self, tag: u64) {
        if tag != 0 {
            self.post_unrequested(Cqe { user_data: tag, ..Cqe::default() });
        }
    }
}
