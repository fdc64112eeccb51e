//! Operations on sockets.
//!
//! Every transfer is tried with `MSG_DONTWAIT`; if it would block, the request waits for readiness and is
//! tried again. Like the kernel at submission, the preparation of a request copies message headers, vectors
//! and target addresses.
//!
//! Two system calls have no `MSG_DONTWAIT`: `connect` and `accept` are made with `O_NONBLOCK` set for their duration
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
use crate::request::data::net::{Data, Progress};
use crate::request::field::Field;
use crate::request::shown::When;
use crate::request::{Flags, Request};
use crate::ring::Attempt;
use crate::ring::row::Outcome;

/// Operations on messages ignore the length, in which programs write 1 or 0.
pub(crate) const UNUSUAL_LENGTH: &[When] = &[When::Given, When::Not(Field::Length, 1)];

/// Returns the result of a failed request: the bytes transferred before, if any, else the error.
pub(crate) fn failed(request: &Request, result: i32) -> i32 {
    let done = match &request.data {
        OpData::Net(Data::Transfer(transfer)) => transfer.progress.done,
        OpData::Net(Data::Message(message)) => message.progress.done,
        _ => 0,
    };
    if done > 0 { done as i32 } else { result }
}

/// Completes a request whose attempt failed: bytes transferred before take precedence over the error.
fn ended(cx: &mut Attempt<'_>, errno: Errno) -> Outcome {
    cx.fail();
    Outcome::Complete(failed(cx.request(), errno.negated()))
}

/// Returns the `MSG_*` flags that system calls accept.
pub(crate) fn known_flags(flags: u32) -> u32 {
    // For 32-bit programs; the system calls refuse it.
    const MSG_CMSG_COMPAT: u32 = 1 << 31;
    flags & !MSG_CMSG_COMPAT
}

/// Sets a request's flags by its `MSG_*` flags, and returns its initial progress.
pub(crate) fn start(request: &mut Request, extra: u32) -> Progress {
    let flags = known_flags(request.sqe.op_flags) | extra;
    if flags & MSG_DONTWAIT != 0 {
        request.flags.set(Flags::NOWAIT);
    }
    Progress { flags, ..Progress::default() }
}

/// True if the request must wait for readiness before its first attempt. A descriptor that is known to be
/// ready is not waited for; if a registration reports readiness immediately, the request continues before the
/// call returns.
pub(crate) fn polls_first(cx: &mut Attempt<'_>, fd: Fd, events: u32) -> bool {
    let request = cx.request();
    let never_waits = request.flags.has(Flags::NOWAIT);
    if u32::from(request.sqe.ioprio) & IORING_RECVSEND_POLL_FIRST == 0 || request.flags.has(Flags::WOKEN) {
        return false;
    }
    cx.ring.readiness_mut().note_polls_first();
    let registered = cx.ring.readiness().is_registered(fd);
    let polls = never_waits
        || !registered
        || !cx.ring.readiness().worth_trying(fd, events)
        // A listener must refuse the attempt: it never gets ready for it.
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

/// True for a socket whose partial transfers are continued if `MSG_WAITALL` is set.
fn is_retried(fd: Fd) -> bool {
    os::socket_option(fd, SO_TYPE).is_ok_and(|kind| matches!(kind as u32, SOCK_STREAM | SOCK_SEQPACKET))
}

/// True if the request uses all available provided buffers at once.
fn bundles(request: &Request) -> bool {
    u32::from(request.sqe.ioprio) & IORING_RECVSEND_BUNDLE != 0 && request.flags.has(Flags::BUFFER_SELECT)
}

/// Notes whether a plain send or receive uses a registered buffer, which excludes the flags `others`.
///
/// # Errors
/// `EINVAL` if one of these flags is set.
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

/// Checks that a request's memory is in its registered buffer, and holds the buffer.
///
/// # Errors
/// `EFAULT` if it is not.
fn take_registered(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    if !request.flags.has(Flags::REGISTERED_BUFFER) {
        return Ok(());
    }
    let node =
        cx.ring.buffers().check(request.sqe.buf_index, request.sqe.addr, u64::from(request.sqe.len))?;
    cx.ring.hold_buffer(cx.id(), node);
    cx.flags.clear(Flags::REGISTERED_BUFFER);
    Ok(())
}

/// Returns the number of vectors that contain the first `used` bytes.
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
