//! The records that `getdents64(2)` writes.

use crate::Kind;
use std::ffi::CStr;

/// Offsets in one record: inode, length, type, name.
const LENGTH: usize = 16;
const TYPE: usize = 18;
const NAME: usize = 19;

/// A name in a directory.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    pub inode: u64,
    pub kind: Kind,
    pub name: &'a CStr,
}

/// Returns the name at `offset` of the bytes read, and the offset of the next name.
#[inline]
pub fn name_at(bytes: &[u8], offset: usize) -> Option<(Name<'_>, usize)> {
    let record = bytes.get(offset..)?;
    let length = usize::from(u16::from_ne_bytes(record.get(LENGTH..TYPE)?.try_into().ok()?));
    let record = record.get(..length)?;
    let inode = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    // A file system in user space may put a NUL into a name: the name ends there, as for all calls that take names.
    let name = CStr::from_bytes_until_nul(record.get(NAME..)?).ok()?;
    Some((Name { inode, kind: Kind::of_number(record[TYPE]), name }, offset + length))
}

/// True if the name is `.` or `..`.
pub fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Appends a name as the kernel would, of unknown kind; returns false if there is no room within `most` bytes.
pub fn put_name(bytes: &mut Vec<u8>, name: &CStr, inode: u64, most: usize) -> bool {
    let name = name.to_bytes_with_nul();
    let length = (NAME + name.len()).next_multiple_of(8);
    if bytes.len() + length > most {
        return false;
    }
    let begin = bytes.len();
    bytes.extend_from_slice(&inode.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&(length as u16).to_ne_bytes());
    bytes.push(libc::DT_UNKNOWN);
    bytes.extend_from_slice(name);
    bytes.resize(begin + length, 0);
    true
}
