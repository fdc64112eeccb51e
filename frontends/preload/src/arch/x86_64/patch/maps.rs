//! Executable file mappings, from `/proc/self/maps`.

use anyring_runtime::sys;
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
    fn own_code_is_found() {
        let here = own_code_is_found as *const () as usize;
        let mapping = code_at(here).unwrap();
        assert!(mapping.start <= here && here < mapping.end);
        assert_eq!(code_at(&raw const here as usize), None);
    }
}
