//! Finds out which file systems depend on other machines or processes, and so may take any time to answer.
//!
//! An attempt by the caller blocks the caller. On such a file system that may be for ever, in particular if the program
//! itself serves the file system; so another thread makes the attempt. Querying the file system for its type could
//! block, too. So the type is found out through the mount, which the kernel knows.

use alloc::vec::Vec;

use crate::os::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{
    O_CLOEXEC, O_RDONLY, POLLERR, POLLNVAL, POLLPRI, STATX_MNT_ID, STATX_MNT_ID_UNIQUE,
};

use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};

/// Prefixes of the names of file systems that depend on other machines or processes.
const FAR: [&[u8]; 12] = [
    b"fuse",
    b"nfs",
    b"cifs",
    b"smb3",
    b"9p",
    b"ceph",
    b"afs",
    b"autofs",
    b"coda",
    b"lustre",
    b"orangefs",
    b"virtiofs",
];

/// How long the known mounts are valid, in microseconds.
const BELIEVED_US: u64 = 4000;

/// The mount points of far file systems.
struct Points {
    /// `/proc/self/mountinfo`, polled for changes; -1 if it is not open.
    watch: Fd,
    /// The last component of the path of each far mount; empty for the root.
    names: Vec<Vec<u8>>,
}

static POINTS: Mutex<Points> = Mutex::new(Points { watch: -1, names: Vec::new() });
/// True if there is any far mount.
static ANY: AtomicBool = AtomicBool::new(false);
/// When the mounts were last checked, in ticks of the processor's clock.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Returns the lock of the known mounts, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &POINTS
}

/// Resets the state in a child after `fork`, which may get a mount namespace of its own.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { POINTS.reset() };
    let watch = core::mem::replace(&mut POINTS.lock().watch, -1);
    if watch >= 0 {
        os::close(watch);
    }
    LOOKED.store(0, Relaxed);
}

/// True if the path from this directory may lead to a far file system. Costs no system call if none is
/// mounted. Symbolic links are not followed, so a far target is not detected.
pub fn may_be_far(directory: Fd, path: &[u8]) -> bool {
    are_any_far() && is_path_far(directory, path)
}

/// True if there is any far file system.
#[inline]
pub fn are_any_far() -> bool {
    let now = os::ticks();
    let believed = BELIEVED_US * os::ticks_per_us();
    if now.wrapping_sub(LOOKED.load(Relaxed)) > believed {
        look(now);
    }
    ANY.load(Relaxed)
}

#[cold]
fn is_path_far(directory: Fd, path: &[u8]) -> bool {
    let leads_there = |names: &[Vec<u8>]| {
        let absolute = path.first() == Some(&b'/');
        names.iter().any(|name| match name.as_slice() {
            b"" => absolute,
            name => path.split(|&byte| byte == b'/').any(|component| component == name),
        })
    };
    leads_there(&POINTS.lock().names) || path.first() != Some(&b'/') && is_far(directory)
}

/// Reads the mounts again if they have changed.
#[cold]
fn look(now: u64) {
    // Another thread that looks at this moment does so for all.
    let Some(mut points) = POINTS.try_lock() else { return };
    LOOKED.store(now, Relaxed);
    if points.watch >= 0 {
        let told = os::poll_now(points.watch, POLLPRI | POLLERR).unwrap_or(POLLNVAL);
        if told & (POLLPRI | POLLERR | POLLNVAL) == 0 {
            return;
        }
        if told & POLLNVAL != 0 {
            // The program has closed the descriptor.
            points.watch = -1;
        }
    }
    if points.watch < 0 {
        let opened = os::open(c"/proc/self/mountinfo", O_RDONLY | O_CLOEXEC).and_then(os::move_high);
        points.watch = opened.unwrap_or(-1);
    }
    let Ok(mounts) = os::mounts() else { return };
    points.names = far_names(&mounts);
    ANY.store(!points.names.is_empty(), Relaxed);
}

/// Returns the last components of the paths of far mounts.
fn far_names(mounts: &[u8]) -> Vec<Vec<u8>> {
    let of_line = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        let path = words.nth(4)?;
        words.find(|&word| word == b"-")?;
        let name = path.rsplit(|&byte| byte == b'/').next()?;
        is_kind_far(words.next()?).then(|| unescaped(name))
    };
    mounts.split(|&byte| byte == b'\n').filter_map(of_line).collect()
}

/// Decodes a name from the mount table, which has `\040` for a space, and the like.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = name;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| core::str::from_utf8(digits).ok());
        let code = digits.filter(|_| first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    plain
}

/// The place where a file system keeps its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Place {
    /// On this machine.
    Here = 1,
    /// On another machine, or in another process.
    Far = 2,
    /// In lower file systems, as overlayfs.
    Below = 3,
    /// In no place: the kernel makes up the content of the files at each read. A read may wait, as of `/proc/kmsg` and `trace_pipe`.
    Made = 4,
}

impl Place {
    const ALL: [Place; 4] = [Place::Here, Place::Far, Place::Below, Place::Made];
}

/// Cache of mounts: each entry is the mount's number times eight plus the [`Place`]. Linux before 6.8 reuses mount numbers; there
/// an entry is only a hint.
static SEEN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// True if reading this directory may take for ever.
pub fn is_far(fd: Fd) -> bool {
    place_of(fd) == Place::Far
}

/// Returns the place of a file. Queries the mount each time, because the descriptor's number may have been reused.
pub fn place_of(fd: Fd) -> Place {
    // If the mount cannot be found out, the file counts as local.
    let Some(mount) = mount_of(fd, STATX_MNT_ID | STATX_MNT_ID_UNIQUE) else { return Place::Here };
    let slot = &SEEN[(mount % SEEN.len() as u64) as usize];
    let seen = slot.load(Relaxed);
    if seen >> 3 == mount
        && let Some(place) = Place::ALL.into_iter().find(|&place| place as u64 == seen & 7)
    {
        return place;
    }
    let place = mount_of(fd, STATX_MNT_ID).map_or(Place::Here, place_of_mount);
    slot.store(mount << 3 | place as u64, Relaxed);
    place
}

fn mount_of(fd: Fd, wanted: u32) -> Option<u64> {
    let known = os::known_status(fd, wanted).ok()?;
    (known.stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE) != 0).then_some(known.stx_mnt_id)
}

fn place_of_mount(mount: u64) -> Place {
    let Ok(mounts) = os::mounts() else { return Place::Here };
    match kind_of(&mounts, mount) {
        Some(b"overlay") => Place::Below,
        Some(b"proc" | b"tracefs" | b"debugfs") => Place::Made,
        Some(kind) if is_kind_far(kind) => Place::Far,
        _ => Place::Here,
    }
}

fn is_kind_far(kind: &[u8]) -> bool {
    kind != b"fusectl" && FAR.iter().any(|name| kind.starts_with(name))
}

/// Returns the type of a mount from `/proc/self/mountinfo`: `36 35 98:0 /root /at options tags - type device options`.
fn kind_of(mounts: &[u8], mount: u64) -> Option<&[u8]> {
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let number: u64 = core::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        if number != mount {
            return None;
        }
        words.find(|&word| word == b"-")?;
        words.next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found() {
        let mounts = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            31 22 0:27 / /mnt/a\\040- rw - fuse.sshfs host:/ rw\n4 1 0:9 / /x rw master:2 shared:3 - tmpfs - rw\n";
        assert_eq!(kind_of(mounts, 22), Some(&b"ext4"[..]));
        assert_eq!(kind_of(mounts, 31), Some(&b"fuse.sshfs"[..]));
        assert_eq!(kind_of(mounts, 4), Some(&b"tmpfs"[..]));
        assert_eq!(kind_of(mounts, 2), None);
        assert_eq!(kind_of(b"7", 7), None);
        assert!(is_kind_far(b"fuse.sshfs") && is_kind_far(b"nfs4") && !is_kind_far(b"ext4"));
        assert!(!is_kind_far(b"fusectl"));
        assert_eq!(far_names(mounts), [b"a -"]);
        assert_eq!(far_names(b"22 1 0:5 / / rw - 9p root rw\n"), [b""]);
    }
}
