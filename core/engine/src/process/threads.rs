//! The engine's own threads: which there are, and with which credentials they were cloned.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};

use crate::abi::Errno;
use crate::os;
use crate::os::host;
use crate::os::sync::{AcrossFork, Mutex};
use crate::process::credentials::{self, Credentials};

/// How long to wait for threads to begin or end.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Between two looks at one of them.
const LOOK_NS: u64 = 100_000;

struct Member {
    /// As [`host::thread_identity`] has it.
    identity: usize,
    thread: i32,
    credentials: Credentials,
}

struct Members {
    living: Vec<Member>,
    /// Threads that are about to be gone.
    leaving: Vec<i32>,
}

static MEMBERS: Mutex<Members> = Mutex::new(Members { living: Vec::new(), leaving: Vec::new() });

/// The lock of the list, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &MEMBERS
}

/// Threads that were cloned and have not begun.
static BEGINNERS: AtomicU32 = AtomicU32::new(0);
/// Changes whenever a thread begins or ends.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Starts a thread; it must [`begin`] and [`end`].
///
/// # Errors
/// `EAGAIN` where none can be had.
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

/// The calling thread is a new one of the engine.
pub fn begin(credentials: Credentials) {
    let member = Member { identity: host::thread_identity(), thread: os::gettid(), credentials };
    let mut members = MEMBERS.lock();
    // Numbers are given anew.
    members.leaving.retain(|&thread| thread != member.thread && os::thread_lives(thread));
    members.living.push(member);
    members.recount();
    BEGINNERS.fetch_sub(1, Ordering::Relaxed);
    drop(members);
    tell();
}

/// The calling thread has nothing left to do but to return. To be said before anything else shows that
/// it ends: whoever sees that waits for it to be gone.
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

/// The common credentials are others now.
pub fn recount() {
    MEMBERS.lock().recount();
}

/// With what the thread of the engine was cloned that has this identity.
pub fn credentials_of(identity: usize) -> Option<Credentials> {
    let members = MEMBERS.lock();
    members.living.iter().find(|member| member.identity == identity).map(|member| member.credentials)
}

/// The number of threads, with those that were cloned and have not begun.
pub fn count() -> usize {
    let members = MEMBERS.lock();
    members.living.len() + BEGINNERS.load(Ordering::Relaxed) as usize
}

/// True if this is a thread of the engine.
pub fn is_ours(thread: i32) -> bool {
    let members = MEMBERS.lock();
    members.living.iter().any(|member| member.thread == thread) || members.leaving.contains(&thread)
}

/// Waits until threads that were just cloned are known.
pub fn wait_for_beginners() {
    wait(os::monotonic_ns() + PATIENCE_NS, || BEGINNERS.load(Ordering::Relaxed) == 0);
}

/// Waits until `done`, which the beginning or the end of threads brings about, or the time is over.
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

/// True if the engine has no threads, and none about to begin.
pub fn are_none() -> bool {
    MEMBERS.lock().living.is_empty() && BEGINNERS.load(Ordering::Relaxed) == 0
}

/// Waits until those are gone that have ended.
pub fn wait_for_leavers(until_ns: u64) {
    wait(until_ns, || {
        let mut members = MEMBERS.lock();
        members.leaving.retain(|&thread| os::thread_lives(thread));
        members.leaving.is_empty()
    });
}

/// In a child after `fork`: none of them is here.
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
