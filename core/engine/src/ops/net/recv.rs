//! RECV, and the end of an attempt of RECV and RECVMSG.

use linux_raw_sys::general::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLPRI, EPOLLRDHUP};
use linux_raw_sys::io_uring::{
    IORING_CQE_F_SOCK_NONEMPTY, IORING_RECV_MULTISHOT, IORING_RECVSEND_BUNDLE, IORING_RECVSEND_FIXED_BUF,
    IORING_RECVSEND_POLL_FIRST,
};
use linux_raw_sys::net::{
    MSG_CTRUNC, MSG_ERRQUEUE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SO_TYPE,
};

use crate::abi::{Errno, Sqe, names};
use crate::feature::provided_buffers::{Selected, Span};
use crate::observe::chaos;
use crate::ops::net::send::FIXED_BUFFER;
use crate::ops::net::{
    ask_registered, bundles, calls, covering, ended, failed, is_idle, is_retried, polls_first, start,
    take_registered,
};
use crate::os::user::{self, IoVector};
use crate::os::{self, Fd};
use crate::request::data::OpData;
use crate::request::data::net::{Data, Transfer, empty_header};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, arg};
use crate::request::{Flags, Request, version};
use crate::ring::drive::readiness::{Known, SocketKind};
use crate::ring::row::{Outcome, Quick, Row, Tried};
use crate::ring::{Attempt, Lent};

const UNUSED: Unused = Unused::OFF;
/// Fields that a receive other than a multishot one does not use: it has no total.
const UNUSED_ONCE: Unused = UNUSED.with(Unused::FILE_INDEX);

/// `IORING_OP_RECV`.
pub const RECV: Row = Row::new(
    op!(IORING_OP_RECV),
    Caps::FILE.with(Caps::SOCKET).with(Caps::BUFFER_SELECT).with(Caps::IOPRIO),
    prep,
    issue,
)
.arguments(&[
    shown::SOCKET,
    arg(Field::Address, "buf", Kind::Filled).when(&[shown::OWN_MEMORY]),
    shown::GROUP,
    arg(Field::Length, "len", Kind::Number),
    arg(Field::OpFlags, "msg_flags", Kind::Flags(names::MSG_FLAGS)),
    arg(Field::Ioprio, "ioprio", Kind::Flags(names::RECV_FLAGS)).unless_zero(),
    arg(Field::FileIndex, "optlen", Kind::Number).unless_zero(),
    FIXED_BUFFER,
])
.quick(Quick { attempt: receive_quickly, go_on, again: receive_now, more: receive_more })
.failed(failed)
.faults(chaos::RECEIVES)
.unused(UNUSED)
.errors(&[
    Errno::EINVAL,
    Errno::EFAULT,
    Errno::EBADF,
    Errno::ENOTSOCK,
    Errno::ENOENT,
    Errno::ENOBUFS,
    Errno::EAGAIN,
    Errno::ECANCELED,
]);

/// Flags in `ioprio`.
const FLAGS: u32 =
    IORING_RECVSEND_POLL_FIRST | IORING_RECV_MULTISHOT | IORING_RECVSEND_BUNDLE | IORING_RECVSEND_FIXED_BUF;

/// The number of CQEs that a multishot request posts before other requests have their turn.
pub const MOST_ROUNDS: u8 = 32;

/// Does the checks that RECV and RECVMSG share.
pub fn check(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &request.sqe;
    let flags = u32::from(sqe.ioprio);
    if (sqe.len as i32) < 0 || flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & IORING_RECV_MULTISHOT != 0 {
        if !request.flags.has(Flags::BUFFER_SELECT) || sqe.op_flags & MSG_WAITALL != 0 {
            return Err(Errno::EINVAL);
        }
        request.flags.set(Flags::MULTISHOT);
    }
    Ok(())
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    // `optlen` may limit the total of a multishot receive.
    if u32::from(sqe.ioprio) & IORING_RECV_MULTISHOT == 0 && UNUSED_ONCE.is_set(sqe) {
        return Err(Errno::EINVAL);
    }
    check(cx)?;
    let request = cx.request_mut();
    let sqe = request.sqe;
    ask_registered(request, IORING_RECV_MULTISHOT | IORING_RECVSEND_BUNDLE)?;
    if !request.flags.has(Flags::BUFFER_SELECT.with(Flags::REGISTERED_BUFFER)) {
        user::check_range(sqe.addr, u64::from(sqe.len))?;
    }
    let progress = start(request, 0);
    request.keep(OpData::Net(Data::Transfer(Transfer::of(&sqe, progress, None))));
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let fd = cx.file.fd();
    if let Some(outcome) = before(cx, fd) {
        return outcome;
    }
    loop {
        let request = cx.request();
        let attempt = if bundles(request) && request.buffer.is_none() {
            receive_bundle(cx, fd)
        } else {
            receive(cx, fd)
        };
        let next = match attempt {
            Ok(attempt) => conclude(cx, fd, attempt),
            Err(errno) => Next::Outcome(without_memory(cx, fd, errno)),
        };
        if let Next::Outcome(outcome) = next {
            return outcome;
        }
    }
}

/// Returns the outcome of an attempt that found no memory to receive into, or too little for a message's header. A multishot request of
/// a stream that has received something waits if no more is there: the kernel knows that before it selects a buffer.
pub fn without_memory(cx: &mut Attempt<'_>, fd: Fd, errno: Errno) -> Outcome {
    let has_received = cx.flags.has(Flags::WOKEN) || cx.progress().rounds > 0;
    let may_wait = matches!(errno, Errno::ENOBUFS | Errno::EFAULT)
        && cx.flags.has(Flags::MULTISHOT)
        && has_received
        && cx.ring.readiness_mut().socket_kind(fd).tells_rest();
    if may_wait && !has_data(cx.ring, fd) { Outcome::Wait(EPOLLIN) } else { ended(cx, errno) }
}

/// True if a stream has data, or has ended.
fn has_data(ring: &mut Lent, fd: Fd) -> bool {
    let shows_data = |events: u32| events & (EPOLLIN | EPOLLERR) != 0;
    // A poll does not show data below the low-water mark.
    os::poll_now(fd, EPOLLIN).is_ok_and(shows_data)
        || ring.readiness_mut().socket_kind(fd) == SocketKind::TcpLowWater && more_in_connection(fd)
}

fn receive(cx: &mut Attempt<'_>, fd: Fd) -> Result<Received, Errno> {
    let span = memory(cx)?;
    let flags = cx.progress().flags;
    let mut truncated = false;
    // A stream does not truncate data.
    let result = if flags & MSG_WAITALL == 0 || cx.ring.readiness().is_known_connection(fd) {
        calls::receive(fd, span, flags)
    } else {
        let mut vector = IoVector { base: span.address, length: span.length as u64 };
        receive_vectors(fd, core::slice::from_mut(&mut vector), flags, &mut truncated)
    };
    Ok(Received { truncated, ..Received::of_single(result, span.length) })
}

/// Receives into one piece of memory, without a request if possible.
fn receive_quickly(ring: &mut Lent, sqe: &Sqe, fd: Fd) -> Tried {
    let (mode, flags) = (u32::from(sqe.ioprio), sqe.op_flags & !MSG_NOSIGNAL);
    let plain = mode & !IORING_RECVSEND_POLL_FIRST == 0 && flags & !MSG_WAITALL == 0;
    if mode != 0 {
        ring.readiness_mut().note_polls_first();
    }
    if !plain || UNUSED_ONCE.is_set(sqe) || (sqe.len as i32) < 0 {
        return Tried::Nothing;
    }
    let socket = ring.readiness().known(fd);
    // An unknown socket must be waited for if POLL_FIRST is set; a socket that is no stream may truncate data, which must be reported.
    let waits = mode != 0 && (socket.is_none() || ring.readiness_mut().socket_kind(fd).listens());
    let ordinary = waits || flags != 0 && !ring.readiness().is_known_connection(fd);
    if ordinary || user::check_range(sqe.addr, u64::from(sqe.len)).is_err() {
        return Tried::Nothing;
    }
    receive_at(ring, sqe, fd, socket)
}

/// Receives for a request that has waited: its checks are done.
fn receive_now(ring: &mut Lent, sqe: &Sqe, fd: Fd) -> Tried {
    let socket = ring.readiness().known(fd);
    receive_at(ring, sqe, fd, socket)
}

#[inline]
fn receive_at(ring: &mut Lent, sqe: &Sqe, fd: Fd, socket: Option<Known>) -> Tried {
    if let Some(idle) = socket.and_then(|socket| ring.readiness().is_idle(socket)) {
        return if idle.receives() { Tried::Wait(EPOLLIN, socket) } else { Tried::Nothing };
    }
    let span = Span { address: sqe.addr, length: (sqe.len as usize).min(os::max_transfer_bytes()) };
    let flags = sqe.op_flags & !MSG_NOSIGNAL;
    match calls::receive(fd, span, flags) {
        // The receive was short, and nothing else need be reported of the socket.
        Ok(count)
            if 0 < count
                && count < span.length
                && flags == 0
                && socket.is_some_and(|socket| ring.readiness_mut().note_short_read(socket)) =>
        {
            Tried::Done(count as i32, 0)
        }
        Ok(count)
            if 0 < count
                && (count == span.length || flags == 0 && ring.readiness().is_known_connection(fd)) =>
        {
            // Nothing but the end of the stream can follow a short receive. To find it costs as much as a receive, so that is done only
            // on rings whose program is known to heed it.
            let unasked =
                count < span.length && !ring.readiness().heeds_rest() && !ring.readiness().is_registered(fd);
            let flags = if unasked { 0 } else { more_waits(ring, fd, count, span.length) };
            Tried::Done(count as i32, flags)
        }
        Err(Errno::EAGAIN) => Tried::Wait(EPOLLIN, None),
        result => Tried::Attempt(result),
    }
}

/// Does a multishot receive of the simple kind: from a TCP connection, into the next buffer of a ring. If the
/// receive empties the connection, the request waits again immediately.
fn receive_more(cx: &mut Attempt<'_>) -> Option<Outcome> {
    let request = cx.request();
    let (sqe, fd) = (&request.sqe, request.file.fd());
    let plain = u32::from(sqe.ioprio) == IORING_RECV_MULTISHOT && sqe.op_flags & !MSG_NOSIGNAL == 0;
    let (group, wanted) = (sqe.buf_index, sqe.len as usize);
    let socket = cx.ring.readiness().known(fd)?;
    if !plain
        || sqe.file_index != 0
        || cx.ring.readiness().is_idle(socket).is_some()
        || !cx.ring.queues().has_room()
    {
        return None;
    }
    let buffer = cx.ring.groups_mut().next_of_ring(group)?;
    let whole = (buffer.length as usize).min(os::max_transfer_bytes());
    let length = if wanted == 0 { whole } else { whole.min(wanted) };
    match calls::receive(fd, Span { address: buffer.address, length }, 0) {
        Ok(count) if 0 < count && count < length && cx.ring.readiness_mut().note_short_read(socket) => {
            let flags = cx.ring.groups_mut().report(&Selected::next(group, &buffer), 0, 1);
            if cx.post_more(count as i32, flags) {
                cx.arm_known(socket, EPOLLIN);
                return Some(Outcome::Armed);
            }
            cx.cqe_flags |= flags;
            Some(Outcome::Complete(count as i32))
        }
        result => {
            cx.hold_next(&buffer);
            match conclude(cx, fd, Received::of_single(result, length)) {
                Next::Outcome(outcome) => Some(outcome),
                Next::Attempt => Some(issue(cx)),
            }
        }
    }
}

/// Continues a request after a receive into one piece of memory.
fn go_on(cx: &mut Attempt<'_>, fd: Fd, result: Result<usize, Errno>) -> Outcome {
    let asked = cx.sqe.len as usize;
    match conclude(cx, fd, Received::of_single(result, asked.min(os::max_transfer_bytes()))) {
        Next::Outcome(outcome) => outcome,
        Next::Attempt => issue(cx),
    }
}

/// Returns the error of a receive without a buffer: `ENOENT` for a bundle whose group does not exist.
#[cold]
fn without_buffer(cx: &Attempt<'_>, errno: Errno) -> Errno {
    if bundles(cx.request()) && !cx.ring.groups().contains(cx.sqe.buf_index) { Errno::ENOENT } else { errno }
}

/// Receives once into all available provided buffers.
fn receive_bundle(cx: &mut Attempt<'_>, fd: Fd) -> Result<Received, Errno> {
    let wanted = share(cx.request());
    let mut vectors = cx.select_buffers(wanted).map_err(|errno| without_buffer(cx, errno))?;
    if cx.flags.has(Flags::CHAOS) {
        cx.cut_bundle(&mut vectors);
    }
    let flags = cx.progress().flags;
    let mut truncated = false;
    let result = receive_vectors(fd, &mut vectors, flags, &mut truncated);
    let asked = vectors.iter().map(|vector| vector.length as usize).sum();
    if let [only] = vectors[..] {
        let transfer = cx.transfer();
        transfer.address = only.base;
        transfer.length = only.length as u32;
    }
    Ok(Received {
        result,
        asked,
        buffers: covering(&vectors, result.unwrap_or(0)),
        reported: result.unwrap_or(0),
        truncated,
        may_retry: vectors.len() == 1,
    })
}

/// True if the file is no socket.
fn is_no_socket(ring: &mut Lent, fd: Fd) -> bool {
    match ring.readiness() {
        known if known.is_known_connection(fd) => false,
        known if known.is_registered(fd) => ring.readiness_mut().socket_kind(fd) == SocketKind::NoSocket,
        _ => os::socket_option(fd, SO_TYPE) == Err(Errno::ENOTSOCK),
    }
}

/// Returns the outcome if no attempt need be made.
#[inline]
pub fn before(cx: &mut Attempt<'_>, fd: Fd) -> Option<Outcome> {
    if cx.sqe.op_flags & MSG_ERRQUEUE != 0 {
        cx.ring.leave_error_queue(fd, true);
    }
    if polls_first(cx, fd, EPOLLIN) {
        let request = cx.request();
        let wait = Outcome::Wait(events(request));
        // The kernel's RECVMSG checks for a socket first; before 7.2 its RECV waited on any file.
        let looks = matches!(request.data, OpData::Net(Data::Message(_)))
            || version::current() >= version::SOCKET_FIRST;
        let refused = looks && is_no_socket(cx.ring, fd);
        return Some(if refused { Errno::ENOTSOCK.into() } else { wait });
    }
    if let Err(errno) = take_registered(cx) {
        return Some(errno.into());
    }
    // Requests do not wait for urgent data.
    if cx.sqe.op_flags & MSG_OOB != 0 || !is_idle(cx, fd) {
        return None;
    }
    let request = cx.request();
    let (wait, group) = (Outcome::Wait(events(request)), request.sqe.buf_index);
    // The kernel selects a buffer before it tries the socket: without a buffer the request fails.
    if request.flags.has(Flags::BUFFER_SELECT)
        && request.buffer.is_none()
        && let Err(errno) = cx.ring.groups_mut().expect(group)
    {
        return Some(ended(cx, without_buffer(cx, errno)));
    }
    Some(wait)
}

/// Returns the events that a receive waits for.
fn events(request: &Request) -> u32 {
    let of_error_queue = request.sqe.op_flags & MSG_ERRQUEUE != 0;
    if of_error_queue { EPOLLIN | EPOLLERR | EPOLLPRI } else { EPOLLIN }
}

/// Returns the memory for the next bytes.
fn memory(cx: &mut Attempt<'_>) -> Result<Span, Errno> {
    let request = cx.request_mut();
    let selects = request.flags.has(Flags::BUFFER_SELECT) && request.buffer.is_none();
    let wanted = request.sqe.len as usize;
    let transfer = request.transfer();
    if !selects {
        return Ok(Span { address: transfer.address, length: transfer.length as usize });
    }
    let span = cx.select_buffer(wanted)?;
    let transfer = cx.transfer();
    transfer.address = span.address;
    transfer.length = span.length as u32;
    Ok(span)
}

/// Returns the limit of one receive into a bundle; 0 for no limit.
fn share(request: &Request) -> usize {
    let (once, in_all) = (request.sqe.len, request.sqe.file_index);
    let least = if once == 0 || in_all != 0 && in_all < once { in_all } else { once };
    least as usize
}

/// Receives into vectors, and reports whether data was truncated.
pub fn receive_vectors(
    fd: Fd,
    vectors: &mut [IoVector],
    flags: u32,
    truncated: &mut bool,
) -> Result<usize, Errno> {
    let mut header = empty_header();
    header.msg_iov = vectors.as_mut_ptr().cast();
    header.msg_iovlen = vectors.len();
    let result = calls::receive_message(fd, &mut header, flags);
    *truncated = header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) != 0;
    result
}

/// The result of one attempt to receive.
pub struct Received {
    /// The system call's result.
    pub result: Result<usize, Errno>,
    /// The size of the memory in bytes.
    pub asked: usize,
    /// The number of provided buffers that were used.
    pub buffers: u16,
    /// The count that the CQE reports. So many bytes of incremental buffers are used, even if a datagram was longer than its memory
    /// (`MSG_TRUNC`): the program finds the next data by adding up what CQEs report.
    pub reported: usize,
    /// Data or control messages were truncated.
    pub truncated: bool,
    /// True if a further attempt may receive the rest.
    pub may_retry: bool,
}

impl Received {
    /// Makes the result of an attempt into one piece of memory.
    fn of_single(result: Result<usize, Errno>, asked: usize) -> Received {
        Received {
            result,
            asked,
            buffers: 1,
            reported: result.unwrap_or(0),
            truncated: false,
            may_retry: true,
        }
    }
}

/// The step after an attempt.
pub enum Next {
    /// One more attempt.
    Attempt,
    /// No other attempt: the request has this outcome.
    Outcome(Outcome),
}

/// True for messages with room for control data, which are complete as they are received.
fn may_be_short(request: &Request) -> bool {
    matches!(&request.data, OpData::Net(Data::Message(message)) if message.control_length > 0)
}

/// Handles the result of one attempt: waits, continues with the rest, posts a CQE of a multishot request, or completes.
pub fn conclude(cx: &mut Attempt<'_>, fd: Fd, attempt: Received) -> Next {
    let count = match attempt.result {
        Ok(count) => count,
        Err(Errno::EAGAIN) => {
            cx.return_buffer();
            if cx.sqe.op_flags & MSG_ERRQUEUE != 0
                && os::poll_now(fd, EPOLLIN).is_ok_and(|events| events & EPOLLIN != 0)
            {
                // The kernel's request is woken by ordinary data, too, and gives up after a number of failing attempts.
                return Next::Outcome(ended(cx, Errno::EAGAIN));
            }
            return Next::Outcome(Outcome::Wait(events(cx.request())));
        }
        Err(errno) => {
            cx.return_buffer();
            return Next::Outcome(ended(cx, errno));
        }
    };
    let progress = *cx.progress();
    let emptied = emptied(cx.ring, fd, count, &attempt, progress.flags);
    if progress.waits_for_all() {
        if count < attempt.asked && !may_be_short(cx.request()) {
            if count > 0
                && attempt.may_retry
                && !cx.ring.groups().is_incremental(cx.sqe.buf_index)
                && is_retried(fd)
            {
                advance(cx, count);
                return if emptied { Next::Outcome(Outcome::Wait(EPOLLIN)) } else { Next::Attempt };
            }
            cx.fail();
        } else if attempt.truncated {
            cx.fail();
        }
    }
    let result = (attempt.reported + progress.done as usize) as i32;
    if count == 0 && result == 0 {
        cx.return_buffer();
    }
    // A peek consumes nothing.
    let asked = if progress.flags & MSG_PEEK != 0 { count } else { attempt.asked };
    let more = if emptied { 0 } else { more_waits(cx.ring, fd, count, asked) };
    let flags = more | cx.use_buffers(attempt.reported, attempt.buffers);
    let request = cx.request_mut();
    if !request.flags.has(Flags::MULTISHOT) {
        request.cqe_flags |= flags;
        return Next::Outcome(Outcome::Complete(result));
    }
    // If the limit is reached in the group's last buffer, only the next attempt finds that no buffer is left. Without a limit, the kernel
    // receives into one buffer, and then into as many as the rest of the data needs.
    let limit = share(request);
    let may_empty =
        bundles(request) && if limit == 0 { attempt.may_retry || more != 0 } else { attempt.asked < limit };
    let ends = count == 0
        || uses_total_up(request, count)
        || may_empty && cx.ring.groups().is_empty(cx.sqe.buf_index);
    if !ends && cx.post_more(result, flags) {
        let emptied = emptied || more == 0 && count >= asked && has_all(cx.ring, fd, progress.flags);
        return next_of_multishot(cx, emptied, result as u32);
    }
    cx.cqe_flags |= flags;
    Next::Outcome(Outcome::Complete(result))
}

/// Advances a partial transfer by the received bytes.
fn advance(cx: &mut Attempt<'_>, count: usize) {
    cx.keep_buffers(count, 1);
    let request = cx.request_mut();
    request.progress().done += count as u32;
    match &mut request.data {
        OpData::Net(Data::Transfer(transfer)) => {
            transfer.address += count as u64;
            transfer.length -= count as u32;
        }
        OpData::Net(Data::Message(message)) => message.advance(count),
        _ => {}
    }
}

/// Counts the bytes of a limited multishot receive; true if the limit is reached.
fn uses_total_up(request: &mut Request, count: usize) -> bool {
    let in_all = &mut request.sqe.file_index;
    let is_limited = *in_all != 0;
    *in_all = in_all.saturating_sub(count as u32);
    is_limited && *in_all == 0
}

fn next_of_multishot(cx: &mut Attempt<'_>, emptied: bool, received: u32) -> Next {
    let request = cx.request_mut();
    let has_share = bundles(request) && request.sqe.len != 0 && received >= request.sqe.len;
    let progress = request.progress();
    if emptied {
        progress.rounds = 0;
        return Next::Outcome(Outcome::Wait(EPOLLIN));
    }
    progress.rounds += 1;
    if progress.rounds <= MOST_ROUNDS && !has_share {
        return Next::Attempt;
    }
    progress.rounds = 0;
    Next::Outcome(Outcome::Again)
}

/// True if a receive of `count` bytes emptied the socket, so that the next attempt would fail.
fn emptied(ring: &mut Lent, fd: Fd, count: usize, attempt: &Received, flags: u32) -> bool {
    if count == 0 || count >= attempt.asked || flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE) != 0 {
        return false;
    }
    ring.readiness_mut().came_short(fd)
}

/// True if nothing is left of a socket of which [`more_waits`] has found no rest after memory was filled, not even its end.
fn has_all(ring: &mut Lent, fd: Fd, flags: u32) -> bool {
    flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE) == 0
        && ring.readiness_mut().socket_kind(fd).tells_rest()
        && !ring.readiness().shows(fd, EPOLLRDHUP | EPOLLERR | EPOLLHUP | EPOLLPRI)
}

/// Returns `IORING_CQE_F_SOCK_NONEMPTY` if a stream has more data, or has ended.
fn more_waits(ring: &mut Lent, fd: Fd, count: usize, asked: usize) -> u32 {
    let kind = ring.readiness_mut().socket_kind(fd);
    let short = 0 < count && count < asked;
    let shows_end = || ring.readiness().shows(fd, EPOLLRDHUP) && !ring.readiness().shows(fd, EPOLLERR);
    let more = match kind {
        // The socket would have shown its end, and after a short receive there is nothing else.
        SocketKind::Tcp if short && ring.readiness().is_registered(fd) && !shows_end() => false,
        SocketKind::Tcp | SocketKind::TcpLowWater => more_in_connection(fd),
        // A short receive may have stopped behind data that came with descriptors, which is seldom worth a call.
        SocketKind::UnixStream if !short || shows_end() || ring.readiness().heeds_rest() => {
            os::unread(fd).is_ok_and(|unread| unread > 0)
        }
        _ => false,
    };
    if more { IORING_CQE_F_SOCK_NONEMPTY } else { 0 }
}

/// True if a TCP connection has more data, or has ended.
fn more_in_connection(fd: Fd) -> bool {
    match calls::unread_hint(fd) {
        Ok(hint) => hint > 0,
        // The connection has ended: there is no data, and none can come.
        Err(Errno::EIO) => true,
        // There is a page or more, or the kernel gives no hint.
        Err(_) => os::unread(fd).is_ok_and(|unread| unread > 0) || has_ended(fd),
    }
}

/// True if the peer has sent its FIN. That is not so for a connection that was reset, nor for one of which
/// only this side was shut down for receives.
fn has_ended(fd: Fd) -> bool {
    let ends = |events: u32| events & (EPOLLRDHUP | EPOLLERR) == EPOLLRDHUP;
    os::poll_now(fd, EPOLLRDHUP).is_ok_and(ends) && !calls::waits_for_fin(fd)
}
