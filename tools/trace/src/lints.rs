//! Lints: unhealthy behaviour of a program (`--summary`), each with the requests that show it.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::io::{self, Write};

use anyring_engine::abi::IOSQE_BUFFER_SELECT;
use anyring_trace::event::Entered;
use linux_raw_sys::errno::{EBADF, ECANCELED, ECONNRESET, ENOBUFS, ENOTCONN, EPIPE, ETIME};
use linux_raw_sys::io_uring::io_uring_op;

use crate::counts::is_spurious;
use crate::decode::Decoder;
use crate::model::{Completion, Harm, Listener, Model, Place, Request, Told};
use crate::output::{Output, Sink};
use crate::transfer::{asked, moves_bytes};

const CLOSE: u8 = io_uring_op::IORING_OP_CLOSE as u8;

/// The maximum number of examples of each lint that are shown.
const EXAMPLES: usize = 3;
/// Batches of one request that could have joined the batch before are reported if there are at least this many.
const MANY_SINGLE: u64 = 64;
/// The maximum number of completions of a ring that are remembered, in case they are never reaped.
const MOST_POSTED: usize = 4096;
/// The maximum number of entries of each table of this module.
const MOST_REMEMBERED: usize = 1 << 16;

/// The lints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lint {
    Overflow,
    NearlyOverflow,
    QueueFull,
    Spurious,
    Single,
    NeverCompleted,
    NeverReaped,
    NotArmedAgain,
    NoBuffers,
    ShortTransfer,
    Changed,
    Unmapped,
    Freed,
    SameUserData,
}

impl Lint {
    /// Returns the finding in words, and the advice.
    fn explained(self) -> (&'static str, &'static str) {
        match self {
            Lint::Overflow => (
                "completions that found the completion queue full",
                "reap sooner, or ask for more entries (IORING_SETUP_CQSIZE)",
            ),
            Lint::NearlyOverflow => (
                "times that the completion queue became more than three quarters full",
                "reap sooner, or ask for more entries (IORING_SETUP_CQSIZE)",
            ),
            Lint::QueueFull => (
                "calls of io_uring_enter that found the submission queue full, as the call before did",
                "submit sooner, or ask for more entries",
            ),
            Lint::Spurious => (
                "calls of io_uring_enter that submitted nothing and had nothing to fetch",
                "enter to submit what is in the queue, or to wait",
            ),
            Lint::Single => (
                "calls of io_uring_enter that submitted one request right after another such call, without a wait",
                "submit them together",
            ),
            Lint::NeverCompleted => ("requests that never completed", "wait for them, or cancel them"),
            Lint::NeverReaped => ("completions that were never reaped", "look at the queue up to its tail"),
            Lint::NotArmedAgain => (
                "multishot requests that ended and were not armed again",
                "submit them again after a completion without IORING_CQE_F_MORE",
            ),
            Lint::NoBuffers => (
                "requests that found no buffer in their group (ENOBUFS)",
                "give buffers back sooner, or make the group larger",
            ),
            Lint::ShortTransfer => ("short transfers whose rest nobody asked for", "submit the rest"),
            Lint::Changed => (
                "requests whose data was changed before they gave it back",
                "leave it alone until the completion; of a zero-copy send, until the notification",
            ),
            Lint::Unmapped => (
                "requests whose memory was unmapped before they gave it back",
                "keep it until the completion; of a zero-copy send, until the notification",
            ),
            Lint::Freed => (
                "requests whose memory was freed before they gave it back, or was too short for them",
                "keep it until the completion; of a zero-copy send, until the notification",
            ),
            Lint::SameUserData => (
                "requests with the user_data of another one that was under way",
                "their completions cannot be told apart",
            ),
        }
    }
}

#[derive(Default)]
struct Found {
    count: u64,
    examples: Vec<String>,
}

type RingKey = (u32, u32);

/// A request by its place, number and operation.
#[derive(Clone, Copy)]
struct Named(Place, u64, &'static str);

impl Named {
    fn of(request: &Request) -> Named {
        Named(request.place, request.serial, request.op.name)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named(Place { process, thread, ring, .. }, serial, name) = self;
        write!(f, "[{process}/{thread}] ring {ring} #{serial} {name}")
    }
}

/// The remembered state of a ring.
#[derive(Default)]
struct RingState {
    cq_entries: u32,
    sq_entries: u32,
    nearly_full: bool,
    was_full: bool,
    was_single: bool,
    single: u64,
    first_single: String,
    newest: Option<Named>,
    /// The requests whose completions were posted, the newest last.
    posted: VecDeque<Named>,
}

/// A transfer that was short.
struct Short {
    rest_from: Option<u64>,
    until: Option<u64>,
    writes: bool,
    example: String,
}

/// The summary.
pub struct Lints {
    sink: Sink,
    sample: usize,
    found: Vec<(Lint, Found)>,
    groups: HashMap<(RingKey, u16), u64>,
    rings: HashMap<RingKey, RingState>,
    user_data: HashMap<(RingKey, u64), u64>,
    ended: HashMap<(RingKey, u8, i32), String>,
    short: HashMap<(RingKey, u8, i32), Short>,
    requests: u64,
}

fn key(place: Place) -> RingKey {
    (place.process, place.ring)
}

fn is_error(res: i32, errnos: &[u32]) -> bool {
    errnos.iter().any(|errno| res == -(*errno as i32))
}

impl Lints {
    /// Returns a summary that is printed to `to` at the end.
    pub fn new(to: impl Write + 'static, sample: usize) -> Lints {
        Lints {
            sink: Sink::new(to),
            sample,
            found: Vec::new(),
            groups: HashMap::new(),
            rings: HashMap::new(),
            user_data: HashMap::new(),
            ended: HashMap::new(),
            short: HashMap::new(),
            requests: 0,
        }
    }

    fn find(&mut self, lint: Lint, count: u64, example: impl FnOnce() -> String) {
        let place = match self.found.binary_search_by_key(&lint, |(lint, _)| *lint) {
            Ok(place) => place,
            Err(place) => {
                self.found.insert(place, (lint, Found::default()));
                place
            }
        };
        let found = &mut self.found[place].1;
        found.count += count;
        if found.examples.len() < EXAMPLES {
            found.examples.push(example());
        }
    }

    /// Returns a text such as `[100/100] ring 3 #12 READ(...) = 220`.
    fn named(sample: usize, request: &Request, result: Option<&Completion>) -> String {
        let Place { process, thread, ring, .. } = request.place;
        let mut text = format!("[{process}/{thread}] ring {ring} #{} ", request.serial);
        let decoder = Decoder { sample };
        decoder.request(&mut text, request, result);
        if let Some(result) = result {
            text.push_str(" = ");
            decoder.result(&mut text, Some(request), result);
        }
        text
    }

    fn submitted(&mut self, place: Place, request: &Request, model: &Model) {
        self.requests += 1;
        let sample = self.sample;
        let name = || Lints::named(sample, request, None);
        let ring = self.rings.entry(key(place)).or_default();
        ring.newest = Some(Named::of(request));
        let user_data = request.sqe.user_data;
        if user_data != 0 {
            let before = self.user_data.insert((key(place), user_data), request.serial);
            let requests = model.ring(place);
            let under_way = |serial| requests.is_some_and(|ring| ring.is_under_way(serial));
            if before.is_some_and(under_way) {
                self.find(Lint::SameUserData, 1, name);
            }
        }
        self.ended.remove(&(key(place), request.sqe.opcode, request.file));
        self.rest_asked_for(place, request);
    }

    fn rest_asked_for(&mut self, place: Place, request: &Request) {
        let file = (key(place), request.sqe.opcode, request.file);
        let Some(short) = self.short.get(&file) else { return };
        let offset = asked(request).and_then(|asked| asked.offset);
        let skips = offset.is_some() && offset >= short.until && short.until.is_some();
        let asks = offset.is_none() || short.rest_from.is_none() || offset == short.rest_from;
        if !skips && !asks {
            return;
        }
        if let Some(short) = self.short.remove(&file)
            && skips
        {
            self.find(Lint::ShortTransfer, 1, || short.example);
        }
    }

    /// Checks a completion, whether it is the request's last or not.
    fn posted(&mut self, request: &Request, completion: &Completion, model: &Model) {
        let sample = self.sample;
        let name = || Lints::named(sample, request, Some(completion));
        if is_error(completion.res, &[ENOBUFS]) && u32::from(request.sqe.flags) & IOSQE_BUFFER_SELECT != 0 {
            *self.groups.entry((key(request.place), request.sqe.buf_index)).or_default() += 1;
            self.find(Lint::NoBuffers, 1, name);
        }
        if completion.has_overflowed() {
            self.find(Lint::Overflow, 1, name);
        }
        let is_told = request.completions().rev().skip(1).any(|before| before.harm().is_some());
        if let Some(harm) = completion.harm().filter(|_| !is_told) {
            let lint = match harm {
                Harm::Changed => Lint::Changed,
                Harm::Unmapped => Lint::Unmapped,
                Harm::Freed => Lint::Freed,
            };
            self.find(lint, 1, name);
        }
        if completion.is_skipped() {
            return;
        }
        let ring = self.rings.entry(key(completion.place)).or_default();
        ring.post(Named::of(request));
        // If the queue has room for all requests in flight, it may fill: programs ask for as many entries as they need.
        let (ready, entries) = (u64::from(completion.cq_ready), u64::from(ring.cq_entries));
        let under_way = model.ring(completion.place).map_or(0, |ring| ring.under_way() as u64);
        // The request itself is still counted among the requests in flight.
        let others = under_way.saturating_sub(u64::from(request.is_done()));
        let may_overflow = ready + others > entries || request.is_multishot();
        let is_nearly_full = entries != 0 && ready * 4 > entries * 3 && may_overflow;
        let was_nearly_full = std::mem::replace(&mut ring.nearly_full, is_nearly_full);
        if is_nearly_full && !was_nearly_full {
            self.find(Lint::NearlyOverflow, 1, name);
        }
    }

    fn entered(&mut self, place: Place, entered: &Entered, model: &Model) {
        let ring = self.rings.entry(key(place)).or_default();
        let after = match &ring.newest {
            None => format!("[{}/{}] ring {}, before any request", place.process, place.thread, place.ring),
            Some(newest) => format!("{newest} was the newest request"),
        };
        let is_full = ring.sq_entries > 1 && entered.sq_ready >= ring.sq_entries;
        let was_full = std::mem::replace(&mut ring.was_full, is_full);
        let is_single = entered.result == 1 && entered.min_complete == 0;
        let under_way = model.ring(place).map_or(0, |ring| ring.under_way());
        // If all earlier completions were reaped, the program may have made this request because of them.
        let is_alone = u64::from(entered.cq_ready) + under_way as u64 <= 1;
        ring.single(is_single, is_alone, &after);
        if is_full && was_full {
            self.find(Lint::QueueFull, 1, || after.clone());
        }
        if is_spurious(entered) {
            self.find(Lint::Spurious, 1, || after);
        }
    }

    fn finished(&mut self, request: &Request) {
        let sample = self.sample;
        let result = request.result();
        let name = || Lints::named(sample, request, result);
        let user_data = (key(request.place), request.sqe.user_data);
        if self.user_data.get(&user_data) == Some(&request.serial) {
            self.user_data.remove(&user_data);
        }
        if !request.is_done() {
            // A multishot request that has had results is still armed, as it should be.
            if !request.is_multishot() && !request.may_be_done() {
                self.find(Lint::NeverCompleted, 1, name);
            }
            return;
        }
        let Some(result) = result else { return };
        if request.sqe.opcode == CLOSE && result.res == 0 && request.sqe.file_index == 0 {
            self.file_closed(request.place.process, request.sqe.fd);
        }
        let file = (key(request.place), request.sqe.opcode, request.file);
        let is_over =
            result.res == 0 || is_error(result.res, &[ECANCELED, ECONNRESET, EPIPE, ENOTCONN, EBADF, ETIME]);
        if request.is_multishot() && !is_over && self.ended.len() < MOST_REMEMBERED {
            self.ended.insert(file, name());
        }
        let Some(asked) = asked(request).filter(|_| moves_bytes(request.op) && !request.is_multishot())
        else {
            return;
        };
        let moved = u64::try_from(result.res).unwrap_or(0);
        let matters = asked.writes || asked.offset.is_some();
        if moved != 0 && moved < asked.length && matters && self.short.len() < MOST_REMEMBERED {
            let rest_from = asked.offset.map(|offset| offset.saturating_add(moved));
            let until = asked.offset.map(|offset| offset.saturating_add(asked.length));
            self.short.insert(file, Short { rest_from, until, writes: asked.writes, example: name() });
        }
    }

    /// Notes that a descriptor was closed: a later file with the same number is another file.
    fn file_closed(&mut self, process: u32, fd: i32) {
        let is_on_it = |ring: &RingKey, file: i32| ring.0 == process && file == fd;
        self.ended.retain(|(ring, _, file), _| !is_on_it(ring, *file));
        let short: Vec<_> = self.short.extract_if(|(ring, _, file), _| is_on_it(ring, *file)).collect();
        self.never_asked_for(short);
    }

    /// Reports the short writes among transfers whose rest cannot be requested any more.
    fn never_asked_for(&mut self, mut short: Vec<((RingKey, u8, i32), Short)>) {
        short.sort_by_key(|(file, _)| *file);
        // A short read may have met the end of its file.
        for (_, short) in short.into_iter().filter(|(_, short)| short.writes) {
            self.find(Lint::ShortTransfer, 1, || short.example);
        }
    }

    /// Checks the number of completions that are left in the queue of a ring that ends.
    fn left(&mut self, of: RingKey, cq_ready: u32) {
        let posted = self.rings.get(&of).map(|ring| &ring.posted);
        let oldest = posted.and_then(|posted| posted.get(posted.len().checked_sub(cq_ready as usize)?));
        let oldest = oldest.map_or_else(|| format!("[{}] ring {}", of.0, of.1), Named::to_string);
        if cq_ready != 0 {
            self.find(Lint::NeverReaped, cq_ready.into(), || oldest);
        }
    }

    /// Reports the findings about a ring that has ended, or that is left when the trace ends.
    fn ring_ended(&mut self, of: RingKey) {
        let Some(ring) = self.rings.remove(&of) else { return };
        if ring.single >= MANY_SINGLE {
            self.find(Lint::Single, ring.single, || ring.first_single.clone());
        }
        self.user_data.retain(|(ring, _), _| *ring != of);
        let mut ended: Vec<_> = self.ended.extract_if(|(ring, ..), _| *ring == of).collect();
        ended.sort();
        for (_, example) in ended {
            self.find(Lint::NotArmedAgain, 1, || example);
        }
        let short: Vec<_> = self.short.extract_if(|(ring, ..), _| *ring == of).collect();
        self.never_asked_for(short);
    }

    fn print(&self) -> String {
        let mut text = format!("health, requests: {}\n", self.requests);
        if self.found.is_empty() {
            text.push_str("  nothing was found\n");
        }
        for (lint, found) in &self.found {
            let (what, advice) = lint.explained();
            let _ = writeln!(text, "  {what}: {}\n    ({advice})", found.count);
            if *lint == Lint::NoBuffers {
                self.print_groups(&mut text);
            }
            for example in &found.examples {
                let _ = writeln!(text, "      {example}");
            }
        }
        text
    }

    fn print_groups(&self, text: &mut String) {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort();
        for (((process, ring), group), count) in groups {
            let _ = writeln!(text, "    [{process}] ring {ring}, group {group}: {count}");
        }
    }
}

impl RingState {
    fn post(&mut self, request: Named) {
        if self.posted.len() == MOST_POSTED {
            self.posted.pop_front();
        }
        self.posted.push_back(request);
    }

    /// Counts calls that submit one request without waiting, if the call before did the same, and the program had both
    /// requests at the same time.
    fn single(&mut self, is_single: bool, is_alone: bool, after: &str) {
        if is_single && self.was_single && !is_alone {
            if self.single == 0 {
                after.clone_into(&mut self.first_single);
            }
            self.single += 1;
        }
        self.was_single = is_single;
    }
}

impl Listener for Lints {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        match told {
            Told::RingMade(made) if made.result >= 0 => {
                self.ring_ended(key(place));
                let ring = self.rings.entry(key(place)).or_default();
                (ring.sq_entries, ring.cq_entries) = (made.sq_entries, made.cq_entries);
            }
            Told::RingEnded(ended) => {
                self.left(key(place), ended.cq_ready);
                self.ring_ended(key(place));
            }
            Told::Ended(process) | Told::Started(process) => {
                let mut rings: Vec<_> = self.rings.keys().copied().collect();
                rings.retain(|(of, _)| *of == process.id);
                rings.sort_unstable();
                rings.into_iter().for_each(|ring| self.ring_ended(ring));
            }
            Told::Entered(entered) => self.entered(place, entered, model),
            Told::Submitted(request) => self.submitted(place, request, model),
            Told::Completed(request, completion) => self.posted(request, completion, model),
            Told::Requests(requests) => requests.iter().for_each(|request| self.finished(request)),
            _ => {}
        }
    }
}

impl Output for Lints {
    fn end(&mut self, _model: &Model) {
        let mut rings: Vec<_> = self.rings.keys().copied().collect();
        rings.sort_unstable();
        rings.into_iter().for_each(|ring| self.ring_ended(ring));
        self.sink.put(self.print().as_bytes());
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
