//! Services that a front end provides to the engine: threads, the calling thread's identity, resumption after faults.

use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::user::IoVector;

/// The services that the engine needs from its process. Memory comes from the global allocator, which the
/// front end chooses, too. Neither may use a lock that the thread of a signal handler of the program could
/// already hold.
pub trait Host: Sync {
    /// Starts a thread that runs `entry(argument)` once and ends when it returns. If no thread can be started, `entry`
    /// must not run. The thread must have at least 64 KiB of stack, and must block all signals except those that an
    /// instruction raises and [`Host::interrupt_signal`]. The call does not wait for the thread to begin.
    ///
    /// # Errors
    /// The positive errno of the failed start, usually `EAGAIN`.
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32>;

    /// Returns a value that is constant in the calling thread and unique among the process's live
    /// threads. Must be cheap; usually the thread pointer.
    fn thread_identity(&self) -> NonZeroUsize;

    /// Returns the address at which the C library stores the thread ID in the calling thread's storage, if known. The memory
    /// there may have another value, or be unmapped.
    fn kept_thread_number(&self) -> Option<usize> {
        None
    }

    /// True if a fault at an instruction for which `frontend::resume_address` returns an address
    /// is resumed there. If not, the engine uses system calls to copy memory that may be unmapped.
    fn faults_resume(&self) -> bool;

    /// True if the front end reports every descriptor that the program closes or replaces
    /// (`frontend::closed`), as far as the program does so through a C library.
    fn sees_closes(&self) -> bool {
        false
    }

    /// Returns a function that finds out whether code of this process may close or replace a descriptor without a report, now and until
    /// `frontend::code_comes`. The function may take milliseconds, and is called in a thread of its own. `None`: code may do so.
    fn finds_unseen_closes(&self) -> Option<fn() -> bool> {
        None
    }

    /// True if the front end reports descriptors that other processes share, before and after each child of any kind
    /// (`frontend::hands_over`) and for messages (`frontend::hands_over_ring`, `frontend::received`), and duplicates
    /// (`frontend::duplicated`). If not, the engine never ends a socket that the program has closed before its data are
    /// acknowledged.
    fn sees_handovers(&self) -> bool {
        false
    }

    /// True if [`Host::sees_handovers`] holds for all code of the process. Called without a lock, when a decision depends on it.
    fn has_seen_handovers(&self) -> bool {
        self.sees_handovers()
    }

    /// True if a checker in the program (AddressSanitizer, memcheck) says that this memory must not be accessed: it was freed, or
    /// ends earlier.
    fn is_poisoned(&self, _address: usize, _length: usize) -> bool {
        false
    }

    /// Returns the checker that is to be told what requests do to memory, if there is one in the program.
    fn checker(&self) -> Option<&'static dyn Checker> {
        None
    }

    /// Returns a signal whose action always is the front end's, and which no thread of [`Host::spawn`] blocks. The engine
    /// sends it only to such threads, to interrupt a system call; the handler must resume the thread where
    /// `frontend::interrupted` says. If there is none, the engine uses a real-time signal for which the program has
    /// no action.
    fn interrupt_signal(&self) -> Option<u32> {
        None
    }

    /// Makes `call`, which sleeps while no lock is held: a C library may end the thread in it (`pthread_cancel`). Then the thread
    /// must call `ended` before any of the program's cleanup code, and `frontend::thread_ends` at its end.
    fn may_end_in(&self, call: &mut dyn FnMut(), _ended: &mut dyn FnMut()) {
        call();
    }

    /// Makes a system call that may sleep, with the thread's own signal mask. A front end that defers the program's
    /// signal handlers while the thread is in the engine returns `-EINTR` without the call if a signal is pending.
    /// `None` leaves the call to the engine, for front ends that do not defer signals.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn sleep(&self, _number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}

/// A checker of memory in the program's process: a sanitizer, or a tool of valgrind. A checker sees neither system calls of the
/// engine nor what a request may do to memory between its submission and its completion.
///
/// All methods are called by a thread that holds a ring's lock, or no lock.
pub trait Checker: Sync {
    /// Notes that a request, which was just submitted, uses memory from now on. Returns a number for [`Checker::ends`], or 0 if
    /// `ends` is not to be called.
    fn begins(&self, _memory: &RequestMemory<'_>) -> usize {
        0
    }

    /// Notes that a request has given its memory back: its last CQE is about to be posted.
    fn ends(&self, _number: usize, _memory: &RequestMemory<'_>) {}

    /// Notes that a request has ended with its ring, without a CQE.
    fn drops(&self, _number: usize) {}

    /// Notes that a call that fetches completions returns: its thread knows of all completions that were posted.
    fn fetched(&self) {}

    /// True if a read is to fill memory of the engine until it completes, so that the program's own memory can be
    /// [hidden](Checker::hides).
    fn hides_memory(&self) -> bool {
        false
    }

    /// Notes that memory will be filled by a request, and must not be looked at.
    fn hides(&self, _memory: IoVector) {}

    /// Notes that memory that was hidden is about to be filled.
    fn shows(&self, _memory: IoVector) {}
}

/// Memory that a request uses.
#[derive(Clone, Copy, Debug)]
pub struct RequestMemory<'a> {
    /// The number of the ring in this process.
    pub ring: u64,
    /// The device and the inode of the ring's memory.
    pub file: [u64; 2],
    /// The number of the request in its ring.
    pub serial: u64,
    /// The name of the operation.
    pub operation: &'static str,
    /// The memory, or its first parts.
    pub pieces: &'a [IoVector],
    /// The request fills the memory, and does not read it.
    pub is_filled: bool,
    /// The request may have to wait for others, which may use the memory until its turn comes.
    pub may_wait: bool,
}

/// Facts about the caller of `setup`, `enter` or `register`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The signal mask for waits, if it is not the thread's current one: a trap handler runs with
    /// every signal blocked and passes the mask of the interrupted program.
    pub signal_mask: Option<u64>,
    /// For `setup`: the front end reports closes of the ring's descriptors (`frontend::closed`). If not, for
    /// example because the program closes them by its own instructions, the engine watches the ring's file.
    pub tells_closes: bool,
}

/// Receives the completions of a ring as soon as they are posted, for a ring that no thread enters.
pub trait Outlet: Send {
    /// Handles new completions. Called under the ring's lock: must neither sleep nor enter the ring.
    fn posted(&mut self);
}

static HOST: AtomicPtr<&'static dyn Host> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the front end. Called once, before the first `setup`; a later call replaces the
/// front end for rings created from then on.
pub fn install(host: &'static &'static dyn Host) {
    // Pairs with the acquire load in `get`.
    HOST.store(core::ptr::from_ref(host).cast_mut(), Ordering::Release);
}

/// Returns the installed front end, if any.
#[inline]
pub fn get() -> Option<&'static dyn Host> {
    // Pairs with the release store in `install`.
    let host = HOST.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static` in `install`.
    unsafe { host.as_ref().copied() }
}

/// See [`Host::is_poisoned`].
pub fn is_poisoned(address: usize, length: usize) -> bool {
    get().is_some_and(|host| host.is_poisoned(address, length))
}

/// Returns [`Host::checker`] of the installed front end.
pub fn checker() -> Option<&'static dyn Checker> {
    get()?.checker()
}

/// Returns [`Host::sees_closes`] of the installed front end.
#[inline]
pub fn sees_closes() -> bool {
    get().is_some_and(Host::sees_closes)
}

/// Returns [`Host::finds_unseen_closes`] of the installed front end.
pub fn finds_unseen_closes() -> Option<fn() -> bool> {
    get()?.finds_unseen_closes()
}

/// Makes a call that sleeps, and in which the calling thread [may end](Host::may_end_in).
pub fn sleep<R>(mut call: impl FnMut() -> R, mut ended: impl FnMut()) -> R {
    let mut result = None;
    if let Some(host) = get() {
        host.may_end_in(&mut || result = Some(call()), &mut ended);
    }
    result.unwrap_or_else(call)
}

/// Returns [`Host::sees_handovers`] of the installed front end.
pub fn sees_handovers() -> bool {
    get().is_some_and(Host::sees_handovers)
}

/// Returns [`Host::has_seen_handovers`] of the installed front end.
pub fn has_seen_handovers() -> bool {
    get().is_some_and(Host::has_seen_handovers)
}

/// Returns the calling thread's identity: the front end's, or else its thread pointer.
#[inline]
pub fn thread_identity() -> usize {
    get().map_or_else(crate::thread_pointer, |host| host.thread_identity().get())
}
