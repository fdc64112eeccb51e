//! A ring of another process, looked at periodically.
//!
//! For each look, the ring's descriptor is duplicated and its memory mapped, and both are released immediately, because the ring
//! cannot end while they exist. So a ring that the program closes during a look ends only some microseconds later.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::fdinfo::{self, Shown};
use crate::find::{Engine, Found};
use crate::follow::{self, Changes, Follower};
use crate::geometry::{Counters, Geometry, Memory};
use crate::process::{self, Process};
use crate::records::Offer;
use crate::refusal::{Refusal, Step};
use crate::signals::StopHeld;

/// The part of a ring that can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The ring's memory.
    Memory,
    /// The counters in `/proc/PID/fdinfo`: the memory is the program's own (`IORING_SETUP_NO_MMAP`), or the caller may not trace
    /// the process.
    Counters,
}

/// The time from which on a ring is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The first look; requests from before it are not looked for.
    FirstLook,
    /// The beginning of the ring: the ring was found while its process was watched, and had taken few requests by then.
    Beginning,
}

/// A ring, and the part of its history that was seen.
#[derive(Clone, Debug)]
pub struct Ring {
    found: Found,
    since: Since,
    geometry: Option<Geometry>,
    follower: Option<Follower>,
    access: Access,
    /// The state at the last look.
    counters: Counters,
    /// Where the records of the process can be asked for.
    offer: Option<Offer>,
}

impl Ring {
    /// Makes the record of a ring that was found, and has not been looked at.
    pub fn new(found: Found, since: Since) -> Ring {
        Ring {
            found,
            since,
            geometry: None,
            follower: None,
            access: Access::Memory,
            counters: Counters::default(),
            offer: None,
        }
    }

    /// Returns the descriptor by which the ring is watched.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Returns the part of the ring that was seen at the last look.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns where the records of the process can be asked for, if the last look has found that.
    pub fn offer(&self) -> Option<Offer> {
        self.offer
    }

    /// Sets the descriptor by which the ring is watched from now on.
    pub fn found_again(&mut self, found: Found) {
        self.found = found;
    }

    /// Looks at the ring; `None` if its descriptor was closed or is another file's now.
    ///
    /// # Errors
    /// A refusal if the caller lacks the rights, and cannot see the counters either.
    pub fn look(&mut self, process: &Process) -> Result<Option<Changes>, Refusal> {
        let _held = StopHeld::hold();
        let taken = match process.duplicate(self.found.fd) {
            Ok(taken) => taken,
            Err(refusal) if refusal.is_end() => return Ok(None),
            Err(refusal) => return self.count(refusal),
        };
        if !is_of(&taken, &self.found) {
            return Ok(None);
        }
        if self.found.engine == Engine::User {
            check_mappable(&taken)
                .map_err(|error| Refusal::new(Step::MapMemory, self.found.process, error))?;
        }
        match Memory::map(taken.as_fd(), self.found.engine, self.geometry.as_ref()) {
            Ok(memory) => {
                self.access = Access::Memory;
                self.geometry = Some(*memory.geometry());
                self.offer = (self.found.engine == Engine::User).then(|| memory.offer()).flatten();
                let is_first = self.follower.is_none();
                let mut changes = self.follower(&memory.counters()).look(&memory);
                self.counters = changes.counters;
                if is_first && self.since == Since::FirstLook {
                    changes.earlier = follow::earlier(&memory);
                }
                Ok(Some(changes))
            }
            Err(error) => {
                // A ring in memory of the program has an offer in its file.
                self.offer = (self.found.engine == Engine::User).then(|| Offer::of_file(&taken)).flatten();
                drop(taken);
                self.count(Refusal::new(Step::MapMemory, self.found.process, error))
            }
        }
    }

    /// Looks at the counters, because the memory was refused.
    fn count(&mut self, refusal: Refusal) -> Result<Option<Changes>, Refusal> {
        if self.found.engine != Engine::Kernel {
            return Err(refusal);
        }
        let counters = match fdinfo::read(&self.found) {
            Ok(Shown::Counters(counters)) => counters,
            Ok(Shown::Other) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The counters of the last look hold until the next one.
            Ok(Shown::Busy) if self.follower.is_some() => {
                return Ok(Some(Changes { counters: self.counters, ..Changes::default() }));
            }
            Ok(Shown::Busy) | Err(_) => return Err(refusal),
        };
        (self.access, self.counters) = (Access::Counters, counters);
        Ok(Some(self.follower(&counters).count(counters)))
    }

    /// Returns the follower of the ring, which begins at the first look.
    fn follower(&mut self, counters: &Counters) -> &mut Follower {
        if self.follower.is_none() && counters.sq_head > counters.sq_entries {
            // The ring may be older than its descriptor, because another process may have sent it.
            self.since = Since::FirstLook;
        }
        let since = self.since;
        self.follower.get_or_insert_with(|| match since {
            Since::FirstLook => Follower::from(counters),
            Since::Beginning => Follower::from_beginning(),
        })
    }
}

/// True if the duplicated descriptor is the ring that was found. The program may have replaced the ring by another file meanwhile, for
/// instance by one that becomes shorter while it is mapped. A ring of the kernel is recognised by its name, which no other file has.
fn is_of(taken: &OwnedFd, found: &Found) -> bool {
    // SAFETY: fills a structure of ours.
    let (asked, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(taken.as_raw_fd(), &raw mut status) == 0, status)
    };
    let target = process::target(std::process::id(), taken.as_raw_fd());
    asked
        && (status.st_ino, status.st_dev) == (found.inode, found.device)
        && target.and_then(|target| Engine::of(&target)) == Some(found.engine)
}

/// Checks that a memory file can be mapped as a ring of the user engine: the file is sealed against becoming shorter, so mapped pages
/// stay, and its pages have the ordinary size.
pub(crate) fn check_mappable(fd: &OwnedFd) -> io::Result<()> {
    // `HUGETLBFS_MAGIC`, which has another type in each C library.
    const HUGE_PAGES: u64 = 0x9584_58f6;
    let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    // SAFETY: asks only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return refuse(
            "its file is called as a ring's, but may become shorter, so anyring's engine did not make it",
        );
    }
    // SAFETY: fills a structure of ours.
    let (asked, status) = unsafe {
        let mut status: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &raw mut status) == 0, status)
    };
    if !asked || status.f_type as u64 == HUGE_PAGES {
        return refuse(
            "its file is called as a ring's, but has huge pages, so anyring's engine did not make it",
        );
    }
    Ok(())
}
