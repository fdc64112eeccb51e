//! The counters of a kernel's ring in `/proc/PID/fdinfo`: the only source if the ring's memory cannot be mapped.

use std::fs;
use std::io;

use crate::find::Found;
use crate::geometry::Counters;

/// The contents of a descriptor's file in `/proc/PID/fdinfo`.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// The ring's counters.
    Counters(Counters),
    /// No counters, because the ring is busy.
    Busy,
    /// The counters of another ring, or the contents for another kind of file.
    Other,
}

/// Reads the file in `/proc/PID/fdinfo` of a ring's descriptor.
///
/// # Errors
/// The errors of reading `/proc/PID/fdinfo/FD`: the descriptor is gone, or the caller may not read it.
pub fn read(found: &Found) -> io::Result<Shown> {
    let text = fs::read_to_string(format!("/proc/{}/fdinfo/{}", found.process, found.fd))?;
    Ok(shown(&text, found.inode))
}

fn shown(text: &str, inode: u64) -> Shown {
    // Before Linux 5.14, the file does not contain the inode.
    let is_other = value(text, "ino").is_some_and(|shown| shown != inode);
    match parse(text) {
        _ if is_other => Shown::Other,
        Some(counters) => Shown::Counters(counters),
        None => Shown::Busy,
    }
}

fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let word = line.trim();
    let parsed = word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    parsed.unwrap_or_else(|| word.parse()).ok()
}

fn parse(text: &str) -> Option<Counters> {
    let value = |key: &str| u32::try_from(value(text, key)?).ok();
    Some(Counters {
        sq_head: value("SqHead")?,
        sq_tail: value("SqTail")?,
        cq_head: value("CqHead")?,
        cq_tail: value("CqTail")?,
        sq_entries: value("SqMask")?.checked_add(1)?,
        cq_entries: value("CqMask")?.checked_add(1)?,
        ..Counters::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let text = "pos:\t0\nino:\t15162\nSqMask:\t0x7\nSqHead:\t11\nSqTail:\t12\nCachedSqHead:\t11\n\
            CqMask:\t0xf\nCqHead:\t3\nCqTail:\t9\nCachedCqTail:\t9\n";
        let counters = parse(text).unwrap();
        assert_eq!((counters.sq_ready(), counters.cq_ready()), (1, 6));
        // The file does not contain the number of lost CQEs.
        assert_eq!((counters.overflow, counters.in_flight()), (None, None));
        assert_eq!((counters.sq_entries, counters.cq_entries), (8, 16));
        // The file of a ring whose lock is held has no counters.
        assert_eq!(shown("pos:\t0\n", 1), Shown::Busy);
        assert_eq!(shown(text, 15162), Shown::Counters(counters));
        // The program has replaced the ring at this descriptor by another one.
        assert_eq!(shown(text, 15163), Shown::Other);
    }
}
