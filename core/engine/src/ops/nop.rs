//! NOP: completes immediately, with a result from the SQE if it contains one.

use linux_raw_sys::io_uring::{
    IORING_NOP_FILE, IORING_NOP_FIXED_BUFFER, IORING_NOP_FIXED_FILE, IORING_NOP_INJECT_RESULT, IORING_NOP_TW,
    IORING_SETUP_CQE32,
};

use crate::abi::{
    Errno, IORING_CQE_F_32, IORING_NOP_CQE32, IORING_OP_NOP128, IORING_SETUP_CQE_MIXED, Sqe, names,
};
use crate::os::{self, Fd};
use crate::request::Flags;
use crate::request::field::Field;
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, arg, asks};
use crate::ring::row::{Outcome, Quick, Row, Tried};
use crate::ring::{Attempt, Lent};

/// `IORING_OP_NOP`.
pub const NOP: Row = Row::new(op!(IORING_OP_NOP), Caps::IOPOLL, prep, issue)
    .arguments(&[
        arg(Field::OpFlags, "nop_flags", Kind::Flags(names::NOP_FLAGS)).unless_zero(),
        arg(Field::Length, "res", Kind::Signed).when(&[asks(IORING_NOP_INJECT_RESULT)]),
        arg(Field::Fd, "fd", Kind::SecondFile(IORING_NOP_FIXED_FILE)).when(&[asks(IORING_NOP_FILE)]),
        arg(Field::BufferIndex, "buf_index", Kind::Buffer).when(&[asks(IORING_NOP_FIXED_BUFFER)]),
        arg(Field::Offset, "extra1", Kind::Hex).when(&[asks(IORING_NOP_CQE32)]),
        arg(Field::Address, "extra2", Kind::Hex).when(&[asks(IORING_NOP_CQE32)]),
    ])
    .quick(Quick { attempt: done, go_on: |cx, _, _| issue(cx), again: done, more: |_| None })
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::EFAULT]);

/// `IORING_OP_NOP128`: the second half of its SQE is ignored.
pub const NOP128: Row = Row { quick: None, ..NOP.wide(IORING_OP_NOP128, "NOP128") };

const FLAGS: u32 = IORING_NOP_INJECT_RESULT
    | IORING_NOP_FILE
    | IORING_NOP_FIXED_FILE
    | IORING_NOP_FIXED_BUFFER
    | IORING_NOP_TW
    | IORING_NOP_CQE32;

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let big = cx.ring.is(IORING_SETUP_CQE_MIXED) || cx.ring.is(IORING_SETUP_CQE32);
    let request = cx.request_mut();
    if request.sqe.op_flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if request.sqe.op_flags & IORING_NOP_CQE32 != 0 && !big {
        return Err(Errno::EINVAL);
    }
    if request.sqe.op_flags & IORING_NOP_FIXED_FILE != 0 {
        request.flags.set(Flags::FIXED_FILE);
    }
    Ok(())
}

/// Completes a NOP without a request, if it has no flags.
fn done(_: &mut Lent, sqe: &Sqe, _fd: Fd) -> Tried {
    if (sqe.ioprio, sqe.op_flags) == (0, 0) { Tried::Done(0, 0) } else { Tried::Nothing }
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = &cx.sqe;
    if sqe.op_flags == 0 {
        return Outcome::Complete(0);
    }
    let sqe = *sqe;
    if sqe.op_flags & IORING_NOP_CQE32 != 0 {
        // Not before: a NOP that its chain cancels has an ordinary CQE.
        let mixed = if cx.ring.is(IORING_SETUP_CQE_MIXED) { IORING_CQE_F_32 } else { 0 };
        let request = cx.request_mut();
        (request.cqe_flags, request.big_cqe) = (mixed, [sqe.off, sqe.addr]);
    }
    if sqe.op_flags & IORING_NOP_FILE != 0 && !cx.file().is_ok_and(os::is_open) {
        return Errno::EBADF.into();
    }
    if sqe.op_flags & IORING_NOP_FIXED_BUFFER != 0 && cx.ring.buffers().node(sqe.buf_index).is_err() {
        return Errno::EFAULT.into();
    }
    let injected = if sqe.op_flags & IORING_NOP_INJECT_RESULT != 0 { sqe.len as i32 } else { 0 };
    Outcome::Complete(injected)
}
