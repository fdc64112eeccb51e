//! Names of bits and values, as strace prints them.

use std::fmt::Write;

use anyring_engine::abi::names::Names;

/// A list of words, joined by `|`.
struct Joined<'a> {
    out: &'a mut String,
    first: bool,
}

impl Joined<'_> {
    fn put(&mut self, word: &str) {
        if !self.first {
            self.out.push('|');
        }
        self.first = false;
        self.out.push_str(word);
    }
}

/// Passes the name of each set bit to `put`. Returns the set bits without a name.
fn named(names: &Names, value: u64, mut put: impl FnMut(&'static str)) -> u64 {
    names.names.iter().fold(value, |rest, (bits, name)| {
        let bits = u64::from(*bits);
        if bits == 0 || rest & bits != bits {
            return rest;
        }
        put(name);
        rest & !bits
    })
}

/// Prints the set bits by their names, and the bits without a name in hexadecimal. If no bit is set, prints the name of
/// 0, if there is one.
pub fn flags(out: &mut String, names: &Names, value: u64) {
    let mut joined = Joined { out, first: true };
    let rest = named(names, value, |name| joined.put(name));
    match (value, names.of(0)) {
        (0, Some(name)) => joined.put(name),
        (0, None) => joined.put("0"),
        _ => unnamed(joined, names.prefix, rest),
    }
}

fn unnamed(joined: Joined<'_>, prefix: &str, rest: u64) {
    if rest != 0 {
        let bar = if joined.first { "" } else { "|" };
        let _ = write!(joined.out, "{bar}{rest:#x} /* {prefix}??? */");
    }
}

/// Returns the names of the set bits, and the bits without a name as one number.
pub fn list(names: &Names, value: u32) -> Vec<String> {
    let mut list = Vec::new();
    let rest = named(names, value.into(), |name| list.push(name.to_owned()));
    if rest != 0 {
        list.push(format!("{rest:#x}"));
    }
    list
}

/// Prints one of several values by its name.
pub fn choice(out: &mut String, names: &Names, value: u64) {
    match names.names.iter().find(|(number, _)| u64::from(*number) == value) {
        Some((_, name)) => out.push_str(name),
        None => {
            let _ = write!(out, "{value:#x} /* {}??? */", names.prefix);
        }
    }
}

/// Prints one of several values, in the bits of `mask`, and flags, in the other bits. A value of 0 without a name is
/// not printed.
pub fn choice_and_flags(out: &mut String, mask: u32, values: &Names, bits: &Names, value: u64) {
    let (chosen, rest) = (value & u64::from(mask), value & !u64::from(mask));
    if chosen != 0 || values.of(0).is_some() {
        choice(out, values, chosen);
        if rest == 0 {
            return;
        }
        out.push('|');
    }
    flags(out, bits, rest);
}

/// Returns the name of an error number, if it has one.
pub fn errno(number: i32) -> Option<String> {
    match nix::errno::Errno::from_raw(number) {
        nix::errno::Errno::UnknownErrno => None,
        known => Some(format!("{known:?}")),
    }
}

/// Returns the C library's text for an error number.
pub fn explained(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
