//! The file of a program, and the parts of it that hold code.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

/// The maximum size of a program that is searched for calls. For larger ones the search would take longer than the
/// traps that it saves.
const SEARCH_MAX: usize = 64 << 20;
const ELF_HEADER: usize = 64;

/// A file in memory.
struct Mapped(&'static [u8]);

impl Mapped {
    fn of(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len() as usize;
        // SAFETY: new memory, wherever the kernel likes.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just mapped. The file of a running program cannot be written to or truncated.
        Ok(Self(unsafe { slice::from_raw_parts(start.cast(), length) }))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; no reference outlives this value.
        unsafe { libc::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

/// A part of a program that holds code.
pub struct Text {
    /// The range of the part in the file.
    bytes: Range<usize>,
    /// The address of the part in memory.
    pub base: u64,
    /// True if the part contains little beside code.
    pub is_code: bool,
}

/// A program's file.
pub struct Program {
    file: Mapped,
    /// The parts that hold code.
    pub texts: Vec<Text>,
    /// The addresses of segments that hold code; each segment has one protection.
    pub segments: Vec<Range<u64>>,
    /// The range of the symbol table in the file.
    symbols: Option<Range<usize>>,
    /// The distance from the address for which the program was linked.
    moved: u64,
}

/// A table of headers.
struct Table {
    offset: usize,
    size: u16,
    count: u16,
}

impl Table {
    fn rows<'a>(&self, file: &'a Mapped) -> impl Iterator<Item = Option<&'a [u8]>> {
        let (offset, size) = (self.offset, usize::from(self.size));
        (0..usize::from(self.count)).map(move |index| file.0.get(offset + index * size..)?.get(..size))
    }
}

/// Returns the segments that are executable and not writable.
fn texts(file: &Mapped, segments: &Table) -> Option<Vec<Text>> {
    const LOADED: u32 = 1;
    const CODE: u32 = 1 << 2 | 1;
    let mut texts = Vec::new();
    for header in segments.rows(file) {
        let header = header?;
        if word(header, 0)? == LOADED && word(header, 4)? == CODE {
            let (start, length) = (long(header, 8)? as usize, long(header, 32)? as usize);
            file.0.get(start..)?.get(..length)?;
            texts.push(Text { bytes: start..start + length, base: long(header, 16)?, is_code: false });
        }
    }
    Some(texts)
}

/// Returns the sections with code in these segments, and the symbol table. A segment may also hold data, or bytes that are
/// not code yet.
fn parts(file: &Mapped, sections: &Table, segments: &[Text]) -> Option<(Vec<Text>, Option<Range<usize>>)> {
    const CONTENT: u32 = 1;
    const SYMBOLS: u32 = 2;
    const CODE: u64 = 1 << 2 | 1 << 1;
    let (mut texts, mut symbols) = (Vec::new(), None);
    for header in sections.rows(file) {
        let header = header?;
        let (start, length) = (long(header, 24)? as usize, long(header, 32)? as usize);
        let bytes = start..start.checked_add(length)?;
        match word(header, 4)? {
            SYMBOLS => symbols = Some(bytes),
            CONTENT if long(header, 8)? & CODE == CODE => {
                let base = long(header, 16)?;
                let lies_in = |segment: &&Text| {
                    segment.bytes.start <= bytes.start
                        && bytes.end <= segment.bytes.end
                        && base.wrapping_sub(segment.base) == (bytes.start - segment.bytes.start) as u64
                };
                if segments.iter().any(|segment| lies_in(&segment)) {
                    texts.push(Text { bytes, base, is_code: true });
                }
            }
            _ => {}
        }
    }
    Some((texts, symbols))
}

impl Program {
    /// Returns the program that a process has executed by this path; `None` if it cannot be read, or has an unexpected format. `entry` is the
    /// address of its first instruction.
    pub fn of(process: libc::pid_t, path: &CStr, entry: u64) -> Option<Self> {
        // If `/proc` is not mounted, the path is used; it may name another file by now, whose code differs from the code in memory.
        let by_path = |_| File::open(OsStr::from_bytes(path.to_bytes()));
        let file = File::open(format!("/proc/{process}/exe")).or_else(by_path);
        Self::read(Mapped::of(&file.ok()?).ok()?, entry)
    }

    fn read(file: Mapped, entry: u64) -> Option<Self> {
        const POSITION_INDEPENDENT: u16 = 3;
        let (header, _) = file.0.split_at_checked(ELF_HEADER)?;
        let moved =
            if half(header, 16)? == POSITION_INDEPENDENT { entry.wrapping_sub(long(header, 24)?) } else { 0 };
        let segments =
            Table { offset: long(header, 32)? as usize, size: half(header, 54)?, count: half(header, 56)? };
        let sections =
            Table { offset: long(header, 40)? as usize, size: half(header, 58)?, count: half(header, 60)? };
        let (mut texts, mut symbols) = (texts(&file, &segments)?, None);
        let address = |text: &Text| {
            let start = text.base.wrapping_add(moved);
            start..start.saturating_add(text.bytes.len() as u64)
        };
        let segments = texts.iter().map(address).collect();
        if sections.count != 0 {
            (texts, symbols) = parts(&file, &sections, &texts)?;
        }
        let length: usize = texts.iter().map(|text| text.bytes.len()).sum();
        texts.iter_mut().for_each(|text| text.base = text.base.wrapping_add(moved));
        (length <= SEARCH_MAX).then_some(Self { file, texts, segments, symbols, moved })
    }

    /// Returns the bytes of a part.
    pub fn bytes(&self, text: &Text) -> &[u8] {
        &self.file.0[text.bytes.clone()]
    }

    /// Returns the program in a file, at the addresses for which it was linked.
    pub fn linked(path: &Path) -> Option<Self> {
        let file = Mapped::of(&File::open(path).ok()?).ok()?;
        let entry = long(file.0, 24)?;
        Self::read(file, entry)
    }

    /// Returns for each address whether it lies in a function; `None` if the program has no symbol table.
    pub fn in_functions(&self, addresses: &[u64]) -> Option<Vec<bool>> {
        const SYMBOL: usize = 24;
        const FUNCTION: u8 = 2;
        const UNKNOWN: u64 = 256;
        let symbols = self.file.0.get(self.symbols.clone()?)?;
        let mut found = vec![false; addresses.len()];
        for symbol in symbols.chunks_exact(SYMBOL).filter(|symbol| symbol[4] & 0xf == FUNCTION) {
            let (start, length) = (long(symbol, 8)?.wrapping_add(self.moved), long(symbol, 16)?);
            // The length of a handwritten function may be unknown.
            let length = if length == 0 { UNKNOWN } else { length };
            for (address, found) in addresses.iter().zip(&mut found) {
                *found |= address.wrapping_sub(start) < length;
            }
        }
        Some(found)
    }

    /// Returns the addresses of the code.
    pub fn range(&self) -> Option<Range<u64>> {
        let start = self.texts.iter().map(|text| text.base).min()?;
        let end = self.texts.iter().map(|text| text.base + text.bytes.len() as u64).max()?;
        Some(start..end)
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
