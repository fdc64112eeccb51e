//! RECVMSG.

use core::mem::offset_of;

use linux_raw_sys::io_uring::{IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF, io_uring_recvmsg_out};
use linux_raw_sys::net::{MSG_CTRUNC, MSG_TRUNC, msghdr};

use crate::abi::{Errno, names};
use crate::feature::provided_buffers::Span;
use crate::observe::chaos;
use crate::ops::net::recv::{Next, Received, before, check, conclude, without_memory};
use crate::ops::net::{UNUSUAL_LENGTH, calls, failed, start};
use crate::os::{Fd, user};
use crate::request::Flags;
use crate::request::data::OpData;
use crate::request::data::net::{Data, LONGEST, Message};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, arg};
use crate::ring::Attempt;
use crate::ring::row::{Outcome, Row};

/// `IORING_OP_RECVMSG`.
pub const RECVMSG: Row = Row::new(
    op!(IORING_OP_RECVMSG),
    Caps::FILE.with(Caps::SOCKET).with(Caps::BUFFER_SELECT).with(Caps::IOPRIO),
    prep,
    issue,
)
.arguments(&[
    shown::SOCKET,
    arg(Field::Address, "msg", Kind::MessageFilled),
    shown::GROUP,
    arg(Field::OpFlags, "msg_flags", Kind::Flags(names::MSG_FLAGS)),
    arg(Field::Ioprio, "ioprio", Kind::Flags(names::RECV_FLAGS)).unless_zero(),
    arg(Field::Length, "len", Kind::Number).when(UNUSUAL_LENGTH),
])
.failed(failed)
.faults(chaos::RECEIVES)
.unused(Unused::OFF.with(Unused::FILE_INDEX))
.errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOTSOCK, Errno::EMSGSIZE, Errno::ENOBUFS]);

/// The size of the header of each message in a multishot request's buffer.
const OUT: usize = size_of::<io_uring_recvmsg_out>();

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    check(cx)?;
    let request = cx.request_mut();
    if u32::from(request.sqe.ioprio) & (IORING_RECVSEND_BUNDLE | IORING_RECVSEND_FIXED_BUF) != 0 {
        return Err(Errno::EINVAL);
    }
    let selects = request.flags.has(Flags::BUFFER_SELECT);
    let progress = start(request, 0);
    let message = Message::read(request.sqe.addr, selects, progress)?;
    if request.flags.has(Flags::MULTISHOT) {
        // As in the kernel, the sum must fit into an int.
        let name_length = usize::try_from(message.name_length).map_err(|_| Errno::EOVERFLOW)?;
        let room = message.control_length.checked_add(OUT + name_length);
        if room.is_none_or(|room| room > i32::MAX as usize) {
            return Err(Errno::EOVERFLOW);
        }
    }
    request.data = OpData::Net(Data::Message(alloc::boxed::Box::new(message)));
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    if let Some(outcome) = before(cx, fd) {
        return outcome;
    }
    loop {
        let attempt = match receive(cx, fd) {
            Ok(attempt) => attempt,
            Err(errno) => {
                cx.return_buffer();
                return without_memory(cx, fd, errno);
            }
        };
        if let Next::Outcome(outcome) = conclude(cx, fd, attempt) {
            return outcome;
        }
    }
}

fn receive(cx: &mut Attempt<'_>, fd: Fd) -> Result<Received, Errno> {
    let request = cx.request_mut();
    if !request.flags.has(Flags::BUFFER_SELECT) || request.buffer.is_some() {
        return Ok(receive_single(request.message(), fd));
    }
    let wanted = request.message().vectors.first().map_or(0, |vector| vector.length as usize);
    if request.flags.has(Flags::MULTISHOT) {
        let span = cx.select_buffer(wanted)?;
        let message = cx.message();
        let attempt = receive_into(message, fd, span)?;
        if attempt.result.is_ok() {
            // As in the kernel, the program's length limits the first message only.
            message.set_memory(Span { address: 0, length: 0 });
        }
        return Ok(attempt);
    }
    let span = cx.select_buffer(wanted)?;
    let message = cx.message();
    message.set_memory(span);
    let attempt = receive_single(message, fd);
    if attempt.result == Err(Errno::EAGAIN) {
        // The next attempt uses the same length, with the buffer that is next then.
        message.set_memory(Span { address: 0, length: wanted });
    }
    Ok(attempt)
}

/// Receives into the program's memory, or the selected buffer.
fn receive_single(message: &mut Message, fd: Fd) -> Received {
    let asked = message.length();
    let may_retry = message.control_length == 0;
    let mut header = message.raw();
    header.msg_name = message.name as *mut _;
    header.msg_namelen = message.name_length;
    let result = calls::receive_message(fd, &mut header, message.progress.flags)
        .and_then(|count| write_back(message.header, &header).map(|()| count));
    Received {
        result,
        asked,
        buffers: 1,
        reported: result.unwrap_or(0),
        truncated: header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) != 0,
        may_retry,
    }
}

/// Writes the lengths and flags of a received message to the program's header.
fn write_back(at: u64, header: &msghdr) -> Result<(), Errno> {
    if !header.msg_name.is_null() {
        user::write(at + offset_of!(msghdr, msg_namelen) as u64, &header.msg_namelen)?;
    }
    user::write(at + offset_of!(msghdr, msg_flags) as u64, &header.msg_flags)?;
    user::write(at + offset_of!(msghdr, msg_controllen) as u64, &header.msg_controllen)
}

/// Receives for a multishot request: header, address and control bytes are written to the buffer, too.
fn receive_into(message: &mut Message, fd: Fd, span: Span) -> Result<Received, Errno> {
    let room = OUT + message.name_length as usize + message.control_length;
    let payload = span.length.checked_sub(room).ok_or(Errno::EFAULT)?;
    let mut name = [0u8; LONGEST];
    let mut data = user::IoVector { base: span.address + room as u64, length: payload as u64 };
    let mut header = msghdr {
        msg_name: if message.name_length > 0 { name.as_mut_ptr().cast() } else { core::ptr::null_mut() },
        msg_namelen: if message.name_length > 0 { LONGEST as i32 } else { 0 },
        msg_iov: (&raw mut data).cast(),
        msg_iovlen: 1,
        msg_control: core::ptr::null_mut(),
        msg_controllen: message.control_length,
        msg_flags: 0,
    };
    if message.control_length > 0 {
        header.msg_control = (span.address + (room - message.control_length) as u64) as *mut _;
    }
    let mut result = calls::receive_message(fd, &mut header, message.progress.flags);
    let mut reported = 0;
    if let Ok(count) = result {
        let name_length = header.msg_namelen.max(0) as usize;
        let out = [name_length as u32, header.msg_controllen as u32, count as u32, header.msg_flags];
        let shown = name_length.min(message.name_length as usize).min(LONGEST);
        let written = user::write(span.address, &out)
            .and_then(|()| user::write_bytes(span.address + OUT as u64, &name[..shown]));
        reported = room + count.min(payload);
        if let Err(errno) = written {
            result = Err(errno);
        }
    }
    Ok(Received { result, asked: payload, buffers: 1, reported, truncated: false, may_retry: false })
}
