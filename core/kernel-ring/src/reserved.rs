//! Slots of the program's ring that are reserved for files of chains.
//!
//! A chain's file is moved into the program's slot when the chain is over. Until then the slot holds a keeper: an epoll
//! instance, which can neither be read nor written. As the slot is not empty, the kernel does not allocate it for another
//! request. If the program replaces or removes the slot's file, by whatever request or call, the keeper is freed, because
//! nothing else refers to it. Then the chain's file must not replace the program's.
//!
//! ```text
//!   program's slot ---has---> keeper, an epoll set ---watches---> an eventfd, always readable
//!                                         ^
//!   chain's watcher, an epoll set --------' reports the keeper as readable, as long as there is one
//! ```
//!
//! Kernels before 6.13 may free a replaced keeper late. So no watcher is used twice: a keeper of an earlier chain that it
//! still watches would be taken for the keeper of the next chain.

use crate::files::SLOTS;
use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent, Fd, OwnedFd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLIN};

/// A chain whose file will be moved into a slot of the program.
pub struct Reservation {
    /// The program's slot.
    own: u32,
    watcher: OwnedFd,
}

impl Reservation {
    /// Returns the program's slot, if it still holds the keeper.
    pub fn kept(self) -> Option<u32> {
        let mut event = [EpollEvent { events: 0, data: 0 }];
        let found = os::epoll_wait(self.watcher.fd(), &mut event, Some(0), None);
        (found == Ok(1)).then_some(self.own)
    }
}

/// The chains that use the companion's slots.
pub struct Reserved {
    /// Chains in progress, by the companion's slot of their file.
    of: [Option<Reservation>; SLOTS as usize],
    readable: OwnedFd,
}

impl Reserved {
    /// Makes an empty table.
    ///
    /// # Errors
    /// The errors of `eventfd2`.
    pub fn new() -> Result<Reserved, Errno> {
        let readable = OwnedFd::new(os::eventfd()?);
        os::eventfd_signal(readable.fd());
        Ok(Reserved { of: [const { None }; SLOTS as usize], readable })
    }

    /// Reserves a slot of the companion for a chain whose file will be moved into the program's slot `own`. `put` gets
    /// the keeper's descriptor, and installs the keeper in that slot; if it returns false, nothing is reserved.
    pub fn reserve(&mut self, own: u32, put: impl FnOnce(Fd) -> bool) -> Option<u32> {
        let slot = self.of.iter().position(Option::is_none)?;
        let [keeper, watcher] = [os::epoll_create().ok()?, os::epoll_create().ok()?].map(OwnedFd::new);
        os::epoll_ctl(keeper.fd(), EPOLL_CTL_ADD, self.readable.fd(), EPOLLIN, 0).ok()?;
        os::epoll_ctl(watcher.fd(), EPOLL_CTL_ADD, keeper.fd(), EPOLLIN, 0).ok()?;
        if !put(keeper.fd()) {
            return None;
        }
        self.of[slot] = Some(Reservation { own, watcher });
        Some(slot as u32)
    }

    /// Ends the reservation of this slot of the companion, and returns it.
    pub fn remove(&mut self, slot: u32) -> Option<Reservation> {
        self.of[slot as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepers_are_told_from_those_that_ended() {
        let mut reserved = Reserved::new().unwrap();
        let mut keepers = alloc::vec::Vec::new();
        let mut keep = |keeper| {
            keepers.push(OwnedFd::new(os::duplicate(keeper).unwrap()));
            true
        };
        let slots: alloc::vec::Vec<_> =
            (0..SLOTS).map(|own| reserved.reserve(own + 100, &mut keep)).collect();
        assert!(slots.iter().copied().eq((0..SLOTS).map(Some)));
        assert_eq!(reserved.reserve(1, &mut keep), None);
        drop(keepers.remove(5));
        for slot in 0..SLOTS {
            let own = reserved.remove(slot).unwrap().kept();
            assert_eq!(own, (slot != 5).then_some(slot + 100));
        }
        // Keepers of earlier chains still exist, and must not count.
        assert_eq!(reserved.reserve(7, |_| true), Some(0));
        assert_eq!(reserved.remove(0).unwrap().kept(), None);
        assert_eq!(reserved.reserve(7, |_| false), None);
        assert!(reserved.remove(0).is_none());
    }
}
