//! With whose credentials the engine acts.
//!
//! The kernel does a request with the credentials of the thread that submitted it, or with those that
//! were registered as a personality. A thread cannot be given another's credentials, but a clone
//! inherits its creator's exactly. So every thread of the engine is known by the credentials it was
//! cloned with, a request is done by a thread that has its own, and a thread that holds what the
//! process gave up ends ([`Change::end`]).
//!
//! As a rule all threads of a process have the same credentials, the *common* ones; nothing is asked
//! of the kernel as long as nobody changed them. Once a single thread has changed its own, threads
//! are told apart by what they have.

use crate::os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use alloc::vec::Vec;

use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, host};
use crate::process::{identity, threads};

mod content;

use content::Content;

/// Names a set of credentials; never used for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Credentials(u64);

/// With whose credentials a request is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whose {
    /// The credentials that the process's threads share at the time.
    #[default]
    Common,
    /// The credentials of the thread that submitted the request.
    Thread(Credentials),
    /// Registered ones.
    Personality(Credentials),
}

/// Threads and sets of credentials that are remembered; for others the kernel is asked again.
const REMEMBERED: usize = 256;

static COMMON: AtomicU64 = AtomicU64::new(Credentials::FIRST.0);
static NEXT: AtomicU64 = AtomicU64::new(2);
/// Threads of the program have credentials of their own.
static DIVERGED: AtomicBool = AtomicBool::new(false);
/// A thread of the program changed its own before there was a ring.
static CHANGED_EARLY: AtomicBool = AtomicBool::new(false);
/// Threads of the engine that have other credentials than the common ones.
static ODD_THREADS: AtomicU32 = AtomicU32::new(0);

struct Known {
    /// The contents of sets of credentials.
    sets: Vec<(Content, Credentials)>,
    /// The credentials of threads of the program, by identity and id.
    threads: Vec<(usize, i32, Credentials)>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { sets: Vec::new(), threads: Vec::new() });

/// The lock of what is known, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &KNOWN
}

impl Credentials {
    /// The credentials that a process begins with.
    pub const FIRST: Credentials = Credentials(1);

    /// As an argument for a new thread.
    pub fn number(self) -> usize {
        self.0 as usize
    }

    /// From such an argument.
    pub fn from_number(number: usize) -> Credentials {
        Credentials(number as u64)
    }

    fn fresh() -> Credentials {
        Credentials(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Whose {
    /// The credentials at this time: what the process as a whole has given up, no request of its threads has.
    pub fn credentials(self) -> Credentials {
        match self {
            Whose::Common => common(),
            Whose::Thread(own) => own.max(common()),
            Whose::Personality(registered) => registered,
        }
    }
}

/// The credentials of the process's threads that changed nothing of their own.
pub fn common() -> Credentials {
    // Acquire pairs with the release in `change_everywhere`.
    Credentials(COMMON.load(Ordering::Acquire))
}

/// True if the calling thread can have other credentials than the common ones.
#[inline]
pub fn matter() -> bool {
    DIVERGED.load(Ordering::Relaxed) || ODD_THREADS.load(Ordering::Relaxed) != 0
}

/// How requests are marked that the calling thread submits.
#[inline]
pub fn of_submitter() -> Whose {
    if DIVERGED.load(Ordering::Relaxed) { Whose::Thread(acting()) } else { Whose::Common }
}

/// The calling thread's credentials.
#[inline]
pub fn acting() -> Credentials {
    if matter() { of_this_thread() } else { common() }
}

#[cold]
fn of_this_thread() -> Credentials {
    let identity = host::thread_identity();
    if let Some(own) = threads::credentials_of(identity) {
        return own;
    }
    if !DIVERGED.load(Ordering::Relaxed) {
        return common();
    }
    let thread = os::gettid();
    let mut known = KNOWN.lock();
    if let Some(&(.., own)) = known.threads.iter().find(|&&(i, t, _)| (i, t) == (identity, thread)) {
        return own;
    }
    let own = known.name(Content::of_this_thread());
    known.note(identity, thread, own);
    own
}

impl Known {
    /// The name of a set of credentials.
    fn name(&mut self, content: Content) -> Credentials {
        if let Some((_, name)) = self.sets.iter().find(|(known, _)| *known == content) {
            return *name;
        }
        let name = Credentials::fresh();
        if self.sets.len() >= REMEMBERED {
            self.sets.swap_remove(0);
        }
        self.sets.push((content, name));
        name
    }

    fn note(&mut self, identity: usize, thread: i32, credentials: Credentials) {
        self.threads.retain(|&(i, t, _)| i != identity && t != thread);
        if self.threads.len() >= REMEMBERED {
            self.threads.swap_remove(0);
        }
        self.threads.push((identity, thread, credentials));
    }
}

/// How many threads of the engine have other credentials than the common ones.
pub fn set_odd_threads(count: usize) {
    ODD_THREADS.store(count as u32, Ordering::Relaxed);
}

/// The threads whose credentials a call changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Every thread of the process, as the C library's `setuid` does.
    Process,
    /// The calling thread.
    Thread,
    /// The calling thread, in a way that cannot be asked for later (a Landlock domain, `no_new_privs`).
    Unseen,
}

/// A change of credentials under way, between [`Change::begin`] before the call and [`Change::end`].
pub struct Change {
    reach: Reach,
    before: Content,
}

impl Change {
    /// The program is about to make a call that may change credentials. `None` where nothing of the
    /// engine is concerned.
    pub fn begin(reach: Reach) -> Option<Change> {
        if !identity::is_used() {
            if reach == Reach::Thread {
                CHANGED_EARLY.store(true, Ordering::Relaxed);
            }
            return None;
        }
        Some(Change { reach, before: Content::of_this_thread() })
    }

    /// The call has returned. True where the whole process has given something up: then threads of the engine that hold
    /// it have to go.
    #[must_use]
    pub fn end(self) -> bool {
        let Change { reach, before } = self;
        let after = Content::of_this_thread();
        let diverged = DIVERGED.load(Ordering::Relaxed);
        let everywhere = match reach {
            Reach::Unseen => true,
            Reach::Process => after != before || diverged,
            // As long as the thread can go back by itself, nothing was given up.
            Reach::Thread => {
                after != before && !after.can_become(&before) && content::is_the_same_in_all_threads()
            }
        };
        if everywhere {
            if reach == Reach::Thread {
                DIVERGED.store(false, Ordering::Relaxed);
            }
            change_everywhere(after);
        } else if reach == Reach::Thread && after != before {
            change_here(before, after);
        }
        everywhere
    }
}

/// The whole process has other credentials now.
fn change_everywhere(after: Content) {
    let new = Credentials::fresh();
    let mut known = KNOWN.lock();
    known.sets.clear();
    known.threads.clear();
    known.sets.push((after, new));
    // Release pairs with the acquire in `common`: what is named by it is known.
    COMMON.store(new.0, Ordering::Release);
    drop(known);
    threads::recount();
}

/// The calling thread has credentials of its own now.
fn change_here(before: Content, after: Content) {
    let mut known = KNOWN.lock();
    if !DIVERGED.swap(true, Ordering::Relaxed) {
        known.sets.clear();
        known.threads.clear();
        known.sets.push((before, common()));
    }
    let own = known.name(after);
    known.note(host::thread_identity(), os::gettid(), own);
}

/// The first ring is there: from now on changes are seen.
pub fn begin_to_watch() {
    if CHANGED_EARLY.swap(false, Ordering::Relaxed) && !content::is_the_same_in_all_threads() {
        let mut known = KNOWN.lock();
        known.sets.push((Content::of_this_thread(), common()));
        DIVERGED.store(true, Ordering::Relaxed);
    }
}

/// In a child after `fork`: its one thread has what all have.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { KNOWN.reset() };
    let mut known = KNOWN.lock();
    known.sets.clear();
    known.threads.clear();
    if DIVERGED.swap(false, Ordering::Relaxed) {
        COMMON.store(Credentials::fresh().0, Ordering::Relaxed);
    }
    ODD_THREADS.store(0, Ordering::Relaxed);
}
