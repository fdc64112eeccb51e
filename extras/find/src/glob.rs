//! Shell patterns, on bytes, as fnmatch(3) matches them without flags: `*`, `?` and `[...]` match a slash and a leading
//! dot, too.
//!
//! In a UTF-8 locale a character is a code point if pattern and name are UTF-8; otherwise it is a byte.

use crate::locale::Charset;

/// A pattern, ready to match.
#[derive(Clone, Debug)]
pub struct Glob {
    shape: Shape,
    charset: Charset,
    fold: bool,
}

#[derive(Clone, Debug)]
enum Shape {
    /// The pattern has no special character.
    Exact(Vec<u8>),
    /// The pattern is `*` and then no special character, as in `*.rs`.
    Suffix(Vec<u8>),
    General {
        bytes: Vec<Token>,
        /// The tokens in code points, if they differ from the bytes.
        characters: Option<Vec<Token>>,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    One(u32),
    Any,
    Star,
    Set {
        negated: bool,
        items: Vec<Item>,
    },
    /// A token that matches nothing: the end of a pattern that ends in a backslash.
    Never,
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Range(u32, u32),
    Class(Class),
    /// An unknown class: a character that is compared with it matches nothing, not even a negated set.
    NoClass,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Alnum,
    Alpha,
    Blank,
    Cntrl,
    Digit,
    Graph,
    Lower,
    Print,
    Punct,
    Space,
    Upper,
    Xdigit,
}

impl Glob {
    /// Parses a pattern, which is case-sensitive unless `fold`.
    pub fn new(pattern: &[u8], fold: bool, charset: Charset) -> Glob {
        Glob { shape: Shape::of(pattern, fold, charset), charset, fold }
    }

    /// True if the whole name matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        match &self.shape {
            Shape::Exact(text) => text == name,
            Shape::Suffix(text) => name.ends_with(text),
            Shape::General { bytes, characters } => {
                let wide = characters.as_ref().filter(|_| self.charset == Charset::Utf8 && !name.is_ascii());
                match wide.and_then(|tokens| Some((tokens, std::str::from_utf8(name).ok()?))) {
                    Some((tokens, name)) => {
                        let units: Vec<u32> = name.chars().map(u32::from).collect();
                        run(tokens, &units, self.fold)
                    }
                    None => run(bytes, name, self.fold),
                }
            }
        }
    }
}

impl Shape {
    fn of(pattern: &[u8], fold: bool, charset: Charset) -> Shape {
        let plain = |text: &[u8]| !fold && !text.iter().any(|byte| b"*?[\\".contains(byte));
        if plain(pattern) {
            return Shape::Exact(pattern.to_vec());
        }
        if let [b'*', rest @ ..] = pattern
            && plain(rest)
            && suffixes_are_characters(rest)
        {
            return Shape::Suffix(rest.to_vec());
        }
        let units: Vec<u32> = pattern.iter().map(|&byte| byte.into()).collect();
        let characters = (charset == Charset::Utf8).then(|| std::str::from_utf8(pattern).ok()).flatten();
        Shape::General {
            bytes: tokens(&units),
            characters: characters.map(|text| tokens(&text.chars().map(u32::from).collect::<Vec<_>>())),
        }
    }
}

/// True if the text begins with a whole character, so that a match does, too.
fn suffixes_are_characters(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok()
}

/// A character of a name.
trait Unit: Copy {
    fn code(self) -> u32;
    fn folded(code: u32) -> u32;
    fn is(class: Class, code: u32) -> bool;
}

impl Unit for u8 {
    fn code(self) -> u32 {
        self.into()
    }

    fn folded(code: u32) -> u32 {
        u8::try_from(code).map_or(code, |byte| byte.to_ascii_lowercase().into())
    }

    fn is(class: Class, code: u32) -> bool {
        u8::try_from(code).is_ok_and(|byte| class.has(byte))
    }
}

impl Unit for u32 {
    fn code(self) -> u32 {
        self
    }

    fn folded(code: u32) -> u32 {
        let mut lower = char::from_u32(code).into_iter().flat_map(char::to_lowercase);
        match (lower.next(), lower.next()) {
            (Some(one), None) => one.into(),
            _ => code,
        }
    }

    fn is(class: Class, code: u32) -> bool {
        match (u8::try_from(code).ok().filter(u8::is_ascii), char::from_u32(code)) {
            (Some(byte), _) => class.has(byte),
            (None, Some(character)) => class.has_wide(character),
            (None, None) => false,
        }
    }
}

impl Class {
    fn named(name: &[u32]) -> Option<Class> {
        let name: String = name.iter().filter_map(|&code| char::from_u32(code)).collect();
        Some(match name.as_str() {
            "alnum" => Class::Alnum,
            "alpha" => Class::Alpha,
            "blank" => Class::Blank,
            "cntrl" => Class::Cntrl,
            "digit" => Class::Digit,
            "graph" => Class::Graph,
            "lower" => Class::Lower,
            "print" => Class::Print,
            "punct" => Class::Punct,
            "space" => Class::Space,
            "upper" => Class::Upper,
            "xdigit" => Class::Xdigit,
            _ => return None,
        })
    }

    fn has(self, byte: u8) -> bool {
        match self {
            Class::Alnum => byte.is_ascii_alphanumeric(),
            Class::Alpha => byte.is_ascii_alphabetic(),
            Class::Blank => byte == b' ' || byte == b'\t',
            Class::Cntrl => byte.is_ascii_control(),
            Class::Digit => byte.is_ascii_digit(),
            Class::Graph => byte.is_ascii_graphic(),
            Class::Lower => byte.is_ascii_lowercase(),
            Class::Print => byte.is_ascii_graphic() || byte == b' ',
            Class::Punct => byte.is_ascii_punctuation(),
            Class::Space => byte.is_ascii_whitespace() || byte == 0x0b,
            Class::Upper => byte.is_ascii_uppercase(),
            Class::Xdigit => byte.is_ascii_hexdigit(),
        }
    }

    /// True if a character beyond ASCII is in the class, by Unicode's properties.
    fn has_wide(self, character: char) -> bool {
        let printed = !character.is_control();
        match self {
            Class::Alnum => character.is_alphanumeric(),
            Class::Alpha => character.is_alphabetic(),
            Class::Cntrl => character.is_control(),
            Class::Graph => printed && !character.is_whitespace(),
            Class::Lower => character.is_lowercase(),
            Class::Print => printed,
            Class::Punct => printed && !character.is_alphanumeric() && !character.is_whitespace(),
            Class::Blank | Class::Space => character.is_whitespace(),
            Class::Upper => character.is_uppercase(),
            Class::Digit | Class::Xdigit => false,
        }
    }
}

const BACKSLASH: u32 = b'\\' as u32;

fn tokens(pattern: &[u32]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&code) = pattern.get(at) {
        at += 1;
        let token = match u8::try_from(code).unwrap_or(0) {
            b'*' => Token::Star,
            b'?' => Token::Any,
            b'\\' => {
                at += 1;
                pattern.get(at - 1).map_or(Token::Never, |&next| Token::One(next))
            }
            b'[' => match set(&pattern[at..]) {
                Some((token, length)) => {
                    at += length;
                    token
                }
                None => Token::One(code),
            },
            _ => Token::One(code),
        };
        if token != Token::Star || tokens.last() != Some(&Token::Star) {
            tokens.push(token);
        }
    }
    tokens
}

/// Returns the set after a `[`, and its length; `None` if the set does not end, so that the `[` is a character.
fn set(pattern: &[u32]) -> Option<(Token, usize)> {
    let is = |at: usize, byte: u8| pattern.get(at) == Some(&byte.into());
    let negated = is(0, b'!') || is(0, b'^');
    let first = usize::from(negated);
    let (mut items, mut at) = (Vec::new(), first);
    loop {
        if is(at, b']') && at > first {
            return Some((Token::Set { negated, items }, at + 1));
        }
        if is(at, b'[')
            && is(at + 1, b':')
            && let Some((class, length)) = class(&pattern[at + 2..])
        {
            at += 2 + length;
            items.push(class.map_or(Item::NoClass, Item::Class));
            continue;
        }
        let (low, length) = member(&pattern[at..])?;
        at += length;
        if is(at, b'-') && !is(at + 1, b']') && pattern.len() > at + 1 {
            let (high, length) = member(&pattern[at + 1..])?;
            at += 1 + length;
            items.push(Item::Range(low, high));
        } else {
            items.push(Item::Range(low, low));
        }
    }
}

/// Returns the class after `[:` (`None` if its name is unknown) and the length with `:]`; `None` if this is not a class.
fn class(pattern: &[u32]) -> Option<(Option<Class>, usize)> {
    let lower = |code: &&u32| (u32::from(b'a')..=u32::from(b'z')).contains(*code);
    let length = pattern.iter().take_while(lower).count();
    let ended = pattern.get(length..length + 2)? == [u32::from(b':'), u32::from(b']')];
    ended.then(|| (Class::named(&pattern[..length]), length + 2))
}

/// Returns a character of a set and its length: plain, after a backslash, or as `[.x.]` or `[=x=]`.
fn member(pattern: &[u32]) -> Option<(u32, usize)> {
    match *pattern {
        [BACKSLASH, code, ..] => Some((code, 2)),
        [BACKSLASH] => None,
        [open, mark, code, again, close, ..]
            if open == u32::from(b'[')
                && (mark == u32::from(b'.') || mark == u32::from(b'='))
                && again == mark
                && close == u32::from(b']') =>
        {
            Some((code, 5))
        }
        [code, ..] => Some((code, 1)),
        [] => None,
    }
}

/// Matches the tokens with a name. Backtracks to the last star only, which can match whatever an earlier star could.
fn run<U: Unit>(tokens: &[Token], name: &[U], fold: bool) -> bool {
    let (mut token, mut at) = (0, 0);
    // The token after the last star, and the offset where the star's match ends at present.
    let mut star = None;
    loop {
        let matched = match (tokens.get(token), name.get(at)) {
            (None, None) => return true,
            (Some(Token::Star), _) => {
                token += 1;
                star = Some((token, at));
                continue;
            }
            (Some(token), Some(unit)) => token.takes::<U>(unit.code(), fold),
            _ => false,
        };
        if matched {
            token += 1;
            at += 1;
            continue;
        }
        match &mut star {
            Some((behind, end)) if *end < name.len() => {
                *end += 1;
                (token, at) = (*behind, *end);
            }
            _ => return false,
        }
    }
}

impl Token {
    fn takes<U: Unit>(&self, code: u32, fold: bool) -> bool {
        let folded = |code| if fold { U::folded(code) } else { code };
        match self {
            Token::One(own) => folded(*own) == folded(code),
            Token::Any => true,
            Token::Set { negated, items } => {
                let first = items.iter().find(|item| match **item {
                    Item::Range(low, high) => (folded(low)..=folded(high)).contains(&folded(code)),
                    Item::Class(class) => U::is(class, code),
                    Item::NoClass => true,
                });
                first != Some(&Item::NoClass) && first.is_some() != *negated
            }
            Token::Star | Token::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::CString;

    fn glob(pattern: &str, name: &str) -> bool {
        Glob::new(pattern.as_bytes(), false, Charset::Utf8).matches(name.as_bytes())
    }

    #[test]
    fn characters_of_a_utf8_locale() {
        assert!(glob("?", "é") && !glob("??", "é") && glob("[à-ü]*", "écrit") && !glob("[!é]", "é"));
        assert!(glob("*é", "café") && glob("[[:alpha:]]", "ß") && !glob("[[:digit:]]", "ß"));
        let bytes = Glob::new(b"??", false, Charset::Bytes);
        assert!(bytes.matches("é".as_bytes()) && bytes.matches(b"\xff\xfe"));
        assert!(Glob::new("É*".as_bytes(), true, Charset::Utf8).matches("éa".as_bytes()));
        // A name that is not UTF-8 is matched byte by byte.
        assert!(Glob::new(b"??", false, Charset::Utf8).matches(b"\xff\xfe"));
        assert!(Glob::new(b"*\xa9", false, Charset::Bytes).matches("é".as_bytes()));
        assert!(!Glob::new(b"[", false, Charset::Utf8).matches(b""));
    }

    #[test]
    fn a_long_name_of_stars_ends() {
        let name = vec![b'a'; 255];
        assert!(!Glob::new(b"*a*a*a*a*a*a*a*a*a*a*a*b", false, Charset::Bytes).matches(&name));
    }

    fn oracle(pattern: &[u8], name: &[u8], fold: bool) -> bool {
        let (pattern, name) = (CString::new(pattern).unwrap(), CString::new(name).unwrap());
        let flags = if fold { libc::FNM_CASEFOLD } else { 0 };
        // SAFETY: both are strings.
        unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), flags) == 0 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn as_the_c_library_does(
            pattern in proptest::collection::vec(proptest::sample::select(&b"aaAbBz-!^][*?.:\\/\xff"[..]), 0..9),
            name in proptest::collection::vec(proptest::sample::select(&b"aAbBz-]![.:\\/\xff"[..]), 0..5),
            fold: bool,
        ) {
            // Collating symbols and classes that do not end are special cases.
            prop_assume!(!pattern.windows(2).any(|two| [&b"[."[..], b"[:"].contains(&two)));
            let ours = Glob::new(&pattern, fold, Charset::Bytes).matches(&name);
            prop_assert_eq!(ours, oracle(&pattern, &name, fold));
        }

        #[test]
        fn classes_as_in_the_c_library(
            class in "alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit|other",
            byte in 1_u8..,
            negated: bool,
            fold: bool,
        ) {
            let pattern = format!("[{}a-f[:{class}:]x-z]", if negated { "!" } else { "" });
            let ours = Glob::new(pattern.as_bytes(), fold, Charset::Bytes).matches(&[byte]);
            prop_assert_eq!(ours, oracle(pattern.as_bytes(), &[byte], fold), "{}", pattern);
        }
    }
}
