//! The run of a program: its threads carry out their steps, then reap the remaining completions, and everything is closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyring_engine::abi::Sqe;
use anyring_engine::{Host, frontend, simulation};
use linux_raw_sys::errno as raw;
use linux_raw_sys::general as nr;
use linux_raw_sys::general::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, RWF_NOWAIT};
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD, IORING_CQE_F_MORE,
    IORING_ENTER_GETEVENTS, IORING_POLL_ADD_MULTI, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_R_DISABLED,
    io_uring_op as Code, io_uring_register_op as Registration, io_uring_sqe_flags_bit as Bit,
    io_uring_sync_cancel_reg,
};

use crate::calls;
use crate::failure::fail;
use crate::kernel::{Kind, Object, Place};
use crate::program::{Action, Fetch, File, Op, Program, WORDS, What};
use crate::ring::{Mapped, Time, is_passing};
use crate::world::{self, Wait, world};

/// A bit that marks a message among completions.
const MESSAGE: u64 = 1 << 32;
/// A bit that marks a completion of the test driver's own request.
const OWN: u64 = 1 << 40;
/// Bytes of a request's buffer.
const BUFFER: usize = 16;
/// How long everything rests before remaining requests are examined.
const REST_NS: u64 = 5_000_000_000;
/// The interval in which a program that polls its completions looks in the end.
const LONGEST_LOOK_NS: u64 = 500_000_000;
/// How long a wait lasts before its thread checks whether the program ends.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Slots for registered files.
const SLOTS: usize = 4;

/// Counters on which threads wait.
mod counters {
    pub const RINGS: usize = 0;
    pub const ACTED: usize = 1;
    pub const PHASE: usize = 2;
    pub const FETCHED: usize = 3;
    pub const ENDED: usize = 4;
    pub const COUNT: usize = 5;
}

/// A file that exists or has existed.
#[derive(Clone, Copy, Debug)]
struct Instance {
    near: i32,
    /// A duplicate of the near end.
    name: i32,
    far: i32,
    receives: Option<Place>,
    sends: Option<Place>,
    description: usize,
    inode: u64,
}

/// A request, from its SQE on.
struct Request {
    ring: usize,
    op: Op,
    /// The memory that the SQE names.
    memory: Box<Memory>,
    length: usize,
    /// True for a request of a chain that is not its head.
    follows: bool,
    done: bool,
    result: i32,
    /// The number of its messages that arrived.
    messages: u32,
    /// The instance of its file that had the number.
    instance: usize,
    /// True if the submission took the request before a close of that number began: the request reaches this instance.
    is_sure: bool,
    /// True if the submission took the request: a wait for a futex has begun.
    is_taken: bool,
    /// True if the request completed when all remaining requests were cancelled at the end.
    is_left: bool,
    /// [`Closes::so_far`] of the file, before the SQE was visible.
    closes_before: Option<u32>,
    /// The number of transfers that were logged before the request.
    transfers: usize,
    /// The value of `stirred` for a poll's file before the submission, unless the file was ready.
    calm: Option<u64>,
    submitted_ns: u64,
    /// The descriptor that the request is to close.
    closes: i32,
}

/// The closes of a file's number.
#[derive(Clone, Copy, Default)]
struct Closes {
    /// How many closes have begun.
    begun: u32,
    /// The number of threads that are closing it and opening another such file.
    reopening: u32,
    /// True if a request closes or has closed it, and no other file has been opened since.
    requested: bool,
}

/// The memory of a request.
#[derive(Default)]
struct Memory {
    buffer: [u8; BUFFER],
    time: Time,
    argument: [i32; 1],
    elements: [FutexElement; WORDS],
}

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FutexElement {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Closes {
    fn begin_reopening(&mut self) {
        self.begun += 1;
        self.reopening += 1;
    }

    fn end_reopening(&mut self) {
        self.reopening -= 1;
        self.requested = false;
    }

    fn request(&mut self) {
        self.begun += 1;
        self.requested = true;
    }

    /// Returns the number of closes; `None` if one is in progress.
    fn so_far(&self) -> Option<u32> {
        (!self.requested && self.reopening == 0).then_some(self.begun)
    }

    /// True if no close has begun since [`Closes::so_far`] returned `before`.
    fn are_still(&self, before: Option<u32>) -> bool {
        before == Some(self.begun)
    }
}

/// The results of futex wake-ups.
#[derive(Default)]
struct Wakes {
    /// How many waiters the wake-ups of each word were to wake so far.
    asked: [usize; WORDS],
    /// Wake-ups by `futex(2)` that woke no waiter.
    vain: Vec<Vain>,
    /// The number of waiters that wake-ups have reported as woken.
    said: usize,
    /// The number of waits that a wake-up has ended.
    ended: usize,
    /// The number of further wake-ups that may have ended the same waits, which were for several words.
    spare: usize,
}

/// A wake-up that woke no waiter.
struct Vain {
    /// The number of other wake-ups of the word that may have woken before this one was over.
    others: usize,
    /// The requests that had waited since before, unless one of those wake-ups or a cancellation ended them.
    waiting: Vec<usize>,
}

/// The running program.
struct Run {
    /// The words that are waited for, which never change.
    words: Box<[u32; WORDS]>,
    wakes: Wakes,
    /// True if a request is linked to a wait for futexes.
    waits_follow_waits: bool,
    program: Rc<Program>,
    rings: Vec<Option<Mapped>>,
    eventfds: Vec<i32>,
    drained: Vec<bool>,
    closes: Vec<Closes>,
    files: Vec<Vec<Instance>>,
    requests: Vec<Request>,
    /// The last message that arrived from one ring at another, by their numbers.
    arrived: HashMap<(usize, usize), usize>,
    fars: Vec<i32>,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

fn run<R>(body: impl FnOnce(&mut Run) -> R) -> R {
    RUN.with(|run| body(run.borrow_mut().as_mut().expect("a program runs")))
}

/// The host of the engine.
pub struct SimulatedHost;

impl Host for SimulatedHost {
    fn spawn(
        &self,
        name: &'static std::ffi::CStr,
        entry: unsafe extern "C" fn(*mut std::ffi::c_void),
        argument: *mut std::ffi::c_void,
    ) -> Result<(), i32> {
        let argument = argument as usize;
        let name = name.to_str().unwrap_or("?");
        // SAFETY: called once, as the engine demands.
        let started = world::spawn(name, false, move || unsafe { entry(argument as *mut _) });
        if started { Ok(()) } else { Err(raw::EAGAIN as i32) }
    }

    fn thread_identity(&self) -> std::num::NonZeroUsize {
        std::num::NonZeroUsize::MIN.saturating_add(world(|world| world.current()))
    }

    fn faults_resume(&self) -> bool {
        true
    }

    fn sees_closes(&self) -> bool {
        run(|run| run.program.tells_closes)
    }

    fn interrupt_signal(&self) -> Option<u32> {
        run(|run| run.program.has_signal.then_some(nr::SIGSYS))
    }
}

fn add(counter: usize, more: u64) {
    world(|world| {
        world.counters[counter] += more;
        world.kernel.version += 1;
    });
}

fn wait_for(counter: usize, least: usize) {
    while world(|world| world.counters[counter]) < least as u64 {
        world::sleep(Wait::Counter(counter, least as u64), u64::MAX);
    }
}

fn phase() -> u64 {
    world(|world| world.counters[counters::PHASE])
}

/// Runs a program, from its first thread.
pub fn execute(program: Program) {
    let threads = program.threads.len();
    let rings = program.rings.len();
    world(|world| world.counters = vec![0; counters::COUNT]);
    let files = program.files.iter().map(|&file| vec![open(file)]).collect();
    let none = (0..rings).map(|_| None).collect();
    let (eventfds, drained) = (vec![-1; rings], vec![false; rings]);
    let closes = vec![Closes::default(); program.files.len()];
    let run_of = Run {
        words: Box::default(),
        wakes: Wakes::default(),
        waits_follow_waits: false,
        program: Rc::new(program),
        rings: none,
        eventfds,
        drained,
        closes,
        files,
        requests: Vec::new(),
        arrived: HashMap::new(),
        fars: Vec::new(),
    };
    RUN.with(|run| *run.borrow_mut() = Some(run_of));
    for thread in 0..threads {
        world::spawn("program", true, move || act(thread));
    }
    wait_for(counters::ACTED, threads);
    world::rest(REST_NS);
    look_for_stuck(false);
    close_far_ends();
    add(counters::PHASE, 1);
    world::rest(REST_NS);
    look_for_stuck(true);
    add(counters::PHASE, 1);
    kick_eventfds();
    wait_for(counters::FETCHED, rings);
    add(counters::PHASE, 1);
    kick_eventfds();
    wait_for(counters::ENDED, threads);
    judge();
    close_everything();
    world::stop();
    RUN.with(|run| *run.borrow_mut() = None);
}

// Files.

fn open(file: File) -> Instance {
    world(|world| {
        let kernel = &mut world.kernel;
        let opened = kernel.without_limit(|kernel| match file {
            File::PipeIn => kernel.pair(Kind::Pipe, 0),
            File::PipeOut => kernel.pair(Kind::Pipe, 0).map(|[reads, writes]| [writes, reads]),
            File::Socket(kind) => kernel.pair(kind, 0),
            File::Listener(kind) => kernel.listener(kind).map(|fd| [fd, -1]),
            File::Storage { slowness_ns, writes_wait, direct, stalls } => {
                kernel.storage(slowness_ns, writes_wait, direct, stalls).map(|fd| [fd, -1])
            }
        });
        let [near, far] = opened.expect("the program has descriptors to spare");
        let description = kernel.description(near).expect("just opened");
        let (receives, sends) = match kernel.at(description).object {
            Object::Stream { receives, sends, .. } => {
                (receives.map(Place::Channel), sends.map(Place::Channel))
            }
            Object::Storage(file) => (Some(Place::File(file)), Some(Place::File(file))),
            _ => (None, None),
        };
        let (.., inode) = kernel.identity(description);
        Instance { near, name: -1, far, receives, sends, description, inode }
    })
}

/// Closes a descriptor on behalf of the program.
fn close(fd: i32) {
    if fd < 0 {
        return;
    }
    if run(|run| run.program.tells_closes) {
        frontend::closed(fd);
    }
    let _ = calls::call(nr::__NR_close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Closes the near ends of these files, and opens others in reverse order.
fn reopen(files: &[usize]) {
    let mut closed = Vec::with_capacity(files.len());
    run(|run| {
        for &file in files {
            let last = run.files[file].last_mut().expect("there is one");
            // No other thread may close the near end.
            closed.push(std::mem::replace(&mut last.near, -1));
            // The file lives on by its duplicate.
            run.fars.push(std::mem::replace(&mut last.name, -1));
            run.fars.push(std::mem::replace(&mut last.far, -1));
            run.closes[file].begin_reopening();
        }
    });
    closed.into_iter().for_each(close);
    for &file in files.iter().rev() {
        let instance = open(run(|run| run.program.files[file]));
        run(|run| {
            run.files[file].push(instance);
            run.closes[file].end_reopening();
        });
    }
}

/// Duplicates the near end of a file.
fn name(file: usize, changes: bool) {
    let old = near(file);
    let Ok((new, inode)) = duplicate(old) else { return };
    let rest = run(|run| {
        let last = run.files[file].last_mut().expect("there is one");
        if last.near != old || last.inode != inode || last.name >= 0 {
            // Another thread has closed or duplicated it meanwhile. The number may be that of the next instance.
            return new;
        }
        (last.near, last.name) = if changes { (new, old) } else { (old, new) };
        -1
    });
    close(rest);
}

/// Duplicates a descriptor; returns the duplicate and the inode of the file.
fn duplicate(old: i32) -> Result<(i32, u64), u32> {
    let new = world(|world| {
        let description = world.kernel.description(old)?;
        let (.., inode) = world.kernel.identity(description);
        world.kernel.without_limit(|kernel| kernel.install(description, 0)).map(|new| (new, inode))
    })?;
    if run(|run| run.program.tells_closes) {
        frontend::duplicated(old, new.0);
    }
    Ok(new)
}

/// Closes the duplicate of a file's near end, by which requests may have been submitted.
fn close_name(file: usize) {
    let name = run(|run| {
        let tells = run.program.tells_closes;
        let last = run.files[file].last_mut().expect("there is one");
        let name = std::mem::replace(&mut last.name, -1);
        if name >= 0 {
            run.closes[file].begin_reopening();
            if !tells {
                // A request that waits by that number may find it closed, or find another file.
                let of_file = |request: &&mut Request| file_of(request.op.what) == Some(file);
                run.requests.iter_mut().filter(of_file).for_each(|request| request.is_sure = false);
            }
        }
        name
    });
    if name >= 0 {
        close(name);
        run(|run| run.closes[file].reopening -= 1);
    }
}

fn near(file: usize) -> i32 {
    run(|run| run.files[file].last().map_or(-1, |instance| instance.near))
}

fn far(file: usize) -> i32 {
    run(|run| run.files[file].last().map_or(-1, |instance| instance.far))
}

fn far_transfer(file: usize, length: usize, writes: bool) {
    let mut buffer = [7u8; BUFFER];
    let vector = [buffer.as_mut_ptr() as usize, length];
    let number = if writes { nr::__NR_pwritev2 } else { nr::__NR_preadv2 };
    let arguments =
        [far(file) as usize, vector.as_ptr() as usize, 1, u64::MAX as usize, 0, RWF_NOWAIT as usize];
    let _ = calls::call(number, arguments);
}

fn call_listener(file: usize) {
    let near = near(file);
    let called = world(|world| {
        let listener = world.kernel.description(near)?;
        world.kernel.call_listener(listener)
    });
    if let Ok(fd) = called {
        run(|run| run.fars.push(fd));
    }
}

// Threads.

fn act(thread: usize) {
    let program = run(|run| Rc::clone(&run.program));
    let rings = program.rings.len();
    if thread < rings {
        make_ring(thread);
        add(counters::RINGS, 1);
    }
    wait_for(counters::RINGS, rings);
    if thread < rings && program.rings[thread].flags & IORING_SETUP_R_DISABLED != 0 {
        let ring = mapped(thread);
        while ring.register(Registration::IORING_REGISTER_ENABLE_RINGS as u32, 0, 0).is_err() {}
    }
    for action in &program.threads[thread] {
        perform(action);
    }
    add(counters::ACTED, 1);
    if thread < rings {
        fetch(thread);
        add(counters::FETCHED, 1);
        wait_for(counters::PHASE, 3);
        fetch_last(thread);
    }
    add(counters::ENDED, 1);
}

fn new_ring(flags: u32, completions: u32) -> Mapped {
    let made = (0..1000).find_map(|_| match Mapped::make(flags, completions) {
        Ok(ring) => Some(ring),
        Err(errno) if is_passing(errno as u32) => None,
        Err(errno) => fail(&format!("setup: errno {errno}")),
    });
    made.unwrap_or_else(|| fail("setup: none of a thousand attempts succeeds"))
}

fn close_ring(ring: Mapped) {
    ring.unmap();
    if !world(|world| world.grants_files()) {
        // The engine may have no inotify instance, which would report the close.
        frontend::closed(ring.fd);
    }
    close(ring.fd);
}

fn make_ring(index: usize) {
    let spec = run(|run| run.program.rings[index].clone());
    let ring = new_ring(spec.flags, spec.completions);
    run(|run| run.rings[index] = Some(ring));
    if spec.fetch == Fetch::Eventfd {
        let fd = world(|world| world.kernel.without_limit(|kernel| kernel.eventfd(0, 0)))
            .expect("the program has descriptors to spare");
        run(|run| run.eventfds[index] = fd);
        let address = &raw const fd as usize;
        insist(|| ring.register(Registration::IORING_REGISTER_EVENTFD as u32, address, 1));
    }
    let mut files = [-1i32; SLOTS];
    for (file, slot) in files.iter_mut().enumerate().take(run(|run| run.files.len())) {
        *slot = near(file);
    }
    insist(|| {
        ring.register(Registration::IORING_REGISTER_FILES as u32, files.as_ptr() as usize, SLOTS as u32)
    });
}

/// Makes a call that may fail for lack of a resource.
fn insist(mut call: impl FnMut() -> Result<u32, u32>) {
    while let Err(errno) = call() {
        if !is_passing(errno) {
            fail(&format!("register: errno {errno}"));
        }
    }
}

fn mapped(index: usize) -> Mapped {
    run(|run| run.rings[index]).expect("all rings were made")
}

fn perform(action: &Action) {
    crate::trace::tell(|| format!("begins {action:?}"));
    match *action {
        Action::Submit { ring, ref ops, waits } => submit(ring, ops, waits),
        Action::Wait { ring, time_ns } => {
            enter(ring, 0, 1, Some(time_ns));
            reap(ring);
        }
        Action::Look { ring } => reap(ring),
        Action::Put { file, length } => far_transfer(file, length, true),
        Action::Take { file, length } => far_transfer(file, length, false),
        Action::Call { file } => call_listener(file),
        Action::Reopen { file } => reopen(&[file]),
        Action::Exchange { files } => reopen(&files),
        Action::Name { file, changes } => name(file, changes),
        Action::CloseName { file } => close_name(file),
        Action::BriefRing { renames } => use_brief_ring(renames),
        Action::Pause { time_ns } => world::sleep_for(time_ns),
        Action::Wake { word, count } => wake(word, count),
        Action::SyncCancel { ring, before, time_ns } => sync_cancel(ring, before, time_ns),
    }
}

/// A ring that no other thread knows accepts requests, whatever happens to other rings meanwhile.
fn use_brief_ring(renames: bool) {
    let mut ring = new_ring(0, 4);
    // Without an inotify instance and without reports, the engine takes the first descriptor for the only one.
    let renames = renames && (run(|run| run.program.tells_closes) || world(|world| world.grants_files()));
    if renames && let Ok((second, _)) = duplicate(ring.fd) {
        close(std::mem::replace(&mut ring.fd, second));
    }
    ring.push(&Sqe { opcode: Code::IORING_OP_NOP as u8, ..Sqe::default() });
    while ring.pending() > 0 {
        if let Err(errno) = ring.submit(0, None)
            && !is_passing(errno)
        {
            fail(&format!("a ring that was just made: enter: errno {errno}"));
        }
    }
    if ring.take().is_none() {
        fail("a ring that was just made: a no-op does not complete");
    }
    close_ring(ring);
}

/// Wakes waiters of a word on behalf of the program, without a ring.
fn wake(word: usize, count: u32) {
    let waiting = run(|run| {
        run.wakes.asked[word] += count as usize;
        run.waiting_for(word)
    });
    let address = run(|run| &raw const run.words[word] as usize);
    let operation = nr::FUTEX_WAKE | nr::FUTEX_PRIVATE_FLAG;
    let woken =
        calls::call(nr::__NR_futex, [address, operation as usize, count as usize, 0, 0, 0]).unwrap_or(0);
    run(|run| {
        run.wakes.said += woken;
        if woken == 0 && !waiting.is_empty() {
            let others = run.wakes.asked[word] - count as usize;
            run.wakes.vain.push(Vain { others, waiting });
        }
    });
}

impl Run {
    /// True if a device may delay transfers for longer than the program takes to rest.
    fn stalls(&self) -> bool {
        self.program.files.iter().any(|file| file.stalls())
    }

    /// Returns the requests that certainly wait for a word now. Those that a thread does, or of a chain, may begin to wait
    /// later, and are left out.
    fn waiting_for(&self, word: usize) -> Vec<usize> {
        let waits = |request: &Request| {
            let Op { what, link, asynchronous, .. } = request.op;
            let is_taken = match &self.rings[request.ring] {
                // If the SQ is empty, the SQ thread has taken all requests.
                Some(ring) if ring.is_polled() => ring.pending() == 0,
                _ => request.is_taken,
            };
            let alone = !link && !asynchronous && !request.follows && !self.drained[request.ring];
            what == What::FutexWait { word } && is_taken && alone && !request.done
        };
        let requests = self.requests.iter().enumerate();
        requests.filter(|(_, request)| waits(request)).map(|(number, _)| number).collect()
    }

    /// True if a request's wait was certainly in progress at a wake-up before its end: it was woken, or it remained at the end
    /// of a program that does not cancel.
    fn waited_on(&self, number: usize) -> bool {
        let request = &self.requests[number];
        let cancels =
            |what: What| matches!(what, What::CancelOne { .. } | What::CancelFile(_) | What::CancelAny);
        let cancels_any = || {
            self.requests.iter().any(|request| cancels(request.op.what))
                || self
                    .program
                    .threads
                    .iter()
                    .flatten()
                    .any(|action| matches!(action, Action::SyncCancel { .. }))
        };
        request.result == 0 || request.result == -(raw::ECANCELED as i32) && request.is_left && !cancels_any()
    }
}

/// Enters a ring; an error that asks to try again counts as no result.
fn enter(ring: usize, submit: u32, wanted: u32, timeout_ns: Option<u64>) -> u32 {
    let flags = if wanted > 0 { IORING_ENTER_GETEVENTS } else { 0 };
    match mapped(ring).enter(submit, wanted, flags, timeout_ns) {
        Ok(count) => count,
        Err(errno) if is_passing(errno) => 0,
        Err(errno) => fail(&format!("enter: errno {errno}")),
    }
}

fn sync_cancel(ring: usize, before: usize, time_ns: u64) {
    let Some(target) = earlier(ring, before) else { return };
    // SAFETY: a structure of integers.
    let mut argument: io_uring_sync_cancel_reg = unsafe { std::mem::zeroed() };
    argument.addr = target;
    argument.timeout.tv_nsec = time_ns as i64;
    let address = &raw const argument as usize;
    let _ = mapped(ring).register(Registration::IORING_REGISTER_SYNC_CANCEL as u32, address, 1);
    reap(ring);
}

/// Returns the request that was submitted to a ring `before` requests before the last one.
fn earlier(ring: usize, before: usize) -> Option<u64> {
    run(|run| {
        let of_ring = run.requests.iter().enumerate().rev().filter(|(_, request)| request.ring == ring);
        of_ring.map(|(index, _)| index as u64).nth(before)
    })
}

fn submit(ring: usize, ops: &[Op], waits: bool) {
    let memory = mapped(ring);
    let first = run(|run| run.requests.len());
    let mut follows = false;
    let mut own = Vec::new();
    for (index, &op) in ops.iter().enumerate() {
        if memory.room() == 0 {
            break;
        }
        let op = Op { link: op.link && index + 1 < ops.len() && memory.room() > 1, ..op };
        let number = prepare(ring, op, follows);
        own.push(number);
        let sqe = sqe_of(number);
        crate::trace::tell(|| format!("ring {ring} gets request {number:#x}, {op:?} on {}", sqe.fd));
        memory.push(&sqe);
        follows = op.link;
    }
    debug_assert!(run(|run| run.requests.len()) >= first, "requests are kept");
    let timeout_ns = waits.then_some(2_000_000);
    if let Err(errno) = memory.submit(u32::from(waits), timeout_ns)
        && !is_passing(errno)
    {
        fail(&format!("enter: errno {errno}"));
    }
    // A request that is refused ends a submission: the next submission takes the requests after it.
    let mut left = ops.len();
    while !memory.is_polled() && memory.pending() > 0 && left > 0 {
        enter(ring, memory.pending(), 0, None);
        left -= 1;
    }
    let taken = !memory.is_polled() && memory.pending() == 0;
    if taken {
        run(|run| {
            for number in own {
                let request = &mut run.requests[number];
                request.is_taken = true;
                // A request outside of chains has looked up its file.
                if !request.follows
                    && !run.drained[ring]
                    && let Some(file) = file_of(request.op.what)
                {
                    // During a concurrent close, the request may get its own file, or any other that has the number
                    // by then.
                    request.is_sure = run.closes[file].are_still(request.closes_before);
                }
            }
        });
    }
    reap(ring);
}

fn file_of(what: What) -> Option<usize> {
    match what {
        What::Read(file)
        | What::Write(file)
        | What::Recv(file)
        | What::Send(file)
        | What::Poll { file, .. }
        | What::Accept { file, .. }
        | What::Close(file)
        | What::Sync(file) => Some(file),
        _ => None,
    }
}

/// Records a request before its SQE is visible.
fn prepare(ring: usize, op: Op, follows: bool) -> usize {
    let (submitted_ns, transfers) = world(|world| (world.now_ns(), world.kernel.transfers.len()));
    let length = 1 + world(|world| world.random.below(BUFFER - 1));
    let calm = calm(op.what);
    run(|run| {
        let current = file_of(op.what).map_or(0, |file| run.files[file].len() - 1);
        let mut closes = -1;
        let closes_before = file_of(op.what).and_then(|file| run.closes[file].so_far());
        if let What::Close(file) = op.what
            && let Some(instance) = run.files[file].last_mut()
        {
            closes = std::mem::replace(&mut instance.near, -1);
            run.closes[file].request();
        }
        run.drained[ring] |= op.drain;
        if let What::FutexWake { word, count } = op.what {
            run.wakes.asked[word] += count as usize;
        }
        run.waits_follow_waits |=
            op.link && matches!(op.what, What::FutexWait { .. } | What::FutexWaitv { .. });
        run.requests.push(Request {
            ring,
            op,
            memory: Box::default(),
            length,
            follows,
            done: false,
            result: 0,
            messages: 0,
            instance: current,
            is_sure: false,
            is_taken: false,
            is_left: false,
            closes_before,
            transfers,
            calm,
            submitted_ns,
            closes,
        });
        run.requests.len() - 1
    })
}

/// Returns the value of `stirred` for a poll's file, unless the file is ready.
fn calm(what: What) -> Option<u64> {
    let What::Poll { file, .. } = what else { return None };
    let (instance, events) =
        run(|run| (*run.files[file].last().expect("there is one"), poll_events(run.program.files[file])));
    world(|world| {
        let stirred = world.kernel.stirred(instance.description, instance.inode)?;
        (world.kernel.ready(instance.description) & events == 0).then_some(stirred)
    })
}

/// Checks that a poll reports an event for which its file was ready.
fn compare_readiness(number: usize, result: i32) {
    let told = run(|run| {
        let request = &run.requests[number];
        let What::Poll { file, .. } = request.op.what else { return None };
        let instance = run.files[file][request.instance];
        let events = poll_events(run.program.files[file]);
        let is_known =
            request.is_sure && !request.op.fixed && run.closes[file].are_still(request.closes_before);
        (is_known && result > 0 && result as u32 & events != 0).then_some((instance, events, request.calm?))
    });
    let Some((instance, events, before)) = told else { return };
    let was_ready = world(|world| {
        let Some(now) = world.kernel.stirred(instance.description, instance.inode) else { return true };
        now > before || world.kernel.ready(instance.description) & events != 0
    });
    if !was_ready {
        fail(&format!(
            "wrong readiness: request {number} tells {result:#x} of {instance:?}, which was never ready"
        ));
    }
}

fn sqe_of(number: usize) -> Sqe {
    let before = |ring, count| earlier(ring, count + 1).unwrap_or(u64::MAX);
    let (ring, op) = run(|run| (run.requests[number].ring, run.requests[number].op));
    let cancelled = if let What::CancelOne { before: count } = op.what { before(ring, count) } else { 0 };
    let near_of = |what| file_of(what).map_or(-1, near);
    let fd = if let What::CancelFile(file) = op.what { near(file) } else { near_of(op.what) };
    let updated = if let What::FilesUpdate { file, .. } = op.what { near(file) } else { -1 };
    run(|run| {
        let ring_fd = |ring: usize| run.rings[ring].as_ref().map_or(-1, |ring| ring.fd);
        let (targets, slots) = (ring_fd, SLOTS);
        let mut sqe = Sqe { fd, user_data: number as u64, ..Sqe::default() };
        let request = &run.requests[number];
        let (buffer, length) = (request.memory.buffer.as_ptr() as u64, request.length as u32);
        let mut time = None;
        let mut transfer = |code: Code, offset: u64| {
            sqe.opcode = code as u8;
            (sqe.addr, sqe.len, sqe.off) = (buffer, length, offset);
        };
        let offset = match file_of(op.what).map(|file| run.program.files[file]) {
            Some(File::Storage { .. }) if number % 3 != 0 => number as u64 % 64,
            _ => u64::MAX,
        };
        match op.what {
            What::Nop => {}
            What::Read(_) => transfer(Code::IORING_OP_READ, offset),
            What::Write(_) => transfer(Code::IORING_OP_WRITE, offset),
            What::Recv(_) => transfer(Code::IORING_OP_RECV, 0),
            What::Send(_) => transfer(Code::IORING_OP_SEND, 0),
            What::Poll { file, multishot } => {
                sqe.opcode = Code::IORING_OP_POLL_ADD as u8;
                sqe.len = if multishot { IORING_POLL_ADD_MULTI } else { 0 };
                sqe.op_flags = poll_events(run.program.files[file]);
            }
            What::Timeout { time_ns } => {
                sqe.opcode = Code::IORING_OP_TIMEOUT as u8;
                time = Some(time_ns);
            }
            What::LinkTimeout { time_ns } => {
                sqe.opcode = Code::IORING_OP_LINK_TIMEOUT as u8;
                time = Some(time_ns);
            }
            What::CancelOne { .. } | What::CancelFile(_) | What::CancelAny => {
                sqe.opcode = Code::IORING_OP_ASYNC_CANCEL as u8;
                sqe.addr = cancelled;
                sqe.op_flags = match op.what {
                    What::CancelFile(_) => IORING_ASYNC_CANCEL_FD,
                    What::CancelAny => IORING_ASYNC_CANCEL_ANY,
                    _ => 0,
                };
            }
            What::Accept { multishot, .. } => {
                sqe.opcode = Code::IORING_OP_ACCEPT as u8;
                sqe.ioprio = if multishot { IORING_ACCEPT_MULTISHOT as u16 } else { 0 };
            }
            What::Message { ring } => {
                sqe.opcode = Code::IORING_OP_MSG_RING as u8;
                (sqe.fd, sqe.off, sqe.len) = (targets(ring), MESSAGE | number as u64, 5);
            }
            What::SendFile { ring, slot } => {
                sqe.opcode = Code::IORING_OP_MSG_RING as u8;
                (sqe.fd, sqe.off) = (targets(ring), MESSAGE | number as u64);
                (sqe.addr, sqe.addr3) = (1, u64::from(slot));
                sqe.file_index = 1 + (slot + 1) % slots as u32;
            }
            What::FilesUpdate { slot, .. } => {
                sqe.opcode = Code::IORING_OP_FILES_UPDATE as u8;
                (sqe.addr, sqe.len, sqe.off) = (request.memory.argument.as_ptr() as u64, 1, u64::from(slot));
            }
            What::Close(_) => {
                sqe.opcode = Code::IORING_OP_CLOSE as u8;
                sqe.fd = request.closes;
            }
            What::Sync(_) => sqe.opcode = Code::IORING_OP_FSYNC as u8,
            What::FutexWait { word } | What::FutexWake { word, .. } => {
                sqe.opcode = Code::IORING_OP_FUTEX_WAIT as u8;
                sqe.fd = (nr::FUTEX2_SIZE_U32 | nr::FUTEX2_PRIVATE) as i32;
                (sqe.addr, sqe.addr3) = (&raw const run.words[word] as u64, u64::from(u32::MAX));
                if let What::FutexWake { count, .. } = op.what {
                    (sqe.opcode, sqe.off) = (Code::IORING_OP_FUTEX_WAKE as u8, u64::from(count));
                }
            }
            What::FutexWaitv { count, .. } => {
                sqe.opcode = Code::IORING_OP_FUTEX_WAITV as u8;
                (sqe.fd, sqe.addr, sqe.len) = (0, request.memory.elements.as_ptr() as u64, count as u32);
            }
        }
        if let What::FutexWaitv { first, count } = op.what {
            let flags = nr::FUTEX2_SIZE_U32 | nr::FUTEX2_PRIVATE;
            for index in 0..count {
                let address = &raw const run.words[first + index] as u64;
                run.requests[number].memory.elements[index] =
                    FutexElement { address, flags, ..FutexElement::default() };
            }
        }
        let request = &mut run.requests[number];
        request.memory.argument[0] = updated;
        if let Some(time_ns) = time {
            request.memory.time = Time::from_ns(time_ns);
            (sqe.addr, sqe.len) = (std::ptr::from_ref(&request.memory.time) as u64, 1);
        }
        let mut flag = |is: bool, bit: Bit| sqe.flags |= u8::from(is) << bit as u8;
        flag(op.link, Bit::IOSQE_IO_LINK_BIT);
        flag(op.drain, Bit::IOSQE_IO_DRAIN_BIT);
        flag(op.asynchronous, Bit::IOSQE_ASYNC_BIT);
        if op.fixed
            && let Some(file) = file_of(op.what)
            && !matches!(op.what, What::Close(_))
        {
            flag(true, Bit::IOSQE_FIXED_FILE_BIT);
            sqe.fd = file as i32;
        }
        sqe
    })
}

fn poll_events(file: File) -> u32 {
    match file {
        File::PipeOut => EPOLLOUT,
        _ => EPOLLIN,
    }
}

// Completions.

fn reap(ring: usize) {
    let memory = mapped(ring);
    world::point();
    while let Some((user_data, result, flags)) = memory.take() {
        completed(ring, user_data, result, flags);
    }
}

/// Checks that messages from one ring to another arrive in order. Chains and drains have an order of their own.
fn message_arrived(target: usize, number: usize) {
    let overtaken = run(|run| {
        let request = &mut run.requests[number];
        request.messages += 1;
        if request.follows || run.drained[request.ring] {
            return None;
        }
        let last = run.arrived.entry((request.ring, target)).or_default();
        let before = std::mem::replace(last, number.max(*last));
        (before > number).then_some(before)
    });
    if let Some(before) = overtaken {
        fail(&format!("wrong order: message {before} arrived before message {number} of the same ring"));
    }
}

fn completed(ring: usize, user_data: u64, result: i32, flags: u32) {
    world(|world| world.mix(user_data ^ (result as u32 as u64) << 32));
    crate::trace::tell(|| format!("ring {ring} completes {user_data:#x} with {result}, flags {flags:#x}"));
    if user_data & OWN != 0 {
        return;
    }
    let number = (user_data & !MESSAGE) as usize;
    let known = run(|run| run.requests.len());
    if number >= known {
        fail(&format!("wrong completion: user data {user_data:#x} is nobody's"));
    }
    if user_data & MESSAGE != 0 {
        message_arrived(ring, number);
        return;
    }
    let more = flags & IORING_CQE_F_MORE != 0;
    let ends = phase() >= 2;
    let (what, twice, elsewhere) = run(|run| {
        let request = &mut run.requests[number];
        let twice = request.done;
        request.done |= !more;
        request.result = result;
        request.is_left = ends;
        (request.op.what, twice, request.ring != ring)
    });
    if twice {
        fail(&format!("doubled completion: request {number} ({what:?}) ends a second time, with {result}"));
    }
    if elsewhere {
        fail(&format!("wrong completion: request {number} ({what:?}) ends in another ring"));
    }
    match what {
        What::Accept { .. } if result >= 0 => close(result),
        What::Poll { multishot: false, .. } => compare_readiness(number, result),
        What::Poll { multishot: true, .. } | What::Accept { multishot: true, .. } => {}
        _ if more => fail(&format!("wrong completion: request {number} ({what:?}) tells of more")),
        What::Read(_) | What::Write(_) | What::Recv(_) | What::Send(_) => compare_transfers(number, result),
        What::Close(_) if result < 0 => {
            let closes = run(|run| std::mem::replace(&mut run.requests[number].closes, -1));
            run(|run| run.fars.push(closes));
        }
        What::FutexWake { .. } => run(|run| run.wakes.said += result.max(0) as usize),
        What::FutexWait { .. } if result == 0 => run(|run| run.wakes.ended += 1),
        What::FutexWaitv { count, .. } if result >= 0 => run(|run| {
            run.wakes.ended += 1;
            run.wakes.spare += count - 1;
        }),
        _ => {}
    }
}

/// Compares a request's result with what the system transferred for it, in the files that it may reach.
fn compare_transfers(number: usize, result: i32) {
    let (address, since) = run(|run| {
        let request = &run.requests[number];
        (request.memory.buffer.as_ptr() as usize, request.transfers)
    });
    let mut moved: Vec<(Place, usize, usize)> = world(|world| {
        let of_request = world.kernel.transfers[since..].iter();
        let here = of_request.filter(|transfer| (address..address + BUFFER).contains(&transfer.address));
        here.map(|transfer| (transfer.place, transfer.address - address, transfer.length)).collect()
    });
    let (what, fixed) = run(|run| (run.requests[number].op.what, run.requests[number].op.fixed));
    let is_its_file = run(|run| {
        let request = &run.requests[number];
        let file = file_of(what).expect("transfers name a file");
        // While a file is closed, any other file may get its number, even one that cannot be waited for.
        fixed || request.is_sure || run.closes[file].are_still(request.closes_before)
    });
    if result == -(raw::EAGAIN as i32) && is_its_file {
        fail(&format!("wrong completion: request {number} ({what:?}) was to wait, and ends with EAGAIN"));
    }
    if matches!(what, What::Read(_)) {
        moved = last_moved(&moved, result.max(0) as usize);
    }
    let sum: usize = moved.iter().map(|&(_, _, length)| length).sum();
    if sum as i32 != result.max(0) {
        fail(&format!("lost bytes: request {number} ({what:?}) reports {result}, and moved {sum} bytes"));
    }
    if fixed {
        return;
    }
    let file = file_of(what).expect("transfers name a file");
    // While a file is closed, any other may get its number.
    let (instance, is_sure) = run(|run| (run.requests[number].instance, run.requests[number].is_sure));
    if !is_sure {
        return;
    }
    let allowed: Vec<Option<Place>> = run(|run| {
        let stream = !matches!(run.program.files[file], File::Storage { .. });
        // If closes are not reported, a request that waits may reach the file that has the number now (docs/differences.md).
        let last = if !stream || run.program.tells_closes { instance } else { run.files[file].len() - 1 };
        let instances = &run.files[file][instance..=last];
        instances.iter().flat_map(|instance| [instance.receives, instance.sends]).collect()
    });
    let told = run(|run| run.program.tells_closes);
    let storage = run(|run| matches!(run.program.files[file], File::Storage { .. }));
    if let Some((place, ..)) = moved.iter().find(|(place, ..)| !allowed.contains(&Some(*place)))
        && (told || storage)
    {
        fail(&format!(
            "wrong file: request {number} ({what:?}) reached {place:?}, and may reach {allowed:?} only"
        ));
    }
}

/// Returns where the first `length` bytes of a read's memory come from: a later read of a byte overrides an earlier one.
fn last_moved(moved: &[(Place, usize, usize)], length: usize) -> Vec<(Place, usize, usize)> {
    let last =
        |at: usize| moved.iter().rev().find(|&&(_, start, length)| (start..start + length).contains(&at));
    (0..length).filter_map(|at| last(at).map(|&(place, ..)| (place, at, 1))).collect()
}

/// Returns how many requests of a ring are to complete.
fn outstanding(ring: usize) -> usize {
    run(|run| run.requests.iter().filter(|request| request.ring == ring && !request.done).count())
}

/// Reaps completions until no more can come.
fn fetch(ring: usize) {
    let (how, defers) = run(|run| {
        let ring = &run.program.rings[ring];
        (ring.fetch, ring.flags & IORING_SETUP_DEFER_TASKRUN != 0)
    });
    let mut cancelled = false;
    let mut look_ns = 3_000_000;
    loop {
        reap(ring);
        let memory = mapped(ring);
        if memory.overflows() {
            enter(ring, 0, 1, Some(0));
            continue;
        }
        if memory.pending() > 0 {
            // Requests that could not be taken at first.
            let _ = memory.submit(0, None);
            if memory.is_polled() {
                world::sleep_for(1_000_000);
            }
            continue;
        }
        let left = outstanding(ring);
        let ends = phase() >= 2;
        if ends && left == 0 {
            return;
        }
        if ends && run(|run| run.drained[ring] || run.waits_follow_waits || run.stalls()) {
            // A drain holds back all later requests, even cancellations. A chain continues after a cancelled wait for a
            // futex, and after a transfer that the device completes later than the cancellation.
            cancel_all_at_once(ring);
        } else if ends && !cancelled {
            cancelled = cancel_all(ring);
            continue;
        }
        match how {
            _ if left == 0 && !have_all_acted() => {
                wait_for(counters::ACTED, run(|run| run.program.threads.len()))
            }
            _ if left == 0 => wait_for(counters::PHASE, 2),
            Fetch::Enter => _ = enter(ring, 0, 1, Some(PATIENCE_NS)),
            Fetch::Look => {
                world::sleep_for(look_ns);
                look_ns = (look_ns * 2).min(LONGEST_LOOK_NS);
            }
            Fetch::Poll => {
                poll_ring(ring);
                if defers {
                    enter(ring, 0, 1, Some(0));
                }
            }
            Fetch::Eventfd => {
                read_eventfd(ring);
                if defers || ends {
                    enter(ring, 0, 1, Some(if ends { 1_000_000_000 } else { 0 }));
                }
            }
        }
    }
}

fn have_all_acted() -> bool {
    let threads = run(|run| run.program.threads.len());
    world(|world| world.counters[counters::ACTED] >= threads as u64)
}

/// Cancels all remaining requests of a ring that no drain holds back.
fn cancel_all_at_once(ring: usize) {
    // SAFETY: a structure of integers.
    let mut argument: io_uring_sync_cancel_reg = unsafe { std::mem::zeroed() };
    argument.flags = IORING_ASYNC_CANCEL_ANY;
    let address = &raw const argument as usize;
    let _ = mapped(ring).register(Registration::IORING_REGISTER_SYNC_CANCEL as u32, address, 1);
    enter(ring, 0, 1, Some(0));
}

/// Polls a ring's descriptor, as a front end does for a program, until there is a completion.
fn poll_ring(ring: usize) {
    let memory = mapped(ring);
    let now_ns = || world(|world| world.kernel.now_ns);
    let mut end_ns = now_ns() + PATIENCE_NS;
    let mut is_missed = false;
    let Ok(fd) = frontend::begin_poll(memory.fd) else {
        // No descriptor can be had now.
        return world::sleep_for(1_000_000);
    };
    loop {
        let time = Time::from_ns(end_ns.saturating_sub(now_ns()));
        let mut entry = nr::pollfd { fd, events: nr::POLLIN as i16, revents: 0 };
        let arguments = [&raw mut entry as usize, 1, &raw const time as usize, 0, 8, 0];
        match calls::call(nr::__NR_ppoll, arguments) {
            Ok(0) if is_missed => fail("late: a poll of the ring sleeps though there is a completion"),
            Ok(0) if memory.has_completion() => {
                // A thread may be about to tell of it.
                (is_missed, end_ns) = (true, now_ns() + 1_000_000_000);
            }
            Ok(_) if entry.revents == nr::POLLIN as i16 && !frontend::end_poll(memory.fd) => {}
            _ => return,
        }
    }
}

fn read_eventfd(ring: usize) {
    let fd = run(|run| run.eventfds[ring]);
    let mut count = 0u64;
    let _ = calls::call(nr::__NR_read, [fd as usize, &raw mut count as usize, 8, 0, 0, 0]);
}

fn kick_eventfds() {
    for fd in run(|run| run.eventfds.clone()) {
        let more = u64::from(u32::MAX);
        if fd >= 0 {
            let _ = calls::call(nr::__NR_write, [fd as usize, &raw const more as usize, 8, 0, 0, 0]);
        }
    }
}

/// Cancels all remaining requests of a ring.
fn cancel_all(ring: usize) -> bool {
    let memory = mapped(ring);
    let code = Code::IORING_OP_ASYNC_CANCEL as u8;
    memory.push(&Sqe { opcode: code, op_flags: IORING_ASYNC_CANCEL_ANY, user_data: OWN, ..Sqe::default() });
    while memory.pending() > 0 {
        let _ = memory.submit(0, None);
        if memory.is_polled() {
            world::sleep_for(1_000_000);
        }
    }
    true
}

/// Reaps messages that came late.
fn fetch_last(ring: usize) {
    loop {
        reap(ring);
        enter(ring, 0, 0, Some(0));
        let _ = mapped(ring).enter(0, 0, IORING_ENTER_GETEVENTS, None);
        reap(ring);
        if !mapped(ring).overflows() {
            return;
        }
    }
}

// The judge.

/// Looks for requests that could continue while everything rests.
fn look_for_stuck(closed: bool) {
    if !world(|world| world.grants_files()) {
        // The engine may have had no descriptor for its reactor: then progress waits for the next call.
        return;
    }
    judge_wakes();
    let stuck = run(|run| {
        run.requests.iter().enumerate().find(|(_, request)| is_stuck(run, request)).map(
            |(number, request)| {
                let instance = file_of(request.op.what).map(|file| run.files[file].last().copied());
                format!("{number} ({:?}) of ring {}, file {instance:?}", request.op, request.ring)
            },
        )
    });
    if let Some(stuck) = stuck {
        let when = if closed { "though its peer is gone" } else { "though all that it waits for is there" };
        fail(&format!("stuck request {stuck}: it does not complete, {when}"));
    }
}

fn is_stuck(run: &Run, request: &Request) -> bool {
    if request.done || request.follows || run.drained[request.ring] {
        return false;
    }
    let what = request.op.what;
    let Some(file) = file_of(what) else {
        return match what {
            // A link timeout that follows no request is refused.
            What::Timeout { time_ns } => {
                request.submitted_ns + time_ns + 1_000_000_000 < world(|world| world.now_ns())
            }
            What::FutexWait { .. } | What::FutexWaitv { .. } => false,
            _ => true,
        };
    };
    let current = run.files[file].len() - 1;
    let polls = matches!(what, What::Poll { .. });
    // Otherwise, the number may have been another file's before the submission took the request.
    let is_known = request.is_sure || run.closes[file].are_still(request.closes_before);
    if !polls && is_known && !request.op.fixed && matches!(run.program.files[file], File::Storage { .. })
        || matches!(what, What::Close(_))
    {
        // The device has the transfer, or one before it.
        let goes_on = |world: &mut world::World| world.now_ns() < world.kernel.stalls_until_ns + REST_NS;
        return !(run.program.files[file].stalls() && world(goes_on));
    }
    let has_current = request.is_sure && request.instance == current;
    if request.op.fixed || !has_current || run.files[file][current].near < 0 {
        return false;
    }
    let ready = world(|world| world.kernel.ready(run.files[file][current].description));
    match what {
        // The engine may have a duplicate of the far end, so the peer may remain after all closes.
        What::Read(_) | What::Recv(_) => ready & (EPOLLIN | EPOLLHUP) != 0,
        What::Write(_) | What::Send(_) => ready & (EPOLLOUT | EPOLLERR) != 0,
        What::Accept { .. } => ready & EPOLLIN != 0,
        What::Poll { multishot: false, .. } => ready & poll_events(run.program.files[file]) != 0,
        _ => false,
    }
}

/// Judges the results after all completions were reaped.
fn judge() {
    let wrong = run(|run| {
        run.requests.iter().enumerate().find_map(|(number, request)| {
            let expected = match request.op.what {
                What::Message { .. } => u32::from(request.result == 0),
                What::SendFile { .. } => u32::from(request.result >= 0),
                _ => 0,
            };
            let fits = request.messages == expected;
            (!fits).then(|| {
                let (result, messages) = (request.result, request.messages);
                format!(
                    "request {number} ({:?}) ended with {result}, and {messages} arrived",
                    request.op.what
                )
            })
        })
    });
    if let Some(wrong) = wrong {
        fail(&format!("lost or doubled message: {wrong}"));
    }
    judge_wakes();
    let missed = run(|run| {
        run.wakes.vain.iter().find_map(|Vain { others, waiting }| {
            let waiting: Vec<usize> =
                waiting.iter().copied().filter(|&number| run.waited_on(number)).collect();
            (waiting.len() > *others).then_some(waiting)
        })
    });
    if let Some(missed) = missed {
        fail(&format!("lost wake-up: one found nobody, though the requests {missed:?} waited"));
    }
}

/// Checks that as many waits have completed as wake-ups have reported.
fn judge_wakes() {
    let (said, ended, spare) = run(|run| (run.wakes.said, run.wakes.ended, run.wakes.spare));
    if said < ended || said > ended + spare {
        fail(&format!(
            "lost wake-up: {said} were said to have woken somebody, and {ended} waits ended, which may have had {spare} more"
        ));
    }
}

// The end.

fn close_far_ends() {
    let fars = run(|run| {
        let fars = run.files.iter_mut().flatten().map(|instance| std::mem::replace(&mut instance.far, -1));
        let fars: Vec<i32> = fars.collect();
        fars.into_iter().chain(run.fars.drain(..)).collect::<Vec<_>>()
    });
    fars.into_iter().for_each(close);
}

fn close_everything() {
    let rings: Vec<Mapped> = run(|run| run.rings.drain(..).flatten().collect());
    rings.into_iter().for_each(close_ring);
    close_far_ends();
    let rest: Vec<i32> = run(|run| {
        let near = run.files.iter_mut().flatten().flat_map(|instance| [instance.near, instance.name]);
        near.chain(run.eventfds.iter().copied()).collect()
    });
    rest.into_iter().for_each(close);
    await_end("rings are left", 200, || {
        simulation::collect();
        simulation::rings() == 0
    });
    await_end("threads are left", 200, || simulation::workers() == 0);
    simulation::end();
    let (left, mapped) = world(|world| (world.kernel.open_descriptors(), world.kernel.mapped()));
    if !left.is_empty() || mapped > 0 {
        fail(&format!("descriptors are left: {left:?}, and {mapped} mappings"));
    }
}

/// Waits for an event that takes some tenths of a second at most.
fn await_end(fault: &str, looks: usize, is_over: impl Fn() -> bool) {
    for _ in 0..looks {
        if is_over() {
            return;
        }
        world::sleep_for(100_000_000);
    }
    fail(&format!("{fault} when everything is closed"));
}
