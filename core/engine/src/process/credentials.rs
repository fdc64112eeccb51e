//! Decides with which credentials the engine acts.
//!
//! The kernel executes a request with the credentials of the thread that submitted it, or with those
//! registered as a personality. A thread cannot assume another thread's credentials, but a clone
//! inherits its creator's exactly. So the engine records with which credentials each of its threads
//! was cloned, a request is executed by a thread that has the request's credentials, and a thread
//! that holds credentials which the process has given up ends ([`Change::end`]).
//!
//! As a rule all threads of a process have the same credentials, the *common* ones, and the engine
//! does not query the kernel while no thread has changed its credentials. Once a thread has, the
//! engine distinguishes threads by their credentials.

use crate::os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use alloc::vec::Vec;

use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, host};
use crate::process::{identity, threads};

mod content;

use content::Content;

/// Identifies a set of credentials; a number is never reused for another set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Credentials(u64);

/// The credentials with which a request is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whose {
    /// The credentials that the process's threads share at the time of execution.
    #[default]
    Common,
    /// The credentials of the thread that submitted the request.
    Thread(Credentials),
    /// The credentials of a registered personality.
    Personality(Credentials),
}

/// Number of threads, and of sets of credentials, that are cached; for further ones the kernel is queried again.
const REMEMBERED: usize = 256;

static COMMON: AtomicU64 = AtomicU64::new(Credentials::FIRST.0);
static NEXT: AtomicU64 = AtomicU64::new(2);
/// Some thread of the program has credentials of its own.
static DIVERGED: AtomicBool = AtomicBool::new(false);
/// A thread of the program changed its own credentials before there was a ring.
static CHANGED_EARLY: AtomicBool = AtomicBool::new(false);
/// Number of engine threads whose credentials differ from the common ones.
static ODD_THREADS: AtomicU32 = AtomicU32::new(0);

struct Known {
    /// The known sets of credentials with their content.
    sets: Vec<(Content, Credentials)>,
    /// The credentials of the program's threads, by thread identity and thread ID.
    threads: Vec<(usize, i32, Credentials)>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { sets: Vec::new(), threads: Vec::new() });

/// Returns the lock of the known credentials, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &KNOWN
}

impl Credentials {
    /// The credentials with which a process begins.
    pub const FIRST: Credentials = Credentials(1);

    /// Returns the number, as an argument for a new thread.
    pub fn number(self) -> usize {
        self.0 as usize
    }

    /// Converts the argument of a new thread back.
    pub fn from_number(number: usize) -> Credentials {
        Credentials(number as u64)
    }

    fn fresh() -> Credentials {
        Credentials(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Whose {
    /// Returns the credentials to use now: never ones that the whole process has given up since the submission.
    pub fn credentials(self) -> Credentials {
        match self {
            Whose::Common => common(),
            Whose::Thread(own) => own.max(common()),
            Whose::Personality(registered) => registered,
        }
    }
}

/// Returns the credentials of all threads that have not changed their own.
pub fn common() -> Credentials {
    // Acquire pairs with the release in `change_everywhere`.
    Credentials(COMMON.load(Ordering::Acquire))
}

/// True if the calling thread's credentials can differ from the common ones.
#[inline]
pub fn matter() -> bool {
    DIVERGED.load(Ordering::Relaxed) || ODD_THREADS.load(Ordering::Relaxed) != 0
}

/// Returns the mark for requests that the calling thread submits.
#[inline]
pub fn of_submitter() -> Whose {
    if DIVERGED.load(Ordering::Relaxed) { Whose::Thread(acting()) } else { Whose::Common }
}

/// Returns the calling thread's credentials.
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
    /// Returns the number of the set with this content; unknown content gets a fresh number.
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

/// Sets how many engine threads have credentials that differ from the common ones.
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
    /// The calling thread, in a way that cannot be queried later (a Landlock domain, `no_new_privs`).
    Unseen,
}

/// A change of credentials in progress, from [`Change::begin`] before the program's call to [`Change::end`] after it.
pub struct Change {
    reach: Reach,
    before: Content,
}

impl Change {
    /// Begins a change: the program is about to make a call that may change credentials. `None` if
    /// the engine need not act.
    pub fn begin(reach: Reach) -> Option<Change> {
        if !identity::is_used() {
            if reach == Reach::Thread {
                CHANGED_EARLY.store(true, Ordering::Relaxed);
            }
            return None;
        }
        Some(Change { reach, before: Content::of_this_thread() })
    }

    /// Ends a change: the call has returned. True if the whole process has given up credentials; then engine threads
    /// that hold the old credentials have to end.
    #[must_use]
    pub fn end(self) -> bool {
        let Change { reach, before } = self;
        let after = Content::of_this_thread();
        let diverged = DIVERGED.load(Ordering::Relaxed);
        let everywhere = match reach {
            Reach::Unseen => true,
            Reach::Process => after != before || diverged,
            // While the thread can restore its credentials by itself, nothing is given up.
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

/// Gives all threads of the process new common credentials.
fn change_everywhere(after: Content) {
    let new = Credentials::fresh();
    let mut known = KNOWN.lock();
    known.sets.clear();
    known.threads.clear();
    known.sets.push((after, new));
    // Release pairs with the acquire in `common`: the content of `new` is recorded.
    COMMON.store(new.0, Ordering::Release);
    drop(known);
    threads::recount();
}

/// Records that the calling thread now has credentials of its own.
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

/// Begins to observe changes of credentials, when the first ring is made.
pub fn begin_to_watch() {
    if CHANGED_EARLY.swap(false, Ordering::Relaxed) && !content::is_the_same_in_all_threads() {
        let mut known = KNOWN.lock();
        known.sets.push((Content::of_this_thread(), common()));
        DIVERGED.store(true, Ordering::Relaxed);
    }
}

/// Resets the state in a child after `fork`: the credentials of its only thread are the common ones.
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
