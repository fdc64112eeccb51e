//! Finds the ring that a descriptor stands for, even if the descriptor was made without the engine's knowledge.

use crate::os::{self, Fd};
use crate::ring::registry::{Found, InUse, get, is, is_file_of, known, live, set};
use crate::ring::{Core, Ring, lifetime};

/// Returns the ring that a descriptor stands for.
#[inline]
pub fn find(fd: Fd) -> Option<Found> {
    known(fd).or_else(|| {
        // In use until the number is looked up again.
        let _in_use = recognise(fd)?;
        known(fd)
    })
}

/// Returns the ring behind a descriptor that was not reported: a duplicate by a system call that no front end saw, or one that was received
/// over a socket. From now on it counts as one of the ring's descriptors.
#[cold]
pub fn recognise(fd: Fd) -> Option<InUse> {
    let identity = os::identity(fd).ok()?;
    let file = [identity.device, identity.inode];
    // Many files have the identity of a stand-in: eventfds.
    let stands_in =
        |core: &Core| core.drive.observers.stand_in().is_some_and(|shown| os::same_file(shown, fd));
    live()
        .into_iter()
        .filter(|ring| is_file_of(ring, file))
        .find(|ring| stand_for(fd, ring, |core| is(&ring.file, file) || stands_in(core)))?;
    get(fd)
}

/// Lets `fd`, a duplicate, stand for `ring`, too. Returns false if the ring has ended, or if its place holds a ring for which `is_meant` is
/// false.
pub fn stand_for(fd: Fd, ring: &'static Ring, is_meant: impl FnOnce(&Core) -> bool) -> bool {
    let mut guard = ring.lock();
    let Some(core) = guard.as_mut().filter(|core| !core.life.is_closing() && is_meant(core)) else {
        return false;
    };
    // With the lock held: a thread that ends the ring empties its slots.
    let Ok(before) = set(fd, ring) else { return false };
    core.life.gain_descriptor();
    drop(guard);
    if let Some(before) = before {
        lifetime::number_taken(&before);
    }
    true
}
