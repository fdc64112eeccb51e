//! The user engine in this process: the library as its host, and functions of the engine that
//! only this front end uses.

use anyring_engine::os::host::Checker;
use anyring_engine::{Host, frontend};
use anyring_linked::{Choice, quietly};
use anyring_runtime::{threads, valgrind};
use core::ffi::{CStr, c_int, c_void};
use core::num::NonZeroUsize;

pub use anyring_linked::{closing, others_answer};

/// The library as the engine's host.
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
        // The program owns the signal actions.
        false
    }

    fn is_poisoned(&self, address: usize, length: usize) -> bool {
        valgrind::is_poisoned(address, length)
    }

    fn checker(&self) -> Option<&'static dyn Checker> {
        valgrind::memcheck()
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        anyring_linked::may_end_in(call, ended);
    }
}

/// Chooses the engine of this process. If it is the user engine, starts it, and returns true.
#[cold]
pub fn is_wanted() -> bool {
    let wanted = anyring_linked::choose() == Choice::User;
    if wanted {
        anyring_linked::begin(&HOST);
    }
    wanted
}

/// Makes one of the three calls on the user engine; returns a negative errno on failure. Rings are made without `tells_closes`, because
/// some programs close a ring's descriptor instead of calling `io_uring_queue_exit`.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { anyring_linked::call(number, arguments, false) }
}

/// Starts the user engine beside the kernel engine.
#[cold]
pub fn begin_beside_kernel() {
    anyring_linked::begin_beside_kernel(&HOST);
}

/// Makes `io_uring_setup(2)` if the kernel engine was chosen; `begin` starts the user engine if that is to make the ring.
///
/// # Safety
/// As for the call.
pub unsafe fn set_up(arguments: [usize; 6], begin: impl FnOnce()) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { anyring_linked::set_up(arguments, begin, false) }
}

/// True if `fd` is a ring of the user engine.
pub fn has(fd: c_int) -> bool {
    frontend::is_ring(fd)
}

/// True if the user engine answers a call in a process in which the kernel has rings, too.
pub fn answers(number: usize, arguments: [usize; 6]) -> bool {
    anyring_linked::beside::is_ours(number, arguments)
}

/// Makes a ring's descriptor pollable, as the kernel's is. Returns the descriptor that the library keeps for mapping the ring's
/// memory, or a negative errno if the ring's descriptor stays as it is.
pub fn show_readiness(fd: c_int) -> c_int {
    let memory = crate::call::duplicate(fd);
    if memory >= 0 && !show_again(fd) {
        crate::call::close_own(memory);
        return -1;
    }
    memory
}

/// Makes a ring's descriptor pollable again after its memory was mapped by it. Returns true if this succeeded.
pub fn show_again(fd: c_int) -> bool {
    quietly(|| frontend::show_readiness(fd)).is_ok()
}

/// Notes that the program has looked for completions and found none: pollers of the ring's descriptor may sleep.
pub fn found_nothing(fd: c_int) {
    quietly(|| frontend::sync_readiness(fd));
}

/// Writes the statistics if they are wanted, and leaves rings to other processes that have them.
extern "C" fn end() {
    if crate::call::is_decided() {
        anyring_linked::exits();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
