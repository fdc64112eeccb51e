//! Patched call sites, of which there are none.

use anyring_trap::arch::Context;
pub use anyring_trap::sites::Block;

/// There is nothing to let enter.
///
/// # Safety
/// None here.
pub unsafe fn begin(_block: *mut Block) {}

/// A call for a ring was made.
pub fn ring_called() {}

/// Whether a signal came inside the engine.
pub fn is_inside(_interrupted: &Context) -> bool {
    false
}

/// The function that the kernel is to call for handlers of the program.
pub fn front() -> Option<usize> {
    None
}

/// The function that the kernel is to call where the program has a handler for SIGSEGV or SIGBUS.
pub fn front_of_faults() -> Option<usize> {
    None
}

/// The context of a handler that is in the first instructions of one of these two.
pub fn context_in_front(_interrupted: &Context) -> Option<*mut Context> {
    None
}

/// A signal was kept out; whether that is noted.
pub fn kept_out(_signal: u64, _interrupted: &mut Context) -> bool {
    false
}

/// A handler of the program is about to run.
pub fn settle(_interrupted: &mut Context) {}

/// The process has forked and this is the child.
pub fn forked() {}

/// A sleep is the engine's.
///
/// # Safety
/// None here.
pub unsafe fn sleep(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
    None
}

/// Returns false: no close of the program is seen.
pub fn sees_closes() -> bool {
    false
}
