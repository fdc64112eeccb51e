//! The epoll instance inside a set.
//!
//! It knows a file by the file and its number. Once the number is closed and the file lives on by another, nobody can remove the
//! registration; if it is level-triggered and the file is ready, no wait sleeps any more. So events that name nobody's
//! registration have the instance replaced by another, with what is still registered: those that come again and again, and as many
//! others as there are registrations, for each of these takes calls.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent, Fd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET, EPOLLIN, EPOLLONESHOT};

use crate::feeder::{BELL, Place, Slot, Token, item_of, token};
use crate::set::State;

/// The instance.
pub struct Inside {
    /// Changes under the lock of the set's state only, by whoever waits.
    fd: AtomicI32,
}

impl Inside {
    pub fn create() -> Result<Inside, Errno> {
        Ok(Inside { fd: AtomicI32::new(os::epoll_create()?) })
    }

    pub fn fd(&self) -> Fd {
        self.fd.load(Ordering::Relaxed)
    }

    /// `epoll_ctl(2)`.
    pub fn control(&self, operation: u32, fd: Fd, events: u32, name: Token) -> Result<(), Errno> {
        os::epoll_ctl(self.fd(), operation, fd, events, name)
    }

    /// Registers a file that no item has. The same file may be here under the same number by a registration that could not be
    /// removed, and is removed now.
    pub fn add(&self, fd: Fd, events: u32, name: Token) -> Result<(), Errno> {
        match self.control(EPOLL_CTL_ADD, fd, events, name) {
            Err(Errno::EEXIST) => {
                self.control(EPOLL_CTL_DEL, fd, 0, 0)?;
                self.control(EPOLL_CTL_ADD, fd, events, name)
            }
            result => result,
        }
    }

    /// `epoll_wait(2)`.
    pub fn wait(&self, events: &mut [EpollEvent], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        os::epoll_wait(self.fd(), events, timeout_ns, None)
    }

    /// Whether the registration of an item is gone: then its number is free here.
    pub fn has_lost(&self, slot: &Slot, name: Token) -> bool {
        let there = self.control(EPOLL_CTL_ADD, slot.fd, EPOLLET, name);
        if there.is_ok() {
            let _ = self.control(EPOLL_CTL_DEL, slot.fd, 0, 0);
        }
        // Nobody's number, or that of a file that cannot be polled.
        matches!(there, Ok(()) | Err(Errno::EBADF | Errno::EPERM))
    }

    /// Replaces the instance by one with the registrations that are still somebody's, and with `own`, a descriptor of the
    /// set that it heard. What was closed by its number is no more watched. Files that are ready are told once more.
    pub fn renew(&self, state: &State, own: Option<Fd>) -> Result<(), Errno> {
        let fresh = Inside::create()?;
        if let Some(own) = own {
            fresh.control(EPOLL_CTL_ADD, own, EPOLLIN | EPOLLET, BELL)?;
        }
        for (item, slot) in state.slots.iter().enumerate() {
            let name = token(item as u32, slot.generation, 0);
            if slot.place != Place::Inside || self.has_lost(slot, name) {
                continue;
            }
            // A one-shot that has fired is told nothing until it is modified, but for the errors that an instance always tells: once.
            let events = if slot.enabled { slot.events } else { EPOLLET | EPOLLONESHOT };
            match fresh.control(EPOLL_CTL_ADD, slot.fd, events, name) {
                // Closed just now.
                Ok(()) | Err(Errno::EBADF | Errno::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
        // The other one is closed with `fresh`.
        fresh.fd.store(self.fd.swap(fresh.fd(), Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        os::close(*self.fd.get_mut());
    }
}

/// Events that name nobody's registration.
pub struct Strangers {
    /// How many registrations had ended when the instance was asked for the events.
    ended: u64,
    /// The tokens that the events of this look name, and those of the look before, in order.
    looks: [Vec<Token>; 2],
    /// How many came since the instance was replaced.
    count: usize,
    /// The instance is to be replaced.
    found: bool,
}

impl Strangers {
    pub const NONE: Strangers =
        Strangers { ended: 0, looks: [Vec::new(), Vec::new()], count: 0, found: false };

    /// Looks at an event. One whose registration ended after the instance was asked may be nothing but late.
    pub fn look_at(&mut self, slots: &[Slot], name: Token) {
        let Some(slot) = slots.get(item_of(name)) else { return };
        if slot.generation == (name >> 32) as u32 || slot.ended > self.ended {
            return;
        }
        let [now, before] = &mut self.looks;
        now.push(name);
        self.count += 1;
        self.found |= before.binary_search(&name).is_ok() || self.count > slots.len();
    }

    /// All events were looked at; the instance is asked anew later than now.
    pub fn all_seen(&mut self, state: &State) {
        self.ended = state.ended;
        let [now, before] = &mut self.looks;
        core::mem::swap(now, before);
        now.clear();
        before.sort_unstable();
    }

    /// Whether the instance is to be replaced.
    pub fn found(&self) -> bool {
        self.found
    }

    /// The instance was replaced, or cannot be replaced now.
    pub fn forget(&mut self) {
        (self.count, self.found) = (0, false);
    }
}
