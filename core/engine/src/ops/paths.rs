//! Operations on paths. Like the kernel, the engine copies a path at submission: the program may overwrite it
//! immediately, and the attempt may come later.

use anyring_chaos_plan::journal::Effect;
use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_REMOVEDIR, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC,
    AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW,
};

use crate::abi::{Errno, names};
use crate::assets::mounts;
use crate::observe::chaos;
use crate::os::user::{self, Path};
use crate::os::{Fd, nr};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, Named, op};
use crate::request::shown::{self, Argument, Kind, Names, arg};
use crate::request::{Flags, structures};
use crate::ring::Attempt;
use crate::ring::row::{Block, Outcome, Prep, Row};
use crate::work::Work;

const fn op(named: Named, prep: Prep, block: Block, arguments: &'static [Argument]) -> Row {
    Row::new(named, Caps::SPARES_LINKS, prep, issue).block(block).arguments(arguments).faults(chaos::PATHS)
}

/// Returns the arguments of an operation on two paths.
const fn two_arguments(flags: &'static Names) -> [Argument; 5] {
    [
        arg(Field::Fd, "olddirfd", Kind::Descriptor),
        arg(Field::Address, "oldpath", Kind::Path),
        arg(Field::Length, "newdirfd", Kind::Descriptor),
        arg(Field::Offset, "newpath", Kind::Path),
        arg(Field::OpFlags, "flags", Kind::Flags(flags)),
    ]
}

/// `IORING_OP_STATX`.
pub const STATX: Row = op(
    op!(IORING_OP_STATX),
    prep_statx,
    statx,
    &[
        shown::DIRECTORY,
        shown::PATH,
        arg(
            Field::OpFlags,
            "flags",
            Kind::ChoiceAndFlags(AT_STATX_SYNC_TYPE, names::STATX_SYNC, names::STATX_FLAGS),
        ),
        arg(Field::Length, "mask", Kind::Flags(names::STATX_MASK)),
        arg(Field::Offset, "statxbuf", Kind::StructureFilled(structures::STATX)),
    ],
)
.unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ENOENT, Errno::EBADF]);

/// `IORING_OP_RENAMEAT`.
pub const RENAMEAT: Row = op(
    op!(IORING_OP_RENAMEAT),
    |cx| prep_two(cx, false),
    |work| at_two(work, nr::__NR_renameat2),
    &two_arguments(names::RENAME_FLAGS),
)
.stores(Effect::Rename)
.unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOENT]);

/// `IORING_OP_UNLINKAT`.
pub const UNLINKAT: Row = op(
    op!(IORING_OP_UNLINKAT),
    prep_unlinkat,
    |work| at_one(work, nr::__NR_unlinkat, work.sqe.op_flags),
    &[shown::DIRECTORY, shown::PATH, arg(Field::OpFlags, "flags", Kind::Flags(names::UNLINK_FLAGS))],
)
.stores(Effect::Unlink)
.unused(
    Unused::OFF
        .with(Unused::LEN)
        .with(Unused::BUF_INDEX)
        .with(Unused::FILE_INDEX)
        .with(Unused::ADDR3)
        .with(Unused::PAD),
)
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOENT]);

/// `IORING_OP_MKDIRAT`.
pub const MKDIRAT: Row = op(
    op!(IORING_OP_MKDIRAT),
    prep_one,
    |work| at_one(work, nr::__NR_mkdirat, work.sqe.len),
    &[shown::DIRECTORY, shown::PATH, arg(Field::Length, "mode", Kind::Mode)],
)
.stores(Effect::MakeDirectory)
.unused(Unused::OFF.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOENT]);

/// `IORING_OP_SYMLINKAT`.
pub const SYMLINKAT: Row = op(
    op!(IORING_OP_SYMLINKAT),
    |cx| prep_two(cx, false),
    symlinkat,
    &[
        arg(Field::Address, "target", Kind::Path),
        arg(Field::Fd, "newdirfd", Kind::Descriptor),
        arg(Field::Offset, "linkpath", Kind::Path),
    ],
)
.stores(Effect::SymbolicLink)
.issue(issue_symlinkat)
.unused(Unused::LEN.with(Unused::OP_FLAGS).with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOENT]);

/// `IORING_OP_LINKAT`.
pub const LINKAT: Row = op(
    op!(IORING_OP_LINKAT),
    |cx| {
        let may_be_empty = cx.sqe.op_flags & AT_EMPTY_PATH != 0;
        prep_two(cx, may_be_empty)
    },
    |work| at_two(work, nr::__NR_linkat),
    &two_arguments(names::LINK_FLAGS),
)
.stores(Effect::Link)
.unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOENT]);

/// Checks that the directory is no registered file.
fn check(cx: &Attempt<'_>) -> Result<(), Errno> {
    if cx.flags.has(Flags::FIXED_FILE) { Err(Errno::EBADF) } else { Ok(()) }
}

fn prep_one(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    check(cx)?;
    let path = cx.read_path(cx.sqe.addr, false)?;
    cx.keep(OpData::Path(path));
    Ok(())
}

fn prep_two(cx: &mut Attempt<'_>, may_be_empty: bool) -> Result<(), Errno> {
    check(cx)?;
    let sqe = cx.sqe;
    let first = cx.read_path(sqe.addr, may_be_empty)?;
    let second = cx.read_path(sqe.off, false)?;
    cx.keep(OpData::TwoPaths(first, second));
    Ok(())
}

fn prep_unlinkat(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    check(cx)?;
    if cx.sqe.op_flags & !AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    prep_one(cx)
}

fn prep_statx(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    check(cx)?;
    let may_be_empty = cx.sqe.op_flags & AT_EMPTY_PATH != 0;
    let path = cx.read_path(cx.sqe.addr, may_be_empty)?;
    user::announce(cx.sqe.off);
    cx.keep(OpData::Path(path));
    Ok(())
}

/// Leaves the attempt to another thread than the submitter if a file system may take very long to answer.
fn issue(cx: &mut Attempt<'_>) -> Outcome {
    if mounts::are_any_far() { issue_beside_far(cx) } else { Outcome::Block }
}

#[cold]
fn issue_beside_far(cx: &Attempt<'_>) -> Outcome {
    let request = cx.request();
    let (first, second) = (request.sqe.fd, request.sqe.len as i32);
    match &request.data {
        OpData::Path(path) => issue_at(&[(first, path)]),
        OpData::TwoPaths(old, new) => issue_at(&[(first, old), (second, new)]),
        _ => Outcome::Block,
    }
}

/// Does the same as [`issue`] for a symbolic link, whose first path is not looked up.
fn issue_symlinkat(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    match &request.data {
        OpData::TwoPaths(_, path) => issue_at(&[(request.sqe.fd, path)]),
        _ => Outcome::Block,
    }
}

/// Returns the outcome of an attempt on paths, each relative to its directory.
pub fn issue_at(paths: &[(Fd, &Path)]) -> Outcome {
    if paths.iter().any(|&(directory, path)| mounts::may_be_far(directory, path.bytes())) {
        Outcome::BlockForLong
    } else {
        Outcome::Block
    }
}

fn path(work: &Work) -> Result<usize, Errno> {
    match &work.data {
        OpData::Path(path) => Ok(path.address()),
        _ => Err(Errno::EINVAL),
    }
}

fn two_paths(work: &Work) -> Result<[usize; 2], Errno> {
    match &work.data {
        OpData::TwoPaths(first, second) => Ok([first.address(), second.address()]),
        _ => Err(Errno::EINVAL),
    }
}

fn statx(work: &mut Work) -> Result<usize, Errno> {
    const KNOWN: u32 =
        AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC;
    let path = path(work)?;
    let sqe = &work.sqe;
    if sqe.op_flags & !KNOWN != 0 {
        // With an empty path, the system call does not check unknown flags.
        return Err(Errno::EINVAL);
    }
    let arguments = [sqe.fd as usize, path, sqe.op_flags as usize, sqe.len as usize, sqe.off as usize, 0];
    // SAFETY: reads a path of the engine's, and writes to the program's memory.
    unsafe { work.call(nr::__NR_statx, arguments) }
}

/// Calls `call(directory, path, argument)`.
fn at_one(work: &Work, number: u32, argument: u32) -> Result<usize, Errno> {
    let arguments = [work.sqe.fd as usize, path(work)?, argument as usize, 0, 0, 0];
    // SAFETY: reads a path of the engine's.
    unsafe { work.call(number, arguments) }
}

/// Calls `call(old directory, old path, new directory, new path, flags)`.
fn at_two(work: &Work, number: u32) -> Result<usize, Errno> {
    let [old, new] = two_paths(work)?;
    let sqe = &work.sqe;
    let arguments = [sqe.fd as usize, old, sqe.len as i32 as usize, new, sqe.op_flags as usize, 0];
    // SAFETY: reads two paths of the engine's.
    unsafe { work.call(number, arguments) }
}

fn symlinkat(work: &mut Work) -> Result<usize, Errno> {
    let [target, path] = two_paths(work)?;
    // SAFETY: reads two paths of the engine's.
    unsafe { work.call(nr::__NR_symlinkat, [target, work.sqe.fd as usize, path, 0, 0, 0]) }
}
