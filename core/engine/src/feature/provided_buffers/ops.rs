//! PROVIDE_BUFFERS and REMOVE_BUFFERS: lists of buffers that operations select from.

use crate::abi::{Errno, Sqe};
use crate::feature::provided_buffers::Provision;
use crate::os::user;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{Kind, arg};
use crate::request::version;
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};

/// Buffer numbers have 16 bits.
const MOST: u32 = 1 << 16;

/// `IORING_OP_PROVIDE_BUFFERS`.
pub const PROVIDE_BUFFERS: Row =
    Row::new(op!(IORING_OP_PROVIDE_BUFFERS), Caps::IOPOLL, prep_provide, issue_provide)
        .arguments(&[
            arg(Field::Address, "addr", Kind::Address),
            arg(Field::Length, "len", Kind::Number),
            arg(Field::Fd, "nr", Kind::Number),
            arg(Field::BufferIndex, "bgid", Kind::Group),
            arg(Field::Offset, "bid", Kind::Number),
        ])
        .of_its_ring()
        .unused(Unused::OP_FLAGS.with(Unused::FILE_INDEX))
        .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::E2BIG, Errno::EOVERFLOW]);

/// `IORING_OP_REMOVE_BUFFERS`.
pub const REMOVE_BUFFERS: Row =
    Row::new(op!(IORING_OP_REMOVE_BUFFERS), Caps::IOPOLL, prep_remove, issue_remove)
        .arguments(&[arg(Field::Fd, "nr", Kind::Number), arg(Field::BufferIndex, "bgid", Kind::Group)])
        .of_its_ring()
        .unused(
            Unused::ADDR.with(Unused::LEN).with(Unused::OFF).with(Unused::OP_FLAGS).with(Unused::FILE_INDEX),
        )
        .errors(&[Errno::EINVAL, Errno::ENOENT]);

fn prep_provide(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    let count = sqe.fd as u32;
    if count == 0 || count > MOST {
        return Err(Errno::E2BIG);
    }
    if sqe.len == 0 {
        return Err(Errno::EINVAL);
    }
    let length = u64::from(count) * u64::from(sqe.len);
    sqe.addr.checked_add(length).ok_or(Errno::EOVERFLOW)?;
    user::check_range(sqe.addr, length)?;
    if sqe.off > u64::from(u16::MAX) {
        return Err(Errno::E2BIG);
    }
    if sqe.off as u32 + count > MOST {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn provision(sqe: &Sqe) -> Provision {
    Provision {
        group: sqe.buf_index,
        address: sqe.addr,
        length: sqe.len,
        first: sqe.off as u16,
        count: sqe.fd as u32,
        most: MOST as usize - usize::from(version::current() < version::WHOLE_LISTS),
    }
}

fn issue_provide(cx: &mut Attempt<'_>) -> Outcome {
    let provision = provision(&cx.sqe);
    cx.ring.groups_mut().provide(&provision).map(|()| 0).into()
}

fn prep_remove(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let count = cx.sqe.fd as u32;
    if count == 0 || count > MOST { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue_remove(cx: &mut Attempt<'_>) -> Outcome {
    let (group, count) = (cx.sqe.buf_index, cx.sqe.fd as u32);
    cx.ring.groups_mut().remove(group, count).into()
}
