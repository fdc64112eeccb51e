//! A ring of another process, looked at now and then.
//!
//! For a look the ring's descriptor is duplicated and its memory mapped, and both are given back at once: while they last, the
//! ring cannot end. So a ring that the program closes in the middle of a look ends some microseconds later, and never later than that.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::fdinfo;
use crate::find::{Engine, Found};
use crate::follow::{self, Changes, Follower};
use crate::geometry::{Counters, Geometry, Memory};
use crate::process::Process;
use crate::refusal::{Refusal, Step};

/// The part of a ring that can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its memory.
    Memory,
    /// The counters in `/proc/PID/fdinfo`: the memory is the program's own (`IORING_SETUP_NO_MMAP`), or the caller may not trace
    /// the process.
    Counters,
}

/// Since when a ring is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The first look; what happened before is not looked for.
    FirstLook,
    /// The beginning of the ring, which was made while its process was watched.
    Beginning,
}

/// A ring, and how much of it was seen.
#[derive(Debug)]
pub struct Ring {
    found: Found,
    since: Since,
    geometry: Option<Geometry>,
    follower: Option<Follower>,
    access: Access,
    /// The state at the last look.
    counters: Counters,
}

impl Ring {
    /// A ring that was found, and has not been looked at.
    pub fn new(found: Found, since: Since) -> Ring {
        Ring {
            found,
            since,
            geometry: None,
            follower: None,
            access: Access::Memory,
            counters: Counters::default(),
        }
    }

    /// The descriptor by which it is looked at.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The part of it that was seen at the last look.
    pub fn access(&self) -> Access {
        self.access
    }

    /// From now on it is looked at by this descriptor.
    pub fn found_again(&mut self, found: Found) {
        self.found = found;
    }

    /// Looks at the ring; `None` where it is not at its descriptor any more.
    ///
    /// # Errors
    /// Where the caller lacks the rights, and no counters are to be seen either.
    pub fn look(&mut self, process: &Process) -> Result<Option<Changes>, Refusal> {
        let taken = match process.take(self.found.fd) {
            Ok(taken) => taken,
            Err(refusal) if refusal.is_end() => return Ok(None),
            Err(refusal) => return self.count(refusal),
        };
        if !is_of(&taken, self.found.inode) {
            return Ok(None);
        }
        if self.found.engine == Engine::User && !is_sealed(&taken) {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
            return Err(Refusal::new(Step::MapMemory, self.found.process, error));
        }
        match Memory::map(taken.as_fd(), self.found.engine, self.geometry.as_ref()) {
            Ok(memory) => {
                self.access = Access::Memory;
                self.geometry = Some(*memory.geometry());
                let is_first = self.follower.is_none();
                let follower = self.follower.get_or_insert_with(|| begun(self.since, &memory.counters()));
                let mut changes = follower.look(&memory);
                if is_first && self.since == Since::FirstLook {
                    changes.earlier = follow::earlier(&memory);
                }
                Ok(Some(changes))
            }
            Err(error) => {
                drop(taken);
                self.count(Refusal::new(Step::MapMemory, self.found.process, error))
            }
        }
    }

    /// Looks at the counters, because of a refusal.
    fn count(&mut self, refusal: Refusal) -> Result<Option<Changes>, Refusal> {
        if self.found.engine != Engine::Kernel {
            return Err(refusal);
        }
        let Some(counters) = fdinfo::counters(self.found.process, self.found.fd) else {
            // A ring that is busy shows no counters; one that has never shown any is none that can be seen.
            return if self.follower.is_some() {
                Ok(Some(Changes { counters: self.counters, ..Changes::default() }))
            } else {
                Err(refusal)
            };
        };
        (self.access, self.counters) = (Access::Counters, counters);
        let follower = self.follower.get_or_insert_with(|| begun(self.since, &counters));
        Ok(Some(follower.count(counters)))
    }
}

fn begun(since: Since, counters: &Counters) -> Follower {
    match since {
        Since::FirstLook => Follower::from(counters),
        Since::Beginning => Follower::from_beginning(),
    }
}

/// True if a descriptor is one of the file with this inode.
fn is_of(fd: &OwnedFd, inode: u64) -> bool {
    // SAFETY: fills a structure of ours.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(fd.as_raw_fd(), &raw mut status) == 0 && status.st_ino == inode
    }
}

/// True if a file in memory can never become shorter, as that of a ring of the user engine: what is mapped of it stays.
fn is_sealed(fd: &OwnedFd) -> bool {
    // SAFETY: asks only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}
