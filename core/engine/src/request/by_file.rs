//! Requests by their files, for cancellation by descriptor. A ring that never cancels by descriptor never builds it.
//!
//! Identifying a file takes a system call. So a new request is only noted, and its file is looked at in the next cancellation
//! by descriptor; a request that has ended by then costs nothing. Files have keys, which need not be unique: the caller
//! compares the requests found by a key one by one.
//!
//! Files on an anonymous inode, except eventfds, have nothing that identifies them. Once there are many, each gets a key of its
//! own, and a file is found by binary search in the kernel's order of open files ([`os::order_of_files`]), if available.

use core::cmp::Ordering;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::{self, Fd};
use crate::request::index::Index;

/// The key of a file that cannot be identified.
const UNKNOWN: u64 = 0;
/// The common key of files without an inode of their own, while they are few or the system tells no order of them.
const ANONYMOUS: u64 = 1;
/// Set in the key of such a file that has a number of its own.
const ORDERED: u64 = 1 << 61;
/// Set in the key of an eventfd, beside its ID.
const EVENTFD: u64 = 1 << 62;
/// Set in the key of a file that is identified by device and inode.
const INODE: u64 = 1 << 63;
/// Up to this number of requests on anonymous inodes, comparing one by one is faster than finding out more.
const FEW: usize = 16;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// Free, or its request never has a file.
    Apart,
    /// Its request is to be looked at.
    Noted,
    /// The slot is in the index, by the key of its file.
    Indexed,
}

/// The file of a request at the time of the look.
pub enum Look {
    /// There is no request, or its operation never has a file.
    Nothing,
    /// The request has no file yet.
    Later,
    /// The request has this file.
    Has(Fd),
}

/// The slots of requests, by the keys of their files.
#[derive(Default)]
pub struct ByFile {
    index: Index,
    slots: Vec<Slot>,
    noted: Vec<u32>,
    /// There are many files on anonymous inodes: each has a key of its own.
    has_many: bool,
    /// The keys of such files that are not eventfds, in the kernel's order of the files. A key may have no slot any more.
    ordered: Vec<u64>,
    /// The number of such keys assigned so far.
    given: u64,
    /// The system tells no order of files.
    has_no_order: bool,
    /// Some slots were moved from the index back to `noted`.
    noted_again: bool,
}

impl ByFile {
    /// True once the index was built.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.index.in_use()
    }

    /// Begins with this number of slots, all to be looked at. False if memory is short.
    pub fn build(&mut self, slots: u32) -> bool {
        self.index.build(core::iter::empty()) && (0..slots).all(|slot| self.add(slot))
    }

    /// Notes a slot that has a new request. If memory is short, the whole structure is reset and out of use; returns false.
    pub fn add(&mut self, slot: u32) -> bool {
        let missing = (slot as usize + 1).saturating_sub(self.slots.len());
        if self.slots.try_reserve(missing).is_err() || self.noted.try_reserve(1).is_err() {
            *self = ByFile::default();
            return false;
        }
        self.slots.resize(self.slots.len() + missing, Slot::Apart);
        let known = &mut self.slots[slot as usize];
        debug_assert!(*known != Slot::Indexed, "a request that ended was taken out");
        // A request that ended before a look may have left its slot in `noted`.
        if *known == Slot::Apart {
            *known = Slot::Noted;
            self.noted.push(slot);
        }
        true
    }

    /// Forgets the slot of a request that ends.
    pub fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize] == Slot::Indexed {
            self.slots[slot as usize] = Slot::Apart;
            self.index.remove(slot);
        }
    }

    /// Looks at all noted slots. False if memory is short; then the whole structure is reset.
    fn look(&mut self, look: &impl Fn(u32) -> Look) -> bool {
        // [`ByFile::key`] may note other slots again.
        let mut later = core::mem::take(&mut self.noted);
        let mut kept = 0;
        // Successive requests often have the same file.
        let mut last = None;
        for at in 0..later.len() {
            let slot = later[at];
            self.slots[slot as usize] = match look(slot) {
                Look::Nothing => Slot::Apart,
                Look::Later => {
                    later[kept] = slot;
                    kept += 1;
                    Slot::Noted
                }
                Look::Has(file) => {
                    let (_, key) = match last {
                        Some(known @ (of, _)) if of == file => known,
                        _ => *last.insert((file, self.key(file, look, Unknown::IsNew))),
                    };
                    if !self.in_use() || !self.index.add(slot, key) {
                        *self = ByFile::default();
                        return false;
                    }
                    Slot::Indexed
                }
            };
        }
        later.truncate(kept);
        if later.try_reserve(self.noted.len()).is_err() {
            *self = ByFile::default();
            return false;
        }
        later.append(&mut self.noted);
        self.noted = later;
        true
    }

    /// Returns the slots whose requests may have this file, in ascending order; `look` returns the file of a slot's request. `None` if
    /// the file cannot be identified or memory is short: then any request may have it.
    pub fn find(&mut self, file: Fd, look: impl Fn(u32) -> Look) -> Option<Vec<u32>> {
        let wanted = loop {
            self.noted_again = false;
            if !self.look(&look) {
                return None;
            }
            let wanted = self.key(file, &look, Unknown::IsNobodys);
            if wanted == ANONYMOUS && !self.has_many && self.index.find(ANONYMOUS).nth(FEW).is_some() {
                self.has_many = true;
                self.note_again(ANONYMOUS);
            }
            if !self.in_use() {
                return None;
            }
            if !self.noted_again {
                break wanted;
            }
        };
        if wanted == UNKNOWN {
            return None;
        }
        let mut found: Vec<u32> = self.index.find(wanted).chain(self.index.find(UNKNOWN)).collect();
        found.sort_unstable();
        Some(found)
    }

    /// Moves the slots with this key back to `noted`. If memory is short, the whole structure is reset.
    #[cold]
    fn note_again(&mut self, key: u64) {
        self.noted_again = true;
        while self.in_use() {
            let next = self.index.find(key).next();
            let Some(slot) = next else { return };
            self.remove(slot);
            self.add(slot);
        }
    }

    /// Returns the key of a file, which is equal for all its descriptors; two files may share a key. Queries no file
    /// system that may be slow to answer.
    fn key(&mut self, file: Fd, look: &impl Fn(u32) -> Look, unknown: Unknown) -> u64 {
        let Ok(identity) = os::known_identity(file) else { return UNKNOWN };
        if !identity.is_anonymous() {
            return INODE | identity.inode ^ identity.device.rotate_left(40);
        }
        if !self.has_many {
            return ANONYMOUS;
        }
        match os::eventfd_number(file) {
            Ok(Some(number)) => EVENTFD | u64::from(number),
            Ok(None) if self.has_no_order => ANONYMOUS,
            Ok(None) => self.ordered_key(file, look, unknown),
            Err(_) => UNKNOWN,
        }
    }

    /// Returns the key of a file that is identified only by its place in the order of files.
    fn ordered_key(&mut self, file: Fd, look: &impl Fn(u32) -> Look, unknown: Unknown) -> u64 {
        let (mut low, mut high) = (0, self.ordered.len());
        while low < high && self.in_use() {
            let middle = low.midpoint(high);
            let key = self.ordered[middle];
            let order = match self.index.find(key).next().map(look) {
                Some(Look::Has(other)) => os::order_of_files(file, other),
                _ => Err(Errno::EBADF),
            };
            match order {
                Ok(Some(Ordering::Less)) => high = middle,
                Ok(Some(Ordering::Greater)) => low = middle + 1,
                Ok(Some(Ordering::Equal)) => return key,
                Ok(None) => {
                    self.has_no_order = true;
                    for key in core::mem::take(&mut self.ordered) {
                        self.note_again(key);
                    }
                    return ANONYMOUS;
                }
                // All requests with this key have ended, or their file has become unknown.
                Err(_) => {
                    self.ordered.remove(middle);
                    high -= 1;
                    if self.index.find(key).next().is_some() {
                        self.note_again(key);
                    }
                }
            }
        }
        if matches!(unknown, Unknown::IsNobodys) {
            return ORDERED;
        }
        if self.ordered.len() == self.ordered.capacity() {
            let (ordered, index) = (&mut self.ordered, &self.index);
            let before = ordered.len();
            ordered.retain(|&key| index.find(key).next().is_some());
            // If few keys were dropped, the next insertion would soon scan all of them again.
            let is_full = ordered.len() >= before - before / 4;
            if is_full && ordered.try_reserve(ordered.len().max(1)).is_err() {
                return UNKNOWN;
            }
            if ordered.len() < before {
                // The place for the new key has moved.
                return self.ordered_key(file, look, unknown);
            }
        }
        self.given += 1;
        self.ordered.insert(low, ORDERED | self.given);
        ORDERED | self.given
    }
}

/// The key for a file that has none yet.
#[derive(Clone, Copy)]
enum Unknown {
    /// A new key of its own.
    IsNew,
    /// A key that no slot has.
    IsNobodys,
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::vec::Vec;

    use super::{ByFile, Look};
    use crate::os;

    const MANY: u32 = 100;

    /// Looks up each of many files by a second descriptor, with one request on each. Returns how many requests each look-up finds.
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
        // SAFETY: a new descriptor, which has no other owner.
        let eventfd = || unsafe { OwnedFd::from_raw_fd(os::eventfd().unwrap()) };
        assert_eq!(found(|| std::io::pipe().unwrap().0.into()), [1; MANY as usize]);
        assert_eq!(found(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()), [1; MANY as usize]);
        assert_eq!(found(eventfd), [1; MANY as usize]);
        // SAFETY: as above.
        let epoll = || unsafe { OwnedFd::from_raw_fd(os::epoll_create().unwrap()) };
        // Epoll instances have no ID. The first look-up finds out that there are many.
        let by_order = if has_order() { 1 } else { MANY as usize };
        assert_eq!(found(epoll), [by_order; MANY as usize]);
    }

    fn has_order() -> bool {
        os::order_of_files(0, 0) == Ok(Some(core::cmp::Ordering::Equal))
    }

    /// Requests on files without an ID come and go; several requests share a file, and some files are closed unobserved.
    #[test]
    fn files_in_the_order_of_the_kernel_come_and_go() {
        use std::cell::RefCell;

        // SAFETY: a new descriptor, which has no other owner.
        let epoll = || unsafe { OwnedFd::from_raw_fd(os::epoll_create().unwrap()) };
        let files: Vec<_> = (0..MANY).map(|_| epoll()).collect();
        // The file of each slot: its index in `files`, with a descriptor of the slot's own.
        let slots: RefCell<Vec<Option<(usize, OwnedFd)>>> =
            RefCell::new((0..3 * MANY).map(|_| None).collect());
        let mut by_file = ByFile::default();
        assert!(by_file.build(0));
        let look = |slot: u32| match &slots.borrow()[slot as usize] {
            Some((_, file)) => Look::Has(file.as_raw_fd()),
            None => Look::Nothing,
        };
        let mut random = 1u64;
        for round in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = (random >> 33) as u32 % (3 * MANY);
            let file = (random >> 50) as usize % files.len();
            let there = slots.borrow_mut()[slot as usize].take();
            match there {
                Some(_) => by_file.remove(slot),
                None => {
                    let name = files[file].try_clone().unwrap();
                    slots.borrow_mut()[slot as usize] = Some((file, name));
                    assert!(by_file.add(slot));
                }
            }
            if round % 10 != 0 {
                continue;
            }
            let found = by_file.find(files[file].as_raw_fd(), look).unwrap();
            let slots = slots.borrow();
            let of = |slot: &u32| matches!(&slots[*slot as usize], Some((of, _)) if *of == file);
            let expected: Vec<u32> = (0..3 * MANY).filter(of).collect();
            if has_order() && round > 1000 {
                assert_eq!(found, expected);
            }
            assert!(expected.iter().all(|slot| found.contains(slot)));
        }
        assert!(by_file.ordered.len() <= 2 * MANY as usize, "what is over is given up");
    }
}
