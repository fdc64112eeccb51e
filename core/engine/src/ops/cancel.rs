//! ASYNC_CANCEL.

use linux_raw_sys::io_uring::{
    IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD, IORING_ASYNC_CANCEL_FD_FIXED, IORING_ASYNC_CANCEL_OP,
    IORING_ASYNC_CANCEL_USERDATA,
};

use crate::abi::{Errno, names};
use crate::observe::chaos;
use crate::os;
use crate::request::cancel::{self, Wanted};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, When, arg, asks};
use crate::request::{Flags, RequestId, version};
use crate::ring::row::{Expiry, Outcome, Row, issue_controls};
use crate::ring::shared::{Question, look_for_answers};
use crate::ring::{Attempt, Core};

/// Flags of cancellations that ignore user data, unless they ask to match it.
const BY_OTHER: u64 = (IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_OP) as u64;

const CAPS: Caps = Caps::CANCELS.with(Caps::HIDDEN);

/// `IORING_OP_ASYNC_CANCEL`.
pub const ASYNC_CANCEL: Row = Row::new(op!(IORING_OP_ASYNC_CANCEL), CAPS, prep, issue_controls)
    .control(issue)
    .expire(Expiry::Control(look_for_answers))
    .faults(chaos::CANCELS)
    .arguments(&[
        arg(Field::Address, "user_data", Kind::UserData).when(&[When::None(Field::OpFlags, BY_OTHER)]),
        arg(Field::Address, "user_data", Kind::UserData)
            .when(&[When::Some(Field::OpFlags, BY_OTHER), asks(IORING_ASYNC_CANCEL_USERDATA)]),
        arg(Field::Fd, "fd", Kind::SecondFile(IORING_ASYNC_CANCEL_FD_FIXED))
            .when(&[asks(IORING_ASYNC_CANCEL_FD)]),
        arg(Field::Length, "op", Kind::Operation).when(&[asks(IORING_ASYNC_CANCEL_OP)]),
        arg(Field::OpFlags, "cancel_flags", Kind::Flags(names::CANCEL_FLAGS)),
    ])
    .of_its_ring()
    .unused(Unused::OFF.with(Unused::FILE_INDEX))
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENOENT]);

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    cancel::check_flags(sqe.op_flags)?;
    if sqe.op_flags & IORING_ASYNC_CANCEL_OP != 0 && version::current() >= version::CANCELS_KNOWN_OPERATIONS {
        let code = u8::try_from(sqe.len).map_err(|_| Errno::EINVAL)?;
        if cx.ring.operation(code).is_unknown() {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

fn issue(core: &mut Core, id: RequestId) -> Outcome {
    let sqe = core[id].sqe;
    let by_file = sqe.op_flags & IORING_ASYNC_CANCEL_FD != 0;
    let question = Question { flags: sqe.op_flags, user_data: sqe.addr, opcode: sqe.len as u8 };
    let mut wanted = Wanted::new(question);
    if by_file {
        if sqe.op_flags & IORING_ASYNC_CANCEL_FD_FIXED != 0 {
            core[id].flags.set(Flags::FIXED_FILE);
        }
        wanted = match core.attempt(id).file() {
            Ok(fd) if os::is_open(fd) => wanted.of_file(fd),
            _ => return Errno::EBADF.into(),
        };
    }
    let found = core.cancel(&wanted);
    // Other processes cannot tell which file a number refers to here.
    let may_ask = (found.is_err() || cancel::is_plural(sqe.op_flags)) && !by_file;
    if may_ask && core.ask_others(id, question, found) {
        return Outcome::Armed;
    }
    found.into()
}
