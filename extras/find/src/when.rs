//! Points in time: now, times of files, and dates.

use std::ffi::CStr;
use std::ffi::CString;
use std::mem::MaybeUninit;

/// Nanoseconds since 1970.
pub type Stamp = i128;

/// Nanoseconds in a second.
pub const SECOND: Stamp = 1_000_000_000;

/// Returns a file's time as a stamp.
pub fn of_file(time: &libc::statx_timestamp) -> Stamp {
    Stamp::from(time.tv_sec) * SECOND + Stamp::from(time.tv_nsec)
}

/// Returns the current time.
pub fn now() -> Stamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as Stamp
}

/// Splits a stamp into whole seconds and nanoseconds.
pub fn split(stamp: Stamp) -> (i64, u32) {
    (stamp.div_euclid(SECOND) as i64, stamp.rem_euclid(SECOND) as u32)
}

/// Returns the local date and time of a stamp; `None` for years that do not fit.
pub fn local(seconds: i64) -> Option<libc::tm> {
    let mut parts = MaybeUninit::uninit();
    // SAFETY: both are of the right kind; the result says whether the second was filled.
    let filled = unsafe { libc::localtime_r(&seconds, parts.as_mut_ptr()) };
    // SAFETY: the call filled it.
    (!filled.is_null()).then(|| unsafe { parts.assume_init() })
}

/// Returns the stamp of a local date and time; the C library determines summer time.
pub fn of_local(year: i32, month: i32, day: i32, hour: i32, minute: i32, second: i32) -> Option<i64> {
    // SAFETY: all fields are numbers or a pointer that may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
    (parts.tm_hour, parts.tm_min, parts.tm_sec, parts.tm_isdst) = (hour, minute, second, -1);
    // SAFETY: the fields are a date; the call normalizes them.
    let seconds = unsafe { libc::mktime(&mut parts) };
    // 30 February becomes a day in March, and is refused.
    ((parts.tm_mon, parts.tm_mday) == (month - 1, day)).then_some(seconds)
}

/// Returns midnight at the beginning of a stamp's day.
pub fn midnight(seconds: i64) -> i64 {
    local(seconds).map_or(seconds - seconds.rem_euclid(86400), |parts| {
        seconds - i64::from(parts.tm_sec) - i64::from(parts.tm_min) * 60 - i64::from(parts.tm_hour) * 3600
    })
}

/// Writes the result of strftime(3) for `format` (without `%%`, at most some dozens of bytes).
pub fn write(out: &mut Vec<u8>, format: &CStr, parts: &libc::tm) {
    let mut buffer = [0_u8; 512];
    // SAFETY: the buffer is as long as said, the rest is as the call wants it.
    let length = unsafe { libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), parts) };
    out.extend_from_slice(&buffer[..length]);
}

/// Sets the locale of times: names of months and days are those of the environment's language.
pub fn speak_the_users_language() {
    let empty = CString::default();
    // SAFETY: called before there are other threads.
    unsafe { libc::setlocale(libc::LC_TIME, empty.as_ptr()) };
}

/// Parses the argument of `-newermt`: `2026-11-22`, `2026-11-22 10:30`, `2026-11-22T10:30:05.5Z`, `10:30`, `@1795305295`,
/// `now`, `today`, `yesterday`, `3 days ago`.
pub fn parse(text: &str, now: Stamp) -> Option<Stamp> {
    let text = text.trim();
    if let Some(number) = text.strip_prefix('@') {
        let number = number.trim_start();
        return decimal(number.strip_prefix('+').unwrap_or(number));
    }
    let day = 86400 * SECOND;
    match text.to_ascii_lowercase().as_str() {
        "" => return Some(Stamp::from(midnight(split(now).0)) * SECOND),
        "now" | "today" => return Some(now),
        "yesterday" => return Some(now - day),
        "tomorrow" => return Some(now + day),
        _ => {}
    }
    relative(text, now).or_else(|| absolute(text, now))
}

/// Parses `3 days ago`, `1 hour ago`, `-2 weeks`.
fn relative(text: &str, now: Stamp) -> Option<Stamp> {
    let lower = text.to_ascii_lowercase();
    let (rest, ago) = lower.strip_suffix("ago").map_or((lower.as_str(), false), |rest| (rest, true));
    let mut words = rest.split_whitespace();
    let (number, unit) = (words.next()?, words.next()?);
    if words.next().is_some() {
        return None;
    }
    let number: Stamp = number.parse().ok()?;
    let number = if ago { -number } else { number };
    let seconds = match unit.strip_suffix('s').unwrap_or(unit) {
        "sec" | "second" => 1,
        "min" | "minute" => 60,
        "hour" => 3600,
        "day" => 86400,
        "week" => 7 * 86400,
        unit @ ("month" | "year") => return calendar(now, number, unit == "year"),
        _ => return None,
    };
    Some(now + number.checked_mul(seconds * SECOND)?)
}

/// Adds months or years, and keeps the day and time.
fn calendar(now: Stamp, number: Stamp, years: bool) -> Option<Stamp> {
    let (seconds, nanoseconds) = split(now);
    let mut parts = local(seconds)?;
    let number = i32::try_from(number).ok()?;
    let field = if years { &mut parts.tm_year } else { &mut parts.tm_mon };
    *field = field.checked_add(number)?;
    parts.tm_isdst = -1;
    // SAFETY: the fields are a date except for the month, which the call normalizes.
    let seconds = unsafe { libc::mktime(&mut parts) };
    Some(Stamp::from(seconds) * SECOND + Stamp::from(nanoseconds))
}

fn absolute(text: &str, now: Stamp) -> Option<Stamp> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (Some(date), time.trim()),
        None if text.contains(':') => (None, text),
        None => (Some(text), "0:0"),
    };
    let (time, zone) = zone(time)?;
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?, 23)?, number(parts.next()?, 59)?);
    let second = decimal(parts.next().unwrap_or("0")).filter(|&second| (0..61 * SECOND).contains(&second))?;
    let (year, month, day) = match date {
        Some(date) => ymd(date)?,
        None => {
            let today = local(split(now).0)?;
            (today.tm_year + 1900, today.tm_mon + 1, today.tm_mday)
        }
    };
    let seconds = match zone {
        None => of_local(year, month, day, hour, minute, 0)?,
        Some(offset) => days(year, month, day)? * 86400 + i64::from(hour * 3600 + minute * 60) - offset,
    };
    Some(Stamp::from(seconds) * SECOND + second)
}

/// Parses `2026-11-22`, `2026/11/22` or `20261122`.
fn ymd(date: &str) -> Option<(i32, i32, i32)> {
    let mut parts = date.split(['-', '/']);
    let (year, month, day) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(year), Some(month), Some(day), None) => (year, month, day),
        (Some(all), None, ..) if all.len() == 8 && all.is_ascii() => (&all[..4], &all[4..6], &all[6..]),
        _ => return None,
    };
    let year = (year.len() == 4).then(|| number(year, 9999))??;
    Some((year, number(month, 12)?, number(day, 31)?))
}

/// Splits off a time's zone, in seconds east of Greenwich, if there is one.
fn zone(time: &str) -> Option<(&str, Option<i64>)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']).or_else(|| time.strip_suffix("UTC")) {
        return Some((time.trim_end(), Some(0)));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, None)) };
    let digits: String = time[at + 1..].split(':').collect();
    let (hours, minutes) = match digits.len() {
        2 => (number(&digits, 14)?, 0),
        4 => (number(&digits[..2], 14)?, number(&digits[2..], 59)?),
        _ => return None,
    };
    let offset = i64::from(hours * 3600 + minutes * 60);
    Some((time[..at].trim_end(), Some(if time.as_bytes()[at] == b'-' { -offset } else { offset })))
}

fn number(text: &str, most: i32) -> Option<i32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|&number| number <= most)
}

/// Parses a number with a fraction, in billionths.
fn decimal(text: &str) -> Option<Stamp> {
    let (text, negative) = text.strip_prefix('-').map_or((text, false), |text| (text, true));
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.is_empty() || whole.len() > 18 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let billionths: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let stamp = whole.parse::<Stamp>().ok()? * SECOND + billionths.parse::<Stamp>().ok()?;
    Some(if negative { -stamp } else { stamp })
}

/// Returns the days from 1970 to a date, by the Gregorian calendar.
fn days(year: i32, month: i32, day: i32) -> Option<i64> {
    // SAFETY: all fields are numbers or a pointer that may be null.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
    // SAFETY: the fields are a date.
    let seconds = unsafe { libc::timegm(&mut parts) };
    ((parts.tm_mon, parts.tm_mday) == (month - 1, day)).then_some(seconds / 86400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let now = 1_795_305_295 * SECOND;
        let at = |text| parse(text, now);
        assert_eq!(at("@12.5"), Some(12_500_000_000));
        assert_eq!(at("@-1"), Some(-SECOND));
        assert_eq!(at("1970-01-02T00:00:01.25Z"), Some(86401 * SECOND + 250_000_000));
        assert_eq!(at("1970-01-02 01:00 +0100"), Some(86400 * SECOND));
        assert_eq!(at("3 days ago"), Some(now - 3 * 86400 * SECOND));
        assert_eq!(at("-1 hour"), Some(now - 3600 * SECOND));
        assert_eq!(at("yesterday"), Some(now - 86400 * SECOND));
        assert_eq!(at("20261122"), at("2026-11-22"));
        assert_eq!(at("2026-11-22"), at("2026/11/22 00:00:00"));
        for text in
            ["x", "2026-02-30", "2026-13-01", "25:00", "2026-11-22 10:61", "@", "@1.", "1 2 3", "26-01-01"]
        {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
