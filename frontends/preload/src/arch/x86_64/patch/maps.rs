//! Executable file mappings, from `/proc/self/maps`; and where the program's code was mapped, which takes no time to know.

use super::code::PAGE;
use crate::start::auxiliary;
use anyring_runtime::sys;
use core::ffi::{CStr, c_char, c_int, c_ulong};
use linux_raw_sys::general as raw;

/// A private mapping of a file that is readable and executable, not writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: usize,
    /// Behind its last.
    pub end: usize,
}

impl Mapping {
    /// Can all of it be read? An old kernel does not say.
    pub fn is_readable(&self) -> bool {
        sys::populate(self.start, self.end - self.start)
    }

    /// What it holds.
    ///
    /// # Safety
    /// It must stay mapped.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: readable, and mapped as the caller promises.
        unsafe { core::slice::from_raw_parts(self.start as *const u8, self.end - self.start) }
    }
}

/// The mapping that `address` lies in, if it is of that kind.
pub fn code_at(address: usize) -> Option<Mapping> {
    let mut found = None;
    for_each_code(|mapping, _| {
        if (mapping.start..mapping.end).contains(&address) {
            found = Some(*mapping);
        }
        found.is_none()
    });
    found
}

/// Calls `each` with every such mapping and its file's name, until it returns false.
pub fn for_each_code(mut each: impl FnMut(&Mapping, &[u8]) -> bool) {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(c"/proc/self/maps".as_ptr().cast(), raw::O_RDONLY, 0) };
    if fd < 0 {
        return;
    }
    let mut buffer = [0; 2048];
    let mut filled = 0;
    'read: while let Ok(count @ 1..) = usize::try_from(sys::read(fd, &mut buffer[filled..])) {
        filled += count;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            if let Some((mapping, name)) = parse(&buffer[start..start + length])
                && !each(&mapping, name)
            {
                break 'read;
            }
            start += length + 1;
        }
        // A line longer than the buffer cannot be read; nothing behind it is looked at.
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
    sys::close(fd);
}

/// `Elf64_Phdr`.
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    _offset: u64,
    address: u64,
    _physical: u64,
    file_bytes: u64,
    _memory_bytes: u64,
    _alignment: u64,
}

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `struct r_debug`, as far as debuggers need it.
#[repr(C)]
struct Debug {
    _version: c_int,
    first: *const Object,
}

/// `struct link_map`, as far as debuggers need it.
#[repr(C)]
struct Object {
    _base: usize,
    name: *const c_char,
    _dynamic: usize,
    next: *const Object,
}

/// The program, as the kernel mapped it.
pub struct Program {
    segments: &'static [Segment],
    /// What its addresses are counted from.
    base: usize,
}

impl Program {
    /// This process's.
    pub fn own() -> Option<Program> {
        const AT_PHDR: c_ulong = 3;
        const AT_PHENT: c_ulong = 4;
        const AT_PHNUM: c_ulong = 5;
        const ITSELF: u32 = 6;
        let (address, count) = (auxiliary(AT_PHDR)?, auxiliary(AT_PHNUM)?);
        if address == 0 || auxiliary(AT_PHENT)? != size_of::<Segment>() {
            return None;
        }
        // SAFETY: the kernel says so, and the dynamic linker reads them at any time.
        let segments = unsafe { core::slice::from_raw_parts(address as *const Segment, count) };
        let own = segments.iter().find(|segment| segment.kind == ITSELF)?;
        Some(Program { segments, base: address.wrapping_sub(own.address as usize) })
    }

    /// The code at an address, as it was mapped; constructors may have changed that since.
    pub fn code_at(&self, address: usize) -> Option<Mapping> {
        const LOADED: u32 = 1;
        const READABLE_CODE: u32 = 1 << 2 | 1;
        let is_code = |segment: &&Segment| segment.kind == LOADED && segment.flags == READABLE_CODE;
        let mapping = |segment: &Segment| {
            let start = self.base.wrapping_add(segment.address as usize);
            let end = start.wrapping_add(segment.file_bytes as usize).next_multiple_of(PAGE);
            Mapping { start: start & !(PAGE - 1), end }
        };
        let is_there = |mapping: &Mapping| (mapping.start..mapping.end).contains(&address);
        self.segments.iter().filter(is_code).map(mapping).find(is_there)
    }

    /// Whether an object is loaded with it that has such a name. Asked of the list that the dynamic linker keeps for debuggers: a
    /// function of its own may be the program's, and not be ready yet.
    pub fn has_loaded(&self, is_meant: impl Fn(&[u8]) -> bool) -> Option<bool> {
        const DYNAMIC: u32 = 2;
        const END: i64 = 0;
        const DEBUG: i64 = 21;
        let section = self.segments.iter().find(|segment| segment.kind == DYNAMIC)?;
        let mut entry = self.base.wrapping_add(section.address as usize) as *const Dynamic;
        // SAFETY: the program's section, up to its end, and the list, which nobody changes while only we run.
        unsafe {
            while (*entry).tag != DEBUG {
                if (*entry).tag == END {
                    return None;
                }
                entry = entry.add(1);
            }
            let debug = ((*entry).value as *const Debug).as_ref()?;
            let mut object = debug.first.as_ref()?;
            loop {
                if !object.name.is_null() && is_meant(CStr::from_ptr(object.name).to_bytes()) {
                    return Some(true);
                }
                let Some(next) = object.next.as_ref() else { return Some(false) };
                object = next;
            }
        }
    }
}

/// Reads `start-end r-xp offset device inode name`.
fn parse(line: &[u8]) -> Option<(Mapping, &[u8])> {
    // Most lines are of other kinds.
    let (range, rest) = line.split_at_checked(line.iter().position(|&byte| byte == b' ')?)?;
    let rest = rest.strip_prefix(b" r-xp ")?;
    let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    let name = words.next().filter(|_| inode != b"0")?;
    let mut range = range.split(|&byte| byte == b'-');
    let (start, end) = (hexadecimal(range.next()?)?, hexadecimal(range.next()?)?);
    Some((Mapping { start, end }, name))
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// Whether the process has one thread only.
pub fn one_thread() -> bool {
    let mut status = core::mem::MaybeUninit::<raw::stat>::uninit();
    // SAFETY: the path ends with zero.
    let result = unsafe { sys::stat(c"/proc/self/task".as_ptr().cast(), &mut status) };
    // Two links, and one for each thread.
    // SAFETY: filled in where the call succeeded.
    result == 0 && unsafe { status.assume_init_ref() }.st_nlink == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"7f00-8f00 r-xp 00001000 08:01 1234      /usr/lib/libx.so.1";
        let expected = Mapping { start: 0x7f00, end: 0x8f00 };
        assert_eq!(parse(line), Some((expected, b"/usr/lib/libx.so.1".as_slice())));
        assert_eq!(parse(b"7f00-8f00 rwxp 00001000 08:01 1234      /usr/lib/libx.so.1"), None);
        assert_eq!(parse(b"7f00-8f00 r-xp 00000000 00:00 0      [vdso]"), None);
        assert_eq!(parse(b"7f00-8f00 r-xp 00000000 00:00 0 "), None);
    }

    #[test]
    fn the_program_is_where_it_was_mapped() {
        let here = own_code_is_found as *const () as usize;
        let program = Program::own().unwrap();
        let code = program.code_at(here);
        assert_eq!((code, code.is_some_and(|code| code.is_readable())), (code_at(here), true));
        assert_eq!(program.code_at(&raw const here as usize), None);
        let has = |part: &[u8]| program.has_loaded(|name| name.windows(part.len()).any(|one| one == part));
        assert_eq!((has(b"libc.so"), has(b"liburing")), (Some(true), Some(false)));
    }

    #[test]
    fn own_code_is_found() {
        let here = own_code_is_found as *const () as usize;
        let mapping = code_at(here).unwrap();
        assert!(mapping.start <= here && here < mapping.end);
        assert_eq!(code_at(&raw const here as usize), None);
    }
}
