//! SPLICE and TEE. Both ends may have to be waited for, so a thread of their own does them, as in the kernel.

use anyring_chaos_plan::journal::Effect;
use linux_raw_sys::general::{
    F_GETFL, O_ACCMODE, O_RDONLY, O_WRONLY, SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE, SPLICE_F_NONBLOCK,
};
use linux_raw_sys::io_uring::SPLICE_F_FD_IN_FIXED;

use crate::abi::{Errno, names};
use crate::observe::chaos;
use crate::os::{self, Fd, OwnedFd, nr};
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, arg};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};
use crate::work::Work;

const FLAGS: u32 = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT | SPLICE_F_FD_IN_FIXED;
/// The offset that means "no offset".
const NONE: u64 = u64::MAX;

/// `IORING_OP_SPLICE`.
pub const SPLICE: Row = Row::new(op!(IORING_OP_SPLICE), Caps::FILE, prep, issue)
    .block(splice)
    .finish(finish)
    .faults(chaos::SPLICES)
    .stores(Effect::Write)
    .arguments(&[
        arg(Field::FileIndex, "fd_in", Kind::SecondFile(SPLICE_F_FD_IN_FIXED)),
        arg(Field::Address, "off_in", Kind::Offset),
        arg(Field::Fd, "fd_out", Kind::File),
        arg(Field::Offset, "off_out", Kind::Offset),
        arg(Field::Length, "nbytes", Kind::Number),
        arg(Field::OpFlags, "splice_flags", Kind::Flags(names::SPLICE_FLAGS)),
    ])
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_TEE`.
pub const TEE: Row = Row::new(op!(IORING_OP_TEE), Caps::FILE, prep, issue)
    .block(tee)
    .finish(finish)
    .faults(chaos::SPLICES)
    .arguments(&[
        arg(Field::FileIndex, "fd_in", Kind::SecondFile(SPLICE_F_FD_IN_FIXED)),
        arg(Field::Fd, "fd_out", Kind::File),
        arg(Field::Length, "nbytes", Kind::Number),
        arg(Field::OpFlags, "splice_flags", Kind::Flags(names::SPLICE_FLAGS)),
    ])
    .of_its_ring()
    .unused(Unused::OFF.with(Unused::ADDR))
    .errors(&[Errno::EINVAL, Errno::EBADF]);

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    if cx.sqe.op_flags & !FLAGS != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    input(cx).map_or_else(Outcome::from, |fd| {
        cx.data = OpData::Input(fd);
        Outcome::BlockForLong
    })
}

/// Duplicates the input file, which the program may close or unregister meanwhile.
fn input(cx: &mut Attempt<'_>) -> Result<OwnedFd, Errno> {
    let sqe = cx.sqe;
    let named = sqe.file_index;
    let fd = if sqe.op_flags & SPLICE_F_FD_IN_FIXED != 0 {
        cx.ring.files_mut().get(named).ok_or(Errno::EBADF)?
    } else {
        named as i32
    };
    if !os::is_open(fd) {
        return Err(Errno::EBADF);
    }
    os::duplicate(fd).map(OwnedFd::new)
}

fn splice(work: &mut Work) -> Result<usize, Errno> {
    let OpData::Input(input) = &work.data else { return Err(Errno::EINVAL) };
    let sqe = &work.sqe;
    if sqe.len == 0 {
        return if os::is_open(work.fd) { Ok(0) } else { Err(Errno::EBADF) };
    }
    let (mut from, mut to) = (sqe.addr, sqe.off);
    let from = if from == NONE { 0 } else { &raw mut from as usize };
    let to = if to == NONE { 0 } else { &raw mut to as usize };
    let flags = sqe.op_flags & !SPLICE_F_FD_IN_FIXED;
    let arguments = [input.fd() as usize, from, work.fd as usize, to, sqe.len as usize, flags as usize];
    // SAFETY: reads and writes two offsets of the engine's.
    let result = unsafe { work.call(nr::__NR_splice, arguments) };
    if result == Err(Errno::ESPIPE) { check_modes(input.fd(), work.fd) } else { result }
}

/// Returns the error for `ESPIPE`: the kernel's rings check the open modes of the files before their types.
fn check_modes(input: Fd, output: Fd) -> Result<usize, Errno> {
    let mode = |fd| os::fcntl(fd, F_GETFL, 0).map(|flags| flags as u32 & O_ACCMODE);
    let open = mode(input)? != O_WRONLY && mode(output)? != O_RDONLY;
    Err(if open { Errno::ESPIPE } else { Errno::EBADF })
}

fn tee(work: &mut Work) -> Result<usize, Errno> {
    let OpData::Input(input) = &work.data else { return Err(Errno::EINVAL) };
    let sqe = &work.sqe;
    if sqe.len == 0 {
        return if os::is_open(work.fd) { Ok(0) } else { Err(Errno::EBADF) };
    }
    let flags = sqe.op_flags & !SPLICE_F_FD_IN_FIXED;
    let arguments = [input.fd() as usize, work.fd as usize, sqe.len as usize, flags as usize, 0, 0];
    // SAFETY: touches no memory.
    unsafe { work.call(nr::__NR_tee, arguments) }
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    cx.data = OpData::None;
    if result != Ok(cx.sqe.len as usize) {
        cx.fail();
    }
    result.into()
}
