//! Detects whether a mount makes a directory its own ancestor: a directory mounted below itself (`mount --bind`).
//!
//! If links are not followed, there is no other cause: without such a mount, no directory has to be checked.

use std::sync::{Arc, OnceLock};

/// The mounts, read when they are first needed. Walks that share them read them once, so a later mount counts as a change
/// of the tree.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Arc<OnceLock<Table>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    /// The mounts' numbers; none if they cannot be read.
    numbers: Vec<u64>,
    loops: bool,
}

impl Mounts {
    /// True if a directory below the mount can be its own ancestor, or if the mount is in another namespace or not known.
    pub(crate) fn may_loop(&self, mount: Option<u64>) -> bool {
        let read = || std::fs::read("/proc/self/mountinfo").map(|text| Table::of(&text)).unwrap_or_default();
        let table = self.0.get_or_init(read);
        table.loops || mount.is_none_or(|number| !table.numbers.contains(&number))
    }
}

/// A line of `mountinfo`, as `proc(5)` describes it. Paths remain escaped.
#[derive(Clone, Copy)]
struct Mount<'a> {
    number: u64,
    parent: u64,
    device: &'a [u8],
    /// The path in the mounted file system.
    root: &'a [u8],
    place: &'a [u8],
}

impl<'a> Mount<'a> {
    fn parse(line: &'a [u8]) -> Option<Mount<'a>> {
        let mut words = line.split(|&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (number, parent) = (number()?, number()?);
        Some(Mount { number, parent, device: words.next()?, root: words.next()?, place: words.next()? })
    }
}

impl Table {
    fn of(text: &[u8]) -> Table {
        let mounts: Vec<Mount<'_>> = text.split(|&byte| byte == b'\n').filter_map(Mount::parse).collect();
        let loops = mounts.iter().any(|mount| is_below_itself(mount, &mounts));
        Table { numbers: mounts.iter().map(|mount| mount.number).collect(), loops }
    }
}

/// True if `mount` shows again a directory that lies on the path to it.
fn is_below_itself(mount: &Mount<'_>, mounts: &[Mount<'_>]) -> bool {
    let mut below = mount;
    // A chain of parents is not longer than the number of mounts.
    for _ in mounts {
        let Some(above) = mounts.iter().find(|above| above.number == below.parent) else { return false };
        if above.device == mount.device
            && let Some(way) = inside(below.place, above.place)
            // The directory underneath the mount is not on the path.
            && inside(&[trimmed(above.root), b"/", way].concat(), mount.root).is_some_and(|rest| !rest.is_empty())
        {
            return true;
        }
        below = above;
    }
    false
}

/// Returns `path` relative to `directory`, if it lies there.
fn inside<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(trimmed(directory))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// Returns the path without a slash at its end.
fn trimmed(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(lines: &[&str]) -> bool {
        Table::of(lines.join("\n").as_bytes()).loops
    }

    #[test]
    fn which_mounts_make_loops() {
        const ROOT: &str = "1 0 8:1 / / rw - ext4 /dev/sda1 rw";
        const PROC: &str = "2 1 0:5 / /proc rw shared:1 - proc proc rw";
        assert!(!loops(&[ROOT, PROC]));
        // As in containers: parts of /proc over themselves, files of another file system.
        assert!(!loops(&[ROOT, PROC, "3 2 0:5 /bus /proc/bus ro - proc proc rw"]));
        assert!(!loops(&[
            ROOT,
            "3 1 8:2 /h /etc/hosts rw - ext4 x rw",
            "4 1 8:2 /r /etc/resolv.conf rw - ext4 x rw"
        ]));
        // Mounted beside itself, and a part of a directory mounted over the directory.
        assert!(!loops(&[ROOT, "3 1 8:1 /a /b rw - ext4 /dev/sda1 rw"]));
        assert!(!loops(&[ROOT, "3 1 8:1 /a/b /a rw - ext4 /dev/sda1 rw"]));
        assert!(!loops(&[ROOT, "3 1 8:1 /ab /a/b rw - ext4 /dev/sda1 rw"]));
        // Mounted below itself, directly or through another mount.
        assert!(loops(&[ROOT, "3 1 8:1 /a /a/b rw - ext4 /dev/sda1 rw"]));
        assert!(loops(&[ROOT, "3 1 8:1 / /mnt rw - ext4 /dev/sda1 rw"]));
        assert!(loops(&[
            ROOT,
            "3 1 0:9 / /a/t rw - tmpfs t rw",
            "4 3 8:1 /a /a/t/deep rw - ext4 /dev/sda1 rw"
        ]));
        // In a subtree of a file system.
        const HOME: &str = "3 1 8:3 /home /srv rw - ext4 /dev/sdb rw";
        assert!(loops(&[ROOT, HOME, "4 3 8:3 /home/u /srv/u/in rw - ext4 /dev/sdb rw"]));
        assert!(!loops(&[ROOT, HOME, "4 3 8:3 /home/v /srv/u/in rw - ext4 /dev/sdb rw"]));
    }

    #[test]
    fn mounts_that_are_not_known() {
        let mounts = Mounts(Arc::new(OnceLock::from(Table { numbers: vec![7], loops: false })));
        assert!(!mounts.may_loop(Some(7)));
        assert!(mounts.may_loop(Some(8)));
        assert!(mounts.may_loop(None));
    }
}
