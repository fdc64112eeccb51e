//! Calls that bring files to the device, or change their names and sizes. `anyring chaos --power-cut` notes them; other processes pass
//! them on.

use crate::inside;
use anyring_engine::frontend::{self, Effect, PlainCall};
use anyring_interpose::next;
use core::ffi::{c_char, c_int};
use linux_raw_sys::general as raw;

/// A call that has neither paths nor a size.
const CALL: PlainCall = PlainCall {
    number: 0,
    effect: Effect::SyncAll,
    file: -1,
    size: 0,
    flags: 0,
    paths: [(raw::AT_FDCWD, 0); 2],
};

/// Makes a call, and notes it if effects on files are noted in this process.
#[inline]
fn noted(call: impl FnOnce() -> PlainCall, make: impl FnOnce() -> c_int) -> c_int {
    if frontend::notes_files() { noting(&call(), make) } else { make() }
}

#[cold]
fn noting(call: &PlainCall, make: impl FnOnce() -> c_int) -> c_int {
    let stay = inside::enter();
    let storing = next::keeping_errno(|| call.begin());
    drop(stay);
    let result = make();
    if let Some(storing) = storing {
        let _stay = inside::enter();
        next::keeping_errno(|| storing.end_plain(result as isize));
    }
    result
}

/// Returns a call on a descriptor.
fn on(number: u32, effect: Effect, file: c_int) -> PlainCall {
    PlainCall { number, effect, file, ..CALL }
}

/// Returns a call on one path.
fn at(number: u32, effect: Effect, path: (c_int, *const c_char)) -> PlainCall {
    PlainCall { number, effect, paths: [(path.0, path.1.addr()), CALL.paths[1]], ..CALL }
}

/// Returns a call on two paths.
fn between(
    number: u32,
    effect: Effect,
    old: (c_int, *const c_char),
    new: (c_int, *const c_char),
    flags: u32,
) -> PlainCall {
    let paths = [old, new].map(|(directory, path)| (directory, path.addr()));
    PlainCall { number, effect, flags, paths, ..CALL }
}

/// Defines functions of the C library, by their types in C, and their effects.
macro_rules! define {
    ($($name:ident $text:literal ($($argument:ident: $kind:ty),*) $call:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            noted(|| $call, || next!($text, fn($($kind),*) -> c_int, $($argument),*))
        }
    )*};
}

const HERE: c_int = raw::AT_FDCWD;

define! {
    fsync c"fsync" (fd: c_int) on(raw::__NR_fsync, Effect::Sync, fd);
    fdatasync c"fdatasync" (fd: c_int) on(raw::__NR_fdatasync, Effect::SyncData, fd);
    syncfs c"syncfs" (fd: c_int) on(raw::__NR_syncfs, Effect::SyncAll, fd);
    ftruncate c"ftruncate" (fd: c_int, size: i64)
        PlainCall { size: size as u64, ..on(raw::__NR_ftruncate, Effect::Resize, fd) };
    ftruncate64 c"ftruncate64" (fd: c_int, size: i64)
        PlainCall { size: size as u64, ..on(raw::__NR_ftruncate, Effect::Resize, fd) };
    unlink c"unlink" (path: *const c_char) at(raw::__NR_unlinkat, Effect::Unlink, (HERE, path));
    rmdir c"rmdir" (path: *const c_char) at(raw::__NR_unlinkat, Effect::Unlink, (HERE, path));
    unlinkat c"unlinkat" (directory: c_int, path: *const c_char, flags: c_int)
        at(raw::__NR_unlinkat, Effect::Unlink, (directory, path));
    mkdir c"mkdir" (path: *const c_char, mode: u32) at(raw::__NR_mkdirat, Effect::MakeDirectory, (HERE, path));
    mkdirat c"mkdirat" (directory: c_int, path: *const c_char, mode: u32)
        at(raw::__NR_mkdirat, Effect::MakeDirectory, (directory, path));
    rename c"rename" (old: *const c_char, new: *const c_char)
        between(raw::__NR_renameat2, Effect::Rename, (HERE, old), (HERE, new), 0);
    renameat c"renameat" (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char)
        between(raw::__NR_renameat2, Effect::Rename, (old_at, old), (new_at, new), 0);
    renameat2 c"renameat2" (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: u32)
        between(raw::__NR_renameat2, Effect::Rename, (old_at, old), (new_at, new), flags);
    link c"link" (old: *const c_char, new: *const c_char)
        between(raw::__NR_linkat, Effect::Link, (HERE, old), (HERE, new), 0);
    linkat c"linkat" (old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_int)
        between(raw::__NR_linkat, Effect::Link, (old_at, old), (new_at, new), 0);
    symlink c"symlink" (target: *const c_char, path: *const c_char)
        at(raw::__NR_symlinkat, Effect::SymbolicLink, (HERE, path));
    symlinkat c"symlinkat" (target: *const c_char, directory: c_int, path: *const c_char)
        at(raw::__NR_symlinkat, Effect::SymbolicLink, (directory, path));
}

/// `sync`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn sync() {
    let make = || {
        next!(c"sync", fn() -> isize,);
        0
    };
    noted(|| PlainCall { number: raw::__NR_sync, ..CALL }, make);
}
