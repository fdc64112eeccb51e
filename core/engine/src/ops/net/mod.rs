//! Operations on sockets.
//!
//! Every transfer is tried with `MSG_DONTWAIT`; where that would block, the request waits for
//! readiness and is tried again. What the kernel copies at submission (message headers, vectors,
//! addresses to send to) is copied when the request is prepared.
//!
//! Two system calls know no `MSG_DONTWAIT`: `connect` and `accept` are made with `O_NONBLOCK` set for their duration
//! (`process/nonblocking.rs`).

pub mod accept;
pub(crate) mod calls;
pub mod command;
pub mod connect;
pub mod recv;
pub mod recvmsg;
pub mod rights;
pub mod send;
pub mod socket;
mod timestamp;
pub mod train;

use linux_raw_sys::general::EPOLLIN;
use linux_raw_sys::io_uring::{
    IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF, IORING_RECVSEND_POLL_FIRST,
};
use linux_raw_sys::net::{MSG_DONTWAIT, SO_TYPE, SOCK_SEQPACKET, SOCK_STREAM};

use crate::abi::Errno;
use crate::os::user::IoVector;
use crate::os::{self, Fd};
use crate::request::data::OpData;
use crate::request::data::message::Progress;
use crate::request::data::net::Data;
use crate::request::field::Field;
use crate::request::shown::When;
use crate::request::{Flags, Request};
use crate::ring::Attempt;
use crate::ring::row::Outcome;

/// Messages have a length that no operation looks at: programs write 1 there, or nothing.
pub(crate) const UNUSUAL_LENGTH: &[When] = &[When::Given, When::Not(Field::Length, 1)];

/// Bytes that were transferred before a request failed are what its CQE reports.
pub(crate) fn failed(request: &Request, result: i32) -> i32 {
    let done = match &request.data {
        OpData::Net(Data::Transfer(transfer)) => transfer.progress.done,
        OpData::Net(Data::Message(message)) => message.progress.done,
        _ => 0,
    };
    if done > 0 { done as i32 } else { result }
}

/// The end of an attempt that failed: what was done before comes first.
fn ended(cx: &mut Attempt<'_>, errno: Errno) -> Outcome {
    cx.fail();
    Outcome::Complete(failed(cx.request(), errno.negated()))
}

/// `MSG_*` as system calls take them.
pub(crate) fn known_flags(flags: u32) -> u32 {
    // For programs of 32 bits; the system calls refuse it.
    const MSG_CMSG_COMPAT: u32 = 1 << 31;
    flags & !MSG_CMSG_COMPAT
}

/// Marks a request by its `MSG_*` flags and returns what its progress begins with.
pub(crate) fn start(request: &mut Request, extra: u32) -> Progress {
    let flags = known_flags(request.sqe.op_flags) | extra;
    if flags & MSG_DONTWAIT != 0 {
        request.flags.set(Flags::NOWAIT);
    }
    Progress { flags, ..Progress::default() }
}

/// True if the request wants to wait for readiness before the first attempt, and that is still ahead of it. A
/// descriptor that is known to be ready need not be waited for, and one that turns out to be goes on before
/// the call returns.
pub(crate) fn polls_first(cx: &mut Attempt<'_>, fd: Fd, events: u32) -> bool {
    let request = cx.request();
    if u32::from(request.sqe.ioprio) & IORING_RECVSEND_POLL_FIRST == 0 || request.flags.has(Flags::WOKEN) {
        return false;
    }
    let registered = cx.ring.readiness().is_registered(fd);
    let polls = request.flags.has(Flags::NOWAIT)
        || !registered
        || !cx.ring.readiness().worth_trying(fd, events)
        // A listener refuses what it is never ready for.
        || cx.ring.readiness_mut().socket_kind(fd).listens();
    if !registered {
        cx.ring.readiness_mut().expect_report();
    }
    polls
}

/// True if there is nothing to receive, as far as is known.
pub(crate) fn is_idle(cx: &mut Attempt<'_>, fd: Fd) -> bool {
    !cx.flags.has(Flags::NOWAIT)
        && !cx.ring.readiness().worth_trying(fd, EPOLLIN)
        && cx.ring.readiness_mut().socket_kind(fd).receives()
}

/// A socket whose partial transfers are gone on with when all was asked for (`MSG_WAITALL`).
fn is_retried(fd: Fd) -> bool {
    os::socket_option(fd, SO_TYPE).is_ok_and(|kind| matches!(kind as u32, SOCK_STREAM | SOCK_SEQPACKET))
}

/// True if the request takes as many provided buffers at once as there are.
fn bundles(request: &Request) -> bool {
    u32::from(request.sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0 && request.flags.has(Flags::BUFFER_SELECT)
}

/// Notes whether a plain send or receive asks for a registered buffer. Nothing else may be asked for beside it.
///
/// # Errors
/// `EINVAL` where something is.
fn ask_registered(request: &mut Request, others: u32) -> Result<(), Errno> {
    let flags = u32::from(request.sqe.ioprio);
    if flags & IORING_RECVSEND_FIXED_BUF == 0 {
        return Ok(());
    }
    if request.flags.has(Flags::BUFFER_SELECT) || flags & others != 0 {
        return Err(Errno::EINVAL);
    }
    request.flags.set(Flags::REGISTERED_BUFFER);
    Ok(())
}

/// Checks the memory of a request that asked for a registered buffer, and keeps the buffer.
///
/// # Errors
/// `EFAULT` where the memory does not lie in it.
fn take_registered(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    if !request.flags.has(Flags::REGISTERED_BUFFER) {
        return Ok(());
    }
    let node =
        cx.ring.buffers().check(request.sqe.buf_index, request.sqe.addr, u64::from(request.sqe.len))?;
    cx.hold_buffer(node);
    cx.flags.clear(Flags::REGISTERED_BUFFER);
    Ok(())
}

/// How many of the vectors the first `used` bytes lie in.
fn covering(vectors: &[IoVector], used: usize) -> u16 {
    let mut left = used as u64;
    let mut count = 0;
    for vector in vectors {
        if left == 0 {
            break;
        }
        left -= left.min(vector.length);
        count += 1;
    }
    count
}
