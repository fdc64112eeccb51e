//! Slots of the program's ring that are kept for the files of chains.
//!
//! A chain's file comes into its slot when the chain is over. Until then the slot holds a keeper: an epoll set, which can
//! neither be read nor written. As the slot is not empty, the kernel gives it to no request that asks for any slot. If the
//! program puts another file there, or empties the slot, by whatever request or call, the keeper ends, for nothing else refers
//! to it. Then the chain's file must not replace what the program wants there.
//!
//! ```text
//!   program's slot ---has---> keeper, an epoll set ---watches---> an eventfd, always readable
//!                                         ^
//!   chain's watcher, an epoll set --------' reports the keeper as readable, as long as there is one
//! ```
//!
//! Kernels before 6.13 may let go of a replaced keeper late. So no watcher is used twice: a keeper that it still watches would
//! count for the next chain.

use crate::files::SLOTS;
use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent, Fd, OwnedFd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLIN};

/// A chain whose file is to come into a slot of the program's.
pub struct Reservation {
    /// The program's slot.
    own: u32,
    watcher: OwnedFd,
}

impl Reservation {
    /// The program's slot, if that is still kept.
    pub fn kept(self) -> Option<u32> {
        let mut event = [EpollEvent { events: 0, data: 0 }];
        let found = os::epoll_wait(self.watcher.fd(), &mut event, Some(0), None);
        (found == Ok(1)).then_some(self.own)
    }
}

/// The chains that use the companion's slots.
pub struct Reserved {
    /// Chains under way, by the companion's slot that their file is in.
    of: [Option<Reservation>; SLOTS as usize],
    readable: OwnedFd,
}

impl Reserved {
    /// None is kept.
    ///
    /// # Errors
    /// Where there are no descriptors left.
    pub fn new() -> Result<Reserved, Errno> {
        let readable = OwnedFd::new(os::eventfd()?);
        os::eventfd_signal(readable.fd());
        Ok(Reserved { of: [const { None }; SLOTS as usize], readable })
    }

    /// Reserves a slot of the companion's for a chain whose file is to come into the program's slot `own`. `put` gets the
    /// descriptor of the keeper, and puts the keeper there; nothing is reserved where it answers that it could not.
    pub fn begin(&mut self, own: u32, put: impl FnOnce(Fd) -> bool) -> Option<u32> {
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

    /// The reservation for the chain that had this slot of the companion's. The slot is free again.
    pub fn take(&mut self, slot: u32) -> Option<Reservation> {
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
        let slots: alloc::vec::Vec<_> = (0..SLOTS).map(|own| reserved.begin(own + 100, &mut keep)).collect();
        assert!(slots.iter().copied().eq((0..SLOTS).map(Some)));
        assert_eq!(reserved.begin(1, &mut keep), None);
        drop(keepers.remove(5));
        for slot in 0..SLOTS {
            let own = reserved.take(slot).unwrap().kept();
            assert_eq!(own, (slot != 5).then_some(slot + 100));
        }
        // Those of earlier chains, which are all still there, do not count.
        assert_eq!(reserved.begin(7, |_| true), Some(0));
        assert_eq!(reserved.take(0).unwrap().kept(), None);
        assert_eq!(reserved.begin(7, |_| false), None);
        assert!(reserved.take(0).is_none());
    }
}
