//! The rings of one process, reported as events of `anyring-trace`: the source of `anyring trace -p`.
//!
//! A request is reported as submitted at the moment of the look before the one that saw it, and as completed at the moment of the look
//! that saw the completion; so its latency is an upper bound. The number of submissions and completions that no look saw is reported
//! once a second. If any were missed, completions are assigned to requests only as far as that is certain (`pair`); requests whose
//! completion may be among the missed ones are reported as lost (`LostSight`).

mod followed;
mod teller;

use std::collections::HashSet;
use std::os::fd::RawFd;
use std::time::Duration;

use anyring_trace::event::{Ended, Kind};
use anyring_tracer::Session;

use crate::find::{self, Found, Identity};
use crate::follow::Changes;
use crate::process::{self, Process};
use crate::refusal::{Refusal, Step};
use crate::ring::{Ring, Since};
use followed::Followed;
use teller::Teller;

/// The least time between two searches for rings: absolute, and as a multiple of a search's duration, because a process may have many
/// descriptors.
const SEARCH_NS: u64 = 100_000_000;
const SEARCH_REST: u64 = 30;
/// The time that a process may take to end once its descriptors cannot be listed any more.
const END: Duration = Duration::from_secs(1);

/// A process whose rings are watched.
pub struct Watch {
    process: Process,
    teller: Teller,
    rings: Vec<Watched>,
    /// Rings that cannot be looked at, and were reported.
    refused: Vec<Identity>,
    /// Files in whose memory there was no ring yet: the ring may not be complete.
    unready: Vec<Identity>,
    /// The number of rings that were found.
    count: u32,
    /// Rings of the process that are watched in another process, which has them, too.
    left: Vec<Identity>,
    /// The descriptor of the only ring that is watched; `None` for all rings.
    only: Option<RawFd>,
    /// The time from which on the rings of the first search are watched.
    first: Since,
    shared_inode: u64,
    /// The time of the next search for rings; `None` before the first.
    next_search_ns: Option<u64>,
}

/// The rings that are watched in any process. A ring that several processes have is watched in the one in which it was found first.
#[derive(Debug, Default)]
pub struct Taken(HashSet<Identity>);

/// The outcome of a look at a process.
#[derive(Debug, Default)]
pub struct Looked {
    /// True if submissions or completions were missed, because they came and went between two looks.
    pub has_missed: bool,
    /// True if the process has ended.
    pub has_ended: bool,
    /// The processor time that the look took, without the search for rings.
    pub took: Duration,
    /// The reasons why rings that were found cannot be watched.
    pub refusals: Vec<Refusal>,
}

/// A watched ring, with its known requests.
struct Watched {
    number: u32,
    identity: Identity,
    ring: Ring,
    followed: Followed,
    /// True if a look was refused and the refusal was reported.
    is_refused: bool,
}

impl Watch {
    /// Begins to watch a process.
    ///
    /// # Errors
    /// A refusal if there is no such process, or if its rings cannot be looked at.
    pub fn new(process: u32) -> Result<Watch, Refusal> {
        let process = Process::open(process)?;
        process.check_rights()?;
        let teller = Teller::new(process.id());
        Ok(Watch {
            process,
            teller,
            rings: Vec::new(),
            refused: Vec::new(),
            unready: Vec::new(),
            count: 0,
            left: Vec::new(),
            only: None,
            first: Since::FirstLook,
            shared_inode: find::shared_inode(),
            next_search_ns: None,
        })
    }

    /// Begins to watch one ring of a process, by its descriptor.
    ///
    /// # Errors
    /// A refusal if there is no such process, or if its rings cannot be looked at.
    pub fn of_ring(process: u32, fd: RawFd) -> Result<Watch, Refusal> {
        Ok(Watch { only: Some(fd), ..Watch::new(process)? })
    }

    /// Begins to watch a process that has started a moment ago: all events of its own rings are new.
    ///
    /// # Errors
    /// A refusal if there is no such process, or if its rings cannot be looked at.
    pub fn of_started(process: u32) -> Result<Watch, Refusal> {
        Ok(Watch { first: Since::Beginning, ..Watch::new(process)? })
    }

    /// Returns the processes that this process has started and that have not been waited for; none if it has ended.
    pub fn children(&self) -> Vec<u32> {
        let children = process::children(self.process.id());
        // Another process may have its number by now.
        if self.process.has_ended() { Vec::new() } else { children }
    }

    /// Returns the number of rings that were found so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of the process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Looks at all rings, and reports the changes. New rings are searched for, except those that are taken.
    ///
    /// # Errors
    /// A refusal if the caller lacks the rights.
    pub fn look(&mut self, taken: &mut Taken, session: &mut Session) -> Result<Looked, Refusal> {
        let mut looked = Looked::default();
        let now_ns = now_ns();
        if self.next_search_ns.is_none_or(|next| now_ns >= next) {
            looked.refusals = self.search(taken, session)?;
            let took_ns = self::now_ns() - now_ns;
            self.next_search_ns = Some(now_ns + SEARCH_NS.max(took_ns * SEARCH_REST));
        }
        let before = crate::processor_time();
        for watched in &mut self.rings {
            let changes = match watched.look(self.shared_inode, &self.process) {
                // The ring was resized during the look.
                Err(refusal) if refusal.is_no_ring() => continue,
                Err(refusal) => {
                    check_process(&self.process, &refusal)?;
                    if !std::mem::replace(&mut watched.is_refused, true) {
                        looked.refusals.push(refusal);
                    }
                    continue;
                }
                Ok(changes) => changes,
            };
            match changes {
                Some(changes) => {
                    looked.has_missed |= changes.missed_submissions + changes.missed_completions > 0;
                    self.teller.changes(watched, changes, session);
                }
                None => {
                    self.teller.ring_ended(watched, session);
                    taken.0.remove(&watched.identity);
                }
            }
        }
        self.rings.retain(|watched| !watched.followed.is_gone);
        looked.took = crate::processor_time() - before;
        looked.has_ended = self.process.has_ended();
        Ok(looked)
    }

    /// Waits for a time, or until the process has ended.
    pub fn wait(&self, pause: Duration) {
        self.process.ends_within(pause);
    }

    /// Ends the watch. Reports what was missed since the last report and, if `has_ended`, the end of the process.
    pub fn end(&mut self, has_ended: bool, taken: &mut Taken, session: &mut Session) {
        for watched in &mut self.rings {
            taken.0.remove(&watched.identity);
            if has_ended {
                self.teller.ring_ended(watched, session);
            } else {
                self.teller.missed(watched, session);
            }
        }
        if has_ended {
            self.teller.report(now_ns(), 0, Kind::Ended, &Ended::default(), None, session);
        }
    }

    /// Searches for rings that are not watched yet. Returns the reasons why some cannot be watched.
    fn search(&mut self, taken: &mut Taken, session: &mut Session) -> Result<Vec<Refusal>, Refusal> {
        let mut refusals = Vec::new();
        let since = if self.next_search_ns.is_none() { self.first } else { Since::Beginning };
        let found = match find::in_process(self.process.id()) {
            Ok(found) => found,
            Err(_) if self.process.has_ended() => return Ok(refusals),
            // A process that is about to end already belongs to root.
            Err(_) if self.process.check_rights().is_ok() && self.process.ends_within(END) => {
                return Ok(refusals);
            }
            Err(error) => return Err(Refusal::new(Step::ListDescriptors, self.process.id(), error)),
        };
        let is_wanted = |found: &Found| self.only.is_none_or(|only| only == found.fd);
        for found in found.into_iter().filter(is_wanted) {
            let identity = found.identity(self.shared_inode);
            let is_watched = self.rings.iter().any(|watched| watched.identity == identity);
            let (is_refused, is_unready) =
                (self.refused.contains(&identity), self.unready.contains(&identity));
            if is_watched || is_refused && !is_unready {
                continue;
            }
            let was_left = self.left.contains(&identity);
            if taken.0.contains(&identity) {
                if !was_left {
                    self.left.push(identity);
                }
                continue;
            }
            let mut ring = Ring::new(found, if was_left { Since::FirstLook } else { since });
            let changes = match ring.look(&self.process) {
                Ok(Some(changes)) => changes,
                Ok(None) => continue,
                Err(refusal) if refusal.is_no_ring() && !is_unready => {
                    self.unready.push(identity);
                    continue;
                }
                Err(refusal) => {
                    check_process(&self.process, &refusal)?;
                    if !is_refused {
                        self.refused.push(identity);
                        refusals.push(refusal);
                    }
                    continue;
                }
            };
            self.count += 1;
            let followed = Followed::new(&changes);
            let mut watched = Watched { number: self.count, identity, ring, followed, is_refused: false };
            self.teller.found(&watched, &changes, session);
            self.teller.changes(&mut watched, changes, session);
            taken.0.insert(identity);
            self.rings.push(watched);
        }
        Ok(refusals)
    }
}

/// Returns an error if a ring's `refusal` holds for all rings of the process.
fn check_process(process: &Process, refusal: &Refusal) -> Result<(), Refusal> {
    if refusal.is_denied() { process.check_rights() } else { Ok(()) }
}

impl Watched {
    /// Looks at the ring; if its descriptor does not lead to it any more, by another descriptor.
    fn look(&mut self, shared_inode: u64, process: &Process) -> Result<Option<Changes>, Refusal> {
        match self.ring.look(process)? {
            None => self.find_again(shared_inode, process),
            changes => Ok(changes),
        }
    }

    /// Looks at the ring by another descriptor, if the process has one.
    fn find_again(&mut self, shared_inode: u64, process: &Process) -> Result<Option<Changes>, Refusal> {
        let descriptors = find::in_process(process.id()).unwrap_or_default();
        let is_same = |found: &&Found| found.identity(shared_inode) == self.identity;
        let Some(found) = descriptors.iter().find(is_same) else { return Ok(None) };
        self.ring.found_again(*found);
        self.ring.look(process)
    }
}

/// Returns the time by the monotonic clock.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
