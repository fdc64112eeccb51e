//! The image file, and its layout in memory.

use super::arch::{PAGE, RELATIVE};
use crate::library;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_RELR: u64 = 36;

/// A part of the image that is mapped with one protection.
#[derive(Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first page, relative to the image's start.
    pub start: usize,
    pub length: usize,
    pub protection: i32,
    /// The offset of the first page in the file.
    pub offset: usize,
}

/// The image, relocated to address 0.
#[derive(Debug, Default)]
pub struct Image {
    bytes: Vec<u8>,
    pub entry: usize,
    pub segments: Vec<Segment>,
    /// The offsets of the words to relocate, each with its address within the image.
    addresses: Vec<(usize, u64)>,
    /// The file. The executed program inherits its descriptor until the image is mapped.
    file: Option<File>,
}

impl Image {
    /// Reads the image from its file.
    ///
    /// # Errors
    /// Returns what is wrong with the file.
    pub fn read((mut file, path): library::Image) -> Result<Self, String> {
        let told = |error: io::Error| format!("{}: {error}", path.display());
        let bytes = Self::read_loaded(&mut file).map_err(told)?;
        let image = Self::parse(&bytes)
            .ok_or_else(|| format!("{} is not what was built with anyring", path.display()))?;
        Ok(Self { file: Some(file), ..image })
    }

    /// Reads the file up to the end of what is mapped: debug information may be much longer.
    fn read_loaded(file: &mut File) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.take(PAGE as u64).read_to_end(&mut bytes)?;
        // What is wrong with the headers is for `parse` to say.
        let end = Self::headers(&bytes).into_iter().flatten().flatten().filter_map(end_of_content).max();
        file.take(end.unwrap_or(0).saturating_sub(bytes.len() as u64)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the program headers, each with what follows it; `None` for one that lies outside of the file.
    fn headers(file: &[u8]) -> Option<impl Iterator<Item = Option<&[u8]>>> {
        let (table, size, count) = (long(file, 32)? as usize, half(file, 54)?, half(file, 56)?);
        Some((0..count).map(move |index| file.get(table.checked_add(index * size)?..)))
    }

    /// Returns the descriptor of the file.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(File::as_raw_fd)
    }

    fn parse(file: &[u8]) -> Option<Self> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let mut image = Self { entry: long(file, 24)? as usize, ..Self::default() };
        let mut dynamic = None;
        for header in Self::headers(file)? {
            let header = header?;
            let (offset, address) = (long(header, 8)? as usize, long(header, 16)? as usize);
            let (length, memory) = (long(header, 32)? as usize, long(header, 40)? as usize);
            match word(header, 0)? {
                PT_LOAD => {
                    let content = file.get(offset..offset + length)?;
                    image.load(content, (offset, address), memory, word(header, 4)?)?
                }
                PT_DYNAMIC => dynamic = Some((address, memory)),
                PT_TLS => return None,
                _ => {}
            }
        }
        let (address, length) = dynamic?;
        image.relocations(address, length)?;
        let is_code = |segment: &Segment| segment.protection & libc::PROT_EXEC != 0;
        let lies_in = |place: usize, segment: &Segment| {
            place < segment.start + segment.length && segment.start < place + 8
        };
        let adapts_code = image
            .segments
            .iter()
            .filter(|segment| is_code(segment))
            .any(|segment| image.addresses.iter().any(|&(place, _)| lies_in(place, segment)));
        (!adapts_code).then_some(image)
    }

    fn load(
        &mut self,
        content: &[u8],
        (offset, address): (usize, usize),
        memory: usize,
        flags: u32,
    ) -> Option<()> {
        let end = address.checked_add(memory)?.next_multiple_of(PAGE);
        if end > 1 << 30 || memory < content.len() || offset % PAGE != address % PAGE {
            return None;
        }
        self.bytes.resize(end.max(self.bytes.len()), 0);
        self.bytes[address..address + content.len()].copy_from_slice(content);
        let access = [(4, libc::PROT_READ), (2, libc::PROT_WRITE), (1, libc::PROT_EXEC)];
        let protection =
            access.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, one)| all | one);
        let start = address / PAGE * PAGE;
        let offset = offset / PAGE * PAGE;
        self.segments.push(Segment { start, length: end - start, protection, offset });
        Some(())
    }

    /// Finds the words to relocate; returns `None` unless they are all addresses within the image.
    fn relocations(&mut self, dynamic: usize, length: usize) -> Option<()> {
        let (mut table, mut bytes) = (0, 0);
        for entry in self.bytes.get(dynamic..dynamic + length)?.chunks_exact(16) {
            match long(entry, 0)? {
                DT_RELA => table = long(entry, 8)? as usize,
                DT_RELASZ => bytes = long(entry, 8)? as usize,
                DT_JMPREL | DT_RELR => return None,
                _ => {}
            }
        }
        for entry in self.bytes.get(table..table + bytes)?.chunks_exact(24) {
            let place = long(entry, 0)? as usize;
            if word(entry, 8)? != RELATIVE || place + 8 > self.bytes.len() {
                return None;
            }
            self.addresses.push((place, long(entry, 16)?));
        }
        Some(())
    }

    /// Returns the size of the image in memory.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the contents for a base address.
    pub fn at(&self, base: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(place, address) in &self.addresses {
            bytes[place..place + 8].copy_from_slice(&address.wrapping_add(base as u64).to_le_bytes());
        }
        bytes
    }
}

/// Returns where the content of a segment ends in the file, by its program header; `None` if the segment is not loaded.
fn end_of_content(header: &[u8]) -> Option<u64> {
    (word(header, 0)? == PT_LOAD).then_some(())?;
    long(header, 8)?.checked_add(long(header, 32)?)
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused() {
        assert!(Image::parse(b"").is_none());
        assert!(Image::parse(b"\x7fELF\x02\x01").is_none());
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert!(Image::parse(&program).is_none());
        for length in [64, 100, 4096] {
            assert!(Image::parse(&program[..length]).is_none());
        }
    }
}
