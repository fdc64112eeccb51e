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
//!   `kept`, an epoll set --------' watches it, and reports it as readable as long as it is there
//! ```

use crate::files::SLOTS;
use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent, OwnedFd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLIN};

/// What the companion's slots are for.
pub struct Reserved {
    /// Chains under way, by the companion's slot that their file is in: the program's slot that it is to come into.
    of: [Option<u32>; SLOTS as usize],
    kept: OwnedFd,
    readable: OwnedFd,
}

impl Reserved {
    /// None is kept.
    ///
    /// # Errors
    /// Where there are no descriptors left.
    pub fn new() -> Result<Reserved, Errno> {
        let kept = OwnedFd::new(os::epoll_create()?);
        let readable = OwnedFd::new(os::eventfd()?);
        os::eventfd_signal(readable.fd());
        Ok(Reserved { of: [None; SLOTS as usize], kept, readable })
    }

    /// A slot of the companion's that is for no chain.
    pub fn free(&self) -> Option<u32> {
        self.of.iter().position(Option::is_none).map(|slot| slot as u32)
    }

    /// What is to be put into the program's slot, and then closed, before [`Reserved::begin`].
    ///
    /// # Errors
    /// Where there are no descriptors left.
    pub fn keeper(&self, slot: u32) -> Result<OwnedFd, Errno> {
        let keeper = OwnedFd::new(os::epoll_create()?);
        os::epoll_ctl(keeper.fd(), EPOLL_CTL_ADD, self.readable.fd(), EPOLLIN, 0)?;
        os::epoll_ctl(self.kept.fd(), EPOLL_CTL_ADD, keeper.fd(), EPOLLIN, slot.into())?;
        Ok(keeper)
    }

    /// The companion's `slot` is for a chain whose file is to come into the program's slot `own`.
    pub fn begin(&mut self, slot: u32, own: u32) {
        self.of[slot as usize] = Some(own);
    }

    /// The chain is over that had this slot of the companion's: the program's slot.
    pub fn end(&mut self, slot: u32) -> Option<u32> {
        self.of[slot as usize].take()
    }

    /// The companion's slots, a bit each, whose keepers are where they were put.
    pub fn kept(&self) -> u64 {
        let mut events = [EpollEvent { events: 0, data: 0 }; SLOTS as usize];
        let count = os::epoll_wait(self.kept.fd(), &mut events, Some(0), None).unwrap_or(0);
        events[..count].iter().fold(0, |slots, event| slots | 1 << event.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepers_are_told_from_those_that_ended() {
        let reserved = Reserved::new().unwrap();
        let mut keepers: alloc::vec::Vec<_> = (0..SLOTS).map(|slot| reserved.keeper(slot)).collect();
        assert_eq!(reserved.kept(), u64::MAX);
        drop(keepers.remove(5));
        assert_eq!(reserved.kept(), !(1 << 5));
        drop(keepers);
        assert_eq!(reserved.kept(), 0);
    }
}
