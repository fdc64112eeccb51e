//! Strings and times, as strace prints them.

use std::fmt::Write;

/// Prints bytes in quotes, at most `most` of them. Dots follow if these are fewer than `length`.
pub fn bytes(out: &mut String, bytes: &[u8], length: u64, most: usize) {
    let shown = &bytes[..bytes.len().min(most)];
    out.push('"');
    let mut place = 0;
    while place < shown.len() {
        let plain = shown[place..].iter().take_while(|byte| is_plain(**byte)).count();
        out.push_str(str::from_utf8(&shown[place..place + plain]).unwrap_or_default());
        place += plain;
        if let Some(byte) = shown.get(place) {
            place += 1;
            escaped(out, *byte, shown.get(place).copied());
        }
    }
    out.push('"');
    if length > shown.len() as u64 {
        out.push_str("...");
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

fn escaped(out: &mut String, byte: u8, next: Option<u8>) {
    let short = match byte {
        b'"' => "\\\"",
        b'\\' => "\\\\",
        b'\n' => "\\n",
        b'\r' => "\\r",
        b'\t' => "\\t",
        0x0b => "\\v",
        0x0c => "\\f",
        // The shortest octal form that is unambiguous before the next byte.
        _ => {
            let is_digit = matches!(next, Some(b'0'..=b'7'));
            let _ = if is_digit { write!(out, "\\{byte:03o}") } else { write!(out, "\\{byte:o}") };
            return;
        }
    };
    out.push_str(short);
}

/// Prints an address.
pub fn address(out: &mut String, address: u64) {
    match address {
        0 => out.push_str("NULL"),
        _ => {
            let _ = write!(out, "{address:#x}");
        }
    }
}

/// Prints a duration with about three digits.
pub fn duration(out: &mut String, duration_ns: u64) {
    let _ = match duration_ns {
        0..10_000 => write!(out, "{}.{:03}us", duration_ns / 1000, duration_ns % 1000),
        10_000..10_000_000 => write!(out, "{}us", duration_ns / 1000),
        10_000_000..10_000_000_000 => write!(out, "{}ms", duration_ns / 1_000_000),
        _ => write!(out, "{}.{}s", duration_ns / 1_000_000_000, duration_ns / 100_000_000 % 10),
    };
}
