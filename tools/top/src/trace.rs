//! The rings of one process, told by the events of `anyring-trace`: what `anyring trace -p` shows.
//!
//! A request is told as submitted at the moment of the look before the one that saw it, and as completed at the moment of the look that
//! saw that; so its latency is an upper bound. What passed by unseen is told by its number, once a second. Where
//! something passed by, completions are attributed to requests only as far as that is certain (`pair`); requests whose completion may
//! be among those that were missed are told as lost ([`LostSight`]).

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::time::Duration;

use anyring_engine::abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, Sqe};
use anyring_engine::ops;
use anyring_engine::queue::Cqe;
use anyring_engine::request::shown::Kind as Argument;
use anyring_engine::request::trace::Moment;
use anyring_kernel_trace::requests::{Key, Requests};
use anyring_trace::event::{
    Attachment, Completed, Content, ENGINE_KERNEL, ENGINE_USER, Ended, Event, FileNamed, Head, Kind,
    LostSight, Plain, RingEnded, RingFound, SAMPLED, Submitted, UNSEEN_BETWEEN_LOOKS,
    UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS, Unseen, padded,
};
use anyring_tracer::Session;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};

use crate::find::{self, Engine, Found, Identity};
use crate::follow::{Changes, Posted, Taken};
use crate::pair::{Known, Pairs};
use crate::process::{self, Process};
use crate::refusal::{Refusal, Step};
use crate::ring::{Ring, Since};

/// How often rings are looked for.
const SEARCH_NS: u64 = 100_000_000;
/// How often the number of what passed by is told.
const UNSEEN_NS: u64 = 1_000_000_000;

/// A process whose rings are watched.
pub struct Watch {
    process: Process,
    teller: Teller,
    rings: Vec<Watched>,
    /// How many rings were found.
    count: u32,
    /// Only the ring of this descriptor is watched.
    only: Option<RawFd>,
    shared_inode: u64,
    searched_ns: Option<u64>,
}

/// The outcome of a look at a process.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// Something passed by unseen.
    pub has_missed: bool,
    /// The process has ended.
    pub has_ended: bool,
}

/// A ring with the requests that are known of it.
struct Watched {
    number: u32,
    identity: Identity,
    ring: Ring,
    followed: Followed,
}

/// The state of what was told of a ring.
struct Followed {
    requests: Requests,
    /// How many requests were taken from the queue before the last look.
    serial: u64,
    /// The position behind the last request, if the next one is linked to it.
    chain: Option<u32>,
    /// A request may have several completions, or none: then the counters do not say how many are in flight.
    is_irregular: bool,
    /// Two requests that are in flight have had the same user data.
    is_ambiguous: bool,
    /// The process has no descriptor of the ring any more.
    is_gone: bool,
    /// When the last look was.
    looked: (Moment, u64),
    /// Requests and completions that passed by, and completions whose requests did, all of which were not told of yet.
    missed: [u64; 3],
    /// Requests of which it is not known whether they are in flight: their numbers by their user data.
    doubtful: HashMap<u64, u64>,
    /// Positions of requests whose completions came before the queue's head said that they were taken.
    foretold: HashSet<u32>,
    told_missed_ns: u64,
    cq_ready: u32,
}

/// The moment of a look, and what is needed of its findings.
struct Look {
    sq_head: u32,
    /// The moment of the look before.
    before: Moment,
    before_ns: u64,
}

/// Makes events.
struct Teller {
    process: u32,
    names: HashMap<RawFd, String>,
    /// Descriptors whose names were looked at in this look.
    named: HashSet<RawFd>,
    record: Vec<u8>,
}

impl Watch {
    /// Begins to watch a process.
    ///
    /// # Errors
    /// Where there is none, or its rings cannot be looked at.
    pub fn new(process: u32) -> Result<Watch, Refusal> {
        let process = Process::open(process)?;
        process.check_rights()?;
        let (names, named) = (HashMap::new(), HashSet::new());
        let teller = Teller { process: process.id(), names, named, record: Vec::new() };
        Ok(Watch {
            process,
            teller,
            rings: Vec::new(),
            count: 0,
            only: None,
            shared_inode: find::shared_inode(),
            searched_ns: None,
        })
    }

    /// Begins to watch one ring of a process, by its descriptor.
    ///
    /// # Errors
    /// Where there is no such process, or its rings cannot be looked at.
    pub fn of_ring(process: u32, fd: RawFd) -> Result<Watch, Refusal> {
        Ok(Watch { only: Some(fd), ..Watch::new(process)? })
    }

    /// How many rings were found so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Looks at all rings, and tells what is new.
    ///
    /// # Errors
    /// Where the caller lacks the rights.
    pub fn look(&mut self, session: &mut Session) -> Result<Looked, Refusal> {
        let mut has_missed = false;
        let now_ns = now_ns();
        if self.searched_ns.is_none_or(|searched| now_ns - searched >= SEARCH_NS) {
            self.search(now_ns, session)?;
        }
        for watched in &mut self.rings {
            // A ring that has left its descriptor may have another one.
            let mut changes = watched.ring.look(&self.process)?;
            if changes.is_none() {
                changes = watched.find_again(self.shared_inode, &self.process)?;
            }
            match changes {
                Some(changes) => {
                    has_missed |= changes.missed_submissions + changes.missed_completions > 0;
                    self.teller.changes(watched, changes, session);
                }
                None => self.teller.ring_ended(watched, session),
            }
        }
        self.rings.retain(|watched| !watched.followed.is_gone);
        Ok(Looked { has_missed, has_ended: self.process.has_ended() })
    }

    /// Waits so long, or until the process has ended.
    pub fn wait(&self, pause: Duration) {
        self.process.ends_within(pause);
    }

    /// Nothing more is looked at: tells of what was passed by, and of the process's end, if `has_ended`.
    pub fn end(&mut self, has_ended: bool, session: &mut Session) {
        for watched in &mut self.rings {
            if has_ended {
                self.teller.ring_ended(watched, session);
            } else {
                self.teller.missed(watched, session);
            }
        }
        if has_ended {
            self.teller.tell(now_ns(), 0, Kind::Ended, &Ended::default(), None, session);
        }
    }

    fn search(&mut self, now_ns: u64, session: &mut Session) -> Result<(), Refusal> {
        let since = if self.searched_ns.is_none() { Since::FirstLook } else { Since::Beginning };
        self.searched_ns = Some(now_ns);
        let found = match find::in_process(self.process.id()) {
            Ok(found) => found,
            Err(_) if self.process.has_ended() => return Ok(()),
            Err(error) => return Err(Refusal::new(Step::ListDescriptors, self.process.id(), error)),
        };
        let is_wanted = |found: &Found| self.only.is_none_or(|only| only == found.fd);
        for found in found.into_iter().filter(is_wanted) {
            let identity = found.identity(self.shared_inode);
            if self.rings.iter().any(|watched| watched.identity == identity) {
                continue;
            }
            let mut ring = Ring::new(found, since);
            let Some(changes) = ring.look(&self.process)? else { continue };
            self.count += 1;
            let followed = Followed::new(&changes);
            let mut watched = Watched { number: self.count, identity, ring, followed };
            self.teller.found(&watched, &changes, session);
            self.teller.changes(&mut watched, changes, session);
            self.rings.push(watched);
        }
        Ok(())
    }
}

impl Watched {
    /// Looks at the ring by another descriptor, if the process has one.
    fn find_again(&mut self, shared_inode: u64, process: &Process) -> Result<Option<Changes>, Refusal> {
        let descriptors = find::in_process(process.id()).unwrap_or_default();
        let is_same = |found: &&Found| found.identity(shared_inode) == self.identity;
        let Some(found) = descriptors.iter().find(is_same) else { return Ok(None) };
        self.ring.found_again(*found);
        self.ring.look(process)
    }
}

impl Followed {
    /// Of a ring whose first look found these changes.
    fn new(changes: &Changes) -> Followed {
        let counters = &changes.counters;
        Followed {
            requests: Requests::new(),
            serial: u64::from(counters.sq_head.wrapping_sub(changes.submissions)),
            chain: None,
            is_irregular: false,
            is_ambiguous: false,
            is_gone: false,
            looked: (Moment::now(), now_ns()),
            missed: [0; 3],
            doubtful: HashMap::new(),
            foretold: HashSet::new(),
            told_missed_ns: now_ns(),
            cq_ready: 0,
        }
    }

    /// Notes whether requests have several completions, or none.
    fn note_irregularities(&mut self, changes: &Changes) {
        let several = IORING_CQE_F_MORE | IORING_CQE_F_NOTIF;
        let skips = |taken: &Taken| u32::from(taken.sqe.flags) & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.is_irregular |= changes.taken.iter().any(skips);
        self.is_irregular |= changes.posted.iter().any(|posted| posted.cqe.flags & several != 0);
    }

    /// True if user data of doubtful requests was used again.
    fn meets_doubtful(&self, changes: &Changes) -> bool {
        changes.taken.iter().any(|taken| self.doubtful.contains_key(&taken.sqe.user_data))
    }

    /// Notes whether requests that are in flight have the same user data.
    fn note_ambiguity(&mut self, changes: &Changes) {
        let is_shared = |taken: &Taken| self.requests.bearing(taken.sqe.user_data).count() > 1;
        self.is_ambiguous |= changes.taken.iter().any(is_shared);
    }

    /// How many requests are in flight, where the counters say so.
    fn in_flight(&self, changes: &Changes) -> Option<usize> {
        changes.counters.in_flight().filter(|_| !self.is_irregular).map(|count| count as usize)
    }
}

impl Teller {
    /// Tells of a ring that was found.
    fn found(&mut self, watched: &Watched, changes: &Changes, session: &mut Session) {
        let Changes { counters, submissions, completions, .. } = changes;
        let found = watched.ring.found();
        let body = RingFound {
            fd: found.fd,
            engine: if found.engine == Engine::User { ENGINE_USER } else { ENGINE_KERNEL },
            sq_entries: counters.sq_entries,
            cq_entries: counters.cq_entries,
            submitted: counters.sq_head.wrapping_sub(*submissions),
            posted: counters.cq_tail.wrapping_sub(*completions),
        };
        self.tell(now_ns(), watched.number, Kind::RingFound, &body, None, session);
    }

    /// Tells what a look has found.
    fn changes(&mut self, watched: &mut Watched, mut changes: Changes, session: &mut Session) {
        let followed = &mut watched.followed;
        let (before, before_ns) = std::mem::replace(&mut followed.looked, (Moment::now(), now_ns()));
        let look = Look { sq_head: changes.counters.sq_head, before, before_ns };
        followed.cq_ready = changes.counters.cq_ready();
        followed.serial += u64::from(changes.submissions);
        followed.note_irregularities(&changes);
        changes.taken.retain(|taken| !followed.foretold.remove(&taken.position));
        self.named.clear();
        let serials: Vec<u64> =
            changes.taken.iter().map(|taken| self.taken(watched, taken, &look, session)).collect();
        let followed = &mut watched.followed;
        let is_lossy = changes.missed_submissions + changes.missed_completions > 0;
        let is_uncertain = is_lossy || followed.meets_doubtful(&changes);
        let pairs = is_uncertain.then(|| {
            let is_regular = followed.in_flight(&changes).is_some() && !followed.is_ambiguous;
            let known = Known { requests: &followed.requests, doubtful: &followed.doubtful };
            Pairs::found(&changes, known, &serials, is_regular)
        });
        for (taken, serial) in changes.taken.iter().zip(serials) {
            followed.requests.add(serial, &taken.sqe, None, before);
        }
        if let Some(pairs) = pairs {
            self.pass_by(watched, &pairs.lost, session);
            for (posted, key) in changes.posted.iter().zip(pairs.of_posted) {
                self.posted(watched, posted, key, session);
            }
            watched.followed.doubtful.extend(pairs.doubtful);
        } else {
            for posted in &changes.posted {
                let known = watched.followed.requests.find(&posted.cqe);
                let key = known
                    .or_else(|| self.foretold(watched, posted.cqe.user_data, (&changes, &look), session));
                self.posted(watched, posted, key, session);
            }
            watched.followed.note_ambiguity(&changes);
        }
        self.give_up(watched, &changes, session);
        if watched.followed.looked.1 - watched.followed.told_missed_ns >= UNSEEN_NS {
            self.missed(watched, session);
        }
    }

    /// Tells of a request that was taken; its number.
    fn taken(&mut self, watched: &mut Watched, taken: &Taken, look: &Look, session: &mut Session) -> u64 {
        let (number, followed) = (watched.number, &mut watched.followed);
        let Taken { position, sqe } = taken;
        let behind_head = i64::from(position.wrapping_sub(look.sq_head) as i32);
        let serial = (followed.serial + 1).wrapping_add_signed(behind_head);
        let is_linked = followed.chain == Some(*position);
        let links = u32::from(sqe.flags) & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0;
        followed.chain = links.then(|| position.wrapping_add(1));
        self.names(number, look.before_ns, sqe, session);
        let behind = if is_linked { serial - 1 } else { 0 };
        let file = if u32::from(sqe.flags) & IOSQE_FIXED_FILE == 0 { sqe.fd } else { -1 };
        let body = Submitted { serial, sqe: *sqe.words(), behind, file, reserved: 0 };
        self.tell(look.before_ns, number, Kind::Submitted, &body, None, session);
        serial
    }

    /// Tells of requests that were lost sight of.
    fn pass_by(&mut self, watched: &mut Watched, keys: &[Key], session: &mut Session) {
        for key in keys {
            watched.followed.doubtful.remove(&key.0);
            if let Some(serial) = watched.followed.requests.forget(*key) {
                let (time_ns, ring) = (watched.followed.looked.1, watched.number);
                self.tell(time_ns, ring, Kind::LostSight, &LostSight { serial }, None, session);
            }
        }
    }

    /// Tells of a completion, of a request if it is known.
    fn posted(&mut self, watched: &mut Watched, posted: &Posted, key: Option<Key>, session: &mut Session) {
        let (followed, ring) = (&mut watched.followed, watched.number);
        let Posted { cqe, ready, .. } = posted;
        let about = followed.requests.complete(key, cqe);
        key.and_then(|key| followed.doubtful.remove(&key.0));
        let Cqe { user_data, res, flags, big } = *cqe;
        if about.serial == 0 {
            followed.missed[2] += 1;
            if res >= 0 {
                return;
            }
        }
        let marks = about.marks | SAMPLED;
        let body = Completed { serial: about.serial, user_data, res, flags, big, marks, cq_ready: *ready };
        self.tell(followed.looked.1, ring, Kind::Completed, &body, None, session);
    }

    /// Tells of a request that the queue's head does not say to be taken, because its completion was posted; its key.
    fn foretold(
        &mut self,
        watched: &mut Watched,
        user_data: u64,
        (changes, look): (&Changes, &Look),
        session: &mut Session,
    ) -> Option<Key> {
        let followed = &watched.followed;
        let mut waiting = changes.waiting.iter();
        let taken = waiting.find(|waiting| {
            waiting.sqe.user_data == user_data && !followed.foretold.contains(&waiting.position)
        })?;
        let serial = self.taken(watched, taken, look, session);
        watched.followed.foretold.insert(taken.position);
        watched.followed.requests.add(serial, &taken.sqe, None, look.before);
        Some((user_data, serial))
    }

    /// Counts what was missed. If completions were, gives up the oldest requests, until as many are left as are in flight.
    fn give_up(&mut self, watched: &mut Watched, changes: &Changes, session: &mut Session) {
        let followed = &mut watched.followed;
        followed.missed[0] += u64::from(changes.missed_submissions);
        followed.missed[1] += u64::from(changes.missed_completions);
        let head = changes.counters.sq_head;
        followed.foretold.retain(|position| position.wrapping_sub(head) <= i32::MAX as u32);
        if let Some(left) = followed.in_flight(changes).filter(|_| changes.missed_completions > 0) {
            let mut keys = followed.requests.without_cqe(u64::MAX);
            keys.sort_unstable_by_key(|key| key.1);
            keys.truncate(keys.len().saturating_sub(left));
            self.pass_by(watched, &keys, session);
        }
    }

    /// Tells how much passed by since that was told last.
    fn missed(&mut self, watched: &mut Watched, session: &mut Session) {
        let followed = &mut watched.followed;
        followed.told_missed_ns = now_ns();
        let missed = std::mem::take(&mut followed.missed);
        let why = [UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS];
        for (count, why) in missed.into_iter().zip(why) {
            if count > 0 {
                let time_ns = followed.told_missed_ns;
                self.tell(time_ns, watched.number, Kind::Unseen, &Unseen { count, why }, None, session);
            }
        }
    }

    /// Tells that a ring has no descriptor in the process any more.
    fn ring_ended(&mut self, watched: &mut Watched, session: &mut Session) {
        self.missed(watched, session);
        let Followed { requests, cq_ready, .. } = &watched.followed;
        let body = RingEnded { in_flight: requests.due() as u64, cq_ready: *cq_ready, reserved: 0 };
        self.tell(now_ns(), watched.number, Kind::RingEnded, &body, None, session);
        watched.followed.is_gone = true;
    }

    /// Tells the names of the files of a request, where they have changed.
    fn names(&mut self, ring: u32, time_ns: u64, sqe: &Sqe, session: &mut Session) {
        let arguments = ops::lookup(sqe.opcode).arguments.iter();
        let is_registered = u32::from(sqe.flags) & IOSQE_FIXED_FILE != 0;
        for argument in arguments.filter(|argument| argument.applies(sqe)) {
            let fd = argument.field.value(sqe) as RawFd;
            let is_file = match argument.kind {
                Argument::File => !is_registered,
                Argument::Descriptor => true,
                Argument::SecondFile(registered) => sqe.op_flags & registered == 0,
                _ => false,
            };
            if !is_file || fd < 0 || !self.named.insert(fd) {
                continue;
            }
            let name = process::target(self.process, fd).unwrap_or_default();
            if self.names.get(&fd) != Some(&name) {
                let body = FileNamed { fd, reserved: 0 };
                self.tell(time_ns, ring, Kind::FileNamed, &body, Some(name.as_bytes()), session);
                self.names.insert(fd, name);
            }
        }
    }

    /// Hands an event on, with a path if it has one.
    fn tell<T: Plain>(
        &mut self,
        time_ns: u64,
        ring: u32,
        kind: Kind,
        body: &T,
        path: Option<&[u8]>,
        session: &mut Session,
    ) {
        let (process, attachments) = (self.process, u16::from(path.is_some()));
        let head = Head { time_ns, process, thread: 0, ring, kind: kind as u16, attachments };
        let record = &mut self.record;
        record.clear();
        record.extend_from_slice(head.bytes());
        record.extend_from_slice(body.bytes());
        if let Some(path) = path {
            let kept = path.len() as u32;
            let content = Content::Path as u16;
            let attachment = Attachment { address: 0, length: path.len() as u64, kept, content, index: 0 };
            record.extend_from_slice(attachment.bytes());
            record.extend_from_slice(path);
            record.resize(record.len() + padded(path.len()) - path.len(), 0);
        }
        if let Some(event) = Event::parse(record) {
            session.event(&event);
        }
    }
}

/// The monotonic clock.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
