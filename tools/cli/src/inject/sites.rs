//! Patches the call sites of a program that has not begun: makes them jump to stubs near them, behind a block that the image fills in.
//!
//! Nothing is done in halves: where the stubs cannot be had, no site is touched; a site that does not look in memory as in the file (a
//! probe lies there) is left as it is. What is not patched traps.

use super::arch::sites::{self, JUMP, STUB};
use super::tracer::Calls;
use anyring_trap::sites::Block;
use serde::Serialize;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

/// Larger programs are not searched: it would take longer than their traps do.
const SEARCH_MAX: usize = 64 << 20;
/// How far a jump reaches, but for what is searched and for the stubs.
const REACH: u64 = (1 << 31) - (256 << 20);
const ELF_HEADER: usize = 64;

/// A site, by offsets in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The first byte of the jump, and of what is copied.
    pub start: usize,
    /// The instruction that makes the call; or the function that does, in which a C library may cancel the thread.
    pub call: usize,
    /// Whether the site is a jump to a function already.
    pub is_function: bool,
}

impl Site {
    /// The code that the jump stands for, in its text.
    fn code(self, text: &[u8]) -> &[u8] {
        let length = if self.is_function { JUMP } else { self.call - self.start };
        &text[self.start..][..length]
    }
}

/// The judgement of what looks like the instruction that makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No call of the engine's is made there; or no instruction begins there.
    Nothing,
    /// A site that can be patched.
    Site(Site),
    /// A call of the engine's may be made there, and no jump has room, or may be there.
    Refused,
}

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
        // SAFETY: just mapped. Nobody writes to the file of a program that runs, or makes it shorter.
        Ok(Self(unsafe { slice::from_raw_parts(start.cast(), length) }))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; nobody has a reference that outlives this.
        unsafe { libc::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

/// A part of a program that holds code.
struct Text {
    /// Where it lies in the file.
    bytes: Range<usize>,
    /// Where it lies in memory.
    base: u64,
}

/// A program's file.
pub struct Program {
    file: Mapped,
    texts: Vec<Text>,
}

impl Program {
    /// The program that a process has executed, by this path; `None` where it cannot be read, or is no plain one. `entry` is its first instruction.
    pub fn of(process: libc::pid_t, path: &CStr, entry: u64) -> Option<Self> {
        // Where `/proc` is not mounted, the path may have become another file's: then the code in memory is another.
        let by_path = |_| File::open(OsStr::from_bytes(path.to_bytes()));
        let file = File::open(format!("/proc/{process}/exe")).or_else(by_path);
        Self::read(Mapped::of(&file.ok()?).ok()?, entry)
    }

    fn read(file: Mapped, entry: u64) -> Option<Self> {
        const POSITION_INDEPENDENT: u16 = 3;
        const LOADED: u32 = 1;
        const CODE: u32 = 1 << 2 | 1;
        let (header, _) = file.0.split_at_checked(ELF_HEADER)?;
        let moved =
            if half(header, 16)? == POSITION_INDEPENDENT { entry.wrapping_sub(long(header, 24)?) } else { 0 };
        let (table, size, count) = (long(header, 32)? as usize, half(header, 54)?, half(header, 56)?);
        let mut texts = Vec::new();
        for index in 0..usize::from(count) {
            let header = file.0.get(table + index * usize::from(size)..)?;
            if word(header, 0)? == LOADED && word(header, 4)? == CODE {
                let (start, length) = (long(header, 8)? as usize, long(header, 32)? as usize);
                file.0.get(start..)?.get(..length)?;
                let base = long(header, 16)?.wrapping_add(moved);
                texts.push(Text { bytes: start..start + length, base });
            }
        }
        let length: usize = texts.iter().map(|text| text.bytes.len()).sum();
        (length <= SEARCH_MAX).then_some(Self { file, texts })
    }

    fn bytes(&self, text: &Text) -> &[u8] {
        &self.file.0[text.bytes.clone()]
    }

    /// The program in a file, as it is linked.
    fn linked(path: &Path) -> Option<Self> {
        let file = Mapped::of(&File::open(path).ok()?).ok()?;
        let entry = long(file.0, 24)?;
        Self::read(file, entry)
    }

    /// The sites that can be patched, with the texts that they lie in; and whether there are no others.
    fn sites(&self) -> (Vec<(&Text, Site)>, bool) {
        let (mut sites, mut are_all) = (Vec::new(), true);
        for text in &self.texts {
            sites::for_each(self.bytes(text), |_, found| match found {
                Found::Nothing => {}
                Found::Site(site) => sites.push((text, site)),
                Found::Refused => are_all = false,
            });
        }
        (sites, are_all)
    }

    /// Where its code lies.
    fn range(&self) -> Option<Range<u64>> {
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

/// The calls of a program that may be the engine's.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The system call instructions of the program, or what looks like one.
    pub instructions: usize,
    /// How many of them can be patched. The others are not the engine's, but for those below.
    pub patched: usize,
    /// The addresses of those that may be the engine's and cannot be patched.
    pub unpatched: Vec<u64>,
}

/// Looks at the calls of a static program; `None` where they would not be searched for.
pub fn survey(path: &Path) -> Option<Survey> {
    let program = Program::linked(path).filter(|_| sites::ARE_FOUND)?;
    let mut survey = Survey { instructions: 0, patched: 0, unpatched: Vec::new() };
    for text in &program.texts {
        sites::for_each(program.bytes(text), |call, found| {
            survey.instructions += 1;
            match found {
                Found::Nothing => {}
                Found::Site(_) => survey.patched += 1,
                Found::Refused => survey.unpatched.push(text.base + call as u64),
            }
        });
    }
    Some(survey)
}

/// Patches a program's sites; the block, or 0 where nothing is patched.
pub fn patch(calls: &Calls<'_>, program: &Program) -> u64 {
    let (sites, are_all) = program.sites();
    let Some(range) = program.range().filter(|_| !sites.is_empty()) else { return 0 };
    let length = Block::BYTES + (sites.len() * STUB).next_multiple_of(4096);
    let Some(block) = map_near(calls, &range, length as u64) else { return 0 };
    let first = block + Block::BYTES as u64;
    let placed = (first..).step_by(STUB).zip(&sites);
    let (mut code, mut jumps) = (Vec::new(), Vec::new());
    for (address, &(text, site)) in placed {
        let bytes = program.bytes(text);
        let stub = sites::stub(bytes, text.base, site, address, block);
        code.extend(stub.unwrap_or([0xcc; STUB]));
        if let (Some(_), Some(jump)) = (stub, sites::jump(bytes, text.base, site, address)) {
            jumps.push((text.base + site.start as u64, site.code(bytes), jump));
        }
    }
    if protect(calls, first, &code).is_err() {
        let _ = calls.make(libc::SYS_munmap, [block, length as u64, 0, 0, 0, 0]);
        return 0;
    }
    let patched =
        jumps.iter().filter(|(start, before, jump)| calls.replace(*start, before, jump).is_ok()).count();
    let has_all = are_all && patched == sites.len();
    let counts = [patched as u64, u64::from(has_all)].map(u64::to_ne_bytes);
    // Where that cannot be written, the log lacks it, and closes are not relied on.
    let _ = calls.write(block + Block::SITES as u64, counts.as_flattened());
    block
}

/// Writes the stubs, and makes them code.
fn protect(calls: &Calls<'_>, first: u64, code: &[u8]) -> io::Result<()> {
    calls.write(first, code)?;
    let access = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let length = (code.len() as u64).next_multiple_of(4096);
    calls.make(libc::SYS_mprotect, [first, length, access, 0, 0, 0]).map(drop)
}

/// Maps memory that jumps from a program's code reach, and that reaches it: below it if possible, since a program's heap begins above it.
fn map_near(calls: &Calls<'_>, code: &Range<u64>, length: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    const TRIES: u64 = 64;
    let place = (code.start & !(STEP - 1)).checked_sub(length.next_multiple_of(1 << 16));
    let below =
        place.into_iter().flat_map(|place| (0..TRIES).filter_map(move |step| place.checked_sub(step * STEP)));
    let above = (0..TRIES).map(|step| (code.start & !(STEP - 1)) + REACH - (TRIES - step) * STEP);
    let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    for address in below.take_while(|&address| address >= 1 << 16).chain(above) {
        match calls.make(libc::SYS_mmap, [address, length, access, flags, u64::MAX, 0]) {
            Ok(block) if block == address => return Some(block),
            // A kernel without MAP_FIXED_NOREPLACE.
            Ok(elsewhere) => {
                let _ = calls.make(libc::SYS_munmap, [elsewhere, length, 0, 0, 0, 0]);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
}
