//! Requests by their files, for cancellation by descriptor. A ring that never cancels by descriptor never pays for it.
//!
//! It takes a system call to tell a file from others. So a request is only noted when it comes, and its file is looked at when
//! the next cancellation by descriptor comes. A request that has ended by then costs nothing. Files have keys: what is found by
//! a key is compared one by one.
//!
//! Files on an anonymous inode have nothing to be known by, except eventfds. Once they are many, they are found by the order that
//! the kernel has for open files, where it tells ([`os::order_of_files`]); each gets a key of its own.

use core::cmp::Ordering;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::{self, Fd};
use crate::request::index::Index;

/// The key of a file that cannot be looked at.
const UNKNOWN: u64 = 0;
/// The key of files without an inode of their own, as long as they are few, and where the system tells no order of them.
const ANONYMOUS: u64 = 1;
/// The bit that the key of such a file has beside a number of its own.
const ORDERED: u64 = 1 << 61;
/// The bit that the key of an eventfd has beside its number.
const EVENTFD: u64 = 1 << 62;
/// The bit that the key of a file has beside its device and inode.
const INODE: u64 = 1 << 63;
/// So many requests on anonymous inodes may be compared one by one: to find out more takes longer.
const FEW: usize = 16;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// The slot is in no list.
    Apart,
    /// Its request is to be looked at.
    Noted,
    /// The slot is in the index.
    Indexed,
}

/// The file of a request, as it is when the request is looked at.
pub enum Look {
    /// There is no request, or one that will never have a file.
    Nothing,
    /// The request has no file yet.
    Later,
    /// The request has this file.
    Has(Fd),
}

/// Slots by the keys of their requests' files.
#[derive(Default)]
pub struct ByFile {
    index: Index,
    slots: Vec<Slot>,
    noted: Vec<u32>,
    /// Files on anonymous inodes are many: they have keys of their own.
    has_many: bool,
    /// The keys of those that are no eventfds, in the order of the files. A key may have no slot any more.
    ordered: Vec<u64>,
    /// The number of such keys that were given.
    given: u64,
    /// The system tells no order.
    has_no_order: bool,
    /// Some that were in the index are to be looked at anew.
    noted_again: bool,
}

impl ByFile {
    /// True once the index was built.
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
    fn look(&mut self, look: &impl Fn(u32) -> Look) -> bool {
        // A look may have other slots noted again.
        let mut later = core::mem::take(&mut self.noted);
        let mut kept = 0;
        // Many requests have the same.
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

    /// The slots whose requests may be of this file, in the order of the slots; `look` says what file a slot's request has. None where
    /// that cannot be told, or there is no memory for it: then any request may be of it.
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

    /// The slots with this key are to be looked at anew. Where there is no memory, this goes out of use.
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

    /// The key of a file, which is the same for all its descriptors, whoever asks. Two files may have one key. No file
    /// system is asked that may be slow to answer.
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

    /// The key of a file that has nothing to be known by but its place in the order of files.
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
                // Its requests have ended, or nobody knows any more what file they have.
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
            // Where few are dead, the next one would soon look through all of them again.
            let is_full = ordered.len() >= before - before / 4;
            if is_full && ordered.try_reserve(ordered.len().max(1)).is_err() {
                return UNKNOWN;
            }
            if ordered.len() < before {
                // The place is another one now.
                return self.ordered_key(file, look, unknown);
            }
        }
        self.given += 1;
        self.ordered.insert(low, ORDERED | self.given);
        ORDERED | self.given
    }
}

/// A file that has no key yet: which one it gets.
#[derive(Clone, Copy)]
enum Unknown {
    /// A key of its own, which is new.
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

    /// Asks for another descriptor of each of many files; returns how many requests, of one on each file, may be of it.
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
        // SAFETY: as above.
        let epoll = || unsafe { OwnedFd::from_raw_fd(os::epoll_create().unwrap()) };
        // Epoll instances have no number. The first one that is asked for finds out that they are many.
        let by_order = if has_order() { 1 } else { MANY as usize };
        assert_eq!(found(epoll), [by_order; MANY as usize]);
    }

    fn has_order() -> bool {
        os::order_of_files(0, 0) == Ok(Some(core::cmp::Ordering::Equal))
    }

    /// Requests on files without a number end and come while others stay, several have one file, and some files are closed unseen.
    #[test]
    fn files_in_the_order_of_the_kernel_come_and_go() {
        use std::cell::RefCell;

        // SAFETY: a new descriptor, which is nobody else's.
        let epoll = || unsafe { OwnedFd::from_raw_fd(os::epoll_create().unwrap()) };
        let files: Vec<_> = (0..MANY).map(|_| epoll()).collect();
        // Each slot's file: its number, by a descriptor of its own.
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
