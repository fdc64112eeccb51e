//! Threads that wait for futexes of the program, one for each wait.
//!
//! The kernel's io_uring queues a request on its word inside the submission, counts each wake-up for the request that it
//! dequeued, and a cancellation either dequeues the request or reports that it came too late. Threads can do the same:
//!
//! ```text
//!           spawn
//!             |
//!             v     engage, place                               FUTEX_WAKE
//!   .---> PARKED ------------------> PLACED -----------------------------------------> woken ---.
//!   |  asleep on a word of   moved to the program's word by       a signal of `call_off`        |
//!   |  the engine's          FUTEX_REQUEUE, in the submitter   |---------------------> recalled |
//!   |                                                          |  stopped and continued         |
//!   |                                                          '-> waits on the word itself, ---|
//!   |                                                              if it is still unchanged     |
//!   '-------------------------------------------------------------------------------------------'
//! ```
//!
//! - **Placing** is done by the submitter: it moves a thread that sleeps on a word of the engine's to the program's word, behind earlier
//!   waiters. Then it reads the word once more: a thread that changed the word earlier may have sent its wake-up earlier, too.
//! - **A wake-up counts** for the thread that it dequeued: `__futex_wait` (kernel/futex/waitwake.c) checks that first
//!   (`futex_unqueue`), and only then checks for signals. So the call's result tells a woken thread from a recalled one,
//!   whichever event came first.
//! - **Requests share no thread.** With `futex_waitv` one thread could sleep on 128 words of many requests. But when it is woken,
//!   `futex_unqueue_multiple` takes it off all of the words, and reports only the last word that had a wake-up: other wake-ups are lost,
//!   and so are those that come before the thread is queued again. A FUTEX_WAITV ends with the first wake-up of any of its words, so it
//!   sleeps by `futex_waitv` if the kernel has this call; else it has a thread for each word.
//! - **A thread that is left over** when its request is gone (its signal has an action of the program's by now) stays
//!   on the program's word until it is woken, and passes that wake-up on.
//! - **A stop** (SIGSTOP, a debugger) dequeues threads, and the kernel restarts the system call. The engine's word
//!   has another value by then, so the thread is not parked again, but waits on the program's word by itself.
//! - **If FUTEX_REQUEUE does not return** the number of moved threads (gVisor returns that of woken threads), or no signal reaches the
//!   thread, the thread is not moved either, but waits on the program's word by itself. The submitter waits a little for it.
//!
//! While the submitter waits for a thread to park, it holds its ring's lock, for `PATIENCE_NS` at most; usually a thread
//! is parked already. A caller that recalls waits holds the lock for `VERDICT_NS` at most, however many waits there are.
//!
//! A moved waiter goes to the end of a word's queue only if it comes from another hash bucket (`requeue_futex` leaves it in place if the
//! bucket is the same). So if other threads wait for the word, the thread is moved over several words of the engine's first.
//!
//! Lock order: a ring's lock, `THREADS`, then the list of rings or a sleeper's state. A wait's progress is locked alone.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

use linux_raw_sys::general::{
    __NR_futex, __NR_futex_waitv, CLOCK_MONOTONIC, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE, FUTEX_WAIT_BITSET,
    FUTEX_WAITV_MAX, FUTEX_WAKE, FUTEX_WAKE_BITSET, FUTEX2_PRIVATE, FUTEX2_SIZE_MASK, FUTEX2_SIZE_U32,
};

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Timespec, user};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::request::{Phase, RequestId, Slab};
use crate::ring::{Ring, registry};
use crate::work::interrupt::{self, InterruptSlot};

/// Up to this many idle threads are kept while there is a ring.
const MOST_IDLE: usize = 32;
/// The time within which a thread must begin to sleep; otherwise the request fails.
const PATIENCE_NS: u64 = 2_000_000_000;
/// The time between two attempts to interrupt threads.
const AGAIN_NS: u64 = 10_000_000;
/// The time within which a recall learns whether the waits were woken before; then it returns without an answer.
const VERDICT_NS: u64 = 100_000_000;
/// The time that a thread gets to fall asleep, if its sleep cannot be observed.
const SETTLE_BLINDLY_NS: u64 = 1_000_000;
/// The time between two looks of a thread that no signal reaches.
const SLICE_NS: u64 = 20_000_000;
/// The times between two checks whether a thread sleeps: the first, and the longest.
const LOOK_NS: core::ops::RangeInclusive<u64> = 10_000..=1_000_000;
/// The number of the engine's words between the word that a thread is parked on and the program's word. The kernel's
/// smallest table has 16 buckets: with probability 16^-5 all of these words are in one bucket.
const STOPS: usize = 4;
/// `futex_waitv` gets one word of the engine's beside the program's words, by which the thread is seen to sleep.
const MOST_TOGETHER: usize = FUTEX_WAITV_MAX as usize - 1;

/// The value of the word that a thread is parked on while it sleeps there, or is about to.
const PARKED: u32 = 0;
/// The value of that word when the thread has an order.
const ORDERED: u32 = 1;

/// `struct futex_waitv`: a word of the program, and its expected value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Element {
    /// The expected value.
    pub value: u64,
    /// The word's address.
    pub address: u64,
    /// `FUTEX2_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl user::Plain for Element {}

impl Element {
    /// Checks that the kernel accepts the element.
    ///
    /// # Errors
    /// `EINVAL` if it does not.
    pub fn check(&self) -> Result<(), Errno> {
        let known = FUTEX2_SIZE_MASK | FUTEX2_PRIVATE;
        let bad = self.flags & !known != 0
            || self.flags & FUTEX2_SIZE_MASK != FUTEX2_SIZE_U32
            || self.value > u64::from(u32::MAX)
            || self.reserved != 0;
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// True if the address is aligned as a futex must be.
    pub fn is_aligned(&self) -> bool {
        self.address % 4 == 0
    }

    /// True if the word holds the expected value.
    ///
    /// # Errors
    /// `EINVAL` if the address is not aligned, `EFAULT` if it is not mapped.
    pub fn holds(&self) -> Result<bool, Errno> {
        if !self.is_aligned() {
            return Err(Errno::EINVAL);
        }
        Ok(user::read::<u32>(self.address)? == self.value as u32)
    }

    /// True if the futex is identified by its address alone.
    pub fn is_private(&self) -> bool {
        self.flags & FUTEX2_PRIVATE != 0
    }
}

/// Returns `FUTEX_PRIVATE_FLAG` for the older calls, if the futex is private.
pub fn private_flag(private: bool) -> u32 {
    if private { FUTEX_PRIVATE_FLAG } else { 0 }
}

/// How a parked thread sleeps; a requeue does not change it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Manner {
    private: bool,
    mask: u32,
}

/// A thread that waits for futexes.
struct Sleeper {
    /// The word that the thread is parked on. Written under the state's lock.
    word: AtomicU32,
    /// The words over which the thread is moved to a word of the program.
    stops: [AtomicU32; STOPS],
    /// The last word in the thread's `futex_waitv`.
    end: AtomicU32,
    credentials: Credentials,
    state: Mutex<State>,
}

struct State {
    manner: Manner,
    /// The thread's slot; `None` before the thread has begun.
    slot: Option<Arc<InterruptSlot>>,
    /// The thread's order, if its word is `ORDERED`.
    order: Option<Order>,
}

/// An order to a parked thread.
enum Order {
    /// To do a task, which is the order until the thread has its result.
    Wait(Task),
    /// To park again in another manner.
    ParkAnew,
    /// To end.
    Leave,
}

/// A thread's part of a wait: some of its elements.
#[derive(Clone)]
struct Task {
    wait: Arc<Wait>,
    first: usize,
    count: usize,
    /// The thread waits on the words by itself: it is not moved.
    itself: bool,
}

/// The threads without a wait.
struct Threads {
    idle: Vec<Arc<Sleeper>>,
    /// The number of threads that were told to end, and have not ended.
    leaving: usize,
}

impl Threads {
    const NONE: Threads = Threads { idle: Vec::new(), leaving: 0 };
}

static THREADS: Mutex<Threads> = Mutex::new(Threads::NONE);
/// The number of forks in this process's ancestry. A child has its parent's waits without their threads.
static BIRTHS: AtomicU32 = AtomicU32::new(0);

/// Whether FUTEX_REQUEUE returns the number of moved threads. `UNKNOWN` before the first thread was parked.
static REQUEUES_TELL: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// Returns the lock of the list of threads, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &THREADS
}

/// Forgets the parent's threads in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { THREADS.reset() };
    *THREADS.lock() = Threads::NONE;
    REQUEUES_TELL.store(UNKNOWN, Ordering::Relaxed);
    BIRTHS.fetch_add(1, Ordering::Relaxed);
}

/// Ends idle threads: there is no ring any more, or the process has other credentials.
pub fn dismiss() {
    let mut threads = THREADS.lock();
    let idle = core::mem::take(&mut threads.idle);
    threads.leaving += idle.len();
    drop(threads);
    idle.iter().for_each(|sleeper| sleeper.order(Order::Leave));
}

/// True if all threads that were told to end have ended.
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
    /// The bits that a wake-up must match.
    mask: u32,
    birth: u32,
    progress: Mutex<Progress>,
    /// 1 once all threads are back.
    back: AtomicU32,
    /// Called by the last thread that comes back.
    report: fn(&Arc<Wait>),
}

/// The progress of a wait.
struct Progress {
    /// The number of threads that are not back yet.
    out: usize,
    /// The threads were interrupted; a caller that asks for a verdict waits until this time, 0 if there is no such caller.
    recalled: Option<u64>,
    /// The highest index of the woken words (`futex_unqueue_multiple` reports the last, too), else an error.
    result: Option<i32>,
    /// The recall gave up before it had a verdict: the wait's result if it was not woken.
    left: Option<i32>,
    /// The request is gone: a wake-up must be passed on.
    abandoned: bool,
}

/// The result of a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recall {
    /// The wait was not woken, and will not be.
    Done,
    /// The wait was woken before the recall.
    TooLate,
    /// Some of the wait's threads have not answered in time. The last one completes the wait.
    Unknown,
}

/// A request's handle of its wait; dropping it ends the wait.
pub struct Placed(Arc<Wait>);

/// The request of a wait.
pub struct Request {
    /// The ring that the request belongs to.
    pub ring: &'static Ring,
    /// The serial number of that ring, which tells it from a later ring in the same place.
    pub serial: u64,
    /// The request that waits.
    pub id: RequestId,
    /// Called without a lock when the wait has a result, and all its threads are off its words.
    pub report: fn(&Arc<Wait>),
}

impl Placed {
    /// Makes threads wait for `elements`. When this returns, the wait is queued on all words.
    ///
    /// # Errors
    /// `ENOMEM` if no thread can be made.
    pub fn place(request: Request, elements: Vec<Element>, mask: u32) -> Result<Placed, Errno> {
        let together = if elements.len() > 1 && kernel_waits_on_several() { MOST_TOGETHER } else { 1 };
        let mut sleepers = Vec::new();
        let result = elements.chunks(together).try_for_each(|part| {
            sleepers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            sleepers.push(engage(Manner { private: part[0].is_private(), mask })?);
            Ok(())
        });
        if let Err(errno) = result {
            sleepers.into_iter().for_each(Sleeper::give_back);
            return Err(errno);
        }
        let wait = Arc::new(Wait {
            ring: request.ring,
            serial: request.serial,
            id: request.id,
            birth: BIRTHS.load(Ordering::Relaxed),
            progress: Mutex::new(Progress {
                out: sleepers.len(),
                recalled: None,
                result: None,
                left: None,
                abandoned: false,
            }),
            elements,
            sleepers,
            mask,
            back: AtomicU32::new(0),
            report: request.report,
        });
        for (sleeper, first) in wait.sleepers.iter().zip((0..).step_by(together)) {
            let count = together.min(wait.elements.len() - first);
            if let Err(errno) = sleeper.place(&wait, first, count) {
                wait.fails(errno);
            }
        }
        Ok(Placed(wait))
    }

    /// True if this is the handle of `wait`.
    pub fn is(&self, wait: &Arc<Wait>) -> bool {
        Arc::ptr_eq(&self.0, wait)
    }

    /// Returns the index of the word that was woken, or an error; `None` while a thread waits.
    pub fn result(&self) -> Option<i32> {
        let progress = self.0.progress.lock();
        progress.result.filter(|_| progress.out == 0)
    }

    /// True if the wait has ended already, or must not begin because a word does not hold its value any more.
    /// Recall it then: the thread that ended it has interrupted only the threads that were placed by then.
    pub fn is_over(&self) -> bool {
        self.0.progress.lock().recalled.is_some() || self.0.changed().is_some()
    }

    /// Takes the wait's threads off the words. If they do not answer in time, the wait's result is `errno` unless it
    /// was woken.
    pub fn recall(&self, errno: Errno) -> Recall {
        self.0.call_off(os::monotonic_ns() + VERDICT_NS);
        self.0.verdict(errno)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.0.birth == BIRTHS.load(Ordering::Relaxed) {
            self.0.progress.lock().abandoned = true;
            self.0.call_off(0);
        }
    }
}

impl Slab {
    /// Begins to cancel the futex waits among these requests: interrupts all their threads, with one deadline for all.
    pub fn call_off_waits(&self, ids: &[RequestId]) {
        let until_ns = os::monotonic_ns() + VERDICT_NS;
        for request in ids.iter().filter_map(|&id| self.get(id)) {
            if request.phase == Phase::Armed
                && let Some(Placed(wait)) = request.data.as_own()
            {
                wait.call_off(until_ns);
            }
        }
    }
}

impl Wait {
    /// Returns the ring of the request.
    pub fn ring(&self) -> &'static Ring {
        self.ring
    }

    /// Returns the serial number of that ring.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the request that waits.
    pub fn id(&self) -> RequestId {
        self.id
    }

    fn changed(&self) -> Option<usize> {
        self.elements.iter().position(|element| element.holds() == Ok(false))
    }

    /// Interrupts the wait's threads. A caller that asks for a verdict waits until `until_ns` (0: none asks) or an earlier deadline.
    fn call_off(self: &Arc<Self>, until_ns: u64) {
        let mut progress = self.progress.lock();
        if progress.out == 0 {
            return;
        }
        progress.recalled = progress.recalled.filter(|&until_ns| until_ns > 0).or(Some(until_ns));
        drop(progress);
        self.interrupt();
    }

    fn interrupt(self: &Arc<Self>) {
        self.sleepers.iter().for_each(|sleeper| sleeper.interrupt(self));
    }

    /// Fails the wait with an error that no thread returned.
    fn fails(self: &Arc<Self>, errno: Errno) {
        let mut progress = self.progress.lock();
        progress.result = progress.result.max(Some(errno.negated()));
        drop(progress);
        self.call_off(0);
    }

    fn verdict(self: &Arc<Self>, errno: Errno) -> Recall {
        loop {
            let mut progress = self.progress.lock();
            if progress.out == 0 {
                let left = progress.left.is_some();
                return match progress.result {
                    Some(_) => Recall::TooLate,
                    None if left => Recall::Unknown,
                    None => Recall::Done,
                };
            }
            let left_ns = progress.recalled.unwrap_or(0).saturating_sub(os::monotonic_ns());
            if left_ns == 0 {
                progress.left = progress.left.or(Some(errno.negated()));
                return Recall::Unknown;
            }
            drop(progress);
            let _ = os::futex_wait(&self.back, 0, Some(left_ns.min(AGAIN_NS)));
            // Retries signals that could not be sent.
            self.interrupt();
        }
    }

    /// Notes that a thread is back: `result` is the index of the word on which it was woken, or an error; `None`
    /// if the thread was recalled.
    fn end(self: &Arc<Self>, result: Option<i32>) {
        let mut progress = self.progress.lock();
        if progress.abandoned
            && let Some(element) = result.and_then(|index| self.elements.get(usize::try_from(index).ok()?))
        {
            pass_on(element, self.mask);
        }
        // An index is greater than an error, and an error greater than `None`.
        progress.result = progress.result.max(result);
        progress.out -= 1;
        if progress.out > 0 {
            let ends = progress.result.is_some();
            drop(progress);
            if ends {
                self.call_off(0);
            }
            return;
        }
        let awaited = progress.recalled.is_some();
        progress.result = progress.result.or(progress.left);
        let reports = progress.result.is_some();
        drop(progress);
        if awaited {
            self.back.store(1, Ordering::Relaxed);
            os::futex_wake(&self.back, i32::MAX as u32);
        }
        if reports {
            (self.report)(self);
        }
    }
}

/// Returns a thread that is parked in this manner, for the caller alone.
fn engage(manner: Manner) -> Result<Arc<Sleeper>, Errno> {
    loop {
        let mut threads = THREADS.lock();
        let alike = threads.idle.iter().rposition(|sleeper| sleeper.state.lock().manner == manner);
        let idle = alike.map(|index| threads.idle.swap_remove(index)).or_else(|| threads.idle.pop());
        drop(threads);
        let was_idle = idle.is_some();
        let sleeper = idle.map_or_else(|| start(manner), Ok)?;
        sleeper.park_as(manner);
        if let Err(errno) = sleeper.wait_until_parked() {
            sleeper.dismiss();
            return Err(errno);
        }
        // If the program has set an action for this thread's signal, a new thread may use another signal.
        if sleeper.can_be_recalled() || !was_idle {
            return Ok(sleeper);
        }
        sleeper.dismiss();
    }
}

/// Starts a thread.
fn start(manner: Manner) -> Result<Arc<Sleeper>, Errno> {
    let sleeper = Arc::new(Sleeper {
        word: AtomicU32::new(PARKED),
        stops: [const { AtomicU32::new(0) }; STOPS],
        end: AtomicU32::new(0),
        credentials: credentials::acting(),
        state: Mutex::new(State { manner, slot: None, order: None }),
    });
    let argument = Arc::into_raw(sleeper.clone()).cast_mut();
    threads::spawn(c"iou-futex", run, argument.cast::<c_void>()).map_err(|_| {
        // SAFETY: no thread has the argument.
        drop(unsafe { Arc::from_raw(argument) });
        Errno::ENOMEM
    })?;
    Ok(sleeper)
}

unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `start` has passed this reference to this thread.
    let sleeper = unsafe { Arc::from_raw(argument.cast::<Sleeper>()) };
    threads::begin(sleeper.credentials);
    let mut slot = Arc::new(InterruptSlot::of_this_thread());
    sleeper.state.lock().slot = Some(slot.clone());
    while let Some((task, result)) = sleeper.serve(&slot) {
        // A later recall of the thread must not be mistaken for one of this wait.
        if slot.is_stopped() {
            // A pending signal is delivered at the end of this system call, so it does not interrupt a later sleep.
            os::gettid();
        }
        slot = interrupt::renew(slot);
        sleeper.state.lock().slot = Some(slot.clone());
        task.wait.end(result);
        if !sleeper.offer() {
            break;
        }
    }
    threads::end();
    THREADS.lock().leaving -= 1;
}

impl Sleeper {
    /// Adds this thread, which is about to park, to the idle ones; false if it must end.
    fn offer(self: &Arc<Self>) -> bool {
        let mut threads = THREADS.lock();
        let stays = threads.idle.len() < MOST_IDLE
            && self.credentials == credentials::common()
            && registry::has_live()
            && threads.idle.try_reserve(1).is_ok();
        if stays {
            threads.idle.push(self.clone());
        } else {
            threads.leaving += 1;
        }
        stays
    }

    /// Parks until the thread has an order to wait, and waits; returns the task and its result, or `None` if the thread must end.
    fn serve(&self, slot: &InterruptSlot) -> Option<(Task, Option<i32>)> {
        loop {
            let manner = self.state.lock().manner;
            // Parks without a timeout: orders wake by FUTEX_WAKE, and only threads that signals reach are moved.
            let slept = wait_on_one(slot, self.word.as_ptr() as u64, PARKED, manner, 0);
            let mut state = self.state.lock();
            let task = match &state.order {
                // A spurious wake-up.
                None => continue,
                Some(Order::Leave) => return None,
                Some(Order::ParkAnew) => {
                    state.order = None;
                    self.word.store(PARKED, Ordering::Relaxed);
                    continue;
                }
                Some(Order::Wait(task)) => task.clone(),
            };
            let manner = state.manner;
            drop(state);
            let result = match slept {
                Ok(_) if !task.itself => Some(task.first as i32),
                Err(Errno::EINTR) => None,
                _ => self.wait_by_itself(slot, &task, manner),
            };
            let mut state = self.state.lock();
            state.order = None;
            self.word.store(PARKED, Ordering::Relaxed);
            return Some((task, result));
        }
    }

    /// Waits on the program's words. Returns the index of the word that was woken or has changed since the wait began, or
    /// an error; `None` if the wait was recalled.
    fn wait_by_itself(&self, slot: &InterruptSlot, task: &Task, manner: Manner) -> Option<i32> {
        // The kernel gets addresses of the program here.
        user::take_tags();
        let elements = &task.wait.elements[task.first..][..task.count];
        let result = match elements {
            [element] => in_slices(slot, |until| {
                wait_on_one(slot, element.address, element.value as u32, manner, until)
            }),
            _ => self.wait_on_several(slot, elements),
        };
        match result {
            Ok(index) => Some((task.first + index) as i32),
            Err(Errno::EINTR) => None,
            Err(Errno::EAGAIN) => Some(task.wait.changed().unwrap_or(task.first) as i32),
            Err(errno) => Some(errno.negated()),
        }
    }

    fn wait_on_several(&self, slot: &InterruptSlot, elements: &[Element]) -> Result<usize, Errno> {
        let end = Element {
            value: 0,
            address: self.end.as_ptr() as u64,
            flags: FUTEX2_SIZE_U32 | FUTEX2_PRIVATE,
            reserved: 0,
        };
        let mut all = Vec::new();
        all.try_reserve_exact(elements.len() + 1).map_err(|_| Errno::ENOMEM)?;
        all.extend_from_slice(elements);
        all.push(end);
        in_slices(slot, |until| {
            let arguments = [all.as_ptr() as usize, all.len(), 0, until, CLOCK_MONOTONIC as usize, 0];
            // SAFETY: reads the elements and the words at their addresses, which the kernel checks.
            unsafe { slot.call(__NR_futex_waitv, arguments) }
        })
    }

    /// Gives an order to the thread, which is parked or about to be.
    fn order(&self, order: Order) {
        let mut state = self.state.lock();
        state.order = Some(order);
        let private = state.manner.private;
        self.word.store(ORDERED, Ordering::Relaxed);
        drop(state);
        wake_one(&self.word, private);
    }

    /// Ends the thread, which the caller has engaged and nobody else has.
    fn dismiss(&self) {
        THREADS.lock().leaving += 1;
        self.order(Order::Leave);
    }

    /// Returns a thread that the caller has engaged, but does not need.
    fn give_back(self: Arc<Self>) {
        if !self.offer() {
            self.order(Order::Leave);
        }
    }

    /// Makes the thread, which is parked or about to be, park in this manner.
    fn park_as(&self, manner: Manner) {
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.manner, manner);
        if before == manner {
            return;
        }
        state.order = Some(Order::ParkAnew);
        self.word.store(ORDERED, Ordering::Relaxed);
        drop(state);
        wake_one(&self.word, before.private);
    }

    /// Waits until the thread sleeps on its word, if that can be observed.
    fn wait_until_parked(&self) -> Result<(), Errno> {
        let private = self.state.lock().manner.private;
        let (word, stop) = (self.word.as_ptr() as u64, self.stops[0].as_ptr() as u64);
        wait_until(|| match REQUEUES_TELL.load(Ordering::Relaxed) {
            NO => self.state.lock().slot.is_some(),
            YES => is_queued(word, private),
            _ => {
                // A thread that was moved to the stop is found there, whatever the requeue returned.
                let told = requeue(word, stop, private);
                let moved = wake_one(&self.stops[0], private);
                if told == Ok(1) {
                    REQUEUES_TELL.store(YES, Ordering::Relaxed);
                } else if moved || told.is_err() {
                    REQUEUES_TELL.store(NO, Ordering::Relaxed);
                }
                false
            }
        })
    }

    /// Moves the parked thread to the words of its task, or makes it wait there by itself.
    ///
    /// # Errors
    /// The kernel's error for a word. The caller must interrupt the thread then.
    fn place(&self, wait: &Arc<Wait>, first: usize, count: usize) -> Result<(), Errno> {
        // Locked until the thread is placed: a thread that is woken earlier waits for this lock.
        let mut state = self.state.lock();
        let signalled = state.slot.as_ref().is_some_and(|slot| slot.is_reached_by_signals());
        let tell = REQUEUES_TELL.load(Ordering::Relaxed) == YES;
        let itself = count > 1 || !tell || !signalled;
        state.order = Some(Order::Wait(Task { wait: wait.clone(), first, count, itself }));
        // Stored before the move: if the thread is stopped from now on, it does not park again.
        self.word.store(ORDERED, Ordering::Relaxed);
        if !itself {
            return self.move_to(&wait.elements[first]);
        }
        let private = state.manner.private;
        drop(state);
        wake_one(&self.word, private);
        if count > 1 && tell {
            let end = self.end.as_ptr() as u64;
            return wait_until(|| is_queued(end, true) || wait.progress.lock().result.is_some());
        }
        os::pause(SETTLE_BLINDLY_NS);
        Ok(())
    }

    /// Moves the thread behind those that wait for an element. If the thread is not parked any more, it was stopped, and
    /// waits on the element by itself.
    fn move_to(&self, element: &Element) -> Result<(), Errno> {
        let (address, private) = (element.address, element.is_private());
        let mut from = self.word.as_ptr() as u64;
        if requeue(address, address, private)? > 0 {
            for stop in &self.stops {
                let to = stop.as_ptr() as u64;
                if requeue(from, to, private)? == 0 {
                    return Ok(());
                }
                from = to;
            }
        }
        requeue(from, address, private).map(drop)
    }

    /// True if a recall can interrupt the thread.
    fn can_be_recalled(&self) -> bool {
        self.state.lock().slot.as_ref().is_some_and(|slot| slot.can_be_interrupted())
    }

    /// Interrupts the thread if it is at this wait.
    fn interrupt(&self, wait: &Arc<Wait>) {
        let state = self.state.lock();
        if let State { slot: Some(slot), order: Some(Order::Wait(task)), .. } = &*state
            && Arc::ptr_eq(&task.wait, wait)
        {
            slot.interrupt();
        }
    }
}

/// Checks a condition until it is true, each time after a longer sleep.
///
/// # Errors
/// `ENOMEM` if that takes longer than `PATIENCE_NS`.
fn wait_until(mut done: impl FnMut() -> bool) -> Result<(), Errno> {
    let give_up_ns = os::monotonic_ns() + PATIENCE_NS;
    let mut look_ns = *LOOK_NS.start();
    while !done() {
        if os::monotonic_ns() > give_up_ns {
            return Err(Errno::ENOMEM);
        }
        os::pause(look_ns);
        look_ns = (look_ns * 2).min(*LOOK_NS.end());
    }
    Ok(())
}

/// Repeats a call that sleeps until a given time (0: without a limit), as often as necessary to notice a recall.
fn in_slices(
    slot: &InterruptSlot,
    mut call: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if slot.is_reached_by_signals() {
        return call(0);
    }
    loop {
        let until = Timespec::from_ns(os::monotonic_ns() + SLICE_NS);
        match call(&raw const until as usize) {
            Err(Errno::ETIMEDOUT) if slot.is_stopped() => return Err(Errno::EINTR),
            Err(Errno::ETIMEDOUT) => {}
            other => return other,
        }
    }
}

fn wait_on_one(
    slot: &InterruptSlot,
    address: u64,
    value: u32,
    manner: Manner,
    until: usize,
) -> Result<usize, Errno> {
    let operation = FUTEX_WAIT_BITSET | private_flag(manner.private);
    let arguments = [address as usize, operation as usize, value as usize, until, 0, manner.mask as usize];
    // SAFETY: names a word, which the kernel checks.
    unsafe { slot.call(__NR_futex, arguments) }
}

/// Wakes one thread that sleeps on a word of the engine's; true if there was one.
fn wake_one(word: &AtomicU32, private: bool) -> bool {
    let operation = FUTEX_WAKE | private_flag(private);
    // SAFETY: names a word of the engine's.
    let woken = unsafe { os::call(__NR_futex, [word.as_ptr() as usize, operation as usize, 1, 0, 0, 0]) };
    woken == Ok(1)
}

/// Wakes the next waiter of a word of the program, on behalf of a thread that has no use for its wake-up.
fn pass_on(element: &Element, mask: u32) {
    user::take_tags();
    let operation = FUTEX_WAKE_BITSET | private_flag(element.is_private());
    let arguments = [element.address as usize, operation as usize, 1, 0, 0, mask as usize];
    // SAFETY: names a word, which the kernel checks. By futex(2), waiters must expect spurious wake-ups.
    let _ = unsafe { os::call(__NR_futex, arguments) };
}

/// Moves the first waiter of one word to another; returns the number of moved waiters. If both words are one, moves
/// none, and returns whether there is a waiter.
fn requeue(from: u64, to: u64, private: bool) -> Result<usize, Errno> {
    let operation = FUTEX_REQUEUE | private_flag(private);
    // SAFETY: names words; wakes nobody.
    unsafe { os::call(__NR_futex, [from as usize, operation as usize, 0, 1, to as usize, 0]) }
}

/// True if a thread sleeps on this word of the engine's.
fn is_queued(word: u64, private: bool) -> bool {
    requeue(word, word, private) == Ok(1)
}

/// True if the kernel has `futex_waitv` (since 5.16), and this process may use it.
fn kernel_waits_on_several() -> bool {
    // SAFETY: names no futex at all.
    let answer = unsafe { os::call(__NR_futex_waitv, [0; 6]) };
    answer == Err(Errno::EINVAL)
}
