//! Times in a format: seconds have all their digits.

use crate::when::{self, Stamp};
use std::ffi::CString;

/// The style of a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Style {
    /// As ctime(3), with the fraction.
    Plain,
    /// Seconds since 1970.
    Epoch,
    /// Date, a plus sign, time.
    Sortable,
    /// The output of strftime(3) for a letter.
    Letter(u8),
}

impl Style {
    /// Returns the style for the letter after `%T`.
    pub fn of(letter: u8) -> Option<Style> {
        match letter {
            b'@' => Some(Style::Epoch),
            b'+' => Some(Style::Sortable),
            _ if b"aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ".contains(&letter) => Some(Style::Letter(letter)),
            _ => None,
        }
    }

    /// Formats a time.
    pub fn write(&self, stamp: Stamp) -> Vec<u8> {
        let (seconds, nanoseconds) = when::split(stamp);
        // GNU find's tenth digit is always 0.
        let fraction = format!(".{nanoseconds:09}0");
        let Some(parts) = when::local(seconds) else {
            // No calendar has this year.
            let plain = matches!(self, Style::Letter(letter) if !b"STX".contains(letter));
            return format!("{seconds}{}", if plain { "" } else { &fraction }).into_bytes();
        };
        let mut out = Vec::new();
        let mut write = |format: &str| {
            when::write(&mut out, &CString::new(format).unwrap_or_default(), &parts);
        };
        match self {
            Style::Epoch => return format!("{seconds}{fraction}").into_bytes(),
            Style::Plain => {
                write("%a %b %e %H:%M:%S");
                write(&fraction);
                write(" %Y");
            }
            Style::Sortable => {
                write("%Y-%m-%d+%H:%M:%S");
                write(&fraction);
            }
            Style::Letter(letter @ (b'S' | b'T')) => {
                write(&format!("%{}", *letter as char));
                write(&fraction);
            }
            Style::Letter(b'X') => {
                write("%X");
                behind_seconds(&mut out, &format!(":{:02}", parts.tm_sec), &fraction);
            }
            Style::Letter(letter) => write(&format!("%{}", *letter as char)),
        }
        out
    }
}

/// Inserts the fraction after the seconds of a time in the locale's format.
fn behind_seconds(text: &mut Vec<u8>, seconds: &str, fraction: &str) {
    let found = text.windows(seconds.len()).rposition(|window| window == seconds.as_bytes());
    if let Some(at) = found {
        let at = at + seconds.len();
        text.splice(at..at, fraction.bytes());
    }
}
