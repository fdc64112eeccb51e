//! System calls on an entry that the walk itself does not make. They name the entry by the descriptor of its directory
//! and its name there, so that paths may be long and no link on the path is followed.

use anyring_walk::{Kind, Parent};
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn statx(at: Parent<'_>, flags: i32, mask: u32) -> io::Result<libc::statx> {
    let mut file = MaybeUninit::uninit();
    // SAFETY: a string and a place of the right kind.
    checked(unsafe { libc::statx(at.fd, at.name.as_ptr(), flags, mask, file.as_mut_ptr()) })?;
    // SAFETY: the call filled it.
    Ok(unsafe { file.assume_init() })
}

/// Returns all attributes of the file at a path. A symbolic link is followed if `follow` is set; if it dangles, it has
/// the attributes of the link itself.
pub fn attributes_of_path(path: &[u8], follow: bool) -> io::Result<libc::statx> {
    let name = CString::new(path)?;
    let at = Parent { fd: libc::AT_FDCWD, name: &name };
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    if follow && let Ok(file) = statx(at, 0, mask) {
        return Ok(file);
    }
    statx(at, libc::AT_SYMLINK_NOFOLLOW, mask)
}

/// Returns the kind of an entry, or with `follow` of its target.
pub fn kind(at: Parent<'_>, follow: bool) -> io::Result<Kind> {
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    statx(at, flags, libc::STATX_TYPE).map(|file| Kind::of_mode(file.stx_mode.into()))
}

/// Returns the target of a symbolic link.
pub fn target(at: Parent<'_>) -> io::Result<Vec<u8>> {
    let mut target = vec![0; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as said.
    let length =
        unsafe { libc::readlinkat(at.fd, at.name.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    target.truncate(length);
    Ok(target)
}

/// True if this process has the access `how` to an entry.
pub fn allows(at: Parent<'_>, how: i32) -> bool {
    // SAFETY: a string.
    unsafe { libc::faccessat(at.fd, at.name.as_ptr(), how, 0) == 0 }
}

/// Opens a directory; through a link only with `follow`.
pub fn open_directory(at: Parent<'_>, follow: bool, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_DIRECTORY | libc::O_CLOEXEC | if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a string.
    let fd = checked(unsafe { libc::openat(at.fd, at.name.as_ptr(), flags) })?;
    // SAFETY: the descriptor is fresh and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True if a directory is empty.
pub fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let mut names = [0_u8; 1 << 10];
    loop {
        // SAFETY: the buffer is as long as said.
        let length = unsafe {
            libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), names.as_mut_ptr(), names.len())
        };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        if length == 0 {
            return Ok(true);
        }
        let other = |name: &std::ffi::OsStr| name != "." && name != "..";
        if entry_names(&names[..length]).any(other) {
            return Ok(false);
        }
    }
}

/// Returns the names in the records that getdents64(2) wrote.
fn entry_names(mut bytes: &[u8]) -> impl Iterator<Item = &std::ffi::OsStr> {
    use std::os::unix::ffi::OsStrExt;
    // Inode, offset, length of the record, kind.
    const HEAD: usize = 8 + 8 + 2 + 1;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
        let name = CStr::from_bytes_until_nul(bytes.get(HEAD..length)?).ok()?;
        bytes = &bytes[length..];
        Some(std::ffi::OsStr::from_bytes(name.to_bytes()))
    })
}

/// Removes an entry; never the target of a link.
pub fn remove(at: Parent<'_>, is_directory: bool) -> io::Result<()> {
    let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: a string.
    checked(unsafe { libc::unlinkat(at.fd, at.name.as_ptr(), flags) }).map(drop)
}

/// Reads the whole file `name` in a directory, which is the entry `at`; returns `None` if there is no such file.
pub fn read_in(at: Parent<'_>, name: &str) -> Option<Vec<u8>> {
    let path = CString::new([at.name.to_bytes(), b"/", name.as_bytes()].concat()).ok()?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a string.
    let fd = checked(unsafe { libc::openat(at.fd, path.as_ptr(), flags) }).ok()?;
    // SAFETY: the descriptor is fresh and ours.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    let mut content = Vec::new();
    io::Read::read_to_end(&mut file, &mut content).ok()?;
    Some(content)
}
