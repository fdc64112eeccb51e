//! Which file systems answer from elsewhere, and may take as long as they like.
//!
//! What the caller does itself holds it up. On such a file system that may be for ever, even where the
//! program itself is the one that answers: there another thread waits. Who could be asked for the kind
//! of a file system would have to answer, too; so it is found out by the mount, which the kernel knows.

use alloc::vec::Vec;

use crate::os::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{
    O_CLOEXEC, O_RDONLY, POLLERR, POLLNVAL, POLLPRI, STATX_MNT_ID, STATX_MNT_ID_UNIQUE,
};

use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};

/// Names of file systems that ask other machines or processes begin with these.
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

/// How long what is known of the mounts is believed, in microseconds.
const BELIEVED_US: u64 = 4000;

/// Where the far mounts are.
struct Points {
    /// `/proc/self/mountinfo`, which tells of changes. -1 before it was opened, and where it cannot be.
    watch: Fd,
    /// The last component of each path at which something far is mounted; empty for the root.
    names: Vec<Vec<u8>>,
}

static POINTS: Mutex<Points> = Mutex::new(Points { watch: -1, names: Vec::new() });
/// True while there are far mounts.
static ANY: AtomicBool = AtomicBool::new(false);
/// When the mounts were last looked at, by the processor's clock.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// The lock of what is known of mounts, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &POINTS
}

/// In a child after `fork`: it may come to have mounts of its own.
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

/// True if a path from this directory may lead to where answers take for ever. Costs nothing where no such
/// file system is mounted. Symbolic links are not followed: what they lead to is not seen.
#[inline]
pub fn may_be_far(directory: Fd, path: &[u8]) -> bool {
    let now = os::ticks();
    let believed = BELIEVED_US * os::ticks_per_us();
    if now.wrapping_sub(LOOKED.load(Relaxed)) > believed {
        look(now);
    }
    ANY.load(Relaxed) && is_path_far(directory, path)
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

/// Finds out whether other file systems were mounted since.
#[cold]
fn look(now: u64) {
    // Whoever looks at this moment finds out for all.
    let Some(mut points) = POINTS.try_lock() else { return };
    LOOKED.store(now, Relaxed);
    if points.watch >= 0 {
        let told = os::poll_now(points.watch, POLLPRI | POLLERR).unwrap_or(POLLNVAL);
        if told & (POLLPRI | POLLERR | POLLNVAL) == 0 {
            return;
        }
        if told & POLLNVAL != 0 {
            // The program has closed it.
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

/// The last components of the paths of far mounts.
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

/// A name as it is: the table has `\040` for a space, and the like.
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

/// Where a file system has what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Place {
    /// In this machine.
    Here = 1,
    /// With another machine or process.
    Far = 2,
    /// In other file systems, of which it has made one: overlayfs.
    Below = 3,
}

impl Place {
    const ALL: [Place; 3] = [Place::Here, Place::Far, Place::Below];
}

/// Mounts that were looked at, each as its number times four plus the [`Place`]. Linux before 6.8 uses numbers again: there this
/// is a hint.
static SEEN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// True if reading this directory may take for ever.
pub fn is_far(fd: Fd) -> bool {
    place_of(fd) == Place::Far
}

/// The place of a file. Asked each time, for the number of a descriptor may stand for another file than before.
pub fn place_of(fd: Fd) -> Place {
    // Where nothing can be found out, there is nothing to be done about it.
    let Some(mount) = mount_of(fd, STATX_MNT_ID | STATX_MNT_ID_UNIQUE) else { return Place::Here };
    let slot = &SEEN[(mount % SEEN.len() as u64) as usize];
    let seen = slot.load(Relaxed);
    if seen >> 2 == mount
        && let Some(place) = Place::ALL.into_iter().find(|&place| place as u64 == seen & 3)
    {
        return place;
    }
    let place = mount_of(fd, STATX_MNT_ID).map_or(Place::Here, place_of_mount);
    slot.store(mount << 2 | place as u64, Relaxed);
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
        Some(kind) if is_kind_far(kind) => Place::Far,
        _ => Place::Here,
    }
}

fn is_kind_far(kind: &[u8]) -> bool {
    kind != b"fusectl" && FAR.iter().any(|name| kind.starts_with(name))
}

/// The kind of a mount, in what `/proc/self/mountinfo` says: `36 35 98:0 /root /at options tags - kind device options`.
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
