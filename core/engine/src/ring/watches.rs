//! The kernel tells of the end of rings whose closes no front end tells of.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::ring::Ring;

/// The rings of whose closes no front end tells. Where there is none of them, no inotify instance is taken: a user has few.
pub(super) struct Watches {
    pub(super) inotify: Option<Fd>,
    pub(super) rings: Vec<(i32, &'static Ring, u64)>,
    /// Rings for which there was no watch, looked at when a ring is made.
    pub(super) unwatched: Vec<(&'static Ring, u64)>,
}

pub(super) static WATCHES: Mutex<Watches> =
    Mutex::new(Watches { inotify: None, rings: Vec::new(), unwatched: Vec::new() });

/// The lock of what is watched, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &WATCHES
}

/// Notes that the kernel tells nothing of a ring any more: its descriptor is another file than the one that is watched.
pub fn unwatch(ring: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if watches.watches_ring(ring) {
        watches.forget(ring, serial);
        watches.unwatched.push((ring, serial));
    }
}

impl Watches {
    /// The instance, unless the program has closed it, which closes numbers that it does not know. Then its rings are looked at when
    /// another one is made.
    pub(super) fn inotify(&mut self) -> Option<Fd> {
        let inotify = self.inotify?;
        if os::is_still_own(inotify) {
            return Some(inotify);
        }
        os::own::forget(inotify);
        self.inotify = None;
        self.unwatched.extend(self.rings.drain(..).map(|(_, ring, serial)| (ring, serial)));
        None
    }

    pub(super) fn instance(&mut self) -> Result<Fd, Errno> {
        match self.inotify() {
            Some(fd) => Ok(fd),
            None => os::inotify().map(|fd| *self.inotify.insert(fd)),
        }
    }

    /// True if the kernel tells of the end of the ring's last descriptor.
    pub(super) fn watches_ring(&mut self, ring: &'static Ring) -> bool {
        self.inotify().is_some() && self.rings.iter().any(|&(_, other, _)| core::ptr::eq(ring, other))
    }

    /// A ring has ended, and needs no watch.
    pub(super) fn forget(&mut self, ring: &'static Ring, serial: u64) {
        self.rings.retain(|&(_, other, of)| !(core::ptr::eq(ring, other) && of == serial));
        self.unwatched.retain(|&(other, of)| !(core::ptr::eq(ring, other) && of == serial));
    }
}

/// The descriptor that the reactor polls to call `lifetime::collect` in time.
pub fn watch_fd() -> Option<Fd> {
    WATCHES.lock().inotify
}

/// The number of one of a ring's descriptors is another file's now. The ring is looked at when another one is made: the caller may hold
/// a ring's lock.
pub fn number_lost(place: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if !watches.watches_ring(place) {
        watches.forget(place, serial);
        watches.unwatched.push((place, serial));
    }
}
