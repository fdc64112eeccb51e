//! Requests by their files, for cancellation by descriptor. A ring that never cancels by descriptor never pays for it.
//!
//! It takes a system call to tell a file from others. So a request is only noted when it comes, and its file is looked at when
//! the next cancellation by descriptor comes. A request that has ended by then costs nothing. Files have keys: what is found by
//! a key is compared one by one.

use alloc::vec::Vec;

use crate::os::{self, Fd};
use crate::request::index::Index;

/// The key of a file that cannot be looked at.
const UNKNOWN: u64 = 0;
/// The key of files without an inode of their own: timerfds, inotify instances; eventfds, too, as long as they are few.
const ANONYMOUS: u64 = 1;
/// The bit that the key of an eventfd has beside its number.
const EVENTFD: u64 = 1 << 62;
/// The bit that the key of a file has beside its device and inode.
const INODE: u64 = 1 << 63;
/// So many requests on anonymous inodes may be compared one by one: to ask for an eventfd's number takes longer.
const FEW: usize = 16;

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

/// Slots by the keys of their requests' files.
#[derive(Default)]
pub struct ByFile {
    index: Index,
    slots: Vec<Slot>,
    noted: Vec<u32>,
    /// Eventfds have keys of their own.
    knows_eventfds: bool,
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
    fn look(&mut self, look: impl Fn(u32) -> Look) -> bool {
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
                        _ => *last.insert((file, self.key(file))),
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

    /// The slots whose requests may be of this file, in the order of the slots; `look` says what file a slot's request has. None where
    /// that cannot be told, or there is no memory for it: then any request may be of it.
    pub fn find(&mut self, file: Fd, look: impl Fn(u32) -> Look) -> Option<Vec<u32>> {
        if !self.look(&look) {
            return None;
        }
        let mut wanted = self.key(file);
        if wanted == ANONYMOUS
            && !self.knows_eventfds
            && self.index.find(ANONYMOUS).nth(FEW).is_some()
            && let Ok(Some(_)) = os::eventfd_number(file)
        {
            self.knows_eventfds = true;
            let anonymous: Vec<u32> = self.index.find(ANONYMOUS).collect();
            for slot in anonymous {
                self.remove(slot);
                if !self.add(slot) {
                    return None;
                }
            }
            if !self.look(&look) {
                return None;
            }
            wanted = self.key(file);
        }
        if wanted == UNKNOWN {
            return None;
        }
        let mut found: Vec<u32> = self.index.find(wanted).chain(self.index.find(UNKNOWN)).collect();
        found.sort_unstable();
        Some(found)
    }

    /// The key of a file, which is the same for all its descriptors, whoever asks. Two files may have one key. No file
    /// system is asked that may be slow to answer.
    fn key(&self, file: Fd) -> u64 {
        let Ok(identity) = os::known_identity(file) else { return UNKNOWN };
        if !identity.is_anonymous() {
            return INODE | identity.inode ^ identity.device.rotate_left(40);
        }
        if !self.knows_eventfds {
            return ANONYMOUS;
        }
        match os::eventfd_number(file) {
            Ok(Some(number)) => EVENTFD | u64::from(number),
            Ok(None) => ANONYMOUS,
            Err(_) => UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::vec::Vec;

    use super::{ByFile, Look};
    use crate::os;

    const MANY: u32 = 100;

    /// Asks for another descriptor of each of many files: how many requests, of one on each file, may be of it?
    fn found(make: impl Fn() -> OwnedFd) -> Vec<usize> {
        let files: Vec<_> = (0..MANY).map(|_| make()).collect();
        let mut by_file = ByFile::default();
        assert!(by_file.build(MANY));
        let look = |slot: u32| Look::Has(files[slot as usize].as_raw_fd());
        let mut of = |(slot, file): (u32, &OwnedFd)| {
            let other = file.try_clone().unwrap();
            let found = by_file.find(other.as_raw_fd(), look).unwrap();
            assert!(found.contains(&slot), "its own request is found");
            found.len()
        };
        (0..).zip(&files).map(&mut of).collect()
    }

    #[test]
    fn the_requests_of_a_file_are_found_among_those_of_many() {
        // SAFETY: a new descriptor, which is nobody else's.
        let eventfd = || unsafe { OwnedFd::from_raw_fd(os::eventfd().unwrap()) };
        assert_eq!(found(|| std::io::pipe().unwrap().0.into()), [1; MANY as usize]);
        assert_eq!(found(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()), [1; MANY as usize]);
        assert_eq!(found(eventfd), [1; MANY as usize]);
        // These have no number.
        // SAFETY: as above.
        let epoll = || unsafe { OwnedFd::from_raw_fd(os::epoll_create().unwrap()) };
        assert_eq!(found(epoll), [MANY as usize; MANY as usize]);
    }
}
