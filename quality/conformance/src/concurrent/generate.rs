//! Generates random programs. Each uses few kinds of objects and requests, so that they interact often.

use anyring_engine::abi::{IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED};
use linux_raw_sys::io_uring::*;

use super::plan::*;
use crate::harness::sqe_flags::{ASYNC, DRAIN, HARDLINK, LINK};
use crate::rng::Rng;

/// The number of files, each with its own pattern.
pub const FILES: usize = 4;
/// The bytes of a unit of a file's pattern, which one request reads.
pub const UNIT: u32 = 128;
/// The number of units in a file.
pub const UNITS: u32 = 32;
/// The number of slots for registered files of each ring.
pub const SLOTS: u32 = 8;
/// The number of eventfds for polls.
pub const EVENTS: usize = 2;

/// The features that programs may use, by the names for `--without`.
pub const FEATURES: [&str; 26] = [
    "timeouts",
    "polls",
    "closed-files",
    "closed-pipes",
    "files",
    "slots",
    "streams",
    "zero-copy",
    "multishot",
    "accept",
    "messages",
    "send-file",
    "cancel",
    "sync-cancel",
    "splice",
    "links",
    "drains",
    "eventfd",
    "close-ring",
    "fork",
    "stops",
    "own-ring",
    "sqpoll",
    "defer",
    "no-mmap",
    "newest",
];

/// The subset of [`FEATURES`] that a program uses.
#[derive(Clone, Copy, Debug)]
pub struct Features(u32);

impl Features {
    /// Returns all features except the named ones.
    ///
    /// # Errors
    /// Returns an unknown name.
    pub fn without(names: &[String]) -> Result<Features, String> {
        let mut all = (1 << FEATURES.len()) - 1;
        for name in names {
            let place = FEATURES.iter().position(|feature| feature == name);
            all &= !(1
                << place
                    .ok_or_else(|| format!("no such feature: {name} (there are {})", FEATURES.join(", ")))?);
        }
        Ok(Features(all))
    }

    fn has(self, name: &str) -> bool {
        let place = FEATURES.iter().position(|feature| *feature == name);
        self.0 & 1 << place.expect("a feature") != 0
    }

    fn draw(self, rng: &mut Rng) -> Features {
        let rare = ["splice", "fork", "close-ring", "drains", "no-mmap", "send-file", "closed-pipes"];
        let mut drawn = 0;
        for (place, name) in FEATURES.iter().enumerate() {
            let chance = if rare.contains(name) { 20 } else { 45 };
            drawn |= u32::from(rng.percent(chance)) << place;
        }
        Features(self.0 & drawn)
    }
}

/// Generates the program of a seed, from the allowed features.
pub fn program(seed: u64, allowed: Features) -> Program {
    let mut rng = Rng::new(seed);
    let features = allowed.draw(&mut rng);
    let threads = 2 + rng.below(5);
    let rings = 1 + rng.below(4);
    let announces = rng.percent(70);
    let pauses = if rng.percent(60) { rng.number() | 1 } else { 0 };
    let rings = (0..rings).map(|index| ring(&mut rng, features, index, threads)).collect::<Vec<_>>();
    let rings = attach(&mut rng, rings);
    let carriers = [Carrier::Pipe, Carrier::Pair, Carrier::Tcp];
    let mut program = Program {
        seed,
        rings,
        streams: (0..1 + rng.below(3)).map(|_| rng.pick(&carriers)).collect(),
        listeners: if features.has("accept") {
            (0..1 + rng.below(2)).map(|_| rng.percent(30)).collect()
        } else {
            vec![]
        },
        threads: vec![],
        end: End::Cancel,
        announces,
        pauses,
        newest: features.has("newest"),
    };
    for thread in 0..threads {
        let count = 5 + rng.below(20);
        let mut generator = Generator { rng: &mut rng, features, program: &program, thread };
        let acts = (0..count).map(|_| generator.act()).collect();
        program.threads.push(acts);
    }
    // As above.
    let closes = program.listeners.is_empty() && rng.percent(30);
    let synchronous = features.has("sync-cancel") && rng.percent(30);
    program.end = match (closes, synchronous) {
        (true, _) => End::Close,
        (_, true) => End::SyncCancel,
        _ => End::Cancel,
    };
    program
}

fn ring(rng: &mut Rng, features: Features, index: usize, threads: usize) -> RingPlan {
    let mut flags = 0;
    let mut add = |rng: &mut Rng, chance, flag| flags |= if rng.percent(chance) { flag } else { 0 };
    add(rng, 50, IORING_SETUP_SUBMIT_ALL);
    add(rng, 20, IORING_SETUP_NO_SQARRAY);
    add(rng, 10, IORING_SETUP_SQE128);
    add(rng, if features.has("newest") { 40 } else { 0 }, IORING_SETUP_SQE_MIXED);
    add(rng, 12, IORING_SETUP_CQE32);
    add(rng, 15, IORING_SETUP_CQE_MIXED);
    add(rng, 15, IORING_SETUP_SINGLE_ISSUER);
    add(rng, if features.has("no-mmap") { 60 } else { 0 }, IORING_SETUP_NO_MMAP);
    add(rng, 30, IORING_SETUP_COOP_TASKRUN);
    add(rng, 15, IORING_SETUP_TASKRUN_FLAG);
    add(rng, if features.has("sqpoll") { 35 } else { 0 }, IORING_SETUP_SQPOLL);
    add(
        rng,
        if features.has("defer") { 45 } else { 0 },
        IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER,
    );
    if flags & IORING_SETUP_SQE_MIXED != 0 {
        flags &= !IORING_SETUP_SQE128;
    }
    if flags & IORING_SETUP_CQE32 != 0 {
        flags &= !IORING_SETUP_CQE_MIXED;
    }
    if flags & IORING_SETUP_DEFER_TASKRUN != 0 {
        flags &= !IORING_SETUP_SQPOLL;
    }
    if flags & IORING_SETUP_SQPOLL != 0 {
        flags &= !(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    }
    if flags & (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN) == 0 {
        flags &= !IORING_SETUP_TASKRUN_FLAG;
    }
    let entries = 4 << rng.below(4);
    let owner = if index < threads { index } else { rng.below(threads) };
    let shared = flags & IORING_SETUP_SINGLE_ISSUER == 0;
    let mut users = vec![owner];
    for thread in (0..threads).filter(|&thread| thread != owner) {
        if rng.percent(50) && shared {
            users.push(thread);
        }
    }
    RingPlan {
        flags,
        entries,
        cq_entries: if rng.percent(40) { entries } else { 128 },
        owner,
        users,
        doomed: rng.percent(50) && features.has("close-ring"),
        eventfd: rng.percent(60) && features.has("eventfd"),
        buffers: rng.percent(60) && features.has("multishot"),
        fixed_buffer: rng.percent(25),
        filtered: features.has("newest") && rng.percent(25),
        // With drains, a program ends with REGISTER_SYNC_CANCEL, which does not find the requests at which
        // threads of the kernel's SQ thread are.
        drains: rng.percent(60) && features.has("drains") && flags & IORING_SETUP_SQPOLL == 0,
    }
}

/// Makes some rings share the first ring's threads.
fn attach(rng: &mut Rng, mut rings: Vec<RingPlan>) -> Vec<RingPlan> {
    let first = rings[0].clone();
    for ring in rings.iter_mut().skip(1) {
        if rng.percent(30) && ring.is_polled() == first.is_polled() && !first.doomed {
            ring.flags |= IORING_SETUP_ATTACH_WQ;
        }
    }
    rings
}

struct Generator<'a> {
    rng: &'a mut Rng,
    features: Features,
    program: &'a Program,
    thread: usize,
}

impl Generator<'_> {
    fn has(&self, name: &str) -> bool {
        self.features.has(name)
    }

    /// True if threads make rings of their own. The number of a ring that was closed must stay taken then: a message to the
    /// closed ring would reach the new ring that has its number.
    fn makes_rings(&self) -> bool {
        self.has("own-ring") || self.has("fork") && self.has("stops")
    }

    fn own_ring(&mut self) -> Option<usize> {
        let rings = &self.program.rings;
        let mine: Vec<usize> =
            (0..rings.len()).filter(|&ring| rings[ring].users.contains(&self.thread)).collect();
        (!mine.is_empty()).then(|| self.rng.pick(&mine))
    }

    fn act(&mut self) -> Act {
        let Some(ring) = self.own_ring() else { return self.act_without_ring() };
        match self.rng.below(100) {
            0..62 => self.push(ring),
            62..70 => Act::Look(ring),
            70..74 => Act::Reap(ring),
            74..78 if self.has("sync-cancel") => self.sync_cancel(ring),
            78..81 if self.has("slots") => {
                let file = self.rng.percent(80).then(|| self.rng.below(FILES));
                Act::Register(ring, 4 + self.rng.below(4) as u32, file)
            }
            _ => self.act_without_ring(),
        }
    }

    fn act_without_ring(&mut self) -> Act {
        let rings = self.program.rings.len();
        match self.rng.below(100) {
            0..20 if !self.program.listeners.is_empty() => {
                Act::Connect(self.rng.below(self.program.listeners.len()))
            }
            20..40 => Act::Poke(self.rng.below(EVENTS), self.rng.percent(75)),
            40..60 => Act::Open(self.rng.below(FILES)),
            60..70 if self.has("own-ring") => Act::OwnRing(self.own()),
            70..76 if self.has("close-ring") => {
                let doomed: Vec<usize> = (0..rings).filter(|&ring| self.program.rings[ring].doomed).collect();
                if doomed.is_empty() {
                    return Act::Spin(3);
                }
                Act::CloseRing(self.rng.pick(&doomed), self.rng.percent(50) || self.makes_rings())
            }
            82 if self.has("fork") => Act::Exec,
            76..82 if self.has("fork") => {
                let child = match self.rng.below(3) {
                    0 => Child::Ends,
                    1 => Child::OwnRing(self.has("messages").then(|| self.rng.below(rings))),
                    // Requests of a child behind a drain fail when the child ends.
                    _ => (0..rings)
                        .find(|&ring| {
                            let plan = &self.program.rings[ring];
                            !plan.is_private() && !plan.drains
                        })
                        .map_or(Child::OwnRing(None), Child::Nop),
                };
                let stops = !matches!(child, Child::Ends) && self.has("stops");
                Act::Fork(child, stops.then(|| self.own()))
            }
            _ => Act::Spin(1 + self.rng.below(20) as u32),
        }
    }

    fn own(&mut self) -> Own {
        match self.rng.below(12) {
            10.. if self.has("zero-copy") => Own::Unread,
            0..3 => Own::Nops,
            3..6 => Own::Leaves,
            6 => Own::Files,
            7 => Own::Chain,
            _ => Own::Connections(if self.rng.percent(3) { 200 } else { 1 + self.rng.below(12) }),
        }
    }

    fn whom(&mut self) -> Whom {
        match self.rng.below(8) {
            0..4 => Whom::One,
            4 | 5 => Whom::Stream(self.rng.below(self.program.streams.len())),
            6 => Whom::Any,
            _ => Whom::All,
        }
    }

    fn sync_cancel(&mut self, ring: usize) -> Act {
        let whom = self.whom();
        Act::SyncCancel(ring, whom, self.rng.percent(40).then_some(500))
    }

    fn push(&mut self, ring: usize) -> Act {
        if let Some(alone) = self.alone(ring) {
            let request = Req { what: alone, flags: 0 };
            return Act::Push(ring, vec![request], Then::Submit);
        }
        let plan = &self.program.rings[ring];
        let count = 1 + self.rng.below(4);
        let mut requests: Vec<Req> = (0..count).map(|_| Req { what: self.what(ring), flags: 0 }).collect();
        let linked = count > 1 && self.has("links") && self.rng.percent(60);
        if linked {
            self.link(&mut requests);
        } else {
            for request in &mut requests {
                request.flags = match self.rng.below(100) {
                    0..12 => ASYNC,
                    12..20 if plan.drains => DRAIN,
                    _ => 0,
                };
            }
        }
        let then = self.then(ring, &requests, linked);
        Act::Push(ring, requests, then)
    }

    fn link(&mut self, requests: &mut Vec<Req>) {
        let carries = |request: &Req| matches!(request.what, What::Write { .. } | What::Read { .. });
        let flag = if !requests.iter().any(carries) && self.rng.percent(25) { HARDLINK } else { LINK };
        requests.iter_mut().for_each(|request| request.flags = flag);
        if let What::Write { .. } | What::Read { .. } | What::Poll { .. } = requests[0].what
            && self.rng.percent(40)
        {
            requests.truncate(1);
            requests.push(Req { what: What::LinkTimeout { us: self.rng.below(1500) as u32 }, flags: 0 });
        }
        if self.rng.percent(15) {
            requests[0].flags |= ASYNC;
        }
        if let Some(last) = requests.last_mut() {
            last.flags &= !(LINK | HARDLINK);
        }
    }

    fn then(&mut self, ring: usize, requests: &[Req], linked: bool) -> Then {
        let plan = &self.program.rings[ring];
        let sure = requests.iter().filter(|request| is_sure(&request.what)).count();
        let sure = if linked && sure < requests.len() { 0 } else { sure };
        if sure > 0 && plan.waits_for_ever() && self.rng.percent(55) {
            if plan.eventfd && plan.users.len() == 1 && self.rng.percent(50) {
                return Then::Event;
            }
            let most = if plan.users.len() > 1 { 1 } else { sure };
            return Then::Wait(1 + self.rng.below(most) as u32);
        }
        if self.rng.percent(35) { Then::WaitFor(self.rng.below(600) as u32) } else { Then::Submit }
    }

    /// Returns a request on a descriptor that is closed immediately: no other request may come between.
    fn alone(&mut self, ring: usize) -> Option<What> {
        let plan = &self.program.rings[ring];
        if plan.drains || plan.doomed && plan.is_polled() {
            return None;
        }
        if self.has("closed-pipes") && self.program.announces && self.rng.percent(15) {
            return Some(What::OtherPipe);
        }
        if !self.has("closed-files") || !self.rng.percent(30) {
            return None;
        }
        let file = self.rng.below(FILES);
        Some(if self.rng.percent(50) {
            What::ReadClosed { file, unit: self.rng.below(UNITS as usize) as u32 }
        } else {
            What::WriteClosed { disk: self.rng.percent(70) }
        })
    }

    fn what(&mut self, ring: usize) -> What {
        let plan = &self.program.rings[ring];
        let rings = self.program.rings.len();
        let other = if rings > 1 { (ring + 1 + self.rng.below(rings - 1)) % rings } else { ring };
        let file = self.rng.below(FILES);
        let unit = self.rng.below(UNITS as usize) as u32;
        match self.rng.below(100) {
            0..10 if self.has("timeouts") => {
                let count = if self.rng.percent(30) { 1 + self.rng.below(3) as u32 } else { 0 };
                let many = count == 0 && self.has("multishot") && self.rng.percent(30);
                What::Timeout { us: 1 + self.rng.below(1500) as u32, count, many }
            }
            10..13 if self.has("timeouts") => What::TimeoutRemove,
            13..23 if self.has("polls") => What::Poll {
                event: self.rng.below(EVENTS),
                many: self.has("multishot") && self.rng.percent(40),
            },
            23..33 if self.has("files") => {
                if self.rng.percent(60) {
                    What::ReadFile { file, unit }
                } else {
                    What::WriteFile { disk: self.rng.percent(50) }
                }
            }
            33..37 if self.has("slots") => {
                What::ReadSlot { slot: self.rng.below(SLOTS as usize) as u32, unit }
            }
            37..40 if self.has("slots") => What::FilesUpdate {
                slot: 4 + self.rng.below(4) as u32,
                file: self.rng.percent(80).then_some(file),
            },
            40..66 if self.has("streams") => self.transfer(plan),
            // A connection that is accepted while its ring is closed would be lost.
            66..72 if self.has("accept") && !plan.doomed => What::Accept {
                listener: self.rng.below(self.program.listeners.len()),
                many: self.has("multishot") && self.rng.percent(50),
            },
            72..80 if self.has("messages") && other != ring => What::SendMessage { to: other },
            80..85 if self.has("send-file") && other != ring => {
                What::SendFile { to: other, slot: 4 + self.rng.below(4) as u32, silent: self.rng.percent(40) }
            }
            85..91 if self.has("cancel") => What::Cancel(self.whom()),
            // The kernel does not find requests at which threads of an SQ thread are.
            91..93 if self.has("splice") && !plan.is_polled() => What::Splice,
            _ => What::Nop {
                result: if self.rng.percent(20) { -libc::EIO } else { 0 },
                big: self.rng.percent(50),
                wide: plan.flags & IORING_SETUP_SQE_MIXED != 0 && self.rng.percent(50),
            },
        }
    }

    fn transfer(&mut self, plan: &RingPlan) -> What {
        let stream = self.rng.below(self.program.streams.len());
        let carrier = self.program.streams[stream];
        let length = self.rng.pick(&[1, 7, 64, 200, 512, 900]);
        let mut ways = vec![How::Plain, How::Vector];
        if carrier != Carrier::Pipe {
            ways.extend([How::Socket, How::Message]);
        }
        if plan.fixed_buffer {
            ways.push(How::FixedBuffer);
        }
        if plan.fixed_buffer && self.program.newest && carrier != Carrier::Pipe {
            ways.extend([How::FixedSocket; 3]);
        }
        if self.rng.percent(50) {
            // The kernel's drains wait for notifications of the requests that they hold back.
            if carrier == Carrier::Tcp && self.has("zero-copy") && !plan.drains {
                ways.extend([How::ZeroCopy; 4]);
            }
            let long = self.rng.percent(10);
            let how = self.rng.pick(&ways);
            let length = if long { 40_000 } else { length };
            return What::Write { stream, length, how };
        }
        if plan.buffers {
            ways.extend([How::Selected, How::Many, How::Many]);
        }
        What::Read { stream, length, how: self.rng.pick(&ways) }
    }
}

/// True if a request completes whatever other requests do.
fn is_sure(what: &What) -> bool {
    matches!(
        what,
        What::Nop { .. }
            | What::Timeout { many: false, .. }
            | What::TimeoutRemove
            | What::ReadFile { .. }
            | What::WriteFile { .. }
            | What::FilesUpdate { .. }
            | What::SendMessage { .. }
            | What::SendFile { .. }
            | What::Cancel(_)
    )
}
