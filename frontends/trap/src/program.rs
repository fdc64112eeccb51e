//! What can be told of a program before it runs: how the engine gets into it.

use alloc::vec::Vec;
use anyring_runtime::sys;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use linux_raw_sys::general as raw;

/// What a program is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamic linker runs in it, and loads the library beside others.
    Dynamic,
    /// As [`Kind::Dynamic`], but with the address sanitizer, which refuses to start behind our library unless its
    /// [options](with_any_order) allow it.
    Sanitized,
    /// It has no libraries: there is no C library in it that ours could go along with.
    Static,
    /// It gains privileges, and a dynamic linker ignores `LD_PRELOAD` then.
    Privileged(&'static str),
    /// It is for another kind of machine.
    Foreign(u16),
    /// Neither an executable nor a script.
    Unknown,
}

/// The name of the variable that holds the address sanitizer's options.
pub const SANITIZER_OPTIONS: &str = "ASAN_OPTIONS";

/// The address sanitizer's options, with leave for other libraries to come first; `None` where they speak of that.
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
/// Bytes of a file that are looked at first, as many as the kernel looks at.
const HEAD: usize = 256;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_DYNAMIC: u32 = 2;
const ET_DYN: u16 = 3;
const OWN_MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

/// A descriptor that is closed in the end.
struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Looks at `program`, or at the interpreter that will run it.
///
/// # Errors
/// The negative errno of reading it.
pub fn kind(program: &CStr) -> Result<Kind, isize> {
    let mut head = [0; HEAD + 1];
    let mut is_linker = is_linker(program.to_bytes());
    let mut file = open(program)?;
    for _ in 0..DEPTH {
        let length = usize::try_from(sys::read_at(file.0, &mut head[..HEAD], 0)).unwrap_or(0);
        head[length..].fill(0);
        if let Some(interpreter) = interpreter(&mut head) {
            is_linker = self::is_linker(interpreter.to_bytes());
            file = open(interpreter)?;
            continue;
        }
        if !head.starts_with(b"\x7fELF") {
            return Ok(Kind::Unknown);
        }
        return Ok(match privilege(&file) {
            Some(privilege) => Kind::Privileged(privilege),
            None => executable(&file, &head, is_linker),
        });
    }
    Ok(Kind::Unknown)
}

/// Opens a file to look at; what is no file is not waited for.
fn open(path: &CStr) -> Result<File, isize> {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDONLY | raw::O_NONBLOCK, 0) };
    if fd < 0 { Err(fd as isize) } else { Ok(File(fd)) }
}

/// The interpreter that a script names. Its name is ended where it stands.
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

/// The privilege that executing the file gives, if any.
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
    // root has the capabilities anyway, and gains nothing that the linker would mind.
    (user != 0 && sys::has_attribute(file.0, c"security.capability")).then_some("given file capabilities")
}

/// Looks at the ELF header and the program headers.
fn executable(file: &File, head: &[u8], is_linker: bool) -> Kind {
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let machine = half(18);
    let is_64_bit = head[4] == 2;
    if machine != OWN_MACHINE || !is_64_bit {
        return Kind::Foreign(machine);
    }
    let (start, size, count) = (long(head, 32), u64::from(half(54)), u64::from(half(56)));
    let (mut interpreted, mut dynamic) = (false, None);
    let mut segments = Segments { all: [(0, 0, 0); MOST_SEGMENTS], count: 0 };
    for index in 0..count {
        let mut header = [0; 56];
        if sys::read_at(file.0, &mut header, start.wrapping_add(index * size)) != header.len() as isize {
            return Kind::Unknown;
        }
        match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
            PT_INTERP => interpreted = true,
            PT_DYNAMIC => dynamic = Some((long(&header, 8), long(&header, 32))),
            PT_LOAD => segments.push((long(&header, 8), long(&header, 16), long(&header, 32))),
            _ => {}
        }
    }
    let library = || dynamic.and_then(|(start, length)| first_library(file, start, length, &segments));
    // The dynamic linker itself, given a program to run, has no interpreter but loads the library.
    let runs_another = || dynamic.is_some() && half(16) == ET_DYN && is_linker;
    match interpreted.then(library).flatten() {
        Some(name) if is_sanitizer(&name) => Kind::Sanitized,
        Some(_) => Kind::Dynamic,
        None if !interpreted && runs_another() => Kind::Dynamic,
        None => Kind::Static,
    }
}

/// Most parts of a program that are mapped alike.
const MOST_SEGMENTS: usize = 16;

/// Which part of a file is mapped where: its offset, its address, its length.
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

    /// Where in the file lies what is mapped at `address`.
    fn offset(&self, address: u64) -> Option<u64> {
        let (offset, start, _) = self.all[..self.count]
            .iter()
            .find(|(_, start, length)| address.checked_sub(*start).is_some_and(|into| into < *length))?;
        Some(offset + (address - start))
    }
}

/// Bytes of a library's name that are looked at.
const NAME: usize = 32;

/// The name of the first library that a program's dynamic section names; empty where it cannot be read. Go can make programs
/// with a dynamic linker but without any library.
fn first_library(file: &File, start: u64, length: u64, segments: &Segments) -> Option<[u8; NAME]> {
    const DT_NULL: u64 = 0;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    const ENTRY: usize = 16;
    let (mut first, mut strings) = (None, None);
    let mut entries = [0; 64 * ENTRY];
    'read: for offset in (0..length.min(1 << 16)).step_by(entries.len()) {
        let read =
            usize::try_from(sys::read_at(file.0, &mut entries, start.wrapping_add(offset))).unwrap_or(0);
        for entry in entries[..read].chunks_exact(ENTRY) {
            match long(entry, 0) {
                DT_NULL => break 'read,
                DT_NEEDED if first.is_none() => first = Some(long(entry, 8)),
                DT_STRTAB => strings = Some(long(entry, 8)),
                _ => {}
            }
        }
    }
    let mut name = [0; NAME];
    let first = first?;
    if let Some(place) = strings.and_then(|strings| segments.offset(strings)) {
        sys::read_at(file.0, &mut name, place.wrapping_add(first));
    }
    Some(name)
}

/// Whether a library is the address sanitizer of gcc or clang. It must be the first, so no other name need be looked at.
fn is_sanitizer(name: &[u8]) -> bool {
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut long = [0; 8];
    long.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(long)
}

/// Whether the program is a dynamic linker, by the name that all of them have.
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
}
