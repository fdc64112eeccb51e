//! READ_MULTISHOT: reads into provided buffers whenever data arrives.

use alloc::boxed::Box;

use linux_raw_sys::general::{EPOLLIN, RWF_NOWAIT};

use crate::abi::{Errno, names};
use crate::assets::kinds;
use crate::feature::provided_buffers::Span;
use crate::observe::chaos;
use crate::ops::rw;
use crate::os::user::IoVector;
use crate::os::{self, Fd};
use crate::process::nonblocking;
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, When, arg};
use crate::request::{Flags, POSITION};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};
use crate::work::Work;

/// `IORING_OP_READ_MULTISHOT`.
pub const READ_MULTISHOT: Row =
    Row::new(op!(IORING_OP_READ_MULTISHOT), Caps::FILE.with(Caps::BUFFER_SELECT), prep, issue)
        .arguments(&[
            shown::FD,
            shown::GROUP,
            arg(Field::Offset, "offset", Kind::Offset),
            arg(Field::OpFlags, "rw_flags", Kind::Flags(names::RW_FLAGS)).unless_zero(),
            arg(Field::Address3, "attr_ptr", Kind::Address).when(&[When::Not(Field::Attributes, 0)]),
            arg(Field::Attributes, "attr_type_mask", Kind::Flags(names::RW_ATTRIBUTES)).unless_zero(),
        ])
        .block(block)
        .finish(finish)
        .faults(chaos::READ_SHOTS)
        .unused(Unused::ADDR.with(Unused::LEN))
        .errors(&[Errno::EINVAL, Errno::EBADF, Errno::EBADFD, Errno::ENOBUFS]);

/// The number of CQEs that a request posts before other requests have their turn.
const MOST_ROUNDS: u32 = 32;

/// The step after one read.
enum Next {
    Read,
    Outcome(Outcome),
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &request.sqe;
    if !request.flags.has(Flags::BUFFER_SELECT) {
        return Err(Errno::EINVAL);
    }
    rw::check_attributes(sqe)?;
    if sqe.op_flags & RWF_NOWAIT != 0 {
        request.flags.set(Flags::NOWAIT);
    }
    request.flags.set(Flags::MULTISHOT);
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    // Only files that can be polled are supported: others would always be ready.
    match cx.ring.watch(fd) {
        Ok(_) => {}
        Err(Errno::EPERM) => return Errno::EBADFD.into(),
        Err(errno) => return errno.into(),
    }
    let group = cx.sqe.buf_index;
    for round in 0..MOST_ROUNDS {
        // A missing buffer matters only if there is more data to read.
        if round > 0 && cx.ring.groups_mut().expect(group).is_err() && os::poll_now(fd, EPOLLIN) == Ok(0) {
            return Outcome::Wait(EPOLLIN);
        }
        if let Next::Outcome(outcome) = read_once(cx, fd) {
            return outcome;
        }
    }
    Outcome::Again
}

fn read_once(cx: &mut Attempt<'_>, fd: Fd) -> Next {
    let span = match held_buffer(cx).map_or_else(|| cx.select_buffer(0), Ok) {
        Ok(span) => span,
        Err(errno) => return Next::Outcome(errno.into()),
    };
    let (offset, flags) = (cx.sqe.off, cx.sqe.op_flags);
    if offset > rw::LAST_SAFE_OFFSET
        && offset != POSITION
        && let Err(errno) = rw::check_end(fd, offset, span.length, rw::Direction::Read)
    {
        return conclude(cx, Err(errno));
    }
    let mut result = read(fd, span, offset, flags | RWF_NOWAIT);
    if result == Err(Errno::EOPNOTSUPP) {
        if nonblocking::is_wanted(fd) {
            result = read(fd, span, offset, flags);
        } else if os::poll_now(fd, EPOLLIN).is_ok_and(|events| events == 0) {
            result = Err(Errno::EAGAIN);
        } else {
            // The file is ready, but the read blocks if another reader comes first: a worker does it, so that nothing else waits.
            cx.lend_buffer();
            let vector = IoVector { base: span.address, length: span.length as u64 };
            cx.data = OpData::Vectors(Box::new([vector]));
            return Next::Outcome(Outcome::BlockForLong);
        }
    }
    conclude(cx, result)
}

/// Returns the buffer that an attempt without the lock did not use, and that could not be put back.
fn held_buffer(cx: &mut Attempt<'_>) -> Option<Span> {
    let held = cx.holds_buffer();
    let OpData::Vectors(vectors) = &cx.data else { return None };
    let vector = vectors.first().filter(|_| held)?;
    Some(Span { address: vector.base, length: vector.length as usize })
}

/// Reads, and ignores the offset of a file without positions, if the kernel does.
fn read(fd: Fd, span: Span, offset: u64, flags: u32) -> Result<usize, Errno> {
    let vector = IoVector { base: span.address, length: span.length as u64 };
    match read_vector(fd, &vector, offset, flags) {
        Err(Errno::ESPIPE) if rw::ignores_offset(fd, offset) => read_vector(fd, &vector, u64::MAX, flags),
        other => other,
    }
}

fn read_vector(fd: Fd, vector: &IoVector, offset: u64, flags: u32) -> Result<usize, Errno> {
    // SAFETY: the program provided this memory to be written.
    unsafe { os::transfer(false, fd, core::slice::from_ref(vector), offset, flags) }
}

/// Handles the result of one read: posts a CQE and reads again, waits, or completes.
fn conclude(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Next {
    let count = match result {
        Ok(count) if count > 0 => count,
        Err(Errno::EAGAIN) => {
            cx.return_buffer();
            return Next::Outcome(Outcome::Wait(EPOLLIN));
        }
        other => {
            cx.return_buffer();
            return Next::Outcome(other.into());
        }
    };
    advance(cx, count);
    let flags = cx.use_buffers(count, 1);
    if cx.post_more(count as i32, flags) {
        return Next::Read;
    }
    cx.cqe_flags |= flags;
    Next::Outcome(Outcome::Complete(count as i32))
}

/// Advances the offset on a file that has an end, for example one in /proc that can be polled.
fn advance(cx: &mut Attempt<'_>, count: usize) {
    let request = cx.request();
    if request.sqe.off != POSITION
        && kinds::typed_kind(request.file.fd()).is_ok_and(|kind| kind.has(kinds::Kind::STORAGE))
    {
        cx.sqe.off += count as u64;
    }
}

fn block(work: &mut Work) -> Result<usize, Errno> {
    let OpData::Vectors(vectors) = &work.data else { return Err(Errno::EINVAL) };
    let Some(&vector) = vectors.first() else { return Err(Errno::EINVAL) };
    read(
        work.fd,
        Span { address: vector.base, length: vector.length as usize },
        work.sqe.off,
        work.sqe.op_flags,
    )
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    match conclude(cx, result) {
        Next::Outcome(outcome) => outcome,
        Next::Read if cx.flags.has(Flags::CANCELED) => Errno::ECANCELED.into(),
        Next::Read => issue(cx),
    }
}
