//! Looks at executable files before they run, to find out how the engine gets into a program.

use crate::arch;
use alloc::vec::Vec;
use anyring_runtime::sys;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use linux_raw_sys::general as raw;

/// The way in which the engine gets into a program, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamic linker runs in the program, and loads our library beside others.
    Dynamic,
    /// As [`Kind::Dynamic`], but with the address sanitizer, which refuses to start behind our library unless its
    /// [options](with_any_order) allow it.
    Sanitized,
    /// The program loads no libraries, and so not ours.
    Static,
    /// The program gains privileges, so that a dynamic linker ignores `LD_PRELOAD`.
    Privileged(&'static str),
    /// The program is for another kind of machine (`e_machine`).
    Foreign(u16),
    /// Neither an executable nor a script.
    Unknown,
}

/// The name of the variable that holds the address sanitizer's options.
pub const SANITIZER_OPTIONS: &str = "ASAN_OPTIONS";

/// Returns the address sanitizer's options, changed to allow other libraries to be first; `None` if they set that option already.
pub fn with_any_order(options: &[u8]) -> Option<Vec<u8>> {
    const NAME: &[u8] = b"verify_asan_link_order";
    if options.windows(NAME.len()).any(|window| window == NAME) {
        return None;
    }
    let mut with = options.to_vec();
    if !with.is_empty() {
        with.push(b':');
    }
    with.extend_from_slice(NAME);
    with.extend_from_slice(b"=0");
    Some(with)
}

/// Most interpreters that the kernel follows.
const DEPTH: usize = 5;
/// Bytes at the start of a file that are read, as many as the kernel reads.
const HEAD: usize = 256;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_DYNAMIC: u32 = 2;
const ET_DYN: u16 = 3;

/// A descriptor that is closed on drop.
struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Returns the kind of `program`, or of the interpreter that will run it.
///
/// # Errors
/// The negative errno of reading the file.
pub fn kind(program: &CStr) -> Result<Kind, isize> {
    follow(program, |_| {}).map(|executed| executed.kind)
}

/// The file that is executed in the end.
struct Executed {
    kind: Kind,
    /// The executable file, if it is an ELF file for this machine.
    elf: Option<(File, Elf)>,
}

/// Follows scripts to their interpreters, calls `told` with each interpreter, and returns the file that is executed in the end.
fn follow(program: &CStr, mut told: impl FnMut(&CStr)) -> Result<Executed, isize> {
    let mut head = [0; HEAD + 1];
    let mut is_linker = is_linker(program.to_bytes());
    let mut file = open(program)?;
    let unknown = || Ok(Executed { kind: Kind::Unknown, elf: None });
    for _ in 0..DEPTH {
        let length = usize::try_from(sys::read_at(file.0, &mut head[..HEAD], 0)).unwrap_or(0);
        head[length..].fill(0);
        if let Some(interpreter) = interpreter(&mut head) {
            told(interpreter);
            is_linker = self::is_linker(interpreter.to_bytes());
            file = open(interpreter)?;
            continue;
        }
        if !head.starts_with(b"\x7fELF") {
            return unknown();
        }
        let elf = match Elf::read(&file, &head) {
            Err(kind) => {
                return Ok(Executed { kind: privilege(&file).map_or(kind, Kind::Privileged), elf: None });
            }
            Ok(elf) => elf,
        };
        let kind = privilege(&file).map_or_else(|| elf.kind(&file, is_linker), Kind::Privileged);
        return Ok(Executed { kind, elf: Some((file, elf)) });
    }
    unknown()
}

/// The description of a program, to be shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The way in which the engine gets into the program.
    pub kind: Kind,
    /// The interpreters that run it, if it is a script: its own first.
    pub interpreters: Vec<Vec<u8>>,
    /// The dynamic linker that the program, or the last interpreter, names.
    pub linker: Option<Vec<u8>>,
    /// True if the executable file is position-independent.
    pub is_pie: bool,
    /// The names of the libraries that the executable file itself needs, cut off after 32 bytes.
    pub libraries: Vec<Vec<u8>>,
}

/// Describes `program`. If an interpreter cannot be read, the description ends with its name.
///
/// # Errors
/// The negative errno of reading the program.
pub fn describe(program: &CStr) -> Result<Description, isize> {
    drop(open(program)?);
    let mut interpreters = Vec::new();
    let executed = follow(program, |interpreter| interpreters.push(interpreter.to_bytes().to_vec()));
    let executed = executed.unwrap_or(Executed { kind: Kind::Unknown, elf: None });
    let mut description =
        Description { kind: executed.kind, interpreters, linker: None, is_pie: false, libraries: Vec::new() };
    if let Some((file, elf)) = executed.elf {
        description.linker = elf.linker(&file);
        description.is_pie = elf.is_shared_object;
        elf.libraries(&file, |name| {
            let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            description.libraries.push(name[..length].to_vec());
            true
        });
    }
    Ok(description)
}

/// Opens a file for reading, without waiting for the other end of a pipe.
fn open(path: &CStr) -> Result<File, isize> {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDONLY | raw::O_NONBLOCK, 0) };
    if fd < 0 { Err(fd as isize) } else { Ok(File(fd)) }
}

/// Returns the interpreter that a script names; a zero is written behind the name in `head`.
fn interpreter(head: &mut [u8; HEAD + 1]) -> Option<&CStr> {
    if !head.starts_with(b"#!") {
        return None;
    }
    let end_of = |byte: &u8| matches!(byte, 0 | b'\n' | b' ' | b'\t' | b'\r');
    let start = 2 + head[2..].iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
    let end = start + head[start..].iter().position(end_of)?;
    head[end] = 0;
    (end > start).then(|| CStr::from_bytes_until_nul(&head[start..]).ok()).flatten()
}

/// Returns the privilege that executing the file gives, if any.
fn privilege(file: &File) -> Option<&'static str> {
    let mut status = MaybeUninit::<raw::stat>::uninit();
    if sys::fstat(file.0, &mut status) < 0 {
        return None;
    }
    // SAFETY: filled in by the call.
    let status = unsafe { status.assume_init_ref() };
    let (user, group) = sys::effective_ids();
    if status.st_mode & 0o4000 != 0 && status.st_uid != user {
        return Some("set-user-ID");
    }
    if status.st_mode & 0o2010 == 0o2010 && status.st_gid != group {
        return Some("set-group-ID");
    }
    // root has the capabilities anyway, so that the dynamic linker does not ignore `LD_PRELOAD`.
    (user != 0 && sys::has_attribute(file.0, c"security.capability")).then_some("given file capabilities")
}

/// The contents of the ELF header and the program headers.
struct Elf {
    /// The offset of `PT_INTERP` in the file, and its length.
    interpreter: Option<(u64, u64)>,
    /// The offset of `PT_DYNAMIC` in the file, and its length.
    dynamic: Option<(u64, u64)>,
    segments: Segments,
    is_shared_object: bool,
}

impl Elf {
    /// Reads the headers. The error is the kind of a file that cannot be executed here.
    fn read(file: &File, head: &[u8]) -> Result<Self, Kind> {
        const HEADER: usize = 56;
        // Most programs have fewer headers, which one call reads.
        const MOST: usize = 16;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let machine = half(18);
        let is_64_bit = head[4] == 2;
        if machine != arch::ELF_MACHINE || !is_64_bit {
            return Err(Kind::Foreign(machine));
        }
        let (start, size, count) = (long(head, 32), u64::from(half(54)), u64::from(half(56)));
        let segments = Segments { all: [(0, 0, 0); MOST_SEGMENTS], count: 0 };
        let mut elf =
            Self { interpreter: None, dynamic: None, segments, is_shared_object: half(16) == ET_DYN };
        if size != HEADER as u64 {
            // As in the kernel.
            return Err(Kind::Unknown);
        }
        let mut headers = [0; MOST * HEADER];
        for first in (0..count).step_by(MOST) {
            let wanted = MOST.min((count - first) as usize) * HEADER;
            let headers = &mut headers[..wanted];
            if sys::read_at(file.0, headers, start.wrapping_add(first * size)) != wanted as isize {
                return Err(Kind::Unknown);
            }
            for header in headers.chunks_exact(HEADER) {
                let (offset, length) = (long(header, 8), long(header, 32));
                match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
                    PT_INTERP => elf.interpreter = Some((offset, length)),
                    PT_DYNAMIC => elf.dynamic = Some((offset, length)),
                    PT_LOAD => elf.segments.push((offset, long(header, 16), length)),
                    _ => {}
                }
            }
        }
        Ok(elf)
    }

    fn kind(&self, file: &File, is_linker: bool) -> Kind {
        let mut first = None;
        if self.interpreter.is_some() {
            self.libraries(file, |name| {
                first = Some(*name);
                false
            });
        }
        // The dynamic linker itself, given a program to run, has no interpreter but loads the library.
        let runs_another = self.dynamic.is_some() && self.is_shared_object && is_linker;
        match first {
            Some(name) if is_sanitizer(&name) => Kind::Sanitized,
            Some(_) => Kind::Dynamic,
            None if self.interpreter.is_none() && runs_another => Kind::Dynamic,
            None => Kind::Static,
        }
    }

    /// Returns the path of the dynamic linker.
    fn linker(&self, file: &File) -> Option<Vec<u8>> {
        const MOST: u64 = 4096;
        let (start, length) = self.interpreter?;
        let mut path = alloc::vec![0; length.min(MOST) as usize];
        let read = usize::try_from(sys::read_at(file.0, &mut path, start)).unwrap_or(0);
        path.truncate(path[..read].iter().position(|&byte| byte == 0).unwrap_or(read));
        Some(path)
    }
}

/// Most `PT_LOAD` segments of a program that are kept.
const MOST_SEGMENTS: usize = 16;

/// The `PT_LOAD` segments, each as its offset in the file, its address and its length.
struct Segments {
    all: [(u64, u64, u64); MOST_SEGMENTS],
    count: usize,
}

impl Segments {
    fn push(&mut self, segment: (u64, u64, u64)) {
        if let Some(free) = self.all.get_mut(self.count) {
            *free = segment;
            self.count += 1;
        }
    }

    /// Returns the offset in the file that is mapped at `address`.
    fn offset(&self, address: u64) -> Option<u64> {
        let (offset, start, _) = self.all[..self.count]
            .iter()
            .find(|(_, start, length)| address.checked_sub(*start).is_some_and(|into| into < *length))?;
        Some(offset + (address - start))
    }
}

/// Bytes of a library's name that are read.
const NAME: usize = 32;

impl Elf {
    /// Calls `shown` with the name of each library that the dynamic section names, until `shown` returns false; a name is empty if it
    /// cannot be read. Go can make programs with a dynamic linker but without any library.
    fn libraries(&self, file: &File, mut shown: impl FnMut(&[u8; NAME]) -> bool) {
        const DT_NULL: u64 = 0;
        const DT_NEEDED: u64 = 1;
        const DT_STRTAB: u64 = 5;
        let (mut strings, mut needed) = (None, Vec::new());
        self.entries(file, |tag, value| {
            match tag {
                DT_STRTAB => strings = strings.or_else(|| self.segments.offset(value)),
                DT_NEEDED => needed.push(value),
                _ => {}
            }
            tag != DT_NULL
        });
        for value in needed {
            let mut name = [0; NAME];
            if let Some(place) = strings {
                sys::read_at(file.0, &mut name, place.wrapping_add(value));
            }
            if !shown(&name) {
                return;
            }
        }
    }

    /// Calls `shown` with the tag and value of each entry of the dynamic section, until `shown` returns false.
    fn entries(&self, file: &File, mut shown: impl FnMut(u64, u64) -> bool) {
        const ENTRY: usize = 16;
        let Some((start, length)) = self.dynamic else { return };
        let mut entries = [0; 64 * ENTRY];
        for offset in (0..length.min(1 << 16)).step_by(entries.len()) {
            let read = sys::read_at(file.0, &mut entries, start.wrapping_add(offset));
            for entry in entries[..usize::try_from(read).unwrap_or(0)].chunks_exact(ENTRY) {
                if !shown(long(entry, 0), long(entry, 8)) {
                    return;
                }
            }
        }
    }
}

/// True if a library is the address sanitizer of gcc or clang. The sanitizer must be the first library, so only that name is checked.
fn is_sanitizer(name: &[u8]) -> bool {
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut long = [0; 8];
    long.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(long)
}

/// True if the program is a dynamic linker, judged by the name that all of them have.
fn is_linker(program: &[u8]) -> bool {
    let name = program.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-") || name.starts_with(b"ld.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Option<String> {
        let mut head = [0; HEAD + 1];
        head[..text.len()].copy_from_slice(text);
        interpreter(&mut head).map(|name| name.to_str().unwrap().to_owned())
    }

    #[test]
    fn interpreters() {
        assert_eq!(read(b"#!/bin/sh\n"), Some(String::from("/bin/sh")));
        assert_eq!(read(b"#! /usr/bin/env -S x\n"), Some(String::from("/usr/bin/env")));
        assert_eq!(read(b"#!/bin/sh"), Some(String::from("/bin/sh")));
        assert_eq!(read(b"#!\n"), None);
        assert_eq!(read(b"echo\n"), None);
    }

    #[test]
    fn sanitizers_take_any_order() {
        let options =
            |given: &str| with_any_order(given.as_bytes()).map(|options| String::from_utf8(options).unwrap());
        assert_eq!(options("").unwrap(), "verify_asan_link_order=0");
        assert_eq!(options("a=1").unwrap(), "a=1:verify_asan_link_order=0");
        assert_eq!(options("verify_asan_link_order=1"), None);
    }

    #[test]
    fn kinds() {
        assert_eq!(kind(c"/bin/sh"), Ok(Kind::Dynamic));
        assert_eq!(kind(c"/proc/self/status"), Ok(Kind::Unknown));
        assert_eq!(kind(c"/proc"), Ok(Kind::Unknown));
        assert_eq!(kind(c"/nowhere"), Err(-2));
    }

    #[test]
    fn descriptions() {
        let shell = describe(c"/bin/sh").unwrap();
        assert_eq!((shell.kind, shell.is_pie), (Kind::Dynamic, true));
        assert!(shell.linker.as_deref().is_some_and(is_linker), "{shell:?}");
        assert!(shell.libraries.iter().any(|name| name.starts_with(b"libc.")), "{shell:?}");
        assert_eq!(describe(c"/nowhere"), Err(-2));
    }
}
