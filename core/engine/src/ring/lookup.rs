//! The ring that a descriptor stands for, though nobody told of that.

use crate::os::{self, Fd};
use crate::ring::registry::{Found, InUse, get, is, is_file_of, known, live, set};
use crate::ring::{Core, Ring, lifetime};

/// The ring that a descriptor stands for.
#[inline]
pub fn find(fd: Fd) -> Option<Found> {
    known(fd).or_else(|| {
        // Counted as in use, until the number is looked up again.
        let _in_use = recognise(fd)?;
        known(fd)
    })
}

/// The ring behind a descriptor that nobody told of: one duplicated by a system call of the program's
/// own, or one that came back over a socket. It counts as one more of the ring's descriptors.
#[cold]
pub fn recognise(fd: Fd) -> Option<InUse> {
    let identity = os::identity(fd).ok()?;
    let file = [identity.device, identity.inode];
    // Many files have the identity of one that stands in.
    let stands_in =
        |core: &Core| core.drive.observers.stand_in().is_some_and(|shown| os::same_file(shown, fd));
    live()
        .into_iter()
        .filter(|ring| is_file_of(ring, file))
        .find(|ring| stand_for(fd, ring, |core| is(&ring.file, file) || stands_in(core)))?;
    get(fd)
}

/// Lets `fd`, a duplicate, stand for `ring` too. False where that has ended, or where there is another ring by now than the one that
/// `is_meant`.
pub fn stand_for(fd: Fd, ring: &'static Ring, is_meant: impl FnOnce(&Core) -> bool) -> bool {
    let mut guard = ring.lock();
    let Some(core) = guard.as_mut().filter(|core| !core.life.is_closing() && is_meant(core)) else {
        return false;
    };
    // With the lock held: who ends the ring empties its slots.
    let Ok(before) = set(fd, ring) else { return false };
    core.life.gain_descriptor();
    drop(guard);
    if let Some(before) = before {
        lifetime::number_taken(&before);
    }
    true
}
