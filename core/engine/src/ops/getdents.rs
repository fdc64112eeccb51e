//! GETDENTS, which no kernel has: `getdents64(2)` as a request, at an offset as in a positioned read.

use crate::abi::Errno;
use crate::assets::mounts;
use crate::os::{self, Fd};
use crate::request::data::OpData;
use crate::request::field::{FIRST_PRIVATE, Field, Unused};
use crate::request::op::Caps;
use crate::request::shown::{self, Kind, arg};
use crate::request::{FileHold, POSITION};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row, prep_address};
use crate::work::Work;

/// `ANYRING_OP_GETDENTS`.
pub const CODE: u8 = FIRST_PRIVATE;

/// The row of GETDENTS. With offset -1 it uses and advances the descriptor's position; otherwise the position does not change.
pub const GETDENTS: Row =
    Row::numbered(CODE, "GETDENTS", Caps::FILE.with(Caps::POSITION), prep_address, issue)
        .block(block)
        .finish(finish)
        .arguments(&[
            shown::FD,
            arg(Field::Address, "dirp", Kind::Filled),
            arg(Field::Length, "count", Kind::Number),
            arg(Field::Offset, "offset", Kind::Offset),
        ])
        .unused(
            Unused::OP_FLAGS
                .with(Unused::BUF_INDEX)
                .with(Unused::FILE_INDEX)
                .with(Unused::ADDR3)
                .with(Unused::PAD),
        )
        .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENOTDIR]);

/// Returns the number by which the directory is known from one request to the next.
fn named(cx: &Attempt<'_>) -> Fd {
    match cx.file {
        FileHold::Fixed(_, fd) => fd,
        _ => cx.sqe.fd,
    }
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let offset = cx.sqe.off;
    if offset != POSITION {
        let number = named(cx);
        let description = cx.ring.directories_mut().take(number, offset);
        cx.data = OpData::Directory(description);
    }
    if mounts::is_far(cx.file.fd()) { Outcome::BlockForLong } else { Outcome::Block }
}

fn block(work: &mut Work) -> Result<usize, Errno> {
    let sqe = &work.sqe;
    match &mut work.data {
        OpData::Directory(description) => description.read(work.fd, sqe.off, sqe.addr, sqe.len),
        _ => os::getdents(work.fd, sqe.addr, sqe.len),
    }
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    let data = core::mem::take(&mut cx.data);
    if let OpData::Directory(description) = data {
        let number = named(cx);
        cx.ring.keep_directory(number, description);
    }
    result.into()
}
