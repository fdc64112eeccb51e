//! Calls on sockets that concern rings: calls by which a program starts to use a socket's error queue, which
//! zero-copy sends use, too, and calls that would pass a ring to another process.

use crate::next::fail;
use crate::{Frontend, Row, next};
use anyring_engine::frontend;
use anyring_runtime::{active, arch, calls};
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use linux_raw_sys::errno;
use linux_raw_sys::general as raw;
use linux_raw_sys::net::mmsghdr;

/// Reports that the program polls `fd` for errors itself.
pub fn watches_errors<F: Frontend>(fd: c_int) {
    if active() && calls::rings_exist() {
        let _stay = F::enter();
        frontend::watches_errors(fd);
    }
}

/// `setsockopt(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn setsockopt<F: Frontend>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_int {
    if frontend::sets_option(fd, level, name) && active() && calls::rings_exist() {
        let _stay = F::enter();
        frontend::changes_kind(fd);
    }
    if frontend::concerns_errors(level, name) && active() && calls::rings_exist() {
        let _stay = F::enter();
        frontend::takes_errors(fd);
    }
    next!(c"setsockopt", fn(c_int, c_int, c_int, *const c_void, u32) -> c_int, fd, level, name, value, length,)
}

/// True if this message would pass a ring to another process.
fn hands_over_ring<F: Frontend>(fd: c_int, message: *const c_void) -> bool {
    if !active() || !calls::rings_exist() {
        return false;
    }
    let _stay = F::enter();
    frontend::hands_over_ring(fd, message as u64)
}

const REFUSED: isize = -(errno::EINVAL as isize);

/// `sendmsg(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn sendmsg<F: Frontend>(fd: c_int, message: *const c_void, flags: c_int) -> isize {
    if hands_over_ring::<F>(fd, message) {
        return fail(REFUSED);
    }
    next!(c"sendmsg", fn(c_int, *const c_void, c_int) -> isize, fd, message, flags)
}

/// Returns how many of `count` messages can be sent before one is refused, or `None` if the first one is refused.
fn sendable<F: Frontend>(fd: c_int, messages: *const c_void, count: u32) -> Option<u32> {
    // The kernel sends at most this number of messages in one call.
    const MOST: u32 = 1024;
    let message = |index: u32| messages.wrapping_byte_add(index as usize * size_of::<mmsghdr>());
    let refused = (0..count.min(MOST)).find(|&index| hands_over_ring::<F>(fd, message(index)));
    (refused != Some(0)).then(|| refused.unwrap_or(count))
}

/// `sendmmsg(2)`: messages before a refused one are sent.
///
/// # Safety
/// As in C.
pub unsafe fn sendmmsg<F: Frontend>(fd: c_int, messages: *mut c_void, count: u32, flags: c_int) -> c_int {
    let Some(count) = sendable::<F>(fd, messages, count) else { return fail(REFUSED) as c_int };
    next!(c"sendmmsg", fn(c_int, *mut c_void, u32, c_int) -> c_int, fd, messages, count, flags)
}

/// The calls that send messages, by number.
pub struct Calls<F>(PhantomData<F>);

impl<F: Frontend> Calls<F> {
    /// A row for each call.
    pub const ROWS: &[Row] = &[
        Row { numbers: &[raw::__NR_sendmsg], call: Self::sendmsg, hands_over: true },
        Row { numbers: &[raw::__NR_sendmmsg], call: Self::sendmmsg, hands_over: true },
    ];

    // The contract of each function is that of [`Row::call`].
    unsafe fn sendmsg(number: usize, a: [usize; 6]) -> isize {
        if hands_over_ring::<F>(a[0] as c_int, a[1] as *const c_void) {
            return REFUSED;
        }
        // SAFETY: the caller's promise.
        unsafe { arch::syscall(number, a) }
    }

    unsafe fn sendmmsg(number: usize, mut a: [usize; 6]) -> isize {
        let Some(count) = sendable::<F>(a[0] as c_int, a[1] as *const c_void, a[2] as u32) else {
            return REFUSED;
        };
        a[2] = count as usize;
        // SAFETY: the caller's promise.
        unsafe { arch::syscall(number, a) }
    }
}
