//! Slots of the program's ring that are kept for the files of chains.
//!
//! A chain's file comes into its slot when the chain is over. Until then the slot holds a file that is of no use, an epoll set,
//! which can neither be read nor written: so the kernel gives the slot to nobody who asks for any. If the program has
//! another file put there, or the slot emptied, by whatever request or call, that epoll set ends, for nobody else has it.
//! Then the chain's file is not to come in place of what the program wants there.
//!
//! ```text
//!   program's slot ---has---> keeper, an epoll set ---watches---> an eventfd, always readable
//!                                ^
//!   watcher, an epoll set -------' of the chain's own, finds the keeper readable as long as that is there
//! ```
//!
//! Kernels before 6.13 may let go of a replaced file late. So no watcher is used twice: what it still watches would count
//! for the next chain.

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

/// What the companion's slots are for.
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

    /// For the program's slot `own`, a keeper that is to be put there, and then closed; the companion's slot is for the chain if
    /// `put` says so.
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

    /// The chain is over that had this slot of the companion's.
    pub fn end(&mut self, slot: u32) -> Option<Reservation> {
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
            let own = reserved.end(slot).unwrap().kept();
            assert_eq!(own, (slot != 5).then_some(slot + 100));
        }
        // Those of earlier chains, which are all still there, do not count.
        assert_eq!(reserved.begin(7, |_| true), Some(0));
        assert_eq!(reserved.end(0).unwrap().kept(), None);
        assert_eq!(reserved.begin(7, |_| false), None);
        assert!(reserved.end(0).is_none());
    }
}
