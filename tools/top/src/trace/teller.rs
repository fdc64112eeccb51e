//! Makes events of the changes that looks have found.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::RawFd;

use anyring_engine::abi::{IOSQE_FIXED_FILE, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, Sqe};
use anyring_engine::observe::trace::Moment;
use anyring_engine::ops;
use anyring_engine::queue::Cqe;
use anyring_engine::request::shown::Kind as Argument;
use anyring_kernel_trace::requests::Key;
use anyring_trace::event::{
    Attachment, Completed, Content, EARLIER, ENGINE_KERNEL, ENGINE_USER, Event, FileNamed, Head, Kind, LAST,
    LostSight, Plain, RingEnded, RingFound, SAMPLED, Submitted, UNSEEN_BETWEEN_LOOKS,
    UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS, Unseen, padded,
};
use anyring_tracer::Session;

use super::followed::Followed;
use super::{Watched, now_ns};
use crate::find::Engine;
use crate::follow::{Changes, Posted, Taken};
use crate::pair::{Known, Pairs};
use crate::process;
use crate::ring::Ring;

/// The time between two reports of how many requests and completions were missed.
const UNSEEN_NS: u64 = 1_000_000_000;

/// The moment of a look, and the findings that are needed later.
struct Look {
    sq_head: u32,
    /// The moment of the look before.
    before: Moment,
    before_ns: u64,
}

/// A maker of events.
pub struct Teller {
    process: u32,
    names: HashMap<RawFd, String>,
    /// The descriptors whose names were read for this look.
    named: HashSet<RawFd>,
    record: Vec<u8>,
}

impl Teller {
    /// Makes a teller for the events of a process.
    pub fn new(process: u32) -> Teller {
        Teller { process, names: HashMap::new(), named: HashSet::new(), record: Vec::new() }
    }

    /// Reports a ring that was found.
    pub fn found(&mut self, number: u32, ring: &Ring, changes: &Changes, session: &mut Session) {
        let Changes { counters, submissions, completions, .. } = changes;
        let found = ring.found();
        let body = RingFound {
            fd: found.fd,
            engine: if found.engine == Engine::User { ENGINE_USER } else { ENGINE_KERNEL },
            sq_entries: counters.sq_entries,
            cq_entries: counters.cq_entries,
            submitted: counters.sq_head.wrapping_sub(*submissions),
            posted: counters.cq_tail.wrapping_sub(*completions),
        };
        self.report(now_ns(), number, Kind::RingFound, &body, None, session);
    }

    /// Reports the changes that a look has found.
    pub fn changes(&mut self, watched: &mut Watched, mut changes: Changes, session: &mut Session) {
        let followed = &mut watched.followed;
        let (before, before_ns) = std::mem::replace(&mut followed.looked, (Moment::now(), now_ns()));
        let look = Look { sq_head: changes.counters.sq_head, before, before_ns };
        followed.cq_ready = changes.counters.cq_ready();
        followed.serial += u64::from(changes.submissions);
        followed.note_irregularities(&changes);
        changes.taken.retain(|taken| !followed.foretold.remove(&taken.position));
        self.begin_look();
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
        if changes.missed_submissions > 0 {
            // Unknown requests may have the same user data.
            followed.earlier.clear();
        }
        for (taken, serial) in changes.taken.iter().zip(serials) {
            followed.earlier.remove(&taken.sqe.user_data);
            followed.requests.add(serial, &taken.sqe, None, before);
        }
        if let Some(pairs) = pairs {
            self.pass_by(watched, &pairs.lost, session);
            for (posted, key) in changes.posted.iter().zip(pairs.of_posted) {
                self.posted(watched, posted, key, session);
            }
            watched.followed.doubtful.extend(pairs.doubtful);
        } else {
            let mut waiting = by_user_data(&changes, &watched.followed.foretold);
            for posted in &changes.posted {
                let user_data = posted.cqe.user_data;
                let known = watched.followed.requests.find(&posted.cqe);
                let key = known
                    .or_else(|| {
                        let taken = waiting.get_mut(&user_data)?.pop_front()?;
                        Some(self.foretold(watched, taken, &look, session))
                    })
                    .or_else(|| self.earlier(watched, user_data, &look, session));
                self.posted(watched, posted, key, session);
            }
            watched.followed.note_ambiguity(&changes);
        }
        self.give_up(watched, &changes, session);
        if watched.followed.looked.1 - watched.followed.told_missed_ns >= UNSEEN_NS {
            self.missed(watched, session);
        }
    }

    /// Reports a request that was taken; returns its number.
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
        self.report(look.before_ns, number, Kind::Submitted, &body, None, session);
        serial
    }

    /// Reports requests that were lost sight of.
    fn pass_by(&mut self, watched: &mut Watched, keys: &[Key], session: &mut Session) {
        for key in keys {
            watched.followed.doubtful.remove(&key.0);
            if let Some(serial) = watched.followed.requests.forget(*key) {
                watched.followed.end_earlier(serial, true);
                let (time_ns, ring) = (watched.followed.looked.1, watched.number);
                self.report(time_ns, ring, Kind::LostSight, &LostSight { serial }, None, session);
            }
        }
    }

    /// Reports a completion, with its request if that is known.
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
        let is_earlier = followed.end_earlier(about.serial, about.marks & LAST != 0);
        let marks = about.marks | SAMPLED | if is_earlier { EARLIER } else { 0 };
        let body = Completed { serial: about.serial, user_data, res, flags, big, marks, cq_ready: *ready };
        self.report(followed.looked.1, ring, Kind::Completed, &body, None, session);
    }

    /// Reports a request from before the trace, because its completion was posted; returns its key.
    fn earlier(
        &mut self,
        watched: &mut Watched,
        user_data: u64,
        look: &Look,
        session: &mut Session,
    ) -> Option<Key> {
        let taken = watched.followed.earlier.remove(&user_data)?;
        let look = Look { before_ns: watched.followed.begun_ns, ..*look };
        let serial = self.taken(watched, &taken, &look, session);
        watched.followed.earlier_serials.insert(serial);
        watched.followed.requests.add(serial, &taken.sqe, None, look.before);
        Some((user_data, serial))
    }

    /// Reports a request that the queue's head has not passed yet, because its completion was posted; returns its key.
    fn foretold(&mut self, watched: &mut Watched, taken: &Taken, look: &Look, session: &mut Session) -> Key {
        let serial = self.taken(watched, taken, look, session);
        watched.followed.foretold.insert(taken.position);
        watched.followed.requests.add(serial, &taken.sqe, None, look.before);
        (taken.sqe.user_data, serial)
    }

    /// Counts the missed requests and completions. If completions were missed, gives up the oldest known requests, until
    /// no more are left than are in flight.
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

    /// Reports how much was missed since the last report.
    pub fn missed(&mut self, watched: &mut Watched, session: &mut Session) {
        let followed = &mut watched.followed;
        followed.told_missed_ns = now_ns();
        let missed = std::mem::take(&mut followed.missed);
        let why = [UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS];
        for (count, why) in missed.into_iter().zip(why) {
            if count > 0 {
                let time_ns = followed.told_missed_ns;
                self.report(time_ns, watched.number, Kind::Unseen, &Unseen { count, why }, None, session);
            }
        }
    }

    /// Reports that the process has no descriptor of the ring any more, with the number of known requests that had not completed.
    pub fn ring_ended(&mut self, watched: &mut Watched, session: &mut Session) {
        self.missed(watched, session);
        let Followed { requests, cq_ready, .. } = &watched.followed;
        let body = RingEnded { in_flight: requests.due() as u64, cq_ready: *cq_ready, reserved: 0 };
        self.report(now_ns(), watched.number, Kind::RingEnded, &body, None, session);
        watched.followed.is_gone = true;
    }

    /// Begins a look: names that were read before are read again.
    pub fn begin_look(&mut self) {
        self.named.clear();
    }

    /// Reports the names of the files of a request that the process has recorded, if they have changed.
    pub fn recorded(&mut self, ring: u32, time_ns: u64, submitted: &Submitted, session: &mut Session) {
        let sqe = Sqe::from_words(submitted.sqe);
        self.names(ring, time_ns, &sqe, session);
        self.name(ring, time_ns, submitted.file, session);
    }

    /// Reports the names of a request's files, if they have changed.
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
            if is_file {
                self.name(ring, time_ns, fd, session);
            }
        }
    }

    /// Reports the name of a descriptor, if it has changed since the last look.
    fn name(&mut self, ring: u32, time_ns: u64, fd: RawFd, session: &mut Session) {
        if fd < 0 || !self.named.insert(fd) {
            return;
        }
        let name = process::target(self.process, fd).unwrap_or_default();
        if self.names.get(&fd) != Some(&name) {
            let body = FileNamed { fd, reserved: 0 };
            self.report(time_ns, ring, Kind::FileNamed, &body, Some(name.as_bytes()), session);
            self.names.insert(fd, name);
        }
    }

    /// Reports an event to the session, with a path if it has one.
    pub fn report<T: Plain>(
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

/// Returns the requests that wait to be taken, without those that were reported already, by their user data, the oldest
/// first.
fn by_user_data<'a>(changes: &'a Changes, foretold: &HashSet<u32>) -> HashMap<u64, VecDeque<&'a Taken>> {
    let mut waiting: HashMap<u64, VecDeque<&Taken>> = HashMap::new();
    if !changes.posted.is_empty() {
        for taken in changes.waiting.iter().filter(|taken| !foretold.contains(&taken.position)) {
            waiting.entry(taken.sqe.user_data).or_default().push_back(taken);
        }
    }
    waiting
}
