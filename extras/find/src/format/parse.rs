//! The syntax of a format.

use super::times::Style;
use super::{Field, Piece, Shape};
use crate::expression::Time;

/// Returns the pieces of a format, and whether it ends with `\c`.
pub fn pieces(mut text: &[u8]) -> Result<(Vec<Piece>, bool), String> {
    let (mut pieces, mut literal) = (Vec::new(), Vec::new());
    let mut flushes = false;
    while let [first, rest @ ..] = text {
        text = rest;
        match first {
            b'\\' => match escape(rest)? {
                Some((byte, length)) => {
                    literal.push(byte);
                    text = &rest[length..];
                }
                None => {
                    flushes = true;
                    break;
                }
            },
            b'%' if rest.first() == Some(&b'%') => {
                literal.push(b'%');
                text = &rest[1..];
            }
            b'%' => {
                let (field, shape, length) = directive(rest)?;
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Field(field, shape));
                text = &rest[length..];
            }
            _ => literal.push(*first),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    Ok((pieces, flushes))
}

/// Returns the byte of an escape after a backslash, and its length; `None` for `\c`.
fn escape(text: &[u8]) -> Result<Option<(u8, usize)>, String> {
    let Some(&first) = text.first() else { return Err("it ends in a backslash".into()) };
    let byte = match first {
        b'a' => 0x07,
        b'b' => 0x08,
        b'c' => return Ok(None),
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        b'\\' => b'\\',
        b'0'..=b'7' => {
            let digits = text.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(*byte)).count();
            let number =
                text[..digits].iter().fold(0_u32, |number, digit| number * 8 + u32::from(digit - b'0'));
            return Ok(Some((number as u8, digits)));
        }
        _ => return Err(format!("\\{} is no escape", first as char)),
    };
    Ok(Some((byte, 1)))
}

/// Returns the directive after a percent sign, and its length.
fn directive(text: &[u8]) -> Result<(Field, Shape, usize), String> {
    let mut at = text.iter().take_while(|byte| b"-+ #0".contains(byte)).count();
    let flags = String::from_utf8_lossy(&text[..at]).into_owned();
    let number = |at: &mut usize| {
        let length = text[*at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = String::from_utf8_lossy(&text[*at..*at + length]).into_owned();
        *at += length;
        match digits.as_str() {
            "" => Ok(None),
            digits => match digits.parse().ok().filter(|&number| number < 10_000) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("a width of {digits} is too much")),
            },
        }
    };
    let width = number(&mut at)?;
    let mut precision = None;
    if text.get(at) == Some(&b'.') {
        at += 1;
        precision = Some(number(&mut at)?.unwrap_or(0));
    }
    let Some(&letter) = text.get(at) else { return Err("it ends in a %".into()) };
    at += 1;
    let field = match letter {
        b'a' => Field::Time(Time::Access, Style::Plain),
        b'c' => Field::Time(Time::Change, Style::Plain),
        b't' => Field::Time(Time::Modification, Style::Plain),
        b'A' | b'B' | b'C' | b'T' => {
            let which = match letter {
                b'A' => Time::Access,
                b'B' => Time::Birth,
                b'C' => Time::Change,
                _ => Time::Modification,
            };
            let style = text.get(at).and_then(|&letter| Style::of(letter));
            let Some(style) = style else {
                let behind = text.get(at).map(|&byte| byte as char).unwrap_or_default();
                return Err(format!("%{}{behind} is no form of a time", letter as char));
            };
            at += 1;
            Field::Time(which, style)
        }
        b'b' => Field::Blocks,
        b'd' => Field::Depth,
        b'D' => Field::Device,
        b'f' => Field::Base,
        b'g' => Field::Group { number: false },
        b'G' => Field::Group { number: true },
        b'h' => Field::Directory,
        b'H' => Field::Root,
        b'i' => Field::Inode,
        b'k' => Field::Kibibytes,
        b'l' => Field::Target,
        b'm' => Field::Permissions,
        b'M' => Field::Mode,
        b'n' => Field::Links,
        b'p' => Field::Path,
        b'P' => Field::BelowRoot,
        b's' => Field::Size,
        b'S' => Field::Sparseness,
        b'u' => Field::User { number: false },
        b'U' => Field::User { number: true },
        b'y' => Field::Kind,
        b'Y' => Field::OtherKind,
        b'F' => return Err("%F: the kinds of file systems are not looked at".into()),
        b'Z' => return Err("%Z: SELinux contexts are not looked at".into()),
        _ => return Err(format!("%{} is no field", letter as char)),
    };
    Ok((field, Shape { flags, width, precision }, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let (pieces, flushes) = pieces(br"a\tb%%\101%-5.2p\n\cd").unwrap();
        assert!(flushes);
        let [Piece::Text(text), Piece::Field(Field::Path, shape), Piece::Text(end)] = &pieces[..] else {
            panic!("{pieces:?}");
        };
        assert_eq!((text.as_slice(), end.as_slice()), (&b"a\tb%A"[..], &b"\n"[..]));
        assert_eq!(*shape, Shape { flags: "-".into(), width: Some(5), precision: Some(2) });
    }

    #[test]
    fn what_is_refused() {
        for text in ["%", "%q", r"\q", "\\", "%F", "%Z", "%T", "%T~", "%99999p"] {
            assert!(pieces(text.as_bytes()).is_err(), "{text}");
        }
    }
}
