//! The engine's own threads, and the credentials with which each was cloned.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};

use crate::abi::Errno;
use crate::os;
use crate::os::host;
use crate::os::sync::{AcrossFork, Mutex};
use crate::process::credentials::{self, Credentials};

/// How long to wait for threads to begin or to end.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Interval between two checks whether a thread has ended.
const LOOK_NS: u64 = 100_000;

struct Member {
    /// The thread's [`host::thread_identity`].
    identity: usize,
    thread: i32,
    credentials: Credentials,
}

struct Members {
    living: Vec<Member>,
    /// Threads that have finished and are about to exit.
    leaving: Vec<i32>,
}

static MEMBERS: Mutex<Members> = Mutex::new(Members { living: Vec::new(), leaving: Vec::new() });

/// Returns the lock of the list, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &MEMBERS
}

/// Number of threads that were cloned and have not begun.
static BEGINNERS: AtomicU32 = AtomicU32::new(0);
/// Changes whenever a thread begins or ends; a futex.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Starts a thread, which must call [`begin`] and [`end`].
///
/// # Errors
/// `EAGAIN` if no thread can be started.
pub fn spawn(
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<(), Errno> {
    let host = host::get().ok_or(Errno::EAGAIN)?;
    BEGINNERS.fetch_add(1, Ordering::Relaxed);
    host.spawn(name, entry, argument).map_err(|_| {
        BEGINNERS.fetch_sub(1, Ordering::Relaxed);
        Errno::EAGAIN
    })
}

/// Registers the calling thread, a new thread of the engine.
pub fn begin(credentials: Credentials) {
    let member = Member { identity: host::thread_identity(), thread: os::gettid(), credentials };
    let mut members = MEMBERS.lock();
    // Thread IDs are reused.
    members.leaving.retain(|&thread| thread != member.thread && os::thread_lives(thread));
    members.living.push(member);
    members.recount();
    BEGINNERS.fetch_sub(1, Ordering::Relaxed);
    drop(members);
    tell();
}

/// Notes that the calling thread has nothing left to do but to return. Must be called before anything
/// else shows the thread's end, because observers of the end wait until the thread is gone.
pub fn end() {
    let identity = host::thread_identity();
    let mut members = MEMBERS.lock();
    if let Some(index) = members.living.iter().position(|member| member.identity == identity) {
        let member = members.living.swap_remove(index);
        members.leaving.push(member.thread);
    }
    members.recount();
    drop(members);
    tell();
}

fn tell() {
    CHANGES.fetch_add(1, Ordering::Release);
    os::futex_wake(&CHANGES, u32::MAX >> 1);
}

impl Members {
    fn recount(&self) {
        let common = credentials::common();
        credentials::set_odd_threads(self.living.iter().filter(|m| m.credentials != common).count());
    }
}

/// Counts again the threads with odd credentials, after the common credentials have changed.
pub fn recount() {
    MEMBERS.lock().recount();
}

/// Returns the credentials with which the engine's thread with this identity was cloned.
pub fn credentials_of(identity: usize) -> Option<Credentials> {
    let members = MEMBERS.lock();
    members.living.iter().find(|member| member.identity == identity).map(|member| member.credentials)
}

/// Returns the number of threads, including those that have not begun yet.
pub fn count() -> usize {
    let members = MEMBERS.lock();
    members.living.len() + BEGINNERS.load(Ordering::Relaxed) as usize
}

/// True if `thread` is a thread of the engine.
pub fn is_ours(thread: i32) -> bool {
    let members = MEMBERS.lock();
    members.living.iter().any(|member| member.thread == thread) || members.leaving.contains(&thread)
}

/// Waits until all cloned threads have begun, for at most [`PATIENCE_NS`].
pub fn wait_for_beginners() {
    wait(os::monotonic_ns() + PATIENCE_NS, || BEGINNERS.load(Ordering::Relaxed) == 0);
}

/// Waits until `done` is true or the time is over; `done` depends on threads that begin or end.
pub fn wait(until_ns: u64, done: impl Fn() -> bool) {
    loop {
        // Acquire pairs with the release in `tell`.
        let seen = CHANGES.load(Ordering::Acquire);
        if done() || os::monotonic_ns() >= until_ns {
            return;
        }
        let _ = os::futex_wait(&CHANGES, seen, Some(LOOK_NS));
    }
}

/// True if the engine has no threads, including threads that have not begun yet.
pub fn are_none() -> bool {
    MEMBERS.lock().living.is_empty() && BEGINNERS.load(Ordering::Relaxed) == 0
}

/// Waits until all threads that have finished are gone.
pub fn wait_for_leavers(until_ns: u64) {
    wait(until_ns, || {
        let mut members = MEMBERS.lock();
        members.leaving.retain(|&thread| os::thread_lives(thread));
        members.leaving.is_empty()
    });
}

/// Clears the list in a child after `fork`, which has none of the engine's threads.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { MEMBERS.reset() };
    let mut members = MEMBERS.lock();
    members.living.clear();
    members.leaving.clear();
    BEGINNERS.store(0, Ordering::Relaxed);
}
