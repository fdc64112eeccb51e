//! Runs a program on both engines in lock step, or on one engine against recorded answers of the kernel ([`Tape`]).

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyring_engine::ops;
use anyring_engine::request::op::Caps;
use linux_raw_sys::io_uring::*;

use super::compare::{self, Verdict, returns_fd};
use super::explain;
use super::program::*;
use super::progress;
use super::side::{Arena, Side};
use super::tape::{Tape, Taped};
use super::world::{Place, digest};
use crate::harness::sqe_flags::{ASYNC, LINKS, SKIP};
use crate::ring::{self, Engine};

/// `IORING_REGISTER_SYNC_CANCEL`.
const SYNC_CANCEL: u32 = 24;

/// The request that ends a program, and the first of several if more are needed.
pub const LAST_WORD: u64 = 1 << 40;

/// A difference between the engines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The step; `None` for the end of the program.
    pub step: Option<usize>,
    /// The signature, which is equal for differences that probably have one cause.
    pub signature: String,
    /// The result of the user engine.
    pub user: String,
    /// The result of the kernel.
    pub kernel: String,
}

/// Why a run stops early.
enum Stop {
    /// The engines differ.
    Differs(Difference),
    /// The engines have an intended difference: the index of the explanation.
    Explained(usize),
}

type Outcome = Result<(), Stop>;

/// Normalises the result of a cancellation, which threads may change.
fn found(result: i32) -> i32 {
    in_time(result).min(0)
}

/// Normalises the result of a call, which may have used all its time.
fn in_time(result: i32) -> i32 {
    if result == -libc::ETIME { 0 } else { result }
}

/// Flags that are withheld from an engine.
#[derive(Clone, Copy, Debug)]
pub struct Unsaid {
    /// The flags removed from every SQE.
    pub flags: u8,
    /// The chain whose links are removed, by its first request.
    pub chain: Option<u64>,
}

impl Unsaid {
    /// The value for an engine that gets all flags.
    pub const NOTHING: Unsaid = Unsaid { flags: 0, chain: None };

    fn without(&self, program: &Program, sqe: &Sqe) -> Sqe {
        let apart = self.chain.is_some_and(|head| program.chain_of(sqe.user_data) == head);
        let links = if apart { LINKS } else { 0 };
        Sqe { flags: sqe.flags & !self.flags & !links, ..*sqe }
    }
}

/// Durations of a run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The timeout of a wait in `enter`.
    pub wait_ns: u64,
    /// The time for an engine to post what the other has posted.
    pub settle: Duration,
    /// The time to see whether a busy thread is about to finish.
    pub linger_ns: u64,
    /// The pause between steps.
    pub pause: Duration,
    /// The flags that are withheld from the second engine.
    pub unsaid: Unsaid,
}

impl Times {
    /// The durations of the first run of a program.
    pub const FIRST: Times = Times {
        wait_ns: 4_000_000,
        settle: Duration::from_millis(100),
        linger_ns: 400_000,
        pause: Duration::ZERO,
        unsaid: Unsaid::NOTHING,
    };
    /// The durations for many attempts with programs that differ.
    pub const HASTY: Times = Times {
        wait_ns: 2_000_000,
        settle: Duration::from_millis(15),
        linger_ns: 1_000_000,
        pause: Duration::ZERO,
        unsaid: Unsaid::NOTHING,
    };
    /// The durations for certainty.
    pub const PATIENT: Times = Times {
        wait_ns: 30_000_000,
        settle: Duration::from_millis(400),
        linger_ns: 20_000_000,
        pause: Duration::ZERO,
        unsaid: Unsaid::NOTHING,
    };
    /// The durations for a comparison with recorded answers, which do not depend on speed: only differences take this long. A disk may keep a
    /// SYNC_FILE_RANGE waiting for more than 5 s: so long a scheduler (mq-deadline) lets other writes pass one.
    pub const REPLAYED: Times = Times { settle: Duration::from_secs(60), ..Times::PATIENT };
    /// The durations with time for threads between steps.
    pub const UNHURRIED: Times = Times { pause: Duration::from_millis(4), ..Times::PATIENT };
}

/// Memory of one program for both engines: a thread that waits for a futex may end some time after its ring, and a wake-up of
/// the next program must not find it there.
#[derive(Default)]
pub struct Arenas {
    first: Arena,
    second: Arena,
}

struct Run<'a> {
    /// The program without SQEs that did not fit into the SQ.
    program: Cow<'a, Program>,
    user: Side<'a>,
    /// `None` if the kernel's answers are on the tape.
    kernel: Option<Side<'a>>,
    tape: &'a mut Tape,
    /// The kernel's CQEs from the tape that are compared next.
    expected: Vec<ring::Cqe>,
    /// The tape's record of memory and world, after it was read.
    effects: Option<(String, Vec<String>)>,
    times: Times,
    /// SQEs that were pushed and that the engines have not taken.
    queued: Vec<Sqe>,
    /// Chains that were submitted as a whole.
    chains: Vec<Vec<u64>>,
    /// The number of submitted requests without their last CQE.
    outstanding: usize,
    /// True if a thread may be doing a request.
    threads: bool,
    step: Option<usize>,
    /// True if a chain was cut, so that the kernel gave its part to a thread.
    cut: bool,
    /// True if SQEs have been taken since the last wait.
    fresh: bool,
}

/// Runs a program on two engines; with a tape for reading, only on the first. Returns the index of the explanation of an
/// intended difference.
///
/// # Errors
/// Returns the first difference.
pub fn run(
    program: &Program,
    engines: [Engine; 2],
    arenas: &Arenas,
    scratch: &Path,
    times: Times,
    tape: &mut Tape,
) -> Result<Option<usize>, Difference> {
    progress::mark(0, Engine::User);
    let user = Side::new(engines[0], Place::First, &arenas.first, scratch, program);
    progress::mark(0, Engine::Kernel);
    let live = !tape.is_read();
    let kernel = live.then(|| Side::new(engines[1], Place::Second, &arenas.second, scratch, program));
    let mut run = Run {
        program: Cow::Borrowed(program),
        user,
        kernel,
        tape,
        expected: Vec::new(),
        effects: None,
        times,
        queued: Vec::new(),
        chains: Vec::new(),
        outstanding: 0,
        threads: false,
        step: None,
        cut: false,
        fresh: false,
    };
    match run.go(&program.steps) {
        Ok(()) => Ok(None),
        Err(Stop::Explained(why)) => Ok(Some(why)),
        Err(Stop::Differs(difference)) => Err(difference),
    }
}

impl Run<'_> {
    fn go(&mut self, steps: &[Step]) -> Outcome {
        if !self.compare_setup()? {
            return Ok(());
        }
        for (number, step) in steps.iter().enumerate() {
            self.step = Some(number);
            self.take_step(step)?;
            self.pause();
            if self.program.strict && self.cut {
                // From here on the program differs from the generated one.
                return Ok(());
            }
            if self.program.strict {
                self.compare_words()?;
            }
        }
        self.step = None;
        self.end()
    }

    fn pause(&self) {
        if !self.times.pause.is_zero() {
            std::thread::sleep(self.times.pause);
        }
    }

    /// Calls `body` with the sides of both engines.
    fn each(&mut self, mut body: impl FnMut(&mut Side<'_>)) {
        let step = self.step.unwrap_or(usize::MAX);
        progress::mark(step, Engine::User);
        body(&mut self.user);
        if let Some(kernel) = &mut self.kernel {
            progress::mark(step, Engine::Kernel);
            body(kernel);
        }
    }

    /// Returns the results of both engines: the kernel's is written to the tape, or read from it.
    fn both<T: Taped>(&mut self, mut body: impl FnMut(&mut Side<'_>) -> T) -> (T, T) {
        let step = self.step.unwrap_or(usize::MAX);
        progress::mark(step, Engine::User);
        let user = body(&mut self.user);
        let Some(kernel) = &mut self.kernel else { return (user, self.tape.read()) };
        progress::mark(step, Engine::Kernel);
        let kernel = body(kernel);
        self.tape.write(&kernel);
        (user, kernel)
    }

    /// Returns the kernel's CQEs that were not compared.
    fn kernel_taken(&mut self) -> &mut Vec<ring::Cqe> {
        match &mut self.kernel {
            Some(kernel) => &mut kernel.taken,
            None => &mut self.expected,
        }
    }

    /// Reads the CQEs that are compared next from the tape.
    fn expect_taken(&mut self) {
        if self.kernel.is_none() {
            self.expected = self.tape.read();
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, (user, kernel): (T, T)) -> Outcome {
        if user == kernel {
            Ok(())
        } else {
            Err(self.difference(what, format!("{user:?}"), format!("{kernel:?}")))
        }
    }

    fn difference(&self, what: &str, user: String, kernel: String) -> Stop {
        Stop::Differs(Difference { step: self.step, signature: what.to_owned(), user, kernel })
    }

    /// Returns true if both engines created a ring.
    fn compare_setup(&mut self) -> Result<bool, Stop> {
        let seen = self.both(|side| match &side.ring {
            Ok(ring) => {
                let params = &ring.params;
                let array = u32::from(params.sq_off.array != 0);
                Ok([params.sq_entries, params.cq_entries, params.flags, array])
            }
            Err(errno) => Err(*errno),
        });
        self.same(&format!("setup {:?} / {:?}", seen.0, seen.1), seen)?;
        Ok(seen.0.is_ok())
    }

    fn take_step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Push(sqe) => {
                let without = self.times.unsaid.without(&self.program, sqe);
                // The user engine comes first.
                let mut said = sqe;
                let pushed = self.both(|side| side.push(std::mem::replace(&mut said, &without)));
                if pushed.0 {
                    self.queued.push(*sqe);
                } else {
                    self.program.to_mut().forget(sqe.user_data);
                }
                self.same("room in the SQ", pushed)
            }
            Step::Enter(call) => self.enter(call),
            Step::Reap(count) => {
                self.each(|side| side.reap(*count));
                if !self.program.strict {
                    return Ok(());
                }
                self.expect_taken();
                self.compare_taken()
            }
            Step::Register(call) => {
                let mut results = self.both(|side| side.register(call));
                if call.opcode == SYNC_CANCEL && self.program.uses_threads() {
                    // Whether the request was found at work depends on timing.
                    results = (found(results.0), found(results.1));
                }
                let kind = |result: i32| if result > 0 { 1 } else { result };
                let what = format!("register {} {} / {}", call.opcode, kind(results.0), kind(results.1));
                self.same(&what, results)
            }
            Step::Act(act) => {
                let seen = self.both(|side| side.act(*act));
                if seen.0 != seen.1
                    && matches!(act, Act::Read(..))
                    && let Some(why) = explain::held_back_explained(&self.program)
                {
                    return Err(Stop::Explained(why));
                }
                self.same(&format!("act {act:?}"), seen)
            }
            Step::Settle => self.settle(),
        }
    }

    fn enter(&mut self, call: &Enter) -> Outcome {
        let wait_ns = self.times.wait_ns;
        let mut results = self.both(|side| side.enter(call, wait_ns));
        if self.program.sends_zero_copy() {
            // A notification ends a wait, too.
            results = (in_time(results.0), in_time(results.1));
        }
        self.note_submitted(results.0.max(0) as usize);
        let kind = |result: i32| if result > 0 { 1 } else { result };
        self.same(&format!("enter {} / {}", kind(results.0), kind(results.1)), results)
    }

    /// Records the SQEs that the engines have taken.
    fn note_submitted(&mut self, count: usize) {
        let taken: Vec<Sqe> = self.queued.drain(..count.min(self.queued.len())).collect();
        self.cut |= taken.last().is_some_and(|sqe| sqe.flags & LINKS != 0);
        self.fresh |= !taken.is_empty();
        let mut chain = Vec::new();
        let mut timed = false;
        for sqe in &taken {
            self.outstanding += usize::from(sqe.flags & SKIP == 0);
            let code = u32::from(sqe.opcode);
            timed |= code == io_uring_op::IORING_OP_LINK_TIMEOUT as u32
                || code == io_uring_op::IORING_OP_EPOLL_WAIT as u32;
            self.threads |= sqe.flags & ASYNC != 0 || code == io_uring_op::IORING_OP_TIMEOUT as u32 || timed;
            chain.push(sqe.user_data);
            if sqe.flags & LINKS == 0 {
                if chain.len() > 1 && !timed {
                    self.chains.push(std::mem::take(&mut chain));
                }
                chain.clear();
                timed = false;
            }
        }
    }

    /// Compares ring words and visible CQEs of a deterministic program.
    fn compare_words(&mut self) -> Outcome {
        let seen = self.both(|side| {
            let ring = side.ring();
            let cqes: Vec<ring::Cqe> = (0..ring.ready()).map(|nth| ring.peek(nth)).collect();
            let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
            let words = [sq.head, sq.flags, sq.dropped, cq.overflow];
            (cqes, words.map(|offset| ring.word(offset).load(Ordering::Acquire)))
        });
        if seen.0.0 != seen.1.0 {
            let what = match compare::compare(&self.program, &seen.0.0, &seen.1.0) {
                Verdict::Differ(signature, _, _) => signature,
                Verdict::Explained(why) => return Err(Stop::Explained(why)),
                Verdict::Same => "order of CQEs".into(),
            };
            return self.same(&format!("strict {what}"), (seen.0.0, seen.1.0));
        }
        let (user, mut kernel) = (seen.0.1, seen.1.1);
        // The kernel keeps the flag if a linked request became ready while it ran the previous one.
        kernel[1] &= !IORING_SQ_TASKRUN | user[1];
        self.same("[SQ head, SQ flags, dropped, overflow]", (user, kernel))
    }

    /// Gives both engines time to post what the other has posted, and reaps it.
    fn settle(&mut self) -> Outcome {
        let looked = self.both(|side| side.look(0, 0));
        self.same(&format!("enter to look {} / {}", looked.0, looked.1), looked)?;
        if looked.0 == -libc::EBADFD {
            return Ok(());
        }
        self.expect_taken();
        self.linger();
        for _ in 0..if self.times.pause.is_zero() { 0 } else { 4 } {
            self.pause();
            self.each(|side| _ = side.look(0, 0));
        }
        let begun = Instant::now();
        loop {
            self.each(|side| side.reap(u32::MAX));
            let taken = std::mem::take(self.kernel_taken());
            let verdict = compare::compare(&self.program, &self.user.taken, &taken);
            *self.kernel_taken() = taken;
            match verdict {
                _ if begun.elapsed() > self.times.settle => break,
                // The other engine may not have done what a full CQ hides.
                Verdict::Same if !self.hides_cqes() => break,
                _ => {}
            }
            let told = |cqes: &[ring::Cqe]| cqes.iter().filter(|cqe| !compare::is_notification(cqe)).count();
            let (user, kernel) = (told(&self.user.taken), told(self.kernel_taken()));
            let lacks = |mine: usize, other: usize| other.saturating_sub(mine).max(1) as u32;
            // Notifications may have filled the CQ, so that missing CQEs wait behind them.
            let both = self.program.sends_zero_copy();
            if user <= kernel || both {
                progress::mark(self.step.unwrap_or(usize::MAX), Engine::User);
                self.user.look(lacks(user, kernel), 5_000_000);
            }
            if let Some(side) = self.kernel.as_mut().filter(|_| kernel <= user || both) {
                progress::mark(self.step.unwrap_or(usize::MAX), Engine::Kernel);
                side.look(lacks(kernel, user), 5_000_000);
            }
        }
        self.compare_taken()
    }

    /// True if an engine has more CQEs than fit into its CQ.
    fn hides_cqes(&mut self) -> bool {
        let hides = |side: &mut Side<'_>| {
            let ring = side.ring();
            ring.word(ring.params.sq_off.flags).load(Ordering::Acquire) & IORING_SQ_CQ_OVERFLOW != 0
        };
        hides(&mut self.user) || self.kernel.as_mut().is_some_and(hides)
    }

    /// Waits if no CQE is ready yet, because threads of either engine may be about to post one.
    fn linger(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let Some(kernel) = &mut self.kernel else { return };
        let ready = (self.user.ring().ready(), kernel.ring().ready());
        if self.outstanding as u32 <= ready.0.min(ready.1) || ready.0 != ready.1 {
            return;
        }
        if self.threads {
            self.user.look(ready.0 + 1, self.times.linger_ns);
        }
        if self.threads || fresh {
            kernel.look(ready.1 + 1, self.times.linger_ns / 2);
        }
    }

    /// Compares the CQEs reaped so far, and drops them.
    fn compare_taken(&mut self) -> Outcome {
        let (user, kernel) = (std::mem::take(&mut self.user.taken), std::mem::take(self.kernel_taken()));
        let sides = [(Some(&mut self.user), &user), (self.kernel.as_mut(), &kernel)];
        for (side, cqes) in sides.into_iter().filter_map(|(side, cqes)| Some((side?, cqes))) {
            // A program may give notifications a separate user_data, which may be that of another request.
            for cqe in cqes.iter().filter(|cqe| cqe.res >= 0 && !compare::is_notification(cqe)) {
                if self.program.sqe(cqe.user_data).is_some_and(returns_fd)
                    && let Some(before) = side.returned.insert(cqe.user_data, cqe.res)
                {
                    ring::close(before);
                }
            }
        }
        self.tape.write(&compare::told(&self.program, &kernel));
        let is_last = |cqe: &&ring::Cqe| {
            cqe.flags & IORING_CQE_F_MORE == 0 && self.program.sqe(cqe.user_data).is_some()
        };
        let last = user.iter().filter(is_last).count();
        self.outstanding = self.outstanding.saturating_sub(last);
        match compare::compare(&self.program, &user, &kernel) {
            Verdict::Same => {}
            Verdict::Explained(why) => return Err(Stop::Explained(why)),
            Verdict::Differ(signature, user, kernel) => return Err(self.difference(&signature, user, kernel)),
        }
        for chain in &self.chains {
            let order = (compare::order_in(chain, &user), compare::order_in(chain, &kernel));
            self.same("order of CQEs in a chain", order)?;
        }
        self.forget_closed(&user);
        Ok(())
    }

    /// Forgets a descriptor that a request returned and another request closed.
    fn forget_closed(&mut self, cqes: &[ring::Cqe]) {
        for cqe in cqes.iter().filter(|cqe| cqe.res == 0) {
            if let Some(&Sqe { opcode, fd: Fd::From(id), file_index: Value::Raw(0), .. }) =
                self.program.sqe(cqe.user_data)
                && u32::from(opcode) == io_uring_op::IORING_OP_CLOSE as u32
            {
                self.each(|side| _ = side.returned.remove(&id));
            }
        }
    }

    fn end(&mut self) -> Outcome {
        if self.program.strict {
            return Ok(());
        }
        self.settle()?;
        if self.program.ending == Ending::CancelAll && self.can_cancel() {
            self.cancel_all()?;
        }
        let compared = self.compare_effects();
        let settled = self.outstanding == 0 || !matches!(compared, Err(Stop::Differs(_)));
        if settled || self.tape.is_written() {
            return compared;
        }
        // Requests that threads are doing still change files.
        self.wait_for_threads()?;
        self.compare_effects()
    }

    /// Reaps CQEs that either engine posts within a while.
    fn wait_for_threads(&mut self) -> Outcome {
        let begun = Instant::now();
        while begun.elapsed() < self.times.settle {
            self.each(|side| _ = side.look(1, 2_000_000));
            self.each(|side| side.reap(u32::MAX));
        }
        if self.kernel.is_some() { self.compare_taken() } else { Ok(()) }
    }

    /// Compares the effects of requests on memory and the world.
    fn compare_effects(&mut self) -> Outcome {
        let Some(kernel) = &self.kernel else { return self.compare_effects_with_tape() };
        let masked = &self.program.masked;
        let (user, kernel) = (self.user.changes(masked), kernel.changes(masked));
        self.tape.write(&digest(&kernel));
        if let Some(at) = (0..user.len()).find(|&at| user[at] != kernel[at]) {
            let shown = |bytes: &[u8]| {
                format!("{}: {:02x?}", Value::At(at as u32), &bytes[at..(at + 16).min(bytes.len())])
            };
            let region = if at < BUFFERS as usize { "structures" } else { "buffers" };
            if let Some(why) = explain::incremental_explained(&self.program, at as u32) {
                return Err(Stop::Explained(why));
            }
            if region == "buffers"
                && let Some(why) = self.why_contents_differ()
            {
                return Err(Stop::Explained(why));
            }
            return Err(self.difference(&format!("memory: {region}"), shown(&user), shown(&kernel)));
        }
        let (user, kernel) = self.both(|side| side.world.state());
        self.compare_world(&user, &kernel)
    }

    /// Compares the effects with a tape, which has only a digest of memory.
    fn compare_effects_with_tape(&mut self) -> Outcome {
        if self.effects.is_none() {
            self.effects = Some((self.tape.read(), self.tape.read()));
        }
        let (memory, world) = self.effects.clone().expect("just read");
        let changes = digest(&self.user.changes(&self.program.masked));
        if changes != memory {
            let why = self.why_contents_differ().map(Stop::Explained);
            return Err(why.unwrap_or_else(|| self.difference("memory", changes, memory)));
        }
        let state = self.user.world.state();
        self.compare_world(&state, &world)
    }

    fn compare_world(&self, user: &[String], kernel: &[String]) -> Outcome {
        let pairs = user.iter().zip(kernel);
        if let Some((ours, theirs)) = pairs.into_iter().find(|(ours, theirs)| ours != theirs) {
            if ours.contains(" is at ")
                && let Some(why) = explain::position_explained(&self.program)
            {
                return Err(Stop::Explained(why));
            }
            if ours.contains(" holds ")
                && let Some(why) = self.why_contents_differ()
            {
                return Err(Stop::Explained(why));
            }
            let what = format!("world: {}", ours.split(' ').next().unwrap_or(""));
            return Err(self.difference(&what, ours.clone(), theirs.clone()));
        }
        self.same("world", (user.len(), kernel.len()))
    }

    fn why_contents_differ(&self) -> Option<usize> {
        explain::contents_explained(&self.program)
            .or_else(|| explain::held_back_explained(&self.program))
            .or_else(|| explain::chains_explained(&self.program))
            .or_else(|| explain::bundle_explained(&self.program))
    }

    fn can_cancel(&self) -> bool {
        ops::lookup(io_uring_op::IORING_OP_ASYNC_CANCEL as u8).caps.has(Caps::PRESENT)
    }

    /// Cancels all requests in flight, whose results must be equal.
    fn cancel_all(&mut self) -> Outcome {
        if self.user.ring().params.flags & IORING_SETUP_R_DISABLED != 0 {
            return Ok(());
        }
        let left_over = self.queued.len() as u32;
        if left_over > 0 {
            let call = Enter {
                to_submit: left_over,
                min_complete: 0,
                flags: IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                patience: Patience::None,
                argument_size: 24,
            };
            for _ in 0..left_over {
                if !self.queued.is_empty() {
                    self.enter(&call)?;
                    self.pause();
                }
            }
            self.settle()?;
        }
        let mut sqe = Sqe::new(io_uring_op::IORING_OP_ASYNC_CANCEL as u8, LAST_WORD);
        sqe.op_flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
        self.each(|side| _ = side.push(&sqe));
        let call = Enter {
            to_submit: 1,
            min_complete: 0,
            flags: IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
            patience: Patience::None,
            argument_size: 24,
        };
        self.enter(&call)?;
        self.settle()
    }
}
