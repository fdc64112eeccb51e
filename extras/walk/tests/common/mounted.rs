//! Mounts that only one command sees.

use std::ffi::{CStr, CString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs the command with directories mounted over others, in a mount namespace of its own. The paths are relative to its working directory.
pub fn mounted(command: &mut Command, mounts: &[(&str, &str)]) {
    let name = |path: &str| CString::new(path).unwrap();
    let mounts: Vec<_> = mounts.iter().map(|(what, place)| (name(what), name(place))).collect();
    let mount = |what: &CStr, place: &CStr, flags| {
        let none = std::ptr::null();
        // SAFETY: strings that end.
        match unsafe { libc::mount(what.as_ptr(), place.as_ptr(), none, flags, none.cast()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            mount(c"", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
            mounts.iter().try_for_each(|(what, place)| mount(what, place, libc::MS_BIND))
        })
    };
}
