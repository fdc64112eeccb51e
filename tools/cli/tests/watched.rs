//! Events of the kernel's rings: each submission and completion is reported, in the same form as for rings of the user engine.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyring_both::by;
use anyring_mapping::SharedFile;
use anyring_trace::buffer::{self, Buffer, Next};
use anyring_trace::event::{
    Body, Completed, ENGINE_KERNEL, ENGINE_USER, Event, FOUND, LAST, SKIPPED, Submitted, UNSEEN_REAPED,
    UNSEEN_SQ_THREAD,
};
use support::{Outcome, anyring, kernel_has_io_uring, over_the_kernel};

const SLOTS: usize = 1 << 16;
/// `IORING_CQE_F_NOTIF`.
const NOTIFICATION: u32 = 1 << 3;
/// `IOSQE_CQE_SKIP_SUCCESS`, and the two flags that link.
const SKIPS: u8 = 1 << 6;
const LINKS: u8 = 1 << 2 | 1 << 3;
/// `IORING_OP_ACCEPT` and `IORING_OP_WRITE`.
const ACCEPT: u8 = 13;
const WRITE: u8 = 23;

/// An event, with its first attachment only.
#[derive(Debug)]
struct Told {
    process: u32,
    thread: u32,
    ring: u32,
    time_ns: u64,
    body: Body,
    attachments: usize,
    /// The memory of the first attachment.
    memory: Vec<u8>,
}

/// A buffer that a traced program opens by its path.
struct Reader {
    buffer: Buffer,
    file: SharedFile,
}

impl Reader {
    fn new() -> Reader {
        let file = SharedFile::new(c"watched", buffer::bytes(SLOTS)).unwrap();
        // SAFETY: fresh memory, which is unmapped after the buffer.
        let buffer = unsafe { Buffer::create(file.address(), SLOTS) };
        let settings = &buffer.header().settings;
        settings.reader.store(std::process::id(), Ordering::Relaxed);
        settings.sample.store(32, Ordering::Relaxed);
        Reader { buffer, file }
    }

    /// Takes events, until none are left after `is_over`.
    fn take(&self, is_over: &AtomicBool) -> Vec<Told> {
        let mut told = Vec::new();
        loop {
            let over = is_over.load(Ordering::Acquire);
            match self.buffer.next() {
                Next::Empty if over => return told,
                Next::Empty => {
                    std::thread::yield_now();
                    continue;
                }
                Next::Unfinished(_) if !over => continue,
                Next::Unfinished(process) => panic!("{process} left a record unfinished"),
                Next::Nothing => {}
                Next::Record(record) => {
                    let event = Event::parse(record).expect("an event");
                    let (process, ring) = (event.head.process, event.head.ring);
                    let memory = event.attachments().next().and_then(|(_, bytes)| bytes).unwrap_or_default();
                    told.push(Told {
                        process,
                        thread: event.head.thread,
                        ring,
                        time_ns: event.head.time_ns,
                        body: event.body,
                        attachments: event.attachments().count(),
                        memory: memory.to_vec(),
                    });
                }
            }
            self.buffer.advance();
        }
    }
}

/// Runs the program under a trace; returns its outcome and the events.
fn run(program: &Path, engine: &str, way: &[&str], patch: bool) -> (Outcome, Vec<Told>) {
    let reader = Reader::new();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "240"]).arg(anyring()).args(["run", "--engine", engine, "--"]).arg(program);
    command
        .args(way)
        .env("ANYRING_TRACE", reader.file.path())
        .env("ANYRING_PATCH", if patch { "1" } else { "0" });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| reader.take(&over));
        let output = command.output();
        over.store(true, Ordering::Release);
        let told = taken.join().unwrap();
        let output = output.unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        (Outcome::from(&output), told)
    })
}

/// A request's operation and user data, and one of its results.
type Line = (u8, u64, Option<i32>);

/// All requests and their completions, which are checked against one another.
#[derive(Default)]
struct Requests {
    lines: Vec<Line>,
    /// The number of linked requests.
    linked: usize,
    /// The number of CQEs without a submission.
    strays: usize,
    unseen_submissions: u64,
    unseen_completions: u64,
    ended: bool,
}

fn opcode(submitted: &Submitted) -> u8 {
    submitted.sqe[0] as u8
}

fn flags(submitted: &Submitted) -> u8 {
    (submitted.sqe[0] >> 8) as u8
}

fn line(submitted: &Submitted, completed: Option<&Completed>) -> Line {
    // The numbers of descriptors are not compared.
    let result = |completed: &Completed| match opcode(submitted) {
        ACCEPT => completed.res.min(0),
        _ => completed.res,
    };
    (opcode(submitted), submitted.sqe[4], completed.map(result))
}

fn requests(told: &[Told]) -> Requests {
    let mut all = Requests::default();
    let mut submitted: BTreeMap<(u32, u32, u64), Submitted> = BTreeMap::new();
    let mut last: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut done: BTreeSet<(u32, u32, u64)> = BTreeSet::new();
    let mut times: BTreeMap<(u32, u32, u64), u64> = BTreeMap::new();
    for Told { process, ring, time_ns, body, .. } in told {
        match body {
            Body::Submitted(request) => {
                times.insert((*process, *ring, request.serial), *time_ns);
                let previous = last.insert((*process, *ring), request.serial);
                if let Some(previous) = previous {
                    assert_eq!(request.serial, previous + 1, "each once, in order");
                }
                if request.behind != 0 {
                    let before = &submitted[&(*process, *ring, request.behind)];
                    assert_ne!(flags(before) & LINKS, 0, "linked behind one that links");
                    all.linked += 1;
                }
                submitted.insert((*process, *ring, request.serial), *request);
                all.lines.push(line(request, None));
            }
            Body::Completed(completed) if completed.serial == 0 => all.strays += 1,
            Body::Completed(completed) => {
                let key = (*process, *ring, completed.serial);
                let request = submitted.get(&key).expect("submitted before it completes");
                assert_eq!(request.sqe[4], completed.user_data);
                assert!(times[&key] <= *time_ns, "not completed before it is submitted: {completed:?}");
                let is_notification = completed.flags & NOTIFICATION != 0;
                assert!(
                    is_notification || !done.contains(&key),
                    "nothing comes behind the last: {completed:?}"
                );
                if completed.marks & LAST != 0 && !is_notification {
                    done.insert(key);
                }
                if completed.marks & SKIPPED == 0 {
                    all.lines.push(line(request, Some(completed)));
                }
            }
            Body::Unseen(unseen) if unseen.why == UNSEEN_SQ_THREAD => all.unseen_submissions += unseen.count,
            Body::Unseen(unseen) if unseen.why == UNSEEN_REAPED => all.unseen_completions += unseen.count,
            Body::Unseen(unseen) => panic!("{unseen:?}"),
            Body::Ended(_) => all.ended = true,
            _ => {}
        }
    }
    let skips = |request: &Submitted| flags(request) & SKIPS != 0;
    for (key, request) in &submitted {
        let is_lost = all.unseen_completions > 0;
        assert!(done.contains(key) || skips(request) || is_lost, "never completed: {key:?} {request:?}");
    }
    all.lines.sort_unstable();
    all
}

fn program() -> PathBuf {
    support::built("watched")
}

/// Returns the builds of the program: with its own instructions, which trap or are patched, with functions of the C
/// library, and static; none if the kernel has no rings.
fn builds() -> Vec<(PathBuf, bool)> {
    if !kernel_has_io_uring() {
        return Vec::new();
    }
    let (by_functions, alone) = (support::built("watched-libc"), support::built("watched-static"));
    vec![(program(), false), (program(), true), (by_functions, true), (alone, false)]
}

/// Traces one case of the program on the kernel's rings; its outcome must be that without a trace.
fn follow(program: &Path, way: &[&str], patch: bool) -> Requests {
    let (outcome, told) = run(program, "kernel", way, patch);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    let alone = Command::new(program).args(way).output().unwrap();
    assert_eq!(outcome, Outcome::from(&alone));
    // The command first checks whether the library loads into another program, which reports events, too.
    let has_ring =
        |process| told.iter().any(|told| told.process == process && matches!(told.body, Body::RingMade(_)));
    let engines: BTreeSet<u32> = told
        .iter()
        .filter_map(|told| match told.body {
            Body::Started(started) if has_ring(told.process) => Some(started.engine),
            Body::RingMade(made) => Some(made.engine),
            _ => None,
        })
        .collect();
    assert_eq!(engines, BTreeSet::from([ENGINE_KERNEL]));
    let all = requests(&told);
    assert!(all.ended, "the end is told");
    all
}

/// Traces as [`follow`]; no event may be missing, and the user engine must report the same.
fn follow_all(way: &str) -> Requests {
    let by_engine = run(&program(), "user", &[way], true).1;
    assert!(
        by_engine.iter().any(|told| matches!(told.body, Body::RingMade(made) if made.engine == ENGINE_USER))
    );
    let by_engine = requests(&by_engine);
    for (program, patch) in builds() {
        let all = follow(&program, &[way], patch);
        assert_eq!(all.lines, by_engine.lines, "{}, {way}: (left: the kernel's)", program.display());
        assert_eq!(all.linked, by_engine.linked);
        assert_eq!((all.strays, all.unseen_submissions, all.unseen_completions), (0, 0, 0), "{way}");
    }
    by_engine
}

#[test]
fn requests_and_chains() {
    assert_eq!(follow_all("plain").linked, 3 * 2 + 1);
}

/// A registered file keeps its name after its descriptor was closed, and gets no other file's name.
#[test]
fn registered_files_have_names() {
    follow_all("registered");
    for (program, patch) in builds() {
        let (_, told) = run(&program, "kernel", &["registered"], patch);
        let files: Vec<i32> = told
            .iter()
            .filter_map(|told| match told.body {
                Body::Submitted(request) => Some(request.file),
                _ => None,
            })
            .collect();
        let name =
            |fd| told.iter().find(|told| matches!(told.body, Body::FileNamed(named) if named.fd == fd));
        let [first, -1] = files[..] else { panic!("{files:?}") };
        assert!(name(first).is_some_and(|told| told.memory.starts_with(b"pipe:")), "{first}");
    }
}

#[test]
fn multishots() {
    let all = follow_all("multishots");
    assert_eq!(all.lines.iter().filter(|line| line.0 == ACCEPT).count(), 1 + 3 + 1);
}

#[test]
fn zero_copy_sends_complete_twice() {
    assert_eq!(follow_all("zero-copy").lines.len(), 3 * 3);
}

#[test]
fn successes_without_a_completion() {
    assert_eq!(follow_all("skips").lines.len(), 10 + 2 * 10 + 2);
}

#[test]
fn threads_share_a_ring() {
    assert_eq!(follow_all("threads").lines.len(), 4 * 500 * 2);
}

#[test]
fn children_have_the_ring_too() {
    for (program, patch) in builds() {
        let all = follow(&program, &["forks"], patch);
        // One request before the fork, five requests and one on a ring of its own in the child, five requests in the
        // parent after the fork. The parent may see some of the child's requests, too, while it waits, because they
        // share the ring.
        let lines: BTreeSet<&Line> = all.lines.iter().collect();
        assert_eq!(lines.len(), 2 * (1 + 6 + 5));
        assert_eq!((all.unseen_submissions, all.unseen_completions), (0, 0));
    }
}

#[test]
fn completions_that_are_reaped_without_a_call() {
    assert_eq!(follow_all("reaps").lines.len(), 2 * 3);
}

/// An SQ thread takes and completes more requests than the queues hold while they are not watched: the missing ones are counted.
#[by(over_the_kernel)]
fn what_an_sq_thread_does_unseen_is_counted() {
    const COUNT: u64 = 20_000;
    let all = follow(&program(), &["polled", &COUNT.to_string()], true);
    let told = |completed: bool| all.lines.iter().filter(|line| line.2.is_some() == completed).count() as u64;
    assert_eq!(told(false) + all.unseen_submissions, COUNT);
    assert_eq!(told(true) + all.strays as u64 + all.unseen_completions, COUNT);
    assert!(all.unseen_submissions > 0 && all.unseen_completions > 0);
}

#[test]
fn rings_by_numbers_duplicates_and_in_memory_of_the_program() {
    assert_eq!(follow_all("numbers").lines.len(), 2 * 6);
    assert_eq!(follow_all("sizes").lines.len(), 2 * 60);
    assert_eq!(follow_all("resizes").lines.len(), 2 * 200);
}

/// A watched ring ends like any other ring: the program waits until its resources are released.
#[test]
fn rings_end_though_they_are_looked_at() {
    for (program, patch) in builds() {
        let (outcome, told) = run(&program, "kernel", &["ends"], patch);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "the other end is closed\n"));
        assert!(told.iter().any(|told| matches!(told.body, Body::RingEnded(ended) if ended.in_flight == 1)));
    }
}

/// Each of ten requests is reported with the ID of its thread.
fn ten_threads_have_their_numbers(way: &str) {
    for (program, patch) in builds() {
        for engine in ["kernel", "user"] {
            let (outcome, told) = run(&program, engine, &[way], patch);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
            let of_its_thread = told.iter().filter_map(|told| match &told.body {
                Body::Submitted(submitted) => Some(submitted.sqe[4] == u64::from(told.thread)),
                _ => None,
            });
            assert_eq!(of_its_thread.collect::<Vec<_>>(), [true; 10], "{engine}");
        }
    }
}

/// A thread that reuses the memory of an ended thread has its own ID.
#[test]
fn threads_have_their_numbers() {
    ten_threads_have_their_numbers("successors");
}

/// A thread that shares another's thread-local storage has its own ID.
#[test]
fn threads_that_share_their_storage_have_their_numbers() {
    ten_threads_have_their_numbers("sharers");
}

/// A call is attributed to the ring that has the descriptor now, although the replacement was not seen.
fn comes_to_another_ring(way: &str, result: i32) {
    for (program, patch) in builds() {
        let (outcome, told) = run(&program, "kernel", &[way], patch);
        assert_eq!((outcome.code, outcome.stdout), (Some(0), format!("2: {result}\n")));
        requests(&told);
        // Attached memory could have changed by now, and the CQE could have been posted before the call.
        let submitted = told.iter().filter_map(|told| match &told.body {
            Body::Submitted(submitted) => Some((told.ring, submitted.sqe[4], told.attachments)),
            _ => None,
        });
        let submitted: Vec<_> = submitted.collect();
        // If the watching thread has noticed the replacement before the call, the events are complete.
        let was_noticed = submitted == [(2, 2, 1)];
        assert!(was_noticed || submitted == [(2, 2, 0)], "{submitted:?}");
        let completed = told.iter().filter_map(|told| match &told.body {
            Body::Completed(completed) => Some((told.ring, completed.user_data, completed.marks & FOUND)),
            _ => None,
        });
        let completed: Vec<_> = completed.collect();
        assert!(completed == [(2, 2, FOUND)] || was_noticed && completed == [(2, 2, 0)], "{completed:?}");
        assert_eq!(came_to(&told), [2]);
    }
}

#[test]
fn another_ring_gets_the_descriptor() {
    comes_to_another_ring("replaced", 4);
}

/// The old ring of the descriptor is found to have ended while the call waits.
#[test]
fn another_ring_gets_the_descriptor_and_waits() {
    comes_to_another_ring("replaced-waits", -libc::ETIME);
}

/// Returns the rings of the calls of `io_uring_enter` that were to submit something.
fn came_to(told: &[Told]) -> Vec<u32> {
    let entered = told.iter().filter(|told| matches!(told.body, Body::Entered(one) if one.to_submit > 0));
    entered.map(|told| told.ring).collect()
}

/// A waiting call belongs to its ring, whatever another thread does with the descriptor.
#[test]
fn a_descriptor_is_closed_during_the_call() {
    for (program, patch) in builds() {
        for way in ["closed", "reopened"] {
            let (outcome, told) = run(&program, "kernel", &[way], patch);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
            assert_eq!(came_to(&told), [1], "{way}");
        }
    }
}

/// A request that one thread submits while another one waits is not reported as completed before its submission.
#[test]
fn one_thread_submits_and_another_waits() {
    assert_eq!(follow_all("two").lines.len(), 2 * 2500);
}

/// The memory of a request is copied before the call.
#[by(over_the_kernel)]
fn memory_is_told_as_it_was() {
    let (_, told) = run(&program(), "kernel", &["plain"], true);
    let is_write = |body: &Body| matches!(body, Body::Submitted(one) if opcode(one) == WRITE);
    let writes: Vec<_> = told.iter().filter(|told| is_write(&told.body)).collect();
    assert!(matches!(writes[..], [one] if one.attachments == 1), "{writes:?}");
}

/// Handlers interrupt waits, enter rings and jump out; masks and actions are the program's own.
#[by(over_the_kernel)]
fn signals_are_the_programs() {
    for name in ["signals", "signals-libc", "signals-static"] {
        let program = support::built(name);
        for patch in [false, true] {
            let outcome = run(&program, "kernel", &[], patch).0;
            let expected = Outcome::from(&Command::new(&program).output().unwrap());
            assert_eq!(outcome, expected, "{name}, {patch}");
        }
    }
}

/// Signals that are sent to the process at any moment reach it, and end it if they must.
#[by(over_the_kernel)]
fn signals_that_are_sent_reach_the_program() {
    let program = support::built("sent");
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
        for (way, patch) in [("dies", true), ("late", false), ("late", true)] {
            let outcome = run(&program, "kernel", &[way, &signal.to_string()], patch).0;
            let expected = if way == "dies" { (None, Some(signal)) } else { (Some(0), None) };
            assert_eq!((outcome.code, outcome.signal), expected, "{way} {signal}: {}", outcome.stdout);
        }
    }
}

/// Processes that use each other's rings, and programs that start others.
#[by(over_the_kernel)]
fn processes() {
    for name in ["processes", "backends"] {
        let program = support::built(name);
        let outcome = run(&program, "kernel", &[], true).0;
        assert_eq!(outcome, Outcome::from(&Command::new(&program).output().unwrap()), "{name}");
    }
}
