//! Whether what is mounted makes a directory its own ancestor: one that is mounted below itself (`mount --bind`).
//!
//! Without links that are followed, nothing else does. Where no mount does, no directory has to be looked at for it.

use std::sync::{Arc, OnceLock};

/// The mounts, read when they are needed first. Walks that share them read them once, so what is mounted later counts as a
/// change of the tree.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Arc<OnceLock<Table>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    /// Their numbers; none where they cannot be read.
    numbers: Vec<u64>,
    loops: bool,
}

impl Mounts {
    /// True if a directory below one of this mount can be its own ancestor: also where that mount is in another namespace, or not
    /// known.
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
    /// The path in its file system that is mounted.
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

/// True if `mount` shows again a directory that lies on the way to it.
fn is_below_itself(mount: &Mount<'_>, mounts: &[Mount<'_>]) -> bool {
    let mut below = mount;
    // A chain of parents is not longer than there are mounts.
    for _ in mounts {
        let Some(above) = mounts.iter().find(|above| above.number == below.parent) else { return false };
        if above.device == mount.device
            && let Some(way) = inside(below.place, above.place)
            // The directory that is mounted over is not on the way.
            && inside(&[trimmed(above.root), b"/", way].concat(), mount.root).is_some_and(|rest| !rest.is_empty())
        {
            return true;
        }
        below = above;
    }
    false
}

/// The path of `path` in the directory `directory`, if it is there.
fn inside<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(trimmed(directory))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// The root of all without its slash.
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
        // As containers have them: parts of /proc over themselves, files of another file system.
        assert!(!loops(&[ROOT, PROC, "3 2 0:5 /bus /proc/bus ro - proc proc rw"]));
        assert!(!loops(&[
            ROOT,
            "3 1 8:2 /h /etc/hosts rw - ext4 x rw",
            "4 1 8:2 /r /etc/resolv.conf rw - ext4 x rw"
        ]));
        // Beside itself, and a part of it in it.
        assert!(!loops(&[ROOT, "3 1 8:1 /a /b rw - ext4 /dev/sda1 rw"]));
        assert!(!loops(&[ROOT, "3 1 8:1 /a/b /a rw - ext4 /dev/sda1 rw"]));
        assert!(!loops(&[ROOT, "3 1 8:1 /ab /a/b rw - ext4 /dev/sda1 rw"]));
        // Below itself, at once or by way of another.
        assert!(loops(&[ROOT, "3 1 8:1 /a /a/b rw - ext4 /dev/sda1 rw"]));
        assert!(loops(&[ROOT, "3 1 8:1 / /mnt rw - ext4 /dev/sda1 rw"]));
        assert!(loops(&[
            ROOT,
            "3 1 0:9 / /a/t rw - tmpfs t rw",
            "4 3 8:1 /a /a/t/deep rw - ext4 /dev/sda1 rw"
        ]));
        // In a part of a file system.
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
