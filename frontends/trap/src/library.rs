//! The preload library, kept for programs that are started where its file cannot be reached: in another root, behind a
//! mount. Such a program gets a descriptor of a copy, and preloads the library by the descriptor's path below `/proc`.
//!
//! The library is kept as a mapping, because some programs close descriptors that they did not open. A program that was
//! started with a copy's descriptor hands the descriptor on to the programs that it starts.

use alloc::vec::Vec;
use anyring_runtime::{process, sys};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

/// The directory in which descriptors have paths.
const DESCRIPTORS: &[u8] = b"/proc/self/fd/";

/// The mapping; its length is 0 if there is none.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The device and the inode of the library's file.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static FILE: AtomicU64 = AtomicU64::new(0);

/// Maps the library at `path`.
pub fn keep(path: &CStr) {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDONLY | raw::O_NONBLOCK, 0) };
    let Some((status, length)) =
        status(fd).and_then(|status| Some((status, usize::try_from(status.st_size).ok()?)))
    else {
        return;
    };
    let start = sys::map_file(fd, length);
    sys::close(fd);
    if let Ok(start) = usize::try_from(start) {
        DEVICE.store(status.st_dev, Ordering::Relaxed);
        FILE.store(status.st_ino, Ordering::Relaxed);
        START.store(start, Ordering::Relaxed);
        LENGTH.store(length, Ordering::Relaxed);
    }
}

/// True if a program that this process executes finds the library at `path`.
pub fn is_reachable(path: &CStr) -> bool {
    // The descriptor's number may be another file's by now.
    let is_ours = |fd| sys::survives_exec(fd) && is_kept(fd);
    (!path.to_bytes().starts_with(DESCRIPTORS) || descriptor(path).is_some_and(is_ours))
        && sys::is_readable(path)
}

/// Returns the descriptor that a path below `/proc/self/fd` names, or leads through.
pub fn descriptor(path: &CStr) -> Option<i32> {
    let number = path.to_bytes().strip_prefix(DESCRIPTORS)?.split(|&byte| byte == b'/').next()?;
    core::str::from_utf8(number).ok()?.parse().ok()
}

/// A path that ends with zero.
pub struct Path(Vec<u8>);

impl Path {
    /// Makes a path of these bytes, which have no zero at their end.
    pub fn of(bytes: &[u8]) -> Self {
        let mut path = bytes.to_vec();
        path.push(0);
        Self(path)
    }
}

impl Deref for Path {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// True if a descriptor is one of the kept library.
fn is_kept(fd: i32) -> bool {
    let file = (DEVICE.load(Ordering::Relaxed), FILE.load(Ordering::Relaxed));
    status(fd).is_some_and(|status| (status.st_dev, status.st_ino) == file)
}

fn status(fd: i32) -> Option<raw::stat> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: a successful call fills it in.
    (sys::fstat(fd, &mut status) == 0).then(|| unsafe { status.assume_init() })
}

/// A descriptor of a copy, for a program that this process is about to execute. Dropping it closes the descriptor: if the execution
/// fails, or another process has executed the program.
pub struct Copy(i32);

impl Drop for Copy {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

impl Copy {
    /// Makes a sealed copy of the kept library; `None` if no library was kept, or on failure.
    pub fn new() -> Option<Self> {
        let (start, length) = (START.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
        if length == 0 {
            return None;
        }
        Self::at(start, length)
    }

    /// Makes a sealed copy of a library that is in this process's memory.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::at(bytes.as_ptr().addr(), bytes.len())
    }

    fn at(start: usize, length: usize) -> Option<Self> {
        // A filter kills processes that make memory files, and the program may have no use for the library.
        if process::rings_kill() {
            return None;
        }
        let fd = sys::memory_file(c"libanyring_preload.so");
        if fd < 0 {
            return None;
        }
        let memory = Self(fd);
        // The limit on the size of files holds for memory files, too, and exceeding it raises a signal that ends the process.
        let before = sys::set_signal_mask(!sys::signal_bit(raw::SIGSYS));
        let written = sys::write_from(fd, start, length);
        if written != length {
            sys::discard_signals(sys::signal_bit(raw::SIGXFSZ));
        }
        sys::set_signal_mask(before);
        if written != length || !sys::seal(fd) {
            return None;
        }
        let inherited = sys::duplicate(fd);
        drop(memory);
        (inherited >= 0).then_some(Self(inherited))
    }

    /// Returns the descriptor, which the caller closes.
    pub fn into_descriptor(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }

    /// Returns the path by which the program finds the copy; `None` without a `/proc`.
    pub fn path(&self) -> Option<Vec<u8>> {
        let path = descriptor_path(u32::try_from(self.0).ok()?);
        sys::is_readable(&Path::of(&path)).then_some(path)
    }
}

/// Returns the path of a descriptor below `/proc/self/fd`.
pub fn descriptor_path(fd: u32) -> Vec<u8> {
    let mut path = DESCRIPTORS.to_vec();
    let start = path.len();
    let mut rest = fd;
    loop {
        path.insert(start, b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            return path;
        }
    }
}

/// Returns the path of anyring's library in a value of `LD_PRELOAD`.
pub fn listed(list: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"libanyring_preload.so";
    let paths = || list.split(|&byte| matches!(byte, b' ' | b':'));
    let by_name = paths().find(|path| path.windows(NAME.len()).any(|window| window == NAME));
    by_name.or_else(|| paths().find(|path| path.starts_with(DESCRIPTORS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn paths_of_descriptors() {
        assert_eq!(descriptor_path(0), b"/proc/self/fd/0");
        assert_eq!(descriptor_path(1024), b"/proc/self/fd/1024");
    }

    #[test]
    fn ours_is_found_in_lists() {
        assert_eq!(
            listed(b"/a/libx.so:/b/libanyring_preload.so"),
            Some(b"/b/libanyring_preload.so".as_slice())
        );
        assert_eq!(listed(b"/a/libx.so /proc/self/fd/100"), Some(b"/proc/self/fd/100".as_slice()));
        assert_eq!(listed(b"/a/libx.so"), None);
        assert_eq!(listed(b""), None);
    }

    #[test]
    fn copies_are_what_was_kept() {
        assert!(!is_reachable(c"/nowhere"));
        keep(c"/proc/self/exe");
        let copy = Copy::new().unwrap();
        let path = String::from_utf8(copy.path().unwrap()).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read("/proc/self/exe").unwrap());
        let written =
            std::fs::OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write(b"x"));
        assert_eq!(written.unwrap_err().raw_os_error(), Some(linux_raw_sys::errno::EPERM as i32));
        // The kept file is the program's, not the copy.
        assert!(!is_reachable(&std::ffi::CString::new(path.clone()).unwrap()));
        keep(&std::ffi::CString::new(path.clone()).unwrap());
        assert!(is_reachable(&std::ffi::CString::new(path.clone()).unwrap()));
        drop(copy);
        assert!(!is_reachable(&std::ffi::CString::new(path).unwrap()));
    }
}
