//! One line for each finished request; chains as trees.

use std::fmt::Write as _;
use std::io;
use std::rc::Rc;

use anyring_trace::event::{
    RingEnded, RingFound, UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REAPED,
    UNSEEN_REQUESTS_OF_COMPLETIONS, UNSEEN_SQ_THREAD, Unseen,
};

use crate::calls;
use crate::decode::Decoder;
use crate::filter::Filter;
use crate::model::{Completion, Listener, Model, Place, Process, Relation, Request, Told, Way, relation};
use crate::output::{Destination, Output, Sink};
use crate::quote;

/// The options: what is printed, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The maximum number of bytes of data that are shown.
    pub sample: usize,
    /// The output is a terminal that shows colours.
    pub colours: bool,
    /// Calls of `io_uring_enter` have lines, too.
    pub enters: bool,
    /// The time that a line begins with.
    pub time: Time,
}

/// The time that a line begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    /// Seconds since the trace began.
    #[default]
    SinceStart,
    /// Seconds since the time of the line before, which may be later: lines are in the order of completion, and times are those
    /// of submissions.
    SinceLine,
    /// The time of day.
    OfDay {
        /// The time of day at the beginning of the monotonic clock, in nanoseconds; whole days are ignored.
        begun_ns: u64,
        /// With microseconds.
        microseconds: bool,
    },
}

impl Time {
    /// Prints a time by the monotonic clock, of a trace that began at `begun_ns` and whose last line had `before_ns`.
    fn print(self, line: &mut String, time_ns: u64, begun_ns: u64, before_ns: Option<u64>) {
        const SECOND_NS: u64 = 1_000_000_000;
        const DAY_NS: u64 = 24 * 60 * 60 * SECOND_NS;
        let seconds = |line: &mut String, sign: &str, time_ns: u64| {
            let _ = write!(line, "{sign}{}.{:06}", time_ns / SECOND_NS, time_ns / 1000 % 1_000_000);
        };
        match self {
            Time::SinceStart => seconds(line, "", time_ns.saturating_sub(begun_ns)),
            Time::SinceLine => {
                let before_ns = before_ns.unwrap_or(time_ns);
                seconds(line, if time_ns < before_ns { "-" } else { "" }, time_ns.abs_diff(before_ns));
            }
            Time::OfDay { begun_ns, microseconds } => {
                let time_ns = (begun_ns % DAY_NS + time_ns) % DAY_NS;
                let minutes = time_ns / SECOND_NS / 60;
                let _ =
                    write!(line, "{:02}:{:02}:{:02}", minutes / 60, minutes % 60, time_ns / SECOND_NS % 60);
                if microseconds {
                    let _ = write!(line, ".{:06}", time_ns / 1000 % 1_000_000);
                }
            }
        }
    }
}

/// An output of lines of text.
pub struct Text {
    sink: Sink,
    filter: Rc<Filter>,
    options: Options,
    line: String,
    origin: Origin,
    /// The process that the current line is about.
    process: u32,
    /// The time of the last line.
    before_ns: Option<u64>,
}

/// The beginning of a line, `[pid/tid] ring 3`, which is in most cases that of the line before.
#[derive(Default)]
struct Origin {
    process: u32,
    thread: u32,
    ring: u32,
    text: String,
}

impl Origin {
    fn of(&mut self, place: Place) -> &str {
        let Place { process, thread, ring, .. } = place;
        if self.text.is_empty() || (self.process, self.thread, self.ring) != (process, thread, ring) {
            *self = Origin { process, thread, ring, text: Origin::text(place) };
        }
        &self.text
    }

    fn text(place: Place) -> String {
        let mut text = format!("[{}", place.process);
        if place.thread != 0 {
            let _ = write!(text, "/{}", place.thread);
        }
        text.push(']');
        if place.ring != 0 {
            let _ = write!(text, " ring {}", place.ring);
        }
        text
    }
}

#[derive(Clone, Copy)]
enum Colour {
    Bold,
    Dim,
    Red,
    Yellow,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Colour::Bold => "\x1b[1m",
            Colour::Dim => "\x1b[2m",
            Colour::Red => "\x1b[31m",
            Colour::Yellow => "\x1b[33m",
        }
    }
}

/// The position of a line in the tree of its chain.
#[derive(Clone, Copy)]
enum Branch {
    Head,
    Member,
    Last,
}

impl Text {
    /// Returns an output to `to`.
    pub fn new(to: Destination, filter: Rc<Filter>, options: Options) -> Text {
        Text {
            sink: Sink::to(to),
            filter,
            options,
            line: String::new(),
            origin: Origin::default(),
            process: 0,
            before_ns: None,
        }
    }

    fn decoder(&self) -> Decoder {
        Decoder { sample: self.options.sample }
    }

    fn coloured(&mut self, colour: Colour, print: impl FnOnce(&mut String)) {
        if self.options.colours {
            self.line.push_str(colour.code());
        }
        print(&mut self.line);
        if self.options.colours {
            self.line.push_str("\x1b[0m");
        }
    }

    fn end_line(&mut self) {
        self.line.push('\n');
        self.sink.put_of(self.process, self.line.as_bytes());
        self.line.clear();
    }

    /// Prints `[pid/tid] ring 3 #12 0.000123 `.
    fn prefix(&mut self, place: Place, serial: u64, model: &Model) {
        let before_ns = self.before_ns.replace(place.time_ns);
        let time = self.options.time;
        self.process = place.process;
        let mut origin = std::mem::take(&mut self.origin);
        self.coloured(Colour::Dim, |line| {
            line.push_str(origin.of(place));
            if serial != 0 {
                let _ = write!(line, " #{serial}");
            }
            line.push(' ');
            time.print(line, place.time_ns, model.begun_ns(), before_ns);
            line.push(' ');
        });
        self.origin = origin;
    }

    /// Prints `READ(...)`.
    fn request(&mut self, request: &Request, result: Option<&Completion>) {
        let start = self.line.len();
        self.decoder().request(&mut self.line, request, result);
        if self.options.colours
            && let Some(name) = self.line[start..].find('(')
        {
            self.line.insert_str(start + name, "\x1b[0m");
            self.line.insert_str(start, Colour::Bold.code());
        }
    }

    /// Prints ` = 220`.
    fn result(&mut self, request: Option<&Request>, completion: &Completion) {
        let decoder = self.decoder();
        self.line.push_str(" = ");
        if completion.res < 0 && !completion.is_notification() {
            self.coloured(Colour::Red, |line| decoder.result(line, request, completion));
        } else {
            decoder.result(&mut self.line, request, completion);
        }
    }

    /// Prints ` <12us>`; ` <up to 12us>` if the completion was seen by a look from outside; ` <at least 12us>` if the submission
    /// was not seen.
    fn latency(&mut self, request: &Request, completion: &Completion) {
        let latency_ns = request.latency_ns(completion);
        self.coloured(Colour::Dim, |line| {
            line.push_str(match completion {
                _ if completion.is_of_earlier() => " <at least ",
                _ if completion.is_sampled() => " <up to ",
                _ => " <",
            });
            quote::duration(line, latency_ns);
            line.push('>');
        });
    }

    /// Prints the end of a request without a known result.
    fn without_result(&mut self, request: &Request) {
        if request.is_lost() {
            self.line.push_str(" = ? [completion not seen]");
        } else if request.may_be_done() {
            self.line.push_str(" = ? [no CQE asked for]");
        } else {
            self.unfinished();
        }
    }

    fn unfinished(&mut self) {
        self.coloured(Colour::Yellow, |line| line.push_str(" <unfinished ...>"));
    }

    fn shot(&mut self, request: &Request, completion: &Completion, model: &Model) {
        self.prefix(completion.place, request.serial, model);
        self.request(request, Some(completion));
        self.result(Some(request), completion);
        let _ = write!(self.line, " [multishot #{}: {}]", request.serial, request.count());
        self.latency(request, completion);
        self.end_line();
    }

    fn finished(&mut self, chain: &[Box<Request>], member: usize, branch: Branch, model: &Model) {
        let request = &chain[member];
        self.prefix(request.place, request.serial, model);
        self.line.push_str(match branch {
            Branch::Head => "",
            Branch::Member => "├─ ",
            Branch::Last => "└─ ",
        });
        let result = request.result();
        self.request(request, result.filter(|_| !request.is_multishot() || request.is_done()));
        match result {
            Some(result) if request.is_done() || !request.is_multishot() => {
                self.result(Some(request), result);
                self.life(request, "ended after ");
                self.latency(request, result);
                self.notification(request, result);
            }
            _ => {
                self.without_result(request);
                self.life(request, "");
            }
        }
        self.relation(chain, member);
        self.way(request);
        self.injected(request);
        self.end_line();
        self.caller(request);
    }

    /// Prints the frames of the call that submitted the request, one per line.
    fn caller(&mut self, request: &Request) {
        for frame in &*request.caller {
            self.coloured(Colour::Dim, |line| {
                let _ = write!(line, "    > {frame}");
            });
            self.end_line();
        }
    }

    fn life(&mut self, request: &Request, what: &str) {
        if request.is_multishot() {
            let _ = write!(self.line, " [multishot #{}: {what}{}]", request.serial, request.successes());
        }
    }

    /// Prints the second completion of a zero-copy send, if there is or will be one.
    fn notification(&mut self, request: &Request, result: &Completion) {
        let awaited = linux_raw_sys::io_uring::IORING_CQE_F_MORE;
        match request.notification() {
            Some(notification) => {
                self.line.push_str(", notif");
                if notification.res != 0 || notification.harm().is_some() {
                    self.result(Some(request), notification);
                }
                self.latency(request, notification);
            }
            None if result.flags & awaited != 0 => {
                self.line.push_str(", notif");
                self.unfinished();
            }
            None => {}
        }
    }

    fn relation(&mut self, chain: &[Box<Request>], member: usize) {
        let text = match relation(chain, member) {
            Some(Relation::BrokenBy(breaker)) => format!(" (chain broken by #{breaker})"),
            Some(Relation::Watches(watched)) => format!(" (watches #{watched})"),
            Some(Relation::TimedOutBy(timeout)) => format!(" (timed out by #{timeout})"),
            None => return,
        };
        self.coloured(Colour::Yellow, |line| line.push_str(&text));
    }

    fn way(&mut self, request: &Request) {
        if request.was_deferred() {
            self.line.push_str(" drained");
        }
        let Some(way) = request.way() else { return };
        let _ = match way {
            Way::Inline if !request.is_done() => return,
            Way::Inline => write!(self.line, " inline"),
            Way::Readiness if !request.is_done() => write!(self.line, " waits for readiness"),
            Way::Readiness => write!(self.line, " readiness"),
            Way::Caller => write!(self.line, " caller"),
            Way::Worker(Some(thread)) => write!(self.line, " worker {thread}"),
            Way::Worker(None) => write!(self.line, " worker"),
            Way::Aio => write!(self.line, " AIO"),
            Way::Train(others) => write!(self.line, " train of {others}"),
            Way::Armed => write!(self.line, " armed"),
            Way::Queued => write!(self.line, " queued"),
        };
    }

    fn injected(&mut self, request: &Request) {
        let mut between = "";
        for fault in request.injected() {
            let before = if between.is_empty() { " (injected: " } else { between };
            self.coloured(Colour::Yellow, |line| {
                let _ = write!(line, "{before}{}", fault.name());
            });
            between = ", ";
        }
        if !between.is_empty() {
            self.line.push(')');
        }
    }

    fn chain(&mut self, chain: &[Box<Request>], model: &Model) {
        let wanted = |member: &usize| self.filter.wants_request(&chain[*member]);
        let members: Vec<_> = (0..chain.len()).filter(wanted).collect();
        for member in &members {
            let (member, last) = (*member, members.last() == Some(member));
            let branch = match member {
                0 => Branch::Head,
                _ if last => Branch::Last,
                _ => Branch::Member,
            };
            self.finished(chain, member, branch, model);
        }
    }

    fn started(&mut self, process: &Process) {
        // A child of `fork` runs the same program as its parent.
        if process.parent != 0 {
            let engine = calls::engine(process.engine);
            let _ = write!(self.line, "forked off {} ({engine} engine)", process.parent);
            return;
        }
        self.line.push_str("started ");
        quote::bytes(&mut self.line, process.program.as_bytes(), 0, usize::MAX);
        self.line.push_str(", [");
        for (place, argument) in process.arguments.iter().enumerate() {
            self.line.push_str(if place == 0 { "" } else { ", " });
            quote::bytes(&mut self.line, argument.as_bytes(), 0, usize::MAX);
        }
        let _ = write!(self.line, "] ({} engine)", calls::engine(process.engine));
    }

    fn gone(&mut self, dropped: u64) {
        self.line.push_str("gone without a word: killed, perhaps");
        if dropped != 0 {
            let _ = write!(self.line, ", or its end is among the {dropped} events that were dropped");
        }
    }

    fn found(&mut self, found: &RingFound) {
        let RingFound { fd, engine, sq_entries, cq_entries, submitted, posted } = *found;
        let engine = calls::engine(engine);
        let _ = write!(self.line, "found: descriptor {fd}, {engine} engine");
        if sq_entries > 0 {
            let _ = write!(
                self.line,
                ", {sq_entries} SQ entries, {cq_entries} CQ entries; before: {submitted} submitted, {posted} completed"
            );
        }
    }

    fn unseen(&mut self, unseen: &Unseen) {
        let by_looks = match unseen.why {
            UNSEEN_BETWEEN_LOOKS => Some("requests not seen: they passed between two looks"),
            UNSEEN_POSTED_BETWEEN_LOOKS => Some("completions not seen: they passed between two looks"),
            UNSEEN_REQUESTS_OF_COMPLETIONS => Some("completions seen whose requests were not"),
            _ => None,
        };
        if let Some(what) = by_looks {
            let text = format!("{} {what}", unseen.count);
            return self.coloured(Colour::Yellow, |line| line.push_str(&text));
        }
        let why = match unseen.why {
            UNSEEN_SQ_THREAD => "the SQ thread took them between two looks",
            UNSEEN_REAPED => "the program reaped them before anybody looked",
            _ => "for a reason unknown here",
        };
        let text = format!("at least {} not seen: {why}", unseen.count);
        self.coloured(Colour::Yellow, |line| line.push_str(&text));
    }

    fn stray(&mut self, serial: u64, completion: &Completion) {
        let _ = write!(self.line, "CQE user_data={:#x}", completion.user_data);
        self.result(None, completion);
        self.line.push_str(match serial {
            0 if completion.is_sampled() => " (its submission was not seen)",
            0 => " (no request of this ring)",
            _ => " (its submission was not seen)",
        });
    }
}

impl Listener for Text {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        match told {
            Told::Submitted(_) | Told::Completed(..) => return,
            Told::Entered(_) if !self.options.enters => return,
            _ if !self.filter.wants(place, told) => return,
            Told::Shot(request, completion) => return self.shot(request, completion, model),
            Told::Requests(chain) => return self.chain(chain, model),
            _ => {}
        }
        let serial = if let Told::Stray(serial, _) = told { *serial } else { 0 };
        self.prefix(place, serial, model);
        match told {
            Told::Started(process) => self.started(process),
            Told::Ended(_) => self.line.push_str("ended"),
            Told::Gone(_) => self.gone(model.dropped()),
            Told::RingMade(made) => calls::setup(&mut self.line, made),
            Told::RingFound(found) => self.found(found),
            Told::RingEnded(ended) => {
                let RingEnded { in_flight, cq_ready, .. } = ended;
                let _ = write!(
                    self.line,
                    "ring ended, requests under way: {in_flight}, CQEs not reaped: {cq_ready}"
                );
            }
            Told::Registered(registered, memory) => {
                let ring = model.descriptor(place);
                calls::register(&mut self.line, ring, registered, memory, self.options.sample);
            }
            Told::Entered(entered) => calls::enter(&mut self.line, model.descriptor(place), entered),
            Told::Unseen(unseen) => self.unseen(unseen),
            Told::Injected(fault, call) => calls::injected(&mut self.line, *fault, *call),
            Told::Stray(serial, completion) => self.stray(*serial, completion),
            Told::Submitted(_) | Told::Completed(..) | Told::Shot(..) | Told::Requests(_) => {}
        }
        self.end_line();
    }
}

impl Output for Text {
    fn end(&mut self, _model: &Model) {}

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
