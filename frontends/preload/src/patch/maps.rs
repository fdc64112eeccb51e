//! Executable file mappings, from `/proc/self/maps`; and the program's own code, which is found without reading that list.

use super::page_bytes;
use crate::arch::sites;
use crate::start::auxiliary;
use anyring_runtime::sys;
use core::ffi::{CStr, c_char, c_int, c_ulong};
use core::ops::Range;
use linux_raw_sys::general as raw;

/// A mapping of a file. It is code if it is private, readable and executable, but not writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: usize,
    /// The end address, which is not part of the mapping.
    pub end: usize,
}

impl Mapping {
    /// True if the whole mapping can be read; always false on kernels that cannot tell.
    pub fn is_readable(&self) -> bool {
        sys::populate(self.start, self.end - self.start)
    }

    /// Returns the protection flags of its pages in addition to readable and executable, if known. Only `smaps`
    /// lists these, which takes the kernel long to write.
    pub fn guard(&self) -> Option<u32> {
        let Some((name, access)) = sites::guard() else { return Some(0) };
        let (mut is_here, mut guard) = (false, None);
        for_each_line(c"/proc/self/smaps", |line| {
            if let Some(range) = range(line) {
                is_here = range.contains(&self.start);
            } else if is_here && let Some(flags) = line.strip_prefix(b"VmFlags:") {
                let is_guarded = flags.split(|&byte| byte == b' ').any(|flag| flag == name);
                guard = Some(if is_guarded { access } else { 0 });
            }
            guard.is_none()
        });
        guard
    }

    /// Returns the end of the code in the mapping: on some machines, linkers place read-only data after the code, in the same segment. The
    /// termination function of an object is the last part of its code.
    fn code_end(&self) -> usize {
        let end = if sites::HAS_DATA_BEHIND_CODE { self.last_function() } else { None };
        // The termination function is a few instructions long.
        end.map_or(self.end, |last| (last + 64).min(self.end))
    }

    /// Returns the address of the termination function (`DT_FINI`) of the object whose headers and code are in this mapping.
    fn last_function(&self) -> Option<usize> {
        const MAGIC: [u8; 4] = *b"\x7fELF";
        const END: i64 = 13;
        // SAFETY: the mapping is readable and at least a page long; any bytes are a valid header.
        let header = unsafe { &*(self.start as *const Header) };
        let table = self.start.checked_add(header.segments as usize)?;
        let bytes = usize::from(header.segment_count) * size_of::<Segment>();
        let fits =
            table.checked_add(bytes).is_some_and(|end| end <= self.end) && table % align_of::<Segment>() == 0;
        if header.magic != MAGIC || usize::from(header.segment_bytes) != size_of::<Segment>() || !fits {
            return None;
        }
        // SAFETY: the table lies in the mapping and is aligned.
        let segments =
            unsafe { core::slice::from_raw_parts(table as *const Segment, header.segment_count.into()) };
        let first = segments.iter().find(|segment| segment.kind == Segment::LOADED && segment.offset == 0)?;
        let base = self.start.wrapping_sub(first.address as usize);
        // SAFETY: the object is loaded, including its dynamic section.
        let last = unsafe { dynamic(segments, base, END) }?;
        Some(base.wrapping_add(last)).filter(|last| (self.start..self.end).contains(last))
    }

    /// Returns the code in the mapping, and perhaps bytes after it.
    ///
    /// # Safety
    /// The mapping must stay mapped.
    pub unsafe fn code(&self) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { &self.bytes()[..self.code_end() - self.start] }
    }

    /// The bytes of the mapping.
    ///
    /// # Safety
    /// The mapping must stay mapped.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, and stays mapped as the caller promises.
        unsafe { core::slice::from_raw_parts(self.start as *const u8, self.end - self.start) }
    }
}

/// Returns the mapping of code that contains `address`, if there is one.
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

/// Calls `each` with every mapping of code and its file's name, until it returns false.
pub fn for_each_code(mut each: impl FnMut(&Mapping, &[u8]) -> bool) {
    for_each_line(c"/proc/self/maps", |line| {
        parse(line).is_none_or(|(mapping, access, name)| access != b"r-xp" || each(&mapping, name))
    });
}

/// Calls `each` with every executable mapping of a file, its access, its file's name, and the kernel's line about it, which differs if
/// another mapping is at the same place. Returns true if no line was missed.
pub fn for_each_executable(mut each: impl FnMut(&Mapping, &[u8], &[u8], &[u8])) -> bool {
    for_each_line(c"/proc/self/maps", |line| {
        if let Some((mapping, access, name)) = parse(line).filter(|(_, access, _)| access.contains(&b'x')) {
            each(&mapping, access, name, line);
        }
        true
    })
}

/// Calls `each` with every line of a file, until it returns false. Returns true if `each` was called with all lines.
fn for_each_line(path: &CStr, mut each: impl FnMut(&[u8]) -> bool) -> bool {
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDONLY, 0) };
    if fd < 0 {
        return false;
    }
    let mut buffer = [0; 2048];
    let mut filled = 0;
    let mut all = false;
    'read: while let Ok(count) = usize::try_from(sys::read(fd, &mut buffer[filled..])) {
        if count == 0 {
            all = filled == 0;
            break;
        }
        filled += count;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            if !each(&buffer[start..start + length]) {
                break 'read;
            }
            start += length + 1;
        }
        // A line longer than the buffer cannot be read; the lines after it are not read either.
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
    sys::close(fd);
    all
}

/// `Elf64_Ehdr`, up to the last field that is needed.
#[repr(C)]
struct Header {
    magic: [u8; 4],
    _rest_of_identity: [u8; 12],
    _kind_and_machine: [u16; 2],
    _version: u32,
    _entry: u64,
    segments: u64,
    _sections: u64,
    _flags: u32,
    _header_bytes: u16,
    segment_bytes: u16,
    segment_count: u16,
}

/// `Elf64_Phdr`.
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    _physical: u64,
    file_bytes: u64,
    _memory_bytes: u64,
    _alignment: u64,
}

impl Segment {
    const LOADED: u32 = 1;
    const DYNAMIC: u32 = 2;
}

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// Returns the value of an entry in the dynamic section of a loaded object, whose addresses are relative to `base`.
///
/// # Safety
/// The object must be loaded.
unsafe fn dynamic(segments: &[Segment], base: usize, tag: i64) -> Option<usize> {
    const END: i64 = 0;
    let section = segments.iter().find(|segment| segment.kind == Segment::DYNAMIC)?;
    let mut entry = base.wrapping_add(section.address as usize) as *const Dynamic;
    // SAFETY: the entries up to the section's end are readable, because the dynamic linker reads them at any time.
    unsafe {
        while (*entry).tag != tag {
            if (*entry).tag == END {
                return None;
            }
            entry = entry.add(1);
        }
        Some((*entry).value)
    }
}

/// `struct r_debug`, up to the last field that is needed.
#[repr(C)]
struct Debug {
    _version: c_int,
    first: *const Object,
}

/// `struct link_map`, up to the last field that is needed.
#[repr(C)]
struct Object {
    _base: usize,
    name: *const c_char,
    _dynamic: usize,
    next: *const Object,
}

/// The program of this process, as the kernel mapped it.
pub struct Program {
    segments: &'static [Segment],
    /// The address to which the program's addresses are relative.
    base: usize,
}

impl Program {
    /// Returns the program of this process.
    pub fn own() -> Option<Program> {
        const AT_PHDR: c_ulong = 3;
        const AT_PHENT: c_ulong = 4;
        const AT_PHNUM: c_ulong = 5;
        const ITSELF: u32 = 6;
        let (address, count) = (auxiliary(AT_PHDR)?, auxiliary(AT_PHNUM)?);
        if address == 0 || auxiliary(AT_PHENT)? != size_of::<Segment>() {
            return None;
        }
        // SAFETY: the kernel reports the table, and the dynamic linker reads it at any time.
        let segments = unsafe { core::slice::from_raw_parts(address as *const Segment, count) };
        let own = segments.iter().find(|segment| segment.kind == ITSELF)?;
        Some(Program { segments, base: address.wrapping_sub(own.address as usize) })
    }

    /// Returns the mapping of code at an address, as it was mapped; constructors may have changed it since.
    pub fn code_at(&self, address: usize) -> Option<Mapping> {
        const READABLE_CODE: u32 = 1 << 2 | 1;
        let is_code = |segment: &&Segment| segment.kind == Segment::LOADED && segment.flags == READABLE_CODE;
        let mapping = |segment: &Segment| {
            let start = self.base.wrapping_add(segment.address as usize);
            let end = start.wrapping_add(segment.file_bytes as usize).next_multiple_of(page_bytes());
            Mapping { start: start & !(page_bytes() - 1), end }
        };
        let is_there = |mapping: &Mapping| (mapping.start..mapping.end).contains(&address);
        self.segments.iter().filter(is_code).map(mapping).find(is_there)
    }

    /// True if an object with a matching name is loaded with the program. Read from the list that the dynamic linker keeps for debuggers,
    /// because a function that the linker offers may be replaced by the program, and may not be ready yet.
    pub fn has_loaded(&self, is_meant: impl Fn(&[u8]) -> bool) -> Option<bool> {
        const DEBUG: i64 = 21;
        // SAFETY: the program is loaded; nothing changes the list while only this code runs.
        unsafe {
            let debug = (dynamic(self.segments, self.base, DEBUG)? as *const Debug).as_ref()?;
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

/// Parses the line `start-end access offset device inode name` of a file mapping.
fn parse(line: &[u8]) -> Option<(Mapping, &[u8], &[u8])> {
    // Cheap checks first: most lines are of other kinds.
    let (_, rest) = line.split_at_checked(line.iter().position(|&byte| byte == b' ')?)?;
    let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (access, _offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let name = words.next().filter(|_| inode != b"0")?;
    let Range { start, end } = range(line)?;
    Some((Mapping { start, end }, access, name))
}

/// Returns the range of addresses at the beginning of a line.
fn range(line: &[u8]) -> Option<Range<usize>> {
    let mut ends = line.split(|&byte| byte == b' ').next()?.split(|&byte| byte == b'-');
    Some(hexadecimal(ends.next()?)?..hexadecimal(ends.next()?)?)
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// True if the process has only one thread.
pub fn one_thread() -> bool {
    let mut status = core::mem::MaybeUninit::<raw::stat>::uninit();
    // SAFETY: the path ends with zero.
    let result = unsafe { sys::stat(c"/proc/self/task".as_ptr().cast(), &mut status) };
    // The directory has two links, and one for each thread.
    // SAFETY: the kernel has filled it in if the call succeeded.
    result == 0 && unsafe { status.assume_init_ref() }.st_nlink == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = b"7f00-8f00 r-xp 00001000 08:01 1234      /usr/lib/libx.so.1";
        let expected = Mapping { start: 0x7f00, end: 0x8f00 };
        assert_eq!(parse(line), Some((expected, b"r-xp".as_slice(), b"/usr/lib/libx.so.1".as_slice())));
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
    fn code_ends_before_what_is_only_read() {
        static READ: [u8; 64] = *b"nothing but read, and in a segment with code on some machines...";
        let here = code_ends_before_what_is_only_read as *const () as *const u8;
        let mapping = code_at(here.addr()).unwrap();
        // SAFETY: the mapping is this program's own.
        let code = unsafe { mapping.code() }.as_ptr_range();
        assert!(code.contains(&here));
        assert!(!code.contains(&core::hint::black_box(READ.as_ptr())));
    }

    #[test]
    fn own_code_is_found() {
        let here = own_code_is_found as *const () as usize;
        let mapping = code_at(here).unwrap();
        assert!(mapping.start <= here && here < mapping.end);
        assert_eq!(code_at(&raw const here as usize), None);
    }
}
