//! Open file descriptions of the engine's own, through which directories are read at any offset while
//! the program's descriptor keeps its position.
//!
//! A description is used by one request at a time. Between two it waits here, for the next is likely
//! to read where the last one ended, and a file system finds that place soonest in the description
//! that was there. The end of the directory, the end of the program's descriptor and a while without
//! use end it: nothing keeps a file system busy that the program is done with.

use alloc::vec::Vec;

use linux_raw_sys::general::{F_GETFL, O_DIRECTORY, O_NOATIME, O_PATH};

use crate::abi::Errno;
use crate::assets::notes::Interest;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, FileIdentity, OwnedFd};

/// As many a ring keeps.
const KEPT: usize = 8;

/// Ticks of the reactor without use after which one is given up: a quarter of a second.
const PATIENCE_TICKS: u8 = 64;

/// Held while the position of a description of the program's is another than the program left there.
static SEEKING: Mutex<()> = Mutex::new(());

/// The lock of descriptions' positions, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &SEEKING
}

/// In a child after `fork`.
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
    /// Those of `getdents64(2)`; `EINVAL` for an offset that is none.
    pub fn read(&mut self, fd: Fd, offset: u64, address: u64, length: u32) -> Result<usize, Errno> {
        self.open(fd)?;
        let Some(opened) = &mut self.opened else { return read_in_place(fd, offset, address, length) };
        // At the beginning the file system may have to look anew, even if it has not been left.
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

    /// Makes sure that it is one of the directory `fd`; where none can be had, there is none.
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
        // By its descriptor, not by a path: it may have moved, been removed, or be mounted over. Rights that
        // were there when the program opened it may be gone, and descriptors may have run out.
        let own = os::open_at(fd, c".", O_DIRECTORY | flags & O_NOATIME).and_then(os::move_high);
        self.opened = own.ok().map(|fd| Opened { own: OwnedFd::new(fd), identity, position: 0 });
        Ok(())
    }
}

/// Reads through the program's own description, and puts its position back.
fn read_in_place(fd: Fd, offset: u64, address: u64, length: u32) -> Result<usize, Errno> {
    let _seeking = SEEKING.lock();
    let before = os::position(fd)?;
    os::seek_to(fd, offset)?;
    let result = os::getdents(fd, address, length);
    // A position that the description had before cannot be refused.
    let _ = os::seek_to(fd, before);
    result
}

struct Kept {
    description: Description,
    position: u64,
    /// The descriptor that it was opened for: the program's, or that of a registered file.
    of: Fd,
    _in_its_end: Interest,
    unused_ticks: u8,
}

/// Descriptions of a ring that no request uses, the one that was used last at the end.
#[derive(Default)]
pub struct Directories {
    kept: Vec<Kept>,
}

impl Directories {
    /// True if no description is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A description for reading the directory `of` at `offset`, best the one that stands there.
    pub fn take(&mut self, of: Fd, offset: u64) -> Description {
        let place = |kept: &Kept| kept.of == of && kept.position == offset;
        let found = self.kept.iter().position(place);
        match found.or_else(|| self.kept.iter().position(|kept| kept.of == of)) {
            Some(index) => core::mem::take(&mut self.kept.remove(index).description),
            None => Description::default(),
        }
    }

    /// Keeps one for the next request of this ring, which is in the place with the number `place`.
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

    /// The descriptor `of` is about to be closed.
    pub fn forget(&mut self, of: Fd) {
        self.kept.retain(|kept| kept.of != of);
    }

    /// Gives up what nobody has used for a while.
    pub fn tick(&mut self) {
        self.kept.retain_mut(|kept| {
            kept.unused_ticks += 1;
            kept.unused_ticks < PATIENCE_TICKS
        });
    }
}
