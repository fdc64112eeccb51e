//! Requests by their files, for cancellation by descriptor. A ring that never cancels by descriptor never pays for it.
//!
//! It takes a system call to tell a file from others. So a request is only noted when it comes, and its file is looked at when
//! the next cancellation by descriptor comes. A request that has ended by then costs nothing.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::{self, Fd};
use crate::request::index::Index;

/// What stands for a file that cannot be looked at.
const UNKNOWN: u64 = 0;
/// What stands for all files that are no sockets.
const NO_SOCKET: u64 = 1;
/// What distinguishes sockets from these.
const SOCKET: u64 = 1 << 63;

/// What is known of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// It is in no list.
    Apart,
    /// Its request is to be looked at.
    Noted,
    /// It is in the index.
    Indexed,
}

/// What can be said of a request when it is looked at.
pub enum Look {
    /// It is none, or will never have a file.
    Nothing,
    /// It has no file yet.
    Later,
    /// It has this one.
    Has(Fd),
}

/// Slots by what stands for their requests' files.
#[derive(Default)]
pub struct ByFile {
    index: Index,
    slots: Vec<Slot>,
    noted: Vec<u32>,
}

impl ByFile {
    /// Has anybody asked?
    #[inline]
    pub fn in_use(&self) -> bool {
        self.index.in_use()
    }

    /// Begins with as many slots, all of which are to be looked at; false where there is no memory for them.
    pub fn build(&mut self, slots: u32) -> bool {
        self.index.build(core::iter::empty()) && (0..slots).all(|slot| self.add(slot))
    }

    /// A slot has a new request. Where there is no memory, this goes out of use.
    pub fn add(&mut self, slot: u32) -> bool {
        let missing = (slot as usize + 1).saturating_sub(self.slots.len());
        if self.slots.try_reserve(missing).is_err() || self.noted.try_reserve(1).is_err() {
            *self = ByFile::default();
            return false;
        }
        self.slots.resize(self.slots.len() + missing, Slot::Apart);
        let known = &mut self.slots[slot as usize];
        debug_assert!(*known != Slot::Indexed, "a request that ended was taken out");
        // One that ended before anybody looked at it may have left its slot there.
        if *known == Slot::Apart {
            *known = Slot::Noted;
            self.noted.push(slot);
        }
        true
    }

    /// The slot's request ends.
    pub fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize] == Slot::Indexed {
            self.slots[slot as usize] = Slot::Apart;
            self.index.remove(slot);
        }
    }

    /// Looks at what is noted; false where there is no memory for it, and this went out of use.
    pub fn look(&mut self, look: impl Fn(u32) -> Look) -> bool {
        let mut kept = 0;
        // Many requests have the same.
        let mut last = None;
        for at in 0..self.noted.len() {
            let slot = self.noted[at];
            self.slots[slot as usize] = match look(slot) {
                Look::Nothing => Slot::Apart,
                Look::Later => {
                    self.noted[kept] = slot;
                    kept += 1;
                    Slot::Noted
                }
                Look::Has(file) => {
                    let (_, key) = match last {
                        Some(known @ (of, _)) if of == file => known,
                        _ => *last.insert((file, stands_for(file))),
                    };
                    if !self.index.add(slot, key) {
                        *self = ByFile::default();
                        return false;
                    }
                    Slot::Indexed
                }
            };
        }
        self.noted.truncate(kept);
        true
    }

    /// The slots whose requests may be of this file, in the order of the slots. None where the file cannot be looked at: then any
    /// request may be of it.
    pub fn find(&self, file: Fd) -> Option<Vec<u32>> {
        let wanted = Some(stands_for(file)).filter(|&wanted| wanted != UNKNOWN)?;
        let mut found: Vec<u32> = self.index.find(wanted).chain(self.index.find(UNKNOWN)).collect();
        found.sort_unstable();
        Some(found)
    }
}

/// What all descriptors of one file have in common, whatever their number is and whoever asks. Only sockets are told apart: they are
/// what programs have many of, and no other file has a number that can be asked for without its file system, which may be slow.
fn stands_for(file: Fd) -> u64 {
    match os::socket_cookie(file) {
        Ok(cookie) => cookie | SOCKET,
        Err(Errno::ENOTSOCK) => NO_SOCKET,
        Err(_) => UNKNOWN,
    }
}
