//! Numbers with a sign: `+n` more, `-n` less, `n` exactly.

use crate::expression::{Compare, Window};
use crate::when::{SECOND, Stamp};
use std::ffi::CString;

/// Parses a whole number, compared as its sign says. As in GNU find, space and a plus sign may follow the sign.
pub fn compare(text: &str) -> Option<Compare> {
    let (sign, rest) = signed(text);
    let digits = without_space(rest);
    let number = whole(digits.strip_prefix('+').unwrap_or(digits))?;
    Some(match sign {
        Some('+') => Compare::More(number),
        Some(_) => Compare::Less(number),
        None => Compare::Equal(number),
    })
}

/// Parses decimal digits.
fn whole(digits: &str) -> Option<u64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok()).flatten()
}

/// Parses decimal digits of a number that fits an `int`.
pub fn int(digits: &str) -> Option<u32> {
    whole(digits).and_then(|number| i32::try_from(number).ok()).map(i32::cast_unsigned)
}

/// Returns the text without the white space that `strtoumax(3)` skips.
fn without_space(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r'])
}

/// Returns the number that `strtod(3)` parses from the whole text.
fn float(text: &str) -> Option<f64> {
    let text = CString::new(text).ok()?;
    let mut end = std::ptr::null_mut();
    // SAFETY: a string that ends, and places for a pointer into it and for this thread's errno.
    let (number, errno) = unsafe {
        *libc::__errno_location() = 0;
        (libc::strtod(text.as_ptr(), &mut end), *libc::__errno_location())
    };
    // SAFETY: `end` points into the string.
    let all = end.cast_const() != text.as_ptr() && unsafe { *end } == 0;
    (all && !number.is_nan() && (errno != libc::ERANGE || number == 0.0)).then_some(number)
}

fn signed(text: &str) -> (Option<char>, &str) {
    match text.chars().next() {
        Some(sign @ ('+' | '-')) => (Some(sign), &text[1..]),
        _ => (None, text),
    }
}

/// Parses a size: the unit in bytes, and the number of units, to which sizes are rounded up.
pub fn size(text: &str) -> Option<(u64, Compare)> {
    let (digits, unit) = match text.chars().next_back()? {
        'c' => (&text[..text.len() - 1], 1),
        'w' => (&text[..text.len() - 1], 2),
        'b' => (&text[..text.len() - 1], 512),
        'k' => (&text[..text.len() - 1], 1 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 512),
    };
    Some((unit, compare(digits)?))
}

/// Parses an age in units of `unit` seconds. A unit ends at `end`, and a file of age 0 lies in the unit after it, so days are
/// rounded down and minutes up. `slack` is what GNU find adds to the newer side of whole days. After the sign of the
/// comparison, the number may have a sign of its own.
pub fn age(text: &str, end: Stamp, unit: i64, slack: Stamp) -> Option<Window> {
    /// The greatest age of a file.
    const OLDEST: f64 = i64::MAX as f64;
    let (sign, number) = signed(text);
    let seconds = float(number)? * unit as f64;
    if seconds < -OLDEST {
        return None;
    }
    let seconds = seconds.min(OLDEST);
    let (whole, fraction) = (seconds.trunc(), seconds.fract());
    let begin = end - (whole as Stamp * SECOND + (fraction * SECOND as f64) as Stamp);
    Some(match sign {
        Some('+') => Window::Before(begin),
        Some(_) => Window::After(begin + slack),
        None => Window::Between(begin, begin + Stamp::from(unit) * SECOND),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(compare("+5"), Some(Compare::More(5)));
        assert_eq!(compare("-0"), Some(Compare::Less(0)));
        assert_eq!(compare("5"), Some(Compare::Equal(5)));
        assert_eq!(size("-3k"), Some((1024, Compare::Less(3))));
        assert_eq!(size("3"), Some((512, Compare::Equal(3))));
        assert_eq!(compare("-+ 5"), None);
        assert_eq!(compare("- +5"), Some(Compare::Less(5)));
        for text in ["", "+", "5x", "--5", "0x5", "5 ", "+++5", "99999999999999999999999"] {
            assert_eq!(compare(text), None, "{text}");
        }
        assert_eq!(size(""), None);
        assert_eq!(size("k"), None);
        assert_eq!(size("1é"), None);
        let day = 86400 * SECOND;
        assert_eq!(age("1", 10 * day, 86400, 0), Some(Window::Between(9 * day, 10 * day)));
        assert_eq!(age("+0.5", 10 * day, 86400, 0), Some(Window::Before(19 * day / 2)));
        assert_eq!(age("1e3", 0, 60, 0), Some(Window::Between(-60_000 * SECOND, -59_940 * SECOND)));
        assert_eq!(age("--0x10", 0, 60, 0), Some(Window::After(960 * SECOND)));
        assert_eq!(age("+inf", 0, 60, 0), age("+1e300", 0, 60, 0));
        for text in [".", "", "+", "1 ", "nan", "--inf", "+-1e300", "1e400", "1,5"] {
            assert_eq!(age(text, 0, 60, 0), None, "{text}");
        }
    }
}
