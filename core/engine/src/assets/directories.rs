//! The engine's own open file descriptions of directories. They are read at any offset without
//! changing the position of the program's descriptor.
//!
//! A description is used by one request at a time. Between requests it is kept here: the next read is likely to
//! continue where the last one ended, and the file system finds that place fastest in the same description. A
//! description is closed at the end of the directory, when the program closes its descriptor, or after a while without
//! use, so that it does not keep the file system busy.

use alloc::vec::Vec;

use linux_raw_sys::general::{F_GETFL, O_DIRECTORY, O_NOATIME, O_PATH};

use crate::abi::Errno;
use crate::assets::notes::Interest;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, FileIdentity, OwnedFd};

/// Number of descriptions that a ring keeps.
const KEPT: usize = 8;

/// Ticks of the reactor without use after which a description is closed: a quarter of a second.
const PATIENCE_TICKS: u8 = 64;

/// Held while the engine has changed the position of a description of the program.
static SEEKING: Mutex<()> = Mutex::new(());

/// Returns the lock of the positions, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &SEEKING
}

/// Resets the lock in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { SEEKING.reset() };
}

/// The open file description through which a request reads a directory.
#[derive(Debug, Default)]
pub struct Description {
    opened: Option<Opened>,
}

#[derive(Debug)]
struct Opened {
    own: OwnedFd,
    identity: FileIdentity,
    position: u64,
}

impl Description {
    /// Reads entries of the directory `fd` from `offset` on into `length` bytes at `address`.
    ///
    /// # Errors
    /// Errors of `getdents64(2)`; `EINVAL` for an invalid offset.
    pub fn read(&mut self, fd: Fd, offset: u64, address: u64, length: u32) -> Result<usize, Errno> {
        self.open(fd)?;
        let Some(opened) = &mut self.opened else { return read_in_place(fd, offset, address, length) };
        // At offset 0 the file system may have to read the directory again, even if the position is 0 already.
        if offset != opened.position || offset == 0 {
            opened.position = u64::MAX;
            os::seek_to(opened.own.fd(), offset)?;
        }
        let result = os::getdents(opened.own.fd(), address, length);
        match result {
            Ok(count) if count > 0 => opened.position = os::position(opened.own.fd()).unwrap_or(u64::MAX),
            _ => self.opened = None,
        }
        result
    }

    /// Opens the directory `fd`, unless it is open already. If it cannot be opened, no description is kept.
    fn open(&mut self, fd: Fd) -> Result<(), Errno> {
        let flags = os::fcntl(fd, F_GETFL, 0)? as u32;
        if flags & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let identity = os::identity(fd)?;
        if !identity.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if self.opened.as_ref().is_some_and(|opened| opened.identity == identity) {
            return Ok(());
        }
        // Opened through the descriptor, not by a path: the directory may have moved, been removed, or be
        // mounted over. It may fail: permissions may be gone, and descriptors may have run out.
        let own = os::open_at(fd, c".", O_DIRECTORY | flags & O_NOATIME).and_then(os::move_high);
        self.opened = own.ok().map(|fd| Opened { own: OwnedFd::new(fd), identity, position: 0 });
        Ok(())
    }
}

/// Reads through the program's own description, and restores its position.
fn read_in_place(fd: Fd, offset: u64, address: u64, length: u32) -> Result<usize, Errno> {
    let _seeking = SEEKING.lock();
    let before = os::position(fd)?;
    os::seek_to(fd, offset)?;
    let result = os::getdents(fd, address, length);
    // Seeking to the previous position of the description cannot fail.
    let _ = os::seek_to(fd, before);
    result
}

struct Kept {
    description: Description,
    position: u64,
    /// The descriptor for which it was opened: the program's, or that of a registered file.
    of: Fd,
    _in_its_end: Interest,
    unused_ticks: u8,
}

/// Descriptions of a ring that no request uses, the most recently used one last.
#[derive(Default)]
pub struct Directories {
    kept: Vec<Kept>,
}

impl Directories {
    /// True if no description is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns a description for reading the directory `of`, preferably one whose position is `offset`.
    pub fn take(&mut self, of: Fd, offset: u64) -> Description {
        let place = |kept: &Kept| kept.of == of && kept.position == offset;
        let found = self.kept.iter().position(place);
        match found.or_else(|| self.kept.iter().position(|kept| kept.of == of)) {
            Some(index) => core::mem::take(&mut self.kept.remove(index).description),
            None => Description::default(),
        }
    }

    /// Keeps a description for the next request of the ring with the number `place` in the registry.
    pub fn keep(&mut self, of: Fd, place: u32, description: Description) {
        let Some(position) = description.opened.as_ref().map(|opened| opened.position) else { return };
        if self.kept.len() == KEPT {
            self.kept.remove(0);
        }
        if self.kept.try_reserve(1).is_ok() {
            let _in_its_end = Interest::new(of, place);
            self.kept.push(Kept { description, position, of, _in_its_end, unused_ticks: 0 });
        }
    }

    /// Closes the descriptions of `of`, which is about to be closed.
    pub fn forget(&mut self, of: Fd) {
        if !self.is_empty() {
            self.kept.retain(|kept| kept.of != of);
        }
    }

    /// Closes descriptions that were not used for `PATIENCE_TICKS`; called on each tick of the reactor.
    pub fn tick(&mut self) {
        self.kept.retain_mut(|kept| {
            kept.unused_ticks += 1;
            kept.unused_ticks < PATIENCE_TICKS
        });
    }
}
