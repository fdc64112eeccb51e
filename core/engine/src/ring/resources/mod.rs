//! Operations of a ring on what is registered with it (the data lies in [`crate::assets`]).

mod buffers;
mod eventfd;
mod files;
mod kbuf;
pub(crate) mod personalities;
pub(crate) mod receive_queues;

use crate::queue::Cqe;
use crate::ring::Core;

impl Core {
    /// Announces the end of a registered thing, if it has a tag.
    fn post_tag(&mut self, tag: u64) {
        if tag != 0 {
            self.post_unrequested(Cqe { user_data: tag, ..Cqe::default() });
        }
    }
}
