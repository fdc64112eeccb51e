//! The model of the traced processes: their names, files and rings, and the requests in flight.
//!
//! Events come in the order in which they were published. A request is passed on once nothing more comes of it, a chain
//! once nothing more comes of its members; each completion of a multishot request but the last is passed on
//! immediately.

use anyring_chaos_plan::Fault;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::num::NonZero;
use std::sync::Arc;

use anyring_engine::abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, Sqe};
use anyring_engine::ops;
use anyring_engine::request::op::{Caps, Op};
use anyring_engine::request::shown::{Kind, When};
use anyring_trace::event::{
    self, Body, CHANGED, Content, EARLIER, ENGINE_KERNEL, Entered, Event, FREED, LAST, OVERFLOWED,
    Registered, RingEnded, RingFound, RingMade, SAMPLED, SKIPPED, Step, Submitted, UNMAPPED, Unseen,
};
use linux_raw_sys::errno::{ECANCELED, ETIME};
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};

use crate::Callers;
use crate::callers::Calls;
use crate::memory::Memory;
use crate::workers::{Queued, Waiting};

/// The maximum number of requests of a ring that are kept in flight; if there are more, the oldest is given up.
const MOST_UNDER_WAY: usize = 1 << 18;
/// The maximum number of members of a chain that are passed on together.
const MOST_IN_CHAIN: usize = 1 << 12;
/// The maximum number of completions of a request that are kept.
const MOST_COMPLETIONS: usize = 4;
/// The maximum number of steps of a request that are kept.
const MOST_STEPS: usize = 16;
/// The maximum number of names of descriptors that are kept of a process.
const MOST_NAMES: usize = 1 << 20;
/// The maximum number of rings of a process that are kept.
const MOST_RINGS: usize = 1 << 16;
/// The maximum number of processes that are kept, including those that have ended, for their names.
const MOST_PROCESSES: usize = 1 << 16;

/// The time and the place of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The time by the monotonic clock.
    pub time_ns: u64,
    /// The process.
    pub process: u32,
    /// The thread; 0 if unknown.
    pub thread: u32,
    /// The ring's number; 0 for none.
    pub ring: u32,
}

/// A traced process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The process's id.
    pub id: u32,
    /// The program that the process runs.
    pub program: String,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// The process that forked it; 0 if the process continues after an `exec`.
    pub parent: u32,
    /// `ENGINE_*`; 0 if the start of the process was not seen.
    pub engine: u32,
    files: HashMap<i32, Arc<str>>,
    rings: BTreeMap<u32, Ring>,
}

/// A ring of a process.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// The call that made the ring, if it was seen.
    pub made: Option<RingMade>,
    /// The event that reported the ring, if it is watched from outside.
    pub found: Option<RingFound>,
    /// The requests in flight. They are boxed because a request has some hundred bytes, and a node of the map moves its
    /// entries.
    requests: BTreeMap<u64, Box<Request>>,
    chains: HashMap<u64, Chain>,
    open_chain: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    members: Vec<u64>,
    done: usize,
}

/// A request, in flight or done.
#[derive(Clone)]
pub struct Request {
    /// The time and place of the submission.
    pub place: Place,
    /// The request's number in its ring.
    pub serial: u64,
    /// The SQE that was submitted.
    pub sqe: Sqe,
    /// The row of the request's operation.
    pub op: &'static Op,
    /// The serial of the request before it in the chain; 0 if there is none.
    pub behind: u64,
    /// The serial of the first request of the chain, which may be this one; 0 without a chain.
    pub head: u64,
    /// The request's file: the descriptor that stands for a registered file, otherwise the program's descriptor.
    pub file: i32,
    /// The program's memory as it was at submission.
    pub memory: Memory,
    /// The frames of the call that submitted the request, the innermost first, if they are known.
    pub caller: Arc<[String]>,
    /// True if the user engine reported the request, and reports each of its steps.
    is_reported: bool,
    /// True if the request's completion may have been missed.
    is_lost: bool,
    names: Vec<(i32, Arc<str>)>,
    steps: Vec<Stepped>,
    completions: VecDeque<Completion>,
    count: u64,
    bytes: u64,
    last: bool,
    notified: bool,
    awaits_notification: bool,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} of {:?}: {:?}", self.op.name, self.serial, self.place, self.completions)
    }
}

/// A step between submission and completion.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// The time of the step.
    pub time_ns: u64,
    /// The thread of the step.
    pub thread: u32,
    /// The step.
    pub step: Step,
    /// The argument of the step.
    pub value: u32,
}

/// A completion.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The time and place of the completion.
    pub place: Place,
    /// The CQE's user data.
    pub user_data: u64,
    /// The result.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// The second half of a CQE of 32 bytes.
    pub big: [u64; 2],
    /// The marks, such as `LAST` and `SKIPPED`.
    pub marks: u32,
    /// The number of CQEs that waited to be reaped, including this one.
    pub cq_ready: u32,
    /// The memory that the kernel wrote for the program.
    pub memory: Memory,
    /// The name of the descriptor that the request made.
    pub name: Option<Arc<str>>,
}

/// The harm that a program did to memory while a request used it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// The program changed data that was to be written or sent.
    Changed,
    /// The program unmapped the memory.
    Unmapped,
    /// A memory checker in the process says that the memory was freed, or ends too early.
    Freed,
}

/// The ways to do a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The request was done during its submission.
    Inline,
    /// The request was done when its file was ready.
    Readiness,
    /// The request blocked in the thread that called `enter`.
    Caller,
    /// A worker did the request; its thread, if known.
    Worker(Option<NonZero<u32>>),
    /// Linux AIO did the request.
    Aio,
    /// The request was done together with others by one system call; the number of them.
    Train(u32),
    /// A timer or a wake-up that the operation had armed completed the request.
    Armed,
    /// The request was never issued.
    Queued,
}

/// The events that the model passes on.
#[derive(Debug)]
pub enum Told<'a> {
    /// A process begins to be traced.
    Started(&'a Process),
    /// A process ends. Its requests in flight were passed on before.
    Ended(&'a Process),
    /// A process with rings has ended without reporting its end.
    Gone(&'a Process),
    /// A call of `io_uring_setup` returned, successful or not.
    RingMade(&'a RingMade),
    /// A ring was found in a process that is watched from outside.
    RingFound(&'a RingFound),
    /// A ring ended in its process.
    RingEnded(&'a RingEnded),
    /// A registration, with its argument.
    Registered(&'a Registered, &'a Memory),
    /// A call of `io_uring_enter` returned.
    Entered(&'a Entered),
    /// Requests or completions were not seen.
    Unseen(&'a Unseen),
    /// A fault was injected into the call with this number.
    Injected(Fault, u64),
    /// A request was taken from the submission queue.
    Submitted(&'a Request),
    /// A completion of a request was posted. It is passed on once more, by one of the next two events.
    Completed(&'a Request, &'a Completion),
    /// A completion of a multishot request, except the last.
    Shot(&'a Request, &'a Completion),
    /// Requests of which nothing more comes: a single one, or the members of a chain.
    Requests(&'a [Box<Request>]),
    /// A completion whose request is not known here; the request's serial, or 0 if no request of the ring asked for the
    /// completion.
    Stray(u64, &'a Completion),
}

/// A receiver of the events that the model passes on.
pub trait Listener {
    /// Handles an event.
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model);
}

/// The state of all traced processes.
#[derive(Debug, Default)]
pub struct Model {
    processes: BTreeMap<u32, Process>,
    begun_ns: Option<u64>,
    dropped: u64,
    calls: Calls,
    /// Requests that the kernel gave to its workers.
    queued: Waiting,
    has_kernel_ring: bool,
}

impl Completion {
    /// True if the completion is the notification that the memory of a zero-copy send is free.
    pub fn is_notification(&self) -> bool {
        self.flags & IORING_CQE_F_NOTIF != 0
    }

    /// True if the CQE was skipped, as the request asked.
    pub fn is_skipped(&self) -> bool {
        self.marks & SKIPPED != 0
    }

    /// The harm that was done to the request's memory before the request gave it back.
    pub fn harm(&self) -> Option<Harm> {
        match self.marks {
            marks if marks & FREED != 0 => Some(Harm::Freed),
            marks if marks & UNMAPPED != 0 => Some(Harm::Unmapped),
            marks if marks & CHANGED != 0 => Some(Harm::Changed),
            _ => None,
        }
    }

    /// True if the completion was seen by periodic looks from outside: the latency is an upper bound.
    pub fn is_sampled(&self) -> bool {
        self.marks & SAMPLED != 0
    }

    /// True if the request was submitted before the trace began: the latency is a lower bound.
    pub fn is_of_earlier(&self) -> bool {
        self.marks & EARLIER != 0
    }

    /// True if the completion queue was full.
    pub fn has_overflowed(&self) -> bool {
        self.marks & OVERFLOWED != 0
    }
}

impl Request {
    /// True if nothing more comes of the request.
    pub fn is_done(&self) -> bool {
        self.last && (self.notified || !self.awaits_notification)
    }

    /// True if the request may have completed unseen: see [`Request::asks_for_no_cqe`] and [`Request::is_lost`].
    pub fn may_be_done(&self) -> bool {
        (self.asks_for_no_cqe() || self.is_lost) && !self.is_done()
    }

    /// True if the success of the request cannot be seen: it has no CQE on success, and is not reported by its engine.
    pub fn asks_for_no_cqe(&self) -> bool {
        u32::from(self.sqe.flags) & IOSQE_CQE_SKIP_SUCCESS != 0 && !self.is_reported
    }

    /// True if the request's completion may have been missed.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns the number of results, without notifications.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of results that are not errors.
    pub fn successes(&self) -> u64 {
        // An error ends a request.
        self.count - u64::from(self.result().is_some_and(|result| result.res < 0))
    }

    /// Returns the sum of the results that are not negative.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if the request has had, or may yet have, more than one result.
    pub fn is_multishot(&self) -> bool {
        self.count > 1 || self.count == 1 && !self.last
    }

    /// Iterates over the newest completions, in the order in which they came.
    pub fn completions(&self) -> impl DoubleEndedIterator<Item = &Completion> {
        self.completions.iter()
    }

    /// Returns the newest result.
    pub fn result(&self) -> Option<&Completion> {
        self.completions.iter().rev().find(|completion| !completion.is_notification())
    }

    /// Returns the notification of a zero-copy send.
    pub fn notification(&self) -> Option<&Completion> {
        self.completions.iter().rev().find(|completion| completion.is_notification())
    }

    fn ended_with(&self, errno: u32) -> bool {
        self.result().is_some_and(|result| result.res == -(errno as i32))
    }

    /// Returns the time from the submission to a completion.
    pub fn latency_ns(&self, completion: &Completion) -> u64 {
        completion.place.time_ns.saturating_sub(self.place.time_ns)
    }

    /// Returns the first steps of the request, in order.
    pub fn steps(&self) -> &[Stepped] {
        &self.steps
    }

    /// Iterates over the faults that were injected into the request.
    pub fn injected(&self) -> impl Iterator<Item = Fault> {
        let injected = self.steps.iter().filter(|stepped| stepped.step == Step::Injected);
        injected.filter_map(|stepped| Fault::of(stepped.value as u16))
    }

    /// True if a drain held the request back.
    pub fn was_deferred(&self) -> bool {
        self.had(Step::Deferred)
    }

    /// True if a cancellation found the request.
    pub fn was_canceled(&self) -> bool {
        self.had(Step::Canceled)
    }

    fn had(&self, step: Step) -> bool {
        self.steps.iter().any(|stepped| stepped.step == step)
    }

    /// Returns the way in which the request was done; `None` if its engine did not report it.
    pub fn way(&self) -> Option<Way> {
        let decisive = self.steps.iter().rev().find_map(|stepped| match stepped.step {
            Step::ByCaller => Some(Way::Caller),
            Step::ByWorker => Some(Way::Worker(NonZero::new(stepped.value))),
            Step::ByAio => Some(Way::Aio),
            Step::InTrain => Some(Way::Train(stepped.value)),
            Step::Woken | Step::Waits => Some(Way::Readiness),
            Step::Armed => Some(Way::Armed),
            Step::Queued => Some(Way::Queued),
            Step::Deferred | Step::Canceled | Step::Injected => None,
        });
        let is_sampled = self.completions.iter().any(Completion::is_sampled);
        decisive.or_else(|| (self.is_reported && !is_sampled).then_some(Way::Inline))
    }

    /// Returns the name that a descriptor had when the request was submitted.
    pub fn name_of(&self, fd: i32) -> Option<&str> {
        self.names.iter().find(|(named, _)| *named == fd).map(|(_, name)| &**name)
    }

    /// Iterates over the names of the request's files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(_, name)| &**name)
    }

    /// True if another request is linked behind this one.
    pub fn has_link(&self) -> bool {
        u32::from(self.sqe.flags) & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0
    }

    /// True if the request's file is a registered one.
    pub fn has_registered_file(&self) -> bool {
        u32::from(self.sqe.flags) & IOSQE_FIXED_FILE != 0
    }

    /// True if a result that is not negative is a descriptor that the request made.
    pub fn makes_descriptor(&self) -> bool {
        let arguments = self.op.arguments;
        // The operation may name a slot, and then makes no descriptor.
        let makes = arguments
            .iter()
            .any(|argument| matches!(argument.kind, Kind::Slot) && argument.when == [When::Given]);
        let fills = arguments.iter().any(|argument| matches!(argument.kind, Kind::DescriptorsFilled(_)));
        makes && !fills && self.sqe.file_index == 0 && !self.op.caps.has(Caps::EMPTIES)
    }

    fn complete(&mut self, completion: Completion) {
        if completion.is_notification() {
            self.notified = true;
        } else {
            self.count += 1;
            self.bytes += u64::try_from(completion.res).unwrap_or(0);
            if completion.marks & LAST != 0 {
                self.last = true;
                self.awaits_notification = completion.flags & IORING_CQE_F_MORE != 0;
            }
        }
        if self.completions.len() == MOST_COMPLETIONS {
            self.completions.pop_front();
        }
        self.completions.push_back(completion);
    }
}

/// The relation of a member of a chain to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The member was never issued, because this request broke the chain.
    BrokenBy(u64),
    /// The member is a link timeout for this request.
    Watches(u64),
    /// The member was cancelled by this link timeout.
    TimedOutBy(u64),
}

/// Returns the relation of a member of a chain to another one.
pub fn relation(chain: &[Box<Request>], member: usize) -> Option<Relation> {
    let request = &chain[member];
    if request.op.caps.has(Caps::WATCHES) {
        return (request.behind != 0).then_some(Relation::Watches(request.behind));
    }
    if !request.ended_with(ECANCELED) {
        return None;
    }
    if let Some(timeout) = timed_out(chain, member) {
        return Some(Relation::TimedOutBy(timeout.serial));
    }
    if request.was_canceled() {
        return None;
    }
    let mut before = (0..member).rev().filter(|other| !chain[*other].op.caps.has(Caps::WATCHES));
    let breaker = before.find(|other| {
        let breaker = &chain[*other];
        !breaker.ended_with(ECANCELED)
            || breaker.was_canceled()
            || breaker.behind == 0
            || timed_out(chain, *other).is_some()
    });
    breaker.map(|breaker| Relation::BrokenBy(chain[breaker].serial))
}

/// Returns the link timeout behind a member, if it has expired.
fn timed_out(chain: &[Box<Request>], member: usize) -> Option<&Request> {
    let behind = chain.get(member + 1)?;
    (behind.op.caps.has(Caps::WATCHES) && behind.ended_with(ETIME)).then_some(behind)
}

#[expect(
    clippy::vec_box,
    reason = "a request of some hundred bytes goes from the map to the output by its address"
)]
impl Ring {
    /// Returns the number of requests that are in flight, or wait for other members of their chain.
    pub fn under_way(&self) -> usize {
        self.requests.len()
    }

    /// True if the request is in flight.
    pub fn is_under_way(&self, serial: u64) -> bool {
        self.requests.get(&serial).is_some_and(|request| !request.is_done())
    }

    /// Puts a request into its chain. If this closes the chain before, and all of that chain's members are done,
    /// removes and returns them.
    fn link(&mut self, request: &mut Request) -> Vec<Box<Request>> {
        let head = self.requests.get(&request.behind).map_or(0, |before| before.head);
        let fits = self.chains.get(&head).is_some_and(|chain| chain.members.len() < MOST_IN_CHAIN);
        let mut ended = Vec::new();
        if request.behind != 0 && head != 0 && fits {
            request.head = head;
        } else {
            ended = self.close_chain();
            request.head = if request.has_link() { request.serial } else { 0 };
        }
        if request.head != 0 {
            self.chains.entry(request.head).or_default().members.push(request.serial);
            self.open_chain = request.has_link().then_some(request.head);
        }
        ended
    }

    /// Closes the chain of the last submission. If all of its members are done, removes and returns them.
    fn close_chain(&mut self) -> Vec<Box<Request>> {
        self.open_chain.take().map_or_else(Vec::new, |head| self.take_chain(head))
    }

    /// Removes and returns the members of a chain, if all of them are done, and the chain is closed.
    fn take_chain(&mut self, head: u64) -> Vec<Box<Request>> {
        let Some(chain) = self.chains.get(&head) else { return Vec::new() };
        if self.open_chain == Some(head) || chain.done < chain.members.len() {
            return Vec::new();
        }
        let members = self.chains.remove(&head).map_or_else(Vec::new, |chain| chain.members);
        members.iter().filter_map(|serial| self.requests.remove(serial)).collect()
    }

    /// Notes that a request is done. Removes and returns the requests that can be passed on now.
    fn take(&mut self, serial: u64) -> Vec<Box<Request>> {
        let head = self.requests.get(&serial).map_or(0, |request| request.head);
        match self.chains.get_mut(&head) {
            Some(chain) => {
                chain.done += 1;
                self.take_chain(head)
            }
            None => self.requests.remove(&serial).into_iter().collect(),
        }
    }

    /// Removes and returns the oldest request and the other members of its chain, done or not.
    fn take_oldest(&mut self) -> Vec<Box<Request>> {
        let oldest = self.requests.first_key_value().map(|(serial, _)| *serial);
        oldest.map_or_else(Vec::new, |serial| self.give_up(serial))
    }

    /// Removes and returns a request and the other members of its chain, done or not.
    fn give_up(&mut self, serial: u64) -> Vec<Box<Request>> {
        let head = self.requests.get(&serial).map_or(0, |request| request.head);
        if self.open_chain == Some(head) {
            self.open_chain = None;
        }
        let members = self.chains.remove(&head).map_or_else(|| vec![serial], |chain| chain.members);
        members.iter().filter_map(|serial| self.requests.remove(serial)).collect()
    }
}

impl Process {
    /// Returns the present name of a descriptor.
    pub fn name_of(&self, fd: i32) -> Option<&str> {
        self.files.get(&fd).map(|name| &**name)
    }

    /// Returns the ring with this number.
    pub fn ring(&self, ring: u32) -> Option<&Ring> {
        self.rings.get(&ring)
    }

    /// Iterates over the rings, with their numbers.
    pub fn rings(&self) -> impl Iterator<Item = (u32, &Ring)> {
        self.rings.iter().map(|(number, ring)| (*number, ring))
    }

    fn names_for(&self, sqe: &Sqe, op: &Op, file: i32) -> Vec<(i32, Arc<str>)> {
        let applying = op.arguments.iter().filter(|argument| argument.applies(sqe));
        let fields = applying.filter(|argument| match argument.kind {
            Kind::Descriptor => true,
            Kind::SecondFile(registered) => sqe.op_flags & registered == 0,
            _ => false,
        });
        let fds = fields.map(|argument| argument.field.value(sqe) as i32).chain([file]);
        let mut names: Vec<(i32, Arc<str>)> = Vec::new();
        for fd in fds {
            if let Some(name) = self.files.get(&fd)
                && names.iter().all(|(named, _)| *named != fd)
            {
                names.push((fd, name.clone()));
            }
        }
        names
    }
}

impl Model {
    /// Returns a model that finds the code that submits requests.
    pub fn with_callers(callers: Box<dyn Callers>) -> Model {
        Model { calls: Calls::named_by(callers), ..Model::default() }
    }

    /// Returns a process that was seen.
    pub fn process(&self, process: u32) -> Option<&Process> {
        self.processes.get(&process)
    }

    /// Returns a ring that was seen.
    pub fn ring(&self, place: Place) -> Option<&Ring> {
        self.process(place.process)?.ring(place.ring)
    }

    /// Returns the descriptor of a ring; the ring's number if the descriptor is not known.
    pub fn descriptor(&self, place: Place) -> i32 {
        let ring = self.ring(place);
        let made = ring.and_then(|ring| Some(ring.made?.result));
        made.or_else(|| Some(ring?.found?.fd)).unwrap_or(place.ring as i32)
    }

    /// Returns the time of the first event.
    pub fn begun_ns(&self) -> u64 {
        self.begun_ns.unwrap_or(0)
    }

    /// Notes that `dropped` events were lost, because the buffer had no room.
    pub fn miss(&mut self, dropped: u64) {
        self.dropped = dropped;
    }

    /// Returns the number of lost events that was noted last.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// True if a ring of the kernel was seen.
    pub fn has_kernel_ring(&self) -> bool {
        self.has_kernel_ring
    }

    /// Notes that the kernel gave a request to a worker, perhaps in a process whose events come later.
    pub fn queued(&mut self, queued: Queued) {
        self.queued.add(queued);
    }

    /// Notes that a worker of the kernel did a request that has completed, if that is certain.
    fn note_worker(&mut self, place: Place, serial: u64) {
        let Some(process) = self.processes.get_mut(&place.process) else { return };
        let of_ring = |ring: &Ring| ring.requests.get(&serial).map(|request| (request.sqe, request.place));
        let Some((sqe, submitted)) = process.rings.get(&place.ring).and_then(of_ring) else { return };
        let key = (place.process, sqe.opcode, sqe.user_data);
        let Some(time_ns) = self.queued.take(key, submitted.time_ns, place.time_ns) else { return };
        let in_flight =
            process.rings.values().flat_map(|ring| ring.requests.values().map(|request| &**request));
        let is_alike = |request: &&Request| {
            !request.is_done() && (request.sqe.opcode, request.sqe.user_data) == (sqe.opcode, sqe.user_data)
        };
        if in_flight.filter(is_alike).take(2).count() > 1 {
            return;
        }
        let request = process.rings.get_mut(&place.ring).and_then(|ring| ring.requests.get_mut(&serial));
        if let Some(request) = request.filter(|request| !request.is_reported && !request.is_done()) {
            request.steps.push(Stepped { time_ns, thread: 0, step: Step::ByWorker, value: 0 });
        }
    }

    /// Handles an event, and passes on the events that follow from it.
    pub fn event(&mut self, event: &Event<'_>, to: &mut dyn Listener) {
        let head = event.head;
        let place =
            Place { time_ns: head.time_ns, process: head.process, thread: head.thread, ring: head.ring };
        self.begun_ns.get_or_insert(place.time_ns);
        let memory = Memory::of(event);
        match &event.body {
            Body::Started(started) => self.started(place, started, &memory, to),
            Body::Ended(_) => self.ended(place, to),
            Body::RingMade(made) => {
                if made.result >= 0 {
                    self.has_kernel_ring |= made.engine == ENGINE_KERNEL;
                    *self.ring_of(place) = Ring { made: Some(*made), ..Ring::default() };
                }
                to.tell(place, &Told::RingMade(made), self);
            }
            Body::RingFound(found) => {
                self.has_kernel_ring |= found.engine == ENGINE_KERNEL;
                *self.ring_of(place) = Ring { found: Some(*found), ..Ring::default() };
                to.tell(place, &Told::RingFound(found), self);
            }
            Body::LostSight(lost) => self.lost(place, lost.serial, to),
            Body::RingEnded(ended) => {
                self.give_up(place, to);
                to.tell(place, &Told::RingEnded(ended), self);
                self.process_of(place).rings.remove(&place.ring);
            }
            Body::Registered(registered) => to.tell(place, &Told::Registered(registered, &memory), self),
            Body::Entered(entered) => {
                let chain = self.ring_of(place).close_chain();
                self.calls.left(place);
                self.hand_on(place, &chain, to);
                to.tell(place, &Told::Entered(entered), self);
            }
            Body::Submitted(submitted) => self.submitted(place, submitted, memory, to),
            Body::Stepped(stepped) => self.stepped(place, stepped),
            Body::Completed(completed) => self.completed(place, completed, memory, to),
            Body::FileNamed(named) => self.named(place, named.fd, &memory),
            Body::Unseen(unseen) => to.tell(place, &Told::Unseen(unseen), self),
            Body::Mapped(mapped) => self.calls.mapped(place, mapped, &memory),
            Body::Called(called) => self.calls.called(place, called, &memory),
            Body::Injected(injected) => {
                // A later version's fault is left out.
                if let Some(fault) = Fault::of(injected.fault as u16) {
                    to.tell(place, &Told::Injected(fault, injected.call), self);
                }
            }
        }
    }

    /// Ends the trace: passes on the requests that never completed, and the processes that reported no end.
    pub fn end(&mut self, time_ns: u64, to: &mut dyn Listener) {
        let with_rings = self.processes.values().filter(|process| !process.rings.is_empty());
        for id in with_rings.map(|process| process.id).collect::<Vec<_>>() {
            let place = Place { time_ns, process: id, ..Place::default() };
            self.end_rings(place, to);
            if let Some(process) = self.process(id).filter(|process| process.engine != 0) {
                to.tell(place, &Told::Gone(process), self);
            }
        }
    }

    fn process_of(&mut self, place: Place) -> &mut Process {
        let id = place.process;
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&id) {
            self.processes.pop_first();
        }
        self.processes.entry(id).or_insert_with(|| Process { id, ..Process::default() })
    }

    fn ring_of(&mut self, place: Place) -> &mut Ring {
        let rings = &mut self.process_of(place).rings;
        if rings.len() >= MOST_RINGS && !rings.contains_key(&place.ring) {
            rings.pop_first();
        }
        rings.entry(place.ring).or_default()
    }

    fn started(&mut self, place: Place, started: &event::Started, memory: &Memory, to: &mut dyn Listener) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let arguments = memory.first(Content::Text).and_then(|piece| piece.bytes).unwrap_or(&[]);
        let arguments = arguments.strip_suffix(&[0]).unwrap_or(arguments);
        let program = memory.first(Content::Path).and_then(|piece| piece.bytes).unwrap_or(&[]);
        // An `exec` ends the rings of the program before it, and closes most of its descriptors; a fork inherits them.
        self.end_rings(place, to);
        let files = self.process(started.parent).map(|parent| parent.files.clone()).unwrap_or_default();
        let process = Process {
            id: place.process,
            program: text(program),
            arguments: arguments
                .split(|byte| *byte == 0)
                .map(text)
                .filter(|_| !arguments.is_empty())
                .collect(),
            parent: started.parent,
            engine: started.engine,
            files,
            rings: BTreeMap::new(),
        };
        self.calls.started(process.id, process.parent);
        *self.process_of(place) = process;
        if let Some(process) = self.process(place.process) {
            to.tell(place, &Told::Started(process), self);
        }
    }

    fn ended(&mut self, place: Place, to: &mut dyn Listener) {
        self.end_rings(place, to);
        if let Some(process) = self.process(place.process) {
            to.tell(place, &Told::Ended(process), self);
        }
        self.processes.remove(&place.process);
        self.calls.ended(place.process);
    }

    fn end_rings(&mut self, place: Place, to: &mut dyn Listener) {
        let rings = self
            .process(place.process)
            .map_or_else(Vec::new, |process| process.rings.keys().copied().collect());
        for ring in rings {
            self.give_up(Place { ring, ..place }, to);
        }
        if let Some(process) = self.processes.get_mut(&place.process) {
            process.rings.clear();
        }
    }

    /// Passes on the requests in flight of a ring.
    fn give_up(&mut self, place: Place, to: &mut dyn Listener) {
        loop {
            let requests = self.ring_of(place).take_oldest();
            if requests.is_empty() {
                return;
            }
            self.hand_on(place, &requests, to);
        }
    }

    fn hand_on(&self, place: Place, requests: &[Box<Request>], to: &mut dyn Listener) {
        if !requests.is_empty() {
            to.tell(place, &Told::Requests(requests), self);
        }
    }

    fn submitted(&mut self, place: Place, submitted: &Submitted, memory: Memory, to: &mut dyn Listener) {
        let sqe = Sqe::from_words(submitted.sqe);
        let op = ops::lookup(sqe.opcode);
        let is_reported = self.is_reported(place);
        let mut request = Box::new(Request {
            place,
            serial: submitted.serial,
            sqe,
            op,
            behind: submitted.behind,
            head: 0,
            file: submitted.file,
            memory,
            caller: self.calls.of(place),
            is_reported,
            is_lost: false,
            names: self.process_of(place).names_for(&sqe, op, submitted.file),
            steps: Vec::new(),
            completions: VecDeque::new(),
            count: 0,
            bytes: 0,
            last: false,
            notified: false,
            awaits_notification: false,
        });
        // Two requests have the same number only if the program wrote into the buffer of events.
        if self.ring_of(place).requests.contains_key(&request.serial) {
            let same = self.ring_of(place).give_up(request.serial);
            self.hand_on(place, &same, to);
        }
        to.tell(place, &Told::Submitted(&request), self);
        let ring = self.ring_of(place);
        let chain = ring.link(&mut request);
        let oldest = if ring.requests.len() >= MOST_UNDER_WAY { ring.take_oldest() } else { Vec::new() };
        ring.requests.insert(request.serial, request);
        self.hand_on(place, &chain, to);
        self.hand_on(place, &oldest, to);
    }

    /// True if the engine of the ring reports the steps of its requests.
    fn is_reported(&self, place: Place) -> bool {
        let process = self.process(place.process);
        let engine = match process.and_then(|process| process.ring(place.ring)) {
            Some(Ring { found: Some(found), .. }) => found.engine,
            Some(Ring { made: Some(made), .. }) => made.engine,
            _ => process.map_or(0, |process| process.engine),
        };
        engine != ENGINE_KERNEL
    }

    /// Notes that nothing more will be seen of a request.
    fn lost(&mut self, place: Place, serial: u64, to: &mut dyn Listener) {
        let ring = self.ring_of(place);
        let Some(request) = ring.requests.get_mut(&serial) else { return };
        request.is_lost = true;
        let requests = ring.take(serial);
        self.hand_on(place, &requests, to);
    }

    fn stepped(&mut self, place: Place, stepped: &event::Stepped) {
        let Some(step) = Step::of(stepped.step) else { return };
        if let Some(request) = self.ring_of(place).requests.get_mut(&stepped.serial)
            && request.steps.len() < MOST_STEPS
        {
            let (time_ns, thread) = (place.time_ns, place.thread);
            request.steps.push(Stepped { time_ns, thread, step, value: stepped.value });
        }
    }

    fn completed(
        &mut self,
        place: Place,
        completed: &event::Completed,
        memory: Memory,
        to: &mut dyn Listener,
    ) {
        let event::Completed { serial, user_data, res, flags, big, marks, cq_ready } = *completed;
        self.note_worker(place, serial);
        let mut completion =
            Completion { place, user_data, res, flags, big, marks, cq_ready, memory, name: None };
        let process = self.process_of(place);
        let Process { files, rings, .. } = process;
        let request = rings.get_mut(&place.ring).and_then(|ring| ring.requests.get_mut(&serial));
        let Some(request) = request.filter(|request| !request.is_done()) else {
            to.tell(place, &Told::Stray(serial, &completion), self);
            return;
        };
        if request.makes_descriptor() {
            completion.name = files.get(&res).cloned();
        }
        request.complete(completion);
        let request = self.ring(place).and_then(|ring| ring.requests.get(&serial));
        let Some((request, completion)) =
            request.and_then(|request| Some((request, request.completions.back()?)))
        else {
            return;
        };
        to.tell(place, &Told::Completed(request, completion), self);
        if request.is_done() {
            let requests = self.ring_of(place).take(serial);
            self.hand_on(place, &requests, to);
        } else if request.is_multishot() {
            to.tell(place, &Told::Shot(request, completion), self);
        }
    }

    fn named(&mut self, place: Place, fd: i32, memory: &Memory) {
        let name = memory.first(Content::Path).and_then(|piece| piece.bytes).unwrap_or(&[]);
        let files = &mut self.process_of(place).files;
        if name.is_empty() {
            files.remove(&fd);
        } else if files.len() < MOST_NAMES || files.contains_key(&fd) {
            files.insert(fd, String::from_utf8_lossy(name).into());
        }
    }
}
