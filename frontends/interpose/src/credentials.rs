//! Functions that change credentials: the engine's threads must not keep rights that the program gives up.
//!
//! These functions are interposed and not trapped, although a trap would see more calls. A filter outlives `exec`: a
//! set-user-ID program, for which the loader ignores preloads, would be killed by SIGSYS when it drops its privileges.
//! A child of `posix_spawn` that resets its ids while SIGSYS is blocked would be killed, too.
//!
//! When the C library changes credentials in all threads, this counts as one change, after all threads have made it.

use crate::{Frontend, next};
use anyring_engine::credentials::{Change, Reach};
use anyring_runtime::{active, credentials, log};
use core::ffi::{c_char, c_int, c_void};

/// Announces a call that changes credentials.
fn begin<F: Frontend>(reach: Reach) -> Option<Change> {
    let _stay = active().then(F::enter);
    credentials::begin(reach)
}

/// Ends the change that [`by_call`] or an interposed function has announced.
#[inline]
pub fn end<F: Frontend>(change: Option<Change>) {
    if let Some(change) = change {
        let _stay = F::enter();
        change.end();
    }
}

/// Announces a call that the program makes by its number, without the C library's broadcast to all threads.
#[inline]
pub fn by_call<F: Frontend>(number: usize, arguments: [usize; 6]) -> Option<Change> {
    credentials::reach(number, arguments).and_then(begin::<F>)
}

macro_rules! changing {
    ($($(#[$doc:meta])* $reach:ident $name:ident $string:literal ($($argument:ident: $kind:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        pub unsafe fn $name<F: Frontend>($($argument: $kind),*) -> c_int {
            let change = begin::<F>(Reach::$reach);
            let result = next!($string, fn($($kind),*) -> c_int, $($argument),*);
            end::<F>(change);
            result
        }
    )*};
}

changing! {
    /// `setuid(2)`.
    Process setuid c"setuid" (user: u32);
    /// `setgid(2)`.
    Process setgid c"setgid" (group: u32);
    /// `seteuid(3)`.
    Process seteuid c"seteuid" (user: u32);
    /// `setegid(3)`.
    Process setegid c"setegid" (group: u32);
    /// `setreuid(2)`.
    Process setreuid c"setreuid" (real: u32, effective: u32);
    /// `setregid(2)`.
    Process setregid c"setregid" (real: u32, effective: u32);
    /// `setresuid(2)`.
    Process setresuid c"setresuid" (real: u32, effective: u32, saved: u32);
    /// `setresgid(2)`.
    Process setresgid c"setresgid" (real: u32, effective: u32, saved: u32);
    /// `setgroups(2)`.
    Process setgroups c"setgroups" (count: usize, groups: *const u32);
    /// `initgroups(3)`.
    Process initgroups c"initgroups" (user: *const c_char, group: u32);
    /// `setfsuid(2)`.
    Thread setfsuid c"setfsuid" (user: u32);
    /// `setfsgid(2)`.
    Thread setfsgid c"setfsgid" (group: u32);
    /// `capset(2)`.
    Thread capset c"capset" (header: *mut c_void, sets: *const c_void);
}

/// `prctl(2)`. Variadic in C; integer arguments are passed in the same way.
///
/// # Safety
/// As in C.
pub unsafe fn prctl<F: Frontend>(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    let filtering = log::sees_prctl(option as usize);
    let change = if credentials::is_change(option as usize) { begin::<F>(Reach::Unseen) } else { None };
    let result = next!(c"prctl", fn(c_int, usize, usize, usize, usize) -> c_int, option, a, b, c, d);
    filtering.made(result as isize);
    end::<F>(change);
    result
}
