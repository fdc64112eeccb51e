//! Which file systems answer from elsewhere, and may take as long as they like.
//!
//! What the caller does itself holds it up. On such a file system that may be for ever, even where the
//! program itself is the one that answers: there another thread waits. Who could be asked for the kind
//! of a file system would have to answer, too; so it is found out by the mount, which the kernel knows.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{STATX_MNT_ID, STATX_MNT_ID_UNIQUE};

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

/// What was found out: the number of a mount times four, plus two where it is far, plus one. Linux before 6.8 uses
/// numbers again: there this is a hint.
static SEEN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// May reading this directory take for ever? Asked each time, for the number of a descriptor may stand for another
/// file than before.
pub fn is_far(fd: Fd) -> bool {
    // Where nothing can be found out, there is nothing to be done about it.
    let Some(mount) = mount_of(fd, STATX_MNT_ID | STATX_MNT_ID_UNIQUE) else { return false };
    let place = &SEEN[(mount % SEEN.len() as u64) as usize];
    let seen = place.load(Relaxed);
    if seen >> 2 == mount && seen & 1 != 0 {
        return seen & 2 != 0;
    }
    let far = mount_of(fd, STATX_MNT_ID).is_some_and(is_mount_far);
    place.store(mount << 2 | u64::from(far) << 1 | 1, Relaxed);
    far
}

fn mount_of(fd: Fd, wanted: u32) -> Option<u64> {
    let known = os::known_status(fd, wanted).ok()?;
    (known.stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE) != 0).then_some(known.stx_mnt_id)
}

fn is_mount_far(mount: u64) -> bool {
    os::mounts().is_ok_and(|mounts| kind_of(&mounts, mount).is_some_and(is_kind_far))
}

fn is_kind_far(kind: &[u8]) -> bool {
    FAR.iter().any(|name| kind.starts_with(name))
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
    }
}
