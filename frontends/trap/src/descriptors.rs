//! Trapped calls of a static program that close or replace descriptors: the engine's descriptors do not belong to the program.

use crate::stub;
use anyring_runtime::descriptors as own;
use linux_raw_sys::general as raw;

/// Makes a call that closes or replaces descriptors for the program, and leaves out the engine's descriptors.
///
/// # Safety
/// The program made the call.
pub unsafe fn trapped(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let call = |a| unsafe { stub::syscall(number, a) };
    match number as u32 {
        raw::__NR_close if own::is_engines(a[0] as i32) => own::NONE,
        raw::__NR_close => call(a),
        raw::__NR_close_range => {
            let flags = a[2] as u32;
            let flags = if own::keeps_sharing(flags) { own::sharing(flags) } else { flags };
            own::close_range(a[0] as u32, a[1] as u32, flags, |first, last, flags| {
                call([first as usize, last as usize, flags as usize, 0, 0, 0])
            })
        }
        // `dup2` and `dup3`.
        _ if own::is_engines(a[0] as i32) || own::is_engines(a[1] as i32) => own::NONE,
        _ => call(a),
    }
}
