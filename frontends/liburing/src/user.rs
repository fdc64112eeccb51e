//! Anyring's engine in this process: what the library provides to it, and what of it only
//! this front end uses.

use anyring_engine::{Host, frontend};
use anyring_linked::{Choice, quietly};
use anyring_runtime::threads;
use core::ffi::{CStr, c_int, c_void};
use core::num::NonZeroUsize;

pub use anyring_linked::{closing, others_answer};

/// The host that the library is to the engine.
struct Library;

static HOST: &dyn Host = &Library;

impl Host for Library {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        threads::spawn(name, entry, argument, 0..0)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        anyring_runtime::arch::thread_pointer()
    }

    fn faults_resume(&self) -> bool {
        // Signal actions are the program's.
        false
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        anyring_linked::may_end_in(call, ended);
    }
}

/// Whether this process's rings are to be anyring's; if so, they can be made from here on.
#[cold]
pub fn is_wanted() -> bool {
    let wanted = anyring_linked::choose() == Choice::User;
    if wanted {
        anyring_linked::begin(&HOST);
    }
    wanted
}

/// One of the three calls, by anyring's engine; a negative errno on failure. Not every ring is closed by
/// `io_uring_queue_exit`: some programs close the descriptor.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { anyring_linked::call(number, arguments, false) }
}

/// Puts the engine in place beside the kernel's.
#[cold]
pub fn begin_beside_kernel() {
    anyring_linked::begin_beside_kernel(&HOST);
}

/// `io_uring_setup(2)` where the kernel's engine was chosen; `begin` puts ours in place where it is to make the ring.
///
/// # Safety
/// As for the call.
pub unsafe fn set_up(arguments: [usize; 6], begin: impl FnOnce()) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { anyring_linked::set_up(arguments, begin, false) }
}

/// Whether `fd` is a ring of the engine.
pub fn has(fd: c_int) -> bool {
    frontend::is_ring(fd)
}

/// Whether the engine answers a call in a process where the kernel has rings, too.
pub fn answers(number: usize, arguments: [usize; 6]) -> bool {
    anyring_linked::beside::is_ours(number, arguments)
}

/// Lets a ring's descriptor be one that can be polled, as the kernel's can: what the library keeps of it to map
/// its memory by, or a negative errno where it stays as it is.
pub fn show_readiness(fd: c_int) -> c_int {
    let memory = crate::call::duplicate(fd);
    if memory >= 0 && !show_again(fd) {
        crate::call::close_own(memory);
        return -1;
    }
    memory
}

/// Lets a ring's descriptor be polled again after its memory was mapped by it once more; whether that could be done.
pub fn show_again(fd: c_int) -> bool {
    quietly(|| frontend::show_readiness(fd)).is_ok()
}

/// The program has looked for completions, and found none: who polls the ring's descriptor may sleep.
pub fn found_nothing(fd: c_int) {
    quietly(|| frontend::sync_readiness(fd));
}

/// Says what was done, if asked, and lets go of rings that other processes have.
extern "C" fn end() {
    if crate::call::is_decided() {
        anyring_linked::exits();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
