//! The inner epoll instance of a set.
//!
//! epoll identifies a registration by file and number. If the number is closed while the file lives on under another number, the
//! registration cannot be removed; if it is level-triggered and the file is ready, no wait sleeps any more. So the set replaces the
//! instance by a new one with the current registrations: when an event without a current registration comes repeatedly, or after
//! more such events than items, because a replacement costs calls for each registration.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, EpollEvent, Fd};
use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET, EPOLLIN, EPOLLONESHOT};

use crate::feeder::{BELL, Place, Slot, Token, item_of, token};
use crate::set::State;

/// The instance, which can be replaced.
pub struct Inside {
    /// Changed under the lock of the set's state only, by the waiting thread.
    fd: AtomicI32,
}

impl Inside {
    pub fn create() -> Result<Inside, Errno> {
        Ok(Inside { fd: AtomicI32::new(os::epoll_create()?) })
    }

    pub fn fd(&self) -> Fd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Calls `epoll_ctl(2)`.
    pub fn control(&self, operation: u32, fd: Fd, events: u32, name: Token) -> Result<(), Errno> {
        os::epoll_ctl(self.fd(), operation, fd, events, name)
    }

    /// Registers a file. A former registration of the file under this number, which could not be removed when it ended, is removed
    /// first.
    pub fn add(&self, fd: Fd, events: u32, name: Token) -> Result<(), Errno> {
        match self.control(EPOLL_CTL_ADD, fd, events, name) {
            Err(Errno::EEXIST) => {
                self.control(EPOLL_CTL_DEL, fd, 0, 0)?;
                self.control(EPOLL_CTL_ADD, fd, events, name)
            }
            result => result,
        }
    }

    /// Calls `epoll_wait(2)`.
    pub fn wait(&self, events: &mut [EpollEvent], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        os::epoll_wait(self.fd(), events, timeout_ns, None)
    }

    /// True if the registration of an item is gone: then its number is free here.
    pub fn has_lost(&self, slot: &Slot, name: Token) -> bool {
        let there = self.control(EPOLL_CTL_ADD, slot.fd, EPOLLET, name);
        if there.is_ok() {
            let _ = self.control(EPOLL_CTL_DEL, slot.fd, 0, 0);
        }
        // The number is not open, or the file cannot be polled.
        matches!(there, Ok(()) | Err(Errno::EBADF | Errno::EPERM))
    }

    /// Replaces the instance by one with the current registrations, and with `own`, a descriptor of the set that it
    /// watched. Registrations whose number was closed are dropped. Ready files are reported once more.
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
            // A one-shot registration that has fired reports nothing until it is modified, except errors, which epoll always reports: once.
            let events = if slot.enabled { slot.events } else { EPOLLET | EPOLLONESHOT };
            match fresh.control(EPOLL_CTL_ADD, slot.fd, events, name) {
                // The file was closed just now.
                Ok(()) | Err(Errno::EBADF | Errno::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
        // The former instance is closed with `fresh`.
        fresh.fd.store(self.fd.swap(fresh.fd(), Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        os::close(*self.fd.get_mut());
    }
}

/// Events without a current registration.
pub struct Strangers {
    /// The number of ended registrations when the instance was asked for events.
    ended: u64,
    /// The sorted tokens of such events in this look and in the look before.
    looks: [Vec<Token>; 2],
    /// The number of such events since the instance was replaced.
    count: usize,
    /// The instance must be replaced.
    found: bool,
}

impl Strangers {
    pub const NONE: Strangers =
        Strangers { ended: 0, looks: [Vec::new(), Vec::new()], count: 0, found: false };

    /// Checks an event. An event whose registration ended after the instance was asked may just be late.
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

    /// Notes that all events were checked; the instance is asked again later.
    pub fn all_seen(&mut self, state: &State) {
        self.ended = state.ended;
        let [now, before] = &mut self.looks;
        core::mem::swap(now, before);
        now.clear();
        before.sort_unstable();
    }

    /// True if the instance must be replaced.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Starts anew, because the instance was replaced, or cannot be replaced now.
    pub fn forget(&mut self) {
        (self.count, self.found) = (0, false);
    }
}
