//! Watches by inotify: the kernel reports the end of rings whose closes no front end reports.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::ring::Ring;

/// The rings whose closes no front end reports. Without such rings no inotify instance is made: a user can have few.
struct Watches {
    inotify: Option<Fd>,
    /// Rings with a watch, each with the number of its watch and with its serial.
    rings: Vec<(i32, &'static Ring, u64)>,
    /// Rings without a watch. They are checked when a ring is made.
    unwatched: Vec<(&'static Ring, u64)>,
}

static WATCHES: Mutex<Watches> =
    Mutex::new(Watches { inotify: None, rings: Vec::new(), unwatched: Vec::new() });

/// Returns the lock of the watches, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &WATCHES
}

/// Has the kernel report the end of `fd`, a ring's descriptor; without a watch the ring is checked when another ring is made. Returns the
/// inotify instance if this call made it: the reactor has to listen to it.
pub(super) fn add(fd: Fd, ring: &'static Ring, serial: u64) -> Option<Fd> {
    let mut watches = WATCHES.lock();
    let before = watches.inotify();
    match watches.instance().and_then(|inotify| os::inotify_watch_close(inotify, fd)) {
        Ok(watch) => watches.rings.push((watch, ring, serial)),
        Err(_) => watches.unwatched.push((ring, serial)),
    }
    watches.inotify.filter(|_| before.is_none())
}

/// Takes the watched rings of which the kernel reports an end and that satisfy `has_ended`. Returns nothing if the kernel reports no end.
pub(super) fn take_ended(has_ended: impl Fn(&'static Ring) -> bool) -> Option<Vec<(&'static Ring, u64)>> {
    let mut watches = WATCHES.lock();
    let ended = os::inotify_take(watches.inotify()?);
    if ended.is_empty() {
        return None;
    }
    let mut taken = Vec::new();
    watches.rings.retain(|&(watch, ring, serial)| {
        let ends = ended.contains(&watch) && has_ended(ring);
        if ends {
            taken.push((ring, serial));
        }
        !ends
    });
    Some(taken)
}

/// Returns the rings without a watch.
pub(super) fn unwatched() -> Vec<(&'static Ring, u64)> {
    WATCHES.lock().unwatched.clone()
}

/// True if the kernel reports the end of the ring's last descriptor.
pub(super) fn watches_ring(ring: &'static Ring) -> bool {
    WATCHES.lock().watches_ring(ring)
}

/// Forgets a ring that has ended.
pub(super) fn forget(ring: &'static Ring, serial: u64) {
    WATCHES.lock().forget(ring, serial);
}

/// Notes that the number of one of a ring's descriptors is another file's now. A ring without a watch is checked when another ring is made,
/// not now: the caller may hold a ring's lock. The kernel reports the end of a watched ring.
pub fn number_lost(ring: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if !watches.watches_ring(ring) {
        watches.forget(ring, serial);
        watches.unwatched.push((ring, serial));
    }
}

/// Notes that the kernel no longer reports a ring's end: the ring's descriptor is another file than the watched one.
pub fn unwatch(ring: &'static Ring, serial: u64) {
    let mut watches = WATCHES.lock();
    if watches.watches_ring(ring) {
        watches.forget(ring, serial);
        watches.unwatched.push((ring, serial));
    }
}

/// Returns the descriptor that the reactor polls in order to call `lifetime::collect` in time.
pub fn watch_fd() -> Option<Fd> {
    WATCHES.lock().inotify
}

/// Drops the parent's watches in a child after `fork`. The child checks the rings when it makes one.
///
/// # Safety
/// No other thread of this process may use the engine.
pub(super) unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { WATCHES.reset() };
    let mut watches = WATCHES.lock();
    if let Some(inotify) = watches.inotify.take() {
        os::close(inotify);
    }
    watches.unwatch_all();
}

impl Watches {
    /// Returns the inotify instance, unless the program has closed its number, which it does not know. Then the rings are checked when
    /// another ring is made.
    fn inotify(&mut self) -> Option<Fd> {
        let inotify = self.inotify?;
        if os::is_still_own(inotify) {
            return Some(inotify);
        }
        os::own::forget(inotify);
        self.inotify = None;
        self.unwatch_all();
        None
    }

    fn instance(&mut self) -> Result<Fd, Errno> {
        match self.inotify() {
            Some(fd) => Ok(fd),
            None => os::inotify().map(|fd| *self.inotify.insert(fd)),
        }
    }

    fn unwatch_all(&mut self) {
        self.unwatched.extend(self.rings.drain(..).map(|(_, ring, serial)| (ring, serial)));
    }

    fn watches_ring(&mut self, ring: &'static Ring) -> bool {
        self.inotify().is_some() && self.rings.iter().any(|&(_, other, _)| core::ptr::eq(ring, other))
    }

    fn forget(&mut self, ring: &'static Ring, serial: u64) {
        self.rings.retain(|&(_, other, of)| !(core::ptr::eq(ring, other) && of == serial));
        self.unwatched.retain(|&(other, of)| !(core::ptr::eq(ring, other) && of == serial));
    }
}
