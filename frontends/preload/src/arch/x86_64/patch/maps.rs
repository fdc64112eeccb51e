//! Executable file mappings, from `/proc/self/maps`; before `main` from the dynamic linker, which takes no time to tell.

use super::code::PAGE;
use anyring_interpose::next;
use anyring_runtime::sys;
use core::ffi::{CStr, c_char, c_int, c_void};
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

/// What the dynamic linker tells of an object that it has loaded: `struct dl_phdr_info`, the part that each C library has.
#[repr(C)]
struct Object {
    /// What its addresses are counted from.
    base: usize,
    name: *const c_char,
    segments: *const Segment,
    count: u16,
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

impl Segment {
    /// The mapping of a segment of code, in an object that is counted from `base`.
    fn code(&self, base: usize) -> Option<Mapping> {
        const LOADED: u32 = 1;
        const READABLE_CODE: u32 = 1 << 2 | 1;
        if self.kind != LOADED || self.flags != READABLE_CODE || self.file_bytes == 0 {
            return None;
        }
        let start = base.wrapping_add(self.address as usize);
        let end = start.wrapping_add(self.file_bytes as usize).next_multiple_of(PAGE);
        Some(Mapping { start: start & !(PAGE - 1), end })
    }
}

/// Calls `each` with the code of every object that was loaded with the program, as it was mapped, and with the object's name;
/// whether the dynamic linker says. For the time before `main`: nobody has changed the mappings yet.
pub fn for_each_loaded<F: FnMut(&Mapping, &[u8])>(mut each: F) -> bool {
    extern "C" fn called<F: FnMut(&Mapping, &[u8])>(
        object: *const Object,
        _size: usize,
        each: *mut c_void,
    ) -> c_int {
        // SAFETY: what the dynamic linker lends for this call, and what `for_each_loaded` lent it.
        let (object, each) = unsafe { (&*object, &mut *each.cast::<F>()) };
        // SAFETY: the object's table, and a string.
        let (segments, name) = unsafe {
            let segments = core::slice::from_raw_parts(object.segments, object.count.into());
            (segments, CStr::from_ptr(object.name).to_bytes())
        };
        segments.iter().filter_map(|segment| segment.code(object.base)).for_each(|code| each(&code, name));
        0
    }
    type Callback = extern "C" fn(*const Object, usize, *mut c_void) -> c_int;
    let address = next::find(next::Place::Anywhere, c"dl_iterate_phdr");
    if address.is_null() {
        return false;
    }
    // SAFETY: C libraries give it this type.
    let iterate: unsafe extern "C" fn(Callback, *mut c_void) -> c_int =
        unsafe { core::mem::transmute(address) };
    // SAFETY: `each` lives as long as the call.
    unsafe { iterate(called::<F>, (&raw mut each).cast()) };
    true
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
    fn the_dynamic_linker_tells_what_the_kernel_does() {
        let (mut mapped, mut loaded) = (std::vec::Vec::new(), std::vec::Vec::new());
        for_each_code(|mapping, _| {
            mapped.push(*mapping);
            true
        });
        // The page of system calls that the kernel gives is no file.
        assert!(for_each_loaded(|mapping, name| {
            if !name.windows(4).any(|part| part == b"vdso") {
                loaded.push(*mapping);
            }
        }));
        let sorted = |mut list: std::vec::Vec<Mapping>| {
            list.sort_by_key(|mapping| mapping.start);
            list
        };
        assert_eq!(sorted(loaded), sorted(mapped));
    }

    #[test]
    fn own_code_is_found() {
        let here = own_code_is_found as *const () as usize;
        let mapping = code_at(here).unwrap();
        assert!(mapping.start <= here && here < mapping.end);
        assert_eq!(code_at(&raw const here as usize), None);
    }
}
