//! The rings of one process, reported as events of `anyring-trace`: the source of `anyring trace -p`.
//!
//! A request is reported as submitted at the moment of the look before the one that saw it, and as completed at the moment of the look
//! that saw the completion; so its latency is an upper bound. The number of submissions and completions that no look saw is reported
//! once a second. If any were missed, completions are assigned to requests only as far as that is certain (`pair`); requests whose
//! completion may be among the missed ones are reported as lost (`LostSight`).
//!
//! Rings of the user engine are not looked at in this way: the process writes records of them while it is watched ([`crate::records`]), and
//! nothing is missed. They are sampled only if that is refused.

mod followed;
mod teller;

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::time::Duration;

use anyring_trace::event::{Body, Ended, Kind, RingEnded};
use anyring_tracer::Session;

use crate::find::{self, Engine, Found, Identity};
use crate::follow::Changes;
use crate::process::{self, Process};
use crate::records::{Gap, Records};
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
    /// The records that the process itself writes.
    records: Records,
    /// The rings that the process writes records of, and the rings that it has made a moment ago, which it will report itself.
    recorded: HashMap<Identity, Shown>,
    fresh: HashSet<Identity>,
    /// The numbers of these rings by those that the records have for them.
    numbers: HashMap<u32, u32>,
    /// The descriptor of the only ring that is watched; `None` for all rings.
    only: Option<RawFd>,
    /// The time from which on the rings of the first search are watched.
    first: Since,
    shared_inode: u64,
    /// The time of the next search for rings; `None` before the first.
    next_search_ns: Option<u64>,
}

/// The process under which a ring is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Here,
    /// The ring is shown under another process that has it, too; here only requests of this process are.
    Elsewhere,
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
    /// A loss of records that the process writes.
    pub gap: Option<Gap>,
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
            records: Records::default(),
            recorded: HashMap::new(),
            fresh: HashSet::new(),
            numbers: HashMap::new(),
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

    /// Only looks at the rings, and asks the process for no records.
    pub fn by_looks(self) -> Watch {
        Watch { records: Records::refused(), ..self }
    }

    /// Returns the number of records that the process had no room for.
    pub fn dropped(&self) -> u64 {
        self.records.dropped()
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
        // Before the records are read: what a process has written until its end is there.
        looked.has_ended = self.process.has_ended();
        looked.has_missed |= self.take_records(looked.has_ended, session);
        match self.records.look(&self.process) {
            None => {}
            Some(_) if looked.has_ended => {}
            Some(Gap::Gone) => self.end_recorded(true, taken, session),
            Some(gap) => {
                if matches!(gap, Gap::Refused(_)) {
                    // The next search begins to look at the rings.
                    self.end_recorded(false, taken, session);
                    (self.first, self.next_search_ns) = (Since::FirstLook, None);
                }
                looked.gap = Some(gap);
            }
        }
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
        Ok(looked)
    }

    /// Shows what the process has recorded. True if the next look must come soon.
    fn take_records(&mut self, has_ended: bool, session: &mut Session) -> bool {
        let Watch { records, teller, numbers, count, only, process, .. } = self;
        teller.begin_look();
        let taken = records.take(has_ended, |event| {
            let mut event = *event;
            let head = &mut event.head;
            head.process = process.id();
            if head.ring != 0 {
                if only.is_some() && !numbers.contains_key(&head.ring) {
                    return;
                }
                let its = head.ring;
                head.ring = *numbers.entry(its).or_insert_with(|| {
                    *count += 1;
                    *count
                });
                if matches!(event.body, Body::RingEnded(_)) {
                    numbers.remove(&its);
                }
            }
            let (ring, time_ns) = (head.ring, head.time_ns);
            match &event.body {
                // The end of the process is seen, however it ends.
                Body::Started(_) | Body::Ended(_) => return,
                Body::Submitted(submitted) => teller.recorded(ring, time_ns, submitted, session),
                _ => {}
            }
            session.event(&event);
        });
        records.are_many(taken)
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
        self.end_recorded(has_ended, taken, session);
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
        let only = self.only;
        let is_wanted = |found: &Found| only.is_none_or(|only| only == found.fd);
        let there: HashSet<Identity> = found.iter().map(|found| found.identity(self.shared_inode)).collect();
        self.fresh.retain(|identity| there.contains(identity));
        self.recorded.retain(|identity, shown| {
            let is_there = there.contains(identity);
            if !is_there && *shown == Shown::Here {
                taken.0.remove(identity);
            }
            is_there
        });
        for found in found.into_iter().filter(is_wanted) {
            let identity = found.identity(self.shared_inode);
            let is_watched = self.rings.iter().any(|watched| watched.identity == identity);
            let (is_refused, is_unready) =
                (self.refused.contains(&identity), self.unready.contains(&identity));
            if is_watched || self.recorded.contains_key(&identity) || is_refused && !is_unready {
                continue;
            }
            let was_left = self.left.contains(&identity);
            let is_taken = taken.0.contains(&identity);
            if is_taken && found.engine == Engine::Kernel {
                if !was_left {
                    self.left.push(identity);
                }
                continue;
            }
            let mut ring = Ring::new(found, if was_left { Since::FirstLook } else { since });
            let changes = match ring.look(&self.process) {
                Ok(Some(changes)) => changes,
                Ok(None) => continue,
                Err(_) if self.ask_for_records(&ring, &Changes::default(), identity, taken, session) => {
                    continue;
                }
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
            if self.ask_for_records(&ring, &changes, identity, taken, session) {
                continue;
            }
            if is_taken {
                if !was_left {
                    self.left.push(identity);
                }
                continue;
            }
            self.count += 1;
            let followed = Followed::new(&changes);
            let mut watched = Watched { number: self.count, identity, ring, followed, is_refused: false };
            self.teller.found(watched.number, &watched.ring, &changes, session);
            self.teller.changes(&mut watched, changes, session);
            taken.0.insert(identity);
            self.rings.push(watched);
        }
        Ok(refusals)
    }
}

impl Watch {
    /// Ends the rings that the process writes records of. If they `have_ended`, reports those that it has not reported itself.
    fn end_recorded(&mut self, have_ended: bool, taken: &mut Taken, session: &mut Session) {
        let ours = self.recorded.drain().filter(|(_, shown)| *shown == Shown::Here);
        ours.for_each(|(identity, _)| {
            taken.0.remove(&identity);
        });
        self.fresh.clear();
        let mut left: Vec<u32> = self.numbers.drain().map(|(_, number)| number).collect();
        left.sort_unstable();
        left.truncate(if have_ended { left.len() } else { 0 });
        for number in left {
            let in_flight = session.under_way(self.process.id(), number);
            let body = RingEnded { in_flight, ..RingEnded::default() };
            self.teller.report(now_ns(), number, Kind::RingEnded, &body, None, session);
        }
    }

    /// Asks the process for records of a ring, if that was not done yet. Returns true if it writes them, or will from its next call on; then
    /// the ring is reported, unless the records do that.
    fn ask_for_records(
        &mut self,
        ring: &Ring,
        changes: &Changes,
        identity: Identity,
        taken: &mut Taken,
        session: &mut Session,
    ) -> bool {
        let Some(offer) = ring.offer().filter(|offer| self.records.accepts(*offer, &self.process)) else {
            return false;
        };
        // If the process answers only now, nothing that the look has found is recorded.
        self.records.hear(&self.process);
        // A ring that the process has just made may be among the records that were not read yet.
        let is_known = self.numbers.contains_key(&offer.serial);
        if !is_known && self.records.are_taken() && self.fresh.insert(identity) {
            return true;
        }
        if !taken.0.insert(identity) {
            self.recorded.insert(identity, Shown::Elsewhere);
            return true;
        }
        self.recorded.insert(identity, Shown::Here);
        if !is_known {
            self.count += 1;
            self.numbers.insert(offer.serial, self.count);
            self.found_recorded(ring.clone(), changes.clone(), identity, session);
        }
        true
    }

    /// Reports a ring that the process will write records of. Requests that were seen are reported if they all have completed: the process
    /// reports those in flight.
    fn found_recorded(&mut self, ring: Ring, changes: Changes, identity: Identity, session: &mut Session) {
        let has_none_in_flight = changes.counters.in_flight() == Some(0) && changes.waiting.is_empty();
        let changes = if has_none_in_flight && changes.missed_submissions + changes.missed_completions == 0 {
            changes
        } else {
            Changes { counters: changes.counters, ..Changes::default() }
        };
        let followed = Followed::new(&changes);
        let mut watched = Watched { number: self.count, identity, ring, followed, is_refused: false };
        self.teller.found(watched.number, &watched.ring, &changes, session);
        self.teller.changes(&mut watched, changes, session);
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
