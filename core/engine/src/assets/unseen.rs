//! Whether the program may close descriptors without the engine's knowledge.
//!
//! If it may, requests that wait by a kept registration are checked at ticks, some milliseconds after they have begun to wait. If not, a late
//! check looks at them after seconds, because the answer may be wrong. The front end can find out that all closes are reported, but looks
//! through all code of the process for that. So it is asked in a thread of its own, and only once a program has made requests wait so for a
//! while (`PATIENCE`). Code that is loaded later makes the answer void, and the question is put again, a few times, but not while the code
//! may still be on its way: the front end reports that it comes, not that it is there.

use core::ffi::c_void;

use crate::os::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::os::{self, host};
use crate::process::{credentials, threads};

/// The number of waits by kept registrations before the front end is asked.
const PATIENCE: u32 = 64;
/// The number of times that the front end is asked.
const QUESTIONS: u32 = 8;

/// The time after the report of new code in which the front end is not asked. What waits longer than that to be loaded is not looked at.
const QUIET_NS: u64 = 1_000_000_000;

/// The front end has not been asked.
const UNKNOWN: u32 = 0;
/// A thread is asking.
const ASKED: u32 = 1;
/// All closes are reported.
const NONE: u32 = 2;
/// There may be closes that are not reported, now and later.
const SOME: u32 = 3;
const ANSWERS: u32 = 3;
/// The step of the count of changes of the code, which is kept above the answer.
const CHANGE: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
/// The time of the last report of new code, on the monotonic clock.
static CHANGED_NS: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU32 = AtomicU32::new(0);
static QUESTIONS_LEFT: AtomicU32 = AtomicU32::new(QUESTIONS);

/// True if the front end reports all closes, as far as it knows, so that kept registrations need no checks at ticks.
#[inline]
pub fn are_none() -> bool {
    STATE.load(Ordering::Relaxed) & ANSWERS == NONE
}

/// Returns [`are_none`], if the front end has been asked, or cannot find out.
pub fn are_found_none() -> Option<bool> {
    match STATE.load(Ordering::Relaxed) & ANSWERS {
        NONE => Some(true),
        UNKNOWN | ASKED if host::finds_unseen_closes().is_some() => None,
        _ => Some(false),
    }
}

/// Notes that a request waits by a registration that has to be checked. Asks the front end, if it is time.
#[inline]
pub fn count_wait() {
    if STATE.load(Ordering::Relaxed) & ANSWERS == UNKNOWN && WAITS.fetch_add(1, Ordering::Relaxed) == PATIENCE
    {
        ask();
    }
}

#[cold]
fn ask() {
    let before = STATE.load(Ordering::Relaxed);
    let changed_ns = CHANGED_NS.load(Ordering::Relaxed);
    if changed_ns != 0 && os::monotonic_ns() < changed_ns.saturating_add(QUIET_NS) {
        return WAITS.store(0, Ordering::Relaxed);
    }
    let asks = host::finds_unseen_closes().is_some() && take_question();
    let next = before & !ANSWERS | if asks { ASKED } else { SOME };
    let is_own = STATE.compare_exchange(before, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if asks && is_own && threads::spawn(c"anyring-look", look, core::ptr::null_mut()).is_err() {
        // The next waits ask again.
        answer(next, UNKNOWN);
    }
}

fn take_question() -> bool {
    // Of the threads that count waits, one comes here.
    let left = QUESTIONS_LEFT.load(Ordering::Relaxed);
    QUESTIONS_LEFT.store(left.saturating_sub(1), Ordering::Relaxed);
    left > 0
}

extern "C" fn look(_: *mut c_void) {
    threads::begin(credentials::acting());
    // Acquire pairs with the release in `void`: code that came before it is looked at.
    let asked = STATE.load(Ordering::Acquire);
    if asked & ANSWERS == ASKED {
        let has_some = host::finds_unseen_closes().is_none_or(|finds| finds());
        answer(asked, if has_some { SOME } else { NONE });
    }
    threads::end();
}

/// Answers the question, unless code has changed since it was put.
fn answer(asked: u32, answer: u32) {
    WAITS.store(0, Ordering::Relaxed);
    let next = asked & !ANSWERS | answer;
    let _ = STATE.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed);
}

/// Makes the answer void: code is about to come.
pub fn void() {
    WAITS.store(0, Ordering::Relaxed);
    CHANGED_NS.store(os::monotonic_ns(), Ordering::Relaxed);
    let mut before = STATE.load(Ordering::Relaxed);
    while before & ANSWERS != SOME {
        let next = (before & !ANSWERS).wrapping_add(CHANGE) | UNKNOWN;
        // Release pairs with the acquire in `look`.
        match STATE.compare_exchange(before, next, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

/// Notes that a descriptor was closed and nobody reported it, or that this can happen from now on.
pub fn note_one() {
    STATE.fetch_or(SOME, Ordering::Relaxed);
}

/// In a child after `fork`, nobody is asking.
pub fn forked() {
    let state = STATE.load(Ordering::Relaxed);
    if state & ANSWERS == ASKED {
        answer(state, UNKNOWN);
    }
}

/// Forgets everything.
#[cfg(anyring_simulation)]
pub fn forget() {
    STATE.store(UNKNOWN, Ordering::Relaxed);
    WAITS.store(0, Ordering::Relaxed);
    CHANGED_NS.store(0, Ordering::Relaxed);
    QUESTIONS_LEFT.store(QUESTIONS, Ordering::Relaxed);
}
