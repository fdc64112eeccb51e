//! Extended attributes, of descriptors and paths.

use alloc::vec::Vec;

use crate::abi::{Errno, names};
use crate::ops::paths;
use crate::os::nr::{self, AT_FDCWD};
use crate::os::user::{self, Path};
use crate::request::Flags;
use crate::request::data::OpData;
use crate::request::field::Field;
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Argument, Kind, arg};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Prep, Row, issue_blocks};
use crate::work::Work;

const MAX_NAME: usize = 255;
const MAX_VALUE: u32 = 65536;
/// `XATTR_CREATE` and `XATTR_REPLACE`.
const FLAGS: u32 = 3;

const fn sets(object: Argument) -> [Argument; 5] {
    arguments(object, Kind::Data(Field::Length), SHOWN_FLAGS)
}

const fn gets(object: Argument) -> [Argument; 5] {
    arguments(object, Kind::Filled, SHOWN_FLAGS.unless_zero())
}

const fn arguments(object: Argument, value: Kind, flags: Argument) -> [Argument; 5] {
    let name = arg(Field::Address, "name", Kind::Text);
    let value = arg(Field::Offset, "value", value);
    [object, name, value, arg(Field::Length, "size", Kind::Number), flags]
}

const SHOWN_FLAGS: Argument = arg(Field::OpFlags, "flags", Kind::Flags(names::XATTR_FLAGS));
const OF_PATH: Argument = arg(Field::Address3, "path", Kind::Path);

const BY_FILE: Caps = Caps::FILE.with(Caps::SPARES_LINKS);

/// An attribute to be read or written.
pub struct Xattr {
    name: Path,
    value: Vec<u8>,
    path: Option<Path>,
}

/// `IORING_OP_FSETXATTR`.
pub const FSETXATTR: Row = Row::new(op!(IORING_OP_FSETXATTR), BY_FILE, prep_set, issue_blocks)
    .block(set)
    .arguments(&sets(shown::FD))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ERANGE, Errno::E2BIG]);

/// `IORING_OP_SETXATTR`.
pub const SETXATTR: Row =
    Row::new(op!(IORING_OP_SETXATTR), Caps::SPARES_LINKS, |cx| with_path(cx, prep_set), issue_at_path)
        .block(set)
        .arguments(&sets(OF_PATH))
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ERANGE, Errno::E2BIG]);

/// `IORING_OP_FGETXATTR`.
pub const FGETXATTR: Row = Row::new(op!(IORING_OP_FGETXATTR), BY_FILE, prep_get, issue_blocks)
    .block(get)
    .arguments(&gets(shown::FD))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ERANGE]);

/// `IORING_OP_GETXATTR`.
pub const GETXATTR: Row =
    Row::new(op!(IORING_OP_GETXATTR), Caps::SPARES_LINKS, |cx| with_path(cx, prep_get), issue_at_path)
        .block(get)
        .arguments(&gets(OF_PATH))
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ERANGE]);

fn read_name(address: u64) -> Result<Path, Errno> {
    match Path::read_up_to(address, MAX_NAME + 1) {
        Ok(name) if name.is_empty() => Err(Errno::ERANGE),
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE),
        other => other,
    }
}

fn prep_set(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    if sqe.op_flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let name = read_name(sqe.addr)?;
    if sqe.len > MAX_VALUE {
        return Err(Errno::E2BIG);
    }
    let value = user::read_many(sqe.off, sqe.len as usize)?;
    cx.data = OpData::own(Xattr { name, value, path: None });
    Ok(())
}

fn prep_get(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    if sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let name = read_name(sqe.addr)?;
    user::announce(sqe.off);
    cx.data = OpData::own(Xattr { name, value: Vec::new(), path: None });
    Ok(())
}

fn with_path(cx: &mut Attempt<'_>, prep: Prep) -> Result<(), Errno> {
    if cx.flags.has(Flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    prep(cx)?;
    let path = cx.read_path(cx.sqe.addr3, false)?;
    if let Some(xattr) = cx.data.as_own_mut::<Xattr>() {
        xattr.path = Some(path);
    }
    Ok(())
}

fn issue_at_path(cx: &mut Attempt<'_>) -> Outcome {
    match cx.data.as_own::<Xattr>() {
        Some(Xattr { path: Some(path), .. }) => paths::issue_at(&[(AT_FDCWD, path)]),
        _ => Outcome::Block,
    }
}

fn set(work: &mut Work) -> Result<usize, Errno> {
    let Some(xattr) = work.data.as_own::<Xattr>() else { return Err(Errno::EINVAL) };
    let (number, object) = match &xattr.path {
        Some(path) => (nr::__NR_setxattr, path.address()),
        None => (nr::__NR_fsetxattr, work.fd as usize),
    };
    let (value, size) = (xattr.value.as_ptr() as usize, xattr.value.len());
    // SAFETY: reads a path, a name and a value of the engine's.
    unsafe { work.call(number, [object, xattr.name.address(), value, size, work.sqe.op_flags as usize, 0]) }
}

fn get(work: &mut Work) -> Result<usize, Errno> {
    let Some(xattr) = work.data.as_own::<Xattr>() else { return Err(Errno::EINVAL) };
    let (number, object) = match &xattr.path {
        Some(path) => (nr::__NR_getxattr, path.address()),
        None => (nr::__NR_fgetxattr, work.fd as usize),
    };
    let (value, size) = (work.sqe.off as usize, work.sqe.len as usize);
    // SAFETY: reads a path and a name of the engine's, and writes to the program's memory.
    unsafe { work.call(number, [object, xattr.name.address(), value, size, 0, 0]) }
}
