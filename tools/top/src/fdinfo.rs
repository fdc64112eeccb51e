//! The counters of a kernel's ring as `/proc/PID/fdinfo` shows them: all that there is to see where the memory cannot be mapped.

use std::fs;
use std::os::fd::RawFd;

use crate::geometry::Counters;

/// The counters of a ring; `None` where the kernel does not tell, because the ring is busy or gone.
pub fn counters(process: u32, fd: RawFd) -> Option<Counters> {
    parse(&fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).ok()?)
}

fn parse(text: &str) -> Option<Counters> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let word = line.trim();
        let parsed = word.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
        parsed.unwrap_or_else(|| word.parse()).ok()
    };
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
        assert_eq!((counters.sq_ready(), counters.cq_ready(), counters.in_flight()), (1, 6, Some(2)));
        assert_eq!((counters.sq_entries, counters.cq_entries), (8, 16));
        // A ring whose lock is held shows nothing.
        assert_eq!(parse("pos:\t0\n"), None);
    }
}
