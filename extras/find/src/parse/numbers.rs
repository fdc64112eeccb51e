//! Numbers with a sign: `+n` more, `-n` less, `n` exactly.

use crate::expression::{Compare, Window};
use crate::when::{SECOND, Stamp};

/// A whole number, compared as its sign says.
pub fn compare(text: &str) -> Option<Compare> {
    let (sign, digits) = signed(text);
    let number = whole(digits)?;
    Some(match sign {
        Some('+') => Compare::More(number),
        Some(_) => Compare::Less(number),
        None => Compare::Equal(number),
    })
}

/// Digits only.
pub fn whole(digits: &str) -> Option<u64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok()).flatten()
}

fn signed(text: &str) -> (Option<char>, &str) {
    match text.chars().next() {
        Some(sign @ ('+' | '-')) => (Some(sign), &text[1..]),
        _ => (None, text),
    }
}

/// A size: the unit in bytes, and how many, which sizes are rounded up to.
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

/// An age in units of so many seconds. A unit ends at `end`: a file of age 0 lies in the unit behind it; so days are
/// rounded down and minutes up. `slack` is what GNU find adds to the newer side of whole days.
pub fn age(text: &str, end: Stamp, unit: i64, slack: Stamp) -> Option<Window> {
    let (sign, digits) = signed(text);
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = valid.then(|| digits.parse().ok()).flatten()?;
    let seconds = number * unit as f64;
    if !(0.0..1e15).contains(&seconds) {
        return None;
    }
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
        for text in ["", "+", "5x", "--5", "0x5", "99999999999999999999999"] {
            assert_eq!(compare(text), None, "{text}");
        }
        assert_eq!(size(""), None);
        assert_eq!(size("k"), None);
        assert_eq!(size("1é"), None);
        let day = 86400 * SECOND;
        assert_eq!(age("1", 10 * day, 86400, 0), Some(Window::Between(9 * day, 10 * day)));
        assert_eq!(age("+0.5", 10 * day, 86400, 0), Some(Window::Before(19 * day / 2)));
        assert_eq!(age("1e3", 0, 60, 0), None);
        assert_eq!(age(".", 0, 60, 0), None);
    }
}
