//! SEND and SENDMSG.

use alloc::boxed::Box;

use linux_raw_sys::general::EPOLLOUT;
use linux_raw_sys::io_uring::{
    IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF, IORING_RECVSEND_POLL_FIRST,
};
use linux_raw_sys::net::{MSG_NOSIGNAL, MSG_WAITALL, SO_TYPE};

use crate::abi::{Errno, Sqe, names};
use crate::feature::provided_buffers::Span;
use crate::observe::chaos;
use crate::ops::net::{
    UNUSUAL_LENGTH, ask_registered, bundles, calls, ended, failed, is_retried, known_flags, polls_first,
    rights, start, take_registered, train,
};
use crate::os::{self, Fd, user};
use crate::request::data::OpData;
use crate::request::data::net::{Address, Data, Message, Transfer, import_vectors};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::order::ROOM;
use crate::request::shown::{self, Argument, Kind, When, arg};
use crate::request::{Flags, Request};
use crate::ring::row::{Outcome, Quick, Row, Tried};
use crate::ring::{Attempt, Lent};

const VECTORIZES: u64 = SEND_VECTORIZED as u64;

/// The registered buffer that contains the data.
pub const FIXED_BUFFER: Argument = arg(Field::BufferIndex, "buf_index", Kind::Buffer)
    .when(&[shown::OWN_MEMORY, When::Some(Field::Ioprio, IORING_RECVSEND_FIXED_BUF as u64)]);

/// The arguments of SEND and SEND_ZC.
pub const SEND_ARGUMENTS: [Argument; 10] = [
    shown::SOCKET,
    arg(Field::Address, "buf", Kind::Data(Field::Length))
        .when(&[shown::OWN_MEMORY, When::None(Field::Ioprio, VECTORIZES)]),
    arg(Field::Address, "buf", Kind::Vectors(Field::Length))
        .when(&[shown::OWN_MEMORY, When::Some(Field::Ioprio, VECTORIZES)]),
    shown::GROUP,
    arg(Field::Length, "len", Kind::Number),
    arg(Field::OpFlags, "msg_flags", Kind::Flags(names::MSG_FLAGS)),
    arg(Field::Offset, "dest_addr", Kind::SocketAddress(Field::AddressLength)).unless_zero(),
    arg(Field::AddressLength, "addr_len", Kind::Number).when(&[When::Not(Field::Offset, 0)]),
    arg(Field::Ioprio, "ioprio", Kind::Flags(names::SEND_FLAGS)).unless_zero(),
    FIXED_BUFFER,
];

const UNUSED: Unused = Unused::ADDR_LEN_PAD;
/// Fields unused by a send without an address.
const UNUSED_CONNECTED: Unused = UNUSED.with(Unused::OFF);

/// `IORING_OP_SEND`.
pub const SEND: Row = Row::new(
    op!(IORING_OP_SEND),
    Caps::FILE.with(Caps::SOCKET).with(Caps::BUFFER_SELECT).with(Caps::IOPRIO),
    prep_send,
    issue_send,
)
.arguments(&SEND_ARGUMENTS)
.quick(Quick { attempt: send_quickly, go_on, again: send_quickly, more: |_| None })
.together(ROOM, train::DEPART)
.failed(failed)
.faults(chaos::SENDS)
.unused(UNUSED)
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK, Errno::ENOENT, Errno::ENOBUFS]);

/// `IORING_SEND_VECTORIZED`: the address is that of an array of vectors.
pub const SEND_VECTORIZED: u16 = 1 << 5;

/// `IORING_OP_SENDMSG`.
pub const SENDMSG: Row = Row::new(
    op!(IORING_OP_SENDMSG),
    Caps::FILE.with(Caps::SOCKET).with(Caps::IOPRIO),
    prep_message,
    issue_message,
)
.arguments(&[
    shown::SOCKET,
    arg(Field::Address, "msg", Kind::Message),
    arg(Field::OpFlags, "msg_flags", Kind::Flags(names::MSG_FLAGS)),
    arg(Field::Ioprio, "ioprio", Kind::Flags(names::SEND_FLAGS)).unless_zero(),
    arg(Field::Length, "len", Kind::Number).when(UNUSUAL_LENGTH),
])
.failed(failed)
.faults(chaos::SENDS)
.unused(Unused::OFF.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK, Errno::EMSGSIZE]);

fn prep_send(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = request.sqe;
    let bundle = u32::from(sqe.ioprio) & IORING_RECVSEND_BUNDLE;
    check(sqe.len, sqe.ioprio & !(bundle as u16 | SEND_VECTORIZED | IORING_RECVSEND_FIXED_BUF as u16))?;
    ask_registered(request, IORING_RECVSEND_BUNDLE | u32::from(SEND_VECTORIZED))?;
    if bundle != 0 && !request.flags.has(Flags::BUFFER_SELECT) {
        return Err(Errno::EINVAL);
    }
    let vectorized = sqe.ioprio & SEND_VECTORIZED != 0;
    let progress = start(request, if bundle != 0 { MSG_NOSIGNAL | MSG_WAITALL } else { MSG_NOSIGNAL });
    let to = if sqe.off == 0 { None } else { Some(Address::read(sqe.off, i64::from(sqe.addr_len()))?) };
    let selects = request.flags.has(Flags::BUFFER_SELECT);
    if !selects && !vectorized && !request.flags.has(Flags::REGISTERED_BUFFER) {
        user::check_range(sqe.addr, u64::from(sqe.len))?;
    }
    request.data = OpData::Net(if vectorized && !selects {
        let vectors = import_vectors(sqe.addr, sqe.len as usize)?;
        Data::Message(Box::new(Message { vectors, ..Message::of_bundle(progress, to) }))
    } else if bundle != 0 {
        Data::Message(Box::new(Message::of_bundle(progress, to)))
    } else {
        Data::Transfer(Transfer::of(&sqe, progress, to))
    });
    Ok(())
}

fn check(length: u32, flags: u16) -> Result<(), Errno> {
    if (length as i32) < 0 || u32::from(flags) & !IORING_RECVSEND_POLL_FIRST != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn prep_message(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = request.sqe;
    check(sqe.len, sqe.ioprio & !SEND_VECTORIZED)?;
    read_message(request)
}

/// Copies the message header, vectors and address of a request that sends.
pub fn read_message(request: &mut Request) -> Result<(), Errno> {
    let progress = start(request, MSG_NOSIGNAL);
    let mut message = Message::read(request.sqe.addr, false, progress)?;
    message.read_address()?;
    request.data = OpData::Net(Data::Message(Box::new(message)));
    Ok(())
}

fn issue_send(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    if polls_first(cx, fd, EPOLLOUT) {
        return wait_for_room(fd);
    }
    if matches!(cx.data, OpData::Net(Data::Message(_))) && !bundles(cx.request()) {
        return transmit(cx, fd);
    }
    let request = cx.request();
    if request.flags.has(Flags::BUFFER_SELECT)
        && request.buffer.is_none()
        && let Err(errno) = os::socket_option(fd, SO_TYPE)
    {
        // No buffer may be selected for a file that is no socket.
        return errno.into();
    }
    if bundles(cx.request()) {
        return issue_bundles(cx, fd);
    }
    if let Err(errno) = take_registered(cx) {
        return errno.into();
    }
    if cx.hold_in_train(fd) {
        return Outcome::Armed;
    }
    if let Err(errno) = take_memory(cx) {
        return ended(cx, errno);
    }
    transmit(cx, fd)
}

/// Sends one piece of memory to the connected peer, without a request if possible, if no other send may join it.
fn send_quickly(ring: &mut Lent, sqe: &Sqe, fd: Fd) -> Tried {
    let plain = sqe.ioprio == 0 && !UNUSED_CONNECTED.is_set(sqe);
    let impossible = (sqe.len as i32) < 0 || user::check_range(sqe.addr, u64::from(sqe.len)).is_err();
    if !plain || impossible || ring.may_begin_train(sqe, fd) {
        return Tried::Nothing;
    }
    let flags = known_flags(sqe.op_flags) | MSG_NOSIGNAL;
    let span = Span { address: sqe.addr, length: sqe.len as usize };
    match calls::send(fd, span, flags, None) {
        Ok(count) if count == span.length || flags & MSG_WAITALL == 0 => Tried::Done(count as i32, 0),
        result => Tried::Attempt(result),
    }
}

/// Sends the rest after a first attempt.
pub fn go_on(cx: &mut Attempt<'_>, fd: Fd, result: Result<usize, Errno>) -> Outcome {
    let asked = (cx.sqe.len as usize).min(os::max_transfer_bytes());
    match conclude(cx, fd, result, asked) {
        None => advance(cx.request_mut(), result.unwrap_or(0)),
        Some(outcome) => return outcome,
    }
    transmit(cx, fd)
}

/// Waits before the first attempt, or fails if the file is no socket.
fn wait_for_room(fd: Fd) -> Outcome {
    os::socket_option(fd, SO_TYPE).map_or_else(Outcome::from, |_| Outcome::Wait(EPOLLOUT))
}

/// Returns how many bytes of provided buffers to send. A buffer of a list is sent as a whole, whatever the SQE's length; from a ring, no
/// length is the longest.
fn wanted(cx: &Attempt<'_>) -> usize {
    match cx.sqe.len as usize {
        _ if cx.ring.groups().is_list(cx.sqe.buf_index) => 0,
        0 => i32::MAX as usize,
        length => length,
    }
}

/// Selects the provided buffer to send from, once; the request keeps it through all attempts.
fn take_memory(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    if !request.flags.has(Flags::BUFFER_SELECT) || request.buffer.is_some() {
        return Ok(());
    }
    if !cx.ring.groups().contains(cx.sqe.buf_index) {
        return Err(Errno::ENOENT);
    }
    let wanted = wanted(cx);
    let span = cx.select_buffer(wanted)?;
    if wanted > 0 && span.length == 0 {
        cx.return_buffer();
        return Err(Errno::ENOBUFS);
    }
    cx.keep_buffers(span.length, 1);
    let transfer = cx.transfer();
    transfer.address = span.address;
    transfer.length = span.length as u32;
    Ok(())
}

fn issue_message(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    if polls_first(cx, fd, EPOLLOUT) {
        return wait_for_room(fd);
    }
    transmit(cx, fd)
}

/// Sends the rest of a request's data, until the socket has no room.
pub fn transmit(cx: &mut Attempt<'_>, fd: Fd) -> Outcome {
    loop {
        let (result, asked) = attempt(cx.request_mut(), fd, 0);
        match conclude(cx, fd, result, asked) {
            None => advance(cx.request_mut(), result.unwrap_or(0)),
            Some(outcome) => return outcome,
        }
    }
}

/// Makes one system call; returns the number of bytes to send, too.
pub fn attempt(request: &mut Request, fd: Fd, flags: u32) -> (Result<usize, Errno>, usize) {
    match &mut request.data {
        OpData::Net(Data::Transfer(transfer)) => {
            let span = Span { address: transfer.address, length: transfer.length as usize };
            let flags = flags | transfer.progress.flags;
            (calls::send(fd, span, flags, transfer.to.as_deref()), span.length)
        }
        _ => {
            let message = request.message();
            let mut header = message.raw();
            if let Some(to) = &message.to {
                header.msg_name = to.pointer() as *mut _;
                header.msg_namelen = to.length() as i32;
            }
            let result = if !header.msg_control.is_null() && rights::hands_over_ring(fd, &header) {
                Err(Errno::EINVAL)
            } else {
                calls::send_message(fd, &header, flags | message.progress.flags)
            };
            (result, message.length())
        }
    }
}

/// Advances a request's data by `count` sent bytes.
pub fn advance(request: &mut Request, count: usize) {
    match &mut request.data {
        OpData::Net(Data::Transfer(transfer)) => {
            transfer.address += count as u64;
            transfer.length -= count as u32;
        }
        _ => request.message().advance(count),
    }
}

/// Sends all available provided buffers, one bundle after another.
fn issue_bundles(cx: &mut Attempt<'_>, fd: Fd) -> Outcome {
    loop {
        if cx.buffer.is_none()
            && let Err(errno) = take_bundle(cx)
        {
            return ended(cx, errno);
        }
        let outcome = transmit(cx, fd);
        let Outcome::Complete(result) = outcome else { return outcome };
        let request = cx.request();
        let ends = result <= 0 || request.flags.has(Flags::FAILED.with(Flags::WOKEN));
        let flags = request.cqe_flags;
        // If the length ends with the group's last buffer, only the next attempt finds that no buffer is left.
        let empties = result as usize != wanted(cx) && cx.ring.groups().is_empty(cx.sqe.buf_index);
        if ends || empties || !cx.post_more(result, flags) {
            return outcome;
        }
        let request = cx.request_mut();
        request.cqe_flags = 0;
        request.progress().done = 0;
        // The length limits the first bundle only.
        request.sqe.len = 0;
    }
}

fn take_bundle(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    if !cx.ring.groups().contains(cx.sqe.buf_index) {
        return Err(Errno::ENOENT);
    }
    let wanted = wanted(cx);
    let mut vectors = cx.select_buffers(wanted)?;
    if let [first, _, ..] = vectors[..] {
        // The kernel concludes from the first buffer how many are needed.
        vectors.truncate(wanted.div_ceil(first.length as usize));
    }
    let length = vectors.iter().map(|vector| vector.length as usize).sum();
    cx.keep_buffers(length, vectors.len() as u16);
    cx.message().vectors = vectors;
    Ok(())
}

/// Handles the result of one attempt to send; `None` if another attempt must send the rest.
pub fn conclude(cx: &mut Attempt<'_>, fd: Fd, result: Result<usize, Errno>, asked: usize) -> Option<Outcome> {
    let progress = cx.progress();
    let outcome = match result {
        Err(Errno::EAGAIN) => return Some(Outcome::Wait(EPOLLOUT)),
        Err(errno) => ended(cx, errno),
        Ok(count) if progress.waits_for_all() && count < asked => {
            if count > 0 && is_retried(fd) {
                progress.done += count as u32;
                return None;
            }
            cx.fail();
            Outcome::Complete((count + cx.progress().done as usize) as i32)
        }
        Ok(count) => Outcome::Complete((count + progress.done as usize) as i32),
    };
    let flags = cx.use_buffers(0, 1);
    cx.cqe_flags |= flags;
    Some(outcome)
}
