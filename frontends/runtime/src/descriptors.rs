//! The engine's own descriptors, when a program closes, replaces or duplicates descriptors: they do not belong to the program.

use crate::{calls, process, sys};
use anyring_engine::frontend;
use linux_raw_sys::errno::EBADF;
use linux_raw_sys::general as raw;

// From <linux/close_range.h>.
const UNSHARE: u32 = 2;
const CLOEXEC: u32 = 4;

/// The result for a number that is not a descriptor of the program. The kernel's `dup2` also returns it for targets beyond the
/// allowed range. `EBUSY` cannot be used, because musl regards it as temporary, and repeats the call.
pub const NONE: isize = -(EBADF as isize);

/// True if the descriptor is one of the engine's.
#[inline]
pub fn is_engines(fd: i32) -> bool {
    // A child of `vfork` has a descriptor table of its own.
    calls::rings_exist() && frontend::is_engines(fd) && sys::process_id() == process::own_id()
}

/// True if `close_range` with these flags closes descriptors of this process, instead of marking them or closing a thread's copies.
pub fn closes(flags: u32) -> bool {
    flags & (CLOEXEC | UNSHARE) == 0
}

/// True if `close_range` with these flags gives the calling thread a descriptor table of its own.
pub fn unshares(flags: u32) -> bool {
    flags & UNSHARE != 0
}

/// Makes `close_range(2)` by `call`, which returns 0 on success, and leaves out the engine's own descriptors.
pub fn close_range(first: u32, last: u32, flags: u32, call: impl Fn(u32, u32, u32) -> isize) -> isize {
    // The engine's descriptors have `CLOEXEC` already.
    let leaves_out = calls::rings_exist() && flags & CLOEXEC == 0;
    let mut from = first;
    let next = |from| leaves_out.then(|| frontend::next_of_engine(from)).flatten();
    while let Some(own) = next(from).filter(|&own| own <= last) {
        if own > from {
            let result = call(from, own - 1, flags);
            if result != 0 {
                return result;
            }
        }
        if own == last {
            // With no other descriptors in the range, the kernel still checks the flags.
            return call(u32::MAX, u32::MAX, flags);
        }
        from = own + 1;
    }
    call(from, last, flags)
}

/// Closes all descriptors from `first` on, except the engine's.
pub fn close_from(first: u32) {
    let call = |first: u32, last: u32, flags: u32| {
        let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
        // SAFETY: the program's own call; the engine's descriptors are left out.
        unsafe { crate::arch::syscall(raw::__NR_close_range as usize, arguments) }
    };
    if close_range(first, u32::MAX, 0, call) == 0 {
        return;
    }
    // Linux before 5.9.
    (first..sys::descriptor_limit()).map(|fd| fd as i32).filter(|&fd| !is_engines(fd)).for_each(sys::close);
}

/// True if the calling thread, in a process with no other threads of the program, asks to unshare its descriptors. The engine's threads
/// must continue to share its descriptors. The function locks a lock of the engine.
pub fn keeps_sharing(flags: u32) -> bool {
    let alone = || sys::threads().saturating_sub(frontend::threads()) == 1;
    flags & UNSHARE != 0 && calls::rings_exist() && sys::process_id() == process::own_id() && alone()
}

/// Returns the flags without the one that unshares.
pub fn sharing(flags: u32) -> u32 {
    flags & !UNSHARE
}
