//! The environment's settings for characters and times.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The characters of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    /// A byte, as in the locales C and POSIX.
    Bytes,
    /// A code point, if the name is UTF-8.
    Utf8,
}

impl Charset {
    /// Returns the charset by the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is set.
    pub fn of_environment() -> Charset {
        let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let name = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find(set);
        let value = name.and_then(std::env::var_os).unwrap_or_default();
        Charset::of_locale(&value)
    }

    fn of_locale(name: &OsStr) -> Charset {
        let name = name.as_bytes().to_ascii_lowercase();
        let codeset = name.split(|&byte| byte == b'.').nth(1).unwrap_or_default();
        let codeset = codeset.split(|&byte| byte == b'@').next().unwrap_or_default();
        if codeset == b"utf8" || codeset == b"utf-8" { Charset::Utf8 } else { Charset::Bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codesets() {
        for (name, charset) in [
            ("C", Charset::Bytes),
            ("", Charset::Bytes),
            ("C.UTF-8", Charset::Utf8),
            ("de_DE.utf8@euro", Charset::Utf8),
            ("de_DE.ISO-8859-1", Charset::Bytes),
        ] {
            assert_eq!(Charset::of_locale(OsStr::new(name)), charset, "{name}");
        }
    }
}
