//! Messages on standard error.

use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Prints one whole line.
pub fn say(text: &str) {
    let line = format!("anyring find: {text}\n");
    crate::progress::aside(|| {
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// Returns a name in quotes, on one line whatever bytes it has.
pub fn quoted(name: &[u8]) -> String {
    let mut text = String::from("'");
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\'' | '\\' => text.extend(['\\', character]),
                _ if character.is_control() => {
                    let _ = write!(text, "\\{:03o}", u32::from(character));
                }
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text.push('\'');
    text
}

/// Returns an error's text by the system, without its number.
pub fn of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_line() {
        assert_eq!(quoted(b"a b"), "'a b'");
        assert_eq!(quoted(b"a\n'\x1b\xff"), r"'a\n\'\033\377'");
        assert_eq!(of(&io::Error::from_raw_os_error(libc::EACCES)), "Permission denied");
    }
}
