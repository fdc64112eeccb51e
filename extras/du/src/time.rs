//! Times: how they are counted and printed.

use crate::arguments::Time;
use crate::output;
use anyring_walk::Statx;
use std::ffi::{CString, c_char};

/// Nanoseconds since 1970.
pub type Stamp = i128;

pub const SECOND: Stamp = 1_000_000_000;

/// Returns a time of a file.
pub fn of(status: &Statx, which: Time) -> Stamp {
    let time = match which {
        Time::Modified => status.stx_mtime,
        Time::Accessed => status.stx_atime,
        Time::Changed => status.stx_ctime,
    };
    Stamp::from(time.tv_sec) * SECOND + Stamp::from(time.tv_nsec)
}

/// Returns the attributes to query for a time.
pub fn mask(which: Time) -> u32 {
    match which {
        Time::Modified => libc::STATX_MTIME,
        Time::Accessed => libc::STATX_ATIME,
        Time::Changed => libc::STATX_CTIME,
    }
}

/// The format of times.
#[derive(Debug)]
pub struct Style {
    format: CString,
    full: bool,
}

impl Style {
    /// Parses the name of a style, or a format after `+`; returns `None` if there is no such style.
    pub fn parse(text: &str) -> Option<Style> {
        let format = match text {
            "long-iso" => "%Y-%m-%d %H:%M",
            "iso" => "%Y-%m-%d",
            "full-iso" => "%Y-%m-%d %H:%M:%S",
            _ => text.strip_prefix('+')?,
        };
        Some(Style { format: CString::new(format).ok()?, full: text == "full-iso" })
    }

    /// Formats a time in the local time zone.
    pub fn show(&self, time: Stamp) -> Vec<u8> {
        // The seconds of a stamp fit into an i64.
        let (seconds, rest) = (time.div_euclid(SECOND) as i64, time.rem_euclid(SECOND));
        // SAFETY: integers and a pointer that the C library sets.
        let mut parts: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to local variables.
        if unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
            output::say(&format!("the time {seconds} has no date"));
            return seconds.to_string().into_bytes();
        }
        let mut text = formatted(&self.format, &parts);
        if self.full {
            text.extend(format!(".{rest:09} ").into_bytes());
            text.extend(formatted(c"%z", &parts));
        }
        text
    }
}

fn formatted(format: &std::ffi::CStr, parts: &libc::tm) -> Vec<u8> {
    let mut text = vec![0_u8; 256 + 16 * format.count_bytes()];
    // SAFETY: the buffer has the size given.
    let length =
        unsafe { libc::strftime(text.as_mut_ptr().cast::<c_char>(), text.len(), format.as_ptr(), parts) };
    text.truncate(length);
    text
}
