//! Services of a front end for the engine: threads, the calling thread's identity, resumed faults.

use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The services that the engine needs from the process it lives in. Memory comes through the global
/// allocator, which the front end also chooses; neither may take a lock that a signal handler of the program
/// could find taken.
pub trait Host: Sync {
    /// Starts a thread that runs `entry(argument)`, once, and ends when it returns. Where no thread could be started,
    /// `entry` must not run. All signals must be blocked in the thread but those that an instruction raises and
    /// [`Host::interrupt_signal`], and it must have at least 64 KiB of stack. The call does not wait for the thread to
    /// begin.
    ///
    /// # Errors
    /// The errno (positive) that starting it gave, `EAGAIN` as a rule.
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32>;

    /// A value that no other live thread of the process shares and that stays the same for the
    /// calling thread, cheap to read (the thread pointer, as a rule).
    fn thread_identity(&self) -> NonZeroUsize;

    /// Where the C library keeps the number of the thread that owns the calling thread's storage, if that is known. There may
    /// be another value, or no memory.
    fn kept_thread_number(&self) -> Option<usize> {
        None
    }

    /// Whether a fault at an address for which [`crate::frontend::resume_address`] answers is resumed
    /// there. Where not, the engine asks the kernel to copy from memory that may not be mapped.
    fn faults_resume(&self) -> bool;

    /// Whether the front end tells of every descriptor that the program closes or replaces
    /// ([`crate::frontend::closed`]), as far as programs do that by functions of a C library.
    fn sees_closes(&self) -> bool {
        false
    }

    /// Whether the front end tells of descriptors that become another process's, or have been: before and after each child of
    /// whatever kind ([`crate::frontend::hands_over`]), and of messages ([`crate::frontend::hands_over_ring`],
    /// [`crate::frontend::received`]); and of duplicates ([`crate::frontend::duplicated`]). Where it does not, the engine ends no
    /// socket that the program has closed before its data are acknowledged.
    fn sees_handovers(&self) -> bool {
        false
    }

    /// Whether all code of the process is such that [`Host::sees_handovers`] holds. Asked without a lock, when something depends on
    /// it.
    fn has_seen_handovers(&self) -> bool {
        self.sees_handovers()
    }

    /// A signal whose action is the front end's for good, which no thread of [`Host::spawn`] blocks. The engine sends it
    /// to such threads alone, to end a system call; its handler must let the thread go on where
    /// [`crate::frontend::interrupted`] says. Where there is none, the engine takes a real-time signal for which the program
    /// has no action.
    fn interrupt_signal(&self) -> Option<u32> {
        None
    }

    /// Makes a `call` that sleeps, with no lock and nothing else that would be missed: a C library may end the thread in it, as
    /// `pthread_cancel` asks for. Then `ended` is to be called, by the thread, before it does anything else of the program's; and
    /// [`crate::frontend::thread_ends`] in the end.
    fn may_end_in(&self, call: &mut dyn FnMut(), _ended: &mut dyn FnMut()) {
        call();
    }

    /// Makes a system call that may sleep, with the thread's own signal mask. A front end that keeps the
    /// program's signal handlers out of the engine answers `-EINTR` without the call if one is due;
    /// `None` leaves the call to the engine, as a front end does that keeps nothing out.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn sleep(&self, _number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}

/// Facts about the caller of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The signal mask to wait with, if it is not the thread's current one: a trap handler runs
    /// with every signal blocked and names here the mask of the program that it interrupted.
    pub signal_mask: Option<u64>,
    /// Of [`crate::setup()`]: the front end tells of the close of the ring's descriptors ([`crate::frontend::closed`]). Where it
    /// does not, for the program closes them by instructions of its own perhaps, the engine watches the ring's file.
    pub tells_closes: bool,
}

/// Takes the completions of a ring for which nobody enters it, as soon as they are posted.
pub trait Outlet: Send {
    /// Some completions were posted. Called under the ring's lock: it may neither sleep nor enter the ring.
    fn posted(&mut self);
}

static HOST: AtomicPtr<&'static dyn Host> = AtomicPtr::new(core::ptr::null_mut());

/// Names the front end. Called once, before the first call of [`crate::setup()`]; later calls replace it
/// for rings created from then on.
pub fn install(host: &'static &'static dyn Host) {
    // Pairs with the acquire load in `get`.
    HOST.store(core::ptr::from_ref(host).cast_mut(), Ordering::Release);
}

/// The installed front end, if any.
#[inline]
pub fn get() -> Option<&'static dyn Host> {
    // Pairs with the release store in `install`.
    let host = HOST.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static` in `install`.
    unsafe { host.as_ref().copied() }
}

/// [`Host::sees_closes`] of the installed front end.
#[inline]
pub fn sees_closes() -> bool {
    get().is_some_and(Host::sees_closes)
}

/// Makes a call that sleeps, in which the calling thread [may end](Host::may_end_in).
pub fn sleep<R>(mut call: impl FnMut() -> R, mut ended: impl FnMut()) -> R {
    let mut result = None;
    if let Some(host) = get() {
        host.may_end_in(&mut || result = Some(call()), &mut ended);
    }
    result.unwrap_or_else(call)
}

/// [`Host::sees_handovers`] of the installed front end.
pub fn sees_handovers() -> bool {
    get().is_some_and(Host::sees_handovers)
}

/// [`Host::has_seen_handovers`] of the installed front end.
pub fn has_seen_handovers() -> bool {
    get().is_some_and(Host::has_seen_handovers)
}

/// The calling thread's identity, by the front end's word or else by its thread pointer.
#[inline]
pub fn thread_identity() -> usize {
    get().map_or_else(crate::os::thread_pointer, |host| host.thread_identity().get())
}
