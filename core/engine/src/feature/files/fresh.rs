//! Files that were opened for slots, and keep the number at which they were opened for the moment.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::assets::kinds;
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
        let mut fresh = core::mem::take(&mut self.fresh);
        let mut lows = Vec::with_capacity(fresh.len());
        for Fresh { node, status } in fresh.drain(..) {
            let low = self.table.value(node);
            let settled = raised(low, status);
            if settled != Ok(low) {
                lows.push(low);
            }
            // A file that somebody has closed unseen is no file any more: the number must not name the next one.
            self.table.replace(node, settled.unwrap_or(NONE));
        }
        self.fresh = fresh;
        close_lows(lows);
    }
}

/// Gives a file its status flags, and duplicates it to a high number. If there is none, it keeps its own.
fn raised(low: Fd, status: Option<u32>) -> Result<Fd, Errno> {
    if let Some(status) = status {
        os::fcntl(low, nr::F_SETFL, status as usize)?;
    }
    match os::duplicate(low) {
        Ok(high) => {
            notes::renew(high);
            kinds::add(high, kinds::noted(low));
            Ok(high)
        }
        Err(Errno::EMFILE) => Ok(low),
        Err(errno) => Err(errno),
    }
}

/// Closes low numbers, as many together as follow one another.
fn close_lows(mut lows: Vec<Fd>) {
    lows.sort_unstable();
    lows.iter().for_each(|&low| notes::closes(low));
    for run in lows.chunk_by(|low, next| low + 1 == *next) {
        os::close_all(run[0]..=run[run.len() - 1]);
    }
}
