//! Threads that wait for futexes of the program, one for each word.
//!
//! The kernel's io_uring queues a request on its word while the submitter is at it, counts each wake-up for the request
//! that it took off the queue, and a cancellation takes that off or says that it came too late. Threads can do the same:
//!
//! ```text
//!           spawn
//!             |
//!             v     arrange, place                              FUTEX_WAKE
//!   .---> PARKED ------------------> PLACED -----------------------------------------> woken ---.
//!   |  asleep on a word of   moved to the program's word by       a signal of `recall`          |
//!   |  the engine's          FUTEX_REQUEUE, in the submitter   |---------------------> recalled |
//!   |                                                          |  stopped and continued         |
//!   |                                                          '-> DIRECT: waits on the word ---|
//!   |                                                              itself, if still unchanged   |
//!   '-------------------------------------------------------------------------------------------'
//! ```
//!
//! - **Placing** is the submitter's: a thread that sleeps on a word of the engine's is moved to the program's, behind those
//!   that wait there already. Then the word is looked at once more: who changed it before has perhaps woken before.
//! - **A wake-up counts** for the thread that it took off the queue: `__futex_wait` (kernel/futex/waitwake.c) asks for that
//!   first (`if (!futex_unqueue(&q)) return 0`), and only then for signals. So the result of the call tells a thread that
//!   was woken from one that was recalled, whichever came first.
//! - **A word has a thread of its own.** By `futex_waitv` one thread could sleep on 128 words of many requests. But when it
//!   is woken, `futex_unqueue_multiple` takes it off all of them, and tells of the last alone that had a wake-up: others are
//!   lost, and so are those that come before the thread is queued again. A FUTEX_WAITV, which ends with the first wake-up
//!   of any of its words, does sleep by one `futex_waitv` where there is that call; else it has a thread for each word.
//! - **A stop** (SIGSTOP, a debugger) takes threads off the queues, and the system call begins anew. The word of the
//!   engine's has another value by then, so the thread is not parked again, but goes to the program's word by itself.
//!
//! While the submitter waits for a thread to be parked it holds its ring's lock, for `PATIENCE_NS` at most; as a rule one
//! is parked already. Whoever recalls a wait holds the lock for `VERDICT_NS` at most.
//!
//! Where a waiter is among those of a word is where it was moved to from another hash bucket (`requeue_futex` leaves it
//! where it is if the bucket is the same), so where others wait it takes a way over some words of the engine's.
//!
//! Lock order: a ring's lock, `THREADS`, the list of rings; a ring's lock, a sleeper's state.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

use linux_raw_sys::general::{
    __NR_futex, __NR_futex_waitv, FUTEX_BITSET_MATCH_ANY, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE,
    FUTEX_WAIT_BITSET, FUTEX_WAKE, FUTEX2_PRIVATE, FUTEX2_SIZE_MASK, FUTEX2_SIZE_U32,
};

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, user};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::request::RequestId;
use crate::ring::{Ring, registry};
use crate::work::interrupt::{self, Seat};

/// So many threads stay when they have nothing to wait for, as long as there is a ring.
const MOST_IDLE: usize = 32;
/// Where threads are missing, so many more than are needed now are started at most.
const MOST_AHEAD: usize = 16;
/// A thread that has not begun to sleep by then is given up: the request fails.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Whoever recalls a wait is told by then whether it was woken before, or goes on without an answer.
const VERDICT_NS: u64 = 100_000_000;
/// How many words of the engine's there are between where a thread is parked and the word of the program. The smallest
/// table of the kernel's has 16 buckets: one way in 16^5 begins and ends in the same without a change between.
const STOPS: usize = 4;

/// The values of a word that a thread is parked on. While it is this one, it sleeps there, or is about to.
const PARKED: u32 = 0;
/// It was moved to a word of the program's, or finds it by itself.
const PLACED: u32 = 1;
/// It is to park anew, as its state says.
const PARK_ANEW: u32 = 2;
/// It is to end.
const LEAVE: u32 = 3;

/// The result of a wait that has none yet.
const NO_RESULT: i32 = i32::MIN;

/// Who completes a wait that was recalled: whoever recalled it.
const HELD: u32 = 0;
/// Nobody, so its thread does.
const LEFT: u32 = 1;
/// All its threads are back.
const BACK: u32 = 2;

/// `struct futex_waitv`: a word of the program's and what it is to hold.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Element {
    /// What it is to hold.
    pub value: u64,
    /// Its address.
    pub address: u64,
    /// `FUTEX2_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl user::Plain for Element {}

impl Element {
    /// Is it one that the kernel takes?
    ///
    /// # Errors
    /// `EINVAL` where not.
    pub fn check(&self) -> Result<(), Errno> {
        let known = FUTEX2_SIZE_MASK | FUTEX2_PRIVATE;
        let bad = self.flags & !known != 0
            || self.flags & FUTEX2_SIZE_MASK != FUTEX2_SIZE_U32
            || self.value > u64::from(u32::MAX)
            || self.reserved != 0;
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Can a futex be there?
    pub fn is_aligned(&self) -> bool {
        self.address % 4 == 0
    }

    /// Does the word hold the value?
    ///
    /// # Errors
    /// `EINVAL` and `EFAULT` where there is no word.
    pub fn holds(&self) -> Result<bool, Errno> {
        if !self.is_aligned() {
            return Err(Errno::EINVAL);
        }
        Ok(user::read::<u32>(self.address)? == self.value as u32)
    }

    /// Is it known by its address alone?
    pub fn is_private(&self) -> bool {
        self.flags & FUTEX2_PRIVATE != 0
    }
}

/// `FUTEX_PRIVATE_FLAG` of the older calls.
pub fn private_flag(private: bool) -> u32 {
    if private { FUTEX_PRIVATE_FLAG } else { 0 }
}

/// How a thread sleeps that is parked: it is moved as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Manner {
    private: bool,
    mask: u32,
}

/// Where a thread is parked.
#[derive(Clone)]
enum Berth {
    /// On its own word.
    Own(Manner),
    /// On as many words as it is to wait for.
    Several(Arc<[(AtomicU32, u32)]>),
}

/// A thread that waits for futexes.
struct Sleeper {
    word: AtomicU32,
    /// On its way to a word of the program's it is moved over these.
    stops: [AtomicU32; STOPS],
    credentials: Credentials,
    state: Mutex<State>,
}

struct State {
    berth: Berth,
    /// None before the thread has begun.
    seat: Option<Arc<Seat>>,
    /// What it is placed for.
    task: Option<Task>,
}

/// A thread's part of a wait: so many of its elements.
struct Task {
    wait: Arc<Wait>,
    first: usize,
    count: usize,
}

/// The threads that nobody has.
struct Threads {
    idle: Vec<(Manner, Arc<Sleeper>)>,
    /// Started, and not parked for the first time yet.
    starting: usize,
    /// Told to end, and not gone yet.
    leaving: usize,
    /// Placed, or about to be.
    busy: usize,
}

impl Threads {
    const NONE: Threads = Threads { idle: Vec::new(), starting: 0, leaving: 0, busy: 0 };

    /// Takes one, if it can be one that is parked in this manner.
    fn take(&mut self, manner: Manner) -> Option<(Manner, Arc<Sleeper>)> {
        let index = self.idle.iter().rposition(|&(has, _)| has == manner);
        let taken = index.map(|index| self.idle.swap_remove(index)).or_else(|| self.idle.pop())?;
        self.busy += 1;
        Some(taken)
    }
}

static THREADS: Mutex<Threads> = Mutex::new(Threads::NONE);
/// How often this process was born: what a child has of its parent's waits has no threads.
static BIRTHS: AtomicU32 = AtomicU32::new(0);

/// The lock of the list of threads, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &THREADS
}

/// In a child after `fork`: the parent's threads are not here.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { THREADS.reset() };
    *THREADS.lock() = Threads::NONE;
    BIRTHS.fetch_add(1, Ordering::Relaxed);
}

/// Threads that wait for nothing end: there is no ring any more, or the process has other credentials.
pub fn dismiss() {
    let mut threads = THREADS.lock();
    let idle = core::mem::take(&mut threads.idle);
    threads.leaving += idle.len();
    drop(threads);
    idle.iter().for_each(|(_, sleeper)| sleeper.leave());
}

/// Are those gone that were told so?
pub fn are_dismissed() -> bool {
    THREADS.lock().leaving == 0
}

/// A wait for one word or several.
pub struct Wait {
    ring: &'static Ring,
    serial: u64,
    id: RequestId,
    elements: Vec<Element>,
    sleepers: Vec<Arc<Sleeper>>,
    birth: u32,
    /// Threads that are not back yet.
    out: AtomicU32,
    /// Not 0: somebody wants them back.
    recalled: AtomicU32,
    /// Index of the word that was woken first, or an error.
    result: AtomicI32,
    /// `HELD`, `LEFT` or `BACK`.
    holder: AtomicU32,
    /// What a wait comes to that was recalled and is not completed by whoever did.
    result_if_recalled: AtomicI32,
    /// Called by the thread of a wait that has a result.
    report: fn(&Arc<Wait>),
}

/// What came of a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recall {
    /// Nobody is woken for this wait any more, and nobody was.
    Done,
    /// It was woken before.
    TooLate,
    /// Its thread has not answered in time. It completes the wait, with its own result.
    Unknown,
}

/// A request's hold of its wait: where that is dropped, the wait ends.
pub struct Placed(Arc<Wait>);

/// For whom a wait is.
pub struct Request {
    /// The ring that the request belongs to.
    pub ring: &'static Ring,
    /// Which life of that ring.
    pub serial: u64,
    /// Which request.
    pub id: RequestId,
    /// Called without a lock as soon as the wait has a result.
    pub report: fn(&Arc<Wait>),
}

impl Placed {
    /// Has threads wait for `elements`: queued on all of them when this returns.
    ///
    /// # Errors
    /// `ENOMEM` where a thread cannot be had, and what the kernel says where it does not move waiters.
    pub fn place(request: Request, elements: Vec<Element>, mask: u32) -> Result<Placed, Errno> {
        let together = elements.len() > 1 && kernel_waits_on_several();
        let mut sleepers = Vec::new();
        let wanted = if together { &elements[..1] } else { &elements[..] };
        let result = wanted.iter().try_for_each(|element| {
            let manner = Manner { private: element.is_private(), mask };
            sleepers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            sleepers.push(engage(manner)?);
            if together {
                sleepers[0].park_on_several(&elements, manner)?;
            }
            Ok(())
        });
        if let Err(errno) = result {
            sleepers.into_iter().for_each(|sleeper| sleeper.give_back());
            return Err(errno);
        }
        let count = if together { elements.len() } else { 1 };
        let wait = Arc::new(Wait {
            ring: request.ring,
            serial: request.serial,
            id: request.id,
            elements,
            birth: BIRTHS.load(Ordering::Relaxed),
            out: AtomicU32::new(sleepers.len() as u32),
            sleepers,
            recalled: AtomicU32::new(0),
            result: AtomicI32::new(NO_RESULT),
            holder: AtomicU32::new(HELD),
            result_if_recalled: AtomicI32::new(Errno::ECANCELED.negated()),
            report: request.report,
        });
        for (first, sleeper) in wait.sleepers.iter().enumerate() {
            sleeper.place(Task { wait: wait.clone(), first, count });
        }
        Ok(Placed(wait))
    }

    /// Is it this one?
    pub fn is(&self, wait: &Arc<Wait>) -> bool {
        Arc::ptr_eq(&self.0, wait)
    }

    /// The index of the word that was woken, or an error; `None` while it waits.
    pub fn result(&self) -> Option<i32> {
        self.0.result()
    }

    /// The index of a word that does not hold its value any more.
    pub fn changed(&self) -> Option<usize> {
        self.0.changed()
    }

    /// Takes its threads off the words. Where nobody knows in time what came of that, the wait comes to `errno` if
    /// it was not woken.
    pub fn recall(&self, errno: Errno) -> Recall {
        self.0.begin_recall();
        self.0.verdict(errno)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let wait = &self.0;
        let lives = wait.birth == BIRTHS.load(Ordering::Relaxed);
        if lives && wait.result().is_none() && wait.out.load(Ordering::Acquire) > 0 {
            wait.begin_recall();
        }
    }
}

impl Wait {
    /// The ring that it belongs to.
    pub fn ring(&self) -> &'static Ring {
        self.ring
    }

    /// Which life of that ring.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Which request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    fn result(&self) -> Option<i32> {
        Some(self.result.load(Ordering::SeqCst)).filter(|&result| result != NO_RESULT)
    }

    fn changed(&self) -> Option<usize> {
        self.elements.iter().position(|element| element.holds() == Ok(false))
    }

    fn begin_recall(self: &Arc<Self>) {
        // SeqCst pairs with `end`: a thread that comes back sees this, or is seen to be back in `wait_for_all`.
        self.recalled.store(1, Ordering::SeqCst);
        self.sleepers.iter().for_each(|sleeper| sleeper.interrupt(self));
    }

    /// Waits until all threads are back, or one was woken, or it takes too long.
    fn wait_for_all(&self, until_woken: bool) {
        let give_up_ns = os::monotonic_ns() + VERDICT_NS;
        loop {
            let out = self.out.load(Ordering::SeqCst);
            let left_ns = give_up_ns.saturating_sub(os::monotonic_ns());
            if out == 0 || until_woken && self.result().is_some() || left_ns == 0 {
                return;
            }
            let _ = os::futex_wait(&self.out, out, Some(left_ns));
        }
    }

    fn verdict(&self, errno: Errno) -> Recall {
        self.result_if_recalled.store(errno.negated(), Ordering::Relaxed);
        self.wait_for_all(true);
        if self.result().is_some() {
            return Recall::TooLate;
        }
        // Release pairs with the acquire in `end`.
        match self.holder.compare_exchange(HELD, LEFT, Ordering::AcqRel, Ordering::Acquire) {
            Err(BACK) if self.result().is_none() => Recall::Done,
            Err(BACK) => Recall::TooLate,
            _ => Recall::Unknown,
        }
    }

    /// A thread is back: `result` is the index of the word that it was woken on, or an error, or nothing if it was
    /// recalled.
    fn end(self: &Arc<Self>, result: Option<i32>) {
        let first = result.is_some_and(|result| {
            self.result.compare_exchange(NO_RESULT, result, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
        let last = self.out.fetch_sub(1, Ordering::SeqCst) == 1;
        let mut reports = first;
        if last && self.result().is_none() {
            let left = self.holder.compare_exchange(HELD, BACK, Ordering::AcqRel, Ordering::Acquire).is_err();
            if left {
                self.result.store(self.result_if_recalled.load(Ordering::Relaxed), Ordering::SeqCst);
            }
            reports = left;
        }
        if self.recalled.load(Ordering::SeqCst) != 0 {
            os::futex_wake(&self.out, i32::MAX as u32);
        }
        if first && !last {
            // Before anybody hears of it, nobody waits for the others any more.
            self.begin_recall();
            self.wait_for_all(false);
        }
        if reports {
            (self.report)(self);
        }
    }
}

/// A thread that is parked in this manner, for the caller alone.
fn engage(manner: Manner) -> Result<Arc<Sleeper>, Errno> {
    let give_up_ns = os::monotonic_ns() + PATIENCE_NS;
    let mut started = false;
    loop {
        let taken = THREADS.lock().take(manner);
        match taken {
            Some((_, sleeper)) if !sleeper.can_be_interrupted() => {
                // The program has taken its signal. Another has another one.
                sleeper.dismiss();
                started = false;
            }
            Some((has, sleeper)) => {
                if has != manner {
                    sleeper.park_anew(Berth::Own(manner), has);
                }
                let parked = sleeper.wait_until_parked(give_up_ns);
                return parked.inspect_err(|_| sleeper.dismiss()).map(|()| sleeper);
            }
            None if !started => {
                start(manner)?;
                started = true;
            }
            None if os::monotonic_ns() > give_up_ns => return Err(Errno::ENOMEM),
            None => os::sched_yield(),
        }
    }
}

/// Starts a thread, and some more where many are needed.
fn start(manner: Manner) -> Result<(), Errno> {
    let credentials = credentials::acting();
    let threads = THREADS.lock();
    let lasts = credentials == credentials::common();
    let ahead = if lasts && threads.starting == 0 { (threads.busy / 2).min(MOST_AHEAD) } else { 0 };
    drop(threads);
    for number in 0..=ahead {
        let sleeper = Arc::new(Sleeper {
            word: AtomicU32::new(PARKED),
            stops: [const { AtomicU32::new(0) }; STOPS],
            credentials,
            state: Mutex::new(State { berth: Berth::Own(manner), seat: None, task: None }),
        });
        let argument = Arc::into_raw(sleeper).cast_mut();
        THREADS.lock().starting += 1;
        if threads::spawn(c"iou-futex", run, argument.cast::<c_void>()).is_err() {
            THREADS.lock().starting -= 1;
            // SAFETY: no thread has it.
            drop(unsafe { Arc::from_raw(argument) });
            return if number == 0 { Err(Errno::ENOMEM) } else { Ok(()) };
        }
    }
    Ok(())
}

unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `start` gave it to this thread.
    let sleeper = unsafe { Arc::from_raw(argument.cast::<Sleeper>()) };
    threads::begin(sleeper.credentials);
    let mut seat = Arc::new(Seat::of_this_thread());
    let mut begins = true;
    while sleeper.offer(&seat, core::mem::take(&mut begins)) {
        let Some(task) = sleeper.sleep(&seat) else {
            threads::end();
            THREADS.lock().leaving -= 1;
            return;
        };
        // Whoever recalls what comes next does not mean this one.
        if seat.is_stopped() {
            // A signal that was sent comes at the end of a system call, and does not end a sleep.
            os::gettid();
        }
        seat = interrupt::renew(seat);
        task.0.wait.end(task.1);
    }
}

impl Sleeper {
    /// Lets others have this thread, which is about to park; false where it has left.
    fn offer(self: &Arc<Self>, seat: &Arc<Seat>, begins: bool) -> bool {
        self.word.store(PARKED, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.seat = Some(seat.clone());
        let manner = match state.berth {
            Berth::Own(manner) => manner,
            Berth::Several(_) => Manner { private: true, mask: FUTEX_BITSET_MATCH_ANY },
        };
        state.berth = Berth::Own(manner);
        drop(state);
        let mut threads = THREADS.lock();
        if begins {
            threads.starting -= 1;
        } else {
            threads.busy -= 1;
            let surplus = threads.idle.len() >= MOST_IDLE
                || self.credentials != credentials::common()
                || !registry::has_live();
            if surplus || threads.idle.try_reserve(1).is_err() {
                threads.leaving += 1;
                drop(threads);
                threads::end();
                THREADS.lock().leaving -= 1;
                return false;
            }
        }
        threads.idle.push((manner, self.clone()));
        true
    }

    /// Sleeps until the thread has done what it was placed for, and what came of that; `None` where it is to leave.
    fn sleep(&self, seat: &Seat) -> Option<(Task, Option<i32>)> {
        loop {
            let berth = self.state.lock().berth.clone();
            let result = self.sleep_parked(seat, &berth);
            let word = match &berth {
                Berth::Own(_) => &self.word,
                Berth::Several(words) => &words.first()?.0,
            };
            // Acquire pairs with the release of whoever gave it something to do.
            match word.load(Ordering::Acquire) {
                LEAVE => return None,
                PLACED => {
                    let mut state = self.state.lock();
                    // Nobody can take it away: a recall only says so.
                    let result = match (result, &state.task) {
                        (Ok(index), Some(task)) => Some((task.first + index) as i32),
                        (Err(Errno::EINTR), _) => None,
                        (_, Some(task)) => {
                            let (wait, first, count) = (task.wait.clone(), task.first, task.count);
                            drop(state);
                            let result = wait_directly(seat, &wait, first, count, &berth);
                            state = self.state.lock();
                            result
                        }
                        (_, None) => None,
                    };
                    return state.task.take().map(|task| (task, result));
                }
                PARK_ANEW => self.word.store(PARKED, Ordering::Relaxed),
                // Disturbed.
                _ => {}
            }
        }
    }

    fn sleep_parked(&self, seat: &Seat, berth: &Berth) -> Result<usize, Errno> {
        match berth {
            Berth::Own(manner) => wait_on_one(seat, self.word.as_ptr() as u64, PARKED, *manner),
            Berth::Several(words) => {
                let elements = words.iter().map(|(word, flags)| Element {
                    value: u64::from(PARKED),
                    address: word.as_ptr() as u64,
                    flags: *flags,
                    reserved: 0,
                });
                wait_on_several(seat, &elements.collect::<Vec<_>>())
            }
        }
    }

    /// Has the thread, which is parked in this manner, or about to be, do something else.
    fn order(&self, word: &AtomicU32, private: bool, order: u32) {
        // Release pairs with the acquire in `sleep`.
        word.store(order, Ordering::Release);
        let operation = FUTEX_WAKE | private_flag(private);
        // SAFETY: names a word of ours.
        let _ = unsafe { os::call(__NR_futex, [word.as_ptr() as usize, operation as usize, 1, 0, 0, 0]) };
    }

    /// Has a thread leave that nobody else has.
    fn leave(&self) {
        let berth = self.state.lock().berth.clone();
        match &berth {
            Berth::Own(manner) => self.order(&self.word, manner.private, LEAVE),
            Berth::Several(words) => {
                let (word, flags) = &words[0];
                self.order(word, flags & FUTEX2_PRIVATE != 0, LEAVE);
            }
        }
    }

    /// The caller, who has engaged it, has no use for it, and nobody else has.
    fn dismiss(&self) {
        let mut threads = THREADS.lock();
        threads.busy -= 1;
        threads.leaving += 1;
        drop(threads);
        self.leave();
    }

    /// The caller does not need it after all.
    fn give_back(self: Arc<Self>) {
        if let Berth::Own(manner) = self.state.lock().berth.clone() {
            let mut threads = THREADS.lock();
            if threads.idle.try_reserve(1).is_ok() {
                threads.busy -= 1;
                return threads.idle.push((manner, self.clone()));
            }
        }
        self.dismiss();
    }

    /// Has the thread, which is parked on its word or about to be, park elsewhere.
    fn park_anew(&self, berth: Berth, before: Manner) {
        self.state.lock().berth = berth;
        self.order(&self.word, before.private, PARK_ANEW);
    }

    /// Has the thread, which is parked, park on as many words as there are elements.
    fn park_on_several(&self, elements: &[Element], before: Manner) -> Result<(), Errno> {
        let words: Vec<_> = elements.iter().map(|element| (AtomicU32::new(PARKED), element.flags)).collect();
        let words: Arc<[(AtomicU32, u32)]> = words.into();
        self.park_anew(Berth::Several(words), before);
        self.wait_until_parked(os::monotonic_ns() + PATIENCE_NS)
    }

    /// Waits until the thread sleeps where it is parked.
    fn wait_until_parked(&self, give_up_ns: u64) -> Result<(), Errno> {
        let berth = self.state.lock().berth.clone();
        let (word, private) = match &berth {
            Berth::Own(manner) => (&self.word, manner.private),
            // `futex_wait_multiple_setup` queues on one after the other.
            Berth::Several(words) => {
                let (word, flags) = words.last().ok_or(Errno::EINVAL)?;
                (word, flags & FUTEX2_PRIVATE != 0)
            }
        };
        let address = word.as_ptr() as u64;
        // Whoever is queued there can be moved from there to there.
        while requeue(address, address, private, 1)? == 0 {
            if os::monotonic_ns() > give_up_ns {
                return Err(Errno::ENOMEM);
            }
            os::sched_yield();
        }
        Ok(())
    }

    /// Moves the thread, which is parked, to the words of its task.
    fn place(&self, task: Task) {
        let elements = task.wait.elements[task.first..task.first + task.count].to_vec();
        let mut state = self.state.lock();
        let berth = state.berth.clone();
        state.task = Some(task);
        drop(state);
        // Before it is moved: if it is stopped from now on, it is not parked again. Release pairs with the acquire in
        // `sleep`.
        match &berth {
            Berth::Own(_) => self.word.store(PLACED, Ordering::Release),
            Berth::Several(words) => words.iter().for_each(|(word, _)| word.store(PLACED, Ordering::Release)),
        }
        for (index, element) in elements.iter().enumerate() {
            let word = match &berth {
                Berth::Own(_) => &self.word,
                Berth::Several(words) => &words[index].0,
            };
            self.move_to(word.as_ptr() as u64, element);
        }
    }

    /// Moves the thread behind those that wait for an element. If it does not sleep there any more, it has been stopped
    /// or woken, and knows what to do.
    fn move_to(&self, mut from: u64, element: &Element) {
        let (address, private) = (element.address, element.is_private());
        if requeue(address, address, private, i32::MAX as usize) != Ok(0) {
            for stop in &self.stops {
                let to = stop.as_ptr() as u64;
                if requeue(from, to, private, 1) != Ok(1) {
                    return;
                }
                from = to;
            }
        }
        let _ = requeue(from, address, private, 1);
    }

    /// Can a recall reach it?
    fn can_be_interrupted(&self) -> bool {
        self.state.lock().seat.as_ref().is_some_and(|seat| seat.can_be_interrupted())
    }

    /// Has the thread come back if it is at this wait.
    fn interrupt(&self, wait: &Arc<Wait>) {
        let state = self.state.lock();
        if let State { seat: Some(seat), task: Some(task), .. } = &*state
            && Arc::ptr_eq(&task.wait, wait)
        {
            seat.interrupt();
        }
    }
}

/// Waits on the program's words: the index of the one that was woken, or that has changed since somebody waited for it;
/// `None` where the wait was recalled.
fn wait_directly(seat: &Seat, wait: &Wait, first: usize, count: usize, berth: &Berth) -> Option<i32> {
    let elements = &wait.elements[first..first + count];
    let result = match berth {
        Berth::Own(manner) => wait_on_one(seat, elements[0].address, elements[0].value as u32, *manner),
        Berth::Several(_) => wait_on_several(seat, elements),
    };
    match result {
        Ok(index) => Some((first + index) as i32),
        Err(Errno::EINTR) => None,
        Err(Errno::EAGAIN) => Some(wait.changed().unwrap_or(first) as i32),
        Err(errno) => Some(errno.negated()),
    }
}

fn wait_on_one(seat: &Seat, address: u64, value: u32, manner: Manner) -> Result<usize, Errno> {
    let operation = FUTEX_WAIT_BITSET | private_flag(manner.private);
    let arguments = [address as usize, operation as usize, value as usize, 0, 0, manner.mask as usize];
    // SAFETY: names a word, which the kernel checks.
    unsafe { seat.call(__NR_futex, arguments) }
}

fn wait_on_several(seat: &Seat, elements: &[Element]) -> Result<usize, Errno> {
    let arguments = [elements.as_ptr() as usize, elements.len(), 0, 0, 0, 0];
    // SAFETY: reads the elements, and the words that they name, which the kernel checks.
    unsafe { seat.call(__NR_futex_waitv, arguments) }
}

/// Moves up to `most` of those that wait on one word to another; tells how many. From a word to itself it moves none, and
/// tells how many wait there.
fn requeue(from: u64, to: u64, private: bool, most: usize) -> Result<usize, Errno> {
    let operation = FUTEX_REQUEUE | private_flag(private);
    // SAFETY: names words; wakes nobody.
    unsafe { os::call(__NR_futex, [from as usize, operation as usize, 0, most, to as usize, 0]) }
}

/// Has the kernel `futex_waitv` (since 5.16), and may this process use it?
fn kernel_waits_on_several() -> bool {
    // SAFETY: names no futex at all.
    let answer = unsafe { os::call(__NR_futex_waitv, [0; 6]) };
    answer == Err(Errno::EINVAL)
}
