//! Operations on an open file other than reading and writing.

use anyring_chaos_plan::journal::Effect;
use linux_raw_sys::general::{POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL};
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use crate::abi::{Errno, Sqe, names};
use crate::observe::chaos;
use crate::os::{self, Fd, nr};
use crate::request::Flags;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, Named, op};
use crate::request::shown::{self, Argument, Kind, When, arg};
use crate::ring::Attempt;
use crate::ring::row::{Block, Outcome, Prep, Row, issue_blocks, prep_nothing};
use crate::work::{Work, pool};

const fn op(named: Named, caps: Caps, prep: Prep, block: Block, arguments: &'static [Argument]) -> Row {
    Row::new(named, caps, prep, issue_blocks).block(block).arguments(arguments)
}

/// Leaves the FSYNC to threads of the kernel, unless the program has limited workers: no such limit counts those threads.
fn issue_fsync(cx: &mut Attempt<'_>) -> Outcome {
    if !pool::is_limited() {
        cx.flags.set(Flags::DIRECT);
    }
    Outcome::Block
}

/// `IORING_OP_FSYNC`. The whole file is written, because no system call writes a part of a file together with
/// the metadata that is needed to find it.
pub const FSYNC: Row = op(
    op!(IORING_OP_FSYNC),
    Caps::FILE.with(Caps::SLOW).with(Caps::SPARES_LINKS),
    prep_fsync,
    fsync,
    &[
        shown::FD,
        arg(Field::OpFlags, "fsync_flags", Kind::Flags(names::FSYNC_FLAGS)),
        arg(Field::Offset, "offset", Kind::Number).unless_zero(),
        arg(Field::Length, "len", Kind::Number).unless_zero(),
    ],
)
.issue(issue_fsync)
.stores(Effect::Sync)
.faults(chaos::STORAGE)
.unused(Unused::ADDR.with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_SYNC_FILE_RANGE`.
pub const SYNC_FILE_RANGE: Row = op(
    op!(IORING_OP_SYNC_FILE_RANGE),
    Caps::FILE.with(Caps::SLOW).with(Caps::SPARES_LINKS),
    prep_nothing,
    sync_file_range,
    &[
        shown::FD,
        arg(Field::Offset, "offset", Kind::Number),
        arg(Field::Length, "nbytes", Kind::Number),
        arg(Field::OpFlags, "flags", Kind::Flags(names::SYNC_FILE_RANGE_FLAGS)),
    ],
)
.unused(Unused::ADDR.with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_FALLOCATE`.
pub const FALLOCATE: Row = op(
    op!(IORING_OP_FALLOCATE),
    Caps::FILE.with(Caps::HASHED).with(Caps::SPARES_LINKS),
    prep_nothing,
    fallocate,
    &[
        shown::FD,
        arg(Field::Length, "mode", Kind::Flags(names::FALLOCATE_MODES)),
        arg(Field::Offset, "offset", Kind::Signed),
        arg(Field::Address, "len", Kind::Signed),
    ],
)
.stores(Effect::Allocate)
.faults(chaos::STORAGE)
.unused(Unused::OP_FLAGS.with(Unused::BUF_INDEX).with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_FTRUNCATE`.
pub const FTRUNCATE: Row = op(
    op!(IORING_OP_FTRUNCATE),
    Caps::FILE.with(Caps::HASHED).with(Caps::SPARES_LINKS),
    prep_nothing,
    ftruncate,
    &[shown::FD, arg(Field::Offset, "length", Kind::Signed)],
)
.stores(Effect::Resize)
.unused(
    Unused::ADDR
        .with(Unused::LEN)
        .with(Unused::OP_FLAGS)
        .with(Unused::BUF_INDEX)
        .with(Unused::FILE_INDEX)
        .with(Unused::ADDR3),
)
.errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_FADVISE`.
pub const FADVISE: Row = Row::new(op!(IORING_OP_FADVISE), Caps::FILE, prep_nothing, issue_fadvise)
    .block(|work| fadvise(work.fd, &work.sqe))
    .arguments(&[
        shown::FD,
        arg(Field::Offset, "offset", Kind::Signed),
        arg(Field::Address, "len", Kind::Signed).unless_zero(),
        arg(Field::Length, "len", Kind::Number).when(&[When::Is(Field::Address, 0)]),
        arg(Field::OpFlags, "advice", Kind::Choice(names::FILE_ADVICE)),
    ])
    .unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_MADVISE`.
pub const MADVISE: Row = op(
    op!(IORING_OP_MADVISE),
    Caps::SPARES_LINKS,
    prep_nothing,
    madvise,
    &[
        arg(Field::Address, "addr", Kind::Address),
        arg(Field::Offset, "length", Kind::Number).unless_zero(),
        arg(Field::Length, "length", Kind::Number).when(&[When::Is(Field::Offset, 0)]),
        arg(Field::OpFlags, "advice", Kind::Choice(names::MEMORY_ADVICE)),
    ],
)
.unused(Unused::BUF_INDEX.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL]);

fn prep_fsync(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    let bad = sqe.op_flags & !IORING_FSYNC_DATASYNC != 0 || (sqe.off as i64) < 0;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn fsync(work: &mut Work) -> Result<usize, Errno> {
    let data_only = work.sqe.op_flags & IORING_FSYNC_DATASYNC != 0;
    let number = if data_only { nr::__NR_fdatasync } else { nr::__NR_fsync };
    // SAFETY: touches no memory.
    unsafe { os::call(number, [work.fd as usize, 0, 0, 0, 0, 0]) }
}

fn sync_file_range(work: &mut Work) -> Result<usize, Errno> {
    let sqe = &work.sqe;
    let arguments = [work.fd as usize, sqe.off as usize, sqe.len as usize, sqe.op_flags as usize, 0, 0];
    // SAFETY: touches no memory.
    unsafe { os::call(nr::__NR_sync_file_range, arguments) }
}

/// Makes the system call. The kernel leaves FALLOCATE and FTRUNCATE to its worker threads, which get no SIGXFSZ.
fn fallocate(work: &mut Work) -> Result<usize, Errno> {
    let sqe = &work.sqe;
    let arguments = [work.fd as usize, sqe.len as usize, sqe.off as usize, sqe.addr as usize, 0, 0];
    // SAFETY: touches no memory.
    os::without_size_signal(|| unsafe { os::call(nr::__NR_fallocate, arguments) })
}

fn ftruncate(work: &mut Work) -> Result<usize, Errno> {
    let arguments = [work.fd as usize, work.sqe.off as usize, 0, 0, 0, 0];
    // SAFETY: touches no memory.
    match os::without_size_signal(|| unsafe { os::call(nr::__NR_ftruncate, arguments) }) {
        // The system call checks the length first.
        Err(Errno::EINVAL) if !os::is_open(work.fd) => Err(Errno::EBADF),
        result => result,
    }
}

/// Returns a 64-bit length or, if that is zero, a 32-bit one from another field of the SQE.
fn long_length(long: u64, short: u32) -> usize {
    if long == 0 { short as usize } else { long as usize }
}

/// Sets advice on future accesses directly, because it only changes a flag of the file, and does not block.
fn issue_fadvise(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    if matches!(request.sqe.op_flags, POSIX_FADV_NORMAL | POSIX_FADV_RANDOM | POSIX_FADV_SEQUENTIAL) {
        fadvise(request.file.fd(), &request.sqe).into()
    } else {
        Outcome::Block
    }
}

fn fadvise(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let length = long_length(sqe.addr, sqe.len);
    // SAFETY: touches no memory.
    unsafe {
        os::call(nr::__NR_fadvise64, [fd as usize, sqe.off as usize, length, sqe.op_flags as usize, 0, 0])
    }
}

fn madvise(work: &mut Work) -> Result<usize, Errno> {
    let sqe = &work.sqe;
    let length = long_length(sqe.off, sqe.len);
    // SAFETY: the program asks for this for its own memory, as it could by the system call.
    unsafe { os::call(nr::__NR_madvise, [sqe.addr as usize, length, sqe.op_flags as usize, 0, 0, 0]) }
}
