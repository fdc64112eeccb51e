//! Permission bits for `-perm`: an octal number, or clauses as in chmod(1), applied to no bits.

/// The bits of a mode, which differ for directories by `X`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The bits for other files.
    pub file: u32,
    /// The bits for directories.
    pub directory: u32,
}

/// Parses a mode; returns `None` if the text is not a mode.
pub fn parse(text: &str) -> Option<Mode> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        let bits = number(text.as_bytes())?;
        return Some(Mode { file: bits, directory: bits });
    }
    Some(Mode { file: symbolic(text, false)?, directory: symbolic(text, true)? })
}

/// Parses octal digits.
fn number(digits: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok()?;
    u32::from_str_radix(text, 8).ok().filter(|&bits| bits <= 0o7777)
}

fn symbolic(text: &str, directory: bool) -> Option<u32> {
    text.split(',').try_fold(0, |bits, clause| apply(bits, clause.as_bytes(), directory))
}

const READ: u32 = 0o444;
const WRITE: u32 = 0o222;
const EXECUTE: u32 = 0o111;

/// Applies one clause: who, then any number of operators with their permissions.
fn apply(mut bits: u32, clause: &[u8], directory: bool) -> Option<u32> {
    let length = clause.iter().take_while(|byte| b"ugoa".contains(byte)).count();
    let (who, mut rest) = clause.split_at(length);
    let everybody = who.is_empty();
    let who = match who {
        [] => 0o7777,
        _ => who.iter().fold(0, |all, byte| {
            all | match byte {
                b'u' => 0o4700,
                b'g' => 0o2070,
                b'o' => 0o1007,
                _ => 0o7777,
            }
        }),
    };
    if rest.is_empty() {
        return None;
    }
    while let [operator, behind @ ..] = rest {
        let octal = behind.iter().take_while(|byte| (b'0'..=b'7').contains(byte)).count();
        let (value, length) = match octal {
            0 => value(bits, behind, directory),
            // An octal number applies to all, and ends the clause.
            length if everybody && length == behind.len() => (number(behind)?, length),
            _ => return None,
        };
        rest = &behind[length..];
        let value = value & who;
        match operator {
            b'+' => bits |= value,
            b'-' => bits &= !value,
            b'=' => bits = bits & !who | value,
            _ => return None,
        }
    }
    Some(bits)
}

/// Returns the bits that an operator sets, for all classes of users, and the length of its text.
fn value(bits: u32, text: &[u8], directory: bool) -> (u32, usize) {
    let copied = |shift: u32| (bits >> shift & 7) * 0o111;
    match text.first() {
        Some(b'u') => return (copied(6), 1),
        Some(b'g') => return (copied(3), 1),
        Some(b'o') => return (copied(0), 1),
        _ => {}
    }
    let length = text.iter().take_while(|byte| b"rwxXst".contains(byte)).count();
    let value = text[..length].iter().fold(0, |all, byte| {
        all | match byte {
            b'r' => READ,
            b'w' => WRITE,
            b'x' => EXECUTE,
            b'X' if directory || bits & EXECUTE != 0 => EXECUTE,
            b's' => 0o6000,
            b't' => 0o1000,
            _ => 0,
        }
    });
    (value, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (text, file, directory) in [
            ("644", 0o644, 0o644),
            ("0", 0, 0),
            ("u=rwx,g=rx,o=rx", 0o755, 0o755),
            ("a+X", 0, 0o111),
            ("u+x,a+X", 0o111, 0o111),
            ("u+s", 0o4000, 0o4000),
            ("+s", 0o6000, 0o6000),
            ("g=u", 0, 0),
            ("u=rw,g=u", 0o660, 0o660),
            ("u=rwx-x", 0o600, 0o600),
            ("+t", 0o1000, 0o1000),
            ("=", 0, 0),
            ("+644", 0o644, 0o644),
            ("=rw+70,-4", 0o672, 0o672),
        ] {
            assert_eq!(parse(text), Some(Mode { file, directory }), "{text}");
        }
        for text in ["", "9", "10000", "u", "u=z", "u+rw/", "rw", ",", "u+7", "+7+7", "+10000", "+8"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
