//! Regular expressions in the dialects of GNU find, translated into that of the crate `regex`.
//!
//! An expression matches the whole path. Whether it matches does not depend on which of several matches a dialect
//! prefers, so the dialects agree with the crate. Back references, which the crate does not have, are refused.

use crate::locale::Charset;
use regex::bytes::{Regex, RegexBuilder};
use std::fmt::Write;

/// A dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// True if `( ) |` are operators without a backslash, else with one.
    bare: bool,
    repeat: Repeat,
    /// How an interval begins.
    interval: Interval,
    /// True if there are classes such as `[[:alpha:]]`.
    classes: bool,
    dot_takes_newline: bool,
    /// True if a newline separates alternatives.
    newline_separates: bool,
}

/// How `+` and `?` are written as operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Bare,
    Escaped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interval {
    No,
    Bare,
    Escaped,
}

const EMACS: Dialect = Dialect {
    bare: false,
    repeat: Repeat::Bare,
    interval: Interval::No,
    classes: false,
    dot_takes_newline: false,
    newline_separates: false,
};

const BASIC: Dialect = Dialect {
    bare: false,
    repeat: Repeat::Escaped,
    interval: Interval::Escaped,
    classes: true,
    dot_takes_newline: true,
    newline_separates: false,
};

const EXTENDED: Dialect = Dialect { bare: true, repeat: Repeat::Bare, interval: Interval::Bare, ..BASIC };

const EGREP: Dialect = Dialect { newline_separates: true, ..EXTENDED };

/// The names for `-regextype`.
const NAMES: [(&str, Dialect); 9] = [
    ("findutils-default", Dialect { dot_takes_newline: true, ..EMACS }),
    ("emacs", EMACS),
    ("posix-basic", BASIC),
    ("ed", BASIC),
    ("sed", BASIC),
    ("grep", Dialect { newline_separates: true, ..BASIC }),
    ("posix-extended", EXTENDED),
    ("posix-egrep", EGREP),
    ("egrep", EGREP),
];

impl Dialect {
    /// The dialect without `-regextype`.
    pub const DEFAULT: Dialect = EMACS;

    /// Returns the dialect with this name, or an error with the known names.
    pub fn named(name: &str) -> Result<Dialect, String> {
        let found = NAMES.iter().find(|(own, _)| *own == name);
        found.map(|(_, dialect)| *dialect).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("-regextype {name}: not a dialect that is known here; these are: {}", known.join(", "))
        })
    }
}

/// Compiles a regular expression for whole paths; the error says what is wrong with it.
pub fn compile(text: &[u8], dialect: Dialect, fold: bool, charset: Charset) -> Result<Regex, String> {
    let wide = charset == Charset::Utf8 && std::str::from_utf8(text).is_ok();
    let mut translation = Translation {
        text,
        at: 0,
        dialect,
        wide,
        out: String::new(),
        unit: None,
        groups: Vec::new(),
        start: true,
    };
    translation.all()?;
    let pattern = format!(r"\A(?:{})\z", translation.out);
    let mut builder = RegexBuilder::new(&pattern);
    builder.unicode(wide).case_insensitive(fold).size_limit(64 << 20);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it is too big".into(),
        _ => "it is not well-formed in this dialect (see -regextype)".into(),
    })
}

struct Translation<'a> {
    text: &'a [u8],
    at: usize,
    dialect: Dialect,
    wide: bool,
    out: String,
    /// The offset in `out` of the last unit, if it can be repeated.
    unit: Option<usize>,
    /// The offsets in `out` of the open groups.
    groups: Vec<usize>,
    /// True at the beginning of an alternative.
    start: bool,
}

/// The meaning of a piece of the text.
enum Piece {
    /// A literal character.
    Literal(u32),
    /// An operator, without its backslash.
    Operator(u8),
    /// A GNU extension, after a backslash.
    Special(u8),
    Set,
}

impl Translation<'_> {
    fn all(&mut self) -> Result<(), String> {
        while self.at < self.text.len() {
            let (begin, start) = (self.out.len(), std::mem::replace(&mut self.start, false));
            match self.piece()? {
                Piece::Literal(code) => self.code(code),
                Piece::Set => self.set()?,
                Piece::Special(byte) => {
                    self.special(byte);
                    if !b"wWsS".contains(&byte) {
                        self.unit = None;
                        continue;
                    }
                }
                Piece::Operator(byte) => {
                    self.operator(byte, start)?;
                    continue;
                }
            }
            self.unit = Some(begin);
        }
        if self.groups.is_empty() { Ok(()) } else { Err("a group in it does not end".into()) }
    }

    /// Takes the next piece of the text.
    fn piece(&mut self) -> Result<Piece, String> {
        let byte = self.text[self.at];
        let dialect = self.dialect;
        if byte == b'\\' {
            let Some(&next) = self.text.get(self.at + 1) else {
                return Err("it ends in a backslash".into());
            };
            self.at += 1;
            let operator = match next {
                b'(' | b')' | b'|' => !dialect.bare,
                b'{' | b'}' => dialect.interval == Interval::Escaped,
                b'+' | b'?' => dialect.repeat == Repeat::Escaped,
                _ => false,
            };
            if operator {
                self.at += 1;
                return Ok(Piece::Operator(next));
            }
            if next.is_ascii_digit() && next != b'0' {
                return Err(format!(
                    "it refers back to a group (\\{}), which is not done here",
                    next as char
                ));
            }
            if b"wWsSbB<>`'".contains(&next) {
                self.at += 1;
                return Ok(Piece::Special(next));
            }
            return Ok(Piece::Literal(self.character()));
        }
        let operator = match byte {
            b'(' | b')' | b'|' => dialect.bare,
            b'{' => dialect.interval == Interval::Bare,
            b'+' | b'?' => dialect.repeat == Repeat::Bare,
            b'\n' => dialect.newline_separates,
            b'*' | b'.' | b'^' | b'$' => true,
            b'[' => {
                self.at += 1;
                return Ok(Piece::Set);
            }
            _ => false,
        };
        if operator {
            self.at += 1;
            return Ok(Piece::Operator(byte));
        }
        Ok(Piece::Literal(self.character()))
    }

    /// Takes one character.
    fn character(&mut self) -> u32 {
        let rest = &self.text[self.at..];
        let wide = self.wide.then(|| std::str::from_utf8(rest).ok()?.chars().next()).flatten();
        let (code, length) = wide.map_or((rest[0].into(), 1), |one| (one.into(), one.len_utf8()));
        self.at += length;
        code
    }

    /// Writes a character in a form that is valid in a set, too.
    fn code(&mut self, code: u32) {
        let _ =
            if self.wide { write!(self.out, r"\x{{{code:x}}}") } else { write!(self.out, r"\x{code:02x}") };
    }

    fn special(&mut self, byte: u8) {
        let (bytes, wide) = match byte {
            b'w' => ("[0-9A-Za-z_]", r"\w"),
            b'W' => ("[^0-9A-Za-z_]", r"\W"),
            b's' => (r"[\t-\r ]", r"\s"),
            b'S' => (r"[^\t-\r ]", r"\S"),
            b'b' => (r"\b", r"\b"),
            b'B' => (r"\B", r"\B"),
            b'<' => (r"\b{start}", r"\b{start}"),
            b'>' => (r"\b{end}", r"\b{end}"),
            b'`' => (r"\A", r"\A"),
            _ => (r"\z", r"\z"),
        };
        self.out.push_str(if self.wide { wide } else { bytes });
    }

    /// Writes an operator. `start`: it is at the beginning of its alternative.
    fn operator(&mut self, byte: u8, start: bool) -> Result<(), String> {
        let begin = self.out.len();
        match byte {
            b'.' => self.out.push_str(if self.dialect.dot_takes_newline { "(?s:.)" } else { r"[^\n]" }),
            b'(' => {
                self.groups.push(begin);
                return self.fresh("(?:");
            }
            b')' if !self.groups.is_empty() => {
                self.out.push(')');
                self.unit = self.groups.pop();
                return Ok(());
            }
            b')' if !self.dialect.bare => return Err("a group ends in it that did not begin".into()),
            b'|' | b'\n' => return self.fresh("|"),
            b'^' | b'$' if self.anchors(byte, start) => {
                self.out.push_str(if byte == b'^' { "(?m:^)" } else { "(?m:$)" });
                self.unit = None;
                return Ok(());
            }
            b'*' | b'+' | b'?' if self.unit.is_some() => {
                self.repeat(&char::from(byte).to_string());
                return Ok(());
            }
            b'{' if self.unit.is_some() => {
                let interval = self.interval()?;
                self.repeat(&interval);
                return Ok(());
            }
            b'*' | b'+' | b'?' | b'{' if self.dialect.bare => {
                return Err(format!("nothing stands before the {} in it", byte as char));
            }
            _ => self.code(byte.into()),
        }
        self.unit = Some(begin);
        Ok(())
    }

    /// Writes `text`, after which an alternative begins.
    fn fresh(&mut self, text: &str) -> Result<(), String> {
        self.out.push_str(text);
        (self.unit, self.start) = (None, true);
        Ok(())
    }

    /// Repeats the last unit, as a group: `a+?` is a repetition of a repetition, not a lazy one.
    fn repeat(&mut self, how: &str) {
        let begin = self.unit.unwrap_or(0);
        self.out.insert_str(begin, "(?:");
        self.out.push_str(how);
        self.out.push(')');
    }

    /// True if `^` or `$` is an anchor where it stands.
    fn anchors(&self, byte: u8, start: bool) -> bool {
        if self.dialect.bare {
            return true;
        }
        let rest = &self.text[self.at..];
        match byte {
            b'^' => start,
            _ => rest.is_empty() || rest.starts_with(br"\)") || rest.starts_with(br"\|"),
        }
    }

    /// Parses the rest of `{n}`, `{n,}`, `{n,m}` or `{,m}` after the brace.
    fn interval(&mut self) -> Result<String, String> {
        let escaped = self.dialect.interval == Interval::Escaped;
        let end: &[u8] = if escaped { br"\}" } else { b"}" };
        let rest = &self.text[self.at..];
        let length = rest.windows(end.len()).position(|window| window == end);
        let inner = length.and_then(|length| std::str::from_utf8(&rest[..length]).ok());
        let (Some(length), Some(inner)) = (length, inner) else {
            return Err("an interval in it does not end".into());
        };
        let (least, most) = inner.split_once(',').unwrap_or((inner, inner));
        let number = |text: &str| text.parse::<u16>().ok().filter(|&number| number <= 32767);
        let least = if least.is_empty() { Some(0) } else { number(least) };
        let valid = match (least, number(most)) {
            (Some(least), Some(most)) => least <= most,
            (Some(_), None) => most.is_empty() && inner.contains(','),
            _ => false,
        };
        if !valid || inner.is_empty() {
            return Err(format!("{{{inner}}} in it is no interval"));
        }
        self.at += length + end.len();
        Ok(format!("{{{},{most}}}", least.unwrap_or(0)))
    }

    /// Parses the set after a `[`.
    fn set(&mut self) -> Result<(), String> {
        let unfinished = || String::from("a set in it ([...) does not end");
        let negated = self.text.get(self.at) == Some(&b'^');
        self.at += usize::from(negated);
        self.out.push_str(if negated { "[^" } else { "[" });
        let first = self.at;
        loop {
            let byte = *self.text.get(self.at).ok_or_else(unfinished)?;
            if byte == b']' && self.at > first {
                self.at += 1;
                self.out.push(']');
                return Ok(());
            }
            if self.dialect.classes && self.text[self.at..].starts_with(b"[:") {
                self.class()?;
                continue;
            }
            let low = self.set_member()?;
            let range = self.text.get(self.at) == Some(&b'-')
                && self.text.get(self.at + 1).is_some_and(|&next| next != b']');
            let high = if range {
                self.at += 1;
                self.set_member()?
            } else {
                low
            };
            if high < low {
                return Err("a range in it ends before it begins".into());
            }
            self.code(low);
            self.out.push('-');
            self.code(high);
        }
    }

    fn set_member(&mut self) -> Result<u32, String> {
        if self.dialect.classes
            && (self.text[self.at..].starts_with(b"[.") || self.text[self.at..].starts_with(b"[="))
        {
            return Err("it has a collating symbol ([.x.] or [=x=]), which is not done here".into());
        }
        Ok(self.character())
    }

    fn class(&mut self) -> Result<(), String> {
        let rest = &self.text[self.at + 2..];
        let length = rest.windows(2).position(|window| window == b":]");
        let name = length.and_then(|length| std::str::from_utf8(&rest[..length]).ok()).unwrap_or_default();
        const CLASSES: [(&str, &str); 12] = [
            ("alnum", r"\p{Alphabetic}\p{Nd}"),
            ("alpha", r"\p{Alphabetic}"),
            ("blank", r"\t\p{Zs}"),
            ("cntrl", r"\p{Cc}"),
            ("digit", "0-9"),
            ("graph", r"[^\p{Cc}\p{Cs}\p{Cn}\s]"),
            ("lower", r"\p{Lowercase}"),
            ("print", r"[^\p{Cc}\p{Cs}\p{Cn}]"),
            ("punct", r"[\p{P}\p{S}]"),
            ("space", r"\s"),
            ("upper", r"\p{Uppercase}"),
            ("xdigit", "0-9A-Fa-f"),
        ];
        let Some((name, wide)) = CLASSES.iter().find(|(own, _)| *own == name) else {
            return Err(format!("[:{name}:] in it is no class of characters"));
        };
        if self.wide {
            self.out.push_str(wide);
        } else {
            let _ = write!(self.out, "[:{name}:]");
        }
        self.at += 2 + name.len() + 2;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(dialect: &str, text: &str, path: &str) -> bool {
        let dialect = Dialect::named(dialect).unwrap();
        compile(text.as_bytes(), dialect, false, Charset::Utf8).unwrap().is_match(path.as_bytes())
    }

    #[test]
    fn dialects() {
        assert!(
            says("emacs", r"\(a\|b\)+c*", "abab")
                && !says("emacs", "(a)", "a")
                && says("emacs", "(a)", "(a)")
        );
        assert!(says("emacs", "a{2}", "a{2}") && says("emacs", "*a", "*a") && says("emacs", "a^b", "a^b"));
        assert!(says("posix-basic", r"a\{2,3\}", "aaa") && says("posix-basic", r"a\+", "aa"));
        assert!(says("posix-basic", "a+", "a+") && says("posix-basic", "[[:alpha:]]", "x"));
        assert!(says("posix-extended", "(a|b){2}", "ab") && says("posix-extended", r"\(", "("));
        assert!(says("posix-extended", "a{2}{2}", "aaaa") && !says("posix-extended", "a{2}{2}", "aaa"));
        assert!(says("posix-extended", "a+?", "") && says("egrep", "a\nb", "b"));
        assert!(says("posix-extended", "[]x]*", "]x]") && says("posix-extended", r"[\]*", r"\\"));
        assert!(says("posix-extended", r"\w+\b.\<b", "aé b") && says("emacs", ".", "é"));
    }

    #[test]
    fn what_is_refused() {
        for (dialect, text) in [
            ("emacs", r"\(a\)\1"),
            ("emacs", r"\(a"),
            ("emacs", "[a"),
            ("emacs", "a\\"),
            ("posix-extended", "*a"),
            ("posix-extended", "a{3,2}"),
            ("posix-extended", "[[:foo:]]"),
            ("posix-extended", "[[.a.]]"),
            ("posix-extended", "[b-a]"),
        ] {
            let dialect = Dialect::named(dialect).unwrap();
            assert!(compile(text.as_bytes(), dialect, false, Charset::Bytes).is_err(), "{text}");
        }
        assert!(Dialect::named("perl").is_err());
    }
}
