//! One line of JSON for each finished event. `docs/trace-json.md` describes the lines, `docs/trace-json.schema.json`
//! specifies them.

use anyring_chaos_plan::Fault;
use std::io;
use std::rc::Rc;

use anyring_engine::abi::names::{CQE_FLAGS, SQE_FLAGS};
use anyring_engine::support::{ENTER_FLAGS, FEATURES, SETUP_FLAGS};
use anyring_trace::event::{
    Entered, Registered, RingFound, RingMade, UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS,
    UNSEEN_REAPED, UNSEEN_REQUESTS_OF_COMPLETIONS, UNSEEN_SQ_THREAD,
};
use linux_raw_sys::io_uring::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER};
use serde::Serialize;

use crate::decode::Decoder;
use crate::filter::Filter;
use crate::memory::Memory;
use crate::model::{
    self, Completion, Harm, Listener, Model, Place, Process, Relation, Request, Told, Way, relation,
};
use crate::output::{Destination, Output, Sink};
use crate::{calls, names, transfer};

/// An output of lines of JSON.
pub struct Json {
    sink: Sink,
    filter: Rc<Filter>,
    sample: usize,
}

#[derive(Serialize)]
struct Line<T> {
    #[serde(rename = "type")]
    kind: &'static str,
    time_ns: u64,
    process: u32,
    #[serde(skip_serializing_if = "is_zero")]
    thread: u32,
    #[serde(skip_serializing_if = "is_zero")]
    ring: u32,
    #[serde(flatten)]
    what: T,
}

#[derive(Serialize)]
struct Started<'a> {
    program: &'a str,
    arguments: &'a [String],
    #[serde(skip_serializing_if = "is_zero")]
    parent: u32,
    engine: &'static str,
}

#[derive(Serialize)]
struct Ended {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    silent: bool,
}

#[derive(Serialize)]
struct Made {
    result: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    entries: u32,
    flags: Vec<String>,
    features: Vec<String>,
    sq_entries: u32,
    cq_entries: u32,
    sq_thread_cpu: u32,
    sq_thread_idle_ms: u32,
    engine: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Found {
    descriptor: i32,
    engine: &'static str,
    sq_entries: u32,
    cq_entries: u32,
    submitted_before: u32,
    completed_before: u32,
}

#[derive(Serialize)]
struct RingEnded {
    under_way: u64,
    cq_ready: u32,
}

#[derive(Serialize)]
struct Register {
    registration: String,
    count: u32,
    result: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    duration_ns: u64,
    text: String,
}

#[derive(Serialize)]
struct Enter {
    to_submit: u32,
    min_complete: u32,
    flags: Vec<String>,
    result: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    duration_ns: u64,
    sq_ready: u32,
    cq_ready: u32,
}

#[derive(Serialize)]
struct Unseen {
    count: u64,
    why: &'static str,
}

#[derive(Serialize)]
struct Injected {
    /// The name of the call, without its prefix.
    about: &'static str,
    call: u64,
    fault: &'static str,
}

#[derive(Serialize)]
struct Stray {
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<u64>,
    result: Finish,
}

#[derive(Serialize)]
struct Shot {
    serial: u64,
    operation: &'static str,
    number: u64,
    text: String,
    result: Finish,
}

#[derive(Serialize)]
struct Whole<'a> {
    serial: u64,
    operation: &'static str,
    opcode: u8,
    arguments: Vec<Argument>,
    sqe_flags: Vec<String>,
    user_data: String,
    #[serde(skip_serializing_if = "is_zero16")]
    personality: u16,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    linked_behind: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_by: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out_by: Option<u64>,
    state: &'static str,
    multishot: bool,
    results: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notification: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_thread: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_length: Option<u32>,
    drained: bool,
    steps: Vec<Step>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    caller: &'a [String],
}

#[derive(Serialize)]
struct Argument {
    name: &'static str,
    value: String,
    text: String,
}

#[derive(Serialize)]
struct Step {
    time_ns: u64,
    step: &'static str,
    value: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'static str>,
}

#[derive(Serialize)]
struct Finish {
    time_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    thread: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<u64>,
    res: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    flags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer: Option<u32>,
    user_data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor_name: Option<String>,
    skipped: bool,
    overflowed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    sampled: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    submitted_earlier: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'static str>,
    cq_ready: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero16(number: &u16) -> bool {
    *number == 0
}

fn positive(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// Formats a 64-bit number that is not a count. Readers of JSON often keep only 53 bits of a number.
fn hex(number: u64) -> String {
    format!("{number:#x}")
}

fn error(res: i32) -> Option<String> {
    let number = res.checked_neg().filter(|number| (1..4096).contains(number))?;
    Some(names::errno(number).unwrap_or_else(|| number.to_string()))
}

fn finish(completion: &Completion, request: Option<&Request>) -> Finish {
    let has_buffer = completion.flags & IORING_CQE_F_BUFFER != 0;
    let bits = if has_buffer { completion.flags & 0xffff } else { completion.flags };
    Finish {
        time_ns: completion.place.time_ns,
        thread: completion.place.thread,
        latency_ns: request.map(|request| request.latency_ns(completion)),
        res: completion.res,
        error: error(completion.res).filter(|_| !completion.is_notification()),
        flags: names::list(CQE_FLAGS, bits),
        buffer: has_buffer.then_some(completion.flags >> IORING_CQE_BUFFER_SHIFT),
        user_data: hex(completion.user_data),
        descriptor_name: completion.name.as_deref().map(str::to_owned),
        skipped: completion.is_skipped(),
        overflowed: completion.has_overflowed(),
        sampled: completion.is_sampled(),
        submitted_earlier: completion.is_of_earlier(),
        memory: completion.harm().map(|harm| match harm {
            Harm::Changed => "changed",
            Harm::Unmapped => "unmapped",
            Harm::Freed => "freed",
        }),
        cq_ready: completion.cq_ready,
    }
}

impl Json {
    /// Returns an output to `to`, with `sample` bytes of data at most.
    pub fn new(to: Destination, filter: Rc<Filter>, sample: usize) -> Json {
        Json { sink: Sink::to(to), filter, sample }
    }

    fn line(&mut self, kind: &'static str, place: Place, what: impl Serialize) {
        let Place { time_ns, process, thread, ring } = place;
        let line = Line { kind, time_ns, process, thread, ring, what };
        let mut line = serde_json::to_vec(&line).expect("numbers, strings and lists of them");
        line.push(b'\n');
        self.sink.put_of(process, &line);
    }

    fn text(&self, request: &Request, result: Option<&Completion>) -> String {
        let mut text = String::new();
        Decoder { sample: self.sample }.request(&mut text, request, result);
        text
    }

    fn request(&mut self, chain: &[Box<Request>], member: usize) {
        let request = &chain[member];
        let related = relation(chain, member);
        let result = request.result();
        let way = request.way();
        let arguments = Decoder { sample: self.sample }.arguments(request, result).into_iter();
        let whole = Whole {
            serial: request.serial,
            operation: request.op.name,
            opcode: request.sqe.opcode,
            arguments: arguments
                .map(|shown| Argument { name: shown.name, value: hex(shown.value), text: shown.text })
                .collect(),
            sqe_flags: names::list(SQE_FLAGS, request.sqe.flags.into()),
            user_data: hex(request.sqe.user_data),
            personality: request.sqe.personality,
            text: self.text(request, result),
            linked_behind: positive(request.behind),
            chain: positive(request.head),
            broken_by: related.and_then(|related| match related {
                Relation::BrokenBy(serial) => Some(serial),
                _ => None,
            }),
            watches: related.and_then(|related| match related {
                Relation::Watches(serial) => Some(serial),
                _ => None,
            }),
            timed_out_by: related.and_then(|related| match related {
                Relation::TimedOutBy(serial) => Some(serial),
                _ => None,
            }),
            state: match () {
                () if request.is_done() => "done",
                () if request.may_be_done() => "unseen",
                () => "unfinished",
            },
            multishot: request.is_multishot(),
            results: request.count(),
            bytes: transfer::moves_bytes(request.op).then_some(request.bytes()),
            result: result.map(|result| finish(result, Some(request))),
            notification: request.notification().map(|completion| finish(completion, Some(request))),
            way: way.map(|way| match way {
                Way::Inline => "inline",
                Way::Readiness => "readiness",
                Way::Caller => "caller",
                Way::Worker(_) => "worker",
                Way::Aio => "aio",
                Way::Train(_) => "train",
                Way::Armed => "armed",
                Way::Queued => "queued",
            }),
            worker_thread: if let Some(Way::Worker(thread)) = way { thread.map(u32::from) } else { None },
            train_length: if let Some(Way::Train(length)) = way { Some(length) } else { None },
            drained: request.was_deferred(),
            steps: request.steps().iter().map(Json::step).collect(),
            caller: &request.caller,
        };
        self.line("request", request.place, whole);
    }

    fn step(stepped: &model::Stepped) -> Step {
        let injected = stepped.step == anyring_trace::event::Step::Injected;
        let fault = injected.then(|| Fault::of(stepped.value as u16).map_or("unknown", Fault::name));
        Step { time_ns: stepped.time_ns, step: stepped.step.name(), value: stepped.value, fault }
    }

    fn shot(&mut self, place: Place, request: &Request, completion: &Completion) {
        let shot = Shot {
            serial: request.serial,
            operation: request.op.name,
            number: request.count(),
            text: self.text(request, Some(completion)),
            result: finish(completion, Some(request)),
        };
        self.line("shot", place, shot);
    }

    fn started(&mut self, place: Place, process: &Process) {
        let Process { program, arguments, parent, .. } = process;
        let started = Started { program, arguments, parent: *parent, engine: calls::engine(process.engine) };
        self.line("process_started", place, started);
    }

    fn made(&mut self, place: Place, made: &RingMade) {
        let mut text = String::new();
        calls::setup(&mut text, made);
        let made = Made {
            result: made.result,
            error: error(made.result),
            entries: made.entries,
            flags: names::list(SETUP_FLAGS, made.flags),
            features: names::list(FEATURES, made.features),
            sq_entries: made.sq_entries,
            cq_entries: made.cq_entries,
            sq_thread_cpu: made.sq_thread_cpu,
            sq_thread_idle_ms: made.sq_thread_idle_ms,
            engine: calls::engine(made.engine),
            text,
        };
        self.line("ring_made", place, made);
    }

    fn found(&mut self, place: Place, found: &RingFound) {
        let found = Found {
            descriptor: found.fd,
            engine: calls::engine(found.engine),
            sq_entries: found.sq_entries,
            cq_entries: found.cq_entries,
            submitted_before: found.submitted,
            completed_before: found.posted,
        };
        self.line("ring_found", place, found);
    }

    fn registered(&mut self, place: Place, registered: &Registered, memory: &Memory, model: &Model) {
        let mut text = String::new();
        calls::register(&mut text, model.descriptor(place), registered, memory, self.sample);
        let mut registration = String::new();
        calls::registration(&mut registration, registered.opcode);
        let Registered { count, result, duration_ns, .. } = *registered;
        let error = error(result);
        self.line("registered", place, Register { registration, count, result, error, duration_ns, text });
    }

    fn entered(&mut self, place: Place, entered: &Entered) {
        let Entered { to_submit, min_complete, flags, result, duration_ns, sq_ready, cq_ready } = *entered;
        let (flags, error) = (names::list(ENTER_FLAGS, flags), error(result));
        let enter = Enter { to_submit, min_complete, flags, result, error, duration_ns, sq_ready, cq_ready };
        self.line("entered", place, enter);
    }
}

impl Listener for Json {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        if !self.filter.wants(place, told) {
            return;
        }
        match told {
            Told::Started(process) => self.started(place, process),
            Told::Ended(_) => self.line("process_ended", place, Ended { silent: false }),
            Told::Gone(_) => self.line("process_ended", place, Ended { silent: true }),
            Told::RingMade(made) => self.made(place, made),
            Told::RingFound(found) => self.found(place, found),
            Told::RingEnded(ended) => {
                let (under_way, cq_ready) = (ended.in_flight, ended.cq_ready);
                self.line("ring_ended", place, RingEnded { under_way, cq_ready });
            }
            Told::Registered(registered, memory) => self.registered(place, registered, memory, model),
            Told::Entered(entered) => self.entered(place, entered),
            Told::Unseen(unseen) => {
                let why = match unseen.why {
                    UNSEEN_SQ_THREAD => "sq_thread",
                    UNSEEN_REAPED => "reaped",
                    UNSEEN_BETWEEN_LOOKS => "between_looks",
                    UNSEEN_POSTED_BETWEEN_LOOKS => "posted_between_looks",
                    UNSEEN_REQUESTS_OF_COMPLETIONS => "requests_of_completions",
                    _ => "unknown",
                };
                self.line("unseen", place, Unseen { count: unseen.count, why });
            }
            Told::Injected(fault, call) => {
                self.line(
                    "injected",
                    place,
                    Injected { about: calls::name(*fault), call: *call, fault: fault.name() },
                );
            }
            Told::Submitted(_) | Told::Completed(..) => {}
            Told::Shot(request, completion) => self.shot(place, request, completion),
            Told::Requests(chain) => {
                for (member, request) in chain.iter().enumerate() {
                    if self.filter.wants_request(request) {
                        self.request(chain, member);
                    }
                }
            }
            Told::Stray(serial, completion) => {
                let stray = Stray { serial: positive(*serial), result: finish(completion, None) };
                self.line("stray", place, stray);
            }
        }
    }
}

impl Output for Json {
    fn end(&mut self, _model: &Model) {}

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
