//! Paths in `/proc`, and information about this process from there.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::{Fd, OwnedFd, call, close, nr, open};
use anyring_abi::Errno;

/// Limit in bytes of a file that is read: larger than any status, which names at most 65536 groups.
const MOST: usize = 1 << 20;

/// A path, padded with zeros.
pub struct PathBuffer {
    bytes: [u8; 40],
}

impl core::ops::Deref for PathBuffer {
    type Target = CStr;
    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// Returns `/proc/self/fd/N`.
pub fn fd_path(fd: Fd) -> PathBuffer {
    numbered(b"/proc/self/fd/", fd, b"")
}

/// Returns `/proc/PROCESS/fd/N`.
pub fn fd_path_of(process: u32, fd: Fd) -> PathBuffer {
    let directory = numbered(b"/proc/", process as i32, b"/fd/");
    numbered(directory.to_bytes(), fd, b"")
}

fn numbered(prefix: &[u8], number: i32, suffix: &[u8]) -> PathBuffer {
    let mut digits = [0u8; 10];
    let (mut rest, mut first) = (number.max(0) as u32, digits.len());
    while rest > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut path = PathBuffer { bytes: [0; 40] };
    for (place, &byte) in path.bytes.iter_mut().zip([prefix, &digits[first..], suffix].into_iter().flatten())
    {
        *place = byte;
    }
    path
}

/// Reads the target of a descriptor's link in `/proc` into `target`. Returns its length.
///
/// # Errors
/// If `/proc` does not tell.
pub fn target_of(fd: Fd, target: &mut [u8]) -> Result<usize, Errno> {
    let path = fd_path(fd);
    let directory = nr::AT_FDCWD as isize as usize;
    let arguments = [directory, path.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0];
    // SAFETY: reads a C string, writes into a buffer of ours.
    unsafe { call(nr::__NR_readlinkat, arguments) }
}

/// Reads a descriptor's `fdinfo` into `text`, as much as fits. Returns the length.
///
/// # Errors
/// If `/proc` does not tell.
pub fn details_of(fd: Fd, text: &mut [u8]) -> Result<usize, Errno> {
    let details =
        OwnedFd::new(open(&numbered(b"/proc/self/fdinfo/", fd, b""), nr::O_RDONLY | nr::O_CLOEXEC)?);
    let arguments = [details.fd() as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: writes into a buffer of ours.
    unsafe { call(nr::__NR_read, arguments) }
}

/// Returns this process's ID in the PID namespace of `/proc`, which may be an outer one; without `/proc`, its own ID.
pub fn number_in_proc() -> u32 {
    let mut digits = [0_u8; 16];
    let arguments = [
        nr::AT_FDCWD as isize as usize,
        c"/proc/self".as_ptr() as usize,
        digits.as_mut_ptr() as usize,
        digits.len(),
        0,
        0,
    ];
    // SAFETY: reads a C string, writes into a buffer of ours.
    let length = unsafe { call(nr::__NR_readlinkat, arguments) }.unwrap_or(0);
    let number = core::str::from_utf8(&digits[..length]).ok().and_then(|digits| digits.parse().ok());
    number.unwrap_or_else(|| super::getpid() as u32)
}

/// True if `/proc` shows a process with this ID.
pub fn is_in_proc(process: u32) -> bool {
    let fd = open(&numbered(b"/proc/", process as i32, b""), nr::O_PATH | nr::O_CLOEXEC);
    fd.map(close).is_ok()
}

/// Returns the IDs of all threads of this process.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn own_threads() -> Result<Vec<i32>, Errno> {
    numbers_in(c"/proc/self/task")
}

/// Returns all descriptors of the calling thread, including one that this function has opened and closed.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn own_descriptors() -> Result<Vec<Fd>, Errno> {
    numbers_in(c"/proc/thread-self/fd")
}

/// Returns the entries of a directory that are numbers.
fn numbers_in(path: &CStr) -> Result<Vec<i32>, Errno> {
    let directory = open(path, nr::O_RDONLY | nr::O_DIRECTORY | nr::O_CLOEXEC)?;
    let entries = read_all(nr::__NR_getdents64, directory);
    close(directory);
    let entries = entries?;
    let mut numbers = Vec::new();
    let mut rest = entries.as_slice();
    // struct linux_dirent64: inode and offset in 16 bytes, the record's length, the type, the name.
    while let Some(&[low, high]) = rest.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([low, high])).max(19);
        let record = &rest[..length.min(rest.len())];
        let name = record.get(19..).unwrap_or_default().split(|&byte| byte == 0).next().unwrap_or_default();
        if let Some(number) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
        rest = &rest[record.len()..];
    }
    Ok(numbers)
}

/// Returns a thread's status as text.
///
/// # Errors
/// `ENOENT` if there is no such thread; errors of opening and reading.
pub fn thread_status(thread: i32) -> Result<Vec<u8>, Errno> {
    let status = open(&numbered(b"/proc/self/task/", thread, b"/status"), nr::O_RDONLY | nr::O_CLOEXEC)?;
    let text = read_all(nr::__NR_read, status);
    close(status);
    text
}

/// Returns the mounts that the process sees, as text.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn mounts() -> Result<Vec<u8>, Errno> {
    let mounts = open(c"/proc/self/mountinfo", nr::O_RDONLY | nr::O_CLOEXEC)?;
    let text = read_all(nr::__NR_read, mounts);
    close(mounts);
    text
}

/// Returns the mappings of this process as text.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn mappings() -> Result<Vec<u8>, Errno> {
    let mappings = open(c"/proc/self/maps", nr::O_RDONLY | nr::O_CLOEXEC)?;
    let text = read_all(nr::__NR_read, mappings);
    close(mappings);
    text
}

/// Returns all bytes that repeated calls of `read(2)` or `getdents64(2)` deliver.
fn read_all(number: u32, fd: Fd) -> Result<Vec<u8>, Errno> {
    const STEP: usize = 8192;
    let mut all = Vec::new();
    while all.len() < MOST {
        let start = all.len();
        all.resize(start + STEP, 0);
        // SAFETY: writes into the end of a vector of ours.
        let got = unsafe { call(number, [fd as usize, all[start..].as_mut_ptr() as usize, STEP, 0, 0, 0]) }?;
        all.truncate(start + got);
        if got == 0 {
            break;
        }
    }
    Ok(all)
}
