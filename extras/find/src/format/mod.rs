//! `-printf`: text, escapes, and fields of an entry.

mod parse;
mod times;

use crate::expression::Time;
use crate::look::Look;
use crate::names::Names;
use crate::{files, listing, message};
use anyring_walk::{Kind, Statx};
use std::ffi::CString;
use std::io;

/// A format, ready to print.
#[derive(Debug)]
pub struct Format {
    pieces: Vec<Piece>,
    mask: u32,
    /// True if the format ends with `\c`: its output is flushed.
    flushes: bool,
}

#[derive(Debug)]
enum Piece {
    Text(Vec<u8>),
    Field(Field, Shape),
}

/// The flags, width and precision of a field, as in printf(3).
#[derive(Clone, Debug, Default, PartialEq)]
struct Shape {
    flags: String,
    width: Option<u16>,
    precision: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Blocks,
    Kibibytes,
    Depth,
    Device,
    Base,
    Directory,
    Group { number: bool },
    Root,
    Inode,
    Target,
    Permissions,
    Mode,
    Links,
    Path,
    BelowRoot,
    Size,
    Sparseness,
    User { number: bool },
    Kind,
    OtherKind,
    Time(Time, times::Style),
}

impl Format {
    /// Parses a format; the error says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Format, String> {
        let (pieces, flushes) = parse::pieces(text)?;
        let mask = pieces.iter().fold(0, |mask, piece| match piece {
            Piece::Text(_) => mask,
            Piece::Field(field, _) => mask | field.mask(),
        });
        Ok(Format { pieces, mask, flushes })
    }

    /// Returns the attributes that the format needs.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// True if the output is to be flushed.
    pub fn flushes(&self) -> bool {
        self.flushes
    }

    /// Prints an entry. Fields that cannot be determined stay empty, and are reported by `failed`.
    pub fn print(
        &self,
        look: &Look<'_>,
        names: &Names,
        out: &mut dyn Printer,
        failed: &mut dyn FnMut(String),
    ) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.text(text),
                Piece::Field(field, shape) => {
                    let value = field.value(look, names).unwrap_or_else(|error| {
                        failed(format!("{}: {}", message::quoted(look.path()), message::of(&error)));
                        Value::Text(Vec::new())
                    });
                    let set = shape.set(&value);
                    if field.is_name() { out.name(&set) } else { out.text(&set) }
                }
            }
        }
    }
}

/// The output of a format.
pub trait Printer {
    fn text(&mut self, text: &[u8]);
    /// Prints a name, which may contain any bytes.
    fn name(&mut self, name: &[u8]);
}

enum Value {
    Text(Vec<u8>),
    Number(i32),
    Octal(u32),
    Real(f64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Text(number.to_string().into_bytes())
    }
}

impl Field {
    fn mask(&self) -> u32 {
        match self {
            Field::Blocks | Field::Kibibytes => libc::STATX_BLOCKS,
            Field::Device => libc::STATX_BASIC_STATS,
            Field::Group { .. } => libc::STATX_GID,
            Field::Inode => libc::STATX_INO,
            Field::Permissions | Field::Mode => libc::STATX_TYPE | libc::STATX_MODE,
            Field::Links => libc::STATX_NLINK,
            Field::Size => libc::STATX_SIZE,
            Field::Sparseness => libc::STATX_SIZE | libc::STATX_BLOCKS,
            Field::User { .. } => libc::STATX_UID,
            Field::Time(which, _) => which.mask(),
            _ => 0,
        }
    }

    fn is_name(&self) -> bool {
        use Field::{Base, BelowRoot, Directory, Path, Root, Target};
        matches!(self, Base | BelowRoot | Directory | Path | Root | Target)
    }

    fn value(&self, look: &Look<'_>, names: &Names) -> io::Result<Value> {
        let text = |text: &[u8]| Ok(Value::Text(text.to_vec()));
        match self {
            Field::Base => text(look.base()),
            Field::Directory => text(look.directory()),
            Field::Root => text(look.root()),
            Field::Path => text(look.path()),
            Field::BelowRoot => text(look.below_root()),
            Field::Depth => Ok(Value::Number(look.depth() as i32)),
            Field::Kind => text(&[letter(look.kind())]),
            Field::OtherKind => text(&[other_letter(look)]),
            Field::Target if look.kind() == Kind::Link => Ok(Value::Text(files::target(look.parent())?)),
            Field::Target => text(b""),
            _ => Ok(look
                .attributes(self.mask())
                .map_or(Value::Text(Vec::new()), |file| self.attribute(file, names))),
        }
    }

    fn attribute(&self, file: &Statx, names: &Names) -> Value {
        let mode = u32::from(file.stx_mode);
        let number = |number: u32| number.to_string().into_bytes();
        match self {
            Field::Blocks => file.stx_blocks.into(),
            Field::Kibibytes => file.stx_blocks.div_ceil(2).into(),
            Field::Device => libc::makedev(file.stx_dev_major, file.stx_dev_minor).into(),
            Field::Group { number: true } => u64::from(file.stx_gid).into(),
            Field::Group { .. } => {
                Value::Text(names.group(file.stx_gid).unwrap_or_else(|| number(file.stx_gid)))
            }
            Field::User { number: true } => u64::from(file.stx_uid).into(),
            Field::User { .. } => {
                Value::Text(names.user(file.stx_uid).unwrap_or_else(|| number(file.stx_uid)))
            }
            Field::Inode => file.stx_ino.into(),
            Field::Permissions => Value::Octal(mode & 0o7777),
            Field::Mode => Value::Text(listing::mode(mode).to_vec()),
            Field::Links => u64::from(file.stx_nlink).into(),
            Field::Size => file.stx_size.into(),
            Field::Sparseness => Value::Real(match (file.stx_size, file.stx_blocks) {
                (0, 0) => 1.0,
                (size, blocks) => blocks as f64 * 512.0 / size as f64,
            }),
            Field::Time(which, style) => {
                Value::Text(which.of(file).map(|time| style.write(time)).unwrap_or_default())
            }
            _ => Value::Text(Vec::new()),
        }
    }
}

impl Shape {
    fn set(&self, value: &Value) -> Vec<u8> {
        match value {
            Value::Text(text) if *self == Shape::default() => text.clone(),
            Value::Text(text) => {
                let length = self.precision.map_or(text.len(), |most| text.len().min(most.into()));
                let text = &text[..length];
                let blanks = vec![b' '; usize::from(self.width.unwrap_or(0)).saturating_sub(length)];
                if self.flags.contains('-') { [text, &blanks].concat() } else { [&blanks, text].concat() }
            }
            Value::Number(number) => self.number("d", |format, buffer| {
                // SAFETY: the format takes one int, the buffer is as long as said.
                unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, *number) }
            }),
            Value::Octal(bits) => self.number("o", |format, buffer| {
                // SAFETY: the format takes one unsigned int, the buffer is as long as said.
                unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, *bits) }
            }),
            Value::Real(real) => self.number("g", |format, buffer| {
                // SAFETY: the format takes one double, the buffer is as long as said.
                unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, *real) }
            }),
        }
    }

    /// Formats a number by the C library, whose flags the field has.
    fn number(&self, conversion: &str, print: impl Fn(*const libc::c_char, &mut [u8]) -> i32) -> Vec<u8> {
        let width = self.width.map(|width| width.to_string()).unwrap_or_default();
        let precision = self.precision.map(|precision| format!(".{precision}")).unwrap_or_default();
        let format =
            CString::new(format!("%{}{width}{precision}{conversion}", self.flags)).unwrap_or_default();
        // Widths have at most four digits.
        let mut buffer = vec![0; 11 << 10];
        let length = print(format.as_ptr(), &mut buffer);
        buffer.truncate(usize::try_from(length).unwrap_or(0).min(buffer.len()));
        buffer
    }
}

/// Returns the letter of a kind.
pub fn letter(kind: Kind) -> u8 {
    match kind {
        Kind::File => b'f',
        Kind::Directory => b'd',
        Kind::Link => b'l',
        Kind::Block => b'b',
        Kind::Character => b'c',
        Kind::Fifo => b'p',
        Kind::Socket => b's',
        Kind::Unknown => b'U',
    }
}

/// Returns the letter of a link's target: `N` for none, `L` for a loop, `?` if it cannot be determined.
fn other_letter(look: &Look<'_>) -> u8 {
    if look.kind() != Kind::Link {
        return letter(look.kind());
    }
    match files::kind(look.parent(), true) {
        Ok(kind) => letter(kind),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => b'N',
            Some(libc::ELOOP) => b'L',
            _ => b'?',
        },
    }
}
