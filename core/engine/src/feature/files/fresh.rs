//! Files that were opened for slots, and keep the number at which they were opened for the moment.

use crate::abi::Errno;
use crate::assets::notes;
use crate::assets::table::NodeIndex;
use crate::feature::files::FileTable;
use crate::os::{self, Fd, nr};

/// The number of no file.
const NONE: Fd = -1;

/// A file that is to be settled.
pub(super) struct Fresh {
    pub(super) node: NodeIndex,
    /// The status flags that the program has asked for, if the file was opened with `O_NONBLOCK` beside them.
    status: Option<u32>,
}

impl FileTable {
    /// Notes that the file in a slot is fresh. `status`: the status flags that it is to have, if it has `O_NONBLOCK` beside them.
    pub(super) fn note_fresh(&mut self, slot: usize, status: Option<u32>) {
        if let Some((node, _)) = self.table.get(slot) {
            self.fresh.push(Fresh { node, status });
        }
    }

    /// Settles all fresh files: nothing uses them yet, so their numbers may change.
    #[inline]
    pub fn settle(&mut self) {
        if !self.fresh.is_empty() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        for Fresh { node, status } in core::mem::take(&mut self.fresh) {
            let low = self.table.value(node);
            // A file that somebody has closed unseen is no file any more: the number must not name the next one.
            let settled = moved(low, status).unwrap_or(NONE);
            self.table.replace(node, settled);
        }
    }
}

/// Gives a file its status flags and a high number.
fn moved(low: Fd, status: Option<u32>) -> Result<Fd, Errno> {
    if let Some(status) = status {
        os::fcntl(low, nr::F_SETFL, status as usize).inspect_err(|_| os::close(low))?;
    }
    notes::move_high(low)
}
