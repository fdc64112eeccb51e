//! Watches by inotify: the kernel reports the end of rings whose closes no front end reports.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::ring::Ring;

/// The rings whose closes no front end reports. Without such rings no inotify instance is made: a user can have few.
pub(super) struct Watches {
    pub(super) inotify: Option<Fd>,
    pub(super) rings: Vec<(i32, &'static Ring, u64)>,
    /// Rings without a watch. They are checked when a ring is made.
    pub(super) unwatched: Vec<(&'static Ring, u64)>,
}

pub(super) static WATCHES: Mutex<Watches> =
    Mutex::new(Watches { inotify: None, rings: Vec::new(), unwatched: Vec::new() });

/// Returns the lock of the watches, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &WATCHES
}

/// Notes that the kernel no longer reports a ring's end: the ring's descriptor is another file than the watched one.
pub fn unwatch(ring: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if watches.watches_ring(ring) {
        watches.forget(ring, serial);
        watches.unwatched.push((ring, serial));
    }
}

impl Watches {
    /// Returns the inotify instance, unless the program has closed its number, which it does not know. Then the rings are checked when
    /// another ring is made.
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

    /// True if the kernel reports the end of the ring's last descriptor.
    pub(super) fn watches_ring(&mut self, ring: &'static Ring) -> bool {
        self.inotify().is_some() && self.rings.iter().any(|&(_, other, _)| core::ptr::eq(ring, other))
    }

    /// Forgets a ring that has ended.
    pub(super) fn forget(&mut self, ring: &'static Ring, serial: u64) {
        self.rings.retain(|&(_, other, of)| !(core::ptr::eq(ring, other) && of == serial));
        self.unwatched.retain(|&(other, of)| !(core::ptr::eq(ring, other) && of == serial));
    }
}

/// Returns the descriptor that the reactor polls in order to call `lifetime::collect` in time.
pub fn watch_fd() -> Option<Fd> {
    WATCHES.lock().inotify
}

/// Notes that the number of one of a ring's descriptors is another file's now. The ring is checked when another ring is made, not now: the
/// caller may hold a ring's lock.
pub fn number_lost(place: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if !watches.watches_ring(place) {
        watches.forget(place, serial);
        watches.unwatched.push((place, serial));
    }
}
