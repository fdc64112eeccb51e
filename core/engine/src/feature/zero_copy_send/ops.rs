//! SEND_ZC and SENDMSG_ZC: sends whose memory the program may reuse only after a second CQE
//! ([`crate::feature::zero_copy_send::notification`]).

use alloc::boxed::Box;

use linux_raw_sys::general::EPOLLOUT;
use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_RECVSEND_FIXED_BUF, IORING_RECVSEND_POLL_FIRST, IORING_SEND_ZC_REPORT_USAGE,
};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDPLITE, MSG_NOSIGNAL, MSG_WAITALL, SO_DOMAIN,
    SO_PROTOCOL, SO_TYPE, SOCK_DGRAM, SOCK_STREAM,
};

use crate::abi::{Errno, MSG_ZEROCOPY, Sqe, names};
use crate::assets::kinds::{self, Kind};
use crate::assets::table::NodeIndex;
use crate::feature::provided_buffers::Span;
use crate::feature::zero_copy_send::Announced;
use crate::observe::chaos;
use crate::ops::net::send::{
    FIXED_BUFFER, SEND_ARGUMENTS, SEND_VECTORIZED, advance, attempt, conclude, read_message,
};
use crate::ops::net::{UNUSUAL_LENGTH, calls, failed, known_flags, polls_first, start, train};
use crate::os::{self, Fd, host, user};
use crate::request::data::OpData;
use crate::request::data::net::{Address, Data, Message, Transfer, import_vectors};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Argument, arg};
use crate::request::{FileHold, Flags, Request, version};
use crate::ring::row::{Outcome, Quick, Row, Tried};
use crate::ring::{Attempt, Lent};

const CAPS: Caps = Caps::FILE.with(Caps::IOPRIO).with(Caps::NOTIFIES);

const UNUSED: Unused = Unused::PAD;
/// Fields unused by a send without an address.
const UNUSED_CONNECTED: Unused = UNUSED.with(Unused::OFF).with(Unused::ADDR_LEN_PAD).with(Unused::ADDR3);

/// The user data of the notification, if it is not the request's.
const NOTIFIED: Argument = arg(Field::Address3, "notif_user_data", shown::Kind::UserData).unless_zero();

const ARGUMENTS: [Argument; SEND_ARGUMENTS.len() + 1] = {
    let (mut all, mut place) = ([NOTIFIED; SEND_ARGUMENTS.len() + 1], 0);
    while place < SEND_ARGUMENTS.len() {
        all[place] = SEND_ARGUMENTS[place];
        place += 1;
    }
    all
};

const LIMITS: &str = "copies the data, and notifies at once, below 32 KiB, over loopback, on sockets whose error queue or readiness the \
                      program watches itself, and if the kernel copied the first large send; not on sockets of AF_VSOCK";

/// `IORING_OP_SEND_ZC`.
pub const SEND_ZC: Row = Row::new(op!(IORING_OP_SEND_ZC), CAPS.with(Caps::SOCKET), prep_send, issue)
    .arguments(&ARGUMENTS)
    .quick(Quick { attempt: send_quickly, go_on, again: send_quickly, more: |_| None })
    .together(WORTH_IT as u32 - 1, train::DEPART)
    .failed(failed)
    .faults(chaos::SENDS)
    .of_its_ring()
    .unused(UNUSED)
    .limits(LIMITS)
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK, Errno::EOPNOTSUPP]);

/// `IORING_OP_SENDMSG_ZC`. Not `Caps::SOCKET`: before 7.2 the kernel checks its registered buffers before its file.
pub const SENDMSG_ZC: Row = Row::new(op!(IORING_OP_SENDMSG_ZC), CAPS, prep_message, issue)
    .arguments(&[
        shown::SOCKET,
        arg(Field::Address, "msg", shown::Kind::Message),
        arg(Field::OpFlags, "msg_flags", shown::Kind::Flags(names::MSG_FLAGS)),
        arg(Field::Ioprio, "ioprio", shown::Kind::Flags(names::SEND_FLAGS)).unless_zero(),
        FIXED_BUFFER,
        NOTIFIED,
        arg(Field::Length, "len", shown::Kind::Number).when(UNUSUAL_LENGTH),
    ])
    .failed(failed)
    .faults(chaos::SENDS)
    .of_its_ring()
    .unused(UNUSED)
    .limits(LIMITS)
    .errors(&[
        Errno::EINVAL,
        Errno::EFAULT,
        Errno::EBADF,
        Errno::ENOTSOCK,
        Errno::EMSGSIZE,
        Errno::EOPNOTSUPP,
    ]);

const KNOWN: u32 = IORING_RECVSEND_POLL_FIRST
    | IORING_RECVSEND_FIXED_BUF
    | IORING_SEND_ZC_REPORT_USAGE
    | SEND_VECTORIZED as u32;

/// The number of bytes from which on a send without copying was faster, its notice included.
pub const WORTH_IT: usize = 32 << 10;
/// Messages with smaller pieces on average are copied.
const PAGE: usize = 4096;

/// Does the checks that fail without a notification, and the first check after them.
fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &mut request.sqe;
    if request.flags.has(Flags::CQE_SKIP) {
        return Err(Errno::EINVAL);
    }
    request.flags.set(Flags::NOTIFIES);
    if u32::from(sqe.ioprio) & !KNOWN != 0 {
        sqe.ioprio = 0;
        return Err(Errno::EINVAL);
    }
    // The operation implies this flag; on a socket it would lead to notices that the program must read.
    sqe.op_flags &= !MSG_ZEROCOPY;
    if u32::from(sqe.ioprio) & IORING_RECVSEND_FIXED_BUF != 0 {
        request.flags.set(Flags::REGISTERED_BUFFER);
    }
    Ok(())
}

fn prep_send(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep(cx)?;
    let request = cx.request_mut();
    let sqe = request.sqe;
    // From here on an error has a notification.
    if Unused::ADDR_LEN_PAD.is_set(&sqe) {
        return Err(Errno::EINVAL);
    }
    let progress = start(request, MSG_NOSIGNAL);
    let to = if sqe.off == 0 { None } else { Some(Address::read(sqe.off, i64::from(sqe.addr_len()))?) };
    let fixed = request.flags.has(Flags::REGISTERED_BUFFER);
    let vectorized = sqe.ioprio & SEND_VECTORIZED != 0;
    if fixed && vectorized && version::current() < version::SENDS_REGISTERED_VECTORS {
        return Err(Errno::EINVAL);
    }
    if !fixed && !vectorized {
        user::check_range(sqe.addr, u64::from(sqe.len))?;
    }
    request.data = OpData::Net(if vectorized {
        let vectors = import_vectors(sqe.addr, sqe.len as usize)?;
        Data::Message(Box::new(Message { vectors, ..Message::of_bundle(progress, to) }))
    } else {
        Data::Transfer(Transfer::of(&sqe, progress, to))
    });
    Ok(())
}

fn prep_message(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep(cx)?;
    let request = cx.request_mut();
    if Unused::OFF.with(Unused::FILE_INDEX).is_set(&request.sqe) {
        return Err(Errno::EINVAL);
    }
    read_message(request)
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let file = cx.file;
    let fd = file.fd();
    // Before 7.2 the kernel (`io_sendmsg_zc`) checks a message's registered buffers before the socket; those of a send after it.
    let is_message = matches!(cx.data, OpData::Net(Data::Message(_)));
    if is_message
        && version::current() < version::SOCKET_FIRST
        && let Err(errno) = take_registered(cx)
    {
        return errno.into();
    }
    if let Err(errno) = check_socket(fd, matches!(file, FileHold::Fixed(..))) {
        return errno.into();
    }
    if polls_first(cx, fd, EPOLLOUT) {
        return Outcome::Wait(EPOLLOUT);
    }
    if let Err(errno) = take_registered(cx) {
        return errno.into();
    }
    if cx.hold_in_train(fd) {
        return Outcome::Armed;
    }
    let outcome = transmit(cx, fd);
    announce_end(cx, outcome)
}

/// Announces the notification of a request that completes; returns the outcome.
pub fn announce_end(cx: &mut Attempt<'_>, outcome: Outcome) -> Outcome {
    // If the CQE may come late, the end of the request announces.
    if let Outcome::Complete(_) = outcome
        && !cx.flags.has(Flags::CHAOS)
    {
        cx.cqe_flags |= IORING_CQE_F_MORE;
        cx.announce();
    }
    outcome
}

/// Sends one piece of memory to the connected peer, without a request if possible.
fn send_quickly(ring: &mut Lent, sqe: &Sqe, fd: Fd) -> Tried {
    let plain = u32::from(sqe.ioprio) & !(IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) == 0
        && !UNUSED_CONNECTED.is_set(sqe);
    if !plain || ring.may_begin_train(sqe, fd) {
        return Tried::Nothing;
    }
    let Ok(buffer) = lies_right(ring, sqe) else { return Tried::Nothing };
    let fixed = Flags::of_sqe(sqe.flags).has(Flags::FIXED_FILE);
    if !ring.zero_copy().has_checked(fd) && check_socket(fd, fixed).is_err() {
        return Tried::Nothing;
    }
    ring.zero_copy_mut().checks(fd);
    let flags = known_flags(sqe.op_flags & !MSG_ZEROCOPY) | MSG_NOSIGNAL;
    if sqe.len as usize >= WORTH_IT
        && let Some(channel) = ring.channel_for(fd)
    {
        return send_in_place(ring, sqe, fd, flags, channel, buffer);
    }
    // The data is copied, so the registered buffer need not be held.
    let span = Span { address: sqe.addr, length: sqe.len as usize };
    match calls::send(fd, span, flags, None) {
        Ok(count) if count == span.length || flags & MSG_WAITALL == 0 => {
            ring.announce_copied(sqe);
            Tried::Done(count as i32, IORING_CQE_F_MORE)
        }
        result => Tried::Attempt(result),
    }
}

/// Sends from the program's own pages, which may be in a registered buffer, without a request.
#[inline(always)]
fn send_in_place(
    ring: &mut Lent,
    sqe: &Sqe,
    fd: Fd,
    flags: u32,
    channel: usize,
    buffer: Option<NodeIndex>,
) -> Tried {
    if flags & MSG_WAITALL != 0 && ring.zero_copy().is_stream(channel) {
        return Tried::Nothing;
    }
    let span = Span { address: sqe.addr, length: sqe.len as usize };
    match calls::send(fd, span, flags | MSG_ZEROCOPY, None) {
        Ok(count) => {
            ring.pages_out_beside(channel, Announced::of(sqe, buffer));
            Tried::Done(count as i32, IORING_CQE_F_MORE)
        }
        Err(errno @ (Errno::ENOBUFS | Errno::EOPNOTSUPP)) => {
            ring.pages_refused(channel, errno);
            Tried::Nothing
        }
        Err(errno) => Tried::Attempt(Err(errno)),
    }
}

/// Returns the registered buffer of the send's memory, if it names one; an error if the memory is not in the
/// buffer, or is no valid range of the program.
#[inline]
fn lies_right(ring: &Lent, sqe: &Sqe) -> Result<Option<NodeIndex>, Errno> {
    let length = u64::from(sqe.len);
    if u32::from(sqe.ioprio) & IORING_RECVSEND_FIXED_BUF != 0 {
        ring.buffers().check(sqe.buf_index, sqe.addr, length).map(Some)
    } else {
        user::check_range(sqe.addr, length).map(|()| None)
    }
}

/// Sends the rest after a first attempt.
fn go_on(cx: &mut Attempt<'_>, fd: Fd, result: Result<usize, Errno>) -> Outcome {
    // The buffer was checked before the attempt. If it cannot be held for want of memory, no page of it is sent without copying.
    let _ = take_registered(cx);
    let asked = cx.sqe.len as usize;
    let outcome = conclude(cx, fd, result, asked).unwrap_or_else(|| {
        advance(cx.request_mut(), result.unwrap_or(0));
        transmit(cx, fd)
    });
    announce_end(cx, outcome)
}

/// Sends the rest, without copying if that is faster.
fn transmit(cx: &mut Attempt<'_>, fd: Fd) -> Outcome {
    loop {
        let (result, asked) = match in_place(cx, fd) {
            Some(attempt) => attempt,
            None => {
                cx.piece_is_copied();
                attempt(cx.request_mut(), fd, 0)
            }
        };
        match conclude(cx, fd, result, asked) {
            None => advance(cx.request_mut(), result.unwrap_or(0)),
            Some(outcome) => return outcome,
        }
    }
}

/// Makes an attempt from the program's own pages; `None` if the data must be copied.
fn in_place(cx: &mut Attempt<'_>, fd: Fd) -> Option<(Result<usize, Errno>, usize)> {
    if !is_large(cx.request()) {
        return None;
    }
    let channel = cx.ring.channel_for(fd)?;
    let notification = cx.notification().ok()?;
    let (result, asked) = attempt(cx.request_mut(), fd, MSG_ZEROCOPY);
    match result {
        Ok(1..) => cx.ring.pages_out(channel, notification),
        Err(errno @ (Errno::ENOBUFS | Errno::EOPNOTSUPP)) => {
            cx.ring.pages_refused(channel, errno);
            return None;
        }
        _ => {}
    }
    Some((result, asked))
}

/// True if copying the rest costs more than handling its notice.
fn is_large(request: &Request) -> bool {
    match &request.data {
        OpData::Net(Data::Transfer(transfer)) => transfer.length as usize >= WORTH_IT,
        OpData::Net(Data::Message(message)) => {
            message.length() >= WORTH_IT.max(message.vectors.len().saturating_mul(PAGE))
        }
        _ => false,
    }
}

/// Checks that the socket is TCP or UDP, which alone support zero-copy sends. If the front end does not see closes, the protocol of a
/// descriptor that is not registered is asked for each time: the number may be another socket's by now.
fn check_socket(fd: Fd, registered: bool) -> Result<(), Errno> {
    let known = kinds::noted(fd).has(Kind::ZERO_COPY);
    if known && (registered || host::sees_closes()) {
        return Ok(());
    }
    let protocol = os::socket_option(fd, SO_PROTOCOL)?;
    let supported = [IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDPLITE].iter().any(|&known| known as i32 == protocol);
    if !supported || !known && !is_internet(fd)? {
        return Err(Errno::EOPNOTSUPP);
    }
    kinds::add(fd, Kind::ZERO_COPY);
    Ok(())
}

/// True for TCP and UDP sockets: raw sockets have a protocol number, too.
fn is_internet(fd: Fd) -> Result<bool, Errno> {
    let kind = os::socket_option(fd, SO_TYPE)? as u32;
    let domain = os::socket_option(fd, SO_DOMAIN)? as u32;
    Ok(matches!(domain, AF_INET | AF_INET6) && matches!(kind, SOCK_STREAM | SOCK_DGRAM))
}

/// Checks that the memory is in its registered buffer, if it names one. The notification holds the buffer,
/// even if its slot is emptied.
fn take_registered(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    if !request.flags.has(Flags::REGISTERED_BUFFER) {
        return Ok(());
    }
    let index = request.sqe.buf_index;
    let mut node = cx.ring.buffers().node(index)?;
    match &request.data {
        OpData::Net(Data::Message(message)) => {
            for vector in &message.vectors {
                if vector.length == 0 {
                    return Err(Errno::EFAULT);
                }
                node = cx.ring.buffers().check(index, vector.base, vector.length)?;
            }
        }
        _ => node = cx.ring.buffers().check(index, request.sqe.addr, u64::from(request.sqe.len))?,
    }
    let notification = cx.notification()?;
    cx.ring.hold_buffer(notification, node);
    cx.flags.clear(Flags::REGISTERED_BUFFER);
    Ok(())
}
